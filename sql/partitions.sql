-- A store that is partitioned by expiry: FAILURES 106 to 112, 136.
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse

-- Which partition: d is the default one, the others count from the one of now.
CREATE FUNCTION pg_temp.place(part oid) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN p.state = 'default' THEN 'd' ELSE (SELECT count(*) FROM idempotency_partitions q
			WHERE q.range_end > now() AND q.range_start < p.range_start)::text || CASE WHEN p.state = 'over' THEN ' over' ELSE '' END END
	FROM idempotency_partitions p WHERE p.name = (SELECT relname FROM pg_class WHERE oid = part)
$$;
CREATE FUNCTION pg_temp.stored() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT concat_ws(' ', idempotency_key, status, coalesce(pg_temp.place(tableoid), 'store')) FROM idempotency_store
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
-- One that is over, for records of that age.
CREATE FUNCTION pg_temp.make_over() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	-- false while the collector looks into the default partition
	WHILE NOT idem_make_partitions('idempotency_store', 'idempotency_store_default', ARRAY[now() - interval '3 days'], ARRAY[now() - interval '2 days']) LOOP
	END LOOP;
END
$$;

-- The argument, and who may.
SELECT raises('SELECT idem_partition_store(NULL)');
SELECT raises('SELECT idem_partition_store(''0'')');
SELECT raises('SELECT idem_partition_store(''2 years'')');
BEGIN;
CREATE ROLE regress_idem_partitioner;
SELECT idem_grant('regress_idem_partitioner');
SET LOCAL ROLE regress_idem_partitioner;
SELECT raises('SELECT idem_partition_store(''4 hours'')');
SELECT raises('SELECT idem_unpartition_store()');
SELECT raises('SELECT * FROM idempotency_partitions');
ROLLBACK;
-- A store that is not partitioned has no partitions, and nothing to unmake.
SELECT * FROM idempotency_partitions;
SELECT idem_unpartition_store();

-- A snapshot may be older than the records (FAILURES 124).
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT raises('SELECT idem_partition_store(''4 hours'')');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT raises('SELECT idem_unpartition_store()');
-- collection does the rest another time
SELECT idem_tend_partitions();
ROLLBACK;

-- From here on, all of it is undone at the end.
BEGIN;
TRUNCATE idempotency_store;
SELECT pg_temp.run('before'), pg_temp.run('before-long', '1 year');
SELECT told(idem_begin('leased', lease => '4 hours'));
SELECT idem_partition_store('4 hours');
-- Names that PostgreSQL quotes make no difference.
SET quote_all_identifiers = on;
SELECT count(*) > 1 FROM idempotency_partitions;
RESET quote_all_identifiers;
SELECT state, count(*), every(range_end - range_start = '4 hours') FROM idempotency_partitions GROUP BY state ORDER BY state;
SELECT relkind, relispartition FROM pg_class WHERE oid = 'idempotency_store'::regclass;
-- No row was copied but those that have a partition of their own now.
SELECT pg_temp.stored();
-- Same answers.
SELECT pg_temp.run('before'), pg_temp.run('before-long'), pg_temp.run('after'), pg_temp.run('after');
SELECT told(idem_begin('leased', lease => '4 hours'));
SELECT told(idem_lookup('after')), told(idem_lookup('nothing'));
-- Records go to the partition of their expiry, and to the default one beyond the last.
SELECT pg_temp.run('soon', '4 hours'), pg_temp.run('hours', '8 hours'), pg_temp.run('year', '1 year');
-- A lease that ends moves its record.
SELECT told(idem_begin('moves', lease => '4 hours'));
SELECT pg_temp.stored();
SELECT idem_complete('moves', '"moved"', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'moves'), retention => '4 hours');
SELECT * FROM pg_temp.stored() s WHERE s LIKE 'moves%';
-- Released; a batch.
SELECT told(idem_begin('released', lease => '1 hour'));
SELECT idem_release('released', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'released'));
SELECT outcome FROM idem_begin_batch(ARRAY['batch', 'after', 'hours']);
SELECT idem_complete_batch(ARRAY['batch']);

