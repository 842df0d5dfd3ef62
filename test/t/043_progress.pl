# Notes of progress (docs/guide/calling-a-payment-gateway.md): a worker that charges, notes
# it, sends a receipt and notes that, and is killed after each of its steps. The next
# worker does what the note leaves to do.
use Idempotency;

my $node = new_node('progress');

# What the other systems have got. They are asked by key: no transaction of the worker covers them.
my (@charges, @receipts, @questions);

# The steps of a worker, one at a time. The first one that is not in the note may have happened.
sub steps ($session, $key)
{
	my ($fence, $note, $taken_over);

	return (
		sub {
			my $answer = ask($session, "SELECT outcome, taken_over, fence, response_payload->>'charge', response_payload->>'receipt' FROM idem_begin('$key', lease => '1 hour')");

			like($answer, qr/^ACQUIRED/, "$key: acquired") or BAIL_OUT($answer);
			(undef, $taken_over, $fence, @$note{ 'charge', 'receipt' }) = split /\|/, $answer;
		},
		sub {
			return if $note->{charge};
			push @questions, 'charge' if $taken_over eq 't';
			push @charges, $key if !grep { $_ eq $key } @charges;
		},
		sub {
			return if $note->{charge};
			ask($session, qq{SELECT idem_progress('$key', '{"charge": "ch"}', fence => $fence) IS NOT NULL});
			$note->{charge} = 'ch';
			$taken_over = 'f';	# the receipt is this worker's: nobody else has tried it
		},
		sub {
			return if $note->{receipt};
			push @questions, 'receipt' if $taken_over eq 't';
			push @receipts, $key if !grep { $_ eq $key } @receipts;
		},
		sub {
			return if $note->{receipt};
			ask($session, qq{SELECT idem_progress('$key', '{"charge": "ch", "receipt": true}', fence => $fence) IS NOT NULL});
		},
		sub { ask($session, "SELECT idem_complete('$key', '\"sent\"', fence => $fence)") });
}

my @expected = ([ 'charge' ], [ 'charge' ], ['receipt'], ['receipt'], []);

for my $killed_after (0 .. 4)
{
	my $key = "order $killed_after";
	my $worker = session($node);
	my @steps = steps($worker, $key);
	my $pid = ask($worker, 'SELECT pg_backend_pid()');

	$_->() for @steps[ 0 .. $killed_after ];
	query("SELECT pg_terminate_backend($pid, 60000)");
	$worker->{run}->finish;
	query("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '$key'");
	@questions = ();
	my $next = session($node);
	$_->() for steps($next, $key);
	$next->quit;
	is("@questions", "@{ $expected[$killed_after] }", "killed after step $killed_after: what the next worker asks");
	is(scalar(grep { $_ eq $key } @charges), 1, 'one charge');
	is(scalar(grep { $_ eq $key } @receipts), 1, 'one receipt');
	is(query("SELECT outcome, attempt, response_payload FROM idem_begin('$key')"), 'COMPLETED|2|"sent"', 'and one end');
}
done_testing();
