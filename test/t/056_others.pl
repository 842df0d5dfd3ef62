# What other roles can see and do: overloads that they plant, types,
# errors in the server's configuration files, and the path of the key
# file.
use Idempotency;

# ---- planted overloads ----

SKIP:
{
	skip 'Debian has no pg_cron for this PostgreSQL yet', 1 if !has_pg_cron();

	my $node = new_node('planted', conf => "shared_preload_libraries = 'pg_cron'\ncron.database_name = 'postgres'\ncron.use_background_workers = on\n");
	my $planted = sub { return $node->safe_psql('postgres', 'SELECT count(*) FROM planted') };

	$node->safe_psql('postgres', q{
		CREATE EXTENSION pg_cron;
		CREATE TABLE planted (what text);
		CREATE ROLE hostile; CREATE ROLE app;
		GRANT CREATE, USAGE ON SCHEMA public, cron TO hostile;
		GRANT ALL ON planted TO hostile});
	for my $function ("idem_gc(a text DEFAULT '')", 'idem_gc(a numeric)', 'idem_gc(a bigint DEFAULT 0)', 'idem_gc(a anyelement)', 'idem_gc(VARIADIC a int[])',
		"idem_set_rights(a regrole, b unknown_text DEFAULT '')", 'idem_set_rights(a regrole, b text, c int DEFAULT 0)', 'idem_set_rights(a oid, b text)', 'idem_set_rights(a anyelement, b anyelement)',
		'cron.schedule_in_database(a text, b text, c text, d text)', 'cron.schedule_in_database(a name, b text, c text, d text, e text, f bool)',
		'cron.schedule_in_database(VARIADIC a text[])')
	{
		$node->safe_psql('postgres', "SET ROLE hostile; CREATE FUNCTION " . $function =~ s/unknown_text/varchar/r
			  . " RETURNS bigint LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO public.planted VALUES ('idem'); RETURN 0; END \$\$");
	}
	isnt(sqlstate($node, 'SELECT idem_gc()'), '', 'a call that leaves the choice open has none');
	$node->safe_psql('postgres', q{SELECT idem_schedule_gc('0 0 1 1 *')});
	is($planted->(), '0', 'idem_schedule_gc calls the function of pg_cron');
	my $command = $node->safe_psql('postgres', 'SELECT command FROM cron.job');

	is($command, 'SELECT public.idem_gc(10000::pg_catalog.int4)', 'the job names an exact signature');
	$node->safe_psql('postgres', q{INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() - interval '1 hour', 'COMPLETED', 'k')});
	is($node->safe_psql('postgres', $command), '1', 'and collects');
	is($planted->(), '0', 'nothing of what was planted ran');
	$node->safe_psql('postgres', q{SELECT idem_grant('app'::regrole), idem_revoke('app'::regrole), idem_grant('app'::regrole)});
	is($planted->(), '0', 'idem_grant and idem_revoke neither');
	is($node->safe_psql('postgres', q{SELECT has_function_privilege('app', 'idem_lookup(text, text)', 'EXECUTE')}), 't', 'they do their work');

	# For the server, a function with one more argument that has a default matches as
	# well: it takes neither. That stops the job, but the planted function does not run.
	$node->safe_psql('postgres', q{SET ROLE hostile; CREATE FUNCTION idem_gc(a int, b int DEFAULT 0) RETURNS bigint LANGUAGE sql AS 'INSERT INTO public.planted VALUES (''gc''); SELECT 0::bigint'});
	is(sqlstate($node, $command), '42725', 'an overload with a default makes the job ambiguous');
	is($planted->(), '0', 'and does not run');
	$node->safe_psql('postgres', 'DROP FUNCTION idem_gc(int, int)');

	# types: PUBLIC has no right on them, an application has the rights that a wrapper needs
	my @types = qw(idem_operation idem_outcome idempotency_status);
	my $may = sub { my ($role) = @_; return $node->safe_psql('postgres', join ' UNION ALL ', map { "SELECT has_type_privilege('$role', '$_', 'USAGE')" } @types) };

	is($may->('hostile'), "f\nf\nf", 'others may not use the types');
	is($may->('app'), "t\nt\nt", 'an application may');
	is(sqlstate($node, 'SET ROLE hostile; CREATE TABLE theirs (a idem_outcome)'), '42501', 'no table of others hangs on a type');
	$node->safe_psql('postgres', q{SELECT idem_revoke('app'::regrole)});
	is($may->('app'), "f\nf\nf", 'idem_revoke takes them back');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_type WHERE typname LIKE 'idem%' AND typname !~ '^_' AND EXISTS (SELECT FROM aclexplode(typacl) WHERE grantee = 'app'::regrole)}), '0', 'all of them');
}

