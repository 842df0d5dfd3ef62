-- The card gateway: the world outside the shop, in a database of its own,
-- without the extension. It never refuses to charge a card a second time. It
-- can look up a charge, and it refuses a caller whose fence is smaller than one
-- that it has already seen for the same reference.

CREATE TABLE ledger (
	charge		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	reference	text NOT NULL,
	amount		bigint NOT NULL CHECK (amount > 0),
	fence		bigint
);
COMMENT ON TABLE ledger IS 'every charge ever made; rows are only added';
CREATE INDEX ON ledger (reference);

CREATE TABLE newest_fence (
	reference	text PRIMARY KEY,
	fence		bigint NOT NULL
);

CREATE TABLE outage (
	reference	text PRIMARY KEY,
	kind		text NOT NULL CHECK (kind IN ('unavailable', 'answer lost')),
	calls_left	int NOT NULL DEFAULT 1
);
COMMENT ON TABLE outage IS 'which charges fail, and how often; filled before the run';

CREATE TYPE answer AS (result text, charge bigint);

-- False if a newer owner has called before. Callers with the same reference
-- wait for the row lock of each other. So the newer owner's find_charge sees a
-- late charge, or the late charge is refused.
CREATE FUNCTION fence_is_current(p_reference text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO newest_fence AS n VALUES (p_reference, p_fence)
	ON CONFLICT (reference) DO UPDATE SET fence = excluded.fence WHERE n.fence <= excluded.fence;
	RETURN FOUND;
END $$;

-- The charge made under this reference, if any.
CREATE FUNCTION find_charge(p_reference text, p_fence bigint) RETURNS answer
LANGUAGE plpgsql AS $$
BEGIN
	IF NOT fence_is_current(p_reference, p_fence) THEN
		RETURN ROW('stale fence', NULL)::answer;
	END IF;
	RETURN ROW('found', (SELECT min(charge) FROM ledger WHERE reference = p_reference))::answer;
END $$;

-- Charges the card, also if the outage loses the answer.
CREATE FUNCTION charge_card(p_reference text, p_amount bigint, p_fence bigint) RETURNS answer
LANGUAGE plpgsql AS $$
DECLARE
	v_outage	text;
	v_charge	bigint;
BEGIN
	IF p_fence IS NOT NULL AND NOT fence_is_current(p_reference, p_fence) THEN
		RETURN ROW('stale fence', NULL)::answer;
	END IF;
	UPDATE outage SET calls_left = calls_left - 1
	WHERE reference = p_reference AND calls_left > 0 RETURNING kind INTO v_outage;
	IF v_outage = 'unavailable' THEN
		RETURN ROW(v_outage, NULL)::answer;
	END IF;
	INSERT INTO ledger (reference, amount, fence) VALUES (p_reference, p_amount, p_fence)
	RETURNING charge INTO v_charge;
	IF v_outage IS NOT NULL THEN
		RETURN ROW(v_outage, NULL)::answer;
	END IF;
	RETURN ROW('charged', v_charge)::answer;
END $$;
