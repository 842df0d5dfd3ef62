# The workflow of docs/guide/workflows.md is killed before each of its statements, and
# called again: one reservation, one charge, one parcel, or a mug that came back.
use FindBin;

use Idempotency;

my $node = new_node('workflow');
my $host = $node->host;
my $port = $node->port;

# ---- the functions of the page, with a gate before each statement ----

my $guide = slurp_file("$FindBin::RealBin/../../docs/guide/workflows.md");
my $gates = 0;

sub with_gates ($function)
{
	my ($head, $body) = $function =~ /^(.*?^BEGIN\n)(.*)/ms or die $function;

	$body =~ s/^( +)(?!ELSE|ELSIF|END)(?=\S)/$1 . 'PERFORM gate(' . ++$gates . "); "/gme;
	return $head . $body;
}

my ($tables) = $guide =~ /^(CREATE TABLE warehouse .*?)```/ms;
my @functions = map { with_gates($_) } grep { !/charge_card\(key/ } $guide =~ /^(CREATE (?:FUNCTION|PROCEDURE).*?^END \$\$;)$/msg;
is(scalar(@functions), 4, 'three handlers and a procedure');
cmp_ok($gates, '>', 20, 'have many statements');

# The gateway is another system: what it has done stays when we roll back.
query(<<SQL);
CREATE EXTENSION dblink;
$tables
CREATE TABLE gateway_charge (key text PRIMARY KEY, amount int NOT NULL);
CREATE FUNCTION gate(number int) RETURNS void LANGUAGE sql AS \$\$
	SELECT pg_advisory_lock_shared(44, number); SELECT pg_advisory_unlock_shared(44, number);
\$\$;
CREATE FUNCTION charge_card(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS \$\$
BEGIN
	IF (request->>'amount')::int > 100 THEN
		RETURN '{"declined": "limit"}';
	END IF;
	PERFORM dblink_exec('host=$host port=$port user=postgres dbname=postgres',
		format('INSERT INTO gateway_charge VALUES (%L, %s) ON CONFLICT DO NOTHING', key, request->>'amount'));
	RETURN '{"charged": true}';
END \$\$;
@functions
SQL

# ---- killed before each statement ----

my $porter = session($node);	# holds one gate
my %reached;

# Runs the workflow until it waits at the gate, and kills it there. false: it ended before.
sub killed_at ($gate, $call)
{
	my $run = session($node);
	my $pid = ask($run, 'SELECT pg_backend_pid()');
	my $state;

	ask($porter, "SELECT pg_advisory_lock(44, $gate)");
	$run->query_until(qr/asking/, "\\echo asking\n$call;\n");
	wait_until('the workflow waits or ends', sub {
		$state = query("SELECT CASE WHEN wait_event_type = 'Lock' THEN 'waits' WHEN state = 'idle' AND query LIKE 'CALL%' THEN 'ended' END FROM pg_stat_activity WHERE pid = $pid");
		$state ne '' });
	query("SELECT pg_terminate_backend($pid, 60000)");
	$run->{run}->finish;
	ask($porter, 'SELECT pg_advisory_unlock_all()');
	return $state eq 'waits';
}

my %way = (
	sent => { amount => 30, answer => '{"state": "sent"}', left => '4|1|1' },
	declined => { amount => 300, answer => '{"declined": "limit"}', left => '5|0|0' });

for my $name (sort keys %way)
{
	my $way = $way{$name};

	for my $gate (1 .. $gates)
	{
		my $order = "$name $gate";
		my $call = qq(CALL fulfil('$order', '{"item": "mug", "amount": $way->{amount}}'));

		query('TRUNCATE gateway_charge, parcel; UPDATE warehouse SET pieces = 5');
		next if !killed_at($gate, $call);
		$reached{$gate} = 1;
		query(q{UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE lease_expires_at IS NOT NULL});
		is(query($call), $way->{answer}, "killed before statement $gate, $name: the next run ends it");
		is(query('SELECT (SELECT pieces FROM warehouse), (SELECT count(*) FROM gateway_charge), (SELECT count(*) FROM parcel)'),
			$way->{left}, 'and each step took effect once');
		is(query($call), $way->{answer}, 'a third run answers the same');
	}
}
# what nobody reaches is for orders of what is not sold, for two runs at once, and for a charge that nobody can decide
cmp_ok($gates - keys %reached, '<=', 4, 'nearly all statements were reached') or diag join ' ', grep { !$reached{$_} } 1 .. $gates;

# ---- what may not fail for good fails once ----

my %broken = (sent => 'parcel ADD CONSTRAINT broken CHECK (false)', declined => 'warehouse ADD CONSTRAINT broken CHECK (pieces < 5)');

for my $name (sort keys %way)
{
	my $way = $way{$name};
	my $call = qq(CALL fulfil('$name late', '{"item": "mug", "amount": $way->{amount}}'));
	my ($table) = $broken{$name} =~ /(\w+)/;

	query("TRUNCATE gateway_charge, parcel; UPDATE warehouse SET pieces = 5; ALTER TABLE $broken{$name} NOT VALID");
	is(sqlstate($node, $call), '23514', "$name: its last step fails, which is raised");
	query("ALTER TABLE $table DROP CONSTRAINT broken");
	is(query($call), $way->{answer}, 'the next run tries it again');
	is(query('SELECT (SELECT pieces FROM warehouse), (SELECT count(*) FROM gateway_charge), (SELECT count(*) FROM parcel)'),
		$way->{left}, 'and each step took effect once');
}
$porter->quit;
done_testing();
