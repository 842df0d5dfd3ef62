# Data that goes through pg_upgrade, from each server named to the next, oldest
# first: answers are replayed byte for byte, fences go on
# growing, leases run on, streams keep their marks, scopes their owners and
# policies, what is sealed opens, and a ring of tables stays one.
use Cwd;
use Idempotency;
use PostgreSQL::Test::Cluster;

my @directories = @ARGV;
my $logs = getcwd();
my %directory_of;
my %greatest_fence = map { $_ => 0 } qw(upgrade_public upgrade_odd upgrade_parts);
my $key_file = "$logs/idempotency.keys";
# three databases, as many schemas; in the last one the store has a ring of tables
my %schema_of = (upgrade_public => 'public', upgrade_odd => '"Odd Schema"', upgrade_parts => 'parts');
my $partitioned = 'upgrade_parts';
my @tables = qw(idempotency_store idempotency_stream idempotency_scope idempotency_secret);

# A cluster of its own for every server.  The collector is on, so that it would
# do harm if it ran while pg_upgrade does.
sub new_cluster ($directory)
{
	my $name = $directory =~ s/.*\///r;
	my $node = PostgreSQL::Test::Cluster->new($name, install_path => $directory);

	# 18 checksums unless told otherwise, and both sides must do the same
	$node->init(extra => [ '--locale=C', '--encoding=UTF8', '--data-checksums' ]);
	$node->append_conf('postgresql.conf', <<"CONF");
shared_preload_libraries = 'idempotency'
idempotency.gc_interval = '1s'
CONF
	$directory_of{$name} = $directory;
	return $node;
}

sub result_of ($node, $database, $sql)
{
	return $node->safe_psql($database, "SET search_path = $schema_of{$database}, public;\n$sql");
}

sub error_of ($node, $database, $sql)
{
	return sqlstate($node, "SET search_path = $schema_of{$database}, public; $sql", $database);
}

# Operations of every kind, by roles of every kind.
sub fill ($node)
{
	$node->safe_psql('postgres', 'CREATE ROLE application LOGIN; CREATE ROLE payments LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE outsider LOGIN');
	for my $database (sort keys %schema_of)
	{
		my $schema = $schema_of{$database};

		$node->safe_psql('postgres', "CREATE DATABASE $database");
		$node->safe_psql('postgres', "ALTER DATABASE $database SET idempotency.retention = '40d'");
		$node->safe_psql($database, <<"SQL");
CREATE EXTENSION pgcrypto;
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION idempotency SCHEMA $schema;
SQL
		result_of($node, $database, q{SELECT idem_partition_store('8 days')}) if $database eq $partitioned;
		result_of($node, $database, <<'SQL');
SELECT idem_grant('application'), idem_grant('payments'), idem_grant('stranger');
SELECT idem_claim_scope('pay/*', 'payments');
SELECT idem_set_policy('pay/*', retention => '7 days', max_attempts => 3, max_response_size => 5000);
BEGIN;
SELECT idem_begin('completed', scope => 'scope', request => '{"amount": 1.0}');
SELECT idem_complete('completed', '{"b": 1.50, "a": "é", "n": null}', 'scope', 201, '{"x-h": "v"}', '\x00ff0a80');
SELECT idem_begin('json null');
SELECT idem_complete('json null', 'null');
SELECT idem_begin('nothing');
SELECT idem_complete('nothing');
SELECT idem_begin('large');
SELECT idem_complete('large', body => (SELECT string_agg(sha512(n::text::bytea), '') FROM generate_series(1, 8000) n));
SELECT idem_begin('failed');
SELECT idem_fail('failed', '{"reason": "no"}', code => 402);
SELECT idem_begin('retryable');
SELECT idem_fail('retryable', '{"reason": "later"}', retryable => true, retry_after => '1 day');
SELECT idem_advance('stream', 42);
COMMIT;
SET ROLE payments;
BEGIN;
SELECT idem_begin('paid', scope => 'pay/card');
SELECT idem_complete('paid', '{"paid": true}', 'pay/card');
COMMIT;
RESET ROLE;
SELECT idem_begin('many' || n, lease => '1 day') FROM generate_series(1, 100) n;
SELECT idem_begin('leased ' || n, lease => '1 day') FROM generate_series(1, 5) n;
SELECT idem_begin('short ' || n, lease => '10 milliseconds') FROM generate_series(1, 5) n;
SQL
	}

	# The key comes later than the first operations: some are sealed, some are not.
	append_to_file($key_file, 'k1 ' . join('', map { sprintf '%08x', rand 2**32 } 1 .. 8) . "\n");
	chmod 0600, $key_file;
	use_key($node);
	$node->restart;
	for my $database (sort keys %schema_of)
	{
		result_of($node, $database, <<'SQL');
BEGIN;
SELECT idem_begin('sealed', request => '"card 4711"');
SELECT idem_complete('sealed', '{"secret": "Plain"}', code => 200, headers => '{"h": "Plain"}', body => '\x01ff00');
COMMIT;
SQL
	}
	return;
}

