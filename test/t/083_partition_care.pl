# The care for a store that is partitioned by expiry, when it meets what it does not
# expect (FAILURES 132 to 135, 137 to 140): an owner's event trigger, what an owner does to
# partitions, and partitions that come while responses are sealed anew.
use strict;
use warnings;

use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('care', conf => "idempotency.seal_key_file = 'idempotency.keys'\n");
my $key_file = $node->data_dir . '/idempotency.keys';
append_to_file($key_file, "first 0000000000000000000000000000000000000000000000000000000000000001\n");
chmod 0600, $key_file;

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub complete
{
	my ($key, $retention) = @_;

	return query("BEGIN; SELECT FROM idem_begin('$key'); SELECT FROM idem_complete('$key', '1', retention => '$retention'); COMMIT");
}

query(<<'SQL');
CREATE EXTENSION pgcrypto;
SELECT idem_partition_store('4 hours');
CREATE FUNCTION make_partition(range_start timestamptz, range_end timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	-- a look of another session may be in the way
	FOR try IN 1 .. 50 LOOP
		IF idem_make_partitions('idempotency_store', 'idempotency_store_default', ARRAY[range_start], ARRAY[range_end]) THEN
			RETURN;
		END IF;
	END LOOP;
	RAISE 'a lock was never free';
END
$$;
SQL

# ---- an error of the care does not stop collection ----

query(<<'SQL');
SELECT make_partition(now() - interval '3 days', now() - interval '2 days');
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	VALUES ('in a partition', now() - interval '60 hours', 'COMPLETED'), ('by default', now() - interval '10 days', 'COMPLETED');
CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE 'no tables today' USING DETAIL = 'secret', ERRCODE = current_setting('care.code');
END
$$;
CREATE EVENT TRIGGER forbid ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION forbid();
SQL
my ($collected, $messages) = ('', '');
$node->psql('postgres', q{SET idempotency.retention = '3 d'; SET care.code = 'P0001'; SELECT idem_gc()}, stdout => \$collected, stderr => \$messages);
is($collected, '2', 'what has expired is collected, in the partitions and in the default one');
like($messages, qr/WARNING:  could not care for the partitions of the store: no tables today\nHINT:  Collection goes on/, 'there is a warning');
unlike($messages, qr/secret/, 'without the detail of the error');
$node->psql('postgres', q{SET idempotency.retention = '3 d'; SET care.code = '55P03'; SELECT idem_gc()}, stderr => \$messages);
is($messages, '', 'a lock that is not free is no trouble');
is(sqlstate($node, "SET idempotency.retention = '3 d'; SET care.code = '$_'; SELECT idem_gc()"), $_, "but $_ ends it") for qw(57014 53100);
my $before = query('SELECT count(*) FROM idempotency_partitions');
query(q{DROP EVENT TRIGGER forbid; SET idempotency.retention = '3 d'; SELECT idem_gc()});
cmp_ok(query('SELECT count(*) FROM idempotency_partitions'), '>', $before, 'the next time makes them');

# ---- a partition comes while responses are sealed anew ----

complete('one year', '1 year');
complete('last partition', '20 hours');
complete('first partition', '5 hours');
append_to_file($key_file, "second 0000000000000000000000000000000000000000000000000000000000000002\n");
$node->reload;
my $session = session($node);
is($session->query('SELECT idem_reseal(1)'), '1', 'the default partition is the first');
is($session->query('SELECT idem_reseal(1)'), '1', 'the session goes on in a partition');
query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_payload) VALUES ('clear', now() + interval '300 days', 'COMPLETED', '1')});
my $owner = session($node);
my $partition = query(q{SELECT tableoid::regclass FROM idempotency_store WHERE idempotency_key = 'first partition'});
$owner->query("BEGIN; LOCK TABLE $partition IN EXCLUSIVE MODE");
$session->query_until(qr/begun/, "\\echo begun\nSELECT 'sealed ' || idem_reseal(100);\n");
$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)}) or die 'nobody waits';
query(q{SELECT make_partition(now() + interval '200 days', now() + interval '350 days')});
$owner->query('COMMIT');
like($session->query('SELECT 1'), qr/sealed 2/, 'it seals the record that moved to the new one, too');
is(query(q{SELECT count(*) FROM idempotency_store WHERE seal_key IS DISTINCT FROM 'second' AND status = 'COMPLETED'}), '0', 'so the older key is needed no more');

$session->quit;
$owner->quit;

# ---- what an owner does to partitions ----

my $detached = query(q{SELECT name FROM idempotency_partitions WHERE range_end IS NOT NULL AND range_start < now() + interval '2 days' ORDER BY range_start DESC LIMIT 1});
query("ALTER TABLE idempotency_store DETACH PARTITION $detached");
query(q{SET idempotency.retention = '3 d'; SELECT idem_gc()});
is(query("SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relname ~ '^$detached'"), $detached . '_1', 'its name is taken, so another is found');