-- What is over counts as absent, is removed in one piece, and dropped.
SELECT pg_temp.make_over();
INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'over-' || n, now() - interval '50 hours', 'COMPLETED' FROM generate_series(1, 1000) n;
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence) SELECT 'over-fence', now() - interval '50 hours', 'COMPLETED', last_value + 1000 FROM idempotency_fence;
SELECT DISTINCT pg_temp.place(tableoid) FROM idempotency_store WHERE idempotency_key LIKE 'over%';
SELECT told(idem_lookup('over-1')), pg_temp.run('over-1');
SELECT max(fence) AS fence FROM idempotency_store \gset
SELECT idem_gc() >= 1000;
SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'over%';
SELECT fence > :fence FROM idem_begin('after-fence', lease => '1 hour');
SELECT idem_gc();
SELECT count(*) FROM idempotency_partitions WHERE state = 'over';
-- A lease that runs still keeps its partition; only the owner can have made such a row.
SELECT pg_temp.make_over();
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence, lease_expires_at)
	VALUES ('over-leased', now() - interval '50 hours', 'PENDING', 1, now() + interval '1 hour');
SELECT idem_gc();
SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'over-l%';
DELETE FROM idempotency_store WHERE idempotency_key = 'over-leased';
-- A row in the default partition that has expired is swept.
INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('rest', now() - interval '1 year', 'COMPLETED');
SELECT idem_gc();

-- Two rows of one name, by a writer that takes no lock: the one counts that expires last.
INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_payload)
	VALUES ('two', now() + interval '10 hours', 'COMPLETED', '"ten"'), ('two', now() + interval '2 hours', 'COMPLETED', '"two"');
SELECT told(idem_lookup('two')), told(idem_begin('two'));
DELETE FROM idempotency_store WHERE idempotency_key = 'two';
-- The row that has expired, and that is not over, is replaced.
INSERT INTO idempotency_store (idempotency_key, expires_at, status, attempt)
	SELECT 'replaced', min(range_start) + interval '1 us', 'COMPLETED', 7 FROM idempotency_partitions WHERE state = 'live';
SELECT pg_temp.run('replaced');
SELECT count(*), max(attempt) FROM idempotency_store WHERE idempotency_key = 'replaced';

-- Another period, from the last partition on.
SELECT idem_partition_store('12 hours');
SELECT max(range_end - range_start) FROM idempotency_partitions;
SELECT bool_and(range_end = next) FROM (SELECT range_end, lead(range_start) OVER (ORDER BY range_start) AS next FROM idempotency_partitions WHERE state <> 'default') p WHERE next IS NOT NULL;
SET LOCAL idempotency.retention = '20d';
SET LOCAL log_min_messages = error;
SELECT idem_partition_store('1 day');
SELECT count(*) BETWEEN 25 AND 40 FROM idempotency_partitions;
RESET idempotency.retention;

-- One table again. Of two rows of one name, that one counts and stays that expires last.
SELECT pg_temp.run('last', '4 hours');
INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_payload)
	VALUES ('two', now() + interval '10 hours', 'COMPLETED', '"ten"'), ('two', now() + interval '2 hours', 'COMPLETED', '"two"');
SELECT count(DISTINCT idempotency_key) AS live FROM idempotency_store WHERE expires_at > clock_timestamp() \gset
SELECT idem_unpartition_store();
SELECT relkind, relispartition FROM pg_class WHERE oid = 'idempotency_store'::regclass;
SELECT count(*) = :live FROM idempotency_store WHERE expires_at > clock_timestamp();
SELECT pg_temp.run('last'), pg_temp.run('before'), pg_temp.run('year'), told(idem_begin('two'));
SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency_store_%' AND relkind = 'r';
SELECT count(*) FROM idempotency_partitions;
ROLLBACK;

-- What is around the store goes with its name: there and back.
BEGIN;
CREATE ROLE regress_idem_reader;
GRANT SELECT (scope), UPDATE ON idempotency_store TO regress_idem_reader;
GRANT SELECT ON idempotency_store TO PUBLIC;
CREATE FUNCTION partitions_fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% %', tg_op, new.idempotency_key; RETURN new; END $$;
CREATE TRIGGER partitions_trigger BEFORE INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_fire();
CREATE TRIGGER partitions_off BEFORE INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_fire();
ALTER TABLE idempotency_store DISABLE TRIGGER partitions_off;
CREATE TRIGGER partitions_replica BEFORE INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_fire();
ALTER TABLE idempotency_store ENABLE REPLICA TRIGGER partitions_replica;
CREATE TRIGGER partitions_always AFTER INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_fire();
ALTER TABLE idempotency_store ENABLE ALWAYS TRIGGER partitions_always;
CREATE VIEW partitions_view WITH (security_barrier) AS SELECT scope, idempotency_key FROM idempotency_store WHERE status = 'COMPLETED';
CREATE FUNCTION pg_temp.around() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT unnest(idem_store_surroundings('idempotency_store'))
	EXCEPT SELECT unnest(idem_store_surroundings('idempotency_store')) WHERE false ORDER BY 1
