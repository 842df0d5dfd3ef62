# Servers that lack the last transactions: an asynchronous standby that is
# promoted, and a database restored to a point in time.
# Records and effects agree there, and a request that comes again runs exactly if
# its effect is missing.
use Idempotency;
use PostgreSQL::Test::Cluster;

my $primary = PostgreSQL::Test::Cluster->new('primary');

$primary->init(extra => initdb_options(), allows_streaming => 1, has_archiving => 1);
$primary->append_conf('postgresql.conf', "autovacuum = off\nidempotency.gc_enabled = off\n");
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION idempotency; CREATE TABLE effect (key text)');
# when it is promoted it must not write into the primary's archive, which is restored below
my $standby = new_standby($primary, 'archive_mode = off');

# An operation with one effect, unless it was done before.
sub request ($node, $key)
{
	return $node->safe_psql('postgres', <<"SQL");
CREATE OR REPLACE FUNCTION work(request jsonb) RETURNS jsonb LANGUAGE sql AS
	'INSERT INTO effect VALUES (request->>''key''); SELECT request';
SELECT outcome, replayed FROM idem_call('work(jsonb)', '$key', '{"key": "$key"}');
SQL
}

# Which keys have an effect, and which have a record.
sub effects_and_records ($node)
{
	return $node->safe_psql('postgres', <<'SQL');
SELECT (SELECT string_agg(key, ' ' ORDER BY key) FROM effect),
	(SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM idempotency_store)
SQL
}

is(request($primary, 'early'), 'COMPLETED|f', 'an operation before the point');
$primary->wait_for_catchup($standby);
$primary->safe_psql('postgres', q{SELECT pg_create_restore_point('then')});
$standby->stop;
is(request($primary, 'late'), 'COMPLETED|f', 'an operation that the others do not get');
is(effects_and_records($primary), 'early late|early late', 'the primary has both');

# An asynchronous standby that never got the last transaction.
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->stop;
$standby->start;
is(effects_and_records($standby), 'early|early', 'asynchronous standby: the late one is missing, key and effect');
$standby->promote;
is(request($standby, 'early'), 'COMPLETED|t', 'after the promotion: the early one is replayed');
is(request($standby, 'late'), 'COMPLETED|f', 'after the promotion: the late one runs again');
is(effects_and_records($standby), 'early late|early late', 'after the promotion: each has one effect here');

# The archive, replayed up to the point.
my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($primary, 'base', has_restoring => 1, standby => 0);
$restored->append_conf('postgresql.conf',
	"recovery_target_name = 'then'\nrecovery_target_action = 'promote'\n");
$restored->start;
wait_until('the recovery has ended',
	sub { $restored->safe_psql('postgres', 'SELECT pg_is_in_recovery()') eq 'f' });
is(effects_and_records($restored), 'early|early', 'restored: records and effects of the point in time');
is(request($restored, 'early'), 'COMPLETED|t', 'restored: the early one is replayed');
is(request($restored, 'late'), 'COMPLETED|f', 'restored: the late one runs again');
is(effects_and_records($restored), 'early late|early late', 'restored: each has one effect here');

done_testing();
