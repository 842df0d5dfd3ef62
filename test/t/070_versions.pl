# Versions of the SQL objects: a released script never changes, this library works
# with the objects of every earlier version, and an update leads to the objects
# that a new installation has, while rows live and sessions are open.
#
# Where no version but the first is released, an update is tried all the same: to
# a next version that the test makes itself.  It also has to find what an update
# script forgets.
use File::Basename qw(basename);
use FindBin;

use Idempotency;
use Versions;

my $tree = "$FindBin::RealBin/../..";
my $default = default_version($tree);
my %frozen = frozen($tree);

# ---- released scripts ----

cmp_ok(scalar keys %frozen, '>', 0, 'there is a frozen script');
# With standard_conforming_strings = off, which the owner of a database may set, a
# backslash in a string would not be itself.
for my $script (grep { !$frozen{ basename($_) } } glob("$tree/idempotency--*.sql"))
{
	my @lines = grep { /\\/ && !/^\\echo / } split /\n/, slurp_file($script);

	is("@lines", '', basename($script) . ' has no backslashes');
}
for my $script (sort keys %frozen)
{
	is(checksum("$tree/$script"), $frozen{$script}, "$script is as it was released");
}
for my $version (grep { $_ ne $default } scripts($tree))
{
	ok($frozen{"idempotency--$version.sql"}, "$version is not the default any more: its script is frozen");
}

# ---- next versions of the test's own ----

# One function more, and a grant on it. The careless update script forgets the grant.
my $change = <<'SQL';
CREATE FUNCTION @extschema@.idem_next() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 1;
COMMENT ON FUNCTION @extschema@.idem_next() IS 'what the next version adds';
SQL
my $grant = "REVOKE ALL ON FUNCTION \@extschema\@.idem_next() FROM PUBLIC;\n";
my ($stage, $conf) = built_with('');
my ($scripts) = map { m{^(.*)/idempotency\.control$} } split /\n/, `find '$stage' -name idempotency.control`;
# as CREATE EXTENSION puts the newest version together
my $newest = join '', map { slurp_file("$tree/idempotency--$_.sql") } '1.0', '1.0--1.1';

append_to_file("$scripts/idempotency--next.sql", $newest . $change . $grant);
append_to_file("$scripts/idempotency--careless.sql", $newest . $change . $grant);
append_to_file("$scripts/idempotency--$default--next.sql", $change . $grant);
append_to_file("$scripts/idempotency--$default--careless.sql", $change);

my $secret = PostgreSQL::Test::Utils::tempdir() . '/keys';

append_to_file($secret, 'k1 ' . 'ab' x 32 . "\n");
chmod 0600, $secret;

my $node = new_node('versions', conf => "$conf\nidempotency.seal_key_file = '$secret'\n");
if ($node->pg_version >= 18)
{
	my ($version) = slurp_file("$tree/META.json") =~ /^  "version": "(.*)"/m;

	is($node->safe_psql('postgres', q{SELECT module_name, version FROM pg_get_loaded_modules() WHERE file_name = 'idempotency.so'}),
		"idempotency|$version", 'the server knows the version of the library');
}

# What a database has that is in use: rows of every kind, a lease, a claim, a
# policy, a stream, and a grant.
my $life = <<'SQL';
CREATE EXTENSION pgcrypto;
CREATE ROLE app_@name@ LOGIN;
SELECT idem_grant('app_@name@');
SELECT idem_claim_scope('claimed', 'app_@name@');
SELECT idem_set_policy('policed', max_attempts => 3);
BEGIN;
SELECT idem_begin('done', '{"a": 1}'), idem_complete('done', '{"n": 1}', code => 201, body => 'bytes');
SELECT idem_begin('failed'), idem_fail('failed', '"no"', code => 402);
SELECT idem_begin('sealed', scope => 'sealed'), idem_complete('sealed', '"secret"', 'sealed');
COMMIT;
SELECT idem_begin('leased', lease => '1 hour');
SELECT idem_advance('stream', 7);
SQL

# What the functions answer about it.
my $answers = <<'SQL';
SELECT outcome, response_code, response_payload, response_body FROM idem_begin('done', '{"a": 1.0}');
SELECT outcome, response_code, response_payload FROM idem_begin('failed');
SELECT outcome, response_payload FROM idem_begin('sealed', scope => 'sealed');
SELECT outcome, attempt FROM idem_begin('leased');
SELECT idem_advance('stream', 7), idem_advance('stream', 8);
SELECT idem_may_use_scope('claimed');
SELECT has_function_privilege('app_@name@', 'idem_begin(text, jsonb, text, bytea, interval, interval, int)', 'EXECUTE');
SELECT (SELECT count(*) FROM idempotency_store), (SELECT count(*) FROM idempotency_in_flight);
SQL

sub create ($name, $version)
{
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, "CREATE EXTENSION idempotency VERSION '$version'");
	return;
}