sub use_key ($node)
{
	$node->append_conf('postgresql.conf', "idempotency.seal_key_file = '$key_file'\nidempotency.accept_clear_responses = on\n");
	return;
}

# Everything that is stored and must not change, in a form that can be compared.
# Rights that the owner has by default may be listed or not, and 17 has one more.
sub contents ($node, $database)
{
	my @digests = map { "SELECT '$_', count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE \"C\")) FROM $_ t;" } @tables;

	return result_of($node, $database, <<"SQL");
@digests
SELECT last_value, is_called FROM idempotency_fence;
SELECT c.relname, a.grantee::regrole, string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type)
FROM pg_class c JOIN pg_extension e ON c.oid = ANY (e.extconfig),
aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) a
WHERE e.extname = 'idempotency' AND a.privilege_type <> 'MAINTAIN' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT p.proname, p.proacl FROM pg_proc p JOIN pg_extension e ON p.pronamespace = e.extnamespace
WHERE e.extname = 'idempotency' AND p.proname LIKE 'idem%' ORDER BY p.oid::regprocedure::text;
SELECT extversion, extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency';
SQL
}

# What callers are answered.  Reads only.
sub replays ($node, $database)
{
	return result_of($node, $database, <<'SQL');
SELECT idem_begin('completed', scope => 'scope', request => '{"amount": 1.00}');
SELECT encode((idem_begin('completed', scope => 'scope')).response_body, 'hex');
SELECT idem_begin('json null');
SELECT (idem_begin('json null')).response_payload IS NULL;
SELECT idem_begin('nothing');
SELECT (idem_begin('nothing')).response_payload IS NULL;
SELECT md5((idem_begin('large')).response_body);
SELECT idem_begin('failed');
SELECT (r).outcome, (r).response_payload, (r).retry_after > '20 hours' FROM idem_begin('retryable') r;
SELECT idem_begin('sealed', request => '"card 4711"');
SET ROLE payments;
SELECT idem_begin('paid', scope => 'pay/card');
SQL
}

