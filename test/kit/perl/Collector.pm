# What the tests of the collector share: records that have expired, and how a test sees
# that the collector has been in a database.
package Collector;

use Exporter 'import';
use Idempotency;

our @EXPORT = qw(put rows is_collected rounds_pass launcher trouble_of);

# Records that have expired; or as many that have not.
sub put ($server, $database, $count, %option)
{
	my $from = $option{schema} // 'public';
	my $age = $option{live} ? '-1 day' : '1 day';

	$server->safe_psql($database, <<"SQL");
INSERT INTO $from.idempotency_store (idempotency_key, expires_at, status)
SELECT gen_random_uuid(), now() - interval '$age', 'COMPLETED' FROM generate_series(1, $count)
SQL
	return;
}

sub rows ($server, $database, $schema = 'public')
{
	return $server->safe_psql($database, "SELECT count(*) FROM $schema.idempotency_store");
}

sub is_collected ($what, $server, $database, $schema = 'public')
{
	return soon($what, sub { rows($server, $database, $schema) == 0 });
}

# Waits for so many rounds, counted in a database that every round visits.
sub rounds_pass ($server, $count, $database)
{
	my $before = figure($server, 'sweeps', $database);

	return soon("$count more rounds", sub { figure($server, 'sweeps', $database) >= $before + $count });
}

# Its process; empty if there is none.
sub launcher ($server)
{
	return $server->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'});
}

# The messages from a place of the log on that no administrator needs.
sub trouble_of ($server, $from = 0)
{
	return join "\n", grep { /(?:ERROR|FATAL|WARNING|PANIC|TRAP): |terminated by signal/ }
	  split /\n/, slurp_file($server->logfile, $from);
}

1;
