# Two copies of the library in one session: the second one is refused, and the error names
# both files.
use Cwd qw(realpath);
use Idempotency;

my $node = new_node('copies');
my ($file) = map { realpath($_) } split /\n/, `find '$ENV{IDEM_STAGE}' -name idempotency.so`;
my $work = realpath(PostgreSQL::Test::Utils::tempdir());
my $works = q{BEGIN; SELECT FROM idem_begin('k'); SELECT idem_complete('k', '1'); COMMIT; SELECT outcome FROM idem_begin('k')};

system_or_bail('cp', $file, "$work/idempotency.so");
symlink $file, "$work/same.so";

# As psql prints the error of a statement in a session that has made another one before.
sub error_of ($sql)
{
	my ($stdout, $stderr);

	$node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

sub is_refused ($sql, $second, $first, $what)
{
	like(error_of($sql), qr/ERROR:  55000: cannot load "\Q$second\E", as this session has loaded "\Q$first\E"/, $what);
	return;
}

is_refused("LOAD '$work/idempotency.so'", "$work/idempotency.so", $file, 'preloaded, and another copy is loaded');
is(error_of("LOAD '$work/same.so'"), '', 'the same file by another name is no other copy');
is($node->safe_psql('postgres', "\\set ON_ERROR_STOP off\nLOAD '$work/idempotency.so';\n$works", on_error_die => 0), "\nCOMPLETED",
	'after the error the first copy works');

$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
is_refused("SELECT idem_step_key('a', 'b'); LOAD '$work/idempotency.so'", "$work/idempotency.so", $file, 'not preloaded');
is_refused("LOAD '$work/idempotency.so'; SELECT idem_step_key('a', 'b')", $file, "$work/idempotency.so", 'the functions are in the second copy');

# The file of shared_preload_libraries is not that of the functions.
$node->append_conf('postgresql.conf', "shared_preload_libraries = '$work/idempotency.so'");
$node->restart;
is_refused("SELECT idem_step_key('a', 'b')", $file, "$work/idempotency.so", 'another copy is preloaded');

done_testing();
