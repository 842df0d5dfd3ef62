# Faults at points that a test cannot reach from outside:
# at each point of src/base/fault.c an error, SIGKILL, and
# a wait while other sessions do everything that could harm.  The library is built
# again with these points; no other build contains them, which is tested, too.
#
# With IDEM_INJECTION_POINTS the faults come by the server's own injection points
# (test/injection/run), otherwise by a setting of this build.
use FindBin;
use Idempotency;

my @points = qw(begin-locked begin-decided taken-over end-checked tables-listed length-asked statement-locked count-entered sweep-read ring-read commit-visible);
my ($stage, $conf) = built_with('-DIDEM_FAULTS');

# The build of all other tests contains nothing of it.
sub traces ($directory)
{
	my ($library) = split /\n/, `find '$directory' -name idempotency.so`;
	my $code = slurp_file($library);

	return join ' ', grep { index($code, $_) >= 0 } @points,
	  qw(idempotency.fault fault_point);
}

is(scalar(split / /, traces($stage)), @points + 2, 'a build with faults has every point');
is(traces($ENV{IDEM_STAGE}), '', 'a build without has no trace of them');
is(`cd $FindBin::RealBin/../../src && grep -lr IDEM_FAULTS --include=*.[ch] . | sort`, "./base/fault.c\n./base/fault.h\n",
	'the flag is known to these files alone');

my $node = new_node('faults', conf => $conf . "restart_after_crash = on\n");

my $injected = $ENV{IDEM_INJECTION_POINTS};
my $held = $injected ? 'InjectionPoint' : 'Extension';    # what a session at a point waits for

# where its functions are found when the schema public is renamed
query('CREATE EXTENSION injection_points SCHEMA pg_catalog') if $injected;
query(<<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION work(r jsonb) RETURNS jsonb LANGUAGE sql AS
	$$INSERT INTO effect VALUES (r ->> 0) RETURNING r -> 0$$;
SQL
is(sqlstate($node, q{SET idempotency.fault = 'no-such:error'}), '22023', 'no point of that name');

# The client's script, which it may repeat.  A lease that shall run out is short.
my %script = (
	bound => <<'SQL',
BEGIN;
SELECT outcome = 'ACQUIRED' AS mine FROM idem_begin('%s', wait => '100 s') \gset
\if :mine
INSERT INTO effect VALUES ('%s');
SELECT idem_complete('%s', '"%s"');
\endif
COMMIT;
SQL
	leased => <<'SQL',
SELECT outcome = 'ACQUIRED' AS mine, fence FROM idem_begin('%s', lease => '10 ms', wait => '100 s') \gset
\if :mine
BEGIN;
INSERT INTO effect VALUES ('%s');
SELECT idem_complete('%s', '"%s"', fence => :fence);
COMMIT;
\endif
SQL
	called => <<'SQL',
SELECT idem_call('work(jsonb)', '%s', '["%s"]', wait => '100 s');
SQL
	batched => <<'SQL');
BEGIN;
SELECT outcome = 'ACQUIRED' AS mine FROM idem_begin_batch('{%s}') \gset
\if :mine
INSERT INTO effect VALUES ('%s');
SELECT idem_complete_batch('{%s}', ARRAY['"%s"'::jsonb]);
\endif
COMMIT;
SQL

sub script ($way, $key)
{
	return $script{$way} =~ s/%s/$key/gr;
}

# Effects and records.
sub state_of ($key)
{
	return query(<<"SQL");
SELECT concat_ws('|', (SELECT count(*) FROM effect WHERE key = '$key'),
	(SELECT concat_ws('|', status, response_payload) FROM idempotency_store WHERE idempotency_key = '$key'))
SQL
}

# I5: the locks of our classes, beside those that sessions hold on purpose
sub locks_left
{
	return query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid BETWEEN 7648 AND 7650});
}

# Arms a point, for the session that runs this.
sub arm ($point, $action)
{
	return "SET idempotency.fault = '$point:$action';" if !$injected;
	return "SELECT injection_points_set_local(); SELECT injection_points_attach('$point', '$action');";
}

# Runs a script into a fault, and waits until the server works again.  At a point
# where nothing may fail any more, an error crashes the server.
sub run_into ($point, $action, $sql)
{
	my %sign = (
		error => qr/fault at point "$point"|error triggered for injection point $point/,
		kill => qr/terminated by signal 9/);
	my $hits = count_in_log($node, $sign{$action});
	my $ready = qr/ready to accept connections/;
	my $starts = count_in_log($node, $ready);
	my $crashes = $action eq 'kill' || $point eq 'commit-visible';

	if ($injected && $action eq 'kill')
	{
		kill_at($point, $sql);
	}
	else
	{
		$node->psql('postgres', arm($point, $action) . "\n$sql", on_error_stop => 1,
			stderr => \my $stderr);
	}
	wait_until("the fault $point:$action has hit", sub { count_in_log($node, $sign{$action}) == $hits + 1 });
	# before the crash it may answer once more
	wait_until('the server has started again', sub { count_in_log($node, $ready) > $starts }) if $crashes;
	wait_until('the server answers', sub { $node->psql('postgres', 'SELECT 1') == 0 });
	return;
}

