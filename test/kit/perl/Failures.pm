# The list of failures, docs/failures.md, and the tests that cite its numbers as
# "FAILURES 13", "FAILURES 13, 19 and 20" or "FAILURES 15 to 18".
package Failures;

use strict;
use warnings;

use Exporter 'import';
use File::Find;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(cited_failures failure_problems);

# Which numbers the files under these directories cite: { file => { number => 1 } },
# the names relative to the root.
sub cited_failures
{
	my ($root, @where) = @_;
	my %cited;

	find(
		{
			no_chdir => 1,
			wanted => sub {
				my $name = $File::Find::name =~ s/^\Q$root\E\///r;

				return if !-f || !/\.(?:sql|spec|pl|pm|py|c|h|md|conf|yml)$|\/[\w-]+$/;
				$cited{$name}{$_} = 1 for numbers_in(slurp_file($File::Find::name));
			}
		},
		grep { -e } map { "$root/$_" } @where);
	return \%cited;
}

# The numbers that a text cites.
sub numbers_in
{
	my ($text) = @_;
	my @numbers;

	while ($text =~ /\bFAILURES\s+(\d+(?:(?:,\s*|\s+(?:to|and)\s+)\d+)*)/g)
	{
		my $list = $1;

		push @numbers, $1 .. $2 // $1 while $list =~ /(\d+)(?:\s+to\s+(\d+))?/g;
	}
	return @numbers;
}

# What is wrong with the page: numbers out of order, cited numbers without a row,
# and rows without a test that cites them and without a reason.
sub failure_problems
{
	my ($page, $cited) = @_;
	my (%rows, @problems);
	my $next = 1;

	for my $line (split /\n/, $page)
	{
		my ($number, $test) = $line =~ /^\|\s*(\d+)\s*\|.*\|\s*([^|]*?)\s*\|$/ or next;

		push @problems, "row $number, where $next comes next" if $number != $next;
		$next = $number + 1;
		$rows{$number} = 1;
		push @problems, map { "$number: $_" } row_problems($number, $test, $cited);
	}
	for my $file (sort keys %$cited)
	{
		push @problems, map { "$file cites $_, which has no row" }
		  sort { $a <=> $b } grep { !$rows{$_} } keys %{ $cited->{$file} };
	}
	return @problems;
}

sub row_problems
{
	my ($number, $test, $cited) = @_;
	my @files = $test =~ /`([^`]+)`/g;

	return () if $test =~ /^no test: \S/ && $test !~ /^no test: to come/;
	return ('no test is named, and no reason') if !@files;
	return map { "$_ does not cite it" } grep { !$cited->{$_}{$number} } @files;
}

1;
