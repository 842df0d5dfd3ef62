-- The extension in any schema, moved, dropped and created in an open session.
SET client_min_messages = warning;
-- The life of operations, by the functions of one schema.
CREATE FUNCTION schema_life(place text, name text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	call text;
	answer text;
BEGIN
	FOREACH call IN ARRAY ARRAY['idem_begin(%L)', 'idem_begin(%L, scope => ''leased'', lease => ''1 hour'')'] LOOP
		EXECUTE 'SELECT answer(' || place || '.' || format(call, name) || ')' INTO answer;
		RETURN NEXT answer;
	END LOOP;
	EXECUTE format('SELECT %s.idem_complete(%L, ''1''), %1$s.idem_complete(%2$L, ''2'', ''leased'')', place, name);
	FOREACH call IN ARRAY ARRAY['idem_begin(%L)', 'idem_lookup(%L, ''leased'')', 'idem_call(''schema_echo(jsonb)'', %L, ''3'', ''call'')'] LOOP
		EXECUTE 'SELECT answer(' || place || '.' || format(call, name) || ')' INTO answer;
		RETURN NEXT answer;
	END LOOP;
	EXECUTE format('SELECT count(*) FROM %s.idempotency_store WHERE idempotency_key = %L', place, name) INTO answer;
	RETURN NEXT answer;
END
$$;
CREATE FUNCTION schema_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT schema_life('public', 'schema-1');

-- Dropped and created in a schema whose name needs quotes, in the same session.
BEGIN;
DROP EXTENSION idempotency CASCADE;
SELECT left(raises('SELECT idem_begin(''schema-2'')'), 5);
CREATE SCHEMA "Schema; Odd %s";
CREATE EXTENSION idempotency SCHEMA "Schema; Odd %s";
SELECT schema_life('"Schema; Odd %s"', 'schema-1');
-- and the schema renamed
ALTER SCHEMA "Schema; Odd %s" RENAME TO "schema; evener";
SELECT schema_life('"schema; evener"', 'schema-2');
CREATE ROLE regress_idem_schema;
GRANT USAGE ON SCHEMA "schema; evener" TO regress_idem_schema;
SELECT "schema; evener".idem_grant('regress_idem_schema');
SET LOCAL ROLE regress_idem_schema;
SELECT answer("schema; evener".idem_begin('schema-1'));
RESET ROLE;
SELECT "schema; evener".idem_revoke('regress_idem_schema');
SELECT (SELECT count(*) FROM "schema; evener".idempotency_store), to_regclass('public.idempotency_store') IS NULL;
-- a namesake elsewhere is not the store
CREATE TABLE public.idempotency_store (note text);
SELECT schema_life('"schema; evener"', 'schema-3');
ROLLBACK;
SELECT answer(idem_begin('schema-1')), idem_lookup('schema-2') IS NULL;
SELECT schema_life('public', 'schema-2');
-- dropped while an operation is pending: the guard still refuses
BEGIN;
SELECT answer(idem_begin('schema-4'));
DROP EXTENSION idempotency CASCADE;
COMMIT;
\echo :SQLSTATE
-- ended in a schema that is renamed meanwhile
BEGIN;
SELECT answer(idem_begin('schema-4'));
ALTER SCHEMA public RENAME TO schema_moved;
SELECT FROM schema_moved.idem_complete('schema-4', '4');
ALTER SCHEMA schema_moved RENAME TO public;
COMMIT;
SELECT answer(idem_begin('schema-4'));

-- It does not move to another schema, and does not take existing objects over.
SELECT left(raises('ALTER EXTENSION idempotency SET SCHEMA pg_catalog'), 5);
BEGIN;
DROP EXTENSION idempotency CASCADE;
SAVEPOINT a;
-- objects that somebody has put there before
CREATE TABLE idempotency_store (scope text, idempotency_key text);
SELECT left(raises('CREATE EXTENSION idempotency'), 5);
ROLLBACK TO a;
CREATE FUNCTION idem_grant(role regrole) RETURNS void LANGUAGE sql AS '';
SELECT left(raises('CREATE EXTENSION idempotency'), 5);
ROLLBACK TO a;
CREATE TYPE idempotency_status AS ENUM ('PENDING', 'COMPLETED', 'FAILED');
SELECT left(raises('CREATE EXTENSION idempotency'), 5);
ROLLBACK;

-- If somebody has removed objects that the functions need, there is a clear error.
BEGIN;
DELETE FROM idempotency_secret;
ALTER TABLE idempotency_store SET (fillfactor = 90);
SELECT raises_in_full('SELECT idem_begin(''schema-5'')');
SELECT raises('SELECT idem_begin(''schema-1'')');
ROLLBACK;
BEGIN;
ALTER TABLE idempotency_store RENAME TO idempotency_hidden;
SELECT raises('SELECT idem_begin(''schema-5'')'), raises('SELECT idem_lookup(''schema-1'')');
ROLLBACK;
BEGIN;
ALTER TABLE idempotency_store RENAME COLUMN fence TO hidden;
SELECT left(raises('SELECT idem_begin(''schema-1'')'), 5);
ROLLBACK;
BEGIN;
ALTER TYPE idem_operation ADD ATTRIBUTE more int;
SELECT raises('SELECT idem_lookup(''schema-1'')');
ROLLBACK;
-- an UNLOGGED store, which a crash would empty
BEGIN;
ALTER TABLE idempotency_store SET UNLOGGED;
SELECT raises_in_full('SELECT idem_begin(''schema-5'')');
SELECT raises('SELECT idem_begin(''schema-5'', lease => ''1 hour'')');
ROLLBACK;
SELECT answer(idem_begin('schema-1')), answer(idem_lookup('schema-2', 'leased'));
SELECT schema_life('public', 'schema-5');
