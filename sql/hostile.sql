-- Callers and objects that an attacker has prepared: wrappers, restricted operations,
-- calls with wrong types, casts, event triggers.
CREATE ROLE regress_idem_hostile;
CREATE ROLE regress_idem_definer;
CREATE ROLE regress_idem_outsider;
SELECT idem_grant(r) FROM unnest(ARRAY['regress_idem_definer', 'regress_idem_outsider']::regrole[]) r;
CREATE SCHEMA hostile;
GRANT ALL ON SCHEMA hostile TO regress_idem_hostile, regress_idem_definer, regress_idem_outsider;
SELECT FROM idem_claim_scope('hostile', 'regress_idem_definer');
CREATE FUNCTION pg_temp.states(statements text[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(left(public.raises(s), 5), ' ') FROM unnest(statements) s
$$;

-- SECURITY DEFINER: the rights of the definer count, for the functions and for scopes.
SET ROLE regress_idem_definer;
CREATE FUNCTION hostile.wrapped(key text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
	SELECT answer(idem_begin(key, scope => 'hostile', lease => '1 hour'))
$$;
CREATE FUNCTION hostile.inner_handler(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(current_user)';
CREATE FUNCTION hostile.wrapped_call(key text) RETURNS jsonb LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
	SELECT response_payload FROM idem_call('hostile.inner_handler(jsonb)', key, scope => 'hostile')
$$;
SET ROLE regress_idem_hostile;
SELECT hostile.wrapped('hostile-1'), hostile.wrapped_call('hostile-2');
SELECT pg_temp.states(ARRAY['SELECT idem_begin(''hostile-1'', scope => ''hostile'')', 'SELECT idem_lookup(''hostile-1'', ''hostile'')', 'SELECT idem_call(''hostile.inner_handler(jsonb)'', ''hostile-2'')']);
-- the other way round a member loses his scope inside another role's function
RESET ROLE;
SET ROLE regress_idem_outsider;
CREATE FUNCTION hostile.outside(key text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
	SELECT raises(format('SELECT idem_lookup(%L, ''hostile'')', key))
$$;
SET ROLE regress_idem_definer;
SELECT hostile.outside('hostile-1'), hostile.outside('hostile-absent');
RESET ROLE;
-- A forged answer names a scope as well as arguments do.
SET ROLE regress_idem_outsider;
SELECT pg_temp.states(ARRAY[format('SELECT idem_complete(%L::idem_operation)', o), format('SELECT idem_fail(%L::idem_operation)', o)])
FROM (VALUES ('(ACQUIRED,hostile,hostile-1,1,f,f,1,,,,,,,,,)'), ('(ACQUIRED,hostile,absent,1,f,f,,,,,,,,,,)')) f(o);
RESET ROLE;
-- Privileges of a member who does not inherit them count after SET ROLE only.
CREATE ROLE regress_idem_noinherit NOINHERIT IN ROLE regress_idem_definer;
SELECT FROM idem_grant('regress_idem_noinherit');
BEGIN;
SET LOCAL ROLE regress_idem_noinherit;
SELECT raises('SELECT idem_lookup(''hostile-1'', ''hostile'')');
SET LOCAL ROLE regress_idem_definer;
SELECT answer(idem_lookup('hostile-1', 'hostile'));
ROLLBACK;

-- All of this is refused inside a security-restricted operation.
CREATE TABLE hostile.one AS SELECT 1 AS n;
CREATE FUNCTION hostile.run(n int, statement text) RETURNS int LANGUAGE plpgsql IMMUTABLE SET search_path = public AS $$
BEGIN
	EXECUTE statement;
	RETURN n;
END
$$;
CREATE TABLE hostile.calls AS SELECT * FROM unnest(ARRAY['SELECT idem_claim_scope(''hostile'', ''regress_idem_outsider'')', 'SELECT idem_unclaim_scope(''hostile'')',
	'SELECT idem_set_policy(''hostile'', max_attempts => 1)', 'SELECT idem_reseal()', 'SELECT idem_gc()', 'SELECT idem_begin_batch(ARRAY[''k''])', 'SELECT idem_complete_batch(ARRAY[''k''])',
	'SELECT idem_advance(''s'', 1)', 'SELECT idem_fail(''k'')', 'SELECT idem_complete(idem_lookup(''hostile-1'', ''hostile''))', 'SELECT idem_lock(ARRAY[''r''])']) call;
SELECT DISTINCT regexp_replace(raises(format('CREATE INDEX ON hostile.one (hostile.run(n, %L))', call)), 'idem_\w+', 'idem_X') FROM hostile.calls;
DO $$
DECLARE
	c text;
	i int := 0;
BEGIN
	FOR c IN SELECT call FROM hostile.calls LOOP
		i := i + 1;
		EXECUTE format('CREATE MATERIALIZED VIEW hostile.view_%s AS SELECT hostile.run(n, %L) FROM hostile.one WITH NO DATA', i, c);
	END LOOP;
END
$$;
SELECT count(*), left(raises(format('REFRESH MATERIALIZED VIEW hostile.%I', relname)), 49) FROM pg_class WHERE relnamespace = 'hostile'::regnamespace AND relkind = 'm' GROUP BY 2;
SELECT pattern, role, max_attempts FROM idempotency_scope WHERE pattern = 'hostile';

-- Called with arguments that do not fit: by OID, with other types, with none.
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_begin(1)', 'SELECT idem_claim_scope(''s'', ''nobody''::text)', 'SELECT idem_claim_scope(''s'', ''nobody'')', 'SELECT idem_may_use_scope(NULL) IS NULL', 'SELECT idem_scope_changed()',
	'SELECT idem_complete(ROW(1, 2))', 'SELECT idem_complete(ROW(NULL)::idem_operation)', 'CREATE TRIGGER t BEFORE INSERT ON hostile.one EXECUTE FUNCTION idem_scope_changed(); INSERT INTO hostile.one VALUES (2); DROP TRIGGER t ON hostile.one']) s;
SELECT left(raises(format('SELECT idem_call(%s, ''hostile-3'')', f)), 120) FROM unnest(ARRAY['0', '1', '4294967295', '''idem_fingerprint(jsonb)''', '''idem_lookup(text, text)''', '''idem_scope_changed()''', '''jsonb_in(cstring)''',
	'''jsonb_agg(anyelement)''', '''array_to_json(anyarray)''', '''idem_set_rights(regrole, text)''']) f;
-- none of them works as a transition, support, input or estimating function
SET ROLE regress_idem_outsider;
SELECT pg_temp.states(ARRAY['CREATE AGGREGATE hostile.a(text) (SFUNC = idem_step_key, STYPE = text)', 'SELECT hostile.a(''x'')', 'CREATE OPERATOR hostile.~~> (LEFTARG = text, RIGHTARG = text, FUNCTION = idem_step_key)',
	'SELECT ''a''::text OPERATOR(hostile.~~>) ''b''', 'CREATE FUNCTION hostile.c(text) RETURNS text LANGUAGE c AS ''idempotency'', ''idem_gc''', 'CREATE FUNCTION hostile.i(text) RETURNS text LANGUAGE internal AS ''textin''']);
DROP OPERATOR hostile.~~> (text, text);
DROP AGGREGATE hostile.a(text);
RESET ROLE;

-- Casts of another role: they run with the rights of the caller, before the call.
SET ROLE regress_idem_hostile;
CREATE TYPE hostile.fake AS (n int);
CREATE TABLE hostile.cast_by (who name);
CREATE FUNCTION hostile.to_text(hostile.fake) RETURNS text LANGUAGE plpgsql AS $$BEGIN INSERT INTO hostile.cast_by VALUES (current_user); RETURN 'hostile-4'; END$$;
CREATE CAST (hostile.fake AS text) WITH FUNCTION hostile.to_text(hostile.fake) AS IMPLICIT;
GRANT INSERT ON hostile.cast_by TO PUBLIC;
SELECT raises('SELECT idem_begin(ROW(1)::hostile.fake)');
SET ROLE regress_idem_outsider;
SELECT answer(idem_begin(ROW(1)::hostile.fake, lease => '1 hour'));
RESET ROLE;
SELECT who, count(*) FROM hostile.cast_by GROUP BY who;

-- Event triggers call the extension while it is half created or half dropped: an error or an answer.
CREATE FUNCTION hostile.event() RETURNS event_trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
	IF current_setting('hostile.event', true) = 'on' THEN
		RAISE NOTICE '%', left(public.raises('SELECT public.idem_begin(''hostile-event'', lease => ''1 hour''), public.idem_lookup(''hostile-event'')'), 49);
	END IF;
END
$$;
CREATE EVENT TRIGGER regress_idem_drop ON sql_drop EXECUTE FUNCTION hostile.event();
CREATE EVENT TRIGGER regress_idem_end ON ddl_command_end WHEN TAG IN ('CREATE EXTENSION', 'GRANT', 'ALTER TABLE') EXECUTE FUNCTION hostile.event();
BEGIN;
SET LOCAL hostile.event = on;
SET LOCAL client_min_messages = notice;
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SET LOCAL client_min_messages = warning;
SELECT FROM idem_grant('regress_idem_hostile');
ALTER TABLE idempotency_store ADD extra int;
ROLLBACK;
DROP EVENT TRIGGER regress_idem_drop;
DROP EVENT TRIGGER regress_idem_end;
SELECT answer(idem_lookup('hostile-1', 'hostile')), idem_lookup('hostile-event') IS NULL;

SELECT idem_unclaim_scope('hostile');
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'hostile-%';
SELECT idem_revoke(r) FROM unnest(ARRAY['regress_idem_definer', 'regress_idem_outsider', 'regress_idem_noinherit']::regrole[]) r;
SET client_min_messages = warning;
DROP SCHEMA hostile CASCADE;
DROP ROLE regress_idem_hostile, regress_idem_definer, regress_idem_outsider, regress_idem_noinherit;
