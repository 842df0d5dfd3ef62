# Names that share a lock id wait for each other without need, and
# nothing worse happens.  Here all of them do: the library is built anew without a
# bit in its lock ids.
use Idempotency;

my (undef, $conf) = built_with('-DLOCK_ID_MASK=0');
my $node = new_node('collision', conf => $conf);
my ($s1, $s2) = (session($node), session($node));

# The premise: one lock id for all.
ask($s1, q{BEGIN; SELECT idem_begin('a'), idem_begin('b', scope => 's')});
is(query(q{SELECT count(*), min(classid::text || objid::text) FROM pg_locks WHERE locktype = 'advisory'}),
	'1|00', 'every name has the same lock id');

# Different operations of one transaction stay apart.
is(ask($s1, q{SELECT outcome FROM idem_begin('a')}),
	'IN_PROGRESS', 'what is begun is known by its name');
is(ask($s1, q{SELECT outcome FROM idem_begin('c')}),
	'ACQUIRED', 'another name is another operation');

# Another session's other operation is falsely in progress, or waits.
is(ask($s2, q{SELECT outcome, attempt IS NULL FROM idem_begin('d')}),
	'IN_PROGRESS|t', 'a false IN_PROGRESS');
is( ask($s1, q{SELECT idem_complete('a', '"a"'), idem_complete('b', '"b"', scope => 's'), idem_release('c'); COMMIT}
	),
	'||t',
	'each ends by its name');
is(query(q{SELECT scope, idempotency_key, response_payload FROM idempotency_store ORDER BY 2}),
	qq{|a|"a"\ns|b|"b"},
	'a record for each');

ask($s1, q{BEGIN; SELECT idem_begin('e')});
is(ask($s2, q{SELECT outcome, response_payload FROM idem_begin('a')}),
	'COMPLETED|"a"', 'a replay needs no lock');
is(ask($s1, q{SELECT idem_lock(ARRAY['x', 'y'])}),
	't', 'two resources with one lock id are locked');
is(ask($s2, q{SELECT idem_lock(ARRAY['z'])}),
	'f', 'a third one is falsely locked');
ask($s1, 'ROLLBACK');
is(ask($s2, q{BEGIN; SELECT outcome FROM idem_begin('e'); ROLLBACK}),
	'ACQUIRED', 'nothing is left behind');
is( ask($s1,
		q{BEGIN; SELECT string_agg(o.outcome::text, ' ')
			FROM unnest(ARRAY['first', 'second']) s, LATERAL idem_begin('same', scope => s) o}),
	'ACQUIRED ACQUIRED', 'one key of two scopes, and one lock id, are two operations');
ask($s1, 'ROLLBACK');
$s1->quit;
$s2->quit;

# Many clients, each key several times: still once each.
query(q{
	CREATE TABLE effect (key text);
	CREATE FUNCTION work(r jsonb) RETURNS jsonb LANGUAGE sql AS
		$$ INSERT INTO effect VALUES (r ->> 0) RETURNING r $$;
});
$node->pgbench(
	'--no-vacuum --client=8 --transactions=100',
	0,
	[qr{actually processed: 800/800}],
	[qr{^$}],
	'800 calls of 100 operations',
	{
		'011_collision' => q{
			\set key random(1, 100)
			SELECT idem_call('work(jsonb)', 'k' || :key, to_jsonb(ARRAY[:key]), wait => '100 s');
		}
	});
is(query(q{SELECT count(*) = count(DISTINCT key), count(*) > 90 FROM effect}),
	't|t',
	'each took effect once');

done_testing();
