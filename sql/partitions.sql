-- A store with a ring of tables by expiry: records that are there twice, and rights. How it rotates is
-- in test/t/080_ring.pl.
\set VERBOSITY terse

-- Where: in the store itself, or in the table of the ring that has this number.
CREATE FUNCTION pg_temp.place(part oid) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce((SELECT (SELECT count(*) FROM idempotency_partitions q WHERE q.range_start < p.range_start)::text
		FROM idempotency_partitions p WHERE p.name = (SELECT relname FROM pg_class WHERE oid = part)), 'store')
$$;
CREATE FUNCTION pg_temp.stored() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT concat_ws(' ', idempotency_key, status, pg_temp.place(tableoid)) FROM idempotency_store
	ORDER BY idempotency_key COLLATE "C", expires_at
$$;
CREATE FUNCTION pg_temp.run(key text, retention interval DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	operation idem_operation := idem_begin(key);
BEGIN
	IF operation.outcome = 'ACQUIRED' THEN
		PERFORM idem_complete(key, to_jsonb(key), retention => retention);
	END IF;
	RETURN operation.outcome;
END
$$;

-- The argument, and who may.
SELECT raises('SELECT idem_partition_store(NULL)');
SELECT raises('SELECT idem_partition_store(''0'')');
SELECT raises('SELECT idem_partition_store(''2 years'')');
SELECT raises('SELECT idem_partition_store(''1 year -365 days'')');
BEGIN;
CREATE ROLE regress_idem_partitioner;
SELECT FROM idem_grant('regress_idem_partitioner');
SET LOCAL ROLE regress_idem_partitioner;
SELECT raises('SELECT idem_partition_store(''4 hours'')');
SELECT raises('SELECT idem_unpartition_store()');
SELECT raises('SELECT * FROM idempotency_partitions');
SELECT raises('SELECT * FROM idempotency_ring');
ROLLBACK;
-- A store without a ring has no tables to show, and nothing to unmake.
SELECT * FROM idempotency_partitions;
SELECT FROM idem_unpartition_store();

-- From here on, all of it is undone at the end.
BEGIN;
TRUNCATE idempotency_store;
SELECT pg_temp.run('before'), pg_temp.run('before-long', '1 year');
SELECT answer(idem_begin('leased', lease => '4 hours'));
SELECT 'idempotency_store'::regclass::oid AS store \gset
SELECT FROM idem_partition_store('4 hours');
-- The store is the same table, and no row has moved.
SELECT :store = 'idempotency_store'::regclass::oid, pg_temp.stored();
SELECT name, state, range_start, range_end, rows_estimate, bytes > 0 FROM idempotency_partitions ORDER BY name;
SELECT DISTINCT c.relkind, c.relpersistence, c.relowner = s.relowner, c.reloptions = s.reloptions, (SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND indisprimary)
	FROM pg_class c JOIN pg_inherits ON inhrelid = c.oid JOIN pg_class s ON s.oid = inhparent WHERE s.relname = 'idempotency_store';
-- Collection in the transaction that has made it rotates nothing.
SELECT idem_gc() >= 0;
SELECT DISTINCT state FROM idempotency_partitions;
-- Ranges, as collection gives them.
UPDATE idempotency_ring r SET range_start = now() + n * period, range_end = now() + (n + 1) * period
	FROM (SELECT name, row_number() OVER (ORDER BY name) - 1 AS n FROM idempotency_ring) numbers WHERE numbers.name = r.name;
ALTER TABLE idempotency_store_p1 SET (fillfactor = 90);
SELECT state, count(*), every(range_end - range_start = '4 hours') FROM idempotency_partitions GROUP BY state ORDER BY state;
-- Same answers.
SELECT pg_temp.run('before'), pg_temp.run('before-long'), pg_temp.run('after'), pg_temp.run('after');
SELECT answer(idem_begin('leased', lease => '4 hours'));
SELECT answer(idem_lookup('after')), answer(idem_lookup('nothing'));
-- Records go to the table of their expiry, and to the store beyond the last.
SELECT pg_temp.run('soon', '5 hours'), pg_temp.run('hours', '9 hours'), pg_temp.run('year', '1 year');
-- An end moves the record.
SELECT answer(idem_begin('moves', lease => '4 hours'));
SELECT pg_temp.stored();
SELECT FROM idem_complete('moves', '"moved"', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'moves'), retention => '5 hours');
SELECT * FROM pg_temp.stored() s WHERE s LIKE 'moves%';
-- Released; a batch.
SELECT answer(idem_begin('released', lease => '1 hour'));
SELECT idem_release('released', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'released'));
SELECT outcome FROM idem_begin_batch(ARRAY['batch', 'after', 'soon']);
SELECT idem_complete_batch(ARRAY['batch']);
SELECT kind FROM idempotency_in_flight WHERE idempotency_key = 'leased';
SELECT pg_temp.stored();
-- Two rows of one name, by a writer that takes no lock: the first live one that is found counts;
-- of those that have expired, the last.
INSERT INTO idempotency_store_p3 (idempotency_key, expires_at, status, attempt) VALUES ('two', now() - interval '3 hours', 'FAILED', 5);
INSERT INTO idempotency_store_p4 (idempotency_key, expires_at, status, attempt) VALUES ('two', now() - interval '2 hours', 'FAILED', 7);
INSERT INTO idempotency_store_p2 (idempotency_key, expires_at, status, attempt) VALUES ('two', now() - interval '4 hours', 'FAILED', 6);
SELECT pg_temp.run('two', '9 hours');
SELECT * FROM pg_temp.stored() s WHERE s LIKE 'two%';
-- Names that PostgreSQL quotes make no difference.
SET quote_all_identifiers = on;
SELECT count(*) FROM idempotency_partitions;
RESET quote_all_identifiers;
-- A table that somebody renames keeps its records and gets no more.
ALTER TABLE idempotency_store_p2 RENAME TO renamed;
SELECT name, state FROM idempotency_partitions WHERE name = 'renamed';
SELECT pg_temp.run('soon'), pg_temp.run('renamed', '5 hours');
SELECT * FROM pg_temp.stored() s WHERE s LIKE 'renamed%';
ALTER TABLE renamed RENAME TO idempotency_store_p2;
-- Another period: of ranges to come, and more tables if it needs more.
SELECT FROM idem_partition_store('12 hours');
SELECT count(*), count(range_start) FROM idempotency_partitions;
SELECT FROM idem_partition_store('2 hours');
SELECT count(*), count(range_start) FROM idempotency_partitions;
SELECT DISTINCT period, leaving FROM idempotency_ring;
-- A month has 30 days, whatever the calendar and the time zone say.
SELECT FROM idem_partition_store('1 month');
SELECT DISTINCT timestamptz '2026-12-31' + period - '2026-12-31' FROM idempotency_ring;
SET LOCAL log_min_messages = error;
SELECT idem_partition_store('10 minutes');
SELECT count(*) FROM idempotency_partitions;
-- No range is given any more; all that is there stays.
SELECT FROM idem_unpartition_store();
SELECT DISTINCT leaving FROM idempotency_ring;
SELECT pg_temp.run('before'), pg_temp.run('soon'), pg_temp.run('two');
ROLLBACK;

