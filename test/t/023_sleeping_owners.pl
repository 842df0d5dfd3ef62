# Owners of several databases let the collector sleep in their triggers. Between
# any two of these visits the other databases are visited, and the pauses grow.
use Idempotency;

my $node = new_node('sleeping_owners', conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");
my @sleepy = qw(sleepy1 sleepy2 sleepy3);
my $expired = q{INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES ('old', now() - interval '1 day', 'COMPLETED')};

# The launcher visits them in this order. A neighbour notes each visit in the log.
for my $database (@sleepy, 'neighbour')
{
	query("CREATE DATABASE $database");
	$node->safe_psql($database, "CREATE EXTENSION idempotency; $expired");
	wait_until("the collector has been in $database", sub { $node->safe_psql($database, 'SELECT count(*) FROM idempotency_store') eq '0' });
}
$node->safe_psql('neighbour', <<'SQL');
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'neighbour is visited'; RETURN new; END $$;
CREATE TRIGGER note BEFORE INSERT OR UPDATE ON idempotency_sweep FOR EACH ROW EXECUTE FUNCTION note();
SQL
# They begin to sleep at once: the collector is off until all are ready.
reconfigure($node, 'idempotency.gc_enabled' => 'off');
wait_until('nobody collects', sub { query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency collector'}) eq '0' });
$node->safe_psql($_, <<"SQL") for @sleepy;
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM pg_sleep(3600); RETURN old; END \$\$;
CREATE TRIGGER nap BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION nap();
$expired
SQL
my $start = -s $node->logfile;

reconfigure($node, 'idempotency.gc_enabled' => 'on');

sub visits
{
	return slurp_file($node->logfile, $start) =~ /(neighbour|sleepy\d)(?: is visited|" took too long and was ended)/g;
}

for my $database (@sleepy)
{
	wait_until("$database has kept a collector twice", sub { scalar(grep { $_ eq $database } visits()) >= 2 });
}

# Before the first time nobody can know.
my @visits = visits();
my %known;

while (keys %known < @sleepy)
{
	my $visited = shift @visits;

	$known{$visited} = 1 if $visited =~ /sleepy/;
}
my @in_a_row = grep { $visits[$_] =~ /sleepy/ && $visits[ $_ + 1 ] =~ /sleepy/ } 0 .. $#visits - 1;

is("@visits[map { ($_, $_ + 1) } @in_a_row]", '', 'between two that sleep the neighbour is visited')
  or diag("@visits");
cmp_ok(scalar(grep { /sleepy/ } @visits), '>=', 3, 'three more visits were cancelled');
$node->stop('fast');
done_testing();
