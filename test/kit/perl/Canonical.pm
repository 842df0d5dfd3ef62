# The fingerprint of a request, from its JSON text, as a client may compute it:
# docs/reference/idem_fingerprint.md in another language, and nothing of the
# extension's own code.
package Canonical;

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Encode qw(encode);
use Exporter 'import';

our @EXPORT = qw(fingerprint canonical);

# The hex digits of the fingerprint; the text is of characters, not of bytes.
sub fingerprint
{
	return sha256_hex(canonical($_[0]));
}

# The bytes that are hashed.
sub canonical
{
	my ($json) = @_;
	my $whole = $json =~ /^\s*[\[\{]/ ? value(\$json) : 'r' . value(\$json) . ']';

	$json =~ /\G\s*\z/gc or die "not JSON after position " . (pos($json) // 0);
	return $whole;
}

sub value
{
	my ($json) = @_;

	return object($json) if $$json =~ /\G\s*\{/gc;
	return array($json) if $$json =~ /\G\s*\[/gc;
	return token('s', string($json)) if $$json =~ /\G\s*"/gc;
	return token('n', number($1)) if $$json =~ /\G\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/gc;
	return { true => 't', false => 'f', null => 'z' }->{$1} if $$json =~ /\G\s*(true|false|null)/gc;
	die "not JSON at position " . (pos($$json) // 0);
}

# A letter, the length in bytes, the bytes.
sub token
{
	my ($letter, $bytes) = @_;

	return $letter . pack('N', length $bytes) . $bytes;
}

# Of two members with one name the last counts; shorter names come first.
sub object
{
	my ($json) = @_;
	my %member;

	until ($$json =~ /\G\s*\}/gc)
	{
		$$json =~ /\G[\s,]*"/gc or die 'not JSON: no name';
		my $name = string($json);
		$$json =~ /\G\s*:/gc or die 'not JSON: no colon';
		$member{$name} = value($json);
	}
	return '{' . join('', map { token('s', $_) . $member{$_} }
		  sort { length $a <=> length $b || $a cmp $b } keys %member) . '}';
}

sub array
{
	my ($json) = @_;
	my $elements = '';

	until ($$json =~ /\G\s*\]/gc)
	{
		$$json =~ /\G\s*,/gc;
		$elements .= value($json);
	}
	return "[$elements]";
}

# What follows the quote, without its escapes, in UTF-8.
sub string
{
	my ($json) = @_;
	my %escaped = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t");
	my $string = '';

	until ($$json =~ /\G"/gc)
	{
		if ($$json =~ /\G\\u(d[89ab]..)\\u(d[c-f]..)/gci)
		{
			$string .= chr(0x10000 + ((hex($1) & 0x3ff) << 10) + (hex($2) & 0x3ff));
		}
		elsif ($$json =~ /\G\\u(....)/gc) { $string .= chr hex $1 }
		elsif ($$json =~ /\G\\(.)/gc) { $string .= $escaped{$1} // $1 }
		elsif ($$json =~ /\G([^"\\]+)/gc) { $string .= $1 }
		else { die 'not JSON: a string without end' }
	}
	return encode('UTF-8', $string);
}

# Sign, digits without zeros at either end, "e", exponent.
sub number
{
	my ($sign, $whole, $fraction, $exponent) = $_[0] =~ /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/;
	my $digits = $whole . ($fraction // '');

	$exponent = ($exponent // 0) - length($fraction // '');
	$digits =~ s/^0+//;
	return '0e0' if $digits eq '';
	$digits =~ s/(0*)$//;
	return $sign . $digits . 'e' . ($exponent + length $1);
}

1;
