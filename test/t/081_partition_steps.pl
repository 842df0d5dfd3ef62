# A large store is partitioned, and made one table again, in steps (FAILURES 113 to 115, 124, 141):
# which locks each step holds, what happens to the records that it meets, and what
# if a step is interrupted or has to wait.
use strict;
use warnings;

use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('steps');

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

# One operation from begin to end; the lock_timeout shows that nothing is waited for.
sub run_operation
{
	my ($key, $retention) = @_;

	return query("SET lock_timeout = '1ms'; BEGIN; SELECT outcome FROM idem_begin('$key');"
		. " SELECT FROM idem_complete('$key', '1', retention => $retention); COMMIT");
}

# The strongest lock of a session on the store and its partitions.
sub strongest
{
	my ($session) = @_;

	return $session->query(q{SELECT mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'idempotency_store%' AND c.relkind IN ('r', 'p')
		ORDER BY array_position(ARRAY['AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock'], mode)
		LIMIT 1});
}

sub partitions { return query('SELECT count(*) FROM idempotency_partitions') }
sub window { return query('SELECT count(window_start) FROM idempotency_partitioning') }
sub is_checked { return query(q{SELECT count(*) FROM pg_constraint WHERE conname = 'idempotency_store_window' AND convalidated}) }

my $tend = 'SELECT idem_tend_partitions()';
my $in_window = 'idempotency_store s, idempotency_partitioning p WHERE s.expires_at >= p.window_start AND s.expires_at < p.window_end';

# ---- from one large table ----

query(<<'SQL');
INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'old ' || n, clock_timestamp() + n * interval '10 s', 'COMPLETED' FROM generate_series(1, 5000) n;
INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'long ' || n, clock_timestamp() + interval '31 hours', 'COMPLETED' FROM generate_series(1, 1500) n;
SELECT idem_claim_scope('claimed', 'postgres');
SQL
my $fence = query(q{SELECT fence FROM idem_begin('leased', lease => '12 hours')});
my $session = session($node);
$session->query("BEGIN; SELECT idem_partition_store('4 hours'); ROLLBACK");
is(partitions(), '0', 'an interrupted call leaves nothing');
query(q{SELECT idem_partition_store('4 hours')});
is(partitions(), '1', 'the table is the default partition, and nothing was copied or searched');
is(window(), '1', 'a window of time is open');
is(query("SELECT count(*) FROM $in_window"), '1501', 'records expire in it');
is(run_operation('in the window', q{'31 hours'}), 'ACQUIRED', 'an operation goes on meanwhile');
is(query(q{SELECT s.expires_at = p.window_end FROM idempotency_store s, idempotency_partitioning p WHERE idempotency_key = 'in the window'}),
	't', 'its record is kept until the window ends');
run_operation('short', q{'5 hours'});
run_operation('year', q{'1 year'});
is(query(q{SELECT max(abs(extract(epoch FROM expires_at - clock_timestamp()) - CASE idempotency_key WHEN 'short' THEN 18000 ELSE extract(epoch FROM interval '1 year') END)) < 86400 * 6
	FROM idempotency_store WHERE idempotency_key IN ('short', 'year')}), 't', 'others expire when they should');
is(query(q{SELECT expires_at - clock_timestamp() BETWEEN '4 hours' AND '5 hours' FROM idempotency_store WHERE idempotency_key = 'short'}), 't', 'to the minute');

# ---- the records that are there ----

query($tend);
is(query("SELECT count(*) FROM $in_window"), '501', 'a thousand records at a time are kept longer');
$session->query(q{BEGIN; SELECT FROM idempotency_store WHERE idempotency_key = 'long 1500' FOR UPDATE});
query($tend);
is(query("SELECT count(*) FROM $in_window"), '1', 'a locked one is passed over');
query($tend);
is(is_checked(), '0', 'and the check waits for it');
$session->query('ROLLBACK');
query($tend);
is(query("SELECT count(*) FROM $in_window"), '0', 'the last one');

# ---- the check: a long step ----

is(is_checked(), '0', 'not checked yet');
$session->query('BEGIN; CREATE TEMP TABLE exclusive (); TRUNCATE exclusive');
$session->query($tend);
is($session->query(q{SELECT count(*) FROM pg_constraint WHERE conname = 'idempotency_store_window' AND convalidated}), '0',
	'not in a transaction that others may have to wait for');
$session->query('ROLLBACK');
$session->query('BEGIN');
$session->query($tend);
is($session->query(q{SELECT count(*) FROM pg_constraint WHERE conname = 'idempotency_store_window' AND convalidated}), '1', 'the check is made');
is(strongest($session), 'ShareUpdateExclusiveLock', 'no stronger lock is held meanwhile');
is(run_operation('meanwhile', q{'5 hours'}), 'ACQUIRED', 'an operation does not wait');
is(query(q{SET lock_timeout = '1ms'; SELECT outcome FROM idem_begin('meanwhile')}), 'COMPLETED', 'nor does a replay');
$session->query('ROLLBACK');
is(is_checked(), '0', 'it was interrupted');
query($tend);
is(is_checked(), '1', 'and repeated');

# ---- another period, while a window is open: the records that are kept longer expire at its end ----

my $window_end = query('SELECT window_end FROM idempotency_partitioning');
$session->query(q{BEGIN; SELECT idem_partition_store('4 hours 1 second')});
is($session->query('SELECT max(range_end) FROM idempotency_partitions'), $window_end, 'the last partition of the window ends with it');
$session->query('ROLLBACK');