# What has to work in a database that has been upgraded; each round leaves it
# with one lease, one overdue lease and one mark less.
sub check ($node, $database, $round)
{
	my $title = $node->name . ", $database";
	my ($fence, $fresh, $again);

	is(result_of($node, $database, q{SELECT count(*) > 2 FROM idempotency_partitions}), $database eq $partitioned ? 't' : 'f', "$title: partitions");

	is(error_of($node, $database, q{SELECT idem_begin('completed', scope => 'scope', request => '{"amount": 2}')}),
		'ID422', "$title: fingerprints");
	is(error_of($node, $database, q{SELECT idem_begin('sealed', request => '"card 4712"')}),
		'ID422', "$title: keyed fingerprints");
	is(result_of($node, $database, q{SELECT seal_key, response_payload IS NULL, sealed IS NOT NULL FROM idempotency_store WHERE idempotency_key = 'sealed'}),
		'k1|t|t', "$title: what was sealed is sealed");

	# leases
	is(result_of($node, $database, qq{SELECT (r).outcome, (r).fence, (r).retry_after > '20 hours' FROM idem_begin('leased $round', lease => '1 hour') r}),
		'IN_PROGRESS||t', "$title: a lease runs on");
	$fence = result_of($node, $database, qq{SELECT fence FROM idempotency_store WHERE idempotency_key = 'leased $round'});
	is(error_of($node, $database, "SELECT idem_complete('leased $round', '1', fence => " . ($fence - 1) . ')'),
		'ID409', "$title: a stale fence is refused");
	is(error_of($node, $database, "SELECT idem_complete('leased $round', '1', fence => $fence)"),
		'', "$title: its own fence ends a lease");
	is(result_of($node, $database, qq{SELECT (r).outcome, (r).response_payload FROM idem_begin('leased $round') r}),
		'COMPLETED|1', "$title: and that is replayed");

	# fences
	$fresh = result_of($node, $database, "SELECT (idem_begin('fresh $round', lease => '1 day')).fence");
	cmp_ok($fresh, '>', $greatest_fence{$database}, "$title: fences go on growing");
	$again = result_of($node, $database, qq{SELECT (r).outcome, (r).attempt, (r).taken_over FROM idem_begin('short $round', lease => '1 day') r});
	is($again, 'ACQUIRED|2|t', "$title: a lease that has run out is taken over");
	$again = result_of($node, $database, "SELECT fence FROM idempotency_store WHERE idempotency_key = 'short $round'");
	cmp_ok($again, '>', $fresh, "$title: with a fence that grew");
	is(result_of($node, $database, 'SELECT count(*) - count(DISTINCT fence) FROM idempotency_store WHERE fence IS NOT NULL'),
		0, "$title: no fence twice");
	$greatest_fence{$database} = $again;

	# streams
	is(result_of($node, $database, 'SELECT idem_advance(\'stream\', ' . (41 + $round) . '), idem_advance(\'stream\', ' . (42 + $round) . ')'),
		'f|t', "$title: the mark of a stream");

	# rights, claims, policies
	is(error_of($node, $database, q{SET ROLE stranger; SELECT idem_lookup('paid', 'pay/card')}),
		'ID403', "$title: a scope belongs to its role");
	is(error_of($node, $database, q{SET ROLE application; SELECT idem_lookup('completed', 'scope')}),
		'', "$title: rights of an application");
	is(error_of($node, $database, q{SET ROLE application; SELECT FROM idempotency_store}),
		'42501', "$title: and none on the tables");
	like(error_of($node, $database, q{SET ROLE outsider; SELECT idem_lookup('completed', 'scope')}),
		qr/^(?:42501|42883)$/, "$title: nobody else has any");
	is(error_of($node, $database, q{SET ROLE payments; BEGIN; SELECT idem_begin('long', scope => 'pay/card'); SELECT idem_complete('long', to_jsonb(repeat('x', 6000)), 'pay/card')}),
		'ID413', "$title: a policy limits responses");
	is(result_of($node, $database, <<"SQL"), '7 days', "$title: and says how long they are kept");
SET ROLE payments; BEGIN;
DO \$\$ BEGIN PERFORM idem_begin('kept $round', scope => 'pay/card'); PERFORM idem_complete('kept $round', '1', 'pay/card'); END \$\$;
COMMIT; RESET ROLE;
SELECT date_trunc('day', expires_at - updated_at + '1 minute') FROM idempotency_store WHERE idempotency_key = 'kept $round';
SQL
	is(result_of($node, $database, q{SELECT count(*) > 0 FROM idempotency_stats}), 't', "$title: the views");
	is(result_of($node, $database, q{SELECT count(*) > 50 FROM idempotency_in_flight}), 't', "$title: and what is in flight");
	return;
}

