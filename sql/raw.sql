-- Tables that are read without the executor, replaced by other objects or changed:
-- an error, never a crash, and never an open scope.
SET client_min_messages = warning;
CREATE ROLE regress_idem_raw;
CREATE ACCESS METHOD raw_method TYPE TABLE HANDLER heap_tableam_handler;
CREATE FOREIGN DATA WRAPPER raw_wrapper;
CREATE SERVER raw_server FOREIGN DATA WRAPPER raw_wrapper;
SELECT FROM idem_claim_scope('raw', 'regress_idem_raw');
BEGIN;
SELECT answer(idem_begin('raw-done')), idem_complete('raw-done', '1');
COMMIT;
-- Each change alone, undone afterwards: the errors of all calls. From 18 on a
-- generated column need not be stored, and the rows then have no value of it.
CREATE FUNCTION raw_states(name text, change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	seen text;
	kind text := CASE WHEN current_setting('server_version_num')::int >= 180000 THEN 'VIRTUAL' ELSE 'STORED' END;
BEGIN
	BEGIN
		EXECUTE replace(replace(change, 'X', name), 'KIND', kind);
		-- what is in its place belongs to the extension, or nothing would look at it
		UPDATE pg_depend SET objid = to_regclass(name) WHERE classid = 'pg_class'::regclass AND deptype = 'e' AND objid = to_regclass('raw_old') AND to_regclass(name) IS NOT NULL;
	EXCEPTION WHEN OTHERS THEN
		RETURN 'impossible';
	END;
	SELECT string_agg(DISTINCT left(raises(s), 5), ' ') INTO seen FROM unnest(ARRAY['SELECT idem_begin(''raw-new'')', 'SELECT idem_begin(''raw-new'', scope => ''raw'')',
		'SELECT idem_begin(''raw-leased'', lease => ''1 hour'')', 'SELECT idem_lookup(''raw-done'')', 'SELECT idem_begin_batch(ARRAY[''raw-done''])', 'SELECT idem_may_use_scope(''raw'')',
		'SELECT idem_advance(''raw'', 1)', 'SELECT idem_lock(ARRAY[''raw''])', 'SELECT idem_gc()', 'SELECT idem_claim_scope(''raw'', ''regress_idem_raw'')', 'SELECT idem_set_policy(''raw'', max_attempts => 1)']) s;
	RAISE EXCEPTION 'undone' USING ERRCODE = 'UNDUN';
EXCEPTION WHEN SQLSTATE 'UNDUN' THEN
	RETURN seen;
END
$$;
CREATE TABLE raw_change (number int GENERATED ALWAYS AS IDENTITY, change text);
INSERT INTO raw_change (change) VALUES
	('ALTER TABLE X RENAME TO raw_old; CREATE VIEW X AS TABLE raw_old'),
	('ALTER TABLE X RENAME TO raw_old; CREATE MATERIALIZED VIEW X AS TABLE raw_old'),
	('ALTER TABLE X RENAME TO raw_old; CREATE TABLE X (a int) PARTITION BY HASH (a)'),
	('ALTER TABLE X RENAME TO raw_old; CREATE FOREIGN TABLE X () SERVER raw_server'),
	('ALTER TABLE X RENAME TO raw_old; CREATE TABLE X (LIKE raw_old INCLUDING ALL) USING raw_method; INSERT INTO X TABLE raw_old'),
	('ALTER TABLE X RENAME TO raw_old; CREATE TYPE X AS (a int)'),
	('ALTER TABLE X RENAME TO raw_old; CREATE INDEX X ON raw_change (number)'),
	('ALTER TABLE X RENAME TO raw_old; CREATE SEQUENCE X'),
	('ALTER TABLE X RENAME TO raw_old; CREATE TABLE X ()'),
	('ALTER TABLE X RENAME TO raw_old; CREATE TABLE X (a text, b text)'),
	('ALTER TABLE X ADD further int'),
	('CREATE TABLE raw_child () INHERITS (X)'),
	('ALTER TABLE X SET UNLOGGED'),
	('ALTER TABLE X RENAME TO raw_old');
SELECT number, raw_states('idempotency_secret', change), raw_states('idempotency_scope', change) FROM raw_change ORDER BY number;
-- tables that the executor reads: its errors, and no crash
SELECT number, raw_states('idempotency_fence', change), raw_states('idempotency_stream', change), raw_states('idempotency_sweep', change) FROM raw_change ORDER BY number;
-- Columns and rows.
SELECT string_agg(n::text, ' ' ORDER BY n), raw_states('idempotency_secret', change) FROM unnest(ARRAY[
	'ALTER TABLE X DROP lock_key', 'ALTER TABLE X DROP lock_key, ADD lock_key bytea', 'ALTER TABLE X DROP only_row', 'ALTER TABLE X RENAME lock_key TO other',
	'ALTER TABLE X DROP lock_key, ADD lock_key bigint', 'ALTER TABLE X RENAME TO raw_old; CREATE TABLE X (only_row bool DEFAULT true, lock_key bytea GENERATED ALWAYS AS (sha256(''a'')) KIND); INSERT INTO X DEFAULT VALUES',
	'ALTER TABLE X ALTER lock_key DROP NOT NULL; UPDATE X SET lock_key = NULL', 'DELETE FROM X', 'TRUNCATE X',
	'ALTER TABLE X DROP CONSTRAINT idempotency_secret_pkey; INSERT INTO X (lock_key) SELECT lock_key FROM X',
	'ALTER TABLE X DROP CONSTRAINT idempotency_secret_lock_key_check; UPDATE X SET lock_key = ''''',
	'ALTER TABLE X DROP CONSTRAINT idempotency_secret_lock_key_check; UPDATE X SET lock_key = (SELECT string_agg(sha256(n::text::bytea), '''') FROM generate_series(1, 5000) n)']) WITH ORDINALITY c (change, n) GROUP BY 2;
SELECT n, raw_states('idempotency_scope', change) FROM unnest(ARRAY[
	'ALTER TABLE X DROP CONSTRAINT idempotency_scope_pkey; ALTER TABLE X ALTER pattern DROP NOT NULL; INSERT INTO X (pattern) VALUES (NULL)',
	'ALTER TABLE X DROP role', 'ALTER TABLE X DROP role, ADD role name', 'ALTER TABLE X RENAME role TO other', 'ALTER TABLE X RENAME min_retention TO a; ALTER TABLE X RENAME max_retention TO min_retention; ALTER TABLE X RENAME a TO max_retention',
	'ALTER TABLE X ALTER role TYPE text', 'ALTER TABLE X RENAME TO raw_old; CREATE TABLE X (pattern text PRIMARY KEY, role name, retention interval, min_retention interval, max_retention interval, max_attempts int, attempts_limit int,
	max_response_size int, max_lease interval GENERATED ALWAYS AS (retention) KIND, max_lost_attempts int, too_large_response jsonb)']) WITH ORDINALITY c (change, n) ORDER BY n;
SELECT raw_states('idempotency_store', 'alter extension idempotency DROP VIEW idempotency_failures; DROP VIEW idempotency_failures; ALTER TABLE X DROP response_code, ADD response_code int GENERATED ALWAYS AS (attempt) KIND');
-- a pattern that is stored out of line matches no scope
SELECT raw_states('idempotency_scope', 'ALTER TABLE X DROP CONSTRAINT idempotency_scope_pkey; INSERT INTO X (pattern) SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 2500) n');
ALTER SEQUENCE idempotency_fence RENAME TO raw_fence;
CREATE TABLE idempotency_fence (last_value bigint, log_cnt bigint, is_called boolean);
SELECT raises_in_full('SELECT idem_begin(''raw-leased'', lease => ''1 hour'')');
DROP TABLE idempotency_fence;
ALTER SEQUENCE raw_fence RENAME TO idempotency_fence;

-- Functions that are STRICT in the script accept NULL also without STRICT.
BEGIN;
DO $$
DECLARE
	f regprocedure;
BEGIN
	FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid
		WHERE e.extname = 'idempotency' AND p.proisstrict LOOP
		EXECUTE format('ALTER FUNCTION %s CALLED ON NULL INPUT', f);
	END LOOP;
END
$$;
SELECT idem_fingerprint(NULL) IS NULL, idem_may_use_scope(NULL) IS NULL;
-- and with NULL in every argument
CREATE FUNCTION pg_temp.with_nulls(f regprocedure) RETURNS text LANGUAGE sql AS $$
	SELECT p.proname || '/' || p.pronargs || ': ' || left(raises(format('SELECT %s(%s)', p.oid::regproc,
		(SELECT string_agg('NULL::' || format_type(t, NULL), ', ') FROM unnest(p.proargtypes) t))), 5) FROM pg_proc p WHERE p.oid = f
$$;
SELECT DISTINCT pg_temp.with_nulls(p.oid) COLLATE "C" FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid
	WHERE e.extname = 'idempotency' AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AND p.pronargs > 0 ORDER BY 1;
ROLLBACK;
SELECT answer(idem_begin('raw-done')), idem_unclaim_scope('raw');
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'raw-%';
DROP TABLE raw_change;
DROP FUNCTION raw_states(text, text);
DROP FOREIGN DATA WRAPPER raw_wrapper CASCADE;
DROP ACCESS METHOD raw_method;
DROP ROLE regress_idem_raw;
