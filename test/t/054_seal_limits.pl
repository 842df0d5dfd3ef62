# Responses that are small in the database and large as text, that are
# nested too deeply to be opened again, and that are restored into a
# database of another encoding.
use Idempotency;

my $node = new_node('seal_limits');
my %secret = (k1 => '0123456789abcdef' x 4, k2 => 'fedcba9876543210' x 4, lost => 'f0e1d2c3b4a59687' x 4);

sub use_keys
{
	return write_keys($node, map { "$_ $secret{$_}" } @_);
}

sub complete ($key, $response, $database = undef)
{
	return query("BEGIN; SELECT outcome FROM idem_begin('$key'); SELECT idem_complete('$key', $response); COMMIT", $database);
}

query('CREATE EXTENSION pgcrypto');
query(q{CREATE FUNCTION nested(levels int) RETURNS jsonb LANGUAGE sql AS $$ SELECT (repeat('[', levels) || repeat(']', levels))::jsonb $$});
# from before there is a key: two that are good, and one that is nested too deeply
complete("clear $_", qq{'"$_"'}) for 1, 2;
complete('clear deep', 'nested(1001)');

use_keys('k1');
reconfigure($node, 'idempotency.seal_key_file' => 'idempotency.keys');

# ---- numbers ----

# 24 kB of text, of which each number has 131,072 digits when it is spelled out.
query(q{CREATE TABLE large AS SELECT ('[' || string_agg('1e131071', ',') || ']')::jsonb AS value FROM generate_series(1, 2600)});
complete('large', "(SELECT value FROM large)");
is(query(q{SELECT octet_length(sealed) < 100000 FROM idempotency_store WHERE idempotency_key = 'large'}), 't', 'numbers are sealed as short as they are');
is(query(q{SELECT response_payload = value FROM large, idem_lookup('large')}), 't', 'and replayed');
complete('large headers', "NULL, headers => (SELECT value FROM large)");
is(query(q{SELECT octet_length(sealed) < 100000 FROM idempotency_store WHERE idempotency_key = 'large headers'}), 't', 'in headers, too');

