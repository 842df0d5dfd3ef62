# What the TAP tests share: servers with the extension, and sessions that return
# their answers.  Servers find the extension by TEMP_CONFIG.  "use Idempotency" brings
# strict, warnings, signatures, Test::More and PostgreSQL::Test::Utils, too.
package Idempotency;

use v5.36;
use feature ();

use Cwd qw(abs_path);
use Exporter;
use File::Basename qw(dirname);
use List::Util qw(min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = (qw(new_node new_standby initdb_options query create_database dump_and_restore reconfigure write_keys session ask complaint start_waiting sqlstate kill_server start_again wait_until
  soon figure count_in_log locks_waiting built_with build_module store_trigger has_pg_cron),
  @Test::More::EXPORT, @PostgreSQL::Test::Utils::EXPORT);

sub import
{
	strict->import;
	warnings->import(FATAL => 'all');
	feature->import('signatures');
	warnings->unimport('experimental::signatures');
	goto &Exporter::import;
}

# How long anything may take before the test counts as hung.
our $patience = $PostgreSQL::Test::Utils::timeout_default;
# And where many such things may hang, one after the other.
our $soon = 60;

my $first;

# The superuser has this name, whoever runs the tests.
$ENV{PGUSER} = 'postgres';

sub initdb_options { return [ '--locale=C', '--encoding=UTF8', "--username=$ENV{PGUSER}" ] }

# False where Debian has no pg_cron for this PostgreSQL.  Where it has one, a machine
# without it fails the test: what is not installed was not tested.
sub has_pg_cron
{
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
	my ($libraries) = run_command([ $pg_config, '--pkglibdir' ]);
	my ($version) = run_command([ $pg_config, '--version' ]);

	return 1 if -e "$libraries/pg_cron.so";
	die "pg_cron is not installed in $libraries (Debian: postgresql-NN-cron)" if $version !~ /^PostgreSQL (?:16|19|[2-9]\d)/;
	return 0;
}

# A running server with the extension in database "postgres".
sub new_node ($name, %option)
{
	my ($copy) = ($option{conf} // '') =~ /^# server: (.*)/m;
	my $node = PostgreSQL::Test::Cluster->new($name, $copy ? (install_path => $copy) : ());

	$node->init(
		extra => initdb_options(),
		allows_streaming => $option{allows_streaming} // 0);
	$node->append_conf('postgresql.conf',
		"autovacuum = off\nidempotency.gc_enabled = off\n" . ($option{conf} // ''));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idempotency');
	$first //= $node;
	return $node;
}

# A running standby of a server, with more settings if some are given.
sub new_standby ($primary, $conf = '')
{
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$primary->backup('base');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf', $conf);
	$standby->start;
	return $standby;
}

# query(SQL, [DATABASE,] OPTION => VALUE...): what the server of the first new_node answers.
sub query ($sql, @options)
{
	my $database = @options % 2 ? shift @options : undef;

	return $first->safe_psql($database // 'postgres', $sql, @options);
}

# A database of the first server with the extension, in a schema that it makes if one is named.
sub create_database ($name, $schema = undef)
{
	query(qq{CREATE DATABASE "$name"});
	query($schema
		? "CREATE SCHEMA $schema; CREATE EXTENSION idempotency SCHEMA $schema"
		: 'CREATE EXTENSION idempotency', $name);
	return;
}

# Dumps a database of the first server, and restores it into a new one with these
# options of CREATE DATABASE.  Returns the dump.
sub dump_and_restore ($from, $to, $format, $options = '')
{
	my $dump = PostgreSQL::Test::Utils::tempdir() . "/$format";
	my @restore = $format eq 'plain' ? ('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f') : ('pg_restore', '--exit-on-error', '--jobs=2');

	query("CREATE DATABASE $to TEMPLATE template0 $options");
	$first->command_ok([ 'pg_dump', "--format=$format", '--file', $dump, $first->connstr($from) ], "pg_dump of $from, format $format");
	$first->command_ok([ @restore, $dump, '-d', $first->connstr($to) ], "restore into $to");
	return $dump;
}

# Sets settings of a server, or resets them (undef), until new sessions have them.
sub reconfigure ($node, %settings)
{
	my $before = $node->safe_psql('postgres', 'SELECT pg_conf_load_time()');

	$node->safe_psql('postgres', "ALTER SYSTEM " . (defined $settings{$_} ? "SET $_ = '$settings{$_}'" : "RESET $_")) for sort keys %settings;
	$node->reload;
	wait_until('new sessions have the settings', sub { $node->safe_psql('postgres', "SELECT pg_conf_load_time() > '$before'") eq 't' });
	return;
}

# Writes the whole key file of a server: names and secrets, the newest last. Returns its path.
sub write_keys ($node, @lines)
{
	my $file = $node->data_dir . '/idempotency.keys';

	unlink $file;
	append_to_file($file, join('', map { "$_\n" } @lines));
	chmod 0600, $file;
	return $file;
}

# What gives a store that is created after it a trigger, so that the extension
# leaves its direct path: test/kit/with-trigger.sql.
sub store_trigger
{
	return slurp_file(dirname(__FILE__) . '/../with-trigger.sql');
}

# Builds the library with these definitions ("-DNAME=value ...") into a stage of its own.
# Sources that they do not concern are not compiled anew.
# Returns the stage, and the settings by which a server of new_node finds this build.  A
# server that has no such setting looks beside itself: a copy of it does.
sub built_with ($flags)
{
	my $tree = abs_path(dirname(__FILE__) . '/../../..');
	my $stage = PostgreSQL::Test::Utils::tempdir();
	my $copy = PostgreSQL::Test::Utils::tempdir();
	my $conf = slurp_file($ENV{TEMP_CONFIG});

	if ($conf !~ s/\Q$ENV{IDEM_STAGE}\E/$stage/g)
	{
		my $server = dirname($ENV{PG_BINDIR});

		$server =~ s/^\Q$ENV{IDEM_STAGE}\E/$stage/
		  or die 'the servers are neither led to a stage nor in it: there is nothing to stand in for';
		system_or_bail('cp', '-R', "$ENV{IDEM_STAGE}/.", $stage);
		$conf .= "# server: $server\n";
	}
	# with their times, by which make goes
	system_or_bail('cp', '-Rp', "$tree/src", "$tree/Makefile",
		"$tree/idempotency.control", glob("$tree/idempotency--*.sql"), $copy);
	unlink $ENV{EXTRA_CFLAGS} ? glob("$copy/src/*.o $copy/src/*/*.o") : objects_with("$copy/src", $flags =~ /-D(\w+)/g);
	system_or_bail('make', '-s', '-C', $copy, ($ENV{CCACHE_DIR} ? 'CC=ccache cc' : ()), 'with_llvm=no', 'WERROR=1', "PG_CONFIG=$ENV{PG_CONFIG}",
		"EXTRA_CFLAGS=$flags", "DESTDIR=$stage", 'install');
	return ($stage, $conf);
}

# Builds a library of test/modules; returns what CREATE FUNCTION calls it.
sub build_module ($name)
{
	my $tree = abs_path(dirname(__FILE__) . '/../../..');
	my $directory = PostgreSQL::Test::Utils::tempdir();

	system_or_bail('cp', glob("$tree/test/modules/*"), $directory);
	system_or_bail('make', '-s', '-C', $directory, 'with_llvm=no', "PG_CONFIG=$ENV{PG_CONFIG}", "MODULES=$name", "PG_CPPFLAGS=-I$tree/src");
	return "$directory/$name";
}

# The objects of the sources that have one of these names, or include a header that does.
sub objects_with ($directory, @names)
{
	my %text = map { $_ => slurp_file($_) } glob("$directory/*.[ch] $directory/*/*.[ch]");
	my $pattern = join '|', map { "\\b$_\\b" } @names;
	my %found;

	return () if !@names;
	while (my @more = grep { !$found{$_} && $text{$_} =~ /$pattern/ } keys %text)
	{
		@found{@more} = (1) x @more;
		$pattern = join '|', map { my $header = s/^\Q$directory\E\///r; qr/#include "\Q$header\E"/ } grep { /\.h$/ } @more;
		last if $pattern eq '';
	}
	return map { s/\.c$/.o/r } grep { /\.c$/ } keys %found;
}

# A session that lives until its quit, or until somebody kills it.
sub session ($node, $database = undef)
{
	return $node->background_psql($database // 'postgres',
		on_error_stop => 0);
}

# What a session answers; dies if that is an error or a warning.
sub ask ($session, $sql)
{
	my $answer;

	$session->{stderr} = '';
	$answer = $session->query($sql);
	die "\"$sql\" failed: $session->{stderr}"
	  if $session->{stderr} =~ /ERROR:|FATAL:|WARNING:/;
	return $answer;
}

# The errors and warnings of a statement in a session.
sub complaint ($session, $sql)
{
	$session->{stderr} = '';
	$session->query($sql);
	return $session->{stderr};
}

# Starts a statement in a session of the first server, and returns when it waits: for a lock,
# or for what else is named.  What it answers comes before the answer to the next statement.
sub start_waiting ($session, $sql, $type = 'Lock')
{
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	$session->{stderr} = '';
	$session->query_until(qr/asking/, "\\echo asking\n$sql;\n");
	wait_until("a session waits ($type)", sub { query("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") eq $type });
	return;
}

# The SQLSTATE by which statements fail, each sent for itself in one session;
# '' if none does.
sub sqlstate ($node, $sql, $database = undef)
{
	my ($stdout, $stderr);

	$node->psql(
		$database // 'postgres', $sql,
		stdout => \$stdout,
		stderr => \$stderr,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5})/ ? $1 : $stderr;
}

# Waits until the code returns true.  It mostly asks the server by a psql of its own, which
# costs more than what is waited for: the longer it takes, the less often it is asked.
sub wait_until ($what, $code)
{
	my $start = time;

	until ($code->())
	{
		die "timed out waiting until $what" if time > $start + $patience;
		sleep min(0.05 + (time - $start) / 10, 0.3);
	}
	return;
}

# Reports a failure, where wait_until would end the test, so that one thing that
# hangs does not hide the others.
sub soon ($what, $code)
{
	my $done = eval { local $patience = $soon; wait_until($what, $code); 1 };

	return ok($done, $what);
}

# Of idempotency_stats, 0 for a database that is not counted.
sub figure ($node, $column, $database)
{
	return $node->safe_psql('postgres',
		"SELECT coalesce(sum($column), 0) FROM idempotency_stats WHERE datname = '$database'");
}

# How often a pattern is in the log of a server, from that place on.
sub count_in_log ($node, $pattern, $from = 0)
{
	return scalar(() = slurp_file($node->logfile, $from) =~ /$pattern/g);
}

# Kills the postmaster, and waits until the system has forgotten it too.
sub kill_server ($node)
{
	my ($pid) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	$node->kill9;
	wait_until('the postmaster is gone', sub { kill(0, $pid) == 0 });
	return;
}

# Starts a server whose postmaster was killed: its children may take a moment
# to notice, and as long as one of them lives nothing new can start.
sub start_again ($node)
{
	wait_until('the server starts again',
		sub { $node->start(fail_ok => 1) });
	return;
}

# How many sessions wait for a lock of ours.
sub locks_waiting ($node)
{
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
}

1;