# a generated column: it cannot be written, but records move with it
query(<<'SQL');
ALTER TABLE idempotency_store ADD COLUMN twice int GENERATED ALWAYS AS (attempt * 2) STORED;
INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('generated', now() + interval '450 days', 'COMPLETED');
SELECT make_partition(now() + interval '400 days', now() + interval '500 days');
SQL
is(query(q{SELECT twice, tableoid::regclass <> 'idempotency_store_default'::regclass FROM idempotency_store WHERE idempotency_key = 'generated'}), '2|t', 'a record moves with a generated column');

query(<<'SQL');
CREATE SCHEMA elsewhere;
SELECT make_partition(now() - interval '5 days', now() - interval '4 days');
INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('elsewhere', now() - interval '108 hours', 'COMPLETED');
DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE %I SET SCHEMA elsewhere', name) FROM idempotency_partitions WHERE range_end < now() - interval '90 hours'); END $$;
SQL
is(query('SELECT idem_gc()'), '1', 'a partition in another schema is emptied');
is(query(q{SELECT count(*) FROM pg_class WHERE relnamespace = 'elsewhere'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) = 0}), '1', 'and stays');
is(sqlstate($node, 'SELECT idem_unpartition_store()'), 'ID400', 'the store does not become one table without it');
query(q{DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE elsewhere.%I SET SCHEMA public', relname) FROM pg_class WHERE relnamespace = 'elsewhere'::regnamespace AND relkind = 'r'); END $$});
query('SELECT idem_gc()');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE range_end < now() - interval '90 hours'}), '0', 'when it is back, it is dropped');

# ---- one partition is in trouble, and the others are not ----

query(<<'SQL');
SELECT make_partition(now() - interval '9 days', now() - interval '8 days');
SELECT make_partition(now() - interval '7 days', now() - interval '6 days');
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	VALUES ('referred to', now() - interval '204 hours', 'COMPLETED'), ('free', now() - interval '156 hours', 'COMPLETED');
DO $$ BEGIN EXECUTE (SELECT format('CREATE TABLE notes (scope text COLLATE "C", k text COLLATE "C", FOREIGN KEY (scope, k) REFERENCES %I)', name)
	FROM idempotency_partitions ORDER BY range_start LIMIT 1); END $$;
SQL
$node->psql('postgres', 'SELECT idem_gc()', stdout => \$collected, stderr => \$messages);
is($collected, '1', 'a foreign key keeps one partition, and another one is emptied');
like($messages, qr/cannot truncate a table referenced in a foreign key/, 'there is a warning');
is(query(q{DROP TABLE notes; SELECT idem_gc()}), '1', 'without the foreign key, it is emptied');

query(<<'SQL');
SELECT make_partition(now() - interval '9 days', now() - interval '8 days');
SELECT make_partition(now() - interval '7 days', now() - interval '6 days');
DO $$ BEGIN EXECUTE (SELECT format('CREATE VIEW watching AS SELECT 1 FROM %I', name) FROM idempotency_partitions ORDER BY range_start LIMIT 1); END $$;
SQL
$before = query('SELECT count(*) FROM idempotency_partitions');
$node->psql('postgres', q{SET idempotency.retention = '10 d'; SELECT idem_gc()}, stderr => \$messages);
like($messages, qr/WARNING:  cannot drop partition \S+, as other objects depend on it/, 'there is a warning about a view');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE state = 'over' AND range_end < now() - interval '5 days'}), '1', 'only the partition that it reads stays');
cmp_ok(query('SELECT count(*) FROM idempotency_partitions'), '>', $before, 'and new ones are made');
query('DROP VIEW watching');

# a snapshot from before
query(<<'SQL');
SELECT make_partition(now() - interval '13 days', now() - interval '12 days');
INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('old', now() - interval '300 hours', 'COMPLETED');
SQL
my $reader = session($node);
$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idempotency_store');
query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status, lease_expires_at) VALUES ('unseen', now() - interval '300 hours', 'PENDING', now() + interval '1 hour')});
$reader->query('SELECT idem_gc(); COMMIT');
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'unseen'}), '1', 'a row that a snapshot does not show stays');
query(q{DELETE FROM idempotency_store WHERE idempotency_key = 'unseen'});
$reader->quit;

# ---- records that move are more than fit into memory ----

