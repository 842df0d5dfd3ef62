-- The tables of the peers besides bench/schema.sql: payments with the operation
-- that made them, and the functions of peers that run in one call.

SET client_min_messages = warning;

-- No unique index on the reference: it would itself prevent duplicates.
CREATE TABLE peer_payments (
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account		int NOT NULL,
	amount		numeric NOT NULL,
	reference	text NOT NULL
);

-- The business in one call; the same two statements that the clients send.
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

-- The wrapper that people write by hand: a failure is raised and leaves nothing.
CREATE FUNCTION peer_call(key text, request jsonb, hash bytea, OUT outcome text, OUT replayed bool, OUT response jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	stored hand_store;
BEGIN
	INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
		VALUES (key, hash, 'PENDING', now() + interval '1 day')
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		SELECT * INTO stored FROM hand_store WHERE scope = '' AND idempotency_key = key;
		IF stored.request_hash <> hash THEN
			RAISE EXCEPTION 'key was used with a different request' USING ERRCODE = 'P0002';
		END IF;
		outcome := stored.status; replayed := true; response := stored.response_payload;
		RETURN;
	END IF;
	response := peer_pay(request);
	UPDATE hand_store
		SET status = 'COMPLETED', response_payload = response, updated_at = clock_timestamp()
		WHERE scope = '' AND idempotency_key = key;
	outcome := 'COMPLETED'; replayed := false;
END
$$;

-- The same with stored failures: an error is caught, its effects are undone, and it is stored.
CREATE FUNCTION peer_call_catch(key text, request jsonb, hash bytea, OUT outcome text, OUT replayed bool, OUT response jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	stored hand_store;
BEGIN
	INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
		VALUES (key, hash, 'PENDING', now() + interval '1 day')
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		SELECT * INTO stored FROM hand_store WHERE scope = '' AND idempotency_key = key;
		IF stored.request_hash <> hash THEN
			RAISE EXCEPTION 'key was used with a different request' USING ERRCODE = 'P0002';
		END IF;
		outcome := stored.status; replayed := true; response := stored.response_payload;
		RETURN;
	END IF;
	BEGIN
		response := peer_pay(request);
		outcome := 'COMPLETED';
	EXCEPTION WHEN raise_exception THEN
		response := jsonb_build_object('sqlstate', SQLSTATE, 'message', SQLERRM);
		outcome := 'FAILED';
	END;
	UPDATE hand_store
		SET status = peer_call_catch.outcome::idempotency_status, response_payload = response, updated_at = clock_timestamp()
		WHERE scope = '' AND idempotency_key = key;
	replayed := false;
END
$$;
