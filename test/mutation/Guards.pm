# The list of guards (test/mutation/guards), and how one is taken out of a tree.
package Guards;

use v5.36;

use Exporter 'import';

our @EXPORT = qw(read_file write_file read_guards without take_out);

sub read_file ($path)
{
	open my $file, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$file>;
}

sub write_file ($path, $text)
{
	open my $file, '>', $path or die "$path: $!\n";
	print $file $text;
	close $file or die "$path: $!\n";
	return;
}

# Of each guard of a list: its name, file, tests, the text before and after, and why it may survive.
sub read_guards ($list)
{
	my (@guards, $file, $tests);

	for (split /\n/, read_file($list))
	{
		next if /^#/ || /^$/;
		if (/^= (.+)/) { push @guards, { name => $1, file => $file, tests => $tests // [], old => '', new => '' } }
		elsif (/^file: (\S+)$/) { $guards[-1]{file} = $file = $1 }
		elsif (/^tests: (.+)/) { $guards[-1]{tests} = $tests = [ map { runs_of(split) } split /;/, $1 ] }
		elsif (/^survives: (.+)/) { $guards[-1]{survives} = join ' ', $guards[-1]{survives} // (), $1 }
		elsif (/^-(.*)/) { $guards[-1]{old} .= "$1\n" }
		elsif (/^\+(.*)/) { $guards[-1]{new} .= "$1\n" }
		elsif (/^ (.*)/) { my $line = "$1\n"; $guards[-1]{old} .= $line; $guards[-1]{new} .= $line }
		else { die "$list: what is \"$_\"?\n" }
	}
	return @guards;
}

# One run for each TAP test, so that it is known which one fails; one for the tests of
# regress or isolation, on the direct path unless another suite is named.
sub runs_of ($suite, @names)
{
	return map { [ $suite, $_ ] } @names if $suite eq 'tap';
	return [ $suite =~ /-/ ? $suite : "$suite-directly", @names ];
}

# The file without the guard; dies unless the old lines occur exactly once.
sub without ($tree, $guard)
{
	my $text = "\n" . read_file("$tree/$guard->{file}");
	my $old = "\n$guard->{old}";
	my $at = index $text, $old;

	die "guard \"$guard->{name}\" is not in $guard->{file} any more\n" if $at < 0;
	die "guard \"$guard->{name}\" is in $guard->{file} more than once\n"
	  if index($text, $old, $at + 1) >= 0;
	substr($text, $at, length $old) = "\n$guard->{new}";
	return substr $text, 1;
}

# Leaves the tree without the guard; it is the caller's copy.
sub take_out ($tree, $guard)
{
	write_file("$tree/$guard->{file}", without($tree, $guard));
	return;
}

1;