query('CREATE DATABASE moving');
$node->psql('moving', <<'SQL', stdout => \$collected, stderr => \$messages);
CREATE EXTENSION idempotency;
SET work_mem = '64kB';
INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_payload)
	SELECT 'k' || n, now() + interval '3 hours', 'COMPLETED', to_jsonb(md5(n::text) || md5((n + 1)::text)) FROM generate_series(1, 900) n;
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Shanghai';
SELECT idem_partition_store('4 hours');
SELECT count(*), count(DISTINCT tableoid) FROM idempotency_store WHERE tableoid <> 'idempotency_store_default'::regclass;
SQL
is($messages, '', 'no file is left open, and no zone is misread');
like($collected, qr/^900\|[12]$/m, 'all of them have moved');
my $bounds = 'SELECT extract(epoch FROM range_end) FROM idempotency_partitions ORDER BY range_end';
is($node->safe_psql('moving', "SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Shanghai'; $bounds"), $node->safe_psql('moving', $bounds), 'the view shows the same times');

# ---- what would be published, and locks beside those of the store ----

is(sqlstate($node, 'CREATE PUBLICATION everything FOR ALL TABLES; SELECT idem_unpartition_store()'), '55000', 'a publication would publish copies');
is(query(q{SELECT relkind FROM pg_class WHERE oid = 'idempotency_store'::regclass}), 'p', 'the store stays as it is');
query('DROP PUBLICATION IF EXISTS everything');
query('CREATE VIEW around AS SELECT scope FROM idempotency_store');
$owner = session($node);

# ---- one table again: what came past the extension ----

query(<<'SQL');
SELECT make_partition(now() - interval '3 days', now() - interval '2 days');
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence, lease_expires_at) VALUES
	('greatest', now() - interval '60 hours', 'COMPLETED', 9223372036854775807, NULL), ('fence', now() - interval '60 hours', 'COMPLETED', 1000000, NULL), ('lease', now() - interval '60 hours', 'PENDING', 1000001, now() + interval '1 hour');
SELECT idem_unpartition_store();
SQL
is(query(q{SELECT relkind FROM pg_class WHERE oid = 'idempotency_store'::regclass}), 'r', 'one table');
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'lease'}), '1', 'a lease that runs on keeps its row');
cmp_ok(query(q{SELECT fence FROM idem_begin('next', lease => '1 minute')}), '>', 1000001, 'the fences go on above those that are gone');

# a row in the default partition that another one replaces
query(<<'SQL');
ALTER TABLE idempotency_store DROP COLUMN twice;
SELECT idem_partition_store('4 hours');
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence)
	VALUES ('two', now() - interval '100 days', 'COMPLETED', 2000000), ('two', now() + interval '1 hour', 'COMPLETED', 5);
SQL
$owner->query(q{BEGIN; COMMENT ON VIEW around IS 'locked'});
is(sqlstate($node, q{SET statement_timeout = '10s'; SELECT idem_unpartition_store()}), '55P03', 'a view that somebody has locked: nobody waits for it behind the store');
$owner->query('COMMIT');
query('SELECT idem_unpartition_store()');
is(query(q{SELECT fence FROM idempotency_store WHERE idempotency_key = 'two'}), '5', 'the row counts that expires last');
cmp_ok(query(q{SELECT fence FROM idem_begin('after', lease => '1 minute')}), '>', 2000000, 'and the fence of the other one is not forgotten');
$owner->query(q{BEGIN; COMMENT ON VIEW around IS 'locked'});
is(sqlstate($node, q{SET statement_timeout = '10s'; SELECT idem_partition_store('4 hours')}), '55P03', 'nor when the store is divided');
$owner->query('COMMIT');
$owner->quit;
my $watcher = session($node);
$watcher->query('CREATE TEMP VIEW seen AS SELECT scope FROM idempotency_store');
is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}), '55000', 'a temporary view of another session is named as an obstacle');
$watcher->quit;
$node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_class WHERE relname = 'seen' AND relkind = 'v')}) or die 'the view stays';
is(query(q{BEGIN; SET LOCAL lock_timeout = '7s'; SELECT idem_partition_store('4 hours'); SHOW lock_timeout; COMMIT; DROP VIEW around}), "\n7s", 'the timeout is the caller\'s again');

# a sequence that cannot reach a fence, and one that has given nothing yet
query(<<'SQL');
SELECT make_partition(now() - interval '3 days', now() - interval '2 days');
ALTER SEQUENCE idempotency_fence MAXVALUE 3000000;
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence) VALUES ('beyond', now() - interval '60 hours', 'COMPLETED', 4000000);
SELECT idem_unpartition_store();
SELECT idem_partition_store('4 hours');
SELECT make_partition(now() - interval '3 days', now() - interval '2 days');
DELETE FROM idempotency_store;
ALTER SEQUENCE idempotency_fence RESTART;
INSERT INTO idempotency_store (idempotency_key, expires_at, status, fence) VALUES ('first', now() - interval '60 hours', 'COMPLETED', 1);
SELECT idem_unpartition_store();
SQL
is(query(q{SELECT fence FROM idem_begin('second', lease => '1 minute')}), '2', 'the first number is not given twice');

$node->stop;
done_testing();
