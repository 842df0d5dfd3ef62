# Many clients and few keys, at every isolation level (I1, I3).
use Idempotency;
use IPC::Run;
use Time::HiRes qw(time);

my $node = new_node('concurrency', conf => 'max_connections = 250');
my $directory = PostgreSQL::Test::Utils::tempdir();

query(<<'SQL');
CREATE TABLE effect (run text, key int);
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS
	$$INSERT INTO effect VALUES (request->>'run', (request->>'key')::int) RETURNING to_jsonb(key)$$;
SQL

sub start_pgbench ($name, $script, @options)
{
	my $bench = { output => '', started => time };

	append_to_file("$directory/$name.sql", $script);
	$bench->{run} = IPC::Run::start(
		[ 'pgbench', '-n', '-f', "$directory/$name.sql", @options, $node->connstr('postgres') ],
		'>&', \$bench->{output}, IPC::Run::timeout($Idempotency::patience));
	return $bench;
}

# The report of pgbench, and whether it succeeded.
sub finish_pgbench ($bench)
{
	return $bench->{run}->finish ? $bench->{output} : "failed: $bench->{output}";
}

# How the work is done: with begin and complete, or in one call.
sub script_of ($run, $way)
{
	return <<"SQL" if $way eq 'idem_call';
\\set key random(1, 40)
SELECT outcome FROM idem_call('handler(jsonb)', '$run ' || :key,
	jsonb_build_object('run', '$run', 'key', :key), wait => '100s');
SQL
	return <<"SQL";
\\set key random(1, 40)
BEGIN ISOLATION LEVEL $way;
SELECT outcome = 'ACQUIRED' AS mine FROM idem_begin('$run ' || :key, wait => '100s') \\gset
\\if :mine
INSERT INTO effect VALUES ('$run', :key);
SELECT idem_complete('$run ' || :key, to_jsonb(:key));
\\endif
COMMIT;
SQL
}

# One session owns all keys when the clients arrive, and commits only when every
# client waits.  So each of them has met a duplicate, and at the higher levels
# each has a snapshot that is older than the record: it must get 40001, retry,
# and succeed.
for my $way ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE', 'idem_call')
{
	my $run = lc $way =~ s/ /_/r;
	my $clients = 8;
	my $owner = session($node);
	my ($bench, $output);

	ask($owner, 'BEGIN');
	ask($owner, "SELECT idem_begin('$run ' || i) FROM generate_series(1, 20) i");
	$bench = start_pgbench($run, script_of($run, $way) =~ s/random\(1, 40\)/random(1, 20)/r,
		'-c', $clients, '-t', 1, '--max-tries', 100);
	wait_until('all clients wait', sub { locks_waiting($node) == $clients });
	ask($owner, "INSERT INTO effect SELECT '$run', i FROM generate_series(1, 20) i");
	ask($owner, "SELECT idem_complete('$run ' || i, to_jsonb(i)) FROM generate_series(1, 20) i");
	ask($owner, 'COMMIT');
	$owner->quit;
	$output = finish_pgbench($bench);
	like($output, qr/actually processed: $clients\/$clients/, "$way: every client got through");
	if ($way =~ /REPEATABLE|SERIALIZABLE/)
	{
		like($output, qr/transactions retried: $clients \(/, "$way: and every one had to try again");
	}

	# Then in any order, with keys that are new.
	$output = finish_pgbench(start_pgbench("$run-more", script_of($run, $way),
			'-c', $clients, '-t', 100, '--max-tries', 1000));
	like($output, qr/actually processed: 800\/800/, "$way: duplicates among many clients");
	is(query(<<"SQL"), '40|40|40', "$way: each effect once, with its record");
SELECT count(*), count(DISTINCT key),
	(SELECT count(*) FROM idempotency_store s WHERE s.status = 'COMPLETED'
		AND s.idempotency_key = '$run ' || (s.response_payload #>> '{}'))
FROM effect WHERE run = '$run'
SQL
	is(query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', "$way: no lock is left");
}

# 200 sessions wait for one key.  The owner commits, or rolls back and one of
# them runs the handler: all get their answer soon, from one effect.  The time
# limit notices a hang, it does not measure.
for my $end ('COMMIT', 'ROLLBACK')
{
	my $clients = 200;
	my $owner = session($node);
	my ($bench, $woken, $output);

	ask($owner, 'BEGIN');
	ask($owner, "SELECT idem_begin('hot $end')");
	$bench = start_pgbench("hot-$end", <<"SQL", '-c', $clients, '-t', 1, '-j', 2);
SELECT (1 / (outcome = 'COMPLETED' AND response_payload = '7')::int) FROM idem_call('handler(jsonb)',
	'hot $end', '{"run": "hot $end", "key": 7}', wait => '100s');
SQL
	wait_until('all sessions wait', sub { locks_waiting($node) == $clients });
	ask($owner, "INSERT INTO effect VALUES ('hot $end', 7)");
	ask($owner, "SELECT idem_complete('hot $end', '7')");
	$woken = time;
	ask($owner, $end);
	$output = finish_pgbench($bench);
	$woken = time - $woken;
	$owner->quit;
	like($output, qr/actually processed: $clients\/$clients/, "$clients waiters, $end: all have the answer");
	cmp_ok($woken, '<', 60, "$clients waiters, $end: soon");
	note "after $woken s";
	is(query("SELECT count(*) FROM effect WHERE run = 'hot $end'"),
		'1', "$clients waiters, $end: one effect");
}

# The end of a lease wakes a waiter.  Without that it would look again by itself,
# after a second: eight times over, far beyond the bound.
{
	my ($owner, $waiter) = (session($node), session($node));
	my $spent = 0;

	for my $round (1 .. 8)
	{
		my $fence = ask($owner, "SELECT fence FROM idem_begin('lease $round', lease => '1 hour')");
		my $ended;

		start_waiting($waiter, "SELECT 'told ' || outcome FROM idem_begin('lease $round', wait => '100s')", 'Extension');
		$ended = time;
		ask($owner, "SELECT idem_complete('lease $round', fence => $fence)");
		$waiter->query_until(qr/told COMPLETED/, '');
		$spent += time - $ended;
	}
	cmp_ok($spent, '<', 4, 'the end of a lease wakes a waiter');
	note "after $spent s";
	$_->quit for $owner, $waiter;
}

# Other leases that end wake a waiter, too: it looks again, and needs no more memory.
{
	my $waiter = session($node);
	my $pid = ask($waiter, 'SELECT pg_backend_pid()');
	my $used = sub {
		my ($from, $bytes) = -s $node->logfile;

		query("SELECT pg_log_backend_memory_contexts($pid)");
		wait_until('a session shows its memory', sub { ($bytes) = slurp_file($node->logfile, $from) =~ /\[$pid\].*Grand total: .* (\d+) used/ });
		return $bytes;
	};
	my $before;

	query(q{SELECT idem_progress(o, (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 50) n)) FROM idem_begin('patient', lease => '1 hour') o});
	start_waiting($waiter, "SELECT idem_begin('patient', wait => '100s')", 'Extension');
	$before = $used->();
	query(q{DO $$ BEGIN FOR n IN 1 .. 10000 LOOP PERFORM idem_release(idem_begin('other ' || n, lease => '1 hour')); COMMIT; END LOOP; END $$});
	cmp_ok($used->() - $before, '<', 100_000, 'a waiter keeps nothing of what it has seen');
	query(q{SELECT idem_complete('patient', fence => fence) FROM idempotency_store WHERE idempotency_key = 'patient'});
	$waiter->quit;
}

done_testing();