# A copy by pg_dump still has the rows, as the tables are known to be data.
sub check_dump ($node, $database)
{
	my $copy = "copy_of_$database";
	my $file = "$logs/" . $node->name . ".$database.dump";
	my @kept = grep { $_ ne 'idempotency_secret' } @tables;
	my $sql = join ' ', map { "SELECT md5(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE \"C\")) FROM $_ t;" } @kept;

	$schema_of{$copy} = $schema_of{$database};
	$node->command_ok([ 'pg_dump', '-Fc', '-f', $file, '-d', $node->connstr($database) ], $node->name . ", $database: pg_dump");
	$node->safe_psql('postgres', "CREATE DATABASE $copy TEMPLATE template0");
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr($copy), $file ], $node->name . ", $database: pg_restore");
	is(result_of($node, $copy, $sql), result_of($node, $database, $sql), $node->name . ", $database: a dump has all rows");
	$node->safe_psql('postgres', "DROP DATABASE $copy");
	delete $schema_of{$copy};
	return;
}

# Runs in a directory of its own: it writes its scripts where it is.
sub upgrade ($old, $new, $mode)
{
	my $directory = "$logs/pg_upgrade-" . $new->name;

	mkdir $directory;
	chdir $directory;
	$old->stop;
	$new->command_ok(
		[
			'pg_upgrade', '--no-sync', "--$mode",
			'-d', $old->data_dir, '-D', $new->data_dir,
			'-b', $directory_of{ $old->name } . '/bin', '-B', $directory_of{ $new->name } . '/bin',
			'-s', $new->host, '-p', $old->port, '-P', $new->port ],
		'pg_upgrade from ' . $old->name . ' to ' . $new->name . " by $mode");
	chdir $logs;
	return;
}

# In the mode that pg_upgrade runs servers in, nothing of ours may run: it has noted
# the next transaction id before, so what takes one then is lost.
sub check_binary_upgrade_mode ($node)
{
	my $collectors = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency launcher'};
	my @pg_ctl = ('pg_ctl', '-w', '-s', '-D', $node->data_dir, '-l', $node->logfile);

	ok($node->poll_query_until('postgres', $collectors, '1'), $node->name . ': the collector runs');
	$node->stop;
	$node->command_ok([ @pg_ctl, '-o', '-b', 'start' ], $node->name . ': starts as pg_upgrade starts it');
	sleep 2;
	is($node->safe_psql('postgres', $collectors), 0, $node->name . ': the collector keeps out of upgrades');
	$node->command_ok([ @pg_ctl, 'stop' ], $node->name . ': stops');
	$node->start;
	return;
}

my @modes = qw(copy link);
my ($old, %contents, %replays);

for my $round (1 .. @directories)
{
	my $node = new_cluster($directories[ $round - 1 ]);

	if (defined $old)
	{
		upgrade($old, $node, $modes[ $round % @modes ]);
		use_key($node);
		$node->start;
	}
	else
	{
		$node->start;
		fill($node);
	}
	for my $database (sort keys %schema_of)
	{
		if (defined $old)
		{
			is(contents($node, $database), $contents{$database}, $node->name . ", $database: all that is stored");
			is(replays($node, $database), $replays{$database}, $node->name . ", $database: every replay, byte for byte");
		}
		check($node, $database, $round);
		check_dump($node, $database);
	}
	check_binary_upgrade_mode($node);
	for my $database (sort keys %schema_of)
	{
		$contents{$database} = contents($node, $database);
		$replays{$database} = replays($node, $database);
	}
	$old = $node;
}

# What the comparisons above rest on is not empty.
for my $database (sort keys %schema_of)
{
	like($contents{$database}, qr/^idempotency_store\|1[12]\d\|/m, "$database: records were compared");
	like($contents{$database}, qr/^idempotency_scope\|1\|/m, "$database: and policies");
	like($replays{$database}, qr/^00ff0a80$/m, "$database: and bytes");
}

done_testing();
