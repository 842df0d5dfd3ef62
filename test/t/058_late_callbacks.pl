# The guard refuses before the commit callbacks of others act, also
# of those that are registered in the transaction that is refused: postgres_fdw
# at the first remote use of a session.
use Idempotency;

my $node = new_node('late_callbacks', conf => "max_prepared_transactions = 5\n");
my $module = build_module('commit_callback');

plan skip_all => 'postgres_fdw is not installed'
  if query(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';

# ---- a server that is remote to itself ----

query('CREATE DATABASE remote');
$node->safe_psql('remote', q{
	CREATE TABLE effect (what text);
	CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'});
query(qq{
	CREATE EXTENSION postgres_fdw;
	CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw
		OPTIONS (host '@{[$node->host]}', port '@{[$node->port]}', dbname 'remote');
	CREATE USER MAPPING FOR CURRENT_USER SERVER remote OPTIONS (password_required 'false');
	CREATE FOREIGN TABLE far (what text) SERVER remote OPTIONS (table_name 'effect');
	CREATE FOREIGN TABLE estimated (what text) SERVER remote OPTIONS (table_name 'effect', use_remote_estimate 'true');
	CREATE TABLE near (what text);
	CREATE TABLE near_deferred (what text);
	CREATE FUNCTION send() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO far VALUES (NEW.what); RETURN NEW; END';
	CREATE TRIGGER send BEFORE INSERT ON near FOR EACH ROW EXECUTE FUNCTION send();
	CREATE CONSTRAINT TRIGGER send AFTER INSERT ON near_deferred
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION send();
	CREATE FUNCTION insert_far(text) RETURNS void LANGUAGE plpgsql AS 'BEGIN INSERT INTO far VALUES (\$1); END';
	CREATE PROCEDURE commits(ending text) LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_begin('late');
		INSERT INTO far VALUES ('procedure');
		EXECUTE ending;
		COMMIT;
	END \$\$;
	CREATE PROCEDURE commits_deferred(ending text) LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_begin('late');
		INSERT INTO near_deferred VALUES ('procedure');
		EXECUTE ending;
		COMMIT;
	END \$\$;
	CREATE FUNCTION run_at_commit(text) RETURNS void
		AS '$module', 'run_at_commit' LANGUAGE c STRICT;
	CREATE PROCEDURE takes_an_end_back() LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_begin('late');
		BEGIN
			PERFORM idem_complete('late');
			PERFORM run_at_commit('SELECT 1');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		COMMIT;
	END \$\$;
});

# Sends each of these as one message, in a session of its own, and returns the
# SQLSTATEs, what has happened remotely, and "acted" for each call of the other callback,
# which gives a notice: what it has written is rolled back with the transaction.
sub sent
{
	my @messages = @_;
	my ($out, $error);

	$node->safe_psql('remote', 'TRUNCATE effect');
	query('DELETE FROM idempotency_store');
	$node->psql('postgres', '', stdout => \$out, stderr => \$error, on_error_stop => 0,
		extra_params => [ '-v', 'VERBOSITY=sqlstate', map { ('-c', $_) } @messages ]);
	return join ' ', ($error =~ /ERROR:  (\w+)/g), $node->safe_psql('remote', 'SELECT what FROM effect ORDER BY 1'),
	  join ' ', map { 'acted' } $error =~ /NOTICE/g;
}

my $begin = q{SELECT idem_begin('late')};
my $end = q{SELECT idem_complete('late')};
# loads the library, which registers its callback
my $load = q{SELECT idem_lookup('none')};

# Kinds of the first remote use: the statements, and their effect on the remote side.
my %use = (
	'an INSERT' => [q{INSERT INTO far VALUES ('inserted')}, 'inserted'],
	'a COPY' => [q{COPY far FROM PROGRAM 'echo copied'}, 'copied'],
	'a function' => [q{SELECT insert_far('function')}, 'function'],
	'an expression that is none of SQL' => [q{DO $$ DECLARE a text := insert_far('do'); BEGIN END $$}, 'do'],
	'a trigger' => [q{INSERT INTO near VALUES ('trigger')}, 'trigger'],
	'a deferred trigger' => [q{INSERT INTO near_deferred VALUES ('deferred')}, 'deferred'],
	'a SELECT, then an INSERT' => [q{SELECT * FROM far}, q{INSERT INTO far VALUES ('read')}, 'read'],
	'ANALYZE' => [q{ANALYZE far}, q{INSERT INTO far VALUES ('analyzed')}, 'analyzed'],
	'IMPORT FOREIGN SCHEMA' =>
	  [ q{IMPORT FOREIGN SCHEMA public LIMIT TO (effect) FROM SERVER remote INTO pg_temp}, q{INSERT INTO pg_temp.effect VALUES ('imported')}, 'imported' ],
	'EXPLAIN' => [q{EXPLAIN SELECT * FROM estimated WHERE what = 'x'}, q{INSERT INTO far VALUES ('explained')}, 'explained'],
	'a savepoint' => [q{SAVEPOINT s}, q{INSERT INTO far VALUES ('saved')}, q{RELEASE s}, 'saved'],
	'a savepoint that fails' =>
	  [ q{DO $$ BEGIN INSERT INTO far VALUES ('failed'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$},
		q{INSERT INTO far VALUES ('after')}, 'after' ],
	'a cursor' => [q{DECLARE c CURSOR WITH HOLD FOR SELECT insert_far('cursor')}, 'cursor']);

for my $how (sort keys %use)
{
	my @statements = @{ $use{$how} };
	my $effect = pop @statements;

	is(sent($load, 'BEGIN', $begin, @statements, 'COMMIT'), 'ID428  ', "$how: refused before it takes effect");
	is(sent('BEGIN', $begin, @statements, 'COMMIT'), 'ID428  ', "$how: in a session that loads the library then");
	is(sent('BEGIN', $begin, @statements, $end, 'COMMIT'), "$effect ", "$how: it takes effect with its record");
	next if $how eq 'a savepoint';
	is(sent($load, join('; ', $begin, @statements)), 'ID428  ', "$how: refused in one message without BEGIN");
	is(sent(join '; ', 'BEGIN', $begin, @statements, 'COMMIT'), 'ID428  ', "$how: in one message with BEGIN");
}

# ---- other ends ----

is(sent($load, 'BEGIN', $begin, $use{'an INSERT'}[0], q{PREPARE TRANSACTION 'p'}), 'ID428  ', 'PREPARE: refused before postgres_fdw refuses it');
for my $procedure ('commits', 'commits_deferred')
{
	is(sent($load, "CALL $procedure('SELECT 1')"), 'ID428  ', "$procedure: refused before it takes effect");
	is(sent("CALL $procedure('SELECT 1')"), 'ID428  ', "$procedure: in a session that loads the library then");
	is(sent("CALL $procedure(\$\$$end\$\$)"), 'procedure ', "$procedure: it takes effect with its record");
}
is(sent($load, 'BEGIN', $begin, $end, 'COMMIT AND CHAIN', $begin =~ s/late/later/r, $use{'an INSERT'}[0], 'COMMIT'), 'ID428  ',
	'after COMMIT AND CHAIN');
is(sent($load, 'BEGIN', $begin, 'ROLLBACK', 'BEGIN', $begin, $use{'an INSERT'}[0], 'COMMIT'), 'ID428  ', 'after a rollback');
is(sent($load, 'BEGIN', $begin, 'SAVEPOINT s', $end, $use{'an INSERT'}[0], 'ROLLBACK TO s', $use{'an INSERT'}[0], 'COMMIT'),
	'ID428  ', 'an end that a savepoint took back');

# ---- the extended protocol ----

sub pgbench ($mode, @script)
{
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script';
	my ($out, $error);

	$node->safe_psql('remote', 'TRUNCATE effect');
	query('DELETE FROM idempotency_store');
	append_to_file($file, join '', map { "$_\n" } @script);
	$node->run_log([ 'pgbench', '-n', '-t', 1, '-M', $mode, '-f', $file, $node->connstr('postgres') ], '>', \$out, '2>', \$error);
	return ($error =~ /neither completed/ ? 'refused ' : '') . $node->safe_psql('remote', 'SELECT what FROM effect');
}

for my $mode ('extended', 'prepared')
{
	my $insert = $use{'an INSERT'}[0];

	is(pgbench($mode, 'BEGIN;', "$begin;", "$insert;", 'COMMIT;'), 'refused ', "$mode: refused before it takes effect");
	is(pgbench($mode, 'BEGIN;', "$begin;", "$insert;", "$end;", 'COMMIT;'), 'inserted', "$mode: it takes effect with its record");
	is(pgbench($mode, '\startpipeline', "$begin;", "$insert;", '\endpipeline'), 'refused ', "$mode: in a pipeline without BEGIN");
	is(pgbench($mode, '\startpipeline', "$begin;", "SELECT insert_far('selected');", '\endpipeline'), 'refused ', "$mode: by a SELECT");
	is(pgbench($mode, '\startpipeline', "$begin;", "$insert;", "$end;", '\endpipeline'), 'inserted', "$mode: with its record");
}

# ---- any extension ----

my $late = q{SELECT run_at_commit('SELECT 1')};

is(sent($load, 'BEGIN', $begin, $late, 'COMMIT'), 'ID428  ', 'another extension: refused before it acts');
is(sent($load, "$begin; $late"), 'ID428  ', 'another extension: in one message without BEGIN');
is(sent($load, 'BEGIN', $begin, $late, $end, 'COMMIT'), ' acted', 'another extension: it acts when nothing is unfinished');
is(sent($load, 'BEGIN', $begin, "DO \$\$ BEGIN PERFORM run_at_commit('SELECT 1'); END \$\$", 'COMMIT'),
	'ID428  ', 'another extension: from a DO block');
is(sent($late, $load, 'BEGIN', $late, $begin, 'COMMIT'), 'ID428  acted', 'another extension: it was there before the library');
is(sent($load, 'CALL takes_an_end_back()'), 'ID428  ', 'another extension: after an end that an error took back');
is(sent($load, 'BEGIN', 'SELECT 1/0', 'COMMIT', 'CALL takes_an_end_back()'), '22012 ID428  ', 'the same after a COMMIT that rolled back');

# It begins an operation itself, in its callback.
my $begins = q{SELECT run_at_commit('SELECT idem_begin(''at commit'')')};
my @whole = ('BEGIN', q{SELECT idem_begin('whole'), idem_complete('whole')}, 'COMMIT');

is(sent($load, 'BEGIN', $begins, 'COMMIT'), 'ID428  acted', 'a first begin during COMMIT is refused');
is(sent($load, 'BEGIN', $begins, $begin, $end, 'COMMIT', @whole), '25000  acted', 'a begin after the guard has passed is refused');
is(query('SELECT string_agg(idempotency_key, $$ $$) FROM idempotency_store'), 'whole', 'the next transaction knows nothing of that');

# ---- registrations do not pile up ----

query(q{
	CREATE TABLE used (before bigint, after bigint);
	CREATE FUNCTION top_memory() RETURNS bigint LANGUAGE sql
		AS $$ SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext' $$;
	CREATE FUNCTION many_statements() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE before bigint;
	BEGIN
		PERFORM idem_begin('loop');
		FOR i IN 1..10 LOOP PERFORM 1; END LOOP;
		before := top_memory();
		FOR i IN 1..20000 LOOP PERFORM 1; END LOOP;
		INSERT INTO used VALUES (before, top_memory());
		PERFORM idem_complete('loop');
	END $$});

for my $call ('SELECT many_statements()', 'DO $$ BEGIN PERFORM many_statements(); END $$')
{
	is(query("TRUNCATE used; DELETE FROM idempotency_store; $call; SELECT after - before < 20000 FROM used") =~ s/\s//gr,
		't', "one registration for many statements: $call");
}

done_testing();
