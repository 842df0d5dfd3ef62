# Two-phase commit: nothing unfinished can be prepared, and
# what is prepared keeps its keys until it ends, also across a restart.
use Idempotency;

my $node = new_node('prepared', conf => 'max_prepared_transactions = 10');

query('CREATE TABLE effect (key text)');

sub asked ($key, $more = '')
{
	return query(<<"SQL");
BEGIN;
SELECT concat_ws('|', outcome, response_payload) FROM idem_begin('$key' $more);
ROLLBACK;
SQL
}

sub prepare ($key)
{
	query(<<"SQL");
BEGIN;
SELECT idem_begin('$key');
INSERT INTO effect VALUES ('$key');
SELECT idem_complete('$key', '"done"');
PREPARE TRANSACTION '$key';
SQL
}

sub effects ($key)
{
	return query("SELECT count(*) FROM effect WHERE key = '$key'");
}

is(sqlstate($node, <<'SQL'), 'ID428', 'PREPARE is refused while an operation is pending');
BEGIN;
SELECT idem_begin('pending');
PREPARE TRANSACTION 'pending';
SQL
is(query('SELECT count(*) FROM pg_prepared_xacts'), '0', 'nothing was prepared');
is(asked('pending'), 'ACQUIRED', 'the key is free');

is(sqlstate($node, <<'SQL'), '', 'a released operation may be prepared');
BEGIN;
SELECT idem_begin('released');
SELECT idem_release('released');
PREPARE TRANSACTION 'released';
ROLLBACK PREPARED 'released';
SQL

prepare('committed');
prepare('rolled back');
is(asked('committed'), 'IN_PROGRESS', 'prepared: in progress');
is(asked('committed', q{, wait => '50ms'}), 'IN_PROGRESS', 'nobody answers a wait');

$node->restart;
is(asked('committed'), 'IN_PROGRESS', 'after a restart: still in progress');
$node->stop('immediate');
$node->start;
is(asked('committed'), 'IN_PROGRESS', 'after a crash: still in progress');
is(asked('rolled back'), 'IN_PROGRESS', 'both of them');
is(query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IS NULL}),
	'2', 'their locks are nobody\'s');

{
	my $waiter = session($node);

	ask($waiter, 'BEGIN');
	$waiter->query_until(qr/^$/,
		"SELECT concat_ws('|', outcome, response_payload) FROM idem_begin('committed', wait => '100s');\n");
	wait_until('the waiter waits', sub { locks_waiting($node) == 1 });
	query(q{COMMIT PREPARED 'committed'});
	like($waiter->query('SELECT 1'), qr/^COMPLETED\|"done"$/m, 'COMMIT PREPARED wakes a waiter with the answer');
	$waiter->quit;
}
is(asked('committed'), 'COMPLETED|"done"', 'committed: replayed');
is(effects('committed'), '1', 'with its effect');

query(q{ROLLBACK PREPARED 'rolled back'});
is(asked('rolled back'), 'ACQUIRED', 'rolled back: free');
is(effects('rolled back'), '0', 'without effect');

# A lease from a prepared transaction has no owner until that transaction commits.
query(<<'SQL');
BEGIN;
CREATE TABLE lease AS SELECT fence FROM idem_begin('leased', lease => '1 hour');
PREPARE TRANSACTION 'leased';
SQL
is(asked('leased'), 'IN_PROGRESS', 'prepared lease: in progress');
query(q{COMMIT PREPARED 'leased'});
is(asked('leased'), 'IN_PROGRESS', 'committed lease: in progress');
is(sqlstate($node, q{SELECT idem_complete('leased', fence => fence) FROM lease}), '', 'its fence ends it');

done_testing();
