# With a weak hash, a role could compute the seed of the lock ids from
# ids of its own names in pg_locks, and then recognise other names.  So an id is
# SipHash-2-4 of scope and key with 128 secret bits.
use Idempotency;

# The results of the authors' reference implementation, vectors_sip64 of
# https://github.com/veorq/SipHash: for the key 000102…0f and the messages "",
# 00, 0001, 000102, …  The one for 15 bytes is in the appendix of the paper.
my @vectors = qw(
	310e0edd47db6f72 fd67dc93c539f874 5a4fa9d909806c0d 2d7efbd796666785
	b7877127e09427cf 8da699cd64557618 cee3fe586e46c9cb 37d1018bf50002ab
	6224939a79f5f593 b0e4a90bdf82009e f3b9dd94c5bb5d7a a7ad6b22462fb3f4
	fbe50e86bc8f1e75 903d84c02756ea14 eef27a8e90ca23f7 e545be4961ca29a1
	db9bc2577fcc2a3f 9447be2cf5e99a69 9cd38d96f0b3c14b bd6179a71dc96dbb
	98eea21af25cd6be c7673b2eb0cbf2d0 883ea3e395675393 c8ce5ccd8c030ca8
	94af49f6c650adb8 eab8858ade92e1bc f315bb5bb835d817 adcf6b0763612e2f
	a5c91da7acaa4dde 716595876650a2a6 28ef495c53a387ad 42c341d8fa92d832
	ce7cf2722f512771 e37859f94623f3a7 381205bb1ab0e012 ae97a10fd434e015
	b4a31508beff4d31 81396229f0907902 4d0cf49ee5d4dcca 5c73336a76d8bf9a
	d0a704536ba93e0e 925958fcd6420cad a915c29bc8067318 952b79f3bc0aa6d4
	f21df2e41d4535f9 87577519048f53a9 10a56cf5dfcd9adb eb75095ccd986cd0
	51a9cb9ecba312e6 96afadfc2ce666c7 72fe52975a4364ee 5a1645b276d592a1
	b274cb8ebf87870a 6f9bb4203de7b381 eaecb2a30b22a87f 9924a43cc1315724
	bd838d3aafbf8db7 0b1a2a3265d51aea 135079a3231ce660 932b2846e4d70666
	e1915f5cb1eca46c f325965ca16d629f 575ff28e60381be5 724506eb4c328a95
);
my $module = build_module('siphash_vectors');

my $node = new_node('lock_ids');

query(qq{
	CREATE FUNCTION siphash_of(bytea, bytea) RETURNS bigint
		AS '$module', 'siphash_of' LANGUAGE c STRICT;
});

# ---- the hash itself ----

my $message = join '', map { sprintf '%02x', $_ } 0 .. 63;

my $results = query(qq{
	SELECT to_hex(siphash_of('\\x000102030405060708090a0b0c0d0e0f', substr('\\x$message'::bytea, 1, n)))
	FROM generate_series(0, 63) n ORDER BY n});

# the authors print the lowest byte first
my $expected = join "\n", map { s/^0+//r } map { join '', reverse /../g } @vectors;

is(scalar @vectors, 64, 'all vectors are here');
is($results, $expected, "the authors' results");
is(query(q{SELECT to_hex(siphash_of('\x000102030405060708090a0b0c0d0e0f', '\x000102030405060708090a0b0c0d0e'))}),
	'a129ca6149be45e5', "the paper's example");

# ---- what is hashed ----

is(query('SELECT count(*), min(octet_length(lock_key)) FROM idempotency_secret'),
	'1|16', 'a key of 128 bits');
is(sqlstate($node, q{UPDATE idempotency_secret SET lock_key = lock_key || '\x00'}), '23514', 'and of no other length');

# The ids of the locks that a statement takes, as numbers.
sub ids ($sql, $class)
{
	return query(qq{BEGIN; DO \$\$BEGIN PERFORM $sql; END\$\$;
		SELECT string_agg(((classid::bigint << 32) | objid::bigint)::text, ' ' ORDER BY objid)
		FROM pg_locks WHERE locktype = 'advisory' AND objsubid = $class AND pid = pg_backend_pid()});
}

# As documented: kind, length of the scope, scope, name.
sub id_of ($kind, $scope, $name)
{
	my $message = unpack 'H*', pack('aL', $kind, length $scope) . $scope . $name;

	return query("SELECT siphash_of(lock_key, '\\x$message') FROM idempotency_secret");
}

my ($operation, $resource) = (0x1DE0, 0x1DE1);

for (['', 'k'], ['payments', 'order-4711'], ['a', 'bc'], ['ab', 'c'], ['s' x 255, 'k' x 255])
{
	my ($scope, $key) = @$_;

	is( ids("idem_begin('$key', scope => '$scope')", $operation),
		id_of(o => $scope, $key),
		'an operation: scope and key, each with its length, ' . length($scope) . ' and ' . length($key));
}
isnt(ids(q{idem_begin('bc', scope => 'a')}, $operation),
	ids(q{idem_begin('c', scope => 'ab')}, $operation), 'where the scope ends matters');
is(ids(q{idem_lock(ARRAY['account-1'])}, $resource), id_of(r => '', 'account-1'), 'a resource');

# A new installation has a new key.
my $before = query('SELECT lock_key FROM idempotency_secret');

query('DROP EXTENSION idempotency; CREATE EXTENSION idempotency');
isnt(query('SELECT lock_key FROM idempotency_secret'), $before, 'a new installation has a new key');
is(ids(q{idem_begin('k')}, $operation), id_of(o => '', 'k'), 'and uses it');

done_testing();
