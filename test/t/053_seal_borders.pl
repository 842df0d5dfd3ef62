# Attacks on sealed responses by a role that owns the database, a function of
# pgcrypto in it, or the table, but has no seal key.
use Idempotency;

my $node = new_node('seal_borders', conf => "idempotency.seal_key_file = 'idempotency.keys'\n");
my $secret = '0123456789abcdef' x 4;

write_keys($node, "k1 $secret");

sub complete ($key, $response, $database = undef)
{
	return query("BEGIN; SELECT outcome FROM idem_begin('$key'); SELECT idem_complete('$key', '$response', code => 201); COMMIT", $database);
}

# ---- the owner of a member function of pgcrypto gets no key ----

query('CREATE ROLE landlord LOGIN');
query('CREATE DATABASE rented');
query(q{CREATE EXTENSION pgcrypto; CREATE EXTENSION idempotency;
	CREATE TABLE caught (argument text); GRANT ALL ON caught TO PUBLIC;
	GRANT ALL ON SCHEMA public TO landlord}, 'rented');

# Changes that the owner of a function can make; the test checks that each works.
my %body = (
	'pgp_sym_encrypt_bytea(bytea, text, text)' => 'INSERT INTO public.caught VALUES ($2); RETURN $1;',
	'pgp_sym_decrypt_bytea(bytea, text)' => 'INSERT INTO public.caught VALUES ($2); RETURN $1;');

