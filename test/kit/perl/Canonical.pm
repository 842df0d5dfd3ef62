# The fingerprint of a request, from its JSON text, as a client may compute it:
# docs/reference/idem_fingerprint.md in another language, and nothing of the
# extension's own code.
package Canonical;

use v5.36;

use Digest::SHA qw(sha256_hex);
use Encode qw(encode);
use Exporter 'import';
use JSON::PP;
use Math::BigFloat;

our @EXPORT = qw(fingerprint canonical);

my $reader = JSON::PP->new->allow_nonref->max_depth(1_000_000);
# Before the digits of a number, which JSON::PP would round.
my $mark = chr 0xE000;

# The hex digits of the fingerprint; the text is of characters, not of bytes.
sub fingerprint
{
	return sha256_hex(canonical($_[0]));
}

# The bytes that are hashed.
sub canonical ($json)
{
	$json =~ s{("(?:[^"\\]+|\\.)*+")|(-?\d[-+.\deE]*)}{$1 // qq("$mark$2")}ge;
	my $value = $reader->decode($json);

	return ref($value) =~ /^(?:HASH|ARRAY)$/ ? value($value) : 'r' . value($value) . ']';
}

sub value ($value)
{
	return 'z' if !defined $value;
	return $value ? 't' : 'f' if JSON::PP::is_bool($value);
	return object(%$value) if ref $value eq 'HASH';
	return '[' . join('', map { value($_) } @$value) . ']' if ref $value eq 'ARRAY';
	return token('n', number($1)) if $value =~ /^$mark(.*)/;
	return token('s', encode('UTF-8', $value));
}

# A letter, the length in bytes, the bytes.
sub token ($letter, $bytes)
{
	return $letter . pack('N', length $bytes) . $bytes;
}

# Shorter names come first.
sub object (%value)
{
	my %member = map { encode('UTF-8', $_) => value($value{$_}) } keys %value;

	return '{' . join('', map { token('s', $_) . $member{$_} }
		  sort { length $a <=> length $b || $a cmp $b } keys %member) . '}';
}

# Sign, digits without zeros at either end, "e", exponent.
sub number
{
	my ($digits, $exponent) = Math::BigFloat->new($_[0])->parts;

	return $digits->is_zero ? '0e0' : "${digits}e$exponent";
}

1;
