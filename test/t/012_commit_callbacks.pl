# The commit callbacks of other extensions.  The guard refuses before
# they act, and it also refuses operations that they begin.
use Idempotency;

my $module = build_module('commit_callback');

my $node = new_node('commit_callbacks');

query(qq{
	CREATE FUNCTION run_at_commit(text) RETURNS void
		AS '$module', 'run_at_commit' LANGUAGE c STRICT;
	CREATE TABLE effect (key text);
});

# What psql prints in one session: notices, SQLSTATEs.
sub printed (@sql)
{
	my $stderr;

	$node->psql(
		'postgres', join(";\n", @sql, ''),
		stderr => \$stderr,
		on_error_stop => 0,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	return join ' ', $stderr =~ /(NOTICE|(?<=ERROR:  )\w+)/g;
}

# The library is loaded before or after the other one, in either order.
my $load = q{SELECT idem_begin('first', lease => '1 ms')};
my $other = q{SELECT run_at_commit('INSERT INTO effect VALUES (''other'')')};
my $begins = q{SELECT run_at_commit('SELECT idem_begin(''late'')')};

is(printed($load, 'BEGIN', $other, q{SELECT idem_begin('k')}, 'COMMIT'),
	'ID428', 'the guard refuses before the other extension acts');
is( printed(
		$other, $load, 'BEGIN', $other, q{SELECT idem_begin('k')}, 'COMMIT'),
	'NOTICE ID428',
	'so it does in a later transaction of a session that the other one used first'
);
is( printed(
		'BEGIN', $other,
		q{SELECT idem_begin('k'), idem_complete('k')}, 'COMMIT'),
	'NOTICE',
	'the other extension acts when nothing is unfinished');

is(printed($load, 'BEGIN', $begins, 'COMMIT'),
	'NOTICE ID428', 'a first begin during COMMIT is refused');
is( printed(
		$load, 'BEGIN', $begins,
		q{SELECT idem_begin('l'), idem_complete('l')}, 'COMMIT'),
	'NOTICE 25000',
	'a begin after the guard has passed is refused');
is( printed(
		$load, 'BEGIN', $begins,
		q{SELECT idem_begin('m'), idem_complete('m')}, 'COMMIT',
		'BEGIN', q{SELECT idem_begin('m'), idem_complete('m')}, 'COMMIT'),
	'NOTICE 25000',
	'the next transaction knows nothing of that');

is(query(q{SELECT string_agg(key, ' ' ORDER BY key) FROM effect}),
	'other other',
	'and nothing of it was committed');
is(query(q{SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key)
		  FROM idempotency_store WHERE status = 'COMPLETED'}),
	'k m',
	'but what was whole');

done_testing();
