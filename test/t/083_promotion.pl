# A standby is promoted in the middle of writes: what was acknowledged is
# there, with its effect, and the retries of all clients make nothing twice.
use Idempotency;
use IPC::Run;
use List::Util qw(uniq);

my $keys = 600;
my $clients = 4;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $primary = new_node('primary', allows_streaming => 1);

$primary->safe_psql('postgres', <<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION handle(key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	operation idem_operation := idem_begin(key, wait => '100 s');
BEGIN
	IF operation.outcome = 'ACQUIRED' THEN
		INSERT INTO effect VALUES (key);
		PERFORM idem_complete(operation, to_jsonb(key));
	ELSIF operation.response_payload <> to_jsonb(key) THEN
		RAISE 'wrong replay';
	END IF;
	RETURN 'acknowledged ' || key;
END
$$;
CREATE FUNCTION finish(key text, fence bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (key);
	PERFORM idem_complete(key, to_jsonb(key), fence => finish.fence);
	RETURN 'acknowledged ' || key;
END
$$;
SQL
my $standby = new_standby($primary);
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
$primary->reload;
$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die 'the standby does not follow';

# Half of the keys in one transaction, half with a lease, which needs two.
sub statements_for ($number)
{
	return "SELECT handle('$number');\n" if $number % 2;
	return "SELECT outcome = 'ACQUIRED' AS mine, fence FROM idem_begin('$number', lease => '3 s', wait => '100 s') \\gset\n"
	  . "\\if :mine\nSELECT finish('$number', :fence);\n\\endif\n";
}

# A client that sends these; what it has printed, when it has ended.
sub start_client ($node, $name, @numbers)
{
	my $output = '';

	append_to_file("$directory/$name.sql", join '', map { statements_for($_) } @numbers);
	my $run = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', "$directory/$name.sql" ],
		'>', \$output, '2>', "$directory/$name.err", IPC::Run::timeout($Idempotency::patience));
	return sub { return ($run->finish, $output) };
}

my @running = map { start_client($primary, "before$_", map { 1 + int rand $keys } 1 .. 20000) } 1 .. $clients;
$primary->poll_query_until('postgres', 'SELECT count(*) > 150 FROM effect') or die 'nothing is written';
$primary->stop('immediate');
$standby->promote;

my @acknowledged;
for my $client (@running)
{
	my ($ended_well, $output) = $client->();

	ok(!$ended_well, 'a client was in the middle of its work');
	push @acknowledged, $output =~ /^acknowledged (\d+)$/mg;
}
@acknowledged = uniq(@acknowledged);
cmp_ok(scalar @acknowledged, '>', 100, 'operations were acknowledged');
my $list = join ',', map { "'$_'" } @acknowledged;
is($standby->safe_psql('postgres', "SELECT count(*) FROM idempotency_store WHERE status = 'COMPLETED' AND response_payload = to_jsonb(idempotency_key) AND idempotency_key IN ($list)"),
	scalar @acknowledged, 'all of them have their records after the promotion');
is($standby->safe_psql('postgres', "SELECT count(*) FROM effect WHERE key IN ($list)"), scalar @acknowledged, 'and their effects');
is($standby->safe_psql('postgres', q{SELECT count(*) FROM effect e FULL JOIN (SELECT * FROM idempotency_store WHERE status = 'COMPLETED') s
	ON s.idempotency_key = e.key WHERE e.key IS NULL OR s.idempotency_key IS NULL}), '0', 'there is no effect without its record, and no record without its effect');

my @retries = map { start_client($standby, "after$_", 1 .. $keys) } 1 .. $clients;
ok((grep { my ($ended_well) = $_->(); $ended_well } @retries) == $clients, 'each client sends everything again');
is($standby->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM effect'), "$keys|$keys", 'nothing took effect twice, and nothing is missing');
is($standby->safe_psql('postgres', q{SELECT count(*) FROM idempotency_store WHERE status = 'COMPLETED'}), $keys, 'each has its record');

done_testing();
