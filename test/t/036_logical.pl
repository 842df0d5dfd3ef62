# Logical replication: records, marks, claims and policies arrive at
# a subscriber, count there at once, and fences never repeat after a switch. A key that
# is used again after it has expired arrives, too: nobody but the publisher collects.
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Idempotency;

my $publisher = new_node('publisher', allows_streaming => 'logical');
my $subscriber = new_node('subscriber');
my ($tables) = slurp_file(dirname(__FILE__) . '/../../docs/operating.md') =~ /^CREATE PUBLICATION operations FOR TABLE (.*?);/m or die 'which tables to publish';
my $session = session($subscriber);
my $connection = $publisher->connstr('postgres') =~ s{'}{''}gr;
my $fence;

for my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', q{CREATE ROLE teller; CREATE ROLE stranger; SELECT idem_grant('teller'), idem_grant('stranger')});
}
$publisher->safe_psql('postgres', <<"SQL");
BEGIN;
SELECT idem_begin('before', request => '1');
SELECT idem_complete('before', '{"n": 1}', body => '\\x00ff');
SELECT idem_advance('stream', 7);
COMMIT;
SELECT idem_claim_scope('early', 'teller');
CREATE PUBLICATION all_of_it FOR TABLE $tables;
SQL
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION all_of_it CONNECTION '$connection' PUBLICATION all_of_it");
$subscriber->wait_for_subscription_sync($publisher, 'all_of_it');

is($subscriber->safe_psql('postgres', q{SELECT outcome, response_payload, response_body FROM idem_begin('before', request => '1')}),
	'COMPLETED|{"n": 1}|\x00ff', 'what was there is replayed');
is(sqlstate($subscriber, q{SELECT idem_begin('before', request => '2')}), 'ID422', 'its fingerprint compares');
is(sqlstate($subscriber, q{SET ROLE stranger; SELECT idem_lookup('k', 'early')}), 'ID403', 'and claims came along');

# Changes from now on are applied row by row. This session has read the rules before.
is(ask($session, q{SET ROLE stranger; SELECT idem_lookup('k', 'late') IS NULL}), 't', 'a scope that nobody claimed');
$fence = $publisher->safe_psql('postgres', q{SELECT fence FROM idem_begin('leased', lease => '1 hour')});
$publisher->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT idem_begin('after');
SELECT idem_complete('after', '"done"');
SELECT idem_advance('stream', 8);
SELECT idem_fail(idem_begin('failed'));
COMMIT;
SELECT idem_forget_failed('', 'ticket 1');
SELECT idem_claim_scope('late', 'teller'), idem_set_policy('late', retention => '7 days');
SQL
$publisher->wait_for_catchup('all_of_it');

is($subscriber->safe_psql('postgres', q{SELECT outcome, response_payload FROM idem_lookup('after')}), 'COMPLETED|"done"', 'a record that was replicated');
is($subscriber->safe_psql('postgres', q{SELECT outcome FROM idem_begin('leased', lease => '1 hour')}), 'IN_PROGRESS', 'and a lease');
is($subscriber->safe_psql('postgres', q{SELECT idem_advance('stream', 8), idem_advance('stream', 9)}), 'f|t', 'and a mark');
is($subscriber->safe_psql('postgres', 'SELECT reason FROM idempotency_forgotten'), 'ticket 1', 'and who has forgotten failures');
{
	my $refused = eval { ask($session, q{SELECT idem_lookup('k', 'late')}); 1 } ? '' : $@;

	like($refused, qr/may not use scope "late"/, 'a claim that was replicated counts in a session that had read the rules before');
}
$session->quit;

# A key that is used again after it has expired.
sub use_again ($answer, $database = undef)
{
	$publisher->safe_psql($database // 'postgres', "BEGIN; SELECT idem_begin('again'); SELECT idem_complete('again', '$answer', retention => '1 hour'); COMMIT");
	return;
}

# The row expires on both sides, and the subscriber tries to collect it.
sub expire ($database = undef)
{
	$publisher->safe_psql($database // 'postgres', q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour' WHERE idempotency_key = 'again'});
	$publisher->wait_for_catchup($database // 'all_of_it');
	$subscriber->safe_psql($database // 'postgres', 'SELECT idem_gc()') for 1 .. 3;
	return;
}

sub answers ($database = undef)
{
	$publisher->wait_for_catchup($database // 'all_of_it');
	return $subscriber->safe_psql($database // 'postgres', q{SELECT response_payload, (SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'again') FROM idem_lookup('again')});
}

use_again(1);
expire();
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'again'}), '1', 'a subscriber collects nothing');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM idempotency_sweep WHERE swept_at > now() - interval '1 minute'}), '1', 'but its collection runs');

