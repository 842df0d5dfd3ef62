-- The work of test/soak in one session: operations of every kind, and the memory
-- of that session.
CREATE EXTENSION idempotency;

-- Memory contexts in use, memory from the system that is not shared, and the
-- memory of the context in which the server keeps the session's locks.
CREATE FUNCTION memory(OUT contexts bigint, OUT resident bigint, OUT locks bigint) LANGUAGE sql AS $$
	SELECT sum(used_bytes)::bigint,
		1024 * substring(pg_read_file('/proc/self/status') FROM 'RssAnon:\s+(\d+)')::bigint,
		sum(used_bytes) FILTER (WHERE name = 'LOCALLOCK hash')::bigint
	FROM pg_backend_memory_contexts
$$;

CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
CREATE FUNCTION failing_handler(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$ BEGIN RAISE 'no' USING ERRCODE = 'P0007'; END $$;

-- Checks each answer: with a wrong one the work would not be done.
CREATE FUNCTION expect(answer idem_operation, outcome idem_outcome) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF answer.outcome IS DISTINCT FROM expect.outcome THEN
		RAISE 'answered % in place of %', answer.outcome, expect.outcome;
	END IF;
END $$;

-- Fails as it should, in a savepoint.
CREATE FUNCTION expect_error(statement text, state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RAISE 'no error' USING ERRCODE = 'P0009';
EXCEPTION WHEN OTHERS THEN
	IF sqlstate <> state THEN
		RAISE;
	END IF;
END $$;

-- Begins and ends in a savepoint that is rolled back.
CREATE FUNCTION roll_back(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(key), idem_complete(key, '1'), idem_lock(ARRAY['resource']);
	RAISE 'back' USING ERRCODE = 'P0008';
EXCEPTION WHEN SQLSTATE 'P0008' THEN
	NULL;
END $$;

-- Begins and ends in a savepoint that is released.
CREATE FUNCTION keep(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(key), idem_complete(key, '1');
EXCEPTION WHEN SQLSTATE 'P0008' THEN
	NULL;
END $$;

-- One operation of each kind in turn, each in its own transaction.
CREATE PROCEDURE operate(first bigint, count int) LANGUAGE plpgsql AS $$
DECLARE
	key text;
	held idem_operation;
BEGIN
	FOR i IN first .. first + count - 1 LOOP
		key := 'operation ' || i;
		CASE i % 10
			WHEN 0 THEN
				PERFORM expect(idem_begin(key, request => '{"a": 1}'), 'ACQUIRED');
				PERFORM idem_complete(key, '{"b": [1, 2, 3]}', code => 200, headers => '{"c": "d"}', body => 'bytes');
			WHEN 1 THEN
				PERFORM expect(idem_begin('operation ' || i - 1, request => '{"a": 1.0}'), 'COMPLETED');
			WHEN 2 THEN
				PERFORM expect(idem_call('handler(jsonb)', key, '{"e": 2}'), 'COMPLETED');
				PERFORM expect(idem_call('handler(jsonb)', key, '{"e": 2}'), 'COMPLETED');
			WHEN 3 THEN
				PERFORM expect(idem_call('failing_handler(jsonb)', key, '{}'), 'FAILED');
			WHEN 4 THEN
				held := idem_begin(key, lease => '1 minute');
				PERFORM expect(held, 'ACQUIRED');
				COMMIT;
				PERFORM idem_extend(key, '2 minutes', fence => held.fence);
				PERFORM idem_complete(held, '{"f": 3}');
			WHEN 5 THEN
				held := idem_begin(key, lease => '1 us');
				COMMIT;
				held := idem_begin(key, lease => '1 minute');
				PERFORM expect_error(format('SELECT idem_complete(%L, fence => %s)', key, held.fence - 1), 'ID409');
				PERFORM idem_release(key, fence => held.fence);
			WHEN 6 THEN
				PERFORM expect(idem_begin(key, max_attempts => 2), 'ACQUIRED');
				PERFORM idem_fail(key, '{"g": 4}', retryable => true);
				COMMIT;
				PERFORM expect(idem_begin(key, max_attempts => 1), 'FAILED');
			WHEN 7 THEN
				PERFORM roll_back(key);
				PERFORM expect(idem_begin(key), 'ACQUIRED');
				PERFORM roll_back(key || ' too');
				PERFORM keep(key || ' again');
				PERFORM idem_complete(key);
			WHEN 8 THEN
				PERFORM expect_error(format('SELECT idem_begin(%L, request => %L)', 'operation ' || i - 8, '{"a": 2}'), 'ID422');
				PERFORM expect_error(format('SELECT idem_complete(%L)', key), 'ID404');
			ELSE
				PERFORM idem_begin_batch(ARRAY[key, key || ' too']);
				PERFORM idem_complete_batch(ARRAY[key, key || ' too'], ARRAY['1', '2']::jsonb[]);
				PERFORM idem_lookup('operation ' || i - 9), idem_lookup('never');
				PERFORM idem_lock(ARRAY['resource 1', 'resource 2']), idem_advance('stream', i);
		END CASE;
		COMMIT;
	END LOOP;
END $$;

-- All of them in savepoints of the transaction there is.
CREATE FUNCTION operate_in_savepoints(first bigint, count int, keeping bool) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN first .. first + count - 1 LOOP
		IF keeping THEN
			PERFORM keep('kept ' || i);
		ELSE
			PERFORM roll_back('rolled back ' || i);
		END IF;
	END LOOP;
END $$;

-- A leak on purpose, for the test of the test: some 100 bytes each.
CREATE PROCEDURE leak(first bigint, count int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN first .. first + count - 1 LOOP
		IF i % 20 = 0 THEN
			EXECUTE format('PREPARE leak_%s AS SELECT 1', i);
		END IF;
	END LOOP;
	CALL operate(first, count);
END $$;
