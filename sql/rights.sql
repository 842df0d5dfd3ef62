-- Rights: no role has any until idem_grant; tables never.
CREATE ROLE regress_idem_app;
CREATE ROLE "regress_idem ""other""; DROP TABLE x; --";
CREATE FUNCTION rights_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION pg_temp.states(statements text[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(left(raises(s), 5), ' ') FROM unnest(statements) s
$$;
CREATE TEMP TABLE calls AS SELECT ARRAY['SELECT idem_begin(''rights-1'', lease => ''1 hour'')', 'SELECT idem_complete(''rights-1'', fence => 9223372036854775807)',
	'SELECT idem_complete(idem_lookup(''rights-none''))', 'SELECT idem_fail(''rights-1'', fence => 9223372036854775807)', 'SELECT idem_fail(NULL::idem_operation)',
	'SELECT idem_release(''rights-1'', fence => 9223372036854775807)', 'SELECT idem_extend(''rights-1'', ''1 s'', fence => 9223372036854775807)', 'SELECT idem_lookup(''rights-1'')',
	'SELECT idem_call(''rights_echo(jsonb)'', ''rights-2'')', 'SELECT idem_fingerprint(''1'')', 'SELECT idem_step_key(''k'', ''s'')',
	'SELECT idem_begin_batch(ARRAY[]::text[])', 'SELECT idem_complete_batch(ARRAY[]::text[])', 'SELECT idem_lock(ARRAY[]::text[])',
	'SELECT idem_advance(''rights'', 1)'] AS application,
	ARRAY['SELECT idem_grant(''regress_idem_app'')', 'SELECT idem_revoke(''regress_idem_app'')', 'SELECT idem_gc()'] AS administration;
GRANT SELECT ON calls TO PUBLIC;

-- Before the grant.
SET ROLE regress_idem_app;
SELECT pg_temp.states(application), pg_temp.states(administration) FROM calls;
RESET ROLE;
-- After idem_grant; a second call changes nothing.
SELECT idem_grant('regress_idem_app'), idem_grant('regress_idem_app'), idem_grant('"regress_idem ""other""; DROP TABLE x; --"');
SET ROLE regress_idem_app;
SELECT pg_temp.states(application), pg_temp.states(administration) FROM calls;
-- a whole life with no right on any table
BEGIN;
SELECT answer(idem_begin('rights-3', request => '3'));
SELECT FROM idem_fail('rights-3', retryable => true);
SELECT answer(idem_begin('rights-3'));
SELECT FROM idem_complete('rights-3', '3');
COMMIT;
SELECT answer(idem_begin('rights-3')), current_user;
SELECT answer(idem_begin('rights-4', lease => '1 hour'));
SELECT raises('SELECT idem_complete(''rights-4'', fence => 9223372036854775807)'), current_user;

-- Only the owner has raw access to the tables.
SELECT pg_temp.states(ARRAY['SELECT FROM idempotency_store', 'INSERT INTO idempotency_store DEFAULT VALUES', 'UPDATE idempotency_store SET attempt = 1',
	'DELETE FROM idempotency_store', 'TRUNCATE idempotency_store', 'LOCK TABLE idempotency_store',
	'SELECT lock_key FROM idempotency_secret', 'DELETE FROM idempotency_secret', 'SELECT FROM idempotency_stream', 'UPDATE idempotency_stream SET seq = 1',
	'SELECT nextval(''idempotency_fence'')', 'SELECT setval(''idempotency_fence'', 1)', 'SELECT last_value FROM idempotency_fence',
	'ALTER TABLE idempotency_store DISABLE TRIGGER ALL', 'CREATE TRIGGER t AFTER INSERT ON idempotency_store EXECUTE FUNCTION suppress_redundant_updates_trigger()']);
RESET ROLE;

-- SET ROLE between begin and end: the operation belongs to the
-- transaction, the current role needs the right to call.
BEGIN;
SELECT answer(idem_begin('rights-5'));
SET LOCAL ROLE regress_idem_app;
SELECT FROM idem_complete('rights-5', '5');
COMMIT;
CREATE ROLE regress_idem_none;
BEGIN;
SELECT answer(idem_begin('rights-6'));
SET LOCAL ROLE regress_idem_none;
SELECT raises('SELECT idem_complete(''rights-6'')'), raises('SELECT idem_release(''rights-6'')');
SET LOCAL ROLE regress_idem_app;
SELECT answer(idem_begin('rights-6')), idem_release('rights-6');
COMMIT;

-- The owner's triggers on the store run as the caller and never with the owner's
-- rights, although the statement is checked against those.
CREATE TABLE rights_seen (who name);
GRANT INSERT ON rights_seen TO regress_idem_app;
CREATE FUNCTION rights_see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.rights_seen VALUES (current_user);
	IF has_table_privilege('idempotency_store', 'SELECT') THEN
		RAISE EXCEPTION 'may read the store';
	END IF;
	IF new.response_code = 500 THEN
		RAISE EXCEPTION 'seen';
	END IF;
	RETURN new;
END
$$;
BEGIN;
CREATE TRIGGER rights_see BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION rights_see();
SET LOCAL ROLE regress_idem_app;
SELECT answer(idem_begin('rights-7')), current_user;
SELECT raises('SELECT idem_complete(''rights-7'', code => 500)'), current_user;
SELECT idem_complete('rights-7'), current_user;
SELECT answer(idem_begin('rights-8', lease => '1 hour')), current_user;
SELECT idem_complete('rights-8'), current_user;
SELECT left(raises('SELECT FROM idempotency_store'), 5);
RESET ROLE;
SELECT count(*), array_agg(DISTINCT who) FROM rights_seen;
ROLLBACK;

-- The same holds for the expression of an index.
CREATE FUNCTION rights_index(key text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('rights.indexed', true) = 'on' AND current_user <> 'regress_idem_app' THEN
		RAISE EXCEPTION 'index expression runs as %', current_user;
	END IF;
	RETURN key;
END
$$;
BEGIN;
CREATE INDEX ON idempotency_store (rights_index(idempotency_key));
SET LOCAL rights.indexed = on;
SET LOCAL ROLE regress_idem_app;
SELECT answer(idem_begin('rights-11'));
SELECT raises('SELECT idem_complete(''rights-11'')'), current_user;
ROLLBACK;

-- A store that belongs to somebody who is no superuser, with row security that
-- applies to its owner, too.
BEGIN;
CREATE ROLE regress_idem_owner;
ALTER TABLE idempotency_store OWNER TO regress_idem_owner;
ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_store FORCE ROW LEVEL SECURITY;
SET LOCAL ROLE regress_idem_app;
SELECT answer(idem_begin('rights-9')), answer(idem_begin('rights-10', lease => '1 hour'));
SELECT idem_complete('rights-9', '9'), idem_complete('rights-10', '10');
SELECT answer(idem_begin('rights-9')), answer(idem_begin('rights-10'));
ROLLBACK;

-- Revoked, and once more.
SELECT idem_revoke('regress_idem_app'), idem_revoke('regress_idem_app'), idem_revoke('"regress_idem ""other""; DROP TABLE x; --"');
SET ROLE regress_idem_app;
SELECT pg_temp.states(application) FROM calls;
RESET ROLE;
SELECT raises('SELECT idem_grant(NULL)'), raises('SELECT idem_revoke(NULL)');
SELECT raises('SELECT idem_grant(4294967295)'), raises('SELECT idem_revoke(0)');
-- nothing is left of the grants
DROP TABLE rights_seen;
DROP ROLE regress_idem_app, regress_idem_none, "regress_idem ""other""; DROP TABLE x; --";
