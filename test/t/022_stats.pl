# Figures: each counter counts every event once, per database, and the view of
# operations in flight shows them.
use Idempotency;

my $node = new_node('stats', conf => 'max_prepared_transactions = 10');
my @counters = qw(acquired replayed_completed replayed_failed in_progress mismatches taken_over completed failed
  released forgotten leases_lost commits_refused waits collected_rows sweeps);

query('CREATE DATABASE other');
$node->safe_psql('other', <<'SQL');
CREATE EXTENSION idempotency;
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SQL

# Every counter of a database, as read in another one.
sub figures ($database)
{
	my %figure;

	@figure{@counters} = split /\|/, query('SELECT ' . join(', ', map { "coalesce($_, 0)" } @counters)
		  . " FROM idempotency_stats WHERE datname = '$database'"), -1;
	return \%figure;
}

# The counters that a script has changed, by how much, sorted by name.
sub moved ($script, $database = 'other')
{
	my ($before, $after);

	$before = figures($database);
	$node->psql($database, $script, on_error_stop => 0, stderr => \my $ignored);
	$after = figures($database);
	return join ' ', map { my $by = ($after->{$_} || 0) - ($before->{$_} || 0); $by ? "$_ $by" : () } sort @counters;
}

sub let_expire
{
	return $node->safe_psql('other', q{UPDATE idempotency_store SET expires_at = now() - interval '1 day',
		lease_expires_at = NULL, status = 'COMPLETED'});
}