# An injection point cannot kill: the session is killed while it waits there.
sub kill_at ($point, $sql)
{
	my $session = session($node);
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	$session->query_until(qr/asking/, "\\echo asking\n" . arm($point, 'wait') . "\n$sql\n");
	wait_until("a session waits at $point", sub { query("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid") eq $point });
	kill 'KILL', $pid;
	$session->{run}->kill_kill;
	return;
}

# The client retries, as it must, until it gets an answer.
sub is_healed ($way, $key, $name)
{
	query(script($way, $key)) for 1 .. 2;
	is(state_of($key), qq{1|COMPLETED|"$key"}, "$name: once, after two more tries");
	is(locks_left(), '0', "$name: no lock is left");
	return;
}

for my $way ('bound', 'leased', 'called', 'batched')
{
	for my $point ('begin-locked', 'begin-decided', 'end-checked', 'commit-visible')
	{
		for my $action ('error', 'kill')
		{
			my $key = "$way-$point-$action";
			my $left = $point ne 'commit-visible' ? '0' : qq{1|COMPLETED|"$key"};

			# a lease is committed, and may be visible, before its operation ends
			$left = '0|PENDING' if $way eq 'leased' && $point =~ /end-checked|commit-visible/;
			run_into($point, $action, script($way, $key));
			is(state_of($key), $left, "$key: all or nothing");
			is_healed($way, $key, $key);
		}
	}
}

# A lease that ran out, and a takeover that meets the fault.
for my $action ('error', 'kill')
{
	my $key = "taken-over-$action";
	my $fence = query("SELECT fence FROM idem_begin('$key', lease => '1 ms')");

	run_into('taken-over', $action, script('leased', $key));
	is(state_of($key), '0|PENDING', "$key: the takeover left nothing");
	is(sqlstate($node, "SELECT idem_complete('$key', '\"$key\"', fence => $fence)"), '',
		"$key: the old fence is still the current one");
	is(state_of($key), qq{0|COMPLETED|"$key"}, "$key: and has ended it");
	is(locks_left(), '0', "$key: no lock is left");
}

for my $action ('error', 'kill')
{
	my $key = "sweep-read-$action";

	query("BEGIN; SELECT idem_begin('$key'); SELECT idem_complete('$key', retention => '1 ms'); COMMIT");
	run_into('sweep-read', $action, 'SELECT pg_sleep(0.01); SELECT idem_gc();');
	is(state_of($key), '0|COMPLETED', "$key: nothing was deleted");
	is(query('SELECT idem_gc()'), '1', "$key: the next sweep deletes it");
	is(locks_left(), '0', "$key: no lock is left");
}

# From here on sessions wait at a point while others go on.
my $gate = session($node);
my ($s1, $s2) = (session($node), session($node));
my %at;

# A session runs a statement as far as the point.
sub hold ($session, $point, $sql)
{
	ask($gate, 'SELECT pg_advisory_lock(428)') if !$injected;
	ask($session, arm($point, 'wait'));
	$at{$session} = $point;
	start_waiting($session, $sql, $held);
	return;
}

# The result of the statement that was started: its answer or its error.
sub outcome ($session)
{
	my $answer = $session->query('') =~ s/^\s+|\s+$//gr;

	return $session->{stderr} =~ /ERROR:\s+(.*)/ ? $1 : $answer;
}

sub error_of ($session, $sql)
{
	return complaint($session, $sql) =~ /ERROR:\s+(.*)/ ? $1 : '';
}

sub let_go ($session)
{
	my $answer;

	ask($gate, $injected ?
		"SELECT injection_points_detach('$at{$session}'), injection_points_wakeup('$at{$session}')" :
		'SELECT pg_advisory_unlock(428)');
	$answer = outcome($session);
	ask($session, 'RESET idempotency.fault');
	return $answer;
}

sub expired_lease ($key)
{
	return query("SELECT fence, pg_sleep(0.01) FROM idem_begin('$key', lease => '1 ms')") =~ s/\|.*//r;
}

sub expired_row ($key)
{
	query("BEGIN; SELECT idem_begin('$key');"
		  . " SELECT idem_complete('$key', retention => '1 ms'); COMMIT; SELECT pg_sleep(0.01)");
	return;
}

# A session with the lock excludes others, before and after its look-up.
for my $point ('begin-locked', 'begin-decided')
{
	my $key = "held-$point";

	ask($s1, 'BEGIN');
	hold($s1, $point, "SELECT outcome FROM idem_begin('$key')");
	is(ask($s2, "SELECT outcome FROM idem_begin('$key')"), 'IN_PROGRESS', "$key: others are kept out");
	is(let_go($s1), 'ACQUIRED', "$key: it is the owner");
	ask($s1, "SELECT idem_complete('$key', '1'); COMMIT");
	is(ask($s2, "SELECT response_payload FROM idem_begin('$key')"), '1', "$key: and others see its end");
}

