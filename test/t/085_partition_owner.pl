# What the owner puts on a partitioned store is not lost with its tables, and nobody's code
# has more rights than he has while the tables are changed (FAILURES 90, 142, 143, 145 to 147).
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
CREATE ROLE keeper LOGIN SUPERUSER;
CREATE ROLE auditor;
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
	'a view of another role' => [ q{CREATE VIEW v AS SELECT scope FROM idempotency_store; ALTER VIEW v OWNER TO auditor}, 'DROP VIEW v' ],
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

# an extension whose owner is no superuser any more
query('CREATE DATABASE kept');
$node->safe_psql('kept', 'CREATE EXTENSION idempotency; CREATE SCHEMA keeper; GRANT CREATE ON SCHEMA public TO keeper', extra_params => [ '-U', 'keeper' ]);
query('ALTER ROLE keeper NOSUPERUSER');
$node->safe_psql('kept', <<'SQL', extra_params => [ '-U', 'keeper' ]);
INSERT INTO idempotency_store (idempotency_key, expires_at, status) SELECT n, clock_timestamp() + n * interval '10 s', 'COMPLETED' FROM generate_series(1, 10000) n;
CREATE TABLE keeper.seen (told text, state text);
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
CREATE TRIGGER climb BEFORE UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION keeper.climb();
SQL
$node->safe_psql('kept', q{SELECT idem_partition_store('4 hours')});
is($node->safe_psql('kept', 'SELECT count(window_start) FROM idempotency_partitioning'), '1', 'partitions are made in steps');
$node->safe_psql('kept', 'SELECT idem_tend_partitions()');
is($node->safe_psql('kept', 'SELECT DISTINCT told, state FROM keeper.seen'), 'keeper|42501', 'his trigger runs with his rights, and finds his tables');
$node->safe_psql('kept', 'SELECT idem_tend_partitions()') for 1 .. 3;
cmp_ok($node->safe_psql('kept', 'SELECT count(*) FROM idempotency_partitions'), '>', 1, 'and there are partitions in the end');
is(query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'}), 'f', 'he is no superuser');
is($node->safe_psql('kept', 'SELECT idem_unpartition_store(); SELECT idem_partition_store($$12 hours$$)', extra_params => [ '-U', 'keeper' ]), "\n", 'he may call the functions himself');

# as an update of the extension by a superuser leaves it, and pg_upgrade
$node->safe_psql('kept', 'ALTER FUNCTION idem_check_owner(regclass) OWNER TO postgres');
$node->safe_psql('kept', q{UPDATE pg_extension SET extowner = 'postgres'::regrole WHERE extname = 'idempotency'});
is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}, 'kept'), '', 'the owner of the functions is trusted, whoever has the extension');

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

# ---- no code of another role, when a superuser changes the tables ----

