# The last lines of a harness name what failed, its own and that of the commands it runs.
use v5.36;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $directory = PostgreSQL::Test::Utils::tempdir();

# What a harness of these lines prints at its end, from the first "failed: " on, and its
# exit status.
sub end_of ($lines)
{
	my $script = "$directory/harness";

	append_to_file($script, "set -euo pipefail\nsource '$root/test/kit/kit.sh'\ngive_verdict\n$lines");
	my $said = `bash '$script' 2>&1`;
	my $status = $? >> 8;

	unlink $script;
	return ($said =~ /^((?:failed: .*\n)*\d+ passed, \d+ failed\n)\z/m ? $1 : "no verdict: $said", $status);
}

append_to_file("$directory/program.py", join "\n", 'from verdict import Verdict', 'with Verdict() as verdict:',
	"\tverdict.check(False, 'three is four', 'details')", "\traise KeyError\n");

is_deeply([ end_of("expect 'one is one' test 1 = 1\n") ], [ "1 passed, 0 failed\n", 0 ], 'nothing failed');
is_deeply([ end_of("expect 'one is two' test 1 = 2\nexpect 'one is one' test 1 = 1\n") ],
	[ "failed: one is two\n1 passed, 1 failed\n", 1 ], 'a check');
is_deeply([ end_of("absorb bash -c 'echo not ok 7 seven; echo 2 passed, 1 failed; exit 1'\n") ],
	[ "failed: 7 seven\n2 passed, 1 failed\n", 1 ], 'a command that only says "not ok"');
is_deeply([ end_of("absorb bash -c 'echo not ok: x; echo failed: in words; echo 2 passed, 1 failed; exit 1'\n") ],
	[ "failed: in words\n2 passed, 1 failed\n", 1 ], 'a command that names it');
SKIP:
{
	skip 'no python3', 1 if !-x '/usr/bin/python3';
	is_deeply([ end_of("absorb '$root/test/kit/python' '$directory/program.py'\n") ],
		[ "failed: three is four\nfailed: it ended with KeyError\n0 passed, 2 failed\n", 1 ], 'a program in Python');
}
is_deeply([ end_of("absorb bash -c 'exit 3'\n") ],
	[ "failed: bash ended with status 3 after 0 that passed, and named no failure\n0 passed, 1 failed\n", 1 ], 'a command without a verdict');
is_deeply([ end_of("expect one true\nfalse\n") ],
	[ "failed: $directory/harness ended with status 1\n1 passed, 1 failed\n", 1 ], 'a step of the harness');
my ($many) = end_of("for n in {1..23}; do note 1 number; done\n");
is($many, ("failed: number\n" x 20) . qq{failed: and 3 more, see "not ok" above\n0 passed, 23 failed\n}, 'as many as fit on a screen');

# The lines behind the warning are more than a pipe takes.
is_deeply([ end_of("drop=()\nbuild_quietly '$directory/build.log' bash -c 'echo x.c:1: warning: y; seq 100000'\n") ],
	[ "failed: $directory/harness ended with status 1\n0 passed, 1 failed\n", 1 ], 'a build that warns');
is_deeply([ end_of("drop=()\nexpect builds build_quietly '$directory/build.log' seq 100000\n") ],
	[ "1 passed, 0 failed\n", 0 ], 'a build that does not');

# The parts of continuous integration leave logs.
append_to_file("$directory/part.log", "not ok: x\nfailed: x\n    1 passed, 0 failed\n3 passed, 1 failed\nmake: *** [Makefile:1: x] Error 1\n");
is_deeply([ end_of("add_verdict '$directory/part.log' 2 part 'part.log: '\n") ],
	[ "failed: part.log: x\n3 passed, 1 failed\n", 1 ], 'a log');

# TAP and pg_regress, whose names are read from what they print.
my $raw = "$directory/raw/test/t";
mkdir $_ for "$directory/raw", "$directory/raw/test", $raw;
append_to_file("$raw/a.pl", "ok 1 - x\nnot ok 2 - two is three\nnot ok 3 - later # TODO x\n1..3\n");
append_to_file("$raw/b.pl", "ok 1 - x\n");
append_to_file("$raw/c.pl", "ok 1 - x\n1..1\n");
like((end_of("name_failed_tap '$directory/raw' | sort >'$directory/names'\nexpect one true\n"))[0], qr/^1 passed, 0 failed$/, 'names of TAP are read');
is(slurp_file("$directory/names"), "test/t/a.pl: two is three\ntest/t/b.pl: it ended too early\n", 'names of TAP');

done_testing();
