# The commit is done and its answer is lost: the client asks again
# and gets the same answer, byte for byte.
use Idempotency;
use Wire;

my $node = new_node('lost', conf => 'restart_after_crash = on');

query(<<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SQL

sub query_raw ($socket, $sql)
{
	send_message($socket, 'Q', "$sql\0");
	die "unexpected error: $_->[1]" for grep { $_->[0] eq 'E' } answers($socket);
}

# Every byte is in the body, and the payload has values that are hard for jsonb.
my $response = q{'{"a": 1.00, "b": [null, "\u00e9"], "c": "\\\\"}', code => 201, }
  . q{headers => '{"Location": "/orders/1"}', }
  . q{body => (SELECT string_agg(set_byte('\x00', 0, i), '' ORDER BY i) FROM generate_series(0, 255) i)};
my $expected = query(q{SELECT concat_ws('|', 'COMPLETED', 201,}
	  . q{ '{"Location": "/orders/1"}'::jsonb, '{"a": 1.00, "b": [null, "\u00e9"], "c": "\\\\"}'::jsonb,}
	  . q{ (SELECT string_agg(set_byte('\x00', 0, i), '' ORDER BY i) FROM generate_series(0, 255) i))});

sub operate_and_leave ($key, $leave)
{
	my $socket = connect_raw($node);

	query_raw($socket, "BEGIN; SELECT idem_begin('$key'); INSERT INTO effect VALUES ('$key');"
		  . " SELECT idem_complete('$key', $response)");
	$leave->($socket);
}

sub asked_again ($key)
{
	return query(q{SELECT concat_ws('|', outcome, response_code, response_headers, response_payload, response_body)}
		  . " FROM idem_begin('$key', wait => '60s')");
}

sub effects ($key)
{
	return query("SELECT count(*) FROM effect WHERE key = '$key'");
}

# The client sends COMMIT and disconnects.  The server still reads the COMMIT.
operate_and_leave('left', sub
{
	my ($socket) = @_;

	send_message($socket, 'Q', "COMMIT\0");
	close $socket;
});
is(asked_again('left'), $expected, 'client left: the retry gets the answer');
is(asked_again('left'), $expected, 'and so is the next');
is(effects('left'), '1', 'one effect');

# The same with the COMMIT never sent: then nothing has happened.
operate_and_leave('silent', sub { close $_[0] });
is(query(q{BEGIN; SELECT outcome FROM idem_begin('silent', wait => '60s')}),
	'ACQUIRED', 'client left before COMMIT: the key is free');
is(effects('silent'), '0', 'and there is no effect');

# In the extended protocol the answer to a statement comes before its
# transaction has ended.  A client that does not wait for the end gets ACQUIRED
# for an operation that is then refused.
sub extended ($socket, $sql)
{
	send_message($socket, 'P', "\0$sql\0" . pack('n', 0));
	send_message($socket, 'B', "\0\0" . pack('nnn', 0, 0, 0));
	send_message($socket, 'E', "\0" . pack('N', 0));
	send_message($socket, 'S', '');
	return join ' ', map { $_->[0] eq 'E' ? $_->[1] =~ /\0C(\w{5})\0/ : $_->[0] eq 'D' ? 'row' : () } answers($socket);
}

my $extended = connect_raw($node);
is(extended($extended, q{SELECT outcome FROM idem_begin('extended')}),
	'row ID428', 'the row comes first, the refusal after it');
is( extended(
		$extended,
		q{SELECT outcome FROM idem_call('public.handler(jsonb)', 'extended', '{}')}
	),
	'row',
	'no error before ReadyForQuery: that is done');
close $extended;

# The server dies at the very system call that would answer the COMMIT.
SKIP:
{
	my ($trace, $log);

	skip 'no strace', 3 if system('strace -V >/dev/null 2>&1') != 0;

	operate_and_leave('killed', sub
	{
		my ($socket) = @_;
		my $pid = query(q{SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'});

		$log = '';
		$trace = IPC::Run::start(
			[ 'strace', '-p', $pid, '-e', 'trace=sendto', '-e', 'inject=sendto:signal=KILL:when=1' ],
			'>&', \$log, IPC::Run::timeout($Idempotency::patience));
		eval { $trace->pump until $log =~ /attached|not permitted|$^/m && length $log };
		if ($log =~ /attached/)
		{
			send_message($socket, 'Q', "COMMIT\0");
			# the end, or a reset where the server had not read all that we sent
			my $answer = '';
			my $read = read_some($socket, \$answer, 1);

			ok(defined $read ? $read == 0 : $!{ECONNRESET}, 'server killed: no answer to the COMMIT')
			  or diag('read: ' . ($read // $!));
		}
		eval { $trace->finish };
	});
	skip "strace cannot attach: $log", 3 if $log !~ /attached/;
	wait_until('the server has recovered', sub { $node->psql('postgres', 'SELECT 1') == 0 });
	is(asked_again('killed'), $expected, 'server killed: the retry gets the answer');
	is(effects('killed'), '1', 'server killed: one effect');
}

done_testing();