query(<<'SQL');
CREATE SCHEMA keeper AUTHORIZATION keeper;
CREATE SEQUENCE keeper.runs;
ALTER SEQUENCE keeper.runs OWNER TO keeper;
CREATE FUNCTION keeper.one(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN 1; END $$;
CREATE FUNCTION keeper.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('keeper.runs'); RETURN new; END $$;
SELECT idem_partition_store('4 hours');
SQL
my @plants = (
	[ 'the store', 'ALTER TABLE idempotency_store OWNER TO keeper; CREATE STATISTICS keeper.planted ON (attempt + keeper.one(1)) FROM idempotency_store',
		'DROP STATISTICS keeper.planted; ALTER TABLE idempotency_store OWNER TO postgres' ],
	[ 'a partition', 'ALTER TABLE idempotency_store_default OWNER TO keeper; CREATE INDEX planted ON idempotency_store_default (attempt) WHERE keeper.one(1) = 1',
		'DROP INDEX planted; ALTER TABLE idempotency_store_default OWNER TO postgres' ],
	[ 'a partition of a partition', q{CREATE TABLE halves (LIKE idempotency_store INCLUDING ALL) PARTITION BY LIST (attempt);
		CREATE TABLE keeper.half PARTITION OF halves DEFAULT; ALTER TABLE keeper.half OWNER TO keeper; CREATE INDEX ON keeper.half (attempt) WHERE keeper.one(1) = 1;
		ALTER TABLE idempotency_store ATTACH PARTITION halves FOR VALUES FROM ('2100-01-01') TO ('2101-01-01')},
		'ALTER TABLE idempotency_store DETACH PARTITION halves; DROP TABLE halves' ],
	[ 'the table of the scopes', 'ALTER TABLE idempotency_scope OWNER TO keeper; CREATE INDEX planted ON idempotency_scope (pattern) WHERE keeper.one(1) = 1',
		'DROP INDEX planted; ALTER TABLE idempotency_scope OWNER TO postgres' ],
	[ 'the table of the period', q{ALTER TABLE idempotency_partitioning OWNER TO keeper;
		CREATE TRIGGER note BEFORE INSERT ON idempotency_partitioning FOR EACH ROW EXECUTE FUNCTION keeper.note()},
		'DROP TRIGGER note ON idempotency_partitioning; ALTER TABLE idempotency_partitioning OWNER TO postgres' ],
	[ 'a view in the place of the fences', q{ALTER SEQUENCE idempotency_fence RENAME TO aside;
		CREATE VIEW idempotency_fence AS SELECT keeper.one(1)::bigint AS last_value, true AS is_called; ALTER VIEW idempotency_fence OWNER TO keeper},
		'DROP VIEW idempotency_fence; ALTER SEQUENCE aside RENAME TO idempotency_fence' ]);

for my $plant (@plants)
{
	my ($what, $put, $take) = @$plant;

	query($put);
	query(q{SELECT setval('keeper.runs', 1, false)});
	is(sqlstate($node, $_), '42501', "$what: $_") for q{SELECT idem_partition_store('1 hour')}, 'SELECT idem_tend_partitions()', 'SELECT idem_unpartition_store()';
	is(query('SELECT is_called FROM keeper.runs'), 'f', "$what: his code did not run");
	query($take);
	is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}), '', "$what: without it the call works");
}

query('ALTER TABLE idempotency_store OWNER TO keeper; ALTER TABLE idempotency_scope OWNER TO keeper');
$node->psql('postgres', q{SELECT idem_partition_store('1 hour')}, stderr => \$told);
like($told, qr/another role owns public.idempotency_scope, public.idempotency_store, .*HINT.*make "postgres" the owner/s, 'the message has all tables, and says what helps');
query('ALTER TABLE idempotency_store OWNER TO postgres; ALTER TABLE idempotency_scope OWNER TO postgres');
# a view in the place of another one that a superuser owns
query('ALTER VIEW idempotency_partitions RENAME TO aside; CREATE VIEW idempotency_partitions AS SELECT * FROM aside');
is(sqlstate($node, 'SELECT idem_tend_partitions()'), '42501', 'what the extension has not made does not take the place of its objects');
query('DROP VIEW idempotency_partitions; ALTER VIEW aside RENAME TO idempotency_partitions');
query('ALTER TABLE idempotency_scope RENAME TO aside; CREATE VIEW idempotency_scope AS SELECT * FROM aside');
is(sqlstate($node, 'SELECT idem_tend_partitions()'), '42501', 'nor does a view take the place of a table');
query('DROP VIEW idempotency_scope; ALTER TABLE aside RENAME TO idempotency_scope');
query('ALTER SEQUENCE idempotency_fence RENAME TO aside; CREATE VIEW idempotency_fence AS SELECT 1::bigint AS last_value, true AS is_called');
is(sqlstate($node, 'SELECT idem_tend_partitions()'), '42501', 'nor of the fences');
query('DROP VIEW idempotency_fence; ALTER SEQUENCE aside RENAME TO idempotency_fence');

# a view is made anew, and what its owner has written as a constant is read by his code
query('SELECT idem_unpartition_store()');
query(q{SELECT setval('keeper.runs', 1, false)});
$node->safe_psql('postgres', <<'SQL', extra_params => [ '-U', 'keeper' ]);
CREATE DOMAIN keeper.small int CHECK (keeper.one(VALUE) = 1);
CREATE VIEW keeper.view AS SELECT scope, '{1}'::keeper.small[] AS x FROM idempotency_store;
SELECT setval('keeper.runs', 1, false);
SQL
is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}), '55000', 'a view of another role: refused');
is(query('SELECT is_called FROM keeper.runs'), 'f', 'and its code did not run');
query(q{DROP VIEW keeper.view; SELECT idem_partition_store('4 hours')});

# ---- collection waits for nobody who is at the long values ----

query(<<'SQL');
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
