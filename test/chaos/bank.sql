-- The bank: accounts, and a row for every transfer that took effect. No constraint
-- keeps a transfer from taking effect twice: that is the extension's task here.
CREATE EXTENSION idempotency;
CREATE EXTENSION amcheck;

CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE effect (key text NOT NULL, source int, target int, amount bigint, receipt text);

CREATE FUNCTION transfer(request jsonb, receipt text) RETURNS void LANGUAGE sql
BEGIN ATOMIC
	INSERT INTO effect
	SELECT request ->> 'key', (request ->> 'source')::int, (request ->> 'target')::int,
		(request ->> 'amount')::bigint, receipt;
	-- in one order, so that two transfers do not deadlock
	UPDATE account SET balance = balance +
		CASE WHEN id = (request ->> 'source')::int THEN -1 ELSE 1 END * (request ->> 'amount')::bigint
	WHERE id = least((request ->> 'source')::int, (request ->> 'target')::int);
	UPDATE account SET balance = balance +
		CASE WHEN id = (request ->> 'source')::int THEN -1 ELSE 1 END * (request ->> 'amount')::bigint
	WHERE id = greatest((request ->> 'source')::int, (request ->> 'target')::int);
END;

-- The handler of idem_call.
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	receipt text := gen_random_uuid();
BEGIN
	IF (request ->> 'declined')::boolean THEN
		RAISE 'declined' USING ERRCODE = 'P0402', DETAIL = receipt;
	END IF;
	PERFORM transfer(request, receipt);
	PERFORM pg_sleep(random() * 0.004);
	RETURN jsonb_build_object('receipt', receipt);
END
$$;

-- For a trigger on the store, which comes and goes.
CREATE FUNCTION do_nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';

CREATE ROLE teller LOGIN;
GRANT ALL ON account, effect TO teller;
SELECT idem_grant('teller');
