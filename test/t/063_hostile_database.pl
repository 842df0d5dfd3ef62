# The owner of one database cannot stop collection in another one, and databases
# that come and go leave no trace in the log.
use Idempotency;
use Collector;

my $node = new_node('hostile', conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");
my @stopped;

$Idempotency::patience = 60;

END { kill 'CONT', @stopped if @stopped }

sub collectors ($database, $what)
{
	return query(<<"SQL");
SELECT $what FROM pg_stat_activity WHERE backend_type = 'idempotency collector' AND datname = '$database'
SQL
}

sub times_ended ($database, $place)
{
	return count_in_log($node, qr/the worker in database "$database" took too long and was ended/, $place);
}

# A collector waits for an advisory lock, or for the lock of a database; in the
# latter case pg_stat_activity does not show it as a session yet.
sub waiting_collector ($locktype)
{
	return query(<<"SQL");
SELECT l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.locktype = '$locktype' AND coalesce(a.backend_type, 'idempotency collector') = 'idempotency collector'
SQL
}

# The collector stops in a trigger until the session lets it go on.
my $gate = <<'SQL';
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN old; END $$;
CREATE TRIGGER gate BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
SQL

# A session that holds the gate, and a collector that waits at it.
sub collector_at_gate ($database)
{
	my $session = session($node, $database);

	ask($session, 'SELECT pg_advisory_lock(1)');
	put($node, $database, 1);
	wait_until("a collector waits in $database", sub { waiting_collector('advisory') ne '' });
	return $session;
}

sub open_gate ($session)
{
	ask($session, 'SELECT pg_advisory_unlock(1)');
	$session->quit;
	return;
}

# The launcher visits them in this order.
query('CREATE DATABASE closed');
create_database('napping');
create_database('gated');
create_database('costly');
query('CREATE DATABASE twisted');
create_database('other');
$node->safe_psql('gated', $gate);
rounds_pass($node, 1, 'other');

# ---- one database against the others ----

# Its collector cannot connect, as it waits for the lock of the database.
my $start = -s $node->logfile;
my $began = time;
my $renaming = session($node);

ask($renaming, 'BEGIN');
ask($renaming, 'ALTER DATABASE closed RENAME TO opened');
soon('a collector waits for a database that is being renamed', sub { waiting_collector('object') ne '' });
put($node, 'other', 10);
is_collected('collected: other, while a database is being renamed', $node, 'other');

# Its collector waits for another table of the extension.
my $locking = session($node, 'gated');

ask($locking, 'BEGIN');
ask($locking, 'LOCK TABLE idempotency_sweep IN ACCESS EXCLUSIVE MODE');
soon('a collector waits for a locked table', sub { waiting_collector('relation') ne '' });
put($node, 'other', 10);
is_collected('collected: other, while a table of the extension is locked', $node, 'other');
soon('the collector at the lock was ended', sub { times_ended('gated', $start) > 0 });
ask($locking, 'ROLLBACK');
$locking->quit;

# A worker that sleeps in a trigger.
$node->safe_psql('napping', <<'SQL');
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN old; END $$;
CREATE TRIGGER nap BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION nap();
SQL
put($node, 'napping', 1);
soon('a collector sleeps in a trigger', sub { collectors('napping', 'pid') ne '' });
put($node, 'other', 10);
is_collected('collected: other, while a trigger sleeps', $node, 'other');
soon('the collector at the rename was ended', sub { times_ended('closed', $start) > 0 });
soon('the collector in the trigger was ended', sub { times_ended('napping', $start) > 0 });
rounds_pass($node, 12, 'other');
cmp_ok(times_ended($_, $start), '<=', 2 + log(time - $began) / log(2), "$_ is visited later and later")
  for qw(closed napping);

# Neither the cost settings of vacuum nor planner settings of the database count.
query("ALTER DATABASE costly SET $_")
  for 'vacuum_cost_page_hit = 10000', 'vacuum_cost_page_miss = 10000', 'vacuum_cost_page_dirty = 10000',
  'random_page_cost = 1e10', 'seq_page_cost = 0', 'enable_tidscan = off', 'jit_above_cost = 0', q{work_mem = '64kB'};
my $scans = q{SELECT seq_scan FROM pg_stat_all_tables WHERE relname = 'idempotency_store'};
my $scans_before = $node->safe_psql('costly', $scans);

put($node, 'costly', 50_000);
put($node, 'other', 10);
is_collected('collected: other, while the settings of another database make pages dear', $node, 'other');
soon('collected: costly, whatever its settings', sub { figure($node, 'collected_rows', 'costly') == 50_000 });
is($node->safe_psql('costly', $scans), $scans_before,
	'costly: the plan is not what its settings want');
is(times_ended('costly', $start), 0, 'costly: no visit was too long');

# Nor do settings that give the text of a statement another meaning.
my %as_text = (array_nulls => 'on', backslash_quote => 'safe_encoding', quote_all_identifiers => 'off', standard_conforming_strings => 'on', transform_null_equals => 'off');
# from 19 on it cannot be off
delete $as_text{standard_conforming_strings} if $node->pg_version->major >= 19;
my $names = join ', ', map { "'$_'" } sort keys %as_text;

query("ALTER DATABASE twisted SET $_ = " . ($as_text{$_} eq 'off' ? 'on' : 'off')) for sort keys %as_text;
$node->safe_psql('twisted', <<"SQL");
CREATE EXTENSION idempotency;
CREATE TABLE told (name text, value text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN INSERT INTO told SELECT name, current_setting(name) FROM unnest(ARRAY[$names]) name; RETURN old; END \$\$;
CREATE TRIGGER tell BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION tell();
SQL
put($node, 'twisted', 1);
is_collected('collected: twisted, whatever its settings make of text', $node, 'twisted');
is($node->safe_psql('twisted', q{SELECT string_agg(name || ' = ' || value, ', ' ORDER BY name) FROM told}),
	join(', ', map { "$_ = $as_text{$_}" } sort keys %as_text), 'text means what it means to the server');

is(sqlstate($node, 'DROP DATABASE napping'), '', 'DROP DATABASE, whatever the collector waits for');
ask($renaming, 'ROLLBACK');
$renaming->quit;

# ---- a worker that does not react ----

my $gatekeeper = collector_at_gate('gated');
my ($deaf) = collectors('gated', 'pid');

push @stopped, $deaf;
kill 'STOP', $deaf or die "cannot stop $deaf";
soon('a collector that does not react is left behind',
	sub { slurp_file($node->logfile, $start) =~ /the worker in database "gated" does not react; collection goes on without it/ });
put($node, 'other', 10);
is_collected('collected: other, while a collector does not react', $node, 'other');
ask($gatekeeper, 'SELECT pg_stat_force_next_flush()');

# Each visit is some transactions.
my $transactions = q{SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'gated'};
my $before_rounds = query($transactions);

rounds_pass($node, 8, 'other');
is(query($transactions), $before_rounds, 'it is not started twice side by side');
is(collectors('gated', 'count(*)'), 1, 'it is still there');

# The next launcher knows of it, too.
my $first = launcher($node);

query("SELECT pg_terminate_backend($first)");
soon('the launcher is restarted', sub { (launcher($node) || $first) ne $first });
put($node, 'other', 10);
is_collected('collected: other, by the next launcher', $node, 'other');
rounds_pass($node, 4, 'other');
is(query($transactions), $before_rounds, 'it is not started by the next launcher');

open_gate($gatekeeper);
kill 'CONT', $deaf;
soon('it ends once it can', sub { collectors('gated', "count(*) FILTER (WHERE pid = $deaf)") eq '0' });
is_collected('collected: gated, once the collector has gone', $node, 'gated');
is(trouble_of($node, $start), '', 'no trouble in the log');

# ---- databases that come and go ----

# A database is gone before its turn in the round comes.
query('CREATE DATABASE doomed');
rounds_pass($node, 1, 'other');
$start = -s $node->logfile;
$gatekeeper = collector_at_gate('gated');
query('DROP DATABASE doomed');
open_gate($gatekeeper);
rounds_pass($node, 2, 'other');
like(slurp_file($node->logfile, $start), qr/background worker "idempotency collector" \(PID \d+\) exited with exit code 1/,
	'a collector was started for a database that is gone');

# A database gets another name while its collector connects.
query('CREATE DATABASE before');
$renaming = session($node);
ask($renaming, 'BEGIN');
ask($renaming, 'ALTER DATABASE before RENAME TO after');
wait_until('a collector connects', sub { waiting_collector('object') ne '' });
ask($renaming, 'COMMIT');
$renaming->quit;
rounds_pass($node, 2, 'other');

# A collector is ended with its database.
$gatekeeper = collector_at_gate('gated');
is(sqlstate($node, 'DROP DATABASE gated WITH (FORCE)'), '', 'DROP DATABASE ... WITH (FORCE) while a collector works');
eval { $gatekeeper->quit };
rounds_pass($node, 2, 'other');

for my $n (1 .. 15)
{
	create_database("brief$n");
	query("DROP DATABASE brief$n" . ($n % 2 ? '' : ' WITH (FORCE)'));
}
rounds_pass($node, 1, 'other');
is(join("\n", grep { !/terminating connection due to administrator command/ } split /\n/, trouble_of($node, $start)), '',
	'databases that come and go leave no trouble in the log');

# If an administrator ends a worker, the log has the usual message.
create_database('watched');
$node->safe_psql('watched', $gate);
$gatekeeper = collector_at_gate('watched');
$start = -s $node->logfile;
query('SELECT pg_terminate_backend(' . collectors('watched', 'pid') . ')');
soon('a collector that an administrator ended is in the log', sub {
		slurp_file($node->logfile, $start) =~ /FATAL:  terminating background worker "idempotency collector" due to administrator command/ });
open_gate($gatekeeper);
is_collected('collected: watched, after an administrator ended a collector', $node, 'watched');

# A launcher that waits for a collector notices a shutdown, also of itself
# alone, and the postmaster's death.  It does not sleep until the next round first.
$gatekeeper = collector_at_gate('watched');
push @stopped, collectors('watched', 'pid');
kill 'STOP', $stopped[-1] or die "cannot stop $stopped[-1]";
$first = launcher($node);
reconfigure($node, 'idempotency.gc_interval' => 3600);
is(query("SELECT pg_terminate_backend($first, 20000)"), 't', 'it does not wait for one that does not react');
kill 'CONT', $stopped[-1];
open_gate($gatekeeper);
reconfigure($node, 'idempotency.gc_interval' => 1);
soon('the launcher is there again', sub { (launcher($node) || $first) ne $first });

$gatekeeper = collector_at_gate('watched');
$first = launcher($node);
kill_server($node);
soon('it ends with the postmaster', sub { !kill 0, $first });
eval { $gatekeeper->quit };
start_again($node);

$gatekeeper = collector_at_gate('watched');
$node->stop('fast');
pass('a fast shutdown does not wait for a collector');
eval { $gatekeeper->quit };

done_testing();
