# Crashes: of a backend anywhere in an operation, and of the whole server.
# Record and effect are there together or not at all (I3), and what was
# acknowledged is there (I2).
use Idempotency;
use IPC::Run;

my $node = new_node('crash', conf => <<'CONF');
restart_after_crash = on
wal_writer_delay = 10s
full_page_writes = off
CONF

query('CREATE TABLE effect (key text)');

my @steps = (
	[ begin => q{SELECT outcome FROM idem_begin('%s')} ],
	[ write => q{INSERT INTO effect VALUES ('%s')} ],
	[ complete => q{SELECT idem_complete('%s', '"done"')} ],
	[ commit => 'COMMIT' ]);

sub statement ($step, $key)
{
	return $step->[1] =~ s/%s/$key/r;
}

# Effects, records, and the answer of the next begin.
sub state_of ($key)
{
	return query(<<"SQL");
BEGIN;
SELECT concat_ws('|', (SELECT count(*) FROM effect WHERE key = '$key'),
	(SELECT count(*) FROM idempotency_store WHERE idempotency_key = '$key'),
	outcome, response_payload) FROM idem_begin('$key');
ROLLBACK;
SQL
}

# Runs an operation as far as that step; returns the session.
sub go_to ($key, $last)
{
	my $session = session($node);

	ask($session, 'BEGIN');
	for my $step (@steps)
	{
		ask($session, statement($step, $key));
		last if $step->[0] eq $last;
	}
	return $session;
}

# Kills the backend of a session; the server then restarts by itself.
sub kill_backend ($session)
{
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	kill 'KILL', $pid;
	wait_until('the crash was noticed',
		sub { slurp_file($node->logfile) =~ /PID $pid\) was terminated by signal 9/ });
	$session->{run}->kill_kill;
	wait_until('the server has recovered',
		sub { $node->psql('postgres', 'SELECT 1') == 0 });
}

# kill -9 hits a backend between begin, write, end and commit.
for my $case (
	[ begin => '0|0|ACQUIRED' ],
	[ write => '0|0|ACQUIRED' ],
	[ complete => '0|0|ACQUIRED' ],
	[ commit => '1|1|COMPLETED|"done"' ])
{
	my ($step, $expected) = @$case;

	kill_backend(go_to("killed-$step", $step));
	is(state_of("killed-$step"), $expected, "backend killed after $step");
}

# A lease belongs to no session: its owner may die, and any session with the
# fence can end it.
{
	my $session = session($node);
	my $fence = ask($session, q{SELECT fence FROM idem_begin('leased', lease => '1 hour')});

	kill_backend($session);
	is(state_of('leased'), '0|1|IN_PROGRESS', 'backend killed after a leased begin');
	query("SELECT idem_complete('leased', fence => $fence)");
	is(state_of('leased'), '0|1|COMPLETED', 'its fence still ends the lease');
}

# kill -9 hits the postmaster, or the server stops immediately.
sub crash ($how)
{
	$how eq 'SIGKILL' ? kill_server($node) : $node->stop('immediate');
}

# One operation is acknowledged, another one complete but not committed.
for my $how ('SIGKILL', 'immediate')
{
	my $open;

	go_to("$how-acknowledged", 'commit')->quit;
	$open = go_to("$how-open", 'complete');
	crash($how);
	$open->{run}->kill_kill;
	start_again($node);
	is(state_of("$how-acknowledged"), '1|1|COMPLETED|"done"', "$how: acknowledged");
	is(state_of("$how-open"), '0|0|ACQUIRED', "$how: not committed");
}

# In the middle of a stream of commits.  A session prints a key when its COMMIT
# has returned; the server goes down when enough keys are printed.
for my $how ('SIGKILL', 'immediate')
{
	my $count = 20000;
	my $script = join '', map
	{
		my $key = "$how-$_";

		join("\n", map { "$_;" } 'BEGIN', map { statement($_, $key) } @steps)
		  . "\n\\echo said $key\n"
	} 1 .. $count;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script.sql';
	my ($stdout, $stderr) = ('', '');
	my ($run, @said);

	append_to_file($file, $script);
	$run = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $file ],
		'>', \$stdout, '2>', \$stderr, IPC::Run::timeout($Idempotency::patience));
	$run->pump until (() = $stdout =~ /^said/mg) >= 200;
	crash($how);
	$run->finish;
	start_again($node);

	@said = $stdout =~ /^said (\S+)$/mg;
	cmp_ok(scalar(@said), '<', $count, "$how: in the middle of it");
	is(query('SELECT count(*) FROM idempotency_store'
			. ' WHERE idempotency_key IN (' . join(', ', map { "'$_'" } @said) . ')'),
		scalar(@said), "$how: what was acknowledged is there");
	is(query(<<"SQL"), '0', "$how: record and effect agree");
SELECT count(*) FROM (SELECT key FROM effect WHERE key ~ '^$how-[0-9]+\$') e
FULL JOIN (SELECT idempotency_key FROM idempotency_store WHERE idempotency_key ~ '^$how-[0-9]+\$') s
ON s.idempotency_key = e.key WHERE e.key IS NULL OR s.idempotency_key IS NULL
SQL
}

# Under synchronous_commit = off a COMMIT returns before its WAL has
# left shared memory.  Here the WAL writer is slow, there are no page images, and
# a new segment keeps the few records in one page, so that nothing else flushes
# them: the plain insert that serves as a control is lost every time.
sub crash_after ($how, $sql)
{
	my $answer;

	query('SELECT pg_switch_wal()');
	query(q{INSERT INTO effect VALUES ('synchronous')});
	$answer = query("SET synchronous_commit = off; $sql");
	crash($how);
	start_again($node);
	return $answer;
}

sub stored ($key)
{
	return query("SELECT status FROM idempotency_store WHERE idempotency_key = '$key'");
}

my $fence;

for my $how ('SIGKILL', 'immediate')
{
	crash_after($how, q{INSERT INTO effect VALUES ('control')});
	is(state_of('control'), '0|0|ACQUIRED', "$how: an asynchronous commit is lost here");
}

crash_after('immediate', q{BEGIN; SELECT idem_begin('async'); INSERT INTO effect VALUES ('async');}
	  . q{ SELECT idem_complete('async'); COMMIT});
is(state_of('async'), '0|0|ACQUIRED', 'so is a transaction-bound operation, whole');

$fence = crash_after('SIGKILL', q{SELECT fence FROM idem_begin('k', lease => '1 hour')});
is(stored('k'), 'PENDING', 'a leased begin is durable');
cmp_ok(query(q{SELECT fence FROM idem_begin('l', lease => '1 hour')}),
	'>', $fence, 'and its fence is not given out again');

crash_after('immediate', "SELECT idem_extend('k', '10 hours', fence => $fence)");
is(query(q{SELECT lease_expires_at > now() + '9 hours' FROM idempotency_store WHERE idempotency_key = 'k'}),
	't', 'an extended lease is durable');

crash_after('immediate', "SELECT idem_complete('k', fence => $fence)");
is(stored('k'), 'COMPLETED', 'its end is durable');

$fence = query(q{SELECT fence FROM idem_begin('m', lease => '1 hour')});
crash_after('immediate', "SELECT idem_release('m', fence => $fence)");
is(stored('m'), '', 'a release is durable');

query(q{SELECT idem_begin('n', lease => '1 us')});
is(crash_after('immediate', q{SELECT outcome FROM idem_begin('n', max_attempts => 1)}),
	'FAILED', 'an operation whose attempts are exhausted has failed');
is(stored('n'), 'FAILED', 'and that is durable');

done_testing();
