# Another library that hooks into the same places, loaded before and after:
# both do their work.
use Idempotency;

for my $libraries ('pg_stat_statements,idempotency', 'idempotency,pg_stat_statements')
{
	my $node = new_node($libraries =~ s/,.*//r . '_first');

	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$libraries'\npg_stat_statements.track = all\n");
	$node->restart;
	$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_stat_statements;
CREATE ROLE application LOGIN;
SELECT idem_grant('application');
SQL
	# the direct path runs no statement
	$node->safe_psql('postgres', store_trigger() . "SELECT with_trigger.attach_to('idempotency_store')");

	# Its statements need the owner's rights, which our hook sees to.
	is($node->safe_psql('postgres', <<'SQL', extra_params => [ '-U', 'application' ]), "ACQUIRED\n\nCOMPLETED|\"secret answer\"", "$libraries: an application without rights");
BEGIN;
SELECT outcome FROM idem_begin('k', request => '"secret request"');
SELECT idem_complete('k', '"secret answer"');
COMMIT;
SELECT outcome, response_payload FROM idem_begin('k');
SQL
	is(sqlstate($node, q{SET ROLE application; SELECT * FROM idempotency_store}), '42501',
		"$libraries: which its own statements lack");
	cmp_ok($node->safe_psql('postgres',
		q{SELECT count(*) FROM pg_stat_statements WHERE query LIKE 'INSERT INTO %.idempotency_store%' AND calls = 1}),
		'==', 1, "$libraries: pg_stat_statements has seen the insert");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_statements
		WHERE query LIKE '%idempotency_store%' AND query LIKE '%secret%' AND query NOT LIKE '%pg_stat_statements%'}),
		0, "$libraries: and no answer in it");
	is($node->safe_psql('postgres', q{SELECT acquired, replayed_completed FROM idempotency_stats WHERE datname = 'postgres'}),
		'1|1', "$libraries: our own figures");
}

done_testing();
