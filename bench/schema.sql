-- The tables of the benchmark: a small business, and hand-written tables with the
-- columns, defaults, primary keys and storage of the extension's tables.
-- Variables: accounts, records, request (of the stored records).

SET client_min_messages = warning;
CREATE EXTENSION idempotency;

-- The functions without C, in a schema of their own.
CREATE SCHEMA managed;
SET search_path = managed;
\o /dev/null
\ir ../managed/idempotency.sql
\o
RESET search_path;

CREATE TABLE accounts (
	id		int PRIMARY KEY,
	balance	numeric NOT NULL
);

CREATE TABLE payments (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account	int NOT NULL,
	amount	numeric NOT NULL
);

CREATE TABLE hand_store (LIKE idempotency_store INCLUDING ALL);

-- With the index by which a clean-up job finds expired rows. The extension's
-- collector reads the pages of its table instead, and needs no index.
CREATE TABLE hand_store_indexed (LIKE idempotency_store INCLUDING ALL);
CREATE INDEX ON hand_store_indexed (expires_at);

CREATE TABLE hand_stream (LIKE idempotency_stream INCLUDING ALL) WITH (fillfactor = 50);

-- Records that are there from the start, spread evenly over the key space: the
-- replays find them, and fresh keys go in between as they would in production.
CREATE TABLE stored_records AS
	SELECT (1000000000000000000 + i * (8000000000000000000 / :records))::text AS idempotency_key,
		   idem_fingerprint(:'request'::jsonb) AS request_hash,
		   jsonb_build_object('payment', i, 'state', 'accepted') AS response_payload
	FROM generate_series(1, :records) AS i;

-- Resets every table to the state at the start of a run.
CREATE PROCEDURE reset_tables(accounts int) LANGUAGE plpgsql AS $$
BEGIN
	TRUNCATE accounts, payments, idempotency_store, hand_store, hand_store_indexed,
		managed.idempotency_store, idempotency_stream, hand_stream RESTART IDENTITY;
	INSERT INTO accounts SELECT i, 1000000 FROM generate_series(1, reset_tables.accounts) AS i;
	INSERT INTO idempotency_store (idempotency_key, request_hash, status, response_payload, expires_at)
		SELECT idempotency_key, request_hash, 'COMPLETED', response_payload, now() + interval '1 day'
		FROM stored_records;
	INSERT INTO hand_store SELECT * FROM idempotency_store;
	INSERT INTO managed.idempotency_store (idempotency_key, request_hash, status, response_payload, expires_at)
		SELECT idempotency_key, request_hash, 'COMPLETED', response_payload, now() + interval '1 day'
		FROM stored_records;
	INSERT INTO hand_store_indexed SELECT * FROM idempotency_store;
END
$$;

-- The business in one call.
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	payment bigint;
BEGIN
	UPDATE accounts SET balance = balance - (request->>'amount')::numeric
		WHERE id = (request->>'account')::int;
	INSERT INTO payments (account, amount)
		VALUES ((request->>'account')::int, (request->>'amount')::numeric)
		RETURNING id INTO payment;
	RETURN jsonb_build_object('payment', payment, 'state', 'accepted');
END
$$;

-- The wrapper that people write by hand. If the caller has the hash, the wrapper
-- does not compute it.
CREATE FUNCTION hand_call(key text, request jsonb, given bytea) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	hash bytea := coalesce(given, sha256(convert_to(request::text, 'UTF8')));
	stored hand_store;
	result jsonb;
BEGIN
	INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
		VALUES (key, hash, 'PENDING', now() + interval '1 day')
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		SELECT * INTO stored FROM hand_store WHERE scope = '' AND idempotency_key = key;
		IF stored.request_hash <> hash THEN
			RAISE EXCEPTION 'key was used with a different request';
		END IF;
		RETURN stored.response_payload;
	END IF;
	result := pay(request);
	UPDATE hand_store
		SET status = 'COMPLETED', response_payload = result, updated_at = clock_timestamp()
		WHERE scope = '' AND idempotency_key = key;
	RETURN result;
END
$$;

-- The same wrapper on the table with the index.
DO $$
BEGIN
	EXECUTE replace(replace(pg_get_functiondef('hand_call'::regproc),
		'hand_store', 'hand_store_indexed'), 'hand_call', 'hand_call_indexed');
END
$$;

-- The least that a record can cost in one call: the business and one INSERT. A
-- duplicate does the work again, and the primary key undoes it.
CREATE FUNCTION insert_call(key text, request jsonb, given bytea) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	result jsonb := pay(request);
BEGIN
	INSERT INTO hand_store (idempotency_key, request_hash, status, response_payload, expires_at)
		VALUES (key, given, 'COMPLETED', result, now() + interval '1 day');
	RETURN result;
END
$$;
