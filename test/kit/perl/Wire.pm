# A client that speaks just enough of the protocol to do what libpq does not: leave without
# reading an answer, or call by the fast path.
package Wire;

use v5.36;

use Exporter 'import';

our @EXPORT = qw(connect_raw send_message answers read_some);

# A session of the superuser in database "postgres".
sub connect_raw ($node)
{
	my $socket = $node->raw_connect;

	send_message($socket, '', pack('N', 196608) . "user\0$ENV{PGUSER}\0database\0postgres\0\0");
	answers($socket);
	return $socket;
}

sub send_message ($socket, $type, $body)
{
	print $socket $type, pack('N', 4 + length $body), $body;
	$socket->flush;
	return;
}

# The messages until the server is ready again, each with its type and its body.
sub answers ($socket)
{
	my @messages;

	while (1)
	{
		my ($type, $length) = unpack('aN', read_bytes($socket, 5));
		my $body = read_bytes($socket, $length - 4);

		return @messages if $type eq 'Z';
		push @messages, [ $type, $body ];
	}
}

sub read_bytes ($socket, $count)
{
	my $bytes = '';

	while (length $bytes < $count)
	{
		read_some($socket, \$bytes, $count - length $bytes) or die 'the server has gone';
	}
	return $bytes;
}

# Appends some bytes at most.  If a child ends, such as strace, it interrupts a
# read: that is no fault of the server.
sub read_some ($socket, $bytes, $most)
{
	my $read;

	do { $read = sysread($socket, $$bytes, $most, length $$bytes) } while (!defined $read && $!{EINTR});
	return $read;
}

1;
