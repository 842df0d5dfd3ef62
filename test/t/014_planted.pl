# Objects that somebody has put into the schema before CREATE
# EXTENSION never run with the rights of a role that reads the views, nor those that
# somebody has put anywhere with the rights of a superuser who runs the scripts of managed/.
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Idempotency;

my $node = new_node('planted');

query(q{
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
	query(qq{
		SET ROLE mallory;
		CREATE FUNCTION app.evil$number($left, $right) RETURNS $result LANGUAGE plpgsql AS
			\$\$BEGIN INSERT INTO app.loot VALUES (current_user); RETURN $value; END\$\$;
		CREATE OPERATOR app.$name (LEFTARG = $left, RIGHTARG = $right, FUNCTION = app.evil$number);
	});
}

query('CREATE EXTENSION idempotency SCHEMA app');
query(q{
	SET search_path = app, pg_catalog;
	SELECT idem_begin('leased', lease => '1 hour');
	BEGIN;
	SELECT idem_begin('k'), idem_complete('k', '1'), idem_advance('s', 1), idem_lock(ARRAY['r']);
	SELECT * FROM idempotency_in_flight;
	SELECT * FROM idempotency_failures;
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
my @functions = split(/\n/, query($plant));

cmp_ok(scalar @functions, '>=', 6, 'functions are planted');
query(join(';', @functions));
query(q{
	SET search_path = app, pg_catalog;
	SELECT idem_partition_store(interval '4 hours');
});
query('SET search_path = app, pg_catalog; SELECT app.idem_gc()');
is(query('SELECT count(*) > 1 FROM app.idempotency_partitions WHERE range_start IS NOT NULL'), 't', 'the store has a ring');
query('SELECT app.idem_unpartition_store()');
query('SET search_path = app, pg_catalog; SELECT app.idem_gc()') for 1 .. 2;

# The owner of the schema gives its name to another one while a superuser's call waits.
query('GRANT CREATE ON DATABASE postgres TO mallory');
for my $call (q{app.idem_partition_store('4 hours')}, 'app.idem_unpartition_store()')
{
	my ($holder, $caller) = map { session($node) } 1, 2;

	ask($holder, 'BEGIN; LOCK TABLE app.idempotency_ring IN SHARE MODE');
	start_waiting($caller, "SELECT $call");
	is(sqlstate($node, q{SET lock_timeout = '10ms'; SET ROLE mallory; ALTER SCHEMA app RENAME TO other}), '55P03', "$call: the schema keeps its name");
	ask($holder, 'ROLLBACK');
	ask($caller, 'SELECT 1');
	$_->quit for $holder, $caller;
}
# Nobody else can hold the name, so nobody else calls a function in his schema.
query(q{CREATE ROLE shop; GRANT USAGE, CREATE ON SCHEMA app TO shop; GRANT CREATE ON DATABASE postgres TO shop; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA app TO shop});
# what a role has added to the extension is no reason to trust it
query('CREATE FUNCTION app.member() RETURNS int LANGUAGE sql RETURN 1; ALTER FUNCTION app.member() OWNER TO mallory; ALTER EXTENSION idempotency ADD FUNCTION app.member()');
query("ALTER TABLE app.$_ OWNER TO shop")
	for qw(idempotency_store idempotency_scope idempotency_ring), split /\n/, query('SELECT name FROM app.idempotency_partitions');
for my $call (q{app.idem_partition_store('4 hours')}, 'app.idem_unpartition_store()')
{
	my $as_shop = sub {
		my ($owner) = @_;
		my $stderr;

		$node->psql('postgres', "BEGIN; ALTER SCHEMA app OWNER TO $owner; SET LOCAL ROLE shop; SELECT $call; ROLLBACK", stderr => \$stderr);
		return $stderr;
	};
	like($as_shop->('mallory'), qr/another role owns the schema/, "$call: refused where the schema is another role's");
	is($as_shop->($_), '', "$call: not where it is a role's that is trusted: $_") for 'shop', 'postgres', 'pg_database_owner';
	query('ALTER DATABASE postgres OWNER TO mallory');
	like($as_shop->('pg_database_owner'), qr/another role owns the schema/, "$call: the owner of the database is another role");
	query('ALTER DATABASE postgres OWNER TO postgres');
	query('ALTER FUNCTION app.idem_begin(text, jsonb, text, bytea, interval, interval, int) OWNER TO mallory');
	is($as_shop->('mallory'), '', "$call: the owner of functions of the extension is trusted");
	query('ALTER FUNCTION app.idem_begin(text, jsonb, text, bytea, interval, interval, int) OWNER TO postgres');
}
is(query(q{SELECT string_agg(DISTINCT who, ', ') FROM app.loot}), '', 'no function that was planted has run');
is(query('SELECT count(*) FROM app.loot'), '0', 'nothing that was planted has run');
is(query(q{SELECT count(*) FROM pg_depend d JOIN pg_operator o
			ON d.refclassid = 'pg_operator'::regclass AND d.refobjid = o.oid
		  WHERE o.oprnamespace = 'app'::regnamespace}),
	'0',
	'and nothing depends on it');
is(query(q{SET search_path = app; SELECT count(*) FROM pg_get_viewdef('app.idempotency_in_flight'::regclass) v(d) WHERE d LIKE '%OPERATOR(app.%'}),
	'0',
	'the views use the operators of pg_catalog');

# ---- the scripts of managed/, run by a superuser ----

my $managed = abs_path(dirname(__FILE__) . '/../../managed');

# Operators for all pairs of the types that the scripts compare or concatenate.
my @types = (qw(oid regclass regrole regnamespace regproc regprocedure regoperator regtype name text "char" boolean smallint integer bigint),
	qw(numeric float8 bit xid tid bytea jsonb interval timestamptz anyelement anyenum anyarray anynonarray));
my $trap = q{
	CREATE SCHEMA IF NOT EXISTS SCHEMA_ AUTHORIZATION mallory;
	SET ROLE mallory;
	GRANT USAGE ON SCHEMA SCHEMA_ TO PUBLIC;
	-- sequences keep what a rollback would take away
	CREATE SEQUENCE SCHEMA_.own;
	CREATE SEQUENCE SCHEMA_.others;
	GRANT ALL ON SCHEMA_.own, SCHEMA_.others TO PUBLIC;
	CREATE FUNCTION SCHEMA_.note() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_catalog.nextval(CASE WHEN current_user OPERATOR(pg_catalog.=) 'mallory'::pg_catalog.name
			THEN 'SCHEMA_.own'::pg_catalog.regclass ELSE 'SCHEMA_.others'::pg_catalog.regclass END);
	END $$;
	DO $do$
	DECLARE
		l text;
		r text;
		name text;
	BEGIN
		FOR l, r IN SELECT * FROM unnest(ARRAY[TYPES_]) a, unnest(ARRAY[TYPES_]) b LOOP
			EXECUTE format('CREATE FUNCTION SCHEMA_.evil(%s, %s) RETURNS boolean LANGUAGE plpgsql AS %L', l, r,
				'BEGIN PERFORM SCHEMA_.note(); RETURN true; END');
			EXECUTE format('CREATE FUNCTION SCHEMA_.joined(%s, %s) RETURNS text LANGUAGE plpgsql AS %L', l, r,
				'BEGIN PERFORM SCHEMA_.note(); RETURN ''x''; END');
			EXECUTE format('CREATE OPERATOR SCHEMA_.|| (LEFTARG = %s, RIGHTARG = %s, FUNCTION = SCHEMA_.joined)', l, r);
			FOREACH name IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '~~', '!~~', '~'] LOOP
				EXECUTE format('CREATE OPERATOR SCHEMA_.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = SCHEMA_.evil)', name, l, r);
			END LOOP;
		END LOOP;
		-- functions that a caller's schemas would offer first
		EXECUTE 'CREATE FUNCTION SCHEMA_.current_schema() RETURNS name LANGUAGE plpgsql AS ''BEGIN PERFORM SCHEMA_.note(); RETURN ''''pg_catalog''''; END''';
		EXECUTE 'CREATE FUNCTION SCHEMA_.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS ''BEGIN PERFORM SCHEMA_.note(); RETURN $2; END''';
		EXECUTE 'CREATE FUNCTION SCHEMA_.setval(regclass, bigint) RETURNS bigint LANGUAGE plpgsql AS ''BEGIN PERFORM SCHEMA_.note(); RETURN $2; END''';
	END
	$do$;
	RESET ROLE};

sub plant_in ($schema)
{
	my $types = join(', ', map { "'$_'" } @types);

	(my $sql = $trap) =~ s/SCHEMA_/$schema/g;
	$sql =~ s/TYPES_/$types/g;
	$node->safe_psql('managed', $sql);
	return;
}

# Runs a script as the superuser, and returns what it says.
sub run_script ($script, $path)
{
	my ($out, $err);

	local $ENV{PGOPTIONS} = "-c search_path=$path";
	$node->psql('managed', "\\i $managed/$script", stdout => \$out, stderr => \$err);
	return $err;
}

# Has anybody else than the role of the planted code run it?
sub nobody_else ($name, @schemas)
{
	is($node->safe_psql('managed', "SELECT is_called FROM $_.others"), 'f', "$name, in schema $_") for @schemas;
	return;
}

query('CREATE DATABASE managed TEMPLATE template0');
plant_in('trap');
$node->safe_psql('managed', 'CREATE SCHEMA clean');
is(run_script('idempotency.sql', 'clean,trap,pg_catalog'), '', 'managed: the script installs with strangers in the search_path');
nobody_else('managed: and nothing of theirs has run', 'trap');
is($node->safe_psql('managed', q{SELECT clean.idem_fingerprint('1') IS NOT NULL AND to_regclass('clean.idempotency_store') IS NOT NULL}),
	't', 'managed: it is in the first schema');
like(run_script('idempotency.sql', 'trap,pg_catalog'), qr/ERROR:  schema "trap" belongs to mallory/, 'managed: a schema of somebody else is refused');
$node->safe_psql('managed', 'CREATE SCHEMA open; GRANT CREATE, USAGE ON SCHEMA open TO mallory');
plant_in('open');
like(run_script('idempotency.sql', 'open,pg_catalog'), qr/mallory may create objects in schema "open"/, 'managed: a schema in which others may create is refused');
$node->safe_psql('managed', 'REVOKE CREATE ON SCHEMA open FROM mallory');
like(run_script('idempotency.sql', 'open,pg_catalog'), qr/function .* in schema "open" belongs to mallory/, 'managed: and one in which they have created');
nobody_else('managed: nothing that was planted has run', qw(trap open));
$node->safe_psql('managed', 'DROP SCHEMA clean CASCADE; DROP SCHEMA open CASCADE');

# The owner of the functions is not trusted by the superuser who moves them: his code is
# everywhere on his tables, and tries to become more than it is.
sub by_mallory ($sql)
{
	$node->safe_psql('managed', "SET search_path = managed, pg_temp; $sql", extra_params => [ '-U', 'mallory' ]);
	return;
}
$node->safe_psql('managed', 'ALTER ROLE mallory LOGIN; CREATE SCHEMA managed AUTHORIZATION mallory');
by_mallory("\\i $managed/idempotency.sql");
by_mallory(
	q{
	SELECT idem_grant('pg_monitor');
	BEGIN; SELECT idem_begin('done', '{"a": 1}'), idem_complete('done', '[1]', body => '\x00ff'); COMMIT;
	SELECT idem_begin('leased', lease => '1 hour');
	BEGIN; SELECT idem_begin('failed'), idem_fail('failed'); COMMIT; SELECT idem_forget_failed('', 'a ticket');
	CREATE TABLE trap.told (told text);
	CREATE TABLE trap.deferred (n int);
	CREATE FUNCTION trap.later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM trap.note(); RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER later AFTER INSERT ON trap.deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trap.later();
	CREATE FUNCTION trap.climb() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		s text;
	BEGIN
		PERFORM trap.note();
		FOREACH s IN ARRAY ARRAY['RESET ROLE', 'SET SESSION AUTHORIZATION DEFAULT', 'ALTER ROLE mallory SUPERUSER', 'INSERT INTO trap.deferred VALUES (1)',
			'DECLARE later CURSOR WITH HOLD FOR SELECT trap.note()', 'CREATE TEMP TABLE pg_class (a int)', 'SET search_path = trap, pg_catalog',
			'CREATE STATISTICS trap.s ON (trap.one(1)), attempt FROM idempotency_managed.record'] LOOP
			BEGIN
				EXECUTE s;
				INSERT INTO trap.told VALUES (s);
			EXCEPTION WHEN OTHERS THEN
				INSERT INTO trap.told VALUES (SQLSTATE);
			END;
		END LOOP;
	END $$;
	CREATE FUNCTION trap.one(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM trap.climb(); RETURN 1; END';
	CREATE FUNCTION trap.status(idempotency_status) RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM trap.climb(); RETURN format(''%s'', $1); END';
	CREATE INDEX ON idempotency_store (attempt) WHERE trap.one(1) = 1;
	CREATE INDEX ON idempotency_forgotten (operations) WHERE trap.one(1) = 1;
	CREATE STATISTICS folded ON (trap.one(1)), attempt FROM idempotency_store;
	CREATE FUNCTION idem_grant(text) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM trap.climb(); END';
});
# the move drops what belongs to the owner of the tables
$node->safe_psql('managed', 'CREATE ROLE mallet; ALTER FUNCTION managed.idem_grant(text) OWNER TO mallet');
plant_in('managed');

# Tables that are not what the script has created.
sub refused ($change, $undo, $message, $name)
{
	by_mallory($change);
	like(run_script('move-to-extension.sql', 'trap,managed,pg_catalog'), $message, "move: $name is refused");
	nobody_else('move: and nothing has run as the superuser', qw(trap managed));
	by_mallory($undo);
	return;
}
refused('ALTER TABLE idempotency_store FORCE ROW LEVEL SECURITY, ENABLE ROW LEVEL SECURITY',
	'ALTER TABLE idempotency_store NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY',
	qr/affected by row-level security policy/, 'row security on the store');
refused('ALTER TABLE idempotency_store RENAME TO kept; CREATE TABLE idempotency_store (x int) PARTITION BY RANGE ((x + trap.one(1)))',
	'DROP TABLE idempotency_store; ALTER TABLE kept RENAME TO idempotency_store',
	qr/"managed.idempotency_store" is not the one that/, 'a partitioned table in place of the store');
refused('ALTER TABLE idempotency_store RENAME TO kept; CREATE VIEW idempotency_store AS SELECT kept.* FROM kept, trap.climb()',
	'DROP VIEW idempotency_store; ALTER TABLE kept RENAME TO idempotency_store',
	qr/"managed.idempotency_store" is not the one that/, 'a view in place of the store');
refused('ALTER TABLE idempotency_forgotten RENAME TO kept; CREATE VIEW idempotency_forgotten AS SELECT kept.* FROM kept, trap.climb()',
	'DROP VIEW idempotency_forgotten; ALTER TABLE kept RENAME TO idempotency_forgotten',
	qr/"managed.idempotency_forgotten" is not the one that/, 'a view in place of idempotency_forgotten');

refused('CREATE CAST (idempotency_status AS text) WITH FUNCTION trap.status(idempotency_status) AS IMPLICIT',
	'DROP CAST (idempotency_status AS text); DROP FUNCTION trap.status(idempotency_status)',
	qr/other objects depend on them/, 'a cast of a type of the script');

# The script has found the schema, and waits for its tables.
my ($holder, $mover) = map { session($node, 'managed') } 1, 2;
my $mover_pid = ask($mover, 'SELECT pg_backend_pid()');
ask($holder, 'BEGIN; LOCK TABLE managed.idempotency_store IN ACCESS SHARE MODE');
start_waiting($mover, "\\i $managed/move-to-extension.sql");
is(sqlstate($node, q{SET lock_timeout = '10ms'; ALTER SCHEMA managed RENAME TO other}, 'managed'), '55P03', 'move: nobody gives the name of the schema to another one');
$node->safe_psql('managed', "SELECT pg_cancel_backend($mover_pid)");
$mover->query('SELECT 1');
ask($holder, 'ROLLBACK');
$_->quit for $mover, $holder;

by_mallory('TRUNCATE trap.told');
like(run_script('move-to-extension.sql', 'trap,managed,pg_catalog'), qr/NOTICE:  2 records moved/, 'move: the records are moved');
cmp_ok($node->safe_psql('managed', 'SELECT count(*) FROM trap.told'), '>', 0, 'move: code of the owner has run');
nobody_else('move: as the owner and as nobody else', qw(trap managed));
is( $node->safe_psql('managed', q{SELECT string_agg(DISTINCT told, ',') FROM trap.told WHERE told !~ '^[0-9A-Z]{5}$' AND told !~ 'search_path'}),
	'', 'move: every way up is refused');
is($node->safe_psql('managed', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}), 'f', 'move: the owner is no superuser');
is( $node->safe_psql('managed', q{SELECT outcome, response_payload, response_body FROM managed.idem_begin('done', '{"a": 1}')}),
	'COMPLETED|[1]|\x00ff', 'move: a replay is that of before');
is($node->safe_psql('managed', 'SELECT reason, operations FROM managed.idempotency_forgotten'), 'a ticket|1', 'move: and so is who has forgotten');
is($node->safe_psql('managed', q{SELECT has_function_privilege('pg_monitor', 'managed.idem_lookup(text, text)', 'EXECUTE')}), 't', 'move: a role keeps its rights');

done_testing();
