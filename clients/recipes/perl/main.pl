# Calls the recipe for each line of the input: play.py says how.
use strict;
use warnings;

use JSON::PP;
use Pay;

my $json = JSON::PP->new->allow_nonref;
my $db;
my $once = Once->new(
	scope => 'payments/tenant-1',
	connect => sub {
		$db = DBI->connect("dbi:Pg:dbname=$ENV{PGDATABASE}", $ENV{PGUSER}, undef,
			{ AutoCommit => 1, RaiseError => 1, PrintError => 0, PrintWarn => 0, pg_server_prepare => 0 });
	});

$| = 1;
while (my $line = <STDIN>)
{
	my ($key, $account, $amount) = split ' ', $line;
	my $answer = eval { Pay::pay($once, $key, { account => $account, amount => 0 + $amount }) };

	if ($answer)
	{
		print join(' ', $answer->{code}, $answer->{replayed} ? 'replay' : 'new', $json->encode($answer->{payload})), "\n";
	}
	else
	{
		print 'error ', $once->{sqlstate} || 'rolled-back', "\n";
	}
}
