# A ring of tables in a server's life: load while it is made,
# rotates and goes, dumps, a logical subscriber, a standby, the collector.
use Idempotency;
use IPC::Run;

my $node = new_node('ring_life', allows_streaming => 'logical',
	conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");
my $directory = PostgreSQL::Test::Utils::tempdir();

my $ready = q{SELECT count(*) > 0 AND every(range_start IS NOT NULL) FROM idempotency_partitions};

# ---- load while the ring is made, rotates and goes ----

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
for my $period ('4 hours', '1 hour')
{
	query("SELECT idem_partition_store('$period')");
	ok($node->poll_query_until('postgres', $ready), "a ring of $period is used under load");
	# a range that ends, with rows that live, and one that does not
	query(q{UPDATE idempotency_ring SET range_start = now() - interval '2 days', range_end = now() - interval '1 day'
		WHERE name IN ('idempotency_store_p1', 'idempotency_store_p2', 'idempotency_store_p7')});
	query('SELECT idem_unpartition_store()');
}
query(q{SELECT idem_partition_store('6 hours')});
ok($load->finish, 'a load of duplicates goes on') or diag $output;
my @latencies = sort { $a <=> $b } map { (split)[2] / 1000 } map { split /\n/, slurp_file($_) } glob "$directory/latency*";
cmp_ok(scalar @latencies, '>', 100, 'the latencies of the load are known');
diag sprintf 'milliseconds of a call: median %.1f, p99 %.1f, longest %.1f', map { $latencies[$_ * $#latencies] } 0.5, 0.99, 1;
is(query('SELECT count(*) FROM (SELECT FROM effect GROUP BY key HAVING count(*) > 1) twice'), '0', 'nothing took effect twice');
is(query('SELECT count(*) FROM effect e WHERE NOT EXISTS (SELECT FROM idempotency_store s WHERE s.idempotency_key = e.key::text AND s.status = $$COMPLETED$$)'),
	'0', 'every effect has its record');
is(query('SELECT count(*) - count(DISTINCT idempotency_key) FROM idempotency_store'), '0', 'and one only');
cmp_ok(query('SELECT count(*) FROM effect'), '>', 1000, 'there were effects');
query('CREATE EXTENSION amcheck');
is(query(q{SELECT count(*) FROM (SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indrelid
	WHERE h.inhparent = 'idempotency_store'::regclass) checked}),
	query('SELECT count(*) FROM idempotency_partitions'), 'amcheck finds nothing in the keys');

# ---- dump and restore, without an option ----

my $contents = q{SELECT md5(string_agg(s::text, E'\n' ORDER BY idempotency_key)) FROM idempotency_store s};
my $ring = q{SELECT string_agg(format('%s %s %s', name, range_start, range_end), ', ' ORDER BY name) FROM idempotency_partitions};
my $lease = query(q{SELECT fence FROM idem_begin('leased', lease => '1 hour')});

reconfigure($node, 'idempotency.gc_enabled' => 'off');
wait_until('the collector is off', sub { query('SHOW idempotency.gc_enabled') eq 'off' && query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency collector'}) eq '0' });
my $before = query($contents);
my $tables = query($ring);
my $dump;

for my $format ('plain', 'custom')
{
	$dump = dump_and_restore('postgres', $format, $format);
	is(query($contents, $format), $before, 'with all records');
	is(query($ring, $format), $tables, 'and the same ring');
	cmp_ok(query(q{SELECT fence FROM idem_begin('next', lease => '1 hour')}, $format), '>', $lease, 'fences go on');
	is(query(q{SELECT outcome FROM idem_begin('leased')}, $format), 'IN_PROGRESS', 'the lease runs');
}

# A part: one table of the ring, into a database whose ring has other ranges.
my $part = query(q{SELECT tableoid::regclass FROM idempotency_store WHERE idempotency_key = 'leased'});
create_database('part');
query(q{SELECT idem_partition_store('1 year')}, 'part');
query(q{SELECT idem_partition_store('6 hours'); UPDATE idempotency_ring SET range_start = now() - interval '2 days', range_end = now() - interval '1 day'}, 'part');
# under a slow load the tables of the rings before are still there, and the last ring has greater numbers than this one
query("CREATE TABLE $part (LIKE idempotency_store INCLUDING ALL) INHERITS (idempotency_store)", 'part') if query("SELECT to_regclass('$part') IS NULL", 'part') eq 't';
$node->command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '--table', $part, '-d', $node->connstr('part'), $dump ], 'pg_restore of one table');
is(query(q{SELECT outcome FROM idem_begin('leased')}, 'part'), 'IN_PROGRESS', 'its records are found');
query('SELECT idem_gc()', 'part') for 1 .. 3;
is(query(q{SELECT outcome FROM idem_begin('leased')}, 'part'), 'IN_PROGRESS', 'and stay, though their ranges are over');

# ---- logical replication, to the same ring ----

my $subscriber = new_node('subscriber');
my $connection = $node->connstr('postgres') =~ s{'}{''}gr;
my $published = join ', ', 'ONLY idempotency_store', split /\n/, query('SELECT name FROM idempotency_partitions ORDER BY 1');

query("CREATE PUBLICATION records FOR TABLE $published");
$subscriber->safe_psql('postgres', q{SELECT idem_partition_store('6 hours')});
$subscriber->safe_psql('postgres', 'CREATE TABLE ' . $_ . ' (LIKE idempotency_store INCLUDING ALL) INHERITS (idempotency_store)')
  for grep { $subscriber->safe_psql('postgres', "SELECT to_regclass('$_') IS NULL") eq 't' } split /\n/, query('SELECT name FROM idempotency_partitions');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION records CONNECTION '$connection' PUBLICATION records");
$subscriber->wait_for_subscription_sync($node, 'records');
query(q{SELECT idem_complete('leased', '"done"', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'leased'), retention => '2 hours')});
$node->wait_for_catchup('records');
is($subscriber->safe_psql('postgres', $contents), query($contents), 'a subscriber has the same records');
is($subscriber->safe_psql('postgres', q{SELECT outcome FROM idem_begin('leased')}), 'COMPLETED', 'and answers from them');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION records');
# its ranges are others, and a table that is over there has records that live
$subscriber->safe_psql('postgres', q{UPDATE idempotency_ring SET range_start = now() - interval '2 days', range_end = now() - interval '1 day'});
$subscriber->safe_psql('postgres', 'SELECT idem_gc()') for 1 .. 3;
is($subscriber->safe_psql('postgres', $contents), query($contents), 'its collection empties nothing that lives');
query('DROP PUBLICATION records');
$subscriber->stop;

# ---- a standby ----

my $standby = new_standby($node);
query(q{BEGIN; SELECT idem_begin('for the standby'); SELECT idem_complete('for the standby', '7'); COMMIT});
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT outcome, response_payload FROM idem_lookup('for the standby')}), 'COMPLETED|7', 'a standby looks records up');
$standby->stop;

