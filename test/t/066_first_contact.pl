# What a new user is told where something on the machine is in the way: one line that
# names the cause and what helps.
use v5.36;

use Cwd qw(realpath);
use File::Temp;
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

delete @ENV{qw(IDEMPOTENCY_CACHE XDG_CACHE_HOME)};
my $root = realpath("$FindBin::RealBin/../..");
my $work = realpath(PostgreSQL::Test::Utils::tempdir());
my ($pg_config) = split /\n/, said_by("command -v '$ENV{PG_CONFIG}'");

# The output of a shell command, with its errors.
sub said_by ($command)
{
	return scalar `( $command ) 2>&1`;
}

sub is_one_line ($command, $message, $what)
{
	my $said = said_by($command);

	like($said, $message, $what);
	is(scalar(() = $said =~ /\n/g), 1, "$what: in one line");
	return;
}

sub write_file ($path, $content)
{
	open my $file, '>', $path or die "$path: $!";
	print $file $content;
	close $file or die "$path: $!";
	return $path;
}

# A pg_config that answers other things than the real one.
sub pg_config_with ($name, %other)
{
	my $cases = join '', map { "$_) echo '$other{$_}'; exit ;;\n" } sort keys %other;
	my $path = write_file("$work/$name", "#!/bin/sh\ncase \$1 in\n${cases}esac\nexec '$pg_config' \"\$@\"\n");

	chmod 0755, $path;
	return $path;
}

# ---- headers and server ----

my ($includes) = split /\n/, said_by("'$pg_config' --includedir-server");
mkdir "$work/$_" for qw(bare headers);
symlink "$includes/postgres.h", "$work/headers/postgres.h";
write_file("$work/headers/pg_config.h", "#define PG_VERSION \"99.1\"\n");
my $other = pg_config_with('other', '--includedir-server' => "$work/headers");
my $bare = pg_config_with('without_headers', '--includedir-server' => "$work/bare");
my $no_server = pg_config_with('without_server', '--bindir' => "$work/bare");

is(said_by("make -s -C '$root' PG_CONFIG='$pg_config' compare-releases"), '', 'make install: headers and server are of one release');
is_one_line("make -s -C '$root' PG_CONFIG='$other' compare-releases", qr/the server is PostgreSQL \d\S*, its headers are of 99\.1: .*update both/, 'make install: they are not');
is(said_by("make -s -C '$root' PG_CONFIG='$no_server' compare-releases"), '', 'make install without a server');

my $provision = "$root/dev/provision --without-llvm";
is_one_line("PG_CONFIG='$bare' $provision", qr/without its development files: install them \(Debian: postgresql-server-dev-\d+\)/, 'PG_CONFIG of a server without headers');
is_one_line("PG_CONFIG='$no_server' $provision", qr/belongs to no PostgreSQL server, 15 or newer/, 'PG_CONFIG of a client');
is_one_line("PG_CONFIG='$work/none' $provision", qr/is no program: let it name the pg_config of a PostgreSQL server/, 'PG_CONFIG of nothing');

# ---- which headers the cache has ----

my $cache = "$work/cache";
mkdir $cache;
write_file("$work/ask", <<"SH");
. '$root/dev/common.sh'
package_version() { echo 15.18-0+deb12u1; }
major_version() { echo 15; }
headers_package x
SH

sub chosen (@kept)
{
	unlink glob("$cache/*");
	write_file("$cache/postgresql-server-dev-15_${_}_amd64.deb", '') for @kept;
	return said_by("IDEMPOTENCY_CACHE='$cache' bash '$work/ask'") =~ s/.*_(.*)_amd64.deb\n/$1/r;
}

SKIP:
{
	skip 'no dpkg', 4 if said_by('command -v dpkg') eq '';
	is(chosen('15.18-0+deb12u1', '15.20-0+deb12u1'), '15.18-0+deb12u1', 'the headers of exactly the server');
	is(chosen('15.19-0+deb12u1', '15.20-0+deb12u1'), '15.20-0+deb12u1', 'else the newest');
	is(chosen('15.17-0+deb12u1'), '', 'older ones are not taken');
	is(chosen(), '', 'nor is anything where there is nothing');
}

