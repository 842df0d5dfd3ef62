# What the owner puts on a partitioned store is not lost with its tables, and his code has
# no more rights than he has while the care changes rows (FAILURES 90, 142, 143, 145 to 147).
use strict;
use warnings;

use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('partition_owner');

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub kind { return query(q{SELECT relkind FROM pg_class WHERE oid = 'idempotency_store'::regclass}) }

my $listed = q{SELECT cardinality(extconfig) FROM pg_extension WHERE extname = 'idempotency'};
my $listed_before = query($listed);

query(<<'SQL');
CREATE ROLE keeper LOGIN;
CREATE ROLE auditor;
ALTER TABLE idempotency_store OWNER TO keeper;
ALTER TABLE idempotency_sweep OWNER TO keeper;
SELECT idem_partition_store('4 hours');
BEGIN; SELECT FROM idem_begin('k'); SELECT FROM idem_complete('k', '1'); COMMIT;
SQL

# ---- what the one table would not have ----

my %obstacles = (
	'row security' => [ 'ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY',
		'ALTER TABLE idempotency_store DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY' ],
	'a policy' => [ q{CREATE POLICY p ON idempotency_store TO auditor USING (scope = 'public')}, 'DROP POLICY p ON idempotency_store' ],
	'a rule' => [ 'CREATE RULE r AS ON DELETE TO idempotency_store DO ALSO NOTIFY deleted', 'DROP RULE r ON idempotency_store' ],
	'a rule of a view' => [ 'CREATE VIEW v AS SELECT scope FROM idempotency_store; CREATE RULE r AS ON INSERT TO v DO INSTEAD DELETE FROM idempotency_store', 'DROP VIEW v' ],
	'an identity column' => [ 'ALTER TABLE idempotency_store ADD COLUMN number int; UPDATE idempotency_store SET number = 0;
		ALTER TABLE idempotency_store ALTER COLUMN number SET NOT NULL, ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY', 'ALTER TABLE idempotency_store DROP COLUMN number' ],
	'a publication of columns' => [ 'CREATE PUBLICATION p FOR TABLE idempotency_store (scope, idempotency_key) WITH (publish_via_partition_root)', 'DROP PUBLICATION p' ],
	'a publication of rows' => [ q{CREATE PUBLICATION p FOR TABLE idempotency_store WHERE (scope = 'public') WITH (publish = 'insert', publish_via_partition_root)}, 'DROP PUBLICATION p' ]);
my ($told, $warned);

for my $what (sort keys %obstacles)
{
	my ($put, $take) = @{ $obstacles{$what} };

	query($put);
	is(sqlstate($node, 'SELECT idem_unpartition_store()'), '55000', "$what: refused");
	# as collection does it
	query('UPDATE idempotency_partitioning SET leaving = true');
	$node->psql('postgres', 'SELECT idem_tend_partitions()', stdout => \$told, stderr => \$warned);
	is(kind(), 'p', "$what: the store stays as it is");
	like($warned, qr/WARNING:  the store cannot become one table as it is\nDETAIL/, "$what: collection warns");
	query("UPDATE idempotency_partitioning SET leaving = false; $take");
	is(query(q{SELECT outcome FROM idem_begin('k')}), 'COMPLETED', "$what: the record is there");
}

# ---- the owner's code, when records are kept longer ----

query('SELECT idem_unpartition_store()');
is(kind(), 'r', 'without all that it becomes one table');
is(query($listed), $listed_before, 'and pg_dump has no list of tables that are gone');
query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT n, clock_timestamp() + n * interval '10 s', 'COMPLETED' FROM generate_series(1, 10000) n});
$node->safe_psql('postgres', <<'SQL', extra_params => [ '-U', 'postgres' ]);
CREATE SCHEMA keeper AUTHORIZATION keeper;
CREATE TABLE keeper.seen (told text, state text);
ALTER TABLE keeper.seen OWNER TO keeper;
CREATE FUNCTION keeper.climb() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		ALTER ROLE keeper SUPERUSER;
		INSERT INTO seen VALUES (current_user, 'done');
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO seen VALUES (current_user, SQLSTATE);
	END;
	RETURN new;