# ---- the partitions ----

$session->query(q{BEGIN; SELECT idem_begin('open'); SELECT idem_complete('open', '1', retention => '5 hours')});
query($tend);
is(partitions(), '1', 'a transaction that has written to the default partition is not waited for');
$session->query('COMMIT');
my ($out, $messages) = ('', '');
$node->psql('postgres', "BEGIN; SET client_min_messages = debug1; $tend; SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'idempotency_store_default'; COMMIT",
	stdout => \$out, stderr => \$messages);
like($out, qr/^0$/m, 'nothing looks for rows in the default partition');
is(scalar(() = $messages =~ /default partition "idempotency_store_default" is implied by existing constraints/g), 4,
	'four partitions are attached without a look at the rows of the default one');
is(partitions(), '5', 'they are there');
is(window(), '0', 'the window is closed');
is(query(q{SELECT count(*) FROM pg_constraint WHERE conname = 'idempotency_store_window'}) + query(q{SELECT count(*) FROM pg_trigger WHERE tgname = 'idempotency_store_window'}),
	0, 'without a trace');
query($tend);
is(window(), '0', 'that is enough for now');
run_operation('home', q{'31 hours'});
is(query(q{SELECT state FROM idempotency_store s JOIN pg_class c ON c.oid = s.tableoid JOIN idempotency_partitions p ON p.name = c.relname
	WHERE idempotency_key = 'home'}), 'ahead', 'a record goes to its partition');
is(query(q{SELECT count(*) - count(DISTINCT (scope, idempotency_key)) FROM idempotency_store}), '0', 'no name has two records');
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key ~ '^(old|long) '}), '6500', 'no record is lost');
is(query(q{SELECT count(*) FROM generate_series(1, 1500, 100) n, idem_begin('long ' || n) b WHERE b.outcome = 'COMPLETED'}), '15', 'and all are replayed');
is(query(q{SELECT outcome FROM idem_begin('leased')}), 'IN_PROGRESS', 'a lease runs on');
is(query("SELECT idem_complete('leased', '7', fence => $fence)"), '', 'and is ended');
is(query(q{SELECT pattern FROM idempotency_scope}), 'claimed', 'claims stay');

# ---- the next window begins a second after the last one ----

query(q{SELECT idem_make_window('idempotency_store', 'idempotency_store_default', 14400,
	(SELECT extract(epoch FROM max(range_end) - clock_timestamp()) - 60 FROM idempotency_partitions))});
is(query(q{SELECT window_start - max(range_end) FROM idempotency_partitioning, idempotency_partitions GROUP BY window_start}), '00:00:01', 'with a gap');
is(query(q{SELECT count(*) > 0 FROM idempotency_store s WHERE expires_at = (SELECT max(range_end) FROM idempotency_partitions)}), 't', 'for the records that were kept');
query($tend) for 1 .. 2;
is(query(q{SELECT window_start IS NULL, count(*) FROM idempotency_partitioning, idempotency_partitions GROUP BY 1}), 't|9', 'and four more partitions');

# ---- back, when there is much in the partitions ----

query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	SELECT 'much ' || n, range_start + interval '1 second', 'COMPLETED' FROM generate_series(1, 5000) n,
	(SELECT range_start FROM idempotency_partitions WHERE state <> 'default' ORDER BY 1 LIMIT 1) first});
$session->query('BEGIN');
$session->query('SELECT idem_unpartition_store()');
is($session->query(q{SELECT leaving FROM idempotency_partitioning}), 't', 'it does not copy them');
$session->query('COMMIT');
is(query(q{SELECT count(*) FROM idempotency_partitions p JOIN pg_class c ON c.relname = p.name WHERE pg_relation_size(c.oid) = 0}), '0', 'partitions without records are dropped');
cmp_ok(partitions(), '>', 1, 'the others stay');
run_operation('to the default', q{'60 hours'});
is(query(q{SELECT tableoid::regclass FROM idempotency_store WHERE idempotency_key = 'to the default'}), 'idempotency_store_default', 'new records go to the default partition');
query(q{SELECT idem_partition_store('4 hours')});
is(query(q{SELECT leaving FROM idempotency_partitioning}), 'f', 'it can be taken back');
query(q{SELECT idem_unpartition_store()});
is(query(q{SELECT outcome FROM idem_begin('much 5000')}), 'COMPLETED', 'all answers stay');
# as if they had expired
query(q{DELETE FROM idempotency_store WHERE idempotency_key LIKE 'much %'});
query(q{VACUUM (TRUNCATE) idempotency_store});
$session->query(q{BEGIN; SELECT idem_begin('open 2'); SELECT idem_complete('open 2', '1')});
query($tend);
cmp_ok(partitions(), '>', 0, 'a transaction that is open is not waited for');
$session->query('COMMIT');
$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
run_operation('late', q{'5 hours'});
$session->query($tend);
$session->query('COMMIT');
cmp_ok(partitions(), '>', 0, 'a transaction whose snapshot does not show all records leaves the tables as they are');
query($tend);
is(partitions(), '0', 'in the end it is one table');
is(query(q{SELECT relkind FROM pg_class WHERE oid = 'idempotency_store'::regclass}), 'r', 'by its name');
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key IN ('open', 'open 2', 'year', 'home', 'leased', 'meanwhile', 'late')}), '7', 'with all records');
is(query(q{SELECT count(*) FROM idempotency_partitioning}), '0', 'and nothing left to do');

$session->quit;
$node->stop;
done_testing();
