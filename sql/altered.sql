-- If the owner has replaced objects of the extension by others, they are refused,
-- not misread. Each change is undone.
CREATE FUNCTION pg_temp.altered(change text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	states text[];
BEGIN
	BEGIN
		-- it depends on columns that are altered
		ALTER EXTENSION idempotency DROP VIEW idempotency_failures;
		DROP VIEW idempotency_failures;
		EXECUTE change;
		states := ARRAY(SELECT DISTINCT split_part(raises(s), ',', 1) FROM unnest(ARRAY['SELECT idem_begin(''altered'', lease => ''1 s'')', 'SELECT idem_lookup(''altered'')',
			'SELECT idem_begin(''altered-done'')', 'DO $d$ BEGIN PERFORM idem_begin(''a''), idem_complete(''a'', ''1''); END $d$', 'SELECT idem_gc()',
			'SELECT idem_begin_batch(ARRAY[''altered-done''])', 'SELECT idem_release(''altered'', fence => 1)']) s ORDER BY 1);
		RAISE EXCEPTION 'undone' USING ERRCODE = 'ALTER';
	EXCEPTION WHEN SQLSTATE 'ALTER' THEN
		RETURN NEXT change || ': ' || array_to_string(states, '; ');
	END;
END
$$;
BEGIN;
SELECT answer(idem_begin('altered-done')), idem_complete('altered-done', '{"a": 1}');
COMMIT;
SELECT pg_temp.altered(c) FROM unnest(ARRAY[
	'ALTER TABLE idempotency_store ALTER response_payload TYPE bigint USING 4096',
	'ALTER TABLE idempotency_store ALTER response_body TYPE int USING 4096',
	'ALTER TABLE idempotency_store ALTER retry_at TYPE text',
	'ALTER TABLE idempotency_store DROP sealed',
	'ALTER TABLE idempotency_store RENAME hash_key TO key_of_hash',
	'ALTER TABLE idempotency_scope ALTER role TYPE bigint USING 4096',
	'ALTER TABLE idempotency_scope ADD further text',
	'CREATE OR REPLACE VIEW idempotency_in_flight AS SELECT NULL::text AS kind, NULL::text COLLATE "C" AS scope, NULL::text COLLATE "C" AS idempotency_key, 1 AS attempt, NULL::interval AS age, NULL::interval AS lease_left, 1 AS pid, NULL::text AS gid; ALTER TABLE idempotency_store ALTER status TYPE text',
	'ALTER TABLE idempotency_secret DROP CONSTRAINT idempotency_secret_lock_key_check, ALTER lock_key TYPE text',
	'ALTER TABLE idempotency_secret DROP CONSTRAINT idempotency_secret_lock_key_check; UPDATE idempotency_secret SET lock_key = substr(lock_key, 2); ALTER TABLE idempotency_secret ADD other int']) c;
-- the type of answers
BEGIN;
ALTER TYPE idem_operation ALTER ATTRIBUTE attempt TYPE text;
SELECT raises('SELECT idem_begin(''altered-done'')'), raises('SELECT idem_begin_batch(ARRAY[''altered-done''])'),
	raises('SELECT idem_complete(ROW(''ACQUIRED'', '''', ''k'', ''1'', false, false, 4096, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::idem_operation)');
ROLLBACK;
BEGIN;
ALTER TYPE idem_operation ALTER ATTRIBUTE outcome TYPE text;
SELECT raises('SELECT idem_begin(''altered-done'')'), raises('SELECT idem_lookup(''altered-done'')'), raises('SELECT idem_begin_batch(ARRAY[''altered-done''])');
ROLLBACK;
-- undone, all is well
SELECT answer(idem_begin('altered-done'));
-- on a partitioned store, another writer's row is 40001 as well
BEGIN;
ALTER TABLE idempotency_store RENAME TO altered_store;
CREATE TABLE idempotency_store (LIKE altered_store INCLUDING DEFAULTS, PRIMARY KEY (scope, idempotency_key)) PARTITION BY HASH (scope, idempotency_key);
CREATE TABLE altered_part PARTITION OF idempotency_store FOR VALUES WITH (MODULUS 1, REMAINDER 0);
SELECT answer(idem_begin('altered-part'));
INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (clock_timestamp() + '1 hour', 'COMPLETED', 'altered-part');
SELECT raises('SELECT idem_complete(''altered-part'')');
ROLLBACK;

-- If an administrator has changed objects of the extension, the error names them, and
-- no operation is acquired.

BEGIN;
SELECT answer(idem_begin('changed')), idem_complete('changed', '1');
COMMIT;

CREATE PROCEDURE changed(change text) LANGUAGE plpgsql AS $$
BEGIN
	-- what was known before the change is noticed to be none any more
	PERFORM idem_lookup('changed');
	EXECUTE change;
	RAISE NOTICE '  begin: %', raises('SELECT idem_begin(''changed-new'')');
	RAISE NOTICE '  replay: %', raises('SELECT idem_begin(''changed'')');
	ROLLBACK;
END
$$;

CALL changed('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey');
CALL changed('ALTER TABLE idempotency_store RENAME TO changed_store; CREATE VIEW idempotency_store AS TABLE changed_store');
CALL changed('ALTER SEQUENCE idempotency_fence RENAME TO changed_fence');
CALL changed('ALTER TYPE idem_operation RENAME TO changed_operation');
CALL changed('ALTER TYPE idempotency_status RENAME VALUE ''COMPLETED'' TO ''DONE''');

-- If claims cannot be read, no scope is open.
SELECT FROM idem_claim_scope('changed scope', CURRENT_ROLE::regrole);
CALL changed('ALTER TABLE idempotency_scope ADD COLUMN more int');
CALL changed('ALTER TABLE idempotency_scope RENAME TO changed_scope');
SELECT idem_unclaim_scope('changed scope');

-- The number of attempts stays at its maximum.
BEGIN;
UPDATE idempotency_store SET attempt = 2147483647, status = 'FAILED', retry_at = now() WHERE idempotency_key = 'changed';
SELECT answer(idem_begin('changed'));
SELECT FROM idem_complete('changed', '2');
SELECT answer(idem_lookup('changed'));
ROLLBACK;

-- With the old objects, calls go on as before.
SELECT answer(idem_begin('changed'));
DROP PROCEDURE changed(text);