# The replay equals the response exactly: scale, order, kinds.
for my $json ('[1.00, 1, 1.0, -0.10, 0, 0.000, -0, 12345678901234567890.123456789, 1e-16383, 1e131071, 1.5e10, -2e-3]',
	'{}', '[]', '""', 'null', 'true', 'false', '1.50', '[null, true, false, "", {}, []]', '{"": {"": [[{}]]}}',
	'{"b": 1, "a": {"d": [1, {"c": null}], "aa": "x"}, "ab": []}', '"\\u20ac \\ud83d\\ude00 \\" \\\\ \\n\\t"')
{
	complete("json $json" =~ s/'/''/gr, "'$json'");
	is(query("SELECT response_payload::text = '$json'::jsonb::text FROM idem_lookup('json $json')"), 't', "to the letter: $json");
}

# ---- memory ----

# To seal or open a response takes several times its size.  A batch takes that for one response at a time.
query(q{CREATE FUNCTION megabytes() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT (sum(total_bytes) / 1000000)::int FROM pg_backend_memory_contexts';
	CREATE TABLE twenty AS SELECT array_agg('memory ' || i) AS keys, array_agg(response) AS megabyte_each
		FROM generate_series(1, 20) i, LATERAL (SELECT to_jsonb(string_agg(md5(i || ' ' || j), '')) FROM generate_series(1, 31000) j) _ (response)});
{
	my $keys = query('SELECT keys FROM twenty');

	like(query(q{BEGIN; SELECT count(*) FROM twenty, idem_begin_batch(keys); SELECT idem_complete_batch(keys, megabyte_each), megabytes() FROM twenty; COMMIT}),
		qr/^20\n20\|(?:2\d|3\d)$/, 'completed: that of the arguments and of one response');
	# the first of its rows: what it took is there until the next one
	cmp_ok(query("SELECT megabytes() FROM idem_begin_batch('$keys') LIMIT 1"), '<', 15, 'replayed: that of one response');
}

# ---- depth ----

complete('deepest', 'nested(1000)');
is(query(q{SELECT response_payload = nested(1000) FROM idem_lookup('deepest')}), 't', '1000 levels');
complete('deepest scalar', q{to_jsonb(1)});
for my $response ('nested(1001)', 'NULL, headers => nested(1001)', q{jsonb_build_object('a', nested(1000))}, 'nested(6000)')
{
	is(sqlstate($node, "BEGIN; SELECT idem_begin('deep'); SELECT idem_complete('deep', $response); COMMIT"), 'ID413', "refused: $response");
}
like(($node->psql('postgres', q{BEGIN; SELECT idem_begin('deep'); SELECT idem_complete('deep', nested(1001))}))[2],
	qr/response of operation "deep" of scope "" is nested too deeply to be sealed.*DETAIL.*1000 levels/s, 'with a clear message');
is(query(q{BEGIN; SELECT outcome FROM idem_begin('deep'); SAVEPOINT a; SELECT idem_complete('deep', '1'); ROLLBACK TO a; SELECT idem_release('deep'); COMMIT}),
	"ACQUIRED\n\nt", 'the operation can be tried again');
query(q{CREATE FUNCTION answer_deep(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT nested(1001)'});
is(sqlstate($node, q{SELECT idem_call('answer_deep(jsonb)', 'called deep')}), 'ID413', 'idem_call');
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key IN ('deep', 'called deep')}), '0', 'nothing of it is stored');

# A server with less stack than the one that sealed.
{
	my ($status, $stdout, $stderr) = $node->psql('postgres', q{SET max_stack_depth = '100kB'; SELECT idem_lookup('deepest') IS NOT NULL},
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	like($stderr, qr/54001: response of operation "deepest" of scope "" could not be opened/, 'too deep for max_stack_depth: the operation is named');
	like($stderr, qr/HINT:.*max_stack_depth/, 'with what to do');
}

# ---- idem_reseal passes over responses that it cannot open ----

# 30 rows of a key that is lost, before and between those that open
use_keys('k1', 'lost');
complete("lost $_", qq{'"$_"'}) for 1 .. 15;
use_keys('k1', 'lost', 'k2');
complete("good $_", qq{'"$_"'}) for 1 .. 3;
use_keys('k1', 'k2', 'lost');
complete("lost too $_", qq{'"$_"'}) for 1 .. 15;
use_keys('k1', 'k2');
{
	my $session = session($node);
	my $wanted = query(q{SELECT count(*) FROM idempotency_store WHERE seal_key = 'k1' OR seal_key IS NULL AND response_payload IS NOT NULL AND idempotency_key <> 'clear deep'});
	my ($sealed, $rounds, $got) = (0, 0, 0);

	cmp_ok($wanted, '>', 10, 'there are some that open');
	do
	{
		$session->{stderr} = '';
		$got = $session->query('SELECT idem_reseal(1)');
		$sealed += $got;
		$rounds++;
	} while ($got > 0 && $rounds <= $wanted);
	is("$sealed in $rounds", "$wanted in " . ($wanted + 1), 'one by one, each round finds another one, and the last none');
	my @warnings = $session->{stderr} =~ /^(?:psql:\S+ )?WARNING:.*$/mg;

	is(scalar @warnings, 11, 'not all of them are named');
	is(scalar(grep { /response of operation "(?:lost(?: too)? \d+|clear deep)" of scope "" was not sealed anew: \w/ } @warnings), 10, 'but ten, with the reason');
	like($warnings[-1], qr/31 responses were passed over, because they could not be sealed anew/, 'and how many there are');
	unlike($session->{stderr}, qr/\Q$secret{lost}\E|\[\[/, 'without secrets and responses');
	$session->quit;
}
is(query('SELECT idem_reseal()'), '0', 'another session finds nothing to do either');
is(query(q{SELECT string_agg(DISTINCT seal_key, ' ') FROM idempotency_store WHERE idempotency_key !~ '^lost'}), 'k2', 'all that opens is sealed with the newest key');
is(query(q{SELECT count(*) FROM idempotency_store WHERE seal_key = 'lost'}), '30', 'the others stay');
is(query(q{SELECT response_payload FROM idem_lookup('clear 2')}), '"2"', 'what was in clear opens');
is(sqlstate($node, q{SELECT idem_lookup('clear deep')}), '55000', 'and what could not be sealed stays refused');
use_keys('k1', 'k2', 'lost');
is(query(q{SELECT response_payload FROM idem_lookup('lost 7')}), '"7"', 'with the lost key they open again');

# An error that concerns all responses ends the call, as before.
query('DROP EXTENSION pgcrypto');
is(sqlstate($node, 'SELECT idem_reseal()'), '55000', 'no pgcrypto');
unlink $node->data_dir . '/idempotency.keys';
is(sqlstate($node, 'SELECT idem_reseal()'), '58P01', 'no file');
use_keys('k1', 'k2', 'lost');
query('CREATE EXTENSION pgcrypto');

# ---- encodings ----

# Characters as numbers, so that no client's encoding comes between.
my $u = q{chr(252)};	# LATIN SMALL LETTER U WITH DIAERESIS, in UTF8 and in LATIN1

my $complete = qq{BEGIN; SELECT count(*) FROM idem_begin('key ' || $u, scope => 'scope ' || $u);
	SELECT idem_complete('key ' || $u, jsonb_build_object('name ' || $u, 'value ' || $u), scope => 'scope ' || $u, headers => to_jsonb($u), body => '\\xfc'); COMMIT};
my $opens = qq{SELECT outcome, response_payload = jsonb_build_object('name ' || $u, 'value ' || $u), response_headers = to_jsonb($u), response_body
	FROM idem_lookup('key ' || $u, scope => 'scope ' || $u)};

for my $way ([ 'UTF8', 'LATIN1' ], [ 'LATIN1', 'UTF8' ])
{
	my ($from, $to) = @$way;

	query("CREATE DATABASE \L$from\E_from ENCODING '$from' LOCALE 'C' TEMPLATE template0");
	query('CREATE EXTENSION pgcrypto; CREATE EXTENSION idempotency', lc "${from}_from");
	query($complete, lc "${from}_from");
	query(q{BEGIN; SELECT idem_begin('euro'); SELECT idem_complete('euro', to_jsonb(chr(8364))); COMMIT}, lc "${from}_from") if $from eq 'UTF8';
	is(query($opens, lc "${from}_from"), 'COMPLETED|t|t|\xfc', "$from: it opens where it was sealed");
	dump_and_restore(lc "${from}_from", lc "${to}_to", 'plain', "ENCODING '$to' LOCALE 'C'");
	is(query($opens, lc "${to}_to"), 'COMPLETED|t|t|\xfc', "$from to $to: it opens");
	is(query('SELECT count(*) FROM idempotency_store WHERE sealed IS NOT NULL AND response_payload IS NULL', lc "${to}_to"), $from eq 'UTF8' ? '2' : '1', "$from to $to: sealed");
}
{
	my ($status, $stdout, $stderr) = $node->psql('latin1_to', q{SELECT idem_lookup('euro')}, extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	like($stderr, qr/22P05: response of operation "euro" of scope "" could not be opened.*character that the encoding of this database lacks/s,
		'a character that LATIN1 lacks: the operation is named');
}

# SQL_ASCII does not know the encoding of its bytes, and keeps them.
query(q{CREATE DATABASE ascii_only ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0});
query('CREATE EXTENSION pgcrypto; CREATE EXTENSION idempotency', 'ascii_only');
query($complete =~ s/\Q$u\E/(E'\\xfc'::text)/gr, 'ascii_only');
is(query($opens =~ s/\Q$u\E/(E'\\xfc'::text)/gr, 'ascii_only'), 'COMPLETED|t|t|\xfc', 'SQL_ASCII: bytes that are no UTF-8');

done_testing();
