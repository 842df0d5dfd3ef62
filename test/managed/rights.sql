-- Who owns the functions, and what a role may do that idem_grant has let in.
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;
CREATE FUNCTION pg_temp.state_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN '00000';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
CREATE TEMP VIEW function AS SELECT *, oid::regprocedure AS signature FROM pg_proc WHERE proname LIKE 'idem\_%';
CREATE TEMP VIEW application AS SELECT * FROM function WHERE proname IN ('idem_begin', 'idem_complete', 'idem_fail',
	'idem_release', 'idem_extend', 'idem_lookup', 'idem_fingerprint', 'idem_step_key', 'idem_call', 'idem_begin_batch',
	'idem_complete_batch', 'idem_forget', 'idem_forget_failed');

SELECT pg_temp.expect(count(*) = 17 AND bool_and(r.rolname = 'managed_owner' AND NOT r.rolsuper), 'the functions belong to a role that is no superuser')
FROM application a JOIN pg_roles r ON r.oid = a.proowner;
SELECT pg_temp.expect(count(*) FILTER (WHERE prosecdef) >= 11 AND bool_and(proconfig @> ARRAY['search_path=public, pg_temp']), 'each that runs as its owner has a search_path of its own')
FROM function WHERE prosecdef;
SELECT pg_temp.expect(bool_and(proacl IS NOT NULL) AND NOT bool_or(has_function_privilege('public', oid, 'EXECUTE')), 'nobody else may call any of them')
FROM function;
SELECT pg_temp.expect(bool_and(obj_description(oid, 'pg_proc') IS NOT NULL), 'each has a comment') FROM function;
SELECT pg_temp.expect(count(*) = 5 AND NOT bool_or(has_table_privilege('public', oid, 'SELECT, INSERT, UPDATE, DELETE')), 'nobody else may read or write a table')
FROM pg_class WHERE relkind = 'r' AND relname LIKE 'idempotency\_%';

CREATE ROLE managed_app;
CREATE ROLE managed_stranger;
GRANT CREATE ON DATABASE managed_checks TO managed_app;
SELECT idem_grant('managed_app');
-- what the role prepares, none of which may run as the owner
SET ROLE managed_app;
CREATE SCHEMA managed_trap;
CREATE TABLE managed_trap.ran (who name);
GRANT ALL ON managed_trap.ran TO PUBLIC;
GRANT USAGE ON SCHEMA managed_trap TO PUBLIC;
CREATE FUNCTION managed_trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
	'BEGIN INSERT INTO managed_trap.ran VALUES (current_user); RETURN now(); END';
CREATE FUNCTION managed_trap.trap(interval, interval) RETURNS bool LANGUAGE plpgsql AS
	'BEGIN INSERT INTO managed_trap.ran VALUES (current_user); RETURN true; END';
CREATE OPERATOR managed_trap.<= (LEFTARG = interval, RIGHTARG = interval, FUNCTION = managed_trap.trap);
CREATE TEMP TABLE idempotency_store (scope text, idempotency_key text);
CREATE TEMP TABLE idempotency_pending (scope text, idempotency_key text);
CREATE TEMP TABLE idempotency_secret (lock_key bigint);
SET search_path = managed_trap, pg_temp, public, pg_catalog;
BEGIN;
-- idem_call has the search_path of its caller: nothing of that may run in place of ours
CREATE FUNCTION managed_trap.trap(public.idem_outcome, public.idem_outcome) RETURNS bool LANGUAGE plpgsql AS
	'BEGIN INSERT INTO managed_trap.ran VALUES (current_user); RETURN true; END';
CREATE OPERATOR managed_trap.<> (LEFTARG = public.idem_outcome, RIGHTARG = public.idem_outcome, FUNCTION = managed_trap.trap);
CREATE FUNCTION managed_trap.idem_call_begin(name, regprocedure, text, jsonb, text, interval, interval, bool, bytea, int)
	RETURNS public.idem_operation LANGUAGE sql AS 'INSERT INTO managed_trap.ran VALUES (current_user); SELECT NULL::public.idem_operation';
CREATE TYPE managed_trap.text AS ENUM ('trap');
CREATE TYPE managed_trap.jsonb AS ENUM ('trap');
CREATE FUNCTION managed_trap.handle(pg_catalog.jsonb) RETURNS pg_catalog.jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF $1 IS NULL THEN
		RAISE EXCEPTION 'refused';
	END IF;
	RETURN to_jsonb(current_user || ' ' || current_setting('search_path'));
END
$$;
SELECT pg_temp.expect(outcome = 'COMPLETED' AND NOT replayed
	AND response_payload ->> 0 = 'managed_app managed_trap, pg_temp, public, pg_catalog', 'idem_call runs a handler as its caller')
FROM public.idem_call('managed_trap.handle(pg_catalog.jsonb)', 'rights-call-1', '1');
SELECT pg_temp.expect(outcome = 'FAILED' AND response_payload ->> 'message' = 'refused', 'and stores its error')
FROM public.idem_call('managed_trap.handle(pg_catalog.jsonb)', 'rights-call-2');
DROP TYPE managed_trap.text, managed_trap.jsonb;
SELECT pg_temp.expect(outcome = 'ACQUIRED', 'a role with the rights of idem_grant begins') FROM public.idem_begin('rights-1', '1', wait => '1 ms');
SELECT public.idem_complete('rights-1', '"done"') IS NULL AS ended \gset
COMMIT;
SELECT pg_temp.expect(replayed AND response_payload = '"done"', 'and gets its replay') FROM public.idem_begin('rights-1', '1.0');
SELECT fence FROM public.idem_begin('rights-2', lease => '1 hour') \gset
SELECT pg_temp.expect(public.idem_extend('rights-2', '2 hours', fence => :fence) > now(), 'extends a lease');
SELECT pg_temp.expect(public.idem_release('rights-2', fence => :fence), 'and releases it');
SELECT pg_temp.expect((SELECT count(*) FROM managed_trap.ran) = 0, 'no function, operator or table of the role runs as the owner');
RESET search_path;
SELECT pg_temp.expect(bool_and(pg_temp.state_of(s) = '42501'), 'the role has no right on a table, and none of the administrator')
FROM unnest(ARRAY['SELECT FROM public.idempotency_store', 'DELETE FROM public.idempotency_pending', 'SELECT FROM public.idempotency_secret',
	'SELECT nextval(''public.idempotency_fence'')', 'SELECT idem_gc()', 'SELECT idem_grant(''managed_app'')',
	'SELECT idem_forget(''rights-1'')', 'SELECT idem_forget_failed('''', ''r'')', 'SELECT FROM public.idempotency_forgotten', 'SELECT FROM public.idempotency_failures', 'SELECT idem_put(NULL, NULL)', 'SELECT idem_end(''k'', '''', 1, ''FAILED'', 1, NULL, NULL, NULL, NULL, NULL)', 'SELECT idem_schedule_gc()']) s;
SET ROLE managed_stranger;
SELECT pg_temp.expect(pg_temp.state_of('SELECT idem_begin(''rights-3'')') = '42501', 'a role without the grant may not begin');
RESET ROLE;
