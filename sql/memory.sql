-- If a transaction begins and releases again and again, its memory does
-- not grow, whatever the order, and also inside savepoints.

-- Memory of the transaction: bytes of the contexts that live as long as it does, or longer.
CREATE FUNCTION pg_temp.kept() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts
	WHERE name IN ('TopMemoryContext', 'TopTransactionContext', 'CurTransactionContext', 'idempotency operations')
$$;
-- Runs the rounds of a loop, 50 to begin with, and says whether many more grow by less than 8 bytes each.
CREATE PROCEDURE pg_temp.rounds(what text, many int DEFAULT 1000) LANGUAGE plpgsql AS $$
DECLARE
	before bigint;
BEGIN
	FOR n IN 1..50 LOOP EXECUTE what USING n; END LOOP;
	before := pg_temp.kept();
	FOR n IN 1..many LOOP EXECUTE what USING n; END LOOP;
	RAISE INFO '%', CASE WHEN pg_temp.kept() - before < 8 * many THEN 'flat' ELSE format('%s bytes more', pg_temp.kept() - before) END;
END $$;
CREATE FUNCTION pg_temp.in_savepoint(VARIADIC calls text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..cardinality(calls) LOOP EXECUTE 'SELECT ' || calls[i]; END LOOP;
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;

BEGIN;
\echo the same key, and another each time
CALL pg_temp.rounds($$SELECT idem_begin('memory-1'), idem_release('memory-1'), $1$$, 10000);
CALL pg_temp.rounds($$SELECT idem_begin('memory-' || $1), idem_release('memory-' || $1)$$, 10000);
CALL pg_temp.rounds($$SELECT idem_begin('memory-' || $1, '{"n": 1}'), idem_release('memory-' || $1)$$);
\echo interleaved
CALL pg_temp.rounds($$SELECT idem_begin('memory-a'), idem_begin('memory-b'), idem_release('memory-a'), idem_release('memory-b'), $1$$);
CALL pg_temp.rounds($$SELECT idem_begin('memory-a' || $1), idem_begin('memory-b' || $1, '1'), idem_release('memory-a' || $1), idem_release('memory-b' || $1)$$);
\echo while others are open, one of them ended
SELECT answer(idem_begin('memory-open', '1')), answer(idem_begin('memory-ended'));
SELECT FROM idem_complete('memory-ended');
CALL pg_temp.rounds($$SELECT idem_begin('memory-' || $1, '2'), idem_release('memory-' || $1)$$);
\echo in a savepoint
CALL pg_temp.rounds($$SELECT pg_temp.in_savepoint('idem_begin(''memory-s'')', 'idem_release(''memory-s'')'), $1$$);
CALL pg_temp.rounds($$SELECT pg_temp.in_savepoint('idem_begin(''memory-s' || $1 || ''', ''1'')', 'idem_release(''memory-s' || $1 || ''')')$$);
CALL pg_temp.rounds($$SELECT pg_temp.in_savepoint('idem_begin(''memory-s'')', 'idem_release(''memory-s'')', '1 / 0'), $1$$);
CALL pg_temp.rounds($$SELECT pg_temp.in_savepoint('idem_begin(''memory-s'')', '1 / 0'), $1$$);
\echo begun inside of a savepoint, released outside; and the other way round
CALL pg_temp.rounds($$SELECT pg_temp.in_savepoint('idem_begin(''memory-s'', ''1'')'), idem_release('memory-s'), $1$$);
CALL pg_temp.rounds($$SELECT idem_begin('memory-t', '1'), pg_temp.in_savepoint('idem_release(''memory-t'')'), $1$$);
CALL pg_temp.rounds($$SELECT idem_begin('memory-u', '1'), pg_temp.in_savepoint('idem_release(''memory-u'')', '1 / 0'), idem_release('memory-u'), $1$$);
-- pending operations are pending, ended ones are ended
SELECT answer(idem_begin('memory-open', '1')), answer(idem_begin('memory-ended')), answer(idem_begin('memory-t'));
SELECT idem_complete('memory-open'), idem_release('memory-t');
COMMIT;
SELECT idempotency_key, status FROM idempotency_store WHERE idempotency_key LIKE 'memory-%' ORDER BY 1;

-- a rollback restores the state before the end, whatever was released in between
BEGIN;
SELECT answer(idem_begin('memory-v', '1'));
SAVEPOINT s;
SELECT answer(idem_begin('memory-w')), idem_release('memory-w');
SELECT FROM idem_complete('memory-v');
SAVEPOINT t;
SELECT answer(idem_begin('memory-w')), answer(idem_begin('memory-x'));
RELEASE t;
SELECT idem_release('memory-w'), raises($$SELECT idem_complete('memory-v')$$);
ROLLBACK TO s;
SELECT answer(idem_begin('memory-v', '1')), raises($$SELECT idem_complete('memory-w')$$), raises($$SELECT idem_complete('memory-x')$$);
SELECT FROM idem_complete('memory-v', '"once"');
COMMIT;
SELECT idempotency_key, response_payload FROM idempotency_store WHERE idempotency_key ~ '^memory-[v-x]';
