# A fingerprint costs in proportion to the text of the request,
# can be cancelled, equals the one that a client computes from the JSON text, and
# is the same in databases of every encoding.
use Canonical;
use Encode qw(decode encode);
use Idempotency;

my $node = new_node('fingerprint');
my $seed = $ENV{FINGERPRINT_SEED} // int rand 2**31;

note "FINGERPRINT_SEED=$seed";
srand $seed;

# U+10FFFD and not U+10FFFF: for a noncharacter Encode writes U+FFFD, so that two
# names of one object could become one.
my %alphabet = (
	UTF8 => [ 'a' .. 'e', "\x{e9}", "\x{fc}", "\x{3042}", "\x{10fffd}", "\x{1f600}", ' ', "\n", '"', '\\' ],
	LATIN1 => [ 'a' .. 'e', map { chr } 0xa1 .. 0xff ],
	EUC_JP => [ 'a' .. 'e', "\x{3042}", "\x{30a2}", "\x{6f22}", "\x{5b57}", "\x{ff71}" ],
	# the bytes are taken as they are: a client of SQL_ASCII sends UTF-8
	SQL_ASCII => [ 'a' .. 'e', "\x{e9}", "\x{3042}" ]);

# ---- random documents ----

sub one_of { return $_[ rand @_ ] }

sub digits { return join '', map { one_of(0, 0, 1, 5, 9) } 1 .. 1 + rand $_[0] }

sub random_number
{
	my $whole = one_of(0, '', digits(1), digits(6), digits(40));

	$whole =~ s/^0+(?=\d)//;
	$whole = 0 if $whole eq '';
	return one_of('', '-') . $whole
	  . one_of('', '', '.' . digits(5), '.' . digits(50), '.' . '0' x (1 + rand 20))
	  . one_of('', '', 'e' . int rand 10, 'E+' . int rand 300, 'e-' . int rand 300, 'e100000', 'e-16000');
}