# ---- directories ----

mkdir "$work/$_" for 'a b', 'temporary', 'home', 'stubs';
write_file("$work/ask", qq{cd '$work'; . '$root/dev/common.sh'; echo "\$TMPDIR \$cache"\n});
is(said_by("cd '$work'; TMPDIR=temporary HOME='$work/home' bash ask"), "$work/temporary $work/home/.cache/idempotency\n", 'a relative TMPDIR');
is(said_by("TMPDIR='$work/a b' HOME='$work/home' bash '$work/ask'"), "/tmp $work/home/.cache/idempotency\n", 'TMPDIR with a blank');
like(said_by("TMPDIR='$work/temporary' HOME=/proc bash '$work/ask'"), qr{^\Q$work\E/temporary \Q$work\E/temporary/idempotency-cache-\d+$}, 'a HOME that cannot be written to');
like(said_by("TMPDIR='$work/temporary' env -u HOME bash '$work/ask'"), qr{^\Q$work\E/temporary /\S+/idempotency}, 'no HOME');
is_one_line("TMPDIR='$work/none' $provision", qr/TMPDIR=\S+ is no directory that you can write to: set it to one that is, or unset it/, 'TMPDIR is not there');

write_file("$work/stubs/df", "#!/bin/sh\nprintf '%s\\n' Avail 3\n");
chmod 0755, "$work/stubs/df";
is_one_line("PATH='$work/stubs':\$PATH TMPDIR='$work/temporary' $root/dev/throwaway-server true", qr{/temporary has 3 MB left, and 300 MB are needed: set TMPDIR to a directory with more$}, 'a TMPDIR that is too small');
unlink "$work/stubs/df";

# ---- copies of the tree ----

mkdir "$work/house$_" for '', map { ("/$_", "/$_/one", "/$_/one/.build", "/$_/one/node_modules") } qw(clients examples);
write_file("$work/house/$_", '') for qw(built.o clients/one/.build/made clients/one/node_modules/pg examples/one/kept examples/one/node_modules/pg);
write_file("$work/ask", qq{. '$root/dev/common.sh'; repo='$work/house'; copy_tree "$work/copy-\$1" "\$1"; cd "$work/copy-\$1"; find . -type f | sort\n});
is(said_by("bash '$work/ask' ''"), "./examples/one/kept\n", 'a copy of the tree has nothing that was built or installed');
is(said_by("bash '$work/ask' examples"), "./examples/one/kept\n./examples/one/node_modules/pg\n", '... but for what the examples need, for their commands');
is(said_by("bash '$work/ask' clients"), "./clients/one/.build/made\n./clients/one/node_modules/pg\n./examples/one/kept\n", '... or the clients');

# ---- a server that does not start ----

# Building takes long: this server has what the test's own has.  With HOLD it takes a minute.
write_file("$work/stubs/make", <<"SH");
#!/bin/sh
[ -z "\$HOLD" ] || { : >"\$HOLD"; sleep 60; }
for word; do
	case \$word in
		DESTDIR=*) exec cp -R '$ENV{IDEM_STAGE}/.' "\${word#*=}" ;;
	esac
done
SH
chmod 0755, "$work/stubs/make";
my $place = File::Temp::tempdir('/tmp/idempotency-first.XXXXXX', CLEANUP => 1);

is_one_line("PATH='$work/stubs':\$PATH TMPDIR=$place $root/dev/throwaway-server --conf 'shared_preload_libraries = nowhere' true",
	qr{: the server did not start: FATAL: could not access file "nowhere": .* \(log: $place/idempotency-log\.\w+\)$}, 'a server that does not start');
my ($log, @more) = glob("$place/*");
like(slurp_file($log), qr/could not start server.*FATAL: /s, 'its log is kept');
is("@more", '', 'and nothing else');
unlink $log;

# ---- interrupts ----

# Starts a command in a process group of its own, as a shell of a user does; its output
# goes into a file.
sub start_group ($environment, @command)
{
	my $pid = fork // die "fork: $!";

	return $pid if $pid;
	setpgrp;
	$SIG{INT} = 'DEFAULT';
	@ENV{ keys %$environment } = values %$environment;
	open STDIN, '<', '/dev/null' or die;
	open STDOUT, '>', "$work/said" or die;
	open STDERR, '>&', \*STDOUT or die;
	exec @command or die;
}