# ---- errors in the server's configuration files ----

{
	my $node = new_node('files', conf => "shared_preload_libraries = ''\n");
	my $conf = $node->data_dir . '/postgresql.conf';
	my $good = slurp_file($conf);
	my $token = 'HiddenToken4711';
	my $directory = PostgreSQL::Test::Utils::tempdir();

	$node->safe_psql('postgres', q{CREATE ROLE app LOGIN; SELECT idem_grant('app')});
	for my $case ([ 'a syntax error', "$token = = =\n" ], [ 'a file that is missing', "include '$directory/$token'\n" ],
		[ 'a directory that is missing', "include_dir '$directory/$token'\n" ], [ 'a file that includes itself', "include '$conf'\n" ],
		[ 'an unfinished text', "application_name = '$token\n" ])
	{
		my ($name, $line) = @$case;
		my $before = -s $node->logfile;
		my ($status, $stdout, $stderr);

		append_to_file($conf, $line);
		$node->psql('postgres', "SET client_min_messages = debug5; SELECT idem_step_key('a', 'b')", stdout => \$stdout, stderr => \$stderr,
			on_error_stop => 0, extra_params => [ '-U', 'app', '-v', 'VERBOSITY=verbose' ]);
		like($stderr, qr/ERROR:  F0000: could not read the settings of extension/, "$name: an error");
		unlike($stderr, qr/\Q$token\E|\Q$conf\E|\Q$directory\E|postgresql\.conf"?,? line|\Q@{[$node->data_dir]}\E/, "$name: without path and token");
		like(slurp_file($node->logfile, $before), qr/LOG: .*(?:\Q$token\E|\Q$conf\E|line \d+)/, "$name: the server's log has them");
		unlink $conf;
		append_to_file($conf, $good);
	}
	# no errors, but messages at level LOG
	append_to_file($conf, "include_if_exists '$directory/$token'\nidempotency.gc_interval = '$token'\n");
	my ($status, $stdout, $stderr);
	$node->psql('postgres', "SET client_min_messages = debug5; SELECT idem_step_key('a', 'b')", stdout => \$stdout, stderr => \$stderr, extra_params => [ '-U', 'app' ]);
	is($stdout, 'a:b', 'a file that need not be there, and a value that is none: no error');
	unlike($stderr, qr/\Q$token\E|\Q$directory\E/, 'and nothing of them is shown');
	unlink $conf;
	append_to_file($conf, $good);
	is($node->safe_psql('postgres', q{SET client_min_messages = debug1; SELECT idem_step_key('a', 'b'); SHOW client_min_messages}), "a:b\ndebug1", 'the setting of the session is as it was');
}

# ---- where the key file is ----

{
	my $node = new_node('key_file', conf => "idempotency.seal_key_file = 'SecretPlace/keys'\n");
	my $place = $node->data_dir . '/SecretPlace';

	mkdir $place;
	$node->safe_psql('postgres', q{CREATE ROLE app LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_read_all_settings; SELECT idem_grant('app'), idem_grant('monitor'); CREATE EXTENSION pgcrypto});
	for my $case ([ 'missing', sub { }, '58P01' ], [ 'a bad line', sub { append_to_file("$place/keys", "k1\n"); chmod 0600, "$place/keys" }, 'F0000' ],
		[ 'open to others', sub { chmod 0644, "$place/keys" }, 'F0000' ])
	{
		my ($name, $make, $state) = @$case;

		$make->();
		for my $user ('app', 'monitor', 'postgres')
		{
			my $before = -s $node->logfile;
			my ($status, $stdout, $stderr) = $node->psql('postgres', q{SET client_min_messages = debug5; BEGIN; SELECT idem_begin('k'); SELECT idem_complete('k', '1')},
				extra_params => [ '-U', $user, '-v', 'VERBOSITY=verbose' ]);

			like($stderr, qr/ERROR:  $state: /, "$name: $user gets the error");
			like($stderr, qr/HINT:  \S/, "$name: $user gets a hint");
			if ($user eq 'app') { unlike($stderr, qr/SecretPlace/, "$name: $user does not see where the file is") }
			else { like($stderr, qr/SecretPlace/, "$name: $user sees where the file is") }
			like(slurp_file($node->logfile, $before), qr/SecretPlace/, "$name: the server's log has it");
		}
	}
}

done_testing();