END
$$;
ALTER FUNCTION keeper.climb() OWNER TO keeper;
CREATE TRIGGER climb BEFORE UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION keeper.climb();
SELECT idem_partition_store('4 hours');
SQL
is(query('SELECT count(window_start) FROM idempotency_partitioning'), '1', 'partitions are made in steps');
query('SELECT idem_tend_partitions()');
is(query('SELECT DISTINCT told, state FROM keeper.seen'), 'keeper|42501', 'his trigger runs with his rights, and finds his tables');
query('SELECT idem_tend_partitions()') for 1 .. 3;
cmp_ok(query('SELECT count(*) FROM idempotency_partitions'), '>', 1, 'and there are partitions in the end');
is(query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'}), 'f', 'he is no superuser');

# the same when the owner calls, as collection does
query('CREATE DATABASE own');
like($node->safe_psql('own', <<'SQL'), qr{^t$}m, 'the trigger finds its tables when the owner calls');
CREATE EXTENSION idempotency;
CREATE TABLE seen (told text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (current_user); RETURN new; END $$;
CREATE TRIGGER tell BEFORE UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION tell();
INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT n, clock_timestamp() + n * interval '10 s', 'COMPLETED' FROM generate_series(1, 10000) n;
SELECT idem_partition_store('4 hours');
SELECT idem_tend_partitions();
SELECT count(*) > 0 FROM seen;
SQL

# ---- the owner's code, when a superuser changes the tables ----

my @plants = (
	[ 'a trigger on its table', q{ALTER TABLE idempotency_partitioning OWNER TO keeper;
		CREATE TRIGGER climb BEFORE INSERT ON idempotency_partitioning FOR EACH ROW EXECUTE FUNCTION keeper.climb()},
		'DROP TRIGGER climb ON idempotency_partitioning; ALTER TABLE idempotency_partitioning OWNER TO postgres' ],
	[ 'a view in the place of a table', q{ALTER TABLE idempotency_scope RENAME TO aside;
		CREATE FUNCTION keeper.retention() RETURNS interval LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN NULL; END $$;
		CREATE VIEW idempotency_scope AS SELECT keeper.retention() AS retention, NULL::interval AS min_retention; ALTER VIEW idempotency_scope OWNER TO keeper},
		'DROP VIEW idempotency_scope; ALTER TABLE aside RENAME TO idempotency_scope' ],
	[ 'the cast of a type', q{ALTER TABLE idempotency_scope OWNER TO keeper; INSERT INTO idempotency_scope (pattern, retention) VALUES ('long', '3 days');
		CREATE TYPE keeper.span AS (length interval);
		CREATE FUNCTION keeper.length(span keeper.span) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN span.length; END $$;
		CREATE CAST (keeper.span AS interval) WITH FUNCTION keeper.length AS IMPLICIT;
		ALTER TABLE idempotency_scope DROP CONSTRAINT idempotency_scope_retention_check, ALTER retention TYPE keeper.span USING ROW(retention)},
		q{ALTER TABLE idempotency_scope ALTER retention TYPE interval USING (retention).length, OWNER TO postgres; DROP TYPE keeper.span CASCADE; DELETE FROM idempotency_scope} ],
	[ 'the function of an index', 'CREATE INDEX planted ON idempotency_store_default (attempt) WHERE keeper.one(1) = 1', 'DROP INDEX planted' ],
	[ 'the operator of an index', 'CREATE INDEX planted ON idempotency_store_default (attempt) WHERE 1 OPERATOR(keeper.=) 1', 'DROP INDEX planted' ],
	[ 'a check', 'ALTER TABLE idempotency_store ADD CONSTRAINT planted CHECK (keeper.one(1) = 1)', 'ALTER TABLE idempotency_store DROP CONSTRAINT planted' ],
	[ 'a column that is calculated', 'ALTER TABLE idempotency_store ADD COLUMN planted int GENERATED ALWAYS AS (keeper.one(attempt)) STORED', 'ALTER TABLE idempotency_store DROP COLUMN planted' ],
	[ 'the domain of a default', 'ALTER TABLE idempotency_store ADD COLUMN planted int DEFAULT 1::keeper.small', 'ALTER TABLE idempotency_store DROP COLUMN planted' ]);

query(<<'SQL');
CREATE SEQUENCE keeper.runs;
ALTER SEQUENCE keeper.runs OWNER TO keeper;
CREATE FUNCTION keeper.one(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN 1; END $$;
CREATE FUNCTION keeper.same(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN $1 = $2; END $$;
CREATE OPERATOR keeper.= (leftarg = int, rightarg = int, function = keeper.same);
CREATE DOMAIN keeper.small int CHECK (keeper.one(VALUE) = 1);
SQL
for my $plant (@plants)
{
	my ($what, $put, $take) = @$plant;

	query($put);
	query(q{TRUNCATE keeper.seen; SELECT setval('keeper.runs', 1, false)});
	is(sqlstate($node, $_), '42501', "$what: $_") for q{SELECT idem_partition_store('1 hour')}, 'SELECT idem_tend_partitions()', 'SELECT idem_unpartition_store()';
	is(query('SELECT (SELECT count(*) FROM keeper.seen), is_called FROM keeper.runs'), '0|f', "$what: it did not run");
	query($take);
}
query(q{SELECT idem_partition_store('4 hours')});
query(q{CREATE INDEX later ON idempotency_store (attempt) WHERE status = 'PENDING'});
is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}), '', 'an index of his without code is none');
query('DROP INDEX later; SELECT idem_unpartition_store()');
query(q{SELECT setval('keeper.runs', 1, false)});

# he plants while the superuser waits for a lock that he has
my $keeper = session($node);
my $superuser = session($node);
$keeper->query(q{BEGIN; LOCK TABLE idempotency_store IN ACCESS EXCLUSIVE MODE; CREATE INDEX planted ON idempotency_store (attempt) WHERE keeper.one(1) = 1;
	SELECT setval('keeper.runs', 1, false)});
$superuser->query_until(qr/asking/, "\\echo asking\n\\set VERBOSITY sqlstate\nSELECT idem_partition_store('4 hours');\n");
$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)}) or die 'nobody waits';
$keeper->query('COMMIT');
$superuser->query('SELECT 1');
like($superuser->{stderr}, qr/42501/, 'what he makes while the superuser waits: refused');
is(query('SELECT is_called FROM keeper.runs'), 'f', 'it did not run');
$_->quit for $keeper, $superuser;
query(q{DROP INDEX planted; SELECT idem_partition_store('4 hours')});

# ---- collection waits for nobody who is at the long values ----

query(<<'SQL');
DROP TRIGGER climb ON idempotency_store;
TRUNCATE idempotency_store;
SELECT idem_make_partitions('idempotency_store', 'idempotency_store_default', ARRAY[now() - interval '3 days'], ARRAY[now() - interval '2 days']);
INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('over', now() - interval '60 hours', 'COMPLETED');
SQL
my $vacuum = session($node);
$vacuum->query("BEGIN; SELECT count(*) FROM pg_toast.pg_toast_" . query(q{SELECT tableoid FROM idempotency_store WHERE idempotency_key = 'over'}));
is(query(q{SET statement_timeout = '20s'; SELECT idem_gc()}), '0', 'a partition whose long values are locked stays');
$vacuum->query('COMMIT');
is(query('SELECT idem_gc()'), '1', 'and is emptied the next time');
$vacuum->quit;

done_testing();
