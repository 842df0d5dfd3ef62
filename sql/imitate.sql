-- The extension's statements are checked against the owner's rights. No other
-- statements are, whatever their text and whenever they run.
CREATE ROLE regress_idem_imitator;
SELECT FROM idem_grant('regress_idem_imitator');
CREATE SCHEMA imitate AUTHORIZATION regress_idem_imitator;
CREATE TABLE imitate.wording (name text PRIMARY KEY, sql text, parameters text);
GRANT SELECT ON imitate.wording TO regress_idem_imitator;
-- to the letter as in src/store/by_sql.c and src/scope/scope.c, whose plans this session has
INSERT INTO imitate.wording VALUES
	('find', 'SELECT created_at, updated_at, expires_at, lease_expires_at, retry_at, fence, status, attempt, response_code, scope, idempotency_key, request_hash,'
	' response_headers, response_payload, response_body, hash_key, seal_key, sealed, ctid, tableoid FROM ONLY public.idempotency_store'
	' WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2', '''imitate'', ''imitate-1'''),
	('delete', 'DELETE FROM ONLY public.idempotency_store WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2 AND updated_at OPERATOR(pg_catalog.=) $3',
	'''imitate'', ''imitate-1'', clock_timestamp()'),
	('unclaim', 'UPDATE public.idempotency_scope SET role = NULL WHERE pattern OPERATOR(pg_catalog.=) $1 AND role IS NOT NULL', '''imitate''');

-- Every way for a role to run its own statement: the number of refused ones, of all.
SET ROLE regress_idem_imitator;
SET check_function_bodies = off;
DO $$
DECLARE
	w imitate.wording;
BEGIN
	FOR w IN SELECT * FROM imitate.wording LOOP
		FOR i IN 1 .. 3 LOOP
			w.sql := replace(w.sql, '$' || i, coalesce(split_part(w.parameters, ', ', i), ''));
		END LOOP;
		EXECUTE format('CREATE FUNCTION imitate.%I() RETURNS void LANGUAGE sql AS %L', 'sql_' || w.name, w.sql || '; SELECT');
		EXECUTE format('CREATE FUNCTION imitate.%I() RETURNS void LANGUAGE sql BEGIN ATOMIC %s; SELECT; END', 'parsed_' || w.name, w.sql);
		EXECUTE format('CREATE FUNCTION imitate.%I() RETURNS void LANGUAGE plpgsql AS %L', 'plpgsql_' || w.name,
			CASE w.name WHEN 'find' THEN 'DECLARE r record; BEGIN FOR r IN ' || w.sql || ' LOOP RETURN; END LOOP; END' ELSE 'BEGIN ' || w.sql || '; END' END);
		EXECUTE format('CREATE FUNCTION imitate.%I() RETURNS void LANGUAGE plpgsql AS %L', 'dynamic_' || w.name, format('BEGIN EXECUTE %L; END', w.sql));
		EXECUTE format('CREATE FUNCTION imitate.%I() RETURNS void LANGUAGE plpgsql AS %L', 'explain_' || w.name, format('BEGIN EXECUTE %L; END', 'EXPLAIN ANALYZE ' || w.sql));
	END LOOP;
END
$$;
RESET check_function_bodies;
CREATE FUNCTION imitate.ways() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answers text[];
BEGIN
	SELECT array_agg(public.raises(s)) INTO answers FROM (
		SELECT format('SELECT imitate.%s_%s()', way, name) AS s FROM imitate.wording, unnest(ARRAY['sql', 'parsed', 'plpgsql', 'dynamic', 'explain']) way
		UNION ALL SELECT format('DO $d$ BEGIN EXECUTE %L USING %s; END $d$', sql, parameters) FROM imitate.wording) s;
	RETURN cardinality(array_positions(answers, '42501: permission denied for table idempotency_store'))
		+ cardinality(array_positions(answers, '42501: permission denied for table idempotency_scope')) || ' of ' || cardinality(answers);
END
$$;
RESET ROLE;
SELECT idem_unclaim_scope('imitate');
SET ROLE regress_idem_imitator;
SELECT public.answer(public.idem_begin('imitate-1', scope => 'imitate', lease => '1 hour'));
SELECT imitate.ways();
-- prepared, before and after the extension has made its plans again
PREPARE imitate_find(text, text) AS SELECT response_payload FROM public.idempotency_store WHERE scope = $1 AND idempotency_key = $2;
SELECT raises('EXECUTE imitate_find(''imitate'', ''imitate-1'')');
RESET ROLE;
-- also statements that a role with more rights has prepared
PREPARE imitate_theirs AS SELECT status FROM public.idempotency_store WHERE idempotency_key = 'imitate-1';
EXECUTE imitate_theirs;
SET ROLE regress_idem_imitator;
SELECT raises('EXECUTE imitate_theirs');
DISCARD PLANS;
SELECT public.answer(public.idem_begin('imitate-1', scope => 'imitate'));
SELECT raises('EXECUTE imitate_find(''imitate'', ''imitate-1'')'), raises('EXECUTE imitate_theirs');
DEALLOCATE ALL;
RESET ROLE;

-- From inside: a function that runs during a statement of the extension, as a
-- trigger of the owner, a handler or a function in an index.
CREATE FUNCTION imitate_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	mode text := current_setting('imitate.mode', true);
BEGIN
	IF mode <> '' THEN
		PERFORM set_config('imitate.mode', '', true);
		EXECUTE mode;
	END IF;
	RETURN new;
END
$$;
CREATE TABLE imitate.seen (step int, what text);
GRANT ALL ON imitate.seen TO regress_idem_imitator;
CREATE FUNCTION imitate.life(step int, mode text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	name text := 'imitate-life-' || step;
	fence bigint;
BEGIN
	fence := (public.idem_begin(name, lease => '1 hour')).fence;
	PERFORM set_config('imitate.mode', mode, true);
	PERFORM public.idem_complete(name, '"kept"', fence => fence);
	RETURN step || ' ' || current_user || ' ' || public.answer(public.idem_begin(name)) || ' ' || imitate.ways();
END
$$;
BEGIN;
CREATE TRIGGER imitate_trigger BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION imitate_trigger();
SET LOCAL ROLE regress_idem_imitator;
SELECT imitate.life(1, 'INSERT INTO imitate.seen SELECT 1, imitate.ways()');
-- while the extension's plans are discarded, analyzed again, or used again in the middle
SELECT imitate.life(2, 'DISCARD PLANS');
SELECT imitate.life(3, 'DO $d$ BEGIN EXECUTE ''DISCARD PLANS''; INSERT INTO imitate.seen SELECT 3, imitate.ways(); PERFORM public.idem_begin(''imitate-nested'', lease => ''1 hour''); INSERT INTO imitate.seen SELECT 4, imitate.ways(); END $d$');
SELECT imitate.life(5, 'CREATE TEMP TABLE idempotency_store (n int); CREATE TEMP TABLE idempotency_scope (n int)');
SELECT imitate.life(6, 'SET LOCAL search_path = imitate, pg_temp, pg_catalog, public');
SET LOCAL search_path = public;
-- an error in the middle, then the same plan again
SAVEPOINT a;
SELECT raises('SELECT imitate.life(7, ''SELECT 1 / 0'')');
ROLLBACK TO a;
SELECT imitate.life(8, '');
SELECT raises('SELECT imitate.life(9, ''ROLLBACK'')');
-- another role in the middle
SELECT imitate.life(10, 'SET LOCAL ROLE regress_idem_imitator');
RESET ROLE;
SELECT DISTINCT what, count(*) FROM imitate.seen GROUP BY what;
-- DDL by the owner in the middle is refused by the server, as the store is in use
SET LOCAL client_min_messages = warning;
SELECT left(raises('SELECT imitate.life(11, ''ALTER TABLE public.idempotency_store ADD extra int'')'), 5), left(raises('SELECT imitate.life(12, ''DROP EXTENSION idempotency CASCADE'')'), 5);
-- DDL between two statements: plans are made again
ALTER TABLE idempotency_store ADD extra int;
ANALYZE idempotency_store;
SET LOCAL ROLE regress_idem_imitator;
SELECT imitate.life(13, 'DISCARD PLANS');
ROLLBACK;
SELECT answer(idem_lookup('imitate-life-1')) IS NULL;

-- A handler runs as the caller, too.
SET ROLE regress_idem_imitator;
CREATE FUNCTION imitate.handler(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(current_user || '' '' || imitate.ways())';
SELECT (idem_call('imitate.handler(jsonb)', 'imitate-2')).response_payload;
RESET ROLE;
-- the records are there
SELECT answer(idem_lookup('imitate-1', 'imitate'));
SELECT FROM idem_revoke('regress_idem_imitator');
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'imitate-%';
SET client_min_messages = warning;
DROP OWNED BY regress_idem_imitator CASCADE;
DROP FUNCTION imitate_trigger();
DROP SCHEMA IF EXISTS imitate CASCADE;
DROP ROLE regress_idem_imitator;
