# The care for a store that is partitioned by expiry, when it meets what it does not
# expect (FAILURES 132 to 135): an owner's event trigger, what an owner does to
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
is(query("SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relname ~ '^$detached'"), $detached . '_', 'its name is taken, so another is found');

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

$node->stop;
done_testing();
