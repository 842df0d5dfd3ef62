# Which files of src/ call which, by the sources, and what docs/architecture.md
# says of that.
package Calls;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(read_sources calls_of call_problems cycle_of ambiguous_names);

# Every file calls these two, or their macros: the table leaves them out.
my %everywhere = map { $_ => 1 } qw(compat fault);

# { "begin.c" => its text, … } without comments, strings and directives.
sub read_sources
{
	my ($directory) = @_;
	my %sources;

	for my $path (glob "$directory/*.[ch]")
	{
		my $text = slurp_file($path);

		$text =~ s{/\*.*?\*/}{}gs;
		$text =~ s/"(?:[^"\\\n]|\\.)*"/""/g;
		# the includes of our own go, too: who calls nothing of a file does not call it
		$text =~ s/^#include.*\n//mg;
		$sources{ $path =~ s{.*/}{}r } = $text;
	}
	return \%sources;
}

# What other files may use of a file: functions and variables that are not
# static, and inline functions of headers.
sub names_of
{
	my ($name, $text) = @_;
	my $hidden = $name =~ /\.c$/ ? qr/static/ : qr/(?!static inline)\w/;
	my @names;

	push @names, $2 while $text =~ /^(?!$hidden)([\w ]+\**)\n(\w+)\(/mg;
	push @names, $1 while $text =~ /^(?!static|extern|typedef|return)[A-Za-z][\w ]*[\s*]+(\w+)(?: = [^;(]*)?;$/mg;
	return @names;
}

# What a file has under a name for itself.
sub own_names_of
{
	my ($text) = @_;

	return map { $_ => 1 } $text =~ /^static[^\n;={]*?\n?(\w+)(?=\(|;| =|\[)/mg;
}

# { begin => { store => 1, … }, … }: whose names stand in a file.
sub calls_of
{
	my ($sources) = @_;
	my (%owner, %calls);

	for my $name (keys %$sources)
	{
		my $file = $name =~ s/(?:_internal)?\.[ch]$//r;

		$owner{$_} = $file for names_of($name, $sources->{$name});
	}
	for my $name (grep { /\.c$/ } keys %$sources)
	{
		my $file = $name =~ s/\.c$//r;
		my %own = own_names_of($sources->{$name});

		$calls{$file} = {};
		for my $word ($sources->{$name} =~ /(?<![.>\w])(\w+)/g)
		{
			my $called = $owner{$word};

			next if !defined $called || $own{$word} || $called eq $file || $everywhere{$called};
			$calls{$file}{$called} = 1;
		}
	}
	return \%calls;
}

# Names that several files give to functions of their own, with these files.
sub ambiguous_names
{
	my ($sources) = @_;
	my %files;

	for my $name (grep { /\.c$/ } sort keys %$sources)
	{
		push @{ $files{$1} }, $name while $sources->{$name} =~ /^\w[\w ]*\**\n(\w+)\(/mg;
	}
	return map { "$_: @{ $files{$_} }" } grep { @{ $files{$_} } > 1 } sort keys %files;
}

# { begin => { store => 1, … }, … } by the table "| file | what it does | calls |".
sub calls_of_table
{
	my ($page, $calls) = @_;
	my %said;

	while ($page =~ /^\| `(\w+)\.c` \|[^|]*\|([^|]*)\|$/mg)
	{
		my ($file, $called) = ($1, $2);

		$said{$file} = { map { $_ => 1 } grep { $calls->{$_} } $called =~ /(\w+)/g };
	}
	return \%said;
}

# { begin => 2, … }: in which layer of the drawing a file is, from the top.
sub layers_of
{
	my ($page) = @_;
	my ($house) = $page =~ /^## The house\n(.*?)^A file calls/ms;
	my (%layers, $layer);

	for my $line (split /\n/, $house // '')
	{
		$layer++ if $line =~ /\+---/;
		$layers{$_} = $layer // 0 for $line =~ /\b(\w+)\.c\b/g;
	}
	return \%layers;
}

# What is wrong with the page: rows that are missing or too many, calls, and
# calls upward.
sub call_problems
{
	my ($page, $calls) = @_;
	my $said = calls_of_table($page, $calls);
	my $layers = layers_of($page);
	my @problems;

	push @problems, map { "$_.c has a row, but does not exist" } grep { !$calls->{$_} } sort keys %$said;
	for my $file (grep { !$everywhere{$_} } sort keys %$calls)
	{
		push @problems, "$file.c is not drawn" unless defined $layers->{$file};
		push @problems, "$file.c has no row" unless $said->{$file};
		push @problems, map { "$file.c calls $_, which is above it" }
		  grep { $file ne 'module' && ($layers->{$_} // 99) < ($layers->{$file} // 0) } sort keys %{ $calls->{$file} };
		next unless $said->{$file};
		push @problems, map { "$file.c calls $_" } grep { !$said->{$file}{$_} } sort keys %{ $calls->{$file} };
		push @problems, map { "$file.c does not call $_" }
		  grep { !$calls->{$file}{$_} && !$everywhere{$_} } sort keys %{ $said->{$file} };
	}
	return @problems;
}

# Files that call each other in a circle, if there are any.
sub cycle_of
{
	my ($calls) = @_;
	my %left = map { $_ => { %{ $calls->{$_} } } } keys %$calls;

	while (my @leaves = grep { !%{ $left{$_} } } keys %left)
	{
		delete @left{@leaves};
		delete @{$_}{@leaves} for values %left;
	}
	return sort keys %left;
}

1;