for my $way ('REASSIGN OWNED', 'ALTER FUNCTION')
{
	for my $function (sort keys %body)
	{
		if ($way eq 'ALTER FUNCTION')
		{
			query("ALTER FUNCTION $function OWNER TO landlord", 'rented');
		}
		else
		{
			query("CREATE ROLE middleman; ALTER FUNCTION $function OWNER TO middleman; REASSIGN OWNED BY middleman TO landlord; DROP ROLE middleman", 'rented');
		}
		query("SET ROLE landlord; CREATE OR REPLACE FUNCTION $function RETURNS bytea LANGUAGE plpgsql AS 'BEGIN $body{$function} END'", 'rented');
		is(query("SELECT l.lanname, d.deptype FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
			JOIN pg_depend d ON d.objid = p.oid AND d.refclassid = 'pg_extension'::regclass
			WHERE p.oid = '$function'::regprocedure", 'rented'),
			'plpgsql|e', "$way: $function is the landlord's own and a member of pgcrypto all the same");
	}
	is(complete("by $way", '{"a": 1}', 'rented'), "ACQUIRED\n", "$way: a response is stored");
	is(query("SELECT outcome, response_payload FROM idem_begin('by $way')", 'rented'), 'COMPLETED|{"a": 1}', "$way: and replayed");
	is(query("SELECT idem_reseal()", 'rented'), '0', "$way: nothing to seal anew");
	is(query('SELECT count(*) FROM caught', 'rented'), '0', "$way: the functions of the landlord were not called");
	is(query("SELECT seal_key, get_byte(sealed, 0) FROM idempotency_store WHERE idempotency_key = 'by $way'", 'rented'), 'k1|195', "$way: sealed by the real one");
	query('DROP EXTENSION pgcrypto; CREATE EXTENSION pgcrypto', 'rented');
}
is(query("SELECT pgp_sym_encrypt_bytea('a', '$secret') IS NOT NULL", 'rented'), 't', 'the control: a function that is called leaves a trace');
query("CREATE OR REPLACE FUNCTION pgp_sym_decrypt_bytea(bytea, text) RETURNS bytea LANGUAGE plpgsql AS 'BEGIN $body{'pgp_sym_decrypt_bytea(bytea, text)'} END'", 'rented');
query("SELECT pgp_sym_decrypt_bytea('a', '$secret')", 'rented');
is(query('SELECT count(*) FROM caught', 'rented'), '1', 'this one');
query('DROP EXTENSION pgcrypto', 'rented');
is(sqlstate($node, q{SELECT idem_begin('by ALTER FUNCTION')}, 'rented'), '55000', 'without the extension nothing is opened');
is(sqlstate($node, q{BEGIN; SELECT idem_begin('k'); SELECT idem_complete('k', '1')}, 'rented'), '55000', 'nor sealed');

# ---- a role with write access to the table changes no answer ----

query('CREATE EXTENSION pgcrypto');
complete($_, '{"paid": 100}') for qw(genuine other);
query(q{CREATE TABLE kept AS SELECT * FROM idempotency_store});

sub put_back
{
	query(q{DELETE FROM idempotency_store; INSERT INTO idempotency_store SELECT * FROM kept});
	return;
}

# The operation answers with that SQLSTATE, and nothing runs again.
sub refused ($state, $name, $change)
{
	query($change);
	is(sqlstate($node, q{SELECT idem_begin('genuine')}), $state, "$name: idem_begin");
	is(sqlstate($node, q{SELECT idem_lookup('genuine')}), $state, "$name: idem_lookup");
	is(query(q{SELECT count(*) FROM idempotency_store}), '2', "$name: the record stays");
	put_back();
	return;
}

my $set = q{UPDATE idempotency_store SET };
my $of_genuine = q{ WHERE idempotency_key = 'genuine'};
my $answer = sub { return query(q{SELECT outcome, response_code, response_payload FROM idem_begin('genuine')}) };
my $genuine = 'COMPLETED|201|{"paid": 100}';

is($answer->(), $genuine, 'the genuine answer');

# A message without a modification code, as pgcrypto makes and opens it: what is
# inside is genuine here, but others could change it without knowing the key.
my $options = 'cipher-algo=aes256, compress-algo=0, s2k-mode=1, s2k-digest-algo=sha256';
my $plain = "pgp_sym_decrypt_bytea(sealed, '$secret')";

query("$set sealed = pgp_sym_encrypt_bytea($plain, '$secret', '$options') $of_genuine");
is($answer->(), $genuine, 'the control: sealed in the same way by somebody who has the key');
put_back();
refused('XX001', 'without a modification code', "$set sealed = pgp_sym_encrypt_bytea($plain, '$secret', '$options, disable-mdc=1') $of_genuine");
is(query("SELECT get_byte(pgp_sym_encrypt_bytea('a', '$secret', '$options, disable-mdc=1'), 14) & 63, get_byte(pgp_sym_encrypt_bytea('a', '$secret', '$options'), 14) & 63"),
	'9|18', 'these are the two kinds of packets');
# pgcrypto skips marker packets
refused('XX001', 'another packet before it', "$set sealed = '\\xca03504750'::bytea || sealed $of_genuine");
refused('XX001', 'a marker between the packets', "$set sealed = substr(sealed, 1, 14) || '\\xca03504750'::bytea || pgp_sym_encrypt_bytea($plain, '$secret', '$options, disable-mdc=1') $of_genuine");
# with a long marker, a byte in it is where the second packet is taken to be
my $disguised = "'\\xcac008'::bytea || decode(repeat('00', 191), 'hex') || '\\xd2'::bytea || decode(repeat('00', 8), 'hex')"
  . " || pgp_sym_encrypt_bytea('a', '$secret', '$options, disable-mdc=1')";
is(query("SELECT get_byte($disguised, 194), pgp_sym_decrypt_bytea($disguised, '$secret')"), '210|\x61', 'pgcrypto opens a message in disguise');
refused('XX001', 'a message in disguise', "$set sealed = " . $disguised =~ s/'a'/$plain/r . " $of_genuine");
refused('XX001', 'cut off', "$set sealed = substr(sealed, 1, 14) $of_genuine");
refused('XX001', 'one byte', "$set sealed = substr(sealed, 1, 1) $of_genuine");
refused('XX001', 'more after the end', "$set sealed = pgp_sym_encrypt_bytea($plain || '\\x00', '$secret', '$options') $of_genuine");

# The values of the row that the message contains
refused('XX001', 'another status', "$set status = 'FAILED' $of_genuine");
refused('XX001', 'another code', "$set response_code = 500 $of_genuine");
refused('XX001', 'no code', "$set response_code = NULL $of_genuine");
refused('XX001', 'another attempt', "$set attempt = 2 $of_genuine");
refused('XX001', 'the message of another operation', "$set sealed = (SELECT sealed FROM kept WHERE idempotency_key = 'other') $of_genuine");

# A response in clear over a sealed one
refused('55000', 'in clear', qq{$set sealed = NULL, seal_key = NULL, response_payload = '{"paid": 1}' $of_genuine});
refused('55000', 'headers in clear', qq{$set sealed = NULL, seal_key = NULL, response_headers = '{"paid": 1}' $of_genuine});
refused('55000', 'a body in clear', qq{$set sealed = NULL, seal_key = NULL, response_body = 'paid' $of_genuine});
query(qq{$set response_payload = '{"paid": 1}' $of_genuine});
is($answer->(), $genuine, 'beside the sealed response it is not looked at');
put_back();
unlike(($node->psql('postgres', qq{BEGIN; $set sealed = NULL, seal_key = NULL, response_payload = '{"paid": 1}' $of_genuine; SELECT idem_begin('genuine')}))[2],
	qr/paid/, 'the message shows nothing of it');

# until idem_reseal has sealed the responses from before the key
query('CREATE ROLE app; SELECT idem_grant(\'app\')');
query(qq{$set sealed = NULL, seal_key = NULL, response_payload = '{"paid": 1}' $of_genuine});
is(sqlstate($node, q{SET ROLE app; SET idempotency.accept_clear_responses = on}), '42501', 'an application cannot have it accepted');
is(query(q{SET idempotency.accept_clear_responses = on; SELECT response_payload FROM idem_begin('genuine')}), '{"paid": 1}', 'a superuser can');
{
	my ($status, $sealed, $notices) = $node->psql('postgres', 'SELECT idem_reseal()');

	is($sealed, '1', 'idem_reseal takes it');
	like($notices, qr/NOTICE:  1 response that was in clear is sealed now/, 'and says so');
}
is($answer->(), 'COMPLETED|201|{"paid": 1}', 'then it is as good as any');
put_back();

# Not protected, and documented: somebody removes a response, or puts a whole
# older row back.
query(qq{$set sealed = NULL, seal_key = NULL $of_genuine});
is($answer->(), 'COMPLETED|201|', 'a response that was taken away');
put_back();
is($answer->(), $genuine, 'an older row as a whole');

done_testing();
