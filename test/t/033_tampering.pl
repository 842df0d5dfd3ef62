# Settings that a session changes without a right to, most of all if
# the library is loaded late and the server does not know them yet; and a pgcrypto
# that belongs to the owner of the database.
use Idempotency;

my $node = new_node('tampering', conf => "shared_preload_libraries = ''\nidempotency.seal_key_file = 'idempotency.keys'\nidempotency.max_response_size = 20\nidempotency.max_operations_per_transaction = 2\n");
my $key_file = $node->data_dir . '/idempotency.keys';
my $mine = PostgreSQL::Test::Utils::tempdir() . '/mine';
my $number = 0;

for my $file ([ $key_file, 'k1' ], [ $mine, 'mine' ])
{
	append_to_file($file->[0], "$file->[1] " . ('0123456789abcdef' x 4) . "\n");
	chmod 0600, $file->[0];
}
query(q{
	CREATE EXTENSION pgcrypto;
	CREATE ROLE app LOGIN; SELECT idem_grant('app');
	CREATE ROLE landlord LOGIN; CREATE DATABASE rented OWNER landlord});

# A new session of the application changes settings, then works. Returns its
# answers, and the name of the key that sealed the response.
sub work ($tamper, %option)
{
	my $key = 'k' . ++$number;
	my $response = $option{response} // '1';
	my $before = query('SELECT count(*) FROM idempotency_store');
	my ($status, $stdout, $stderr);

	local $ENV{PGOPTIONS} = $option{options} // '';
	$node->psql('postgres', "$tamper; BEGIN; SELECT idem_begin('$key'); SELECT idem_complete('$key', '$response'); COMMIT",
		stdout => \$stdout, stderr => \$stderr, on_error_stop => 0, extra_params => [ '-U', 'app', '-v', 'VERBOSITY=sqlstate' ]);
	delete $ENV{PGOPTIONS};
	my $row = query("SELECT coalesce(seal_key, 'in clear') FROM idempotency_store WHERE idempotency_key = '$key'");
	my $errors = join ' ', $stderr =~ /ERROR:\s+(\w{5})/g;

	return join ' ', grep { $_ ne '' } $row, $errors;
}

is(work('SELECT 1'), 'k1', 'the settings of the server hold, though the library is loaded late');
is(work("SET idempotency.seal_key_file = '$mine'"), 'k1', 'another key file, SET before the library is loaded');
is(work("SET idempotency.seal_key_file = ''"), 'k1', 'none');
is(work("BEGIN; SET LOCAL idempotency.seal_key_file = ''; SELECT idem_step_key('a', 'b'); COMMIT"), 'k1', 'SET LOCAL');
is(work("SELECT set_config('idempotency.seal_key_file', '', false)"), 'k1', 'set_config');
is(work('RESET idempotency.seal_key_file'), 'k1', 'RESET');
is(work('RESET ALL; DISCARD ALL'), 'k1', 'RESET ALL');
is(work('SELECT 1', options => "-c idempotency.seal_key_file=$mine"), 'k1', 'with the connection');
is(work("SELECT idem_step_key('a', 'b'); SET idempotency.seal_key_file = ''"), 'k1 55P02', 'when it is loaded: an error');
for my $alter ("ALTER ROLE app SET idempotency.seal_key_file = ''", "ALTER DATABASE postgres SET idempotency.seal_key_file = '$mine'",
	"ALTER ROLE app IN DATABASE postgres SET idempotency.seal_key_file = '$mine'")
{
	# a session that has not loaded the library yet shows the value of the client
	query($alter);
	is(work('SELECT 1'), 'k1', "$alter, by a superuser");
	$node->safe_psql('postgres', $alter =~ s/SET (\S+) .*/RESET $1/r);
}
$node->psql('postgres', "ALTER ROLE app SET idempotency.seal_key_file = '$mine'", extra_params => [ '-U', 'app' ]);
is(work('SELECT 1'), 'k1', 'ALTER ROLE by the role itself');
query('ALTER ROLE app RESET ALL');

# Settings that protect the server
is(work('SELECT 1', response => '"' . ('x' x 30) . '"'), 'ID413', 'the limit of the response');
is(work('SET idempotency.max_response_size = 1000', response => '"' . ('x' x 30) . '"'), 'ID413', 'SET before the library is loaded');
is(work('SELECT 1', response => '"' . ('x' x 30) . '"', options => '-c idempotency.max_response_size=1000'), 'ID413', 'with the connection');
is(work("SET idempotency.max_operations_per_transaction = 1000; BEGIN; SELECT idem_lock(ARRAY['a', 'b', 'c']); ROLLBACK"), 'k1 53400', 'the limit of locks');
is(work('SET idempotency.retention = 1'), 'k1', 'what everybody may set does no harm');

