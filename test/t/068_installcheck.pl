# "make installcheck", as a user runs it on a server of his own: the library is
# not preloaded, another database has the extension, settings are the defaults,
# the superuser has a name of his own, and the tree is one that only he can read.
use FindBin;
use Idempotency;

my $root = "$FindBin::RealBin/../..";
my $node = new_node('own', conf => "shared_preload_libraries = ''\nidempotency.gc_enabled = on\n");
my $tree = PostgreSQL::Test::Utils::tempdir();
my $log = "$tree/log";
my $output;

system_or_bail('cp', '-R', "$root/src", "$root/sql", "$root/expected", "$root/Makefile",
	"$root/idempotency.control", glob("$root/idempotency--*.sql"), $tree);
chmod 0700, $tree;
is(query("SELECT current_setting('shared_preload_libraries')"), '', 'the library is not preloaded');
query('CREATE ROLE somebody SUPERUSER LOGIN');

# The isolation tests run in test/check; here they would only take time.
{
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGUSER => 'somebody');

	system("make -C '$tree' installcheck ISOLATION= with_llvm=no PG_CONFIG='$ENV{PG_CONFIG}' >'$log' 2>&1");
}
$output = slurp_file($log);
like($output, qr/All \d+ tests passed/, 'make installcheck')
  or diag($output, -e "$tree/regression.diffs" ? slurp_file("$tree/regression.diffs") : '');

done_testing();
