# Runs the examples of Markdown pages: all their blocks marked "sql", in order, in
# one psql session.
#
#	-- => value			what "psql -At" prints for the statement before; more
#						such lines, more lines of output
#	-- ERROR: SQLSTATE	the statement before fails by this
#
# Any other error is a problem, and so is an announcement that does not come true
# or that has no statement before it.
package Examples;

use v5.36;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(problems_of_pages pages_in_order);

# The statements of a file, each with its line and what is announced of it.
sub parse ($markdown)
{
	my (@statements, @stray, $block, $start, $indent, $number);

	for my $line (split /\n/, $markdown)
	{
		$number++;
		if (defined $block && $line =~ /^\s*```\s*$/)
		{
			parse_block($block, $start, \@statements, \@stray);
			undef $block;
		}
		elsif (defined $block)
		{
			$block .= $line =~ s/^$indent//r . "\n";
		}
		elsif ($line =~ /^(\s*)```sql\s*$/)
		{
			($indent, $block, $start) = ($1, '', $number + 1);
		}
	}
	push @stray, "$start: the block has no end" if defined $block;
	return (\@statements, \@stray);
}

# Cuts a block into statements, as psql would.
sub parse_block ($block, $line, $statements, $stray)
{
	my ($text, $first, $atomic, $parentheses) = ('', undef, 0, 0);
	my $had_one = 0;
	my $finish = sub
	{
		push @$statements, { text => $text, line => $first, lines => [] };
		($text, $first, $atomic, $parentheses, $had_one) = ('', undef, 0, 0, 1);
	};

	while ($block =~ /\G(?:
			(?<comment> --[^\n]* | \/\*.*?\*\/ )
		  | (?<end> ; )
		  | (?<meta> \\[^\n]* )
		  | (?<word> \b[A-Za-z_]\w* )
		  | (?<paren> [()] )
		  | (?<token> (?<![A-Za-z0-9_]) [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
				| (?<tag> \$(?:[A-Za-z_]\w*)?\$ ) .*? \k<tag>
				| \s+ | . )
		)/gcxs)
	{
		my %found = %+;
		my $piece = $&;

		if (defined $found{comment} && $text !~ /\S/ && $piece =~ /^--\s*(?:=>|ERROR:)/)
		{
			announce($piece, $line, $had_one ? $statements->[-1] : undef, $stray);
		}
		elsif (defined $found{end} && !$atomic && !$parentheses)
		{
			$text .= $piece;
			$finish->();
		}
		elsif (defined $found{meta})
		{
			$first //= $line;
			$text .= $piece;
			$finish->();
		}
		else
		{
			$first //= $line if !defined $found{comment} && $piece =~ /\S/;
			$text .= $piece;
			if (defined $found{paren})
			{
				$parentheses += $piece eq '(' ? 1 : -1;
			}
			elsif (defined $found{word})
			{
				$atomic++
				  if $text =~ /\bBEGIN\s+ATOMIC$/i || ($atomic && $piece =~ /^CASE$/i);
				$atomic-- if $atomic && $piece =~ /^END$/i;
			}
		}
		$line += () = $piece =~ /\n/g;
	}
	$text =~ s/--[^\n]*|\/\*.*?\*\///gs;
	push @$stray, "$first: the statement has no end" if $text =~ /\S/;
}

sub announce ($comment, $line, $statement, $stray)
{
	if (!defined $statement)
	{
		push @$stray, "$line: no statement before \"$comment\"";
	}
	elsif ($comment =~ /^--\s*=>[ ]?(.*?)\s*$/)
	{
		push @{ $statement->{lines} }, $1;
	}
	elsif ($comment =~ /^--\s*ERROR:\s*([0-9A-Z]{5})\b/)
	{
		$statement->{sqlstate} = $1;
	}
	else
	{
		push @$stray, "$line: not understood: \"$comment\"";
	}
}

# The pages that a page links to, in the order in which they are first named.
sub pages_in_order ($markdown)
{
	my %seen;

	return grep { !$seen{$_}++ } $markdown =~ /\]\(([^)#:]+\.md)(?:#[^)]*)?\)/g;
}

# What is wrong with the examples of pages, [name, text] each, read one after the other
# in one database and one session; each with its line.
sub problems_of_pages ($node, $database, @pages)
{
	my ($script, $output, $messages) = ("\\set VERBOSITY verbose\n", '', '');
	my ($statements, $problems) = ([], []);

	for my $page (@pages)
	{
		my ($name, $text) = @$page;
		my ($found, $stray) = parse($text);
		my $before = $name eq '' ? '' : "$name:";

		push @$problems, map { "$before$_" } @$stray;
		push @$statements, map { { %$_, line => "$before$_->{line}" } } @$found;
	}
	for my $number (0 .. $#$statements)
	{
		$script .= "\\set SQLSTATE 00000\n$statements->[$number]{text}\n"
		  . "\\echo\n\\echo @@ $number :SQLSTATE\n\\warn @@ $number\n";
	}
	IPC::Run::run(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=0', '-d', $node->connstr($database), '-f', '-' ],
		'<', \$script, '>', \$output, '2>', \$messages);

	for my $number (0 .. $#$statements)
	{
		my $statement = $statements->[$number];
		my ($text, $sqlstate) = $output =~ s/\A(.*?)\n?^@@ $number (\w+)\n//ms ? ($1, $2) : (undef, 'lost');
		my $message = $messages =~ s/\A(.*?)^@@ $number\n//ms ? $1 : $messages;
		my $expected = $statement->{sqlstate} // '00000';

		# psql's own complaints, as of \gset, come without SQLSTATE
		$sqlstate = 'psql' if $sqlstate eq '00000' && $message =~ /error:|no rows returned|more than one row/;
		if ($sqlstate ne $expected)
		{
			push @$problems, "$statement->{line}: expected SQLSTATE $expected, not $sqlstate: $statement->{text}\n$message";
		}
		elsif (@{ $statement->{lines} })
		{
			my $wanted = join "\n", @{ $statement->{lines} };

			$text =~ s/\n\z//;
			push @$problems, "$statement->{line}: expected \"$wanted\", not \"$text\": $statement->{text}"
			  if $text ne $wanted;
		}
	}
	return @$problems;
}

1;