-- A table of somebody else has the name, and the names of the columns that PostgreSQL merges are no news.
BEGIN;
CREATE TABLE idempotency_store_p2 ();
CREATE TYPE idempotency_store_p3 AS (a int);
SET LOCAL client_min_messages = notice;
SELECT FROM idem_partition_store('12 hours');
SELECT name FROM idempotency_partitions ORDER BY name;
ROLLBACK;

-- What the tables of a ring could not do.
CREATE FUNCTION pg_temp.refused(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE change;
	answer := coalesce(raises_why('SELECT idem_partition_store(''4 hours'')'), 'no error');
	RAISE EXCEPTION USING ERRCODE = 'XX999', MESSAGE = answer;
EXCEPTION WHEN SQLSTATE 'XX999' THEN
	RETURN sqlerrm;
END
$$;
CREATE FUNCTION partitions_fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;
SELECT pg_temp.refused('ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY');
SELECT pg_temp.refused('CREATE RULE r AS ON DELETE TO idempotency_store DO ALSO NOTHING');
SELECT pg_temp.refused('CREATE TRIGGER t BEFORE INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_fire()');
SELECT pg_temp.refused('CREATE TABLE partitions_ref (scope text COLLATE "C", idempotency_key text COLLATE "C", FOREIGN KEY (scope, idempotency_key) REFERENCES idempotency_store)');
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD UNIQUE (scope, idempotency_key, attempt)');
SELECT pg_temp.refused('CREATE INDEX ON idempotency_store (expires_at)');
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD CHECK (attempt < 100) NOT VALID');
SELECT pg_temp.refused('TRUNCATE idempotency_store; ALTER TABLE idempotency_store ALTER response_code SET NOT NULL');
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD further int');
SELECT pg_temp.refused('CREATE TABLE partitions_parent (LIKE idempotency_store INCLUDING ALL); ALTER TABLE idempotency_store INHERIT partitions_parent');
SELECT pg_temp.refused('ALTER TABLE idempotency_store RENAME TO old_store; CREATE TABLE idempotency_store (LIKE old_store INCLUDING DEFAULTS) PARTITION BY LIST (scope)');
-- a column that is gone is no column
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD further int; ALTER TABLE idempotency_store DROP further');
-- views, rights and publications of the store are no obstacle
SELECT pg_temp.refused('CREATE VIEW partitions_view AS SELECT scope FROM idempotency_store; GRANT SELECT ON idempotency_store TO PUBLIC');
SELECT count(*) FROM idempotency_partitions;
DROP FUNCTION partitions_fire;

-- The tables of a ring and Citus' shards are made and let go at READ COMMITTED only: an older snapshot does not
-- show all tables and records.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT raises('SELECT idem_partition_store(''4 hours'')');
SELECT raises('SELECT idem_unpartition_store()');
SELECT raises('SELECT idem_require_read_committed()');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT raises('SELECT idem_require_read_committed()');
COMMIT;
SELECT idem_require_read_committed() IS NOT NULL;
