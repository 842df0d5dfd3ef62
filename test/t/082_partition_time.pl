# A store that is partitioned by expiry, and time (FAILURES 115 to 118): retries over the
# end of a partition, a clock that is set, a week without collection, and the time
# after which a large store is one table again.
use strict;
use warnings;

use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my ($faketime) = glob('/usr/lib/*/faketime/libfaketime.so.1');
my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';

# Minutes from the beginning.
sub set_clock
{
	my ($minutes) = @_;

	open my $file, '>', "$clock.new" or die $!;
	printf $file "%+ds\n", $minutes * 60;
	close $file;
	rename "$clock.new", $clock or die $!;
	return;
}

die 'package faketime is missing: the clock cannot be set' if !$faketime;
set_clock(0);
$ENV{FAKETIME_TIMESTAMP_FILE} = $clock;
$ENV{FAKETIME_NO_CACHE} = 1;
$ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
$ENV{LD_PRELOAD} = $faketime;
my $node = new_node('partition_time');
delete $ENV{LD_PRELOAD};

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

# Begins, and ends what it has acquired; the outcome of the begin.
sub run_operation
{
	my ($key, $retention) = @_;
	my $given = defined $retention ? "retention => '$retention'" : 'retention => NULL';

	return query("DO \$\$ BEGIN IF (idem_begin('$key')).outcome = 'ACQUIRED' THEN"
		. " INSERT INTO effect VALUES ('$key'); PERFORM idem_complete('$key', '1', $given);"
		. ' END IF; END $$')
	  . effects($key);
}

sub effects { return query("SELECT count(*) FROM effect WHERE key = '$_[0]'") }
sub rows { return query("SELECT count(*) FROM idempotency_store WHERE idempotency_key ~ '^$_[0]'") }
sub place { return query("SELECT p.state FROM idempotency_store s JOIN pg_class c ON c.oid = s.tableoid JOIN idempotency_partitions p ON p.name = c.relname WHERE idempotency_key = '$_[0]'") }
# a second call looks at what the first one has emptied
sub collect { query('SELECT idem_gc()') for 1 .. $_[0] // 1; return }

query('CREATE TABLE effect (key text)');
query(q{SELECT idem_partition_store('60 minutes')});

# ---- retries over the end of a partition ----

is(run_operation('brief', '90 minutes'), '1', 'an operation');
is(run_operation('brief'), '1', 'a retry is a replay');
set_clock(89);
collect(2);
is(run_operation('brief'), '1', 'up to its last minute');
is(rows('brief'), '1', 'its partition stays');
set_clock(91);
is(run_operation('brief'), '2', 'after that the key is new');
set_clock(160);
is(query(q{SELECT count(*) > 0 FROM idempotency_partitions WHERE state = 'over'}), 't', 'the partition of the first record is over');
is(run_operation('brief'), '2', 'the second record counts, which is in another one');
collect(2);
is(rows('brief'), '1', 'the first record goes with its partition');
is(run_operation('brief'), '2', 'and the second still counts');

# a lease over the end of the partition that its record would have had
my $fence = query(q{SELECT fence FROM idem_begin('leased', lease => '30 minutes')});
set_clock(200);
is(query(q{SELECT outcome, attempt, taken_over FROM idem_begin('leased', lease => '30 minutes')}), 'ACQUIRED|2|t', 'a lease that has run out is taken over');
is(sqlstate($node, "SELECT idem_complete('leased', fence => $fence)"), 'ID409', 'the old owner is told');
query(q{SELECT idem_complete('leased', '2', fence => fence, retention => '10 minutes') FROM idempotency_store WHERE idempotency_key = 'leased'});
is(query(q{SELECT outcome, attempt FROM idem_begin('leased')}), 'COMPLETED|2', 'the record moves to the partition of its new expiry');
is(rows('leased'), '1', 'and there is one');

# a policy that changes
query(q{SELECT idem_set_policy('policy', retention => '28 hours')});
query(q{BEGIN; SELECT idem_begin('first', scope => 'policy'); SELECT idem_complete('first', '1', 'policy'); COMMIT});
is(place('first'), 'default', 'a retention that has no partition yet');
collect();
is(place('first'), 'ahead', 'has one after the next collection, and the record is brought home');
query(q{SELECT idem_set_policy('policy', retention => '2 hours')});
query(q{BEGIN; SELECT idem_begin('second', scope => 'policy'); SELECT idem_complete('second', '1', 'policy'); COMMIT});
is(place('second'), 'live', 'a shorter one has one');
is(query(q{SELECT outcome FROM unnest('{first,second}'::text[]) k, idem_begin(k, scope => 'policy')}), "COMPLETED\nCOMPLETED", 'both are known');

# ---- a clock that is set back ----

run_operation('before', '30 minutes');
set_clock(20);
is(run_operation('before'), '1', 'the clock goes back three hours: a replay');
is(run_operation('back', '30 minutes'), '1', 'an operation of a time whose partition has been dropped');
is(place('back'), 'default', 'goes to the default partition');
is(run_operation('back'), '1', 'and is replayed');
collect(2);
is(run_operation('back'), '1', 'also when it has a partition again');
is(place('back'), 'live', 'which it has');
set_clock(210);
is(run_operation('before'), '1', 'the clock is right again: a replay');
is(run_operation('back'), '2', 'what has expired is new');
is(query(q{SELECT count(*) FROM (SELECT FROM effect WHERE key = 'before' HAVING count(*) > 1) twice}), '0', 'nothing happened twice in its time');

# ---- a week without collection ----

run_operation('long', '20 days');
set_clock(210 + 7 * 1440);
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE state IN ('live', 'ahead')}), '0', 'after a week no partition is left for new records');
is(run_operation('week'), '1', 'an operation');
is(run_operation('week'), '1', 'its retry');
is(run_operation('long'), '1', 'a record of before');
is(place('week'), 'default', 'is in the default partition');
collect();
is(place('week'), 'live', 'collection brings it home');
is(run_operation('week'), '1', 'where it is found');
collect(2);
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE state = 'over'}), '0', 'all partitions of the week before are gone');

