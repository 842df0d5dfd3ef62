# DROP, CREATE and ALTER EXTENSION while other sessions live on, and
# a server that does not preload the library.
use Idempotency;

my $node = new_node('lifecycle');

query(<<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SQL

# Uses everything that a session keeps between calls: the places of the objects,
# the plans of all statements, and the types.  Returns the answers.
sub exercise ($session, $key)
{
	return join ' ', map { ask($session, $_) } (
		"BEGIN; SELECT outcome FROM idem_begin('$key')",
		"SELECT idem_complete('$key', '1'); COMMIT",
		"SELECT outcome FROM idem_begin('$key')",
		"SELECT outcome FROM idem_begin('$key leased', lease => '1 hour')",
		"SELECT idem_release('$key leased', fence => fence) FROM idempotency_store"
		  . " WHERE idempotency_key = '$key leased'",
		"SELECT outcome FROM idem_lookup('$key')",
		"SELECT idem_advance('$key', 1)",
		"SELECT outcome FROM idem_call('public.handler(jsonb)', '$key call', '{}')");
}

my $all = 'ACQUIRED  COMPLETED ACQUIRED t COMPLETED t COMPLETED';

for my $loaded ('preloaded', 'not preloaded')
{
	my ($old, $other, $fence);

	if ($loaded eq 'not preloaded')
	{
		$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
		$node->restart;
	}
	is(query(q{SHOW shared_preload_libraries}), $loaded eq 'preloaded' ? 'idempotency' : '', $loaded);

	$old = session($node);
	$other = session($node);
	is(exercise($old, "$loaded 1"), $all, "$loaded: a session uses all");

	# Dropped: nothing is left to call.  Created again: it goes on, with a store
	# that is empty.
	ask($other, 'DROP EXTENSION idempotency');
	like(sqlstate($node, q{SELECT idem_begin('k')}), qr/42883/, "$loaded: dropped");
	like(complaint($old, q{SELECT idem_begin('k')}), qr/function idem_begin\(unknown\) does not exist/, "$loaded: for the old session too");
	ask($other, 'CREATE EXTENSION idempotency');
	is(exercise($old, "$loaded 1"), $all, "$loaded: created again, the old session goes on");

	# In another schema, which then gets another name.
	ask($other, 'DROP EXTENSION idempotency; DROP SCHEMA IF EXISTS elsewhere, "Else Where"; CREATE SCHEMA elsewhere;'
		  . ' CREATE EXTENSION idempotency SCHEMA elsewhere');
	ask($old, 'SET search_path = elsewhere, "Else Where"');
	is(exercise($old, "$loaded 2"), $all, "$loaded: in another schema");
	ask($other, 'ALTER SCHEMA elsewhere RENAME TO "Else Where"');
	is(exercise($old, "$loaded 3"), $all, "$loaded: which was renamed");

	ask($other, 'ALTER EXTENSION idempotency UPDATE');
	is(exercise($old, "$loaded 4"), $all, "$loaded: ALTER EXTENSION UPDATE");
	like(complaint($other, 'ALTER EXTENSION idempotency SET SCHEMA public'), qr/does not support SET SCHEMA/, "$loaded: it cannot be moved");

	# Dropping waits for a transaction that has begun, which then commits.
	ask($old, 'BEGIN');
	ask($old, q{SELECT idem_begin('open')});
	is(sqlstate($node, q{SET lock_timeout = '50ms'; DROP EXTENSION idempotency}),
		'55P03', "$loaded: DROP EXTENSION waits for an open operation");
	is(ask($old, q{SELECT idem_complete('open'); COMMIT; SELECT outcome FROM idem_lookup('open')}),
		"\nCOMPLETED", "$loaded: which ends as if nothing had been");

	# Dropped and created by the session itself, and once in one transaction.
	ask($old, 'RESET search_path; DROP EXTENSION idempotency; CREATE EXTENSION idempotency SCHEMA public');
	is(exercise($old, "$loaded 5"), $all, "$loaded: dropped and created in the session itself");
	ask($old, 'BEGIN; DROP EXTENSION idempotency; CREATE EXTENSION idempotency SCHEMA public');
	ask($old, q{SELECT idem_begin('own'), idem_complete('own')});
	ask($old, 'COMMIT');
	is(ask($old, q{SELECT outcome FROM idem_lookup('own')}), 'COMPLETED', "$loaded: and within a transaction");
	ask($old, 'BEGIN; DROP EXTENSION idempotency; ROLLBACK');
	is(exercise($old, "$loaded 6"), $all, "$loaded: a DROP that is rolled back");
	$old->quit;

	# A session that has never used it before finds the new one.
	is(exercise($other, "$loaded 7"), $all, "$loaded: the other session");
	$other->quit;
}

done_testing();
