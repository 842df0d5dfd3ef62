# A store that is partitioned by expiry, in a server's life (FAILURES 106 to 112, 136):
# the collector, load while it is made and unmade, dumps, replication, a standby.
use strict;
use warnings;

use Idempotency;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('partitions', allows_streaming => 'logical',
	conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");
my $directory = PostgreSQL::Test::Utils::tempdir();

sub query
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

# ---- load while the store is made and unmade ----

query(<<'SQL');
CREATE TABLE effect (key int, worker int);
CREATE FUNCTION handle(key int, way int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	operation idem_operation;
BEGIN
	IF way = 1 THEN
		operation := idem_begin(key::text, lease => '1 minute');
	ELSE
		operation := idem_begin(key::text, wait => '100 s');
	END IF;
	IF operation.outcome = 'ACQUIRED' THEN
		INSERT INTO effect VALUES (key, pg_backend_pid());
		PERFORM idem_complete(operation, to_jsonb(key), retention => CASE key % 4 WHEN 0 THEN interval '1 day'
			WHEN 1 THEN interval '1 hour' WHEN 2 THEN interval '1 year' ELSE interval '13 hours' END);
	ELSIF operation.response_payload <> to_jsonb(key) THEN
		RAISE 'wrong replay';
	END IF;
	RETURN operation.outcome;
END
$$;
SQL
append_to_file("$directory/load.sql", "\\set key random(1, 5000)\n\\set way random(1, 2)\nSELECT handle(:key, :way);\n");

my $output = '';
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', '8', '-T', '15', '--max-tries=10', '--log', "--log-prefix=$directory/latency", '-f', "$directory/load.sql", $node->connstr('postgres') ],
	'>&', \$output, IPC::Run::timeout($Idempotency::patience));

$node->poll_query_until('postgres', 'SELECT count(*) > 100 FROM effect') or die 'the load does not start';
my $changes = 0;
for my $change (q{partition_store('4 hours')}, q{unpartition_store()}, q{partition_store('1 hour')}, q{partition_store('6 hours')})
{
	my ($status) = $node->psql('postgres', "SELECT idem_$change");

	$changes++ if $status == 0;
	note "idem_$change: " . query('SELECT count(*) FROM effect') . ' effects';
}
ok($load->finish, 'a load of duplicates goes on') or diag $output;
my @latencies = sort { $a <=> $b } map { (split)[2] / 1000 } map { split /\n/, slurp_file($_) } glob "$directory/latency*";
cmp_ok(scalar @latencies, '>', 100, 'the latencies of the load are known');
diag sprintf 'milliseconds of a call, waits for locks included: median %.1f, p99 %.1f, longest %.1f', map { $latencies[$_ * $#latencies] } 0.5, 0.99, 1;
is($changes, 4, 'while the store is partitioned, made one table, and partitioned again');
is(query('SELECT count(*) FROM (SELECT FROM effect GROUP BY key HAVING count(*) > 1) twice'), '0', 'nothing took effect twice');
is(query('SELECT count(*) FROM effect e WHERE NOT EXISTS (SELECT FROM idempotency_store s WHERE s.idempotency_key = e.key::text AND s.status = $$COMPLETED$$)'),
	'0', 'every effect has its record');
is(query('SELECT count(*) - count(DISTINCT idempotency_key) FROM idempotency_store'), '0', 'and one only');
cmp_ok(query('SELECT count(*) FROM effect'), '>', 1000, 'there were effects');

# ---- the structure of what is on disk ----

query('CREATE EXTENSION amcheck');
is(query(q{SELECT count(*) FROM (SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indrelid
	WHERE h.inhparent = 'idempotency_store'::regclass) checked}),
	query('SELECT count(*) FROM idempotency_partitions'), 'amcheck finds nothing in the keys');
$node->command_ok([ 'vacuumdb', '--analyze', '-t', 'idempotency_store', $node->connstr('postgres') ], 'VACUUM');

# ---- dump, and restore into one table ----

my $contents = q{SELECT md5(string_agg(s::text, E'\n' ORDER BY idempotency_key)) FROM idempotency_store s};
my $lease = query(q{SELECT fence FROM idem_begin('leased', lease => '1 hour')});
my $before = query($contents);

for my $format ('plain', 'custom')
{
	my $file = "$directory/dump.$format";

	$node->command_ok([ 'pg_dump', "--format=$format", '--load-via-partition-root', '--file', $file, $node->connstr('postgres') ], "pg_dump, $format");
	query("CREATE DATABASE $format TEMPLATE template0");
	$node->command_ok(
		$format eq 'plain'
		? [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($format), '-f', $file ]
		: [ 'pg_restore', '--exit-on-error', '--jobs=2', '-d', $node->connstr($format), $file ],
		"restore, $format");
	is(query($contents, $format), $before, 'with all records');
	is(query(q{SELECT count(*) FROM idempotency_partitions}, $format), '0', 'in one table');
	cmp_ok(query(q{SELECT fence FROM idem_begin('next', lease => '1 hour')}, $format), '>', $lease, 'fences go on');
	query(q{SELECT idem_partition_store('4 hours')}, $format);
	is(query(q{SELECT outcome FROM idem_begin('leased')}, $format), 'IN_PROGRESS', 'partitioned again: the lease runs');
}
# Without the option the restore fails, and is not silent.
$node->command_ok([ 'pg_dump', '--file', "$directory/wrong", $node->connstr('postgres') ], 'pg_dump without the option');
query('CREATE DATABASE wrong TEMPLATE template0');
$node->command_fails_like([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('wrong'), '-f', "$directory/wrong" ],
	qr/relation ".*idempotency_store_\w+" does not exist/, 'cannot be restored, with an error');

# ---- logical replication through the root, to one table ----

my $subscriber = new_node('subscriber');
my $connection = $node->connstr('postgres') =~ s{'}{''}gr;

query('CREATE PUBLICATION records FOR TABLE idempotency_store WITH (publish_via_partition_root)');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION records CONNECTION '$connection' PUBLICATION records");
$subscriber->wait_for_subscription_sync($node, 'records');
query(q{SELECT idem_complete('leased', '"done"', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'leased'), retention => '2 hours')});
$node->wait_for_catchup('records');
is($subscriber->safe_psql('postgres', $contents), query($contents), 'a subscriber has the same records in one table');
# a partition comes for records of the default one; a long response is stored out of line
query(q{BEGIN; SELECT idem_begin('moves ' || n) FROM generate_series(1, 100) n;
	SELECT idem_complete('moves ' || n, to_jsonb((SELECT string_agg(md5(n || ' ' || m), '') FROM generate_series(1, CASE n WHEN 1 THEN 1000 ELSE 1 END) m)),
		retention => '1 year') FROM generate_series(1, 100) n; COMMIT});
ok($node->poll_query_until('postgres', q{SELECT idem_make_partitions('idempotency_store', 'idempotency_store_default', ARRAY[now() + interval '300 days'], ARRAY[now() + interval '400 days'])}),
	'a partition is made');
is(query(q{SELECT p.state, count(*) FROM idempotency_store s JOIN pg_class c ON c.oid = s.tableoid JOIN idempotency_partitions p ON p.name = c.relname
	WHERE idempotency_key LIKE 'moves %' GROUP BY 1}), 'ahead|100', 'for records of the default one');
$node->wait_for_catchup('records');
is($subscriber->safe_psql('postgres', $contents), query($contents), 'the subscriber has them still');
query(q{SELECT idem_unpartition_store()});
is(query(q{SELECT count(*) FROM pg_publication_rel WHERE prrelid = 'idempotency_store'::regclass}), '1', 'the publication stays with the name');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION records');
query('DROP PUBLICATION records');
$subscriber->stop;

# ---- a standby ----

query(q{SELECT idem_partition_store('4 hours')});
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
query(q{BEGIN; SELECT idem_begin('for the standby'); SELECT idem_complete('for the standby', '7'); COMMIT});
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT outcome, response_payload FROM idem_lookup('for the standby')}), 'COMPLETED|7', 'a standby looks records up');
$standby->stop;

