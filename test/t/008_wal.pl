# What an operation costs: transaction-bound, nothing at begin and one row at the
# end; a replay, nothing at all.
use Idempotency;

# Page images hide what a record is, so that there are none.
my $node = new_node('wal', conf => 'full_page_writes = off');
my ($session, $start, %node_of);

query(<<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SQL
$session = session($node);

sub position
{
	return ask($session, 'SELECT pg_current_wal_insert_lsn()');
}

# The WAL since then, as counts of "resource manager, record, relation".
sub records_since ($start)
{
	my $end = query('SELECT pg_current_wal_flush_lsn()');
	my ($stdout, $stderr);
	my %count;

	# pg_waldump takes it for an error when there is nothing
	return {} if query("SELECT '$end'::pg_lsn <= '$start'::pg_lsn") eq 't';
	IPC::Run::run([ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $start, '-e', $end ],
		'>', \$stdout, '2>', \$stderr)
	  or die "pg_waldump failed: $stderr";
	for my $line (split /\n/, $stdout)
	{
		my ($manager, $record) = $line =~ /^rmgr: (\S+) .* desc: (\w+)/ or die $line;
		my ($relation) = $line =~ /blkref #0: rel \d+\/\d+\/(\d+)/;

		$relation = defined $relation ? $node_of{$relation} // $relation : '';
		$count{"$manager $record $relation" =~ s/\s+$//r}++;
	}
	return \%count;
}

# Warm: the objects and the plans are cached, the index has a root, and no page
# of a catalog has dead rows that the next reader would remove.
for my $key ('warm', 'warmer')
{
	ask($session, "BEGIN; SELECT idem_begin('$key'); SELECT idem_complete('$key'); COMMIT");
	ask($session, "SELECT idem_begin('$key'), idem_lookup('$key')");
	ask($session, "SELECT idem_call('public.handler(jsonb)', '$key call', '{}')");
}
ask($session, 'VACUUM');
%node_of = reverse map { split /\|/ } split /\n/, ask($session, <<'SQL');
SELECT relname, relfilenode FROM pg_class
WHERE oid IN ('idempotency_store'::regclass, 'idempotency_store_pkey'::regclass, 'effect'::regclass)
SQL

# Transaction-bound
$start = position();
ask($session, 'BEGIN');
is(ask($session, q{SELECT outcome FROM idem_begin('k', request => '{"a": 1}')}), 'ACQUIRED', 'acquired');
is(position(), $start, 'begin writes no WAL');
is(ask($session, 'SELECT pg_current_xact_id_if_assigned()'), '', 'begin takes no transaction id');
ask($session, q{INSERT INTO effect VALUES ('k')});
ask($session, q{SELECT idem_complete('k', '"done"', code => 201)});
ask($session, 'COMMIT');
is_deeply(records_since($start),
	{
		'Heap INSERT effect' => 1,
		'Heap INSERT idempotency_store' => 1,
		'Btree INSERT_LEAF idempotency_store_pkey' => 1,
		'Transaction COMMIT' => 1
	},
	'an operation costs one row and its index entry');

# In one call; the subtransaction for failures leaves no WAL if there is no failure.
$start = position();
ask($session, q{SELECT idem_call('public.handler(jsonb)', 'call', '{"a": 1}')});
is_deeply(records_since($start),
	{
		'Heap INSERT idempotency_store' => 1,
		'Btree INSERT_LEAF idempotency_store_pkey' => 1,
		'Transaction COMMIT' => 1
	},
	'so does one call');

# Replays, conflicts and what is given up cost nothing.
$start = position();
is(ask($session, q{SELECT outcome FROM idem_begin('k')}), 'COMPLETED', 'replayed');
is(ask($session, q{SELECT outcome FROM idem_lookup('k')}), 'COMPLETED', 'looked up');
ask($session, q{BEGIN; SELECT idem_begin('free'); SELECT idem_release('free'); COMMIT});
ask($session, q{BEGIN; SELECT idem_begin('free'); ROLLBACK});
is_deeply(records_since($start), {}, 'a replay, a look-up, a release and a rollback write no WAL');

$session->quit;
done_testing();
