# Settings with which the server logs requests and responses, and settings that
# prevent it: docs/security.md, "Logs". The extension logs neither
# (sql/leak.sql, test/t/009_secrets.pl). Here the server does: the test shows each
# leak, and the setting that closes it.
use Idempotency;
use IPC::Run;

my $node = new_node('logs', conf => "shared_preload_libraries = 'idempotency, pg_stat_statements'\npg_stat_statements.track = all\nlog_statement = none\n");
my $version = query('SHOW server_version_num');
my $directory = PostgreSQL::Test::Utils::tempdir();
my $marker = 'XyzzyMarker';
my $number = 0;

# One operation, its request and its response as bind parameters; it succeeds,
# or fails in idem_complete.
my $bound = "BEGIN;\nSELECT outcome FROM idem_begin(:key, request => :secret::jsonb);\nSELECT idem_complete(:key, :secret::jsonb, body => :bytes::bytea);\nCOMMIT;\n";
my $bound_failing = "BEGIN;\nSELECT outcome FROM idem_begin(:key, request => :secret::jsonb);\nSELECT idem_complete(:key, :secret::jsonb, body => :bytes::bytea, retention => '-1 s');\n";
# The same with literals.
my $literal = sub { my ($key) = @_; return qq{BEGIN;\nSELECT idem_begin('$key', request => '"$marker"');\nSELECT idem_complete('$key', '"$marker"');\nCOMMIT;\n} };
my $literal_failing = sub { my ($key) = @_; return qq{SELECT idem_complete('$key', '"$marker"');\n} };
# A request that is no JSON.
my $unreadable = "SELECT outcome FROM idem_begin(:key, request => :bytes::jsonb);\n";

query('CREATE EXTENSION pg_stat_statements');

# Runs a script once, in a session with these settings, and returns what came
# into the server's log meanwhile.
sub log_of ($settings, $script)
{
	my $key = 'logs-' . ++$number;
	my $file = "$directory/$number.sql";
	my $from = -s $node->logfile;
	my $output = '';

	$script = $script->($key) if ref $script;
	append_to_file($file, $script);
	local $ENV{PGOPTIONS} = join ' ', map { "-c $_" } @$settings;
	IPC::Run::run(
		[ 'pgbench', '-n', '-M', 'extended', '-c', 1, '-t', 1, '-f', $file, '-D', "key=$key", '-D', qq(secret="$marker"), '-D', "bytes=$marker",
			$node->connstr('postgres') ],
		'>&', \$output);
	# that the script did what it was to do
	like($output, qr/transactions actually processed: 1\/1|(?:ID400|ID404|retention must|is not owned|invalid input syntax for type json)/, "the script ran: $output") or diag($output);
	return slurp_file($node->logfile, $from);
}

# Without changes to the store, statements take the direct path. With a trigger
# they all go through the executor, and auto_explain sees them.
sub with_trigger
{
	query(<<'SQL');
CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TRIGGER pass BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION pass();
SQL
	return;
}

my @explain = ('session_preload_libraries=auto_explain', 'auto_explain.log_min_duration=0', 'auto_explain.log_nested_statements=on', 'auto_explain.log_analyze=on');
# 16 and later can log the parameters of what is explained, and do by default
my @explain_quietly = (@explain, $version >= 160000 ? 'auto_explain.log_parameter_max_length=0' : ());
my $explain_parameters = $version >= 160000 ? 1 : 0;
my @cases = (
	# settings, script, does the marker come into the log?, name
	[ [], $bound, 0, 'as the server comes, bind parameters' ],
	[ [], $bound_failing, 0, 'and a call that fails' ],
	[ [], $literal, 0, 'literals that succeed' ],
	[ [], $literal_failing, 1, 'literals that fail: log_min_error_statement' ],
	[ ['log_min_error_statement=panic'], $literal_failing, 0, 'unless that is panic' ],
	[ [], $unreadable, 1, 'JSON that the server cannot read, bind parameters' ],
	[ ['log_error_verbosity=terse'], $unreadable, 0, 'unless log_error_verbosity is terse' ],
	[ ['log_statement=all'], $literal, 1, 'log_statement, literals' ],
	[ ['log_statement=all'], $bound, 1, 'log_statement, bind parameters: log_parameter_max_length' ],
	[ [ 'log_statement=all', 'log_parameter_max_length=0' ], $bound, 0, 'unless that is 0' ],
	[ ['log_min_duration_statement=0'], $bound, 1, 'log_min_duration_statement' ],
	[ [ 'log_min_duration_statement=0', 'log_parameter_max_length=0' ], $bound, 0, 'unless log_parameter_max_length is 0' ],
	[ ['log_parameter_max_length_on_error=-1'], $bound_failing, 1, 'log_parameter_max_length_on_error' ],
	[ \@explain_quietly, $bound, 0, 'auto_explain without parameters' ],
	[ [ @explain_quietly, 'auto_explain.log_verbose=on' ], $bound, 1, 'auto_explain.log_verbose: the plan of a call has what it was given' ],
	[ \@explain, $bound, $explain_parameters, 'auto_explain with parameters, where it has them' ],
	[ [ 'debug_print_plan=on', 'log_parameter_max_length=0' ], $bound, 0, 'debug_print_plan, which prints bytes and no text' ]);