sub for_database ($sql, $name)
{
	return $sql =~ s/\@name\@/$name/gr;
}

# Updates a database in use, with a session that has an operation open, and one
# that has plans. Returns the objects afterwards.
sub update ($from, $to)
{
	my $name = lc "u_${from}_to_$to" =~ s/\W/_/gr;
	my ($open, $known, $before, $told);

	create($name, $from);
	$node->safe_psql($name, for_database($life, $name));
	$known = session($node, $name);
	$told = for_database($answers, $name);
	$before = $node->safe_psql($name, "BEGIN;\n$told ROLLBACK;");
	like($before, qr/^COMPLETED\|201\|.*^COMPLETED\|"secret"/ms, "$from: what a database has that is in use");
	is(ask($known, q{SELECT outcome FROM idem_begin('done')}), 'COMPLETED', "$from: a session has plans");
	$open = session($node, $name);
	ask($open, 'BEGIN');
	ask($open, q{SELECT idem_begin('open')});
	is(sqlstate($node, "SET lock_timeout = '100ms'; ALTER EXTENSION idempotency UPDATE TO '$to'", $name), '',
		"$from to $to: the update waits for no open operation");
	ask($open, q{SELECT idem_complete('open', '"late"')});
	ask($open, 'COMMIT');
	is(ask($known, q{SELECT outcome, response_payload FROM idem_begin('open')}), 'COMPLETED|"late"',
		"$from to $to: what was open ends, and a session with plans sees it");
	$known->quit;
	$open->quit;
	$node->safe_psql($name, q{DELETE FROM idempotency_store WHERE idempotency_key = 'open'});
	is($node->safe_psql($name, "BEGIN;\n$told ROLLBACK;"), $before, "$from to $to: every answer is as before");
	$node->safe_psql($name, for_database(q{SELECT idem_grant('app_@name@')}, $name));
	is($node->safe_psql($name, "SELECT string_agg(has_function_privilege('app_$name', p.oid, 'EXECUTE')::text, ' ') FROM pg_proc p WHERE proname = 'idem_progress'"),
		'true true', "$from to $to: with idem_grant the application may call what is new");
	# pg_dump leaves out what a script has granted, and names a role by number when it is gone
	is($node->safe_psql($name, q{SELECT count(*) FROM pg_init_privs i, aclexplode(i.initprivs) a JOIN pg_roles r ON r.oid = a.grantee WHERE r.rolname LIKE 'app%'}),
		'0', "$from to $to: the script itself grants an application nothing");
	return for_roles(objects($node, $name), $name);
}

# Without the rights of the application, which a new installation has not.
sub for_roles ($objects, $name)
{
	return $objects =~ s/,?"?app_$name=\w+\/\w+"?//gr;
}

sub fresh ($version)
{
	my $name = 'fresh_' . lc $version =~ s/\W/_/gr;

	create($name, $version);
	# as an update does not take back what an owner granted
	$node->safe_psql($name, for_database("CREATE ROLE app_$name; SELECT idem_grant('app_$name')", $name));
	return for_roles(objects($node, $name), $name);
}

# ---- the public interface ----

# Nothing of what was released goes or changes, unless the page lists it. The library has no
# script that is frozen: so that a new setting gets a version, too, the newest one is compared
# in whole.
my $page = slurp_file("$tree/docs/reference/interface.md");

create('interface_now', $default);

