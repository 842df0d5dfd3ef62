# Hot standby and promotion (FAILURES 7, 9, 10).
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use Idempotency;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary', allows_streaming => 1);
my $standby = PostgreSQL::Test::Cluster->new('standby');
my ($fence, $newest);

$primary->backup('base');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

$primary->safe_psql('postgres', <<'SQL');
CREATE TABLE effect (key text);
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
	q{idem_complete_batch(ARRAY['k'])})
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

$primary->stop('immediate');
$standby->promote;

is($standby->safe_psql('postgres', q{SELECT outcome, response_payload FROM idem_begin('done')}),
	'COMPLETED|"answer"', 'promoted: what was acknowledged is replayed');
cmp_ok($standby->safe_psql('postgres', q{SELECT fence FROM idem_begin('new', lease => '1 hour')}),
	'>', $newest, 'promoted: fences go on growing');
is(sqlstate($standby, "SELECT idem_complete('leased', fence => $fence)"),
	'', 'promoted: a lease from before can be ended');

done_testing();
