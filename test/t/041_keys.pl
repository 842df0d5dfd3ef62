# Primary keys that the store must not have, of kinds that only some servers have.
use Idempotency;

my $node = new_node('keys');

query(q{BEGIN; SELECT idem_begin('done'), idem_complete('done', '1'); COMMIT});

# The errors of calls after a change, which is then undone.
sub refused ($change)
{
	my %states;

	$states{ sqlstate($node, "BEGIN; $change; $_") } = 1
	  for q{SELECT idem_begin('new', lease => '1 hour')}, q{SELECT idem_begin('done')},
	  q{SELECT idem_lookup('done')}, 'SELECT idem_gc()';
	return join ' ', sort keys %states;
}

sub has ($query)
{
	return query("SELECT EXISTS ($query)") eq 't';
}

SKIP:
{
	skip 'no keys over time before 18', 1 if $node->pg_version < 18;
	skip 'no btree_gist', 1 if !has(q{SELECT FROM pg_available_extensions WHERE name = 'btree_gist'});
	is(refused("CREATE EXTENSION btree_gist; ALTER TABLE idempotency_store ADD during tstzrange DEFAULT '[,)';"
			  . 'ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey,'
			  . ' ADD PRIMARY KEY (scope, idempotency_key, during WITHOUT OVERLAPS)'),
		'55000', 'a key over time is refused');
}

SKIP:
{
	skip 'no ICU', 1 if !has(q{SELECT FROM pg_collation WHERE collprovider = 'i'});
	is( refused(q{ALTER EXTENSION idempotency DROP VIEW idempotency_in_flight; DROP VIEW idempotency_in_flight;
			CREATE COLLATION lax (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			ALTER TABLE idempotency_store ALTER idempotency_key TYPE text COLLATE lax}),
		'55000', 'a key that takes "K" and "k" for one is refused');
}
is(query(q{SELECT outcome FROM idem_begin('done')}), 'COMPLETED', 'all of it is undone');

done_testing();