my @now = (interface($node, 'interface_now'), interface_of_library($node, $tree));
my %now = map { $_ => 1 } @now;
my %released = map { m{/interface-(.+)$} ? ($1 => [ grep { !/^#/ } split /\n/, slurp_file($_) ]) : () } glob("$tree/test/interface-*");

for my $version (sort keys %released)
{
	my @released = @{ $released{$version} };
	my ($changes) = $page =~ /^## Changes since \Q$version\E$(.*?)(?=^## |\z)/ms;
	my @listed = ($changes // '') =~ /^\| `([^`]+)` \|/mg;
	my $database = 'interface_' . $version =~ s/\W/_/gr;

	create($database, $version);
	is_deeply([ grep { !/^(setting|SQLSTATE) / } @released ], [ interface($node, $database) ], "test/interface-$version has the interface of the frozen scripts");
	cmp_ok(scalar(grep { /^setting / } @released), '>=', 10, "$version: settings are compared");
	cmp_ok(scalar(grep { /^SQLSTATE / } @released), '>=', 7, "$version: SQLSTATEs are compared");
	is(join("\n", sort grep { !$now{$_} } @released), join("\n", sort @listed), "what has changed since $version is what docs/reference/interface.md lists");
}
ok($released{'1.0'}, 'the interface of 1.0 is compared');
is_deeply($released{$default}, \@now, "$default is released: what is added needs the next version") if $released{$default};
is(join(' ', map { /^table idempotency_forgotten, column : (\S+)/ } sort @now), 'call_id cause forgotten_at operations reason role scope session_role',
	'the columns that an operator reads are public');
# docs/releasing.md
if (my $file = $ENV{WRITE_INTERFACE})
{
	unlink $file;
	append_to_file($file, join '', map { "$_\n" }
		"# The public interface of version $default, as released: docs/reference/interface.md. It never changes.", @now);
}

# ---- updates ----

my $next = fresh('next');

cmp_ok(scalar(split /\n/, $next), '>', 100, 'objects are found');
like($next, qr/idem_next/, 'the next version has its function');
is(update($default, 'next'), $next, "an update from $default leads to the objects of a new installation");
isnt(update($default, 'careless'), fresh('careless'), 'a grant that an update script forgets is found');

for my $version (grep { $_ ne $default } scripts($tree))
{
	is(update($version, $default), fresh($default), "an update from $version leads to the objects of $default");

	# A superuser updates what belongs to another role, who is none.
	my $kept = 'kept_' . $version =~ s/\W/_/gr;

	$node->safe_psql('postgres', "CREATE ROLE $kept SUPERUSER; CREATE DATABASE $kept");
	$node->safe_psql($kept, "SET ROLE $kept; CREATE EXTENSION idempotency VERSION '$version'; RESET ROLE; GRANT CREATE ON SCHEMA public TO $kept");
	$node->safe_psql('postgres', "ALTER ROLE $kept NOSUPERUSER");
	$node->safe_psql($kept, "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO $kept; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO $kept;
		CREATE FUNCTION idem_progress() RETURNS int LANGUAGE sql RETURN 1;
		CREATE ROLE member_$kept; CREATE FUNCTION idem_lock_store() RETURNS int LANGUAGE sql SECURITY DEFINER RETURN 1;
		ALTER FUNCTION idem_lock_store() OWNER TO member_$kept; ALTER EXTENSION idempotency ADD FUNCTION idem_lock_store();
		CREATE FUNCTION status_text(idempotency_status) RETURNS text LANGUAGE sql RETURN 'FAILED';
		CREATE CAST (idempotency_status AS text) WITH FUNCTION status_text(idempotency_status) AS IMPLICIT;
		ALTER EXTENSION idempotency UPDATE TO '$default'");
	is($node->safe_psql($kept, q{SELECT proowner::regrole FROM pg_proc WHERE oid = 'idem_lock_store()'::regprocedure}), "member_$kept",
		"$version to $default: nor does what another role has added to the extension");
	is($node->safe_psql($kept, q{SELECT count(*) FROM pg_depend WHERE refobjid = 'status_text'::regproc AND classid = 'pg_rewrite'::regclass}), '0',
		"$version to $default: no view has a cast that others have made");
	$node->safe_psql($kept, 'ALTER EXTENSION idempotency DROP FUNCTION idem_lock_store()');
	is($node->safe_psql($kept, q{SELECT string_agg(DISTINCT coalesce(c.relowner, p.proowner)::regrole::text, ' ') FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
		LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
		LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid WHERE e.extname = 'idempotency'}),
		$kept, "$version to $default: what is new belongs to the owner");
	is($node->safe_psql($kept, q{SELECT proowner::regrole FROM pg_proc WHERE oid = 'idem_progress()'::regprocedure}), 'postgres',
		"$version to $default: what others have made does not");
	is(join('', $node->psql($kept, "SET ROLE $kept; SELECT idem_grant('pg_monitor'), idem_set_policy('a', max_attempts => 3); SELECT idem_partition_store('12 hours'); SELECT idem_gc()")),
		'0|' . "\n\n0", "$version to $default: the owner calls what is new, and collects");
}

$node->stop;

# ---- the objects of this version, and a library of the one before ----

# A library without a function that 1.1 has added: a server that has it loaded still.
($stage, $conf) = built_with('-Didem_require_ended=idem_not_there_yet');
my ($control) = split /\n/, `find '$stage' -name idempotency.control`;
system_or_bail('sed', '-i', q{s/^default_version.*/default_version = '1.0'/}, $control);
my $behind = new_node('behind', conf => $conf);

$behind->safe_psql('postgres', q{BEGIN; SELECT idem_begin('before'); SELECT idem_complete('before', '1'); COMMIT});
is(sqlstate($behind, q{ALTER EXTENSION idempotency UPDATE TO '1.1'}), '42883', 'an update is refused while the old library is loaded');
is($behind->safe_psql('postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'idempotency'}), '1.0', 'nothing of it is left');
is($behind->safe_psql('postgres', q{SELECT outcome FROM idem_begin('before')}), 'COMPLETED', 'operations go on');
is($behind->safe_psql('postgres', q{SELECT idem_gc()}), '0', 'and so does collection');
$behind->stop;
done_testing();