$$;
SELECT count(*) >= 8 FROM pg_temp.around();
CREATE TEMP TABLE before AS SELECT * FROM pg_temp.around() AS command;
SELECT idem_partition_store('4 hours');
SELECT * FROM before EXCEPT SELECT * FROM pg_temp.around();
SELECT pg_temp.run('seen');
SELECT idempotency_key FROM partitions_view WHERE idempotency_key = 'seen';
-- A record that moves to a new partition is neither new nor gone to a trigger; other records are.
CREATE FUNCTION partitions_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% %', tg_op, old.idempotency_key; RETURN NULL; END $$;
CREATE TRIGGER partitions_gone AFTER DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION partitions_gone();
ALTER TABLE idempotency_store ENABLE ALWAYS TRIGGER partitions_gone;
SELECT pg_temp.run('moves', '1 year');
SELECT idem_make_partitions('idempotency_store', 'idempotency_store_default', ARRAY[now() + interval '300 days'], ARRAY[now() + interval '400 days']);
SELECT s ~ 'COMPLETED [0-9]' AS moved FROM pg_temp.stored() s WHERE s LIKE 'moves%';
SELECT pg_temp.run('stays', '1 year');
DELETE FROM idempotency_store WHERE idempotency_key = 'stays';
DROP TRIGGER partitions_gone ON idempotency_store;
SELECT tgrelid::regclass::text ~ '_2' AS is_partition, tgname, tgenabled FROM pg_trigger WHERE tgname LIKE 'partitions%' GROUP BY 1, 2, 3 ORDER BY 1, 2;
SELECT told(idem_begin('flight', lease => '1 hour'));
SELECT kind FROM idempotency_in_flight WHERE idempotency_key = 'flight';
SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a WHERE c.relname ~ '^idempotency_store_2' AND a.grantee <> c.relowner;
SELECT idem_unpartition_store();
SELECT * FROM before EXCEPT SELECT * FROM pg_temp.around();
SELECT pg_temp.run('seen');
SELECT idempotency_key FROM partitions_view WHERE idempotency_key = 'seen';
ROLLBACK;

-- What cannot go with it.
CREATE FUNCTION pg_temp.refused(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE change;
	answer := raises_why('SELECT idem_partition_store(''4 hours'')');
	RAISE EXCEPTION USING ERRCODE = 'XX999', MESSAGE = answer;
EXCEPTION WHEN SQLSTATE 'XX999' THEN
	RETURN sqlerrm;
END
$$;
SELECT pg_temp.refused('ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY');
SELECT pg_temp.refused('CREATE RULE r AS ON DELETE TO idempotency_store DO ALSO NOTHING');
SELECT pg_temp.refused('CREATE TABLE partitions_child () INHERITS (idempotency_store)');
SELECT pg_temp.refused('CREATE TABLE partitions_ref (scope text COLLATE "C", idempotency_key text COLLATE "C", FOREIGN KEY (scope, idempotency_key) REFERENCES idempotency_store)');
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD UNIQUE (scope, idempotency_key, attempt)');
SELECT pg_temp.refused('ALTER TABLE idempotency_store ADD CHECK (attempt < 100) NOT VALID');
SELECT pg_temp.refused('CREATE MATERIALIZED VIEW partitions_view AS SELECT scope FROM idempotency_store');
SELECT count(*) FROM idempotency_partitions;

-- A store that its owner has partitioned in another way is another store.
BEGIN;
ALTER TABLE idempotency_store RENAME TO old_store;
CREATE TABLE idempotency_store (LIKE old_store INCLUDING DEFAULTS) PARTITION BY LIST (scope);
CREATE TABLE partitions_rest PARTITION OF idempotency_store DEFAULT;
SELECT count(*) FROM idempotency_partitions;
SELECT raises('SELECT idem_partition_store(''4 hours'')');
SELECT raises('SELECT idem_unpartition_store()');
ROLLBACK;

-- A store without its default partition is not used, nor are partitions of another shape.
BEGIN;
SELECT idem_partition_store('4 hours');
SAVEPOINT before_detach;
ALTER TABLE idempotency_store DETACH PARTITION idempotency_store_default;
SELECT raises('SELECT idem_begin(''k'')');
ROLLBACK TO before_detach;
ALTER TABLE idempotency_store_default DROP CONSTRAINT idempotency_store_pkey;
SELECT raises('SELECT idem_begin(''k'')');
ROLLBACK;

-- The warning about too many, which is not for the server's log.
BEGIN;
SET LOCAL log_min_messages = error;
TRUNCATE idempotency_store;
SELECT idem_partition_store('10 minutes');
SELECT count(*) FROM idempotency_partitions;
ROLLBACK;
