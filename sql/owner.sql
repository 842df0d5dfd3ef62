-- Triggers, constraints and more that the owner adds to the store: operations answer as before.
CREATE FUNCTION owner_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
-- Every kind of read and write; the answers, and then a summary of the rows.
CREATE FUNCTION owner_life(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answers text := '';
	operation idem_operation;
	summary text;
BEGIN
	answers := answers || answer(idem_begin(name, request => '1'));
	PERFORM idem_fail(name, '1', code => 503, headers => '{"h": 1}', body => '\x01', retryable => true);
	answers := answers || answer(idem_begin(name));
	PERFORM idem_complete(name, '2', code => 200, headers => '{"h": 2}', body => '\x02');
	answers := answers || answer(idem_begin(name, request => '1')) || answer(idem_lookup(name));
	operation := idem_begin(name, scope => 'leased', lease => '1 hour');
	PERFORM idem_extend(name, '2 hours', 'leased');
	UPDATE idempotency_store SET lease_expires_at = now() - interval '1 s' WHERE idempotency_key = name AND scope = 'leased';
	PERFORM idem_complete(operation, '3');
	answers := answers || answer(operation) || answer(idem_begin(name, scope => 'leased'));
	PERFORM idem_begin(name, scope => 'given up', lease => '1 hour'), idem_release(name, 'given up');
	answers := answers || answer(idem_call('owner_echo(jsonb)', name, '4', 'call')) || answer(idem_call('owner_echo(jsonb)', name, '4', 'call'));
	SELECT string_agg(scope || ' ' || status || ' ' || attempt, ', ' ORDER BY scope) FROM idempotency_store WHERE idempotency_key = name INTO summary;
	RETURN md5(answers) || ' ' || summary;
END
$$;
SELECT substr(owner_life('owner-0'), 33);

CREATE FUNCTION owner_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.owner_logged VALUES (tg_op);
	RETURN coalesce(new, old);
END
$$;
CREATE TABLE owner_logged (what text);
CREATE TABLE owner_scope (scope text COLLATE "C" PRIMARY KEY);
INSERT INTO owner_scope VALUES (''), ('leased'), ('given up'), ('call');
CREATE FUNCTION owner_partition() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CREATE TABLE owner_partitioned (LIKE idempotency_store INCLUDING DEFAULTS, PRIMARY KEY (scope, idempotency_key)) PARTITION BY HASH (scope, idempotency_key);
	CREATE TABLE owner_partition_0 PARTITION OF owner_partitioned FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE owner_partition_1 PARTITION OF owner_partitioned FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	ALTER TABLE idempotency_store RENAME TO owner_unpartitioned;
	ALTER TABLE owner_partitioned RENAME TO idempotency_store;
END
$$;
-- Each change alone, undone afterwards: the differences from the plain store.
DO $$
DECLARE
	change text;
	lived text;
	number int := 0;
BEGIN
	FOREACH change IN ARRAY ARRAY[
		'CREATE INDEX ON idempotency_store (expires_at)',
		'CREATE INDEX ON idempotency_store (lower(idempotency_key)) WHERE status = ''COMPLETED''',
		'CREATE UNIQUE INDEX ON idempotency_store (md5(scope || '' / '' || idempotency_key))',
		'CREATE INDEX ON idempotency_store USING gin (response_payload)',
		'CREATE INDEX ON idempotency_store USING brin (created_at)',
		'ALTER TABLE idempotency_store ADD EXCLUDE USING btree (idempotency_key WITH =, scope WITH =)',
		'ALTER TABLE idempotency_store ADD CHECK (attempt < 1000)',
		'ALTER TABLE idempotency_store ADD CHECK (length(idempotency_key) < 100) NOT VALID',
		'ALTER TABLE idempotency_store ADD tenant text NOT NULL DEFAULT current_user',
		'ALTER TABLE idempotency_store ADD day date GENERATED ALWAYS AS ((created_at AT TIME ZONE ''UTC'')::date) STORED',
		'ALTER TABLE idempotency_store ADD id bigint GENERATED ALWAYS AS IDENTITY',
		'ALTER TABLE idempotency_store ADD gone int; ALTER TABLE idempotency_store DROP gone',
		'ALTER TABLE idempotency_store ADD FOREIGN KEY (scope) REFERENCES owner_scope NOT VALID',
		'CREATE TABLE owner_child (scope text, idempotency_key text, FOREIGN KEY (scope, idempotency_key) REFERENCES idempotency_store ON DELETE CASCADE)',
		'ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY',
		'ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY; ALTER TABLE idempotency_store FORCE ROW LEVEL SECURITY',
		'CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION owner_log()',
		'CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON idempotency_store FOR EACH STATEMENT EXECUTE FUNCTION owner_log()',
		'CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE ON idempotency_store DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION owner_log()',
		'ALTER TABLE idempotency_store REPLICA IDENTITY FULL',
		'ALTER TABLE idempotency_store ALTER response_payload SET STORAGE EXTERNAL, ALTER response_payload SET COMPRESSION pglz',
		'CLUSTER idempotency_store USING idempotency_store_pkey',
		'SELECT owner_partition()']
	LOOP
		number := number + 1;
		BEGIN
			EXECUTE change;
			lived := owner_life('owner-' || number);
			RAISE EXCEPTION 'undone' USING ERRCODE = 'OWNER';
		EXCEPTION
			WHEN SQLSTATE 'OWNER' THEN
				IF lived <> owner_life('owner-plain-' || number) THEN
					RAISE NOTICE '%: %', change, lived;
				END IF;
			WHEN others THEN
				RAISE NOTICE '%: % %', change, sqlstate, sqlerrm;
		END;
	END LOOP;
	RAISE NOTICE '% changes', number;
END
$$;
-- A user's trigger fires once for each write, whichever path it takes.
BEGIN;
CREATE TRIGGER owner_log BEFORE INSERT OR UPDATE OR DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION owner_log();
CREATE FUNCTION pg_temp.logged(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	logged text;
BEGIN
	EXECUTE statement;
	WITH gone AS (DELETE FROM owner_logged RETURNING what) SELECT string_agg(what, ' ') FROM gone INTO logged;
	RETURN logged;
END
$$;
SELECT pg_temp.logged(s) FROM (VALUES ('SELECT idem_begin(''owner-a'')'), ('SELECT idem_complete(''owner-a'')'), ('SELECT idem_begin(''owner-a'')'),
	('SELECT idem_begin(''owner-b'', lease => ''1 hour'')'), ('SELECT idem_complete(''owner-b'')')) v(s);
ROLLBACK;
-- If a trigger suppresses or forbids the row, the call fails.
CREATE FUNCTION owner_suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
BEGIN;
SELECT answer(idem_begin('owner-c'));
CREATE TRIGGER owner_suppress BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION owner_suppress();
SELECT raises('SELECT idem_complete(''owner-c'')'), raises('SELECT idem_begin(''owner-d'', lease => ''1 hour'')');
SELECT answer(idem_lookup('owner-c')), idem_lookup('owner-d') IS NULL;
ROLLBACK;
-- So it does where the trigger suppresses only the new version of a row: a retry could not help.
BEGIN;
SELECT answer(idem_begin('owner-c', lease => '1 hour'));
CREATE TRIGGER owner_suppress BEFORE UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION owner_suppress();
SELECT raises('SELECT idem_complete(''owner-c'')'), raises('SELECT idem_fail(''owner-c'')');
SELECT answer(idem_lookup('owner-c'));
ROLLBACK;
-- A violation of the owner's unique index is reported unchanged, not as 40001.
BEGIN;
CREATE UNIQUE INDEX owner_unique ON idempotency_store (response_code) WHERE response_code = 777;
SELECT answer(idem_begin('owner-e')), answer(idem_begin('owner-f'));
SELECT idem_complete('owner-e', code => 777), raises('SELECT idem_complete(''owner-f'', code => 777)');
ROLLBACK;
-- A trigger may begin and end operations itself.
CREATE FUNCTION owner_nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF new.scope = 'outer' THEN
		PERFORM idem_begin(new.idempotency_key, scope => 'inner');
		PERFORM idem_complete(new.idempotency_key, '"inner"', 'inner');
	END IF;
	RETURN NULL;
END
$$;
BEGIN;
CREATE TRIGGER owner_nested AFTER INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION owner_nested();
SELECT answer(idem_begin('owner-g', scope => 'outer'));
SELECT FROM idem_complete('owner-g', '"outer"', 'outer');
SELECT answer(idem_begin('owner-g', scope => 'outer')), answer(idem_begin('owner-g', scope => 'inner'));
ROLLBACK;
-- Columns that the owner makes NOT NULL are never NULL, on a new row and on an old one.
BEGIN;
DELETE FROM idempotency_store;
ALTER TABLE idempotency_store ALTER response_code SET NOT NULL, ALTER response_code SET DEFAULT 5;
INSERT INTO idempotency_store (idempotency_key, status, expires_at, retry_at) VALUES ('owner-e', 'FAILED', now() + interval '1 hour', now());
SELECT answer(idem_begin(key)) FROM (VALUES ('owner-e'), ('owner-f')) v(key);
SELECT raises(format('SELECT idem_complete(%L)', key)) FROM (VALUES ('owner-e'), ('owner-f')) v(key);
ROLLBACK;
-- A row that the same statement has deleted is gone.
BEGIN;
INSERT INTO idempotency_store (idempotency_key, status, expires_at, retry_at) VALUES ('owner-g', 'FAILED', now() + interval '1 hour', now());
SELECT answer(idem_begin('owner-g'));
WITH gone AS (DELETE FROM idempotency_store WHERE idempotency_key = 'owner-g' RETURNING idempotency_key) SELECT idem_complete(idempotency_key, '1') FROM gone;
SELECT answer(idem_lookup('owner-g'));
ROLLBACK;
-- Rows of other writers may have infinite times.
INSERT INTO idempotency_store (idempotency_key, status, created_at, updated_at, expires_at, lease_expires_at, retry_at, fence) VALUES
	('owner-h', 'PENDING', '-infinity', '-infinity', 'infinity', 'infinity', NULL, 1), ('owner-i', 'FAILED', '-infinity', '-infinity', 'infinity', NULL, '-infinity', NULL),
	('owner-j', 'PENDING', '-infinity', '-infinity', 'infinity', '-infinity', NULL, 2), ('owner-k', 'FAILED', '-infinity', '-infinity', 'infinity', NULL, 'infinity', NULL);
SELECT (o).idempotency_key, (o).outcome, (o).retry_after FROM (SELECT idem_lookup('owner-' || letter) AS o FROM unnest('{i,j}'::text[]) letter) r;
SELECT (o).outcome, (o).retry_after > interval '1 year' FROM (SELECT idem_lookup('owner-' || letter) AS o FROM unnest('{h,k}'::text[]) letter) r;
BEGIN;
SELECT answer(idem_begin('owner-' || letter)) FROM unnest('{i,j,k}'::text[]) letter;
SELECT idem_complete('owner-' || letter, '1') FROM unnest('{i,j}'::text[]) letter;
COMMIT;
SELECT FROM idem_complete('owner-h', '1', fence => 1);
SELECT answer(idem_lookup('owner-' || letter)) FROM unnest('{h,i,j,k}'::text[]) letter;
DELETE FROM idempotency_store WHERE idempotency_key ~ '^owner-[h-k]$';