for my $case (
	[ 'complete', q{BEGIN; SELECT idem_begin('c', request => '1'); SELECT idem_complete('c', '"secret"'); COMMIT},
		'acquired 1 completed 1' ],
	[ 'replay', q{SELECT idem_begin('c')}, 'replayed_completed 1' ],
	[ 'mismatch', q{SELECT idem_begin('c', request => '2')}, 'mismatches 1' ],
	[ 'fail', q{BEGIN; SELECT idem_begin('f'); SELECT idem_fail('f', '"secret"'); COMMIT}, 'acquired 1 failed 1' ],
	[ 'replay of a failure', q{SELECT idem_begin('f') FROM generate_series(1, 3)}, 'replayed_failed 3' ],
	[ 'lease', q{SELECT idem_begin('l', lease => '1 hour')}, 'acquired 1' ],
	[ 'in progress', q{SELECT idem_begin('l'), idem_begin('l')}, 'in_progress 2' ],
	[ 'in progress here', q{BEGIN; SELECT idem_begin('h'); SELECT idem_begin('h'); ROLLBACK}, 'acquired 1 in_progress 1' ],
	[ 'wait', q{SELECT idem_begin('l', wait => '50 ms')}, 'in_progress 1 waits 1' ],
	[ 'no need to wait', q{SELECT idem_begin('c', wait => '1 hour')}, 'replayed_completed 1' ],
	[ 'wait until it can be taken over',
		q{SELECT idem_begin('w', lease => '2 s'); SELECT idem_begin('w', lease => '1 us', wait => '1 hour')},
		'acquired 2 taken_over 1 waits 1' ],
	[ 'take over', q{SELECT idem_begin('w', lease => '1 hour')}, 'acquired 1 taken_over 1' ],
	[ 'lost: complete', q{SELECT idem_complete('w', fence => 1)}, 'leases_lost 1' ],
	[ 'lost: extend', q{SELECT idem_extend('w', '1 s', fence => 1)}, 'leases_lost 1' ],
	[ 'lost: release', q{SELECT idem_release('w', fence => 1)}, '' ],
	[ 'end of a lease', q{SELECT idem_complete('l', fence => fence) FROM idempotency_store WHERE idempotency_key = 'l'},
		'completed 1' ],
	[ 'release', q{SELECT idem_release('w', fence => fence) FROM idempotency_store WHERE idempotency_key = 'w'},
		'released 1' ],
	[ 'forget', q{SELECT idem_forget('f'), idem_forget('f')}, 'forgotten 1' ],
	[ 'release here', q{BEGIN; SELECT idem_begin('r'); SELECT idem_release('r'); COMMIT}, 'acquired 1 released 1' ],
	[ 'refused commit', q{SELECT idem_begin('u')}, 'acquired 1 commits_refused 1' ],
	[ 'not owned', q{SELECT idem_complete('u')}, '' ],
	[ 'rolled back: calls are counted', q{BEGIN; SELECT idem_begin('u'); SELECT idem_complete('u'); ROLLBACK},
		'acquired 1 completed 1' ],
	[ 'call', q{SELECT idem_call('public.handler(jsonb)', 'call', '{}'), idem_call('public.handler(jsonb)', 'call', '{}')},
		'acquired 1 completed 1 replayed_completed 1' ],
	[ 'call that raises', q{CREATE FUNCTION raise(jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END';
		SELECT idem_call('raise(jsonb)', 'raise')}, 'acquired 1 failed 1' ],
	[ 'batch', q{BEGIN; SELECT idem_begin_batch(ARRAY['b1', 'b2', 'b1', 'c']); SELECT idem_complete_batch(ARRAY['b1', 'b2']); COMMIT},
		'acquired 2 completed 2 in_progress 1 replayed_completed 1' ],
	[ 'bad argument', q{SELECT idem_begin('')}, '' ],
	[ 'lookup, lock, stream', q{SELECT idem_lookup('c'), idem_lock(ARRAY['a']), idem_advance('s', 1)}, '' ],
	[ 'sweep of nothing', q{SELECT idem_gc()}, 'sweeps 1' ])
{
	is(moved($case->[1]), $case->[2], $case->[0]);
}

my $rows = $node->safe_psql('other', 'SELECT count(*) FROM idempotency_store');

let_expire();
is(moved('SELECT idem_gc(2)'), 'collected_rows 2', 'a sweep that is not at its end yet');
is($node->safe_psql('other', q{SELECT last_sweep_at > now() - interval '1 minute', last_sweep_duration BETWEEN '0' AND '1 minute'
	FROM idempotency_stats WHERE datname = 'other'}), 't|t', 'sweep: when, how long');
is(moved('SELECT idem_gc()'), 'collected_rows ' . ($rows - 2) . ' sweeps 1', 'and then is');
is($node->safe_psql('other', q{SELECT backlog_rows FROM idempotency_stats WHERE datname = 'other'}), 0, 'sweep: nothing is left');

# A sweep reads the whole store once, in as many calls as necessary: the figures
# are those of the whole sweep.
$node->safe_psql('other', q{INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	SELECT 'page-' || n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 1000) n});
my $before_sweep = q{SELECT last_sweep_at FROM idempotency_stats WHERE datname = 'other'};
my $last_sweep = $node->safe_psql('other', $before_sweep);

is(moved('SELECT idem_gc(100)'), 'collected_rows 100', "part $_ of a sweep") for 1 .. 3;
is($node->safe_psql('other', $before_sweep), $last_sweep, 'the last sweep is still the one before');
$node->safe_psql('other', q{UPDATE idempotency_sweep SET began_at = began_at - interval '1 hour'});
is(moved('SELECT idem_gc(10000)'), 'collected_rows 700 sweeps 1', 'the end of a sweep');
is($node->safe_psql('other', q{SELECT date_trunc('hour', last_sweep_duration), trunc(last_sweep_seconds / 3600) FROM idempotency_stats WHERE datname = 'other'}),
	'01:00:00|1', 'it took from its beginning to its end');
is($node->safe_psql('other', q{SELECT wait_time BETWEEN '50 ms' AND '1 minute' FROM idempotency_stats WHERE datname = 'other'}),
	't', 'how long was waited');
is($node->safe_psql('other', q{SELECT wait_seconds = extract(epoch FROM wait_time), last_sweep_seconds = extract(epoch FROM last_sweep_duration)
	FROM idempotency_stats WHERE datname = 'other'}), 't|t', 'the same as numbers');

