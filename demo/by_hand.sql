-- The objects of the consumer "ByHand": a table of keys and its two functions,
-- as they are often written.

CREATE TABLE handled (
	key			text PRIMARY KEY,
	state		text NOT NULL DEFAULT 'started' CHECK (state IN ('started', 'done')),
	answer		jsonb,
	started_at	timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Returns "go ahead", or "started" if another consumer has the key, or "done"
-- with the answer. A consumer that has not finished after a second counts as dead.
CREATE FUNCTION start_once(p_key text, OUT state text, OUT answer jsonb)
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO handled (key) VALUES (p_key) ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		UPDATE handled h SET started_at = clock_timestamp()
		WHERE h.key = p_key AND h.state = 'started' AND h.started_at < clock_timestamp() - interval '1 second';
	END IF;
	IF FOUND THEN
		state := 'go ahead';
		RETURN;
	END IF;
	SELECT h.state, h.answer INTO state, answer FROM handled h WHERE h.key = p_key;
	state := coalesce(state, 'started');
END $$;

CREATE FUNCTION finish(p_key text, p_answer jsonb) RETURNS void
LANGUAGE sql AS $$
	UPDATE handled SET state = 'done', answer = p_answer WHERE key = p_key
$$;
