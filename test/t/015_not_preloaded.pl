# Waiting for a lease without preloading: no session wakes the waiter, it looks
# again by itself. And what SQL functions do in a session that has
# not loaded the library yet.
use Idempotency;
use Time::HiRes qw(time);

my $node = new_node('not_preloaded');

$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
is(query('SHOW shared_preload_libraries'), '', 'not preloaded');

# A session that waits for the lease of another session; pg_stat_activity shows it.
sub waiter ($sql)
{
	my $session = session($node);
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	$session->query_until(qr/started/, "\\echo started\n$sql\n");
	wait_until('it waits', sub {
		query("SELECT state = 'active' AND wait_event_type IN ('Extension', 'IPC', 'Timeout')
			FROM pg_stat_activity WHERE pid = $pid") eq 't' });
	return $session;
}

sub fence ($key)
{
	return query("SELECT fence FROM idem_begin('$key', lease => '1 hour')");
}

# The output of a waiter when it is done; the next query comes after it.
sub answer ($session)
{
	my $answer = $session->query('SELECT 1');

	return $answer =~ s/\n?1$//r;
}

my $fence = fence('ends');
my $waiter = waiter(q{SELECT outcome, response_payload FROM idem_begin('ends', wait => '100 s');});

query("SELECT idem_complete('ends', '42', fence => $fence)");
is(answer($waiter), 'COMPLETED|42', 'the end of a lease is seen');

$fence = fence('released');
$waiter = waiter(q{BEGIN; SELECT outcome, attempt FROM idem_begin('released', wait => '100 s');});
query("SELECT idem_release('released', fence => $fence)");
is(answer($waiter), 'ACQUIRED|1', 'a lease that was given up is acquired');

query(q{SELECT idem_begin('runs out', lease => '1 s')});
is(query(q{BEGIN; SELECT outcome, taken_over FROM idem_begin('runs out', wait => '100 s'); ROLLBACK}),
	'ACQUIRED|t', 'a lease that runs out is taken over');

fence('stays');
my $start = time;
is(query(q{SELECT outcome, retry_after > '59 minutes' FROM idem_begin('stays', wait => '500 ms')}),
	'IN_PROGRESS|t', 'the time runs out');
cmp_ok(time - $start, '>=', 0.5, 'but not before');
is(sqlstate($node, q{SET statement_timeout = '200 ms'; SELECT idem_begin('stays', wait => '100 s')}),
	'57014', 'a wait can be cancelled');
is(query(q{SELECT count(*) FROM idempotency_stats WHERE acquired IS NOT NULL}), 0, 'nothing is counted');

$waiter->query('ROLLBACK');
# A session of its own for each: none has called a function of the library before.
# Of a setting of the transaction that nobody knows yet, an empty value is left.
my $local = q{BEGIN; SET LOCAL idempotency.retention = '2 h'; COMMIT;};
is(sqlstate($node, "$local SELECT idem_partition_store('4 hours')"), '', 'the store gets a ring by the first call of a session');
is(query(q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state) FROM idempotency_partitions}),
	'waiting', 'its tables can be looked at');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE state = 'waiting'}),
	query(q{SELECT idem_fingerprint('1') IS NOT NULL AS loaded \gset
		SELECT count(*) FROM idempotency_partitions WHERE state = 'waiting'}), 'it is the same with the library');
is(sqlstate($node, q{SELECT idem_gc()}), '', 'the ring is rotated');
is(query(q{SELECT count(*) > 1 FROM idempotency_partitions WHERE range_start IS NOT NULL}), 't', 'and used');
is(sqlstate($node, "$local SELECT count(state) FROM idempotency_partitions"), '', 'the states of its tables are known');

# A parallel query is the first to call a function of the library. There the server sets no parameter.
query(q{CREATE FUNCTION hash(request jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN idem_fingerprint(request); END';
	CREATE TABLE many AS SELECT to_jsonb(i) AS request FROM generate_series(1, 1000) i; ANALYZE many});

sub in_parallel ($setting)
{
	return "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; "
	  . "SET $setting; SELECT count(hash(request)) FROM many";
}

my $mine = q{SET idempotency.retention = '7d';};
like(($node->psql('postgres', $mine . in_parallel('max_parallel_workers = 0'),
	connstr => $node->connstr('postgres') . q{ options='-c idempotency.gc_enabled='}))[2],
	qr/while "idempotency.retention" is set/, 'the leader does not lose a setting');
my (undef, $counted, $complaints) = $node->psql('postgres', $mine . in_parallel('parallel_leader_participation = off'));
is($counted . $complaints, '1000', 'a worker needs none');
$node->append_conf('postgresql.conf', q{idempotency.seal_key_file = 'keys'});
$node->reload;
like(($node->psql('postgres', in_parallel('max_parallel_workers = 0'),
	connstr => $node->connstr('postgres') . q{ options='-c idempotency.gc_enabled= -c idempotency.seal_key_file='}))[2],
	qr/while "idempotency.*" is set/, 'nor one of the server that the connection hides');

done_testing();