# ---- the collector ----

reconfigure($node, 'idempotency.gc_enabled' => 'on', 'idempotency.retention' => '2s');
query('TRUNCATE idempotency_store');
query('SELECT idem_unpartition_store()');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idempotency_partitions'), 'the collector drops an empty ring');
query(q{SELECT idem_partition_store('1 second')});
ok($node->poll_query_until('postgres', $ready), 'and rotates a new one');
my $last = query('SELECT max(range_end) FROM idempotency_partitions');
query(q{BEGIN; SELECT idem_begin('brief ' || n) FROM generate_series(1, 500) n; SELECT idem_complete('brief ' || n) FROM generate_series(1, 500) n; COMMIT});
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idempotency_store'), 'it empties what is over');
ok($node->poll_query_until('postgres', "SELECT min(range_end) > '$last' FROM idempotency_partitions"), 'and gives ranges ahead of time');
is(query(q{SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname LIKE 'idempotency_store_p%'}), '0', 'without a dead row');
is(query(q{SELECT count(*) FROM idempotency_partitions}), '4', 'in the same tables');
is(sqlstate($node, 'DROP EXTENSION idempotency'), '2BP01', 'DROP EXTENSION says that there are tables of a ring');
query('DROP EXTENSION idempotency CASCADE');
is(query(q{SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency%'}), '0', 'with CASCADE it takes them along');
$node->stop;

done_testing();
