# A build out of tree: it makes the library that a build in the tree makes, and
# stops with an error where it cannot.
use Cwd qw(realpath);
use FindBin;
use Idempotency;

my $root = "$FindBin::RealBin/../..";
my $tree = realpath(PostgreSQL::Test::Utils::tempdir());
my $build = realpath(PostgreSQL::Test::Utils::tempdir());
my $stage = "$build/stage";

system_or_bail('cp', '-R', "$root/src", "$root/sql", "$root/test", "$root/Makefile", "$root/idempotency.control",
	glob("$root/idempotency--*.sql"), $tree);
unlink glob("$tree/src/*.o"), glob("$tree/src/*/*.o"), glob("$tree/src/*/*.bc"), glob("$tree/*.so");

# What make says, with its errors, and its exit status.
sub make ($directory, @arguments)
{
	my $log = "$build/log";
	my $status = system("make -s -C '$directory' with_llvm=no 'PG_CONFIG=$ENV{PG_CONFIG}' @arguments >'$log' 2>&1");

	return ($status, slurp_file($log));
}

# What the server and the SQL functions look for.  A build for coverage has more.
sub names_in ($library)
{
	my @names = map { (split)[-1] } split /\n/, `nm -D --defined-only '$library'`;

	return join "\n", sort grep { /^(?:pg_finfo_|Pg_magic_func$|_PG_init$)/ } @names;
}

sub fails_with ($message, $what, @arguments)
{
	my ($status, $said) = make(@arguments);

	ok($status != 0, $what);
	like($said, $message, "$what: the message");
	return;
}

my ($status, $said) = make($build, "-f '$tree/Makefile' VPATH='$tree' -j 2 EXTRA_CFLAGS=-O0 install DESTDIR='$stage'");
is($status, 0, 'make install out of tree') or diag($said);
ok(-s "$build/idempotency.so", 'the library is in the directory of the build');
is_deeply([ glob("$tree/src/*.o"), glob("$tree/src/*/*.o"), glob("$tree/*.so") ], [], 'nothing is written into the tree');

my ($own) = split /\n/, `find '$ENV{IDEM_STAGE}' -name idempotency.so`;
cmp_ok(scalar(split /\n/, names_in($own)), '>', 20, 'a library has its names');
is(names_in("$build/idempotency.so"), names_in($own), 'the library has the names of the one that is built in the tree');
for my $file ('idempotency.control', map { m{([^/]+)$} } glob("$root/idempotency--*.sql"))
{
	isnt(`find '$stage' -name '$file'`, '', "$file is installed");
}

# A server may not read the directories of another user.
system_or_bail('chmod', 'a+rx', $build);
my $node = new_node('out', conf => "shared_preload_libraries = ''\n");
is(query("LOAD '$build/idempotency.so'; SHOW idempotency.max_attempts"), '0', 'a server loads the library');
$node->stop;

for my $list ('list-regress', 'list-isolation')
{
	my (undef, $inside) = make($tree, $list);

	like($inside, qr/\w+ \w+/, "$list: there are tests");
	is((make($build, "-f '$tree/Makefile' $list"))[1], $inside, "$list without VPATH finds the same tests");
}

# ---- errors ----

append_to_file("$tree/src/store/left.o", '');
fails_with(qr/has a build of its own/, 'make beside a build in the tree fails', $build, "-f '$tree/Makefile' VPATH='$tree'");
is((make($tree, 'clean'))[0], 0, 'make clean in the tree');
unlink "$tree/src/store/left.o";

mkdir "$build/empty" or die $!;
system_or_bail('cp', "$tree/Makefile", "$build/empty");
fails_with(qr/no source found/, 'make without a source fails', "$build/empty", '');

done_testing();
