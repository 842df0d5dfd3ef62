-- What a customer sees. Every message to the services has the document.
CREATE TABLE orders (
	id uuid PRIMARY KEY,
	tenant text NOT NULL,
	document jsonb NOT NULL,
	amount int NOT NULL,    -- cents
	state text NOT NULL,
	placed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE history (
	order_id uuid NOT NULL REFERENCES orders,
	at timestamptz NOT NULL DEFAULT clock_timestamp(),
	state text NOT NULL,
	cause text NOT NULL
);
CREATE INDEX ON history (order_id, at);

-- Orchestrated mode only. A transition is guarded by state and version; step_key is
-- the key of the command whose answer the saga waits for.
CREATE TABLE saga (
	order_id uuid PRIMARY KEY REFERENCES orders,
	state text NOT NULL,
	version int NOT NULL,
	step_key text,
	issued int NOT NULL,
	again_at timestamptz,
	gives_up_at timestamptz
);
CREATE INDEX ON saga (again_at) WHERE again_at IS NOT NULL;
CREATE INDEX ON saga (gives_up_at) WHERE gives_up_at IS NOT NULL;

-- The customer's page hears of it when the transaction commits.
CREATE FUNCTION show(shown uuid, new_state text, cause text) RETURNS void
LANGUAGE sql AS $$
	UPDATE orders SET state = new_state WHERE id = shown;
	INSERT INTO history (order_id, state, cause) VALUES (shown, new_state, cause);
	SELECT pg_notify('order_changed', shown::text);
$$;