sub wait_for_file ($pattern)
{
	for (1 .. 60_000)
	{
		# glob gives back a name without a wildcard, whether or not there is such a file
		return 1 if grep { -e } glob($pattern);
		usleep(1_000);
	}
	return 0;
}

# Command lines that name the place.
sub processes
{
	my @found;

	for my $file (glob '/proc/[0-9]*/cmdline')
	{
		# one that has ended meanwhile has none
		open my $in, '<', $file or next;
		my $line = <$in> // '';
		push @found, $line if $line =~ /\Q$place\E/;
	}
	return "@found";
}

my %moments = (
	'while it builds' => "$work/building",
	'while the server starts' => "$place/idempotency.*/server.log",
	'while the command runs' => "$place/idempotency.*/scratch/running");

for my $moment (sort keys %moments)
{
	my %environment = (PATH => "$work/stubs:$ENV{PATH}", TMPDIR => $place);
	$environment{HOLD} = $moments{$moment} if $moment =~ /builds/;
	my $pid = start_group(\%environment, "$root/dev/throwaway-server", 'sh', '-c', ': >"$IDEM_WORK/running"; exec sleep 1000');

	ok(wait_for_file($moments{$moment}), "an interrupt $moment");
	kill INT => -$pid;
	waitpid $pid, 0;
	isnt($?, 0, 'ends it');
	is(slurp_file("$work/said"), '', 'without a word');
	is(join(' ', glob "$place/*"), '', 'and without a directory');
	is(processes(), '', 'or a server');
}

# ---- the payments ----

SKIP:
{
	skip 'no python3', 11 if !-x '/usr/bin/python3';
	my %mistakes = (
		'{"id": "evt-1", "type": "pay' => qr/demo: \S+:1: ends in the middle of a JSON object, after column 28/,
		"{\"id\": \"evt-1\"\n" => qr/demo: \S+:1: ends in the middle of a JSON object, after column 14/,
		"{\"id\" \"evt-1\"}\n" => qr/demo: \S+:1: is not JSON: Expecting ':' delimiter \(column 7\)/);

	for my $line (sort keys %mistakes)
	{
		write_file("$work/payments", $line);
		# nothing is built: there is nothing to build with
		is_one_line("PG_CONFIG=/none '$root/demo/run' '$work/payments'", $mistakes{$line}, "a line of payments: $line");
	}
	my $said = '';
	for my $moment (1 .. 30)
	{
		my $pid = start_group({}, "$root/demo/messages.py", '--check', "$root/demo/payments.jsonl");

		usleep(3_000 * $moment);
		kill INT => -$pid;
		waitpid $pid, 0;
		$said .= slurp_file("$work/said");
	}
	is($said, '', 'an interrupt while Python starts: no traceback');
	is_one_line("PG_CONFIG=/none '$root/demo/run' '$work/none'", qr/demo: \S+: No such file or directory/, 'a file that is not there');
	is_one_line("cd '$root' && CDPATH=. PG_CONFIG=/none demo/run '$work/none'", qr/demo: \S+: No such file or directory/, '... with CDPATH');
}

# ---- the Debian package is removed ----

mkdir "$work/bin";
write_file("$work/bin/pg_lsclusters", "#!/bin/sh\nprintf '%s\\n' '15 main 5432 online' '15 other 5433 down' '17 main 5434 online'\n");
write_file("$work/bin/pg_conftool", "#!/bin/sh\n[ \$3 = main ] && echo pg_cron,idempotency\n");
chmod 0755, glob("$work/bin/*");
write_file("$work/prerm", slurp_file("$root/debian/prerm.in") =~ s/PGVERSION/15/gr);
is_one_line("PATH=$work/bin:\$PATH sh '$work/prerm' remove", qr{WARNING: cluster 15/main preloads idempotency and will not start again: take it out}, 'a cluster preloads the library');
is(said_by("PATH=$work/bin:\$PATH sh '$work/prerm' upgrade"), '', 'an update goes on');

done_testing();
