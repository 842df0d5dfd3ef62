# FAILURES 68: objects that somebody has put into the schema before CREATE
# EXTENSION never run with the rights of a role that reads the views.
use strict;
use warnings;

use Idempotency;
use Test::More;

my $node = new_node('planted');

$node->safe_psql(
	'postgres', q{
	DROP EXTENSION idempotency;
	CREATE ROLE mallory;
	CREATE SCHEMA app AUTHORIZATION mallory;
	SET ROLE mallory;
	CREATE TABLE app.loot (who text);
	GRANT ALL ON app.loot TO PUBLIC;
});

# Operators that match better than those of pg_catalog, for every expression for
# which pg_catalog has no exact match.
my @planted = (
	[ '*', 'bigint', 'interval', 'interval' ],
	[ '-', 'timestamptz', 'anyelement', 'interval' ],
	map { [ '=', @$_, 'boolean' ] } [ 'anyenum', 'text' ],
	[ 'anyenum', 'anyenum' ],
	[ 'oid', 'oid' ],
	[ 'smallint', 'integer' ],
	[ 'name', 'name' ],
	[ 'text', 'text' ],
	[ 'xid', 'xid' ],
	[ 'integer', 'integer' ]);
my $number = 0;

for my $operator (@planted)
{
	my ($name, $left, $right, $result) = @$operator;
	my $value = $result eq 'boolean' ? 'true' : q{interval '0'};

	$number++;
	$node->safe_psql(
		'postgres', qq{
		SET ROLE mallory;
		CREATE FUNCTION app.evil$number($left, $right) RETURNS $result LANGUAGE plpgsql AS
			\$\$BEGIN INSERT INTO app.loot VALUES (current_user); RETURN $value; END\$\$;
		CREATE OPERATOR app.$name (LEFTARG = $left, RIGHTARG = $right, FUNCTION = app.evil$number);
	});
}

$node->safe_psql('postgres', 'CREATE EXTENSION idempotency SCHEMA app');
$node->safe_psql(
	'postgres', q{
	SET search_path = app, pg_catalog;
	SELECT idem_begin('leased', lease => '1 hour');
	BEGIN;
	SELECT idem_begin('k'), idem_complete('k', '1'), idem_advance('s', 1), idem_lock(ARRAY['r']);
	SELECT * FROM idempotency_in_flight;
	SELECT * FROM idempotency_stats;
	COMMIT;
	SELECT idem_begin('k'), idem_lookup('k'), idem_gc(), idem_grant('mallory'), idem_revoke('mallory');
});
# Functions that match a call better if one of its arguments has no type, or none has,
# beside all those that only functions of the extension call.
my $plant = q{
	SELECT DISTINCT format('CREATE FUNCTION app.%I(%s) RETURNS void LANGUAGE plpgsql AS %L', proname, types,
		format('BEGIN INSERT INTO app.loot VALUES (%L); END', proname))
	FROM (SELECT p.*, string_agg(CASE WHEN place IN (0, number) AND type <> 'text'::regtype THEN 'text' ELSE format_type(type, NULL) END, ', ' ORDER BY number) AS types
		FROM pg_proc p, generate_series(0, pronargs) place, unnest(proargtypes::oid[]) WITH ORDINALITY a (type, number)
		WHERE pronamespace = 'app'::regnamespace AND obj_description(oid, 'pg_proc') LIKE 'internal:%'
		GROUP BY p.oid, place) variants
	WHERE to_regprocedure(format('app.%I(%s)', proname, types)) IS NULL};
my @functions = split(/\n/, $node->safe_psql('postgres', $plant));

cmp_ok(scalar @functions, '>=', 40, 'functions are planted');
$node->safe_psql('postgres', join(';', @functions));
$node->safe_psql(
	'postgres', q{
	SET search_path = app, pg_catalog;
	SELECT idem_partition_store(interval '4 hours');
	INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('far', now() + interval '30 days', 'COMPLETED');
	SELECT idem_make_partitions('idempotency_store'::regclass, 'idempotency_store_default'::regclass,
		ARRAY[now() - interval '3 days', now() + interval '29 days'], ARRAY[now() - interval '2 days', now() + interval '31 days']);
	SELECT idem_gc();
	SELECT idem_unpartition_store();
});
# a large default partition, for which partitions are made in steps, and a store that becomes one table later
$node->safe_psql(
	'postgres', q{
	SET search_path = app, pg_catalog;
	SELECT idem_partition_store(interval '4 hours');
	INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT n, now() + interval '90 days', 'COMPLETED' FROM generate_series(1, 6000) n;
	INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT 'soon' || n, now() + interval '1 hour', 'COMPLETED' FROM generate_series(1, 6000) n;
	SELECT idem_gc() FROM generate_series(1, 4);
	SELECT idem_unpartition_store();
	SELECT idem_gc();
});
is($node->safe_psql('postgres', 'SELECT leaving FROM app.idempotency_partitioning'), 't', 'the store is on its way to one table');
# as the library of this version finds version 1.0
$node->safe_psql(
	'postgres', q{
	ALTER EXTENSION idempotency DROP FUNCTION app.idem_tend_partitions();
	DROP FUNCTION app.idem_tend_partitions();
	CREATE FUNCTION app.idem_tend_partitions() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO app.loot VALUES ('tend'); END $$;
	SELECT app.idem_gc();
});
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT who, ', ') FROM app.loot}), '', 'no function that was planted has run');
is($node->safe_psql('postgres', 'SELECT count(*) FROM app.loot'),
	'0', 'nothing that was planted has run');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_depend d JOIN pg_operator o
			ON d.refclassid = 'pg_operator'::regclass AND d.refobjid = o.oid
		  WHERE o.oprnamespace = 'app'::regnamespace}),
	'0',
	'and nothing depends on it');
is( $node->safe_psql(
		'postgres',
		q{SET search_path = app; SELECT count(*) FROM pg_get_viewdef('app.idempotency_in_flight'::regclass) v(d) WHERE d LIKE '%OPERATOR(app.%'}
	),
	'0',
	'the views use the operators of pg_catalog');

done_testing();
