# Hot standby and promotion.
use Idempotency;

my $primary = new_node('primary', allows_streaming => 1);
my $standby = new_standby($primary);
my ($fence, $newest);

$primary->safe_psql('postgres', <<'SQL');
CREATE TABLE effect (key text);
CREATE ROLE reader;
SELECT idem_grant('reader');
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
BEGIN;
SELECT idem_begin('done');
INSERT INTO effect VALUES ('done');
SELECT idem_complete('done', '"answer"', body => '\x00ff');
COMMIT;
SQL
$fence = $primary->safe_psql('postgres', q{SELECT fence FROM idem_begin('leased', lease => '1 hour')});
$newest = $primary->safe_psql('postgres', <<'SQL');
SELECT max(fence) FROM (SELECT (idem_begin('many' || i, lease => '1 hour')).fence FROM generate_series(1, 50) i) leases
SQL
$primary->wait_for_catchup($standby);

for my $call (
	q{idem_begin('k')}, q{idem_begin('done')},
	q{idem_begin('k', lease => '1 minute')}, q{idem_begin('done', wait => '1s')},
	q{idem_complete('k')}, q{idem_complete('leased', fence => 1)},
	q{idem_fail('k')}, q{idem_release('k')},
	q{idem_release('leased', fence => 1)}, q{idem_extend('leased', '1 hour', fence => 1)},
	q{idem_call('public.handler(jsonb)', 'k', '{}')}, q{idem_lock(ARRAY['a'])},
	q{idem_advance('s', 1)}, q{idem_begin_batch(ARRAY['k'])},
	q{idem_complete_batch(ARRAY['k'])}, q{idem_forget('done')}, q{idem_forget_failed('', 'mended')}, q{idem_gc()}, q{idem_reseal()},
	q{idem_claim_scope('s', 'reader')}, q{idem_unclaim_scope('s')}, q{idem_set_policy('s')})
{
	is(sqlstate($standby, "SELECT $call"), '25006', "standby: $call");
}

is($standby->safe_psql('postgres',
		q{SELECT outcome, replayed, response_payload, response_body FROM idem_lookup('done')}),
	'COMPLETED|t|"answer"|\x00ff', 'standby: idem_lookup of an ended operation');
is($standby->safe_psql('postgres', q{SELECT outcome FROM idem_lookup('leased')}),
	'IN_PROGRESS', 'standby: idem_lookup of a lease');
is($standby->safe_psql('postgres', q{SELECT idem_lookup('unknown') IS NULL}),
	't', 'standby: idem_lookup of nothing');

# A claim reaches sessions of the standby that have read the rules before, and
# a response that is sealed opens where the server has the key.
{
	my $session = session($standby);
	my $keys = $primary->data_dir . '/idempotency.keys';
	my $secret = 'k1 ' . unpack('H*', 'standby needs the same key file!') . "\n";

	is(ask($session, q{SET ROLE reader; SELECT idem_lookup('done') IS NULL}), 'f', 'standby: nobody has claimed the scope');
	$primary->safe_psql('postgres', q{CREATE ROLE teller; SELECT idem_claim_scope('', 'teller')});
	$primary->wait_for_catchup($standby);
	is((eval { ask($session, q{SELECT idem_lookup('done')}); 1 } ? '' : $@) =~ /may not use scope ""/, 1, 'standby: the claim counts there');
	$session->quit;
	$primary->safe_psql('postgres', q{SELECT idem_unclaim_scope('')});

	append_to_file($keys, $secret);
	chmod 0600, $keys;
	$primary->append_conf('postgresql.conf', "idempotency.seal_key_file = 'idempotency.keys'\nidempotency.accept_clear_responses = on\n");
	$primary->reload;
	$primary->safe_psql('postgres', q{CREATE EXTENSION pgcrypto; SELECT idem_complete('sealed', '"sealed"', fence => fence) FROM idem_begin('sealed', lease => '1 hour')});
	is($primary->safe_psql('postgres', q{SELECT seal_key FROM idempotency_store WHERE idempotency_key = 'sealed'}), 'k1', 'a sealed response');
	$primary->wait_for_catchup($standby);
	is(sqlstate($standby, q{SELECT idem_lookup('sealed')}), '55000', 'standby: without the key an error');
	append_to_file($standby->data_dir . '/idempotency.keys', $secret);
	chmod 0600, $standby->data_dir . '/idempotency.keys';
	$standby->append_conf('postgresql.conf', "idempotency.seal_key_file = 'idempotency.keys'\nidempotency.accept_clear_responses = on\n");
	$standby->reload;
	wait_until('the standby has the key', sub { sqlstate($standby, q{SELECT idem_lookup('sealed')}) eq '' });
	is($standby->safe_psql('postgres', q{SELECT response_payload FROM idem_lookup('sealed')}), '"sealed"', 'standby: with it the response');
}

$primary->stop('immediate');
$standby->promote;

is($standby->safe_psql('postgres', q{SELECT outcome, response_payload FROM idem_begin('done')}),
	'COMPLETED|"answer"', 'promoted: what was acknowledged is replayed');
cmp_ok($standby->safe_psql('postgres', q{SELECT fence FROM idem_begin('new', lease => '1 hour')}),
	'>', $newest, 'promoted: fences go on growing');
is(sqlstate($standby, "SELECT idem_complete('leased', fence => $fence)"),
	'', 'promoted: a lease from before can be ended');

done_testing();