# The name of the file is no secret, but its contents are.
is($node->safe_psql('postgres', 'SHOW idempotency.seal_key_file', extra_params => [ '-U', 'app' ]), 'idempotency.keys', 'before the library is loaded everybody sees where the file is');
is(($node->psql('postgres', "SELECT idem_step_key('a', 'b'); SHOW idempotency.seal_key_file", extra_params => [ '-U', 'app', '-v', 'VERBOSITY=sqlstate' ]))[2],
	'psql:<stdin>:1: ERROR:  42501', 'afterwards not');
is(sqlstate($node, "SET ROLE app; SELECT pg_read_file('idempotency.keys')"), '42501', 'and nobody reads it by SQL who may not read the files of the server');

# The owner of the database may create pgcrypto in it, but gets no key: he cannot
# change the functions that get the key.
$node->safe_psql('rented', 'CREATE EXTENSION idempotency');
my $landlord = sub { my ($sql) = @_; return ($node->psql('rented', $sql, extra_params => [ '-U', 'landlord', '-v', 'VERBOSITY=sqlstate' ]))[2] =~ /ERROR:\s+(\w{5})/ ? $1 : 'ok' };
is($landlord->('CREATE SCHEMA mine'), 'ok', 'a schema of the owner of the database');
is($landlord->('CREATE EXTENSION pgcrypto SCHEMA mine'), 'ok', 'and pgcrypto');
for my $sql ('ALTER EXTENSION pgcrypto DROP FUNCTION mine.pgp_sym_encrypt_bytea(bytea, text, text)', 'DROP FUNCTION mine.pgp_sym_encrypt_bytea(bytea, text, text)',
	'ALTER FUNCTION mine.pgp_sym_encrypt_bytea(bytea, text, text) RENAME TO gone', 'ALTER FUNCTION mine.pgp_sym_encrypt_bytea(bytea, text, text) SET SCHEMA public',
	q{CREATE OR REPLACE FUNCTION mine.pgp_sym_encrypt_bytea(bytea, text, text) RETURNS bytea LANGUAGE sql AS 'SELECT $1'}, 'ALTER EXTENSION pgcrypto SET SCHEMA public')
{
	isnt($landlord->($sql), 'ok', "refused: $sql");
}
$landlord->('CREATE SCHEMA pgcrypto; ALTER ROLE landlord SET search_path = pgcrypto, mine, public');
is($landlord->(q{CREATE FUNCTION pgcrypto.pgp_sym_encrypt_bytea(bytea, text, text) RETURNS bytea LANGUAGE plpgsql AS $$BEGIN RAISE '%', $2; END$$}), 'ok', 'one that looks like it');
$node->safe_psql('rented', q{SELECT idem_grant('landlord')});
is($landlord->(q{BEGIN; SELECT idem_begin('k'); SELECT idem_complete('k', '1'); COMMIT}), 'ok', 'is not called');
is($node->safe_psql('rented', 'SELECT seal_key FROM idempotency_store'), 'k1', 'the response is sealed');

# A claim holds for sessions that have read the rules before: from their next transaction on.
query('CREATE ROLE payers');
{
	my $session = session($node);

	ask($session, 'SET ROLE app');
	is(ask($session, q{SELECT idem_lookup('none', 'late') IS NULL}), 't', 'before the claim');
	query(q{SELECT idem_claim_scope('late', 'payers')});
	eval { ask($session, q{SELECT idem_lookup('none', 'late')}) };
	like($@, qr/may not use scope "late"/, 'after it');
	query(q{GRANT payers TO app});
	is(ask($session, q{SELECT idem_lookup('none', 'late') IS NULL}), 't', 'a member from the grant on');
	query(q{REVOKE payers FROM app});
	eval { ask($session, q{SELECT idem_lookup('none', 'late')}) };
	like($@, qr/may not use scope "late"/, 'and no longer than it');
	query(q{DELETE FROM idempotency_scope});
	is(ask($session, q{SELECT idem_lookup('none', 'late') IS NULL}), 't', 'whoever changes the table by hand is noticed as well');
	$session->quit;
}

done_testing();