# A subscription that is forgotten: the log says it with the first collection of a day, and a query says it at any time.
my $from = -s $subscriber->logfile;
my ($left_to) = slurp_file(dirname(__FILE__) . '/../../docs/operating.md') =~ /\*\*Collection is left to a publisher.*?```sql\n(.*?)```/s;
is($subscriber->safe_psql('postgres', "SET ROLE pg_monitor; $left_to"), '', 'a subscription that is at work is no alert');
$subscriber->safe_psql('postgres', q{UPDATE idempotency_sweep SET swept_at = swept_at - interval '1 day'});
$subscriber->safe_psql('postgres', 'SELECT idem_gc()') for 1 .. 3;
my @said = slurp_file($subscriber->logfile, $from) =~ /LOG: .* collection of expired records in database "postgres" is left to a publisher\n.*Subscription "all_of_it"/g;
is(@said, 1, 'the log says once who collects');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION all_of_it DISABLE');
$subscriber->poll_query_until('postgres', "SELECT EXISTS (" . $left_to =~ s/;//r . ')') or die 'the subscription is still at work';
is($subscriber->safe_psql('postgres', "SET ROLE pg_monitor; $left_to"), 'idempotency_store|all_of_it|f', 'one that is disabled is');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION all_of_it ENABLE');
use_again(2);
is(answers(), '2|1', 'a key whose expired row the publisher has replaced');
expire();
is($publisher->safe_psql('postgres', 'SELECT idem_gc()'), '1', 'the publisher collects');
is($subscriber->safe_psql('postgres', q{SELECT idem_lookup('again') IS NULL}), 't', 'for both');
use_again(3);
is(answers(), '3|1', 'a key whose expired row the publisher has collected');

# The same with a ring of tables on both sides.
for my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', 'CREATE DATABASE ring');
	$node->safe_psql('ring', q{CREATE EXTENSION idempotency; SELECT idem_partition_store('12 hours')});
	$node->safe_psql('ring', 'SELECT idem_gc()') for 1, 2;
}
my $published = join ', ', 'ONLY idempotency_store', split /\n/, $publisher->safe_psql('ring', 'SELECT name FROM idempotency_partitions');
my $over = q{UPDATE idempotency_ring SET range_start = now() - interval '10 days', range_end = now() - interval '1 day' WHERE name = '%s'};
$publisher->safe_psql('ring', "CREATE PUBLICATION ring FOR TABLE $published");
$subscriber->safe_psql('ring', sprintf q{CREATE SUBSCRIPTION ring CONNECTION '%s' PUBLICATION ring}, $publisher->connstr('ring') =~ s{'}{''}gr);
$subscriber->wait_for_subscription_sync($publisher, 'ring', 'ring');
use_again(1, 'ring');
is(answers('ring'), '1|1', 'a ring of tables follows');
my $table = $publisher->safe_psql('ring', q{SELECT tableoid::regclass FROM idempotency_store WHERE idempotency_key = 'again'});
like($table, qr/^idempotency_store_p\d$/, 'the record is in the ring');
$subscriber->safe_psql('ring', sprintf $over, $table);
expire('ring');
is($subscriber->safe_psql('ring', "SELECT count(*) FROM $table"), '1', 'a subscriber empties no table that is over');
use_again(2, 'ring');
is(answers('ring'), '2|1', 'a key whose expired row was replaced in a table of the ring');
$publisher->safe_psql('ring', sprintf $over, $table);
expire('ring');
is($publisher->safe_psql('ring', 'SELECT idem_gc()'), '1', 'the publisher empties it');
use_again(3, 'ring');
is(answers('ring'), '3|1', 'a key whose expired row was emptied with its table');
$subscriber->safe_psql('ring', 'DROP SUBSCRIPTION ring');
$subscriber->safe_psql('ring', q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour'});
$subscriber->safe_psql('ring', sprintf $over, $_) for map { "idempotency_store_p$_" } 1 .. 4;
is($subscriber->safe_psql('ring', 'SELECT idem_gc()'), '1', 'after the switch it collects itself');

# The same with managed/idempotency.sql, whose collection a job of cron runs on both sides.
my $managed = dirname(abs_path(__FILE__)) . '/../../managed/idempotency.sql';
for my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', 'CREATE DATABASE managed');
	$node->safe_psql('managed', "\\i $managed");
}
$publisher->safe_psql('managed', 'CREATE PUBLICATION managed FOR TABLE idempotency_store');
$subscriber->safe_psql('managed', sprintf q{CREATE SUBSCRIPTION managed CONNECTION '%s' PUBLICATION managed}, $publisher->connstr('managed') =~ s{'}{''}gr);
$subscriber->wait_for_subscription_sync($publisher, 'managed', 'managed');
use_again(1, 'managed');
expire('managed');
use_again(2, 'managed');
is(answers('managed'), '2|1', 'managed: a key whose expired row was replaced');
$subscriber->safe_psql('managed', 'DROP SUBSCRIPTION managed');
$subscriber->safe_psql('managed', q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour'});
is($subscriber->safe_psql('managed', 'SELECT idem_gc()'), '1', 'managed: after the switch it collects itself');

# A row that subscribers could not identify is not changed, neither by the direct path nor by SQL.
$publisher->safe_psql('postgres', 'ALTER TABLE idempotency_store REPLICA IDENTITY NOTHING');
is(sqlstate($publisher, "SELECT idem_complete('leased', '1', fence => $fence)"), '55000', 'no end without a replica identity');
$publisher->safe_psql('postgres', 'ALTER TABLE idempotency_store REPLICA IDENTITY DEFAULT');

# The switch: the sequence was not replicated, but the fences of the rows were.
is($subscriber->safe_psql('postgres', 'SELECT is_called FROM idempotency_fence'), 'f', 'the sequence has stayed behind');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION all_of_it');
$subscriber->safe_psql('postgres', q{UPDATE idempotency_store SET lease_expires_at = now() - interval '1 s' WHERE idempotency_key = 'leased'});
cmp_ok($subscriber->safe_psql('postgres', q{SELECT fence FROM idem_begin('leased', lease => '1 hour')}), '>', $fence, 'a takeover there gets a greater fence');
is(sqlstate($subscriber, "SELECT idem_complete('leased', fence => $fence)"), 'ID409', 'and the one from before the switch is refused');
$subscriber->safe_psql('postgres', q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour' WHERE idempotency_key = 'again'});
is($subscriber->safe_psql('postgres', 'SELECT idem_gc()'), '1', 'from then on it collects itself');

# Whoever may subscribe may name any table. To a publisher of somebody who may not write the store, nothing is left.
$subscriber->safe_psql('postgres', 'CREATE ROLE eve');
for my $database (qw(postgres managed))
{
	my $publication = $database eq 'managed' ? 'managed' : 'all_of_it';
	my $collected = sub {
		$subscriber->safe_psql($database, q{INSERT INTO idempotency_store (idempotency_key, status, expires_at) VALUES ('old', 'COMPLETED', now() - interval '1 hour')
			ON CONFLICT DO NOTHING});
		return $subscriber->safe_psql($database, 'SELECT idem_gc()');
	};

	$subscriber->safe_psql($database, <<"SQL");
ALTER ROLE eve SUPERUSER;
SET ROLE eve;
CREATE SUBSCRIPTION of_eve_$database CONNECTION '@{[ $publisher->connstr($database) =~ s{'}{''}gr ]}' PUBLICATION $publication WITH (enabled = false);
ALTER ROLE eve NOSUPERUSER;
SQL
	is($subscriber->safe_psql($database, q{SELECT count(*) FROM pg_subscription_rel WHERE srrelid = 'idempotency_store'::regclass}), '1', "$database: eve names the store");
	is($collected->(), '1', "$database: a stranger's subscription does not keep it from being collected");
	$subscriber->safe_psql($database, 'GRANT INSERT ON idempotency_store TO eve');
	is($collected->(), '0', "$database: that of somebody who may write the store does");
	# since 16, one of somebody who is no superuser needs a password in its connection string
	$subscriber->safe_psql($database, "ALTER ROLE eve SUPERUSER;\nDROP SUBSCRIPTION of_eve_$database");
}

done_testing();
