-- What idempotency by hand needs in each database.

-- Messages that a service has processed, as "idempotent consumer" proposes.
CREATE TABLE processed_messages (
	message_id text PRIMARY KEY,
	answer jsonb,
	processed_at timestamptz NOT NULL DEFAULT now()
);

-- Answers over HTTP.
CREATE TABLE idempotency_keys (
	key text PRIMARY KEY,
	request_hash text NOT NULL,
	code int NOT NULL,
	body jsonb NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now()
);

-- The last event of each order.
CREATE TABLE last_event (
	stream text PRIMARY KEY,
	seq bigint NOT NULL
);

-- The names are those of the extension, so the statements of the services are the same.
CREATE FUNCTION idem_step_key(key text, step text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
	SELECT key || ':' || step
$$;

CREATE FUNCTION idem_lock(resources text[], wait interval) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('lock_timeout', extract(epoch FROM wait) * 1000 || 'ms', true);
	PERFORM pg_advisory_xact_lock(hashtextextended(resource, 0)) FROM unnest(resources) AS resource ORDER BY resource;
	RETURN true;
END
$$;

CREATE FUNCTION idem_advance(stream text, seq bigint) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO last_event AS last VALUES (stream, seq)
	ON CONFLICT ON CONSTRAINT last_event_pkey DO UPDATE SET seq = EXCLUDED.seq WHERE last.seq < EXCLUDED.seq;
	RETURN FOUND;
END
$$;