sub random_string ($alphabet, $length)
{
	my $string = join '', map { one_of(@$alphabet) } 1 .. rand $length;

	$string =~ s/([\\"])/\\$1/g;
	$string =~ s/\n/\\n/g;
	$string =~ s/([^\x00-\x7f])/one_of($1, $1, escaped($1))/ge;
	return qq("$string");
}

sub escaped ($character)
{
	return join '', map { sprintf '\\u%04x', $_ } unpack 'n*', encode('UTF-16BE', $character);
}

sub random_json ($alphabet, $depth)
{
	my $kind = int rand($depth > 0 ? 9 : 6);
	my $space = one_of('', ' ', "\n\t");

	return one_of('null', 'true', 'false') if $kind < 2;
	return random_number() if $kind < 4;
	return random_string($alphabet, one_of(3, 10, 3000)) if $kind < 6;
	return "[$space" . join("$space,", map { random_json($alphabet, $depth - 1) } 1 .. rand 6) . ']' if $kind < 7;
	return "{$space"
	  . join(",$space",
		map { random_string($alphabet, 4) . "$space:$space" . random_json($alphabet, $depth - 1) } 1 .. rand 8)
	  . "$space}";
}

my $file = PostgreSQL::Test::Utils::tempdir() . '/documents.sql';

# The fingerprints that a database computes.
sub fingerprints ($database, @documents)
{
	my $client = $database =~ /sql_ascii|win|mule/ ? '' : "SET client_encoding = 'UTF8';\n";
	my ($out, $error);

	unlink $file;
	append_to_file($file, encode('UTF-8', $client . join '', map { "SELECT encode(idem_fingerprint(\$json\$$_\$json\$), 'hex');\n" } @documents));
	$node->psql($database, '', stdout => \$out, stderr => \$error, extra_params => [ '-f', $file ]);
	note "$database: ", substr($error, 0, 1000) if $error ne '';
	return split /\n/, $out;
}

for my $encoding (sort keys %alphabet)
{
	my @documents = ('0', '-0.0e5', '1e131071', '""', '{}', '[]', map { random_json($alphabet{$encoding}, 4) } 1 .. 300);
	my $database = lc $encoding;
	my (@got, @different);

	# without its "\u": SQL_ASCII cannot say what that is in bytes
	if ($encoding eq 'SQL_ASCII')
	{
		s/\\u(....)/chr hex $1/ge for @documents;
	}
	query("CREATE DATABASE $database TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($database, 'CREATE EXTENSION idempotency');
	@got = fingerprints($database, @documents);
	@different = grep { $got[$_] ne fingerprint($documents[$_]) } 0 .. $#documents;
	is(scalar @got, scalar @documents, "$encoding: every document has a fingerprint");
	is(join("\n", map { encode('UTF-8', substr $documents[$_], 0, 200) } grep { defined } @different[ 0 .. 2 ]),
		'', "$encoding: they are what is computed from the text");
}

# Names whose order differs: by length and bytes, of one encoding and the other.
my $names = qq({"\x{e9}": 1, "zz": 2, "y": {"\x{fc}\x{fc}": 3, "zzz": 4}});
is((fingerprints('latin1', $names))[0], (fingerprints('utf8', $names))[0], 'members are hashed in the order of UTF-8');

# ---- keys of steps ----

sub step_key ($database)
{
	return $node->safe_psql($database,
		encode('UTF-8', "SET client_encoding = 'UTF8'; SELECT idem_step_key(repeat('\x{e9}', 254), 'step')"));
}

is(step_key('latin1'), step_key('utf8'), 'so are the keys of steps');
like(step_key('latin1'), qr/^sha256:/, 'which are hashes');

# ---- characters of an encoding that UTF-8 does not have ----

# WIN1252 has bytes that are no characters; from MULE_INTERNAL there is no way at all.
# 19 no longer has that.
for my $encoding ('WIN1252', $node->pg_version->major < 19 ? 'MULE_INTERNAL' : ())
{
	my $database = lc $encoding;
	my $error;

	query("CREATE DATABASE $database TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($database, 'CREATE EXTENSION idempotency');
	$node->psql($database, q{SELECT idem_fingerprint(to_jsonb(E'Secret\x81\xe9'::text))},
		stderr => \$error, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($error, qr/22P05: .*has no equivalent in UTF-8/, "$encoding: what UTF-8 does not have is refused");
	unlike($error =~ s/^LINE.*//mr, qr/Secret|0x/, "$encoding: and not shown");
	is((fingerprints($database, '"plain"'))[0], fingerprint('"plain"'), "$encoding: ASCII is the same everywhere");
}

# ---- a dump that goes into another encoding ----

sub life ($name)
{
	return encode('UTF-8', <<"SQL");
SET client_encoding = 'UTF8';
BEGIN;
SELECT outcome FROM idem_begin('cl\x{e9}-$name', request => '{"\x{e9}": "\x{fc}", "zz": 1.0}', scope => 'd\x{e9}p\x{f4}t');
SELECT idem_complete('cl\x{e9}-$name', '"\x{e9}t\x{e9}"', scope => 'd\x{e9}p\x{f4}t');
COMMIT;
SQL
}

sub replay ($database, $name, $json)
{
	my ($out, $error);

	$node->psql($database, encode('UTF-8', "SET client_encoding = 'UTF8'; "
		. "SELECT outcome, replayed, response_payload FROM idem_begin('cl\x{e9}-$name', request => '$json', scope => 'd\x{e9}p\x{f4}t')"),
		stdout => \$out, stderr => \$error);
	return decode('UTF-8', $out) . ($error =~ /(different request)/ ? $1 : $error);
}

$node->safe_psql('latin1', life('clear'));
reconfigure($node, 'idempotency.accept_clear_responses' => 'on', 'idempotency.seal_key_file' => write_keys($node, 'k1 ' . '0123456789abcdef' x 4));
$node->safe_psql('latin1', 'CREATE EXTENSION pgcrypto');
$node->safe_psql('latin1', life('sealed'));
is($node->safe_psql('latin1', q{SELECT count(*), count(sealed), count(hash_key) FROM idempotency_store}), '2|1|1', 'one of two is sealed');

dump_and_restore('latin1', 'restored', 'plain', q{ENCODING 'UTF8'});
for my $database ('latin1', 'restored')
{
	for my $name ('clear', 'sealed')
	{
		is(replay($database, $name, qq({"zz": 1, "\x{e9}": "\x{fc}"})), qq(COMPLETED|t|"\x{e9}t\x{e9}"), "$database, $name: the request is the same");
		is(replay($database, $name, qq({"zz": 1, "\x{e9}": "u"})), 'different request', "$database, $name: another one is not");
	}
}

# ---- time and memory ----

# The most memory that a backend has ever had, in MB.
sub peak ($session)
{
	my $pid = ask($session, 'SELECT pg_backend_pid()');
	my ($kilobytes) = slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+)/m;

	return $kilobytes / 1024;
}

SKIP:
{
	skip 'no /proc', 2 unless -e '/proc/self/status';
	my $session = session($node, 'utf8');
	my $json = '[' . join(',', ('1e131071') x 3000) . ']';
	my ($before, $after);

	ask($session, q{SELECT length(idem_fingerprint('[1e131071]'))});
	$before = peak($session);
	is(ask($session, "SELECT encode(idem_fingerprint('$json'), 'hex')"), fingerprint($json), 'numbers of many digits');
	$after = peak($session);
	cmp_ok($after - $before, '<', 20, 'are not spelled out');
	$session->quit;
}

# Memory in the contexts that live as long as the session.
sub kept ($session)
{
	return ask($session, q{SELECT sum(used_bytes) FROM pg_backend_memory_contexts
		WHERE name = 'TopMemoryContext' OR name LIKE 'idem%'});
}

# nextval is not undone, so it shows whether the hash was computed to its end.
{
	my $session = session($node, 'utf8');
	my $cancelled = 0;
	my $before;

	ask($session, q{CREATE TABLE large AS SELECT jsonb_agg(i % 10) AS v FROM generate_series(1, 3000000) i;
		CREATE SEQUENCE hashed});
	for my $try (1 .. 8)
	{
		$cancelled++ if complaint($session, "SET statement_timeout = 100; SELECT idem_fingerprint(v), nextval('hashed') FROM large") =~ /statement timeout/;
		ask($session, 'RESET statement_timeout');
		$before = kept($session) if $try == 2;
	}
	is("$cancelled " . ask($session, 'SELECT is_called FROM hashed'), '8 f', 'a fingerprint is cancelled while it is computed');
	cmp_ok(kept($session) - $before, '<', 200, 'and leaves nothing behind');
	$session->quit;
}

done_testing();