# The estimate of the backlog is between half of it and twice as much.
$node->safe_psql('other', q{INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	SELECT n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 100000) n});
for my $removed (1000, 50000, 90000)
{
	my $left = 100000 - $removed;

	$node->safe_psql('other', 'SELECT idem_gc(1000)')
	  while $node->safe_psql('other', 'SELECT count(*) FROM idempotency_store') > $left;
	my $estimate = $node->safe_psql('other', q{SELECT backlog_rows FROM idempotency_stats WHERE datname = 'other'});
	ok($estimate >= $left / 2 && $estimate <= $left * 2, "backlog of $left rows: estimated $estimate");
}

# Two databases have separate counters, and a reset of one leaves the other.
my $other = join ' ', map { figures('other')->{$_} } @counters;

is(moved(q{BEGIN; SELECT idem_begin('k'); SELECT idem_complete('k'); COMMIT}, 'postgres'), 'acquired 1 completed 1',
	'another database');
is(join(' ', map { figures('other')->{$_} } @counters), $other, 'does not move the figures of the first');
$node->safe_psql('other', 'SELECT idem_stats_reset()');
is(join('', values %{ figures('other') }), '0' x @counters, 'reset');
is(figures('postgres')->{acquired}, 1, 'reset of one database only');

# In flight.
my $in_flight = <<'SQL';
SELECT kind, scope, idempotency_key, attempt, age BETWEEN '0' AND '1 minute', lease_left > '59 minutes', pid, gid
FROM idempotency_in_flight ORDER BY kind COLLATE "C"
SQL
my $session = session($node);
my $pid = ask($session, 'SELECT pg_backend_pid()');

query('TRUNCATE idempotency_store');
query(q{SELECT idem_begin('leased', scope => 's', request => '"secret"', lease => '1 hour')});
ask($session, 'BEGIN');
ask($session, q{SELECT idem_begin('bound', request => '"secret"')});
query(<<'SQL');
BEGIN;
SAVEPOINT s;
SELECT idem_begin('prepared', request => '"secret"');
SELECT idem_complete('prepared', '"secret"');
RELEASE s;
PREPARE TRANSACTION 'prepared one';
SQL
is(query($in_flight), <<"ROWS" =~ s/\n\z//r, 'in flight');
leased|s|leased|1|t|t||
prepared||||t|||prepared one
transaction||||t||$pid|
ROWS
is($node->safe_psql('other', 'SELECT count(*) FROM idempotency_in_flight'), 0, 'in flight: not those of another database');
unlike(query('SELECT * FROM idempotency_in_flight'), qr/secret/, 'in flight: no payload');
ask($session, q{SELECT idem_release('bound'); COMMIT});
$session->quit;
$node->restart;
is(query($in_flight), <<'ROWS' =~ s/\n\z//r, 'in flight after a restart');
leased|s|leased|1|t|t||
prepared||||t|||prepared one
ROWS
is(query(q{BEGIN; SELECT outcome FROM idem_begin('prepared'); ROLLBACK}), 'IN_PROGRESS',
	'what is prepared is in progress');

# Who may look at all is said in 031_privileges.pl.
query('CREATE ROLE monitor IN ROLE pg_monitor');
is(query("SET ROLE monitor; $in_flight"), <<'ROWS' =~ s/\n\z//r, 'pg_monitor sees all of it');
leased|s|leased|1|t|t||
prepared||||t|||prepared one
ROWS
query(q{COMMIT PREPARED 'prepared one'});
is(query(q{SELECT count(*) FROM idempotency_in_flight WHERE kind <> 'leased'}), 0, 'in flight no more');

# Without preloading nothing is counted.
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
query(q{BEGIN; SELECT idem_begin('n'); SELECT idem_complete('n'); COMMIT; SELECT idem_gc(), idem_stats_reset()});
is(query('SELECT * FROM idempotency_stats'), 'postgres' . '|' x 24, 'not preloaded: all NULL');
is(query('SELECT kind, idempotency_key FROM idempotency_in_flight'), 'leased|leased',
	'not preloaded: what is in flight can be seen');

done_testing();
