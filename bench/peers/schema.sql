-- The tables of the peers besides bench/schema.sql: payments with the operation
-- that made them, and the business in one call.

SET client_min_messages = warning;

-- No unique index on the reference: it would itself prevent duplicates.
CREATE TABLE peer_payments (
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account		int NOT NULL,
	amount		numeric NOT NULL,
	reference	text NOT NULL
);

-- The same two statements that the clients send.
CREATE FUNCTION peer_pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	payment bigint;
BEGIN
	UPDATE accounts SET balance = balance - (request->>'amount')::numeric
		WHERE id = (request->>'account')::int AND balance >= (request->>'amount')::numeric;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'declined' USING ERRCODE = 'P0001';
	END IF;
	INSERT INTO peer_payments (account, amount, reference)
		VALUES ((request->>'account')::int, (request->>'amount')::numeric, request->>'reference')
		RETURNING id INTO payment;
	RETURN jsonb_build_object('payment', payment, 'state', 'accepted', 'data', request->'data');
END
$$;
