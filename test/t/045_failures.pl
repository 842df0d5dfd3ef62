# Which errors of a handler idem_call stores, by their class: the table of the
# page, for every SQLSTATE of this server.  And the text of an error is stored
# whatever bytes it has, also sealed, in a database of any
# encoding.
use FindBin;
use Idempotency;

my $node = new_node('failures');
my $page = slurp_file("$FindBin::RealBin/../../docs/reference/idem_call.md");

# The classes in the table of the page, each with "stored" or "raised".
my %page;
for my $row ($page =~ /^(\|.*\| (?:stored|raised) \|.*)$/mg)
{
	my (undef, $classes, undef, $what) = split /\s*\|\s*/, $row;
	$page{$_} = $what for split /, /, $classes;
}
cmp_ok(scalar keys %page, '>=', 45, 'the page has a table of the classes');
is($page{"the application's own"}, 'stored', 'with one row for those of the application');

# Every SQLSTATE of this server.
chomp(my $share = `"$ENV{PG_CONFIG}" --sharedir`);
my $list = slurp_file("$share/errcodes.txt");
my %listed = map { $_ => 1 } $list =~ /^([0-9A-Z]{5})\s+[EWS]\s/mg;
my @states = grep { $_ ne '00000' } sort keys %listed;
my %known = map { substr($_, 0, 2) => 1 } keys %listed;
cmp_ok(scalar @states, '>', 200, 'the server has a list of its SQLSTATEs');
is(join(' ', grep { !exists $page{$_} } sort keys %known), '', 'the page has the class of each');
# 10 came with 17, and 72 went
is(join(' ', grep { /^..$/ && !$known{$_} && !/^(?:10|72|ID)$/ } sort keys %page), '', 'and no class that is none');

query(q{
	CREATE FUNCTION raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		RAISE EXCEPTION 'raised' USING ERRCODE = request ->> 0;
	END
	$$;
	CREATE FUNCTION what_happens(state text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		o idem_operation;
	BEGIN
		o := idem_call('raise(jsonb)', state, to_jsonb(state));
		RETURN CASE WHEN o.outcome = 'FAILED' AND NOT o.replayed AND o.response_payload ->> 'sqlstate' = state
			AND (idem_call('raise(jsonb)', state, to_jsonb(state))).replayed THEN 'stored' ELSE o::text END;
	EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
		RETURN CASE WHEN sqlstate = state AND idem_lookup(state) IS NULL THEN 'raised' ELSE sqlstate || ' ' || sqlerrm END;
	END
	$$});

# "stored" or "raised", by the page, for a SQLSTATE.
sub expected ($state)
{
	return $page{$state} // $page{ substr $state, 0, 2 } // $page{"the application's own"};
}

my @own = qw(45000 56000 A0001 I0001 XY000 ZZZZZ);
my @all = (@states, (map { "${_}X77" } grep { /^..$/ } sort keys %page), @own);
my %answer = map { split /\|/ } split /\n/, query('SELECT state, what_happens(state) FROM unnest(ARRAY[' . join(', ', map { "'$_'" } @all) . ']) state');
my @wrong = map { "$_: " . ($answer{$_} // 'no answer') . ', the page says ' . expected($_) }
  grep { ($answer{$_} // '') ne expected($_) } @all;
is(join("\n", @wrong), '', 'every SQLSTATE is stored or raised as the page says');
is(scalar(grep { expected($_) eq 'stored' } @own), scalar @own, 'those of the application are stored');

# ---- texts in any encoding ----

my $key_file = write_keys($node, 'k1 ' . '0123456789abcdef' x 4);

my $raise = q{
	CREATE EXTENSION idempotency;
	CREATE EXTENSION pgcrypto;
	CREATE FUNCTION raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		RAISE EXCEPTION USING MESSAGE = 'bad ' || raised(), DETAIL = raised(), HINT = repeat(raised(), 5000);
	END
	$$};

# The texts of a stored failure, in hexadecimal, twice: of the first answer and of the replay.
sub texts ($database, $key)
{
	my $call = "SELECT outcome, response_payload ->> 'sqlstate', encode((response_payload ->> 'message')::bytea, 'hex'), "
	  . "encode((response_payload ->> 'detail')::bytea, 'hex'), octet_length(response_payload ->> 'hint'), right(encode((response_payload ->> 'hint')::bytea, 'hex'), 4) "
	  . "FROM idem_call('raise(jsonb)', '$key', '1')";
	my ($result, $output, $errors) = $node->psql($database, $call);
	my ($again, $replayed, $other_errors) = $node->psql($database, $call);

	return "$output$errors" if $result != 0 || $again != 0 || $output ne $replayed;
	return $output;
}

# encoding, what is raised, and how it is stored
my @cases = (
	[ 'SQL_ASCII', q{E'\\xff'}, '3f' ],
	[ 'SQL_ASCII', q{E'a\\xc3'}, '613f' ],
	[ 'SQL_ASCII', q{E'\\xc3\\xa9\\xe9'}, 'c3a93f' ],
	[ 'UTF8', q{U&'\\00e9'}, 'c3a9' ],
	[ 'LATIN1', q{chr(233)}, 'e9' ],
	[ 'WIN1252', q{chr(233) || chr(129)}, 'e93f' ],
	[ 'EUC_JP', q{convert_from('\xa4a2', 'EUC_JP')}, 'a4a2' ]);
my $number = 0;
for my $case (@cases)
{
	my ($encoding, $raised, $stored) = @$case;
	my $database = 'encoding_' . ++$number;

	query("CREATE DATABASE $database ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	$node->safe_psql($database, "$raise; CREATE FUNCTION raised() RETURNS text LANGUAGE sql AS \$\$SELECT $raised\$\$");
	$node->safe_psql($database, "ALTER DATABASE $database SET client_encoding = '$encoding'");
	for my $sealed (0, 1)
	{
		reconfigure($node, 'idempotency.seal_key_file' => $sealed ? $key_file : undef);
		like(texts($database, "k$sealed"), qr/^FAILED\|P0001\|62616420$stored\|$stored\|\d+\|/,
			"$encoding, $raised: stored" . ($sealed ? ', sealed' : ''));
		is($node->safe_psql($database, "SELECT sealed IS NOT NULL FROM idempotency_store WHERE idempotency_key = 'k$sealed'"),
			$sealed ? 't' : 'f', 'in that way');
	}
}

$node->stop;
done_testing();
