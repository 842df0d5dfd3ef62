-- The outbox, the same in each database. A message is a row that commits together
-- with the change that it reports. The relay sends the rows whose sent_at is NULL.

CREATE TABLE outbox (
	key text PRIMARY KEY,
	type text NOT NULL,
	body jsonb NOT NULL,
	written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	sent_at timestamptz,
	sent int NOT NULL DEFAULT 0
);
CREATE INDEX outbox_unsent ON outbox (written_at) WHERE sent_at IS NULL;

-- The key of a message is the step key of its saga, so a step has one message. If the
-- step says it again, the first message goes out again, with its first body.
CREATE FUNCTION say(saga text, type text, body jsonb) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO outbox (key, type, body) VALUES (idem_step_key(saga, type), type, body)
	ON CONFLICT (key) DO UPDATE SET sent_at = NULL
$$;

CREATE FUNCTION wake_relay() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
	NOTIFY outbox;
	RETURN NULL;
END
$$;
CREATE TRIGGER wake_relay AFTER INSERT OR UPDATE ON outbox
	FOR EACH ROW WHEN (NEW.sent_at IS NULL) EXECUTE FUNCTION wake_relay();