# A writer that takes no lock comes between the look and the insert.
ask($s1, 'BEGIN');
hold($s1, 'begin-decided', q{SELECT outcome FROM idem_begin('raw')});
ask($s2, q{INSERT INTO idempotency_store (scope, idempotency_key, status, attempt, created_at, updated_at, expires_at)
	VALUES ('', 'raw', 'COMPLETED', 1, now(), now(), 'infinity')});
is(let_go($s1), 'ACQUIRED', 'a raw writer is not seen');
like(error_of($s1, q{SELECT idem_complete('raw')}), qr{^operation was stored concurrently}, 'but its row is not written over');
ask($s1, 'ROLLBACK');

# An old owner has compared its fence, and a new one comes.
{
	my $fence = expired_lease('ends');

	hold($s1, 'end-checked', "SELECT idem_complete('ends', '\"old\"', fence => $fence)");
	is(ask($s2, q{SELECT outcome FROM idem_begin('ends', lease => '1 hour')}), 'IN_PROGRESS',
		'no takeover while the old owner ends');
	let_go($s1);
	is(ask($s2, q{SELECT outcome, response_payload FROM idem_begin('ends', lease => '1 hour')}), 'COMPLETED|"old"',
		'the old owner has won');
}

# The other way round: a takeover is written, not committed, and the old owner ends.
{
	my $fence = expired_lease('taken');

	hold($s1, 'taken-over', q{SELECT attempt, taken_over FROM idem_begin('taken', lease => '1 hour')});
	start_waiting($s2, "SELECT idem_complete('taken', '\"old\"', fence => $fence)");
	is(let_go($s1), '2|t', 'the new owner has won');
	like(outcome($s2), qr/^lease of operation .* was lost/, 'and the old one gets an error');
	is(state_of('taken'), '0|PENDING', 'nothing of it was written');
}

# A sweep has locked an expired row, and its key is begun again.
{
	query(q{DELETE FROM idempotency_store});
	expired_row('swept');
	hold($s1, 'sweep-read', 'SELECT idem_gc()');
	start_waiting($s2, q{SELECT outcome, attempt FROM idem_begin('swept', lease => '1 hour')});
	is(let_go($s1), '1', 'the sweep deletes the row');
	is(outcome($s2), 'ACQUIRED|1', 'whose key is then acquired');
	is(state_of('swept'), '0|PENDING', 'and stays so');
	is(ask($s1, 'SELECT idem_gc()'), '0', 'for the next sweep, too');
}

# A commit is visible before its locks are free: at no moment a key is neither.
for my $way ('bound', 'called')
{
	my $key = "visible-$way";

	ask($s1, 'BEGIN');
	ask($s1, $way eq 'bound' ?
		qq{SELECT idem_begin('$key'), idem_complete('$key', '"$key"'); INSERT INTO effect VALUES ('$key')} :
		qq{SELECT idem_call('work(jsonb)', '$key', '["$key"]')});
	hold($s1, 'commit-visible', 'COMMIT');
	is(locks_left(), '1', "$key: the lock is held");
	is(ask($s2, "SELECT outcome, response_payload FROM idem_begin('$key')"), qq{COMPLETED|"$key"},
		"$key: others get the end already");
	is(state_of($key), qq{1|COMPLETED|"$key"}, "$key: with its effect");
	let_go($s1);
	is(locks_left(), '0', "$key: the lock is free");
}

# The schema is renamed after a table was locked and before a statement that names
# it is parsed: 40001, whether the old name is free or belongs to another schema.
for my $instead ('', 'CREATE SCHEMA public; CREATE TABLE public.idempotency_sweep (LIKE renamed.idempotency_sweep INCLUDING ALL);',
	'CREATE SCHEMA public; CREATE TABLE public.idempotency_sweep ();')
{
	my $stray = $instead =~ /LIKE/ ? 'a copy has its name' : $instead ? 'another table has its name' : 'its name is gone';

	hold($s1, 'statement-locked', 'SELECT idem_gc()');
	ask($s2, "ALTER SCHEMA public RENAME TO renamed; $instead");
	is(let_go($s1), 'schema of extension "idempotency" was renamed concurrently', "schema renamed, $stray: the statement is to be tried again");
	ask($s2, ($instead ? 'DROP SCHEMA public CASCADE; ' : '') . 'ALTER SCHEMA renamed RENAME TO public');
	is(ask($s1, 'SELECT idem_gc()'), '0', 'and then runs');
}

is(locks_left(), '0', 'no lock is left');
# only for an error after the commit the server itself logs a warning
is(count_in_log($node, qr/WARNING:/), count_in_log($node, qr/WARNING:  AbortTransaction while in COMMIT state/), 'no warning of ours');
is(count_in_log($node, qr/PANIC:/), scalar(keys %script), 'no panic but where an error comes after the commit');
$_->quit for $s1, $s2, $gate;

done_testing();