# the same with so many records that the default partition is not searched under its lock
query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'many ' || n, clock_timestamp() + n * interval '10 s' + interval '7 days', 'COMPLETED' FROM generate_series(1, 5000) n});
set_clock(210 + 14 * 1440);
collect(4);
is(rows('many'), '5000', 'many records stay where they are');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE state = 'ahead'}), '4', 'there are partitions for new ones');
is(run_operation('week 2', '26 hours'), '1', 'an operation');
is(place('week 2'), 'ahead', 'goes to one of them');
is(query(q{SELECT outcome FROM idem_begin('many 5000')}), 'COMPLETED', 'an old record is found');
is(query(q{SELECT idem_gc()}), '0', 'none goes before it has expired');
set_clock(210 + 15 * 1440);
collect(2);
is(rows('many'), '0', 'then all go');

# ---- back to one table, by time ----

query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'last ' || n, range_start + interval '1 minute', 'COMPLETED'
	FROM generate_series(1, 5000) n, (SELECT max(range_start) AS range_start FROM idempotency_partitions) p});
query(q{SELECT idem_unpartition_store()});
cmp_ok(query('SELECT count(*) FROM idempotency_partitions'), '>', 1, 'a large store stays partitioned at first');
is(run_operation('leaving', '3 days'), '1', 'an operation');
set_clock(210 + 17 * 1440);
is(run_operation('leaving'), '1', 'its retry');
collect(3);
is(query('SELECT count(*) FROM idempotency_partitions'), '0', 'collection makes it one table when the records have expired');
is(run_operation('leaving'), '1', 'with the records that have not');
is(rows('last'), '0', 'and without the others');

$node->stop;
done_testing();