# ---- the collector ----

query('TRUNCATE idempotency_store');
query('SELECT idem_unpartition_store()');
query(q{ALTER SYSTEM SET idempotency.retention = '2s'});
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT current_setting('idempotency.retention') = '2s'}), 'new sessions have the setting');
query(q{SELECT idem_partition_store('1 second')});
my $last = query('SELECT max(range_end) FROM idempotency_partitions');
query(q{BEGIN; SELECT idem_begin('brief ' || n) FROM generate_series(1, 500) n; SELECT idem_complete('brief ' || n) FROM generate_series(1, 500) n; COMMIT});
is(query(q{SELECT count(DISTINCT tableoid) FROM idempotency_store}), '1', 'records that expire together are together');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idempotency_store'), 'the collector empties what is over');
ok($node->poll_query_until('postgres', "SELECT max(range_end) > '$last'::timestamptz + interval '2 s' FROM idempotency_partitions"), 'makes partitions ahead of time');
ok($node->poll_query_until('postgres', "SELECT min(range_end) > '$last' FROM idempotency_partitions"), 'and drops those that are over and empty');
is(query(q{SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname LIKE 'idempotency_store_2%'}), '0', 'without a dead row');
# A visit of the worker sweeps in many steps, and cares for the partitions in one of them.
query(q{ALTER SYSTEM SET idempotency.gc_batch_size = 10; ALTER SYSTEM SET track_functions = 'pl'});
$node->reload;
my $tended = q{SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'idem_tend_partitions'};
ok($node->poll_query_until('postgres', "SELECT ($tended) > 0"), 'the worker cares for the partitions');
my ($calls, $began) = (query($tended), time);
query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'rest ' || n, now() - interval '10 years', 'COMPLETED' FROM generate_series(1, 2000) n});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idempotency_store WHERE idempotency_key LIKE 'rest %'}), 'two hundred steps');
cmp_ok(query($tended) - $calls, '<', time - $began + 10, 'need no more care than there are visits');
query('DROP EXTENSION idempotency CASCADE');
is(query(q{SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency%'}), '0', 'DROP EXTENSION takes all partitions with it');
$node->stop;

done_testing();
