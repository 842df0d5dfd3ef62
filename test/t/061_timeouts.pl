# Events from outside that end a lease or a transaction: the server's timeouts
# and a clock that somebody sets.
use Idempotency;

my ($faketime) = glob('/usr/lib/*/faketime/libfaketime.so.1');
my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';

sub set_clock ($offset)
{
	open my $file, '>', "$clock.new" or die $!;
	print $file "$offset\n";
	close $file;
	rename "$clock.new", $clock or die $!;
	return;
}

die 'package faketime is missing: the clock cannot be set' if !$faketime;
set_clock('+0s');
$ENV{FAKETIME_TIMESTAMP_FILE} = $clock;
$ENV{FAKETIME_NO_CACHE} = 1;
$ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
$ENV{LD_PRELOAD} = $faketime;
my $node = new_node('timeouts');
delete $ENV{LD_PRELOAD};

# A transaction that does nothing for too long is ended by the server, and its
# key is free: a waiter gets it.
my @timeouts = ('idle_in_transaction_session_timeout');
push @timeouts, 'transaction_timeout'
  if query('SHOW server_version_num') >= 170000;
for my $timeout (@timeouts)
{
	my $idle = session($node);

	# long enough for psql to hear the answer first, on a busy machine as well
	ask($idle, "BEGIN; SELECT idem_begin('idle'); SET $timeout = '2s'");
	is(query(q{BEGIN; SELECT outcome FROM idem_begin('idle', wait => '100s'); ROLLBACK}),
		'ACQUIRED',
		"$timeout ends the owner, and the waiter gets the key");
	eval { $idle->quit };
}
is(query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0',
	'and no lock is left');

# The clock goes forward: a lease ends early.  Its owner gets ID409.
my ($owner, $other) = (session($node), session($node));
my $old =
  ask($owner, q{SELECT fence FROM idem_begin('clock', lease => '1 hour')});
is(ask($other, q{SELECT outcome FROM idem_begin('clock')}),
	'IN_PROGRESS', 'a lease runs');
set_clock('+2h');
my ($outcome, $taken_over, $new) = split /\|/,
  ask($other,
	q{SELECT outcome, taken_over, fence FROM idem_begin('clock', lease => '1 hour')}
  );
is("$outcome $taken_over", 'ACQUIRED t', 'clock set forward: taken over');
cmp_ok($new, '>', $old, 'with a greater fence');
is(sqlstate($node, qq{SELECT idem_complete('clock', fence => $old)}),
	'ID409', 'the old fence is refused');

# The clock goes back: the lease lasts longer, and its fence is still right.
set_clock('+0s');
is( ask($owner,
		q{SELECT outcome, retry_after > '2 hours 30 minutes' FROM idem_begin('clock')}
	),
	'IN_PROGRESS|t',
	'clock set back: the lease lasts longer');
is(sqlstate($node, qq{SELECT idem_complete('clock', fence => $old)}),
	'ID409', 'the old fence is still refused');
is(ask($other, qq{SELECT idem_complete('clock', '1', fence => $new)}),
	'', 'the new one completes');
is(ask($owner, q{SELECT outcome FROM idem_begin('clock')}),
	'COMPLETED', 'for all to see');

# A wait is measured by a clock that nobody sets.
ask($other, q{SELECT fence FROM idem_begin('wait', lease => '1 hour')});
my $waiter = session($node);
$waiter->{stdin} .=
  "SELECT outcome FROM idem_begin('wait', wait => '300 ms');\n";
$waiter->{run}->pump_nb;
set_clock('-1h');
like($waiter->query('SELECT 1'), qr/IN_PROGRESS\n1/, 'a wait ends in time while the clock is set back');

$_->quit for $owner, $other, $waiter;
done_testing();
