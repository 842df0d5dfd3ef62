# One library of a major version loads on each of its minor releases: it needs no
# function of the server that the oldest one lacks.
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
my $list = "$FindBin::RealBin/../minors/$version.gz";

plan skip_all => "no list of what the oldest release of $version exports" if !-e $list;

my $library = said_by('find', $ENV{IDEM_STAGE}, '-name', 'idempotency.so');
my $programs = said_by($ENV{PG_CONFIG}, '--bindir');
my %oldest = map { $_ => 1 } split /\n/, said_by('gzip', '-dc', $list);
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