for my $store ('plain store', 'store with a trigger')
{
	with_trigger() if $store ne 'plain store';
	for my $case (@cases)
	{
		my ($settings, $script, $leaks, $name) = @$case;
		my $log = log_of($settings, $script);

		$leaks ? like($log, qr/$marker/, "$store: $name: leaks") : unlike($log, qr/$marker/, "$store: $name: does not leak");
	}
}

# Waits: the server logs the statement of who waits for the lock of an operation, and the
# statements of all who are in a deadlock.
my $holder = session($node);
my @waits = ('log_lock_waits=on', 'deadlock_timeout=10ms');
my $waiting = "SELECT outcome FROM idem_begin('held', request => :secret::jsonb, wait => '200 ms');\n";
my $waiting_literal = sub { return qq{SELECT outcome FROM idem_begin('held', request => '"$marker"', wait => '200 ms');\n} };

ask($holder, q{BEGIN; SELECT idem_begin('held')});
for my $case (
	[ \@waits, $waiting, 0, 'log_lock_waits, bind parameters' ],
	[ [ @waits, 'log_parameter_max_length_on_error=-1' ], $waiting, 1, 'and log_parameter_max_length_on_error, which counts here, too' ],
	[ \@waits, $waiting_literal, 1, 'log_lock_waits, literals' ],
	[ [ @waits, 'log_min_error_statement=panic' ], $waiting_literal, 0, 'unless log_min_error_statement is panic' ])
{
	my ($settings, $script, $leaks, $name) = @$case;
	my $log = log_of($settings, $script);

	like($log, qr/still waiting for .* on advisory lock/, "$name: the wait is logged");
	is($log =~ /$marker/ ? 1 : 0, $leaks, $leaks ? "$name: leaks" : "$name: does not leak");
}
ask($holder, 'ROLLBACK');

sub log_of_deadlock ($script)
{
	my $file = "$directory/deadlock.sql";
	my $from = -s $node->logfile;
	my $output = '';

	unlink $file;
	append_to_file($file, "BEGIN;\nSELECT outcome FROM idem_begin('mine');\n$script;\nROLLBACK;\n");
	ask($holder, q{SET deadlock_timeout = '100 s'; BEGIN; SELECT idem_begin('theirs')});
	local $ENV{PGOPTIONS} = '-c deadlock_timeout=100s';
	my $other = IPC::Run::start([ 'pgbench', '-n', '-M', 'extended', '-c', 1, '-t', 1, '-f', $file, '-D', qq(secret="$marker"), $node->connstr('postgres') ], '>&', \$output);
	wait_until('the other one waits', sub { locks_waiting($node) eq '1' });
	$holder->query(q{SET LOCAL deadlock_timeout = '10ms'; SELECT idem_begin('mine', wait => '100 s')});
	ask($holder, 'ROLLBACK');
	$other->finish;
	like($output, qr/transactions actually processed: 1\/1/, 'the other one goes on') or diag($output);
	return slurp_file($node->logfile, $from);
}

for my $case ([ q{SELECT outcome FROM idem_begin('theirs', request => :secret::jsonb, wait => '100 s')}, 0, 'bind parameters' ],
	[ qq{SELECT outcome FROM idem_begin('theirs', request => '"$marker"', wait => '100 s')}, 1, 'literals' ])
{
	my ($script, $leaks, $name) = @$case;
	my $log = log_of_deadlock($script);

	like($log, qr/ERROR:  deadlock detected.*idem_begin\('theirs'/s, "a deadlock, $name: the other statement is logged");
	is($log =~ /$marker/ ? 1 : 0, $leaks, $leaks ? 'with its literals' : 'without its parameters');
}
$holder->quit;

# The extension's own statements, explained by auto_explain, name no values.
like(log_of(\@explain_quietly, $bound), qr/INSERT INTO public\.idempotency_store.*\$1/, 'auto_explain sees the statement that stores');

# pg_stat_statements keeps literals of statements that it does not normalize.
sub counted ($sql)
{
	query('SELECT pg_stat_statements_reset()');
	query($sql);
	return query(q{SELECT string_agg(query, E'\n') FROM pg_stat_statements});
}

my $seen = counted($literal->('counted-1'));
like($seen, qr/idem_complete/, 'pg_stat_statements sees the calls');
unlike($seen, qr/$marker/, 'without literals');
like($seen, qr/INSERT INTO public\.idempotency_store.*\$1/, 'and the statements of the extension, without values');
my $block = qq{DO \$\$BEGIN PERFORM idem_begin('%s', request => '"$marker"'), idem_complete('%1\$s', '"$marker"'); END\$\$};
like(counted(sprintf $block, 'counted-2'), qr/$marker/, 'but a DO block is kept as it is');
unlike(counted('SET pg_stat_statements.track_utility = off; SET pg_stat_statements.track = top; ' . sprintf $block, 'counted-3'), qr/$marker/, 'unless track_utility is off');

done_testing();
