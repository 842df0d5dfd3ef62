# Keys and scopes in databases of EUC encodings, whose characters have up to four bytes:
# limits count characters, and nothing is cut within one.
use Encode qw(encode);
use Idempotency;

my $node = new_node('euc');

# By encoding: a character of as many bytes as it has, and another one.
my %characters = (
	EUC_JP => [ "\x{4e02}", "\x{65e5}", 3 ],
	EUC_KR => [ "\x{d55c}", "\x{ae00}", 2 ],
	EUC_CN => [ "\x{4e2d}", "\x{6587}", 2 ],
	EUC_TW => [ "\x{4e42}", "\x{4e2d}", 4 ]);
my $database;

sub run ($sql)
{
	my ($out, $error);

	$node->psql($database, encode('UTF-8', "SET client_encoding = 'UTF8';\n$sql"), stdout => \$out, stderr => \$error, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $error ne '' ? $error : $out =~ s/\n+/ /gr =~ s/^ | $//gr;
}

query('CREATE ROLE euc_owner; CREATE ROLE euc_other');
for my $encoding (sort keys %characters)
{
	my ($one, $two, $bytes) = @{ $characters{$encoding} };
	my $longest = $one x 255;
	my $another = $one x 254 . $two;
	my $once = q{BEGIN; SELECT outcome FROM idem_begin('%1$s', request => '"%3$s"', scope => '%2$s') \gset
\if `test :outcome = ACQUIRED && echo 1 || echo 0`
SELECT FROM idem_complete('%1$s', '"%3$s"', '%2$s');
\endif
COMMIT; SELECT :'outcome'};

	$database = lc $encoding;
	query("CREATE DATABASE $database TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($database, 'CREATE EXTENSION idempotency');
	is(run("SELECT octet_length('$one')"), $bytes, "$encoding: a character of $bytes bytes");
	is(run(sprintf $once, $longest, $longest, $one), 'ACQUIRED', "$encoding: a key and a scope of 255 characters");
	is(run(sprintf $once, $longest, $longest, $one), 'COMPLETED', "$encoding: are found again");
	is(run(sprintf $once, $another, $longest, $one), 'ACQUIRED', "$encoding: the last character of the key counts");
	is(run(sprintf $once, $longest, $another, $one), 'ACQUIRED', "$encoding: and that of the scope");
	is(run(sprintf $once, $longest, $longest, $two) =~ /ID422: operation "\Q${\ encode('UTF-8', $longest)}\E" of scope "\Q${\ encode('UTF-8', $longest)}\E"/ ? 1 : 0,
		1, "$encoding: a message has all of the key and the scope");
	like(run("SELECT idem_begin('$longest$one')"), qr/ID400: key must not be longer than 255 characters/, "$encoding: 256 are refused");
	like(run("SELECT idem_begin('k', scope => '$longest$one')"), qr/ID400/, "$encoding: also in a scope");
	is(run(sprintf q{SELECT (idem_lookup('%1$s', '%1$s')).outcome, (SELECT count(DISTINCT idempotency_key) FROM idempotency_store)}, $longest), 'COMPLETED|2', "$encoding: as stored");
	$node->safe_psql($database, q{SELECT idem_grant('euc_owner'), idem_grant('euc_other')});
	run("SELECT idem_claim_scope('$one*', 'euc_owner')");
	like(run("SET ROLE euc_other; SELECT idem_begin('k', scope => '$one$two')"), qr/ID403/, "$encoding: a claimed pattern");
	is(run("SET ROLE euc_owner; SELECT outcome FROM idem_begin('k', scope => '$one$two', lease => '1 hour')"), 'ACQUIRED', "$encoding: is open to its role");
	is(run("SET ROLE euc_other; SELECT outcome FROM idem_begin('k', scope => '$two$one', lease => '1 hour')"), 'ACQUIRED', "$encoding: and no other scope is closed");
	is(run("SELECT idem_lock('{$longest}') IS NOT NULL, idem_advance('$longest', 1)"), 't|t', "$encoding: a resource and a stream");
}

done_testing();
