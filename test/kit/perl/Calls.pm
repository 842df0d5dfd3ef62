# Which files and folders of src/ call which, by the sources, and what the pages of
# these folders say of that.
package Calls;

use v5.36;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(read_sources calls_of folders_of calls_of_folders page_problems order_problems cycle_of ambiguous_names);

# Every file calls these two, or their macros: nobody is said to call them.
my %everywhere = map { $_ => 1 } qw(compat fault);

# { "begin.c" => its text, … } without comments, strings and directives.
sub read_sources ($directory)
{
	my %sources;

	for my $path (glob "$directory/*.[ch] $directory/*/*.[ch]")
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
sub names_of ($name, $text)
{
	my $hidden = $name =~ /\.c$/ ? qr/static/ : qr/(?!static inline)\w/;
	my @names;

	push @names, $2 while $text =~ /^(?!$hidden)([\w ]+\**)\n(\w+)\(/mg;
	push @names, $1 while $text =~ /^(?!static|extern|typedef|return)[A-Za-z][\w ]*[\s*]+(\w+)(?: = [^;(]*)?;$/mg;
	return @names;
}

# What a file has under a name for itself.
sub own_names_of ($text)
{
	return map { $_ => 1 } $text =~ /^static[^\n;={]*?\n?(\w+)(?=\(|;| =|\[)/mg;
}

# { begin => { store => 1, … }, … }: whose names stand in a file.
sub calls_of ($sources)
{
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
sub ambiguous_names ($sources)
{
	my %files;

	for my $name (grep { /\.c$/ } sort keys %$sources)
	{
		push @{ $files{$1} }, $name while $sources->{$name} =~ /^\w[\w ]*\**\n(\w+)\(/mg;
	}
	return map { "$_: @{ $files{$_} }" } grep { @{ $files{$_} } > 1 } sort keys %files;
}

# { begin => "operation", … }: in which folder of src/ a file is.
sub folders_of ($directory)
{
	return { map { m{([^/]+)/(\w+)\.[ch]$}; $2 => $1 } glob "$directory/*/*.[ch]" };
}

# { operation => { store => 1, … }, … }: the same calls between folders.  What is in
# no folder, module.c, calls all of them.
sub calls_of_folders ($calls, $folders)
{
	my %calls;

	for my $file (keys %$calls)
	{
		my $folder = $folders->{$file} // next;

		$calls{$folder} //= {};
		$calls{$folder}{$_} = 1 for grep { $_ ne $folder } map { $folders->{$_} } keys %{ $calls->{$file} };
	}
	return \%calls;
}

# What is wrong with the page of a folder: rows "| `begin.c` | what it does |" that
# are missing or too many, and its line "Calls: scope, store."
sub page_problems ($folder, $page, $files, $called)
{
	my %row = map { $_ => 1 } $page =~ /^\| `(\w+\.[ch])` \| \S/mg;
	my ($said) = $page =~ /^Calls: (.*)\.$/m;
	my $calls = join(', ', sort keys %$called) || 'nobody';
	my @problems;

	push @problems, map { "$folder: $_ has no row" } grep { !$row{$_} } @$files;
	delete @row{@$files};
	push @problems, map { "$folder: $_ has a row, but does not exist" } sort keys %row;
	push @problems, "$folder: calls $calls" if ($said // '') ne $calls;
	return @problems;
}

# What is wrong with the order of the folders "| `operation` | ... |" on the page of src/:
# each calls those below it only.
sub order_problems ($page, $calls)
{
	my @order = $page =~ m{^\| \[`(\w+)`\]}mg;
	my %place = map { $order[$_] => $_ } 0 .. $#order;
	my @problems = map { "$_ has no row" } grep { !defined $place{$_} } sort keys %$calls;

	push @problems, map { "$_ has a row, but does not exist" } grep { !$calls->{$_} } @order;
	for my $folder (grep { $calls->{$_} } @order)
	{
		push @problems, map { "$folder calls $_, which is above it" }
		  grep { defined $place{$_} && $place{$_} < $place{$folder} } sort keys %{ $calls->{$folder} };
	}
	return @problems;
}

# Files that call each other in a circle, if there are any.
sub cycle_of ($calls)
{
	my %left = map { $_ => { %{ $calls->{$_} } } } keys %$calls;

	while (my @leaves = grep { !%{ $left{$_} } } keys %left)
	{
		delete @left{@leaves};
		delete @{$_}{@leaves} for values %left;
	}
	return sort keys %left;
}

1;
