-- The writes of an operation: one row, once.

-- Rows inserted, updated and deleted in all tables of the database so far.
CREATE FUNCTION pg_temp.written() RETURNS bigint[] LANGUAGE sql VOLATILE AS $$
	SELECT ARRAY[sum(n_tup_ins), sum(n_tup_upd), sum(n_tup_del)]::bigint[] FROM pg_stat_xact_user_tables
$$;
CREATE FUNCTION pg_temp.writes(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	before bigint[] := pg_temp.written();
	after bigint[];
BEGIN
	EXECUTE statement;
	after := pg_temp.written();
	RETURN concat_ws(' ', CASE WHEN after = before THEN 'nothing' END,
		nullif(after[1] - before[1], 0) || ' inserted', nullif(after[2] - before[2], 0) || ' updated',
		nullif(after[3] - before[3], 0) || ' deleted');
END
$$;

-- Transaction-bound: nothing at begin, one row at the end, nothing for a replay.
BEGIN;
SELECT pg_temp.writes(s) FROM (VALUES
	($$SELECT idem_begin('writes-1', request => '1')$$), ($$SELECT idem_begin('writes-1')$$), ($$SELECT idem_complete('writes-1', '1')$$),
	($$SELECT idem_begin('writes-1', request => '1')$$), ($$SELECT idem_lookup('writes-1')$$),
	($$SELECT idem_begin('writes-2')$$), ($$SELECT idem_fail('writes-2')$$), ($$SELECT idem_begin('writes-2', lease => '1 hour')$$),
	($$SELECT idem_begin('writes-3')$$), ($$SELECT idem_release('writes-3')$$)) v(s);
-- the next attempt updates the row of the one before
SELECT pg_temp.writes(s) FROM (VALUES
	($$SELECT idem_begin('writes-4')$$), ($$SELECT idem_fail('writes-4', retryable => true)$$),
	($$SELECT idem_begin('writes-4')$$), ($$SELECT idem_complete('writes-4')$$)) v(s);
COMMIT;
SELECT pg_temp.writes(s) FROM (VALUES ($$SELECT idem_begin('writes-1', wait => '1 s')$$), ($$SELECT idem_begin('writes-2')$$)) v(s);

-- Leased: the row at begin, and one update for each change.
SELECT pg_temp.writes($$SELECT idem_begin('writes-5', lease => '1 hour')$$);
SELECT fence FROM idempotency_store WHERE idempotency_key = 'writes-5' \gset
SELECT pg_temp.writes(s) FROM (VALUES
	($$SELECT idem_begin('writes-5')$$), ($$SELECT idem_begin('writes-5', lease => '1 hour', wait => '5 ms')$$),
	('SELECT idem_extend(''writes-5'', ''1 hour'', fence => ' || :fence || ')'), ('SELECT idem_release(''writes-5'', fence => 9223372036854775807)'),
	('SELECT idem_complete(''writes-5'', fence => ' || :fence || ')'), ('SELECT raises(''SELECT idem_complete(''''writes-5'''', ''''2'''', fence => ' || :fence || ')'')'),
	('SELECT idem_release(''writes-5'', fence => ' || :fence || ')'), ($$SELECT idem_begin('writes-5')$$)) v(s);
SELECT pg_temp.writes($$SELECT idem_begin('writes-6', lease => '1 hour')$$);
SELECT FROM let_lease_run_out('writes-6');
BEGIN;
SELECT pg_temp.writes(s) FROM (VALUES ($$SELECT idem_begin('writes-6')$$), ($$SELECT idem_complete('writes-6')$$)) v(s);
ROLLBACK;
SELECT pg_temp.writes($$SELECT idem_begin('writes-6', lease => '1 hour')$$);
SELECT FROM let_lease_run_out('writes-6');
SELECT pg_temp.writes(s) FROM (VALUES ($$SELECT idem_begin('writes-6', max_attempts => 2)$$), ($$SELECT idem_begin('writes-6', max_attempts => 2)$$)) v(s);
BEGIN;
SELECT pg_temp.writes(s) FROM (VALUES ($$SELECT idem_begin('writes-7', lease => '1 hour')$$), ($$SELECT idem_release('writes-7')$$)) v(s);
-- an expired record that was not collected yet is updated
SELECT pg_temp.writes(s) FROM (VALUES ($$SELECT idem_begin('writes-8')$$), ($$SELECT idem_complete('writes-8')$$),
	($$SELECT let_expire('writes-8')$$), ($$SELECT idem_begin('writes-8')$$), ($$SELECT idem_complete('writes-8')$$)) v(s);
COMMIT;

-- idem_call: the same one row.
CREATE FUNCTION pg_temp.handle(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(1 / request::int)';
SELECT pg_temp.writes(s) FROM (VALUES
	($$SELECT idem_call('pg_temp.handle(jsonb)', 'writes-9', '1')$$), ($$SELECT idem_call('pg_temp.handle(jsonb)', 'writes-9', '1')$$),
	($$SELECT idem_call('pg_temp.handle(jsonb)', 'writes-10', '0')$$), ($$SELECT idem_call('pg_temp.handle(jsonb)', 'writes-10', '0')$$),
	($$SELECT idem_call('pg_temp.handle(jsonb)', 'writes-11', '1', record_failure => false)$$)) v(s);
-- The control: other statements are counted.
SELECT pg_temp.writes($$CREATE TEMP TABLE counted AS SELECT 1 AS n$$), pg_temp.writes($$UPDATE counted SET n = 2$$), pg_temp.writes($$DELETE FROM counted$$);
