# What 19 is the first to have, used with the extension: each claim of
# docs/guide/postgresql-19.md, and of docs/guide/natural-idempotency.md.  On older versions nothing here runs, and nothing counts.
use Idempotency;
use PostgreSQL::Test::Cluster;

my ($version) = run_command([ $ENV{PG_CONFIG} // 'pg_config', '--version' ]);

plan skip_all => 'for 19 and newer' if $version !~ /^PostgreSQL (?:19|[2-9]\d)/;

# wal_level = replica: the server decodes changes as soon as somebody asks for them
my $primary = new_node('nineteen', allows_streaming => 1, conf => <<'CONF');
max_connections = 100
max_locks_per_transaction = 64
idempotency.max_operations_per_transaction = 100000
deadlock_timeout = 10ms
track_commit_timestamp = on
CONF

sub sql { return $primary->safe_psql('postgres', shift) }

# ---- waiting is logged and counted, without any setting ----

{
	my ($owner, $waiter) = (session($primary), session($primary));
	my $waits = q{SELECT waits FROM pg_stat_lock WHERE locktype = 'advisory'};
	my ($before, $offset) = (sql($waits), -s $primary->logfile);

	is(sql('SHOW log_lock_waits'), 'on', 'log_lock_waits is on');
	ask($owner, q{BEGIN; SELECT idem_begin('wanted')});
	$waiter->query_until(qr/asked/, q{\echo asked
SELECT outcome FROM idem_begin('wanted', lease => '1 hour', wait => '1 hour');
});
	wait_until('the log has the wait', sub { slurp_file($primary->logfile, $offset) =~ /still waiting for ExclusiveLock on advisory lock/ });
	ask($owner, 'ROLLBACK');
	like(ask($waiter, 'SELECT 1'), qr/ACQUIRED/, 'a begin that waited, and that the log told of');
	$waiter->quit;
	$owner->quit;
	wait_until('lock statistics have the wait', sub { sql($waits) > $before });
	pass('pg_stat_lock counts it');
}

# ---- REPACK (CONCURRENTLY) under load ----

sub file_of { return "SELECT string_agg(pg_relation_filenode(t)::text, ' ') FROM unnest(ARRAY['" . join("', '", @_) . "']::regclass[]) t" }

sub repack_under_load
{
	my ($database, @tables) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/load.sql';
	my $files = file_of(@tables);
	my $before = $primary->safe_psql($database, $files);
	my ($out, $error, $rounds) = ('', '', 0);

	append_to_file($script, <<'SQL');
\set n random(1, 400)
BEGIN;
SELECT (idem_begin('k' || :n, wait => '1 minute')).outcome = 'ACQUIRED' AS mine \gset
\if :mine
INSERT INTO effect VALUES (:n);
SELECT idem_complete('k' || :n, to_jsonb(:n::int));
\endif
COMMIT;
SELECT outcome = 'ACQUIRED' AS mine, coalesce(fence, 0) AS fence FROM idem_begin('l' || :n, lease => '1 hour') \gset
\if :mine
SELECT idem_complete('l' || :n, '"leased"', fence => :fence);
\endif
SQL
	my $load = IPC::Run::start(
		[ 'pgbench', '-n', '-c', 4, '-t', 400, '-f', $script, '-h', $primary->host, '-p', $primary->port, $database ],
		'>', \$out, '2>', \$error);
	while ($load->pumpable)
	{
		$primary->safe_psql($database, "REPACK (CONCURRENTLY) $_") for @tables;
		$rounds++;
		$load->pump_nb;
	}
	ok($load->finish, "$database: no transaction fails") or diag $error;
	like($out, qr{actually processed: 1600/1600}, "$database: all of them have ended");
	cmp_ok($rounds, '>', 1, "$database: every table was rewritten several times");
	isnt($primary->safe_psql($database, $files), $before, "$database: into other files");
	is($primary->safe_psql($database, <<'SQL'), 't|t|t', "$database: one effect for each key, and its answer");
SELECT (SELECT count(*) = count(DISTINCT n) FROM effect),
	(SELECT array_agg('k' || n ORDER BY n) FROM effect) =
	(SELECT array_agg(idempotency_key ORDER BY substr(idempotency_key, 2)::int) FROM idempotency_store WHERE idempotency_key LIKE 'k%'),
	(SELECT bool_and(outcome = 'COMPLETED' AND response_payload = to_jsonb(n)) FROM effect, LATERAL idem_begin('k' || n))
SQL
	return;
}

for my $database ('one_table', 'ring')
{
	$primary->safe_psql('postgres', "CREATE DATABASE $database");
	$primary->safe_psql($database, 'CREATE EXTENSION idempotency; CREATE TABLE effect (n int)');
}
$primary->safe_psql('ring', q{SELECT idem_partition_store('12 hours')});
$primary->safe_psql('ring', 'SELECT idem_gc()') for 1, 2;
repack_under_load('one_table', 'idempotency_store');
repack_under_load('ring', 'idempotency_store', split /\n/, $primary->safe_psql('ring', 'SELECT name FROM idempotency_partitions'));
cmp_ok($primary->safe_psql('ring', 'SELECT count(*) FROM ONLY idempotency_store'), '<', $primary->safe_psql('ring', 'SELECT count(*) FROM idempotency_store'),
	'the records are in the tables of the ring');

# ---- WAIT FOR LSN before idem_lookup on a standby ----

{
	my $standby = new_standby($primary);
	my $lookup = q{SELECT outcome FROM idem_lookup('on its way')};
	my $lsn;

	$primary->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$standby->poll_query_until('postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'});
	sql(q{BEGIN; SELECT idem_begin('on its way'); SELECT idem_complete('on its way', '1'); COMMIT});
	$lsn = sql('SELECT pg_current_wal_insert_lsn()');
	is($standby->safe_psql('postgres', $lookup), '', 'a standby that is behind does not know an operation that has ended');
	is($standby->safe_psql('postgres', "WAIT FOR LSN '$lsn' WITH (TIMEOUT '10ms', NO_THROW)"), 'timeout', 'and WAIT FOR says so');
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	is($standby->safe_psql('postgres', "WAIT FOR LSN '$lsn' WITH (TIMEOUT '3min');\n$lookup"), "success\nCOMPLETED", 'after WAIT FOR it does');
	$standby->stop;
}

# ---- logical replication: the sequence, and dead rows that are retained ----

{
	my $subscriber = new_node('subscriber', allows_streaming => 'logical', conf => "track_commit_timestamp = on\n");
	my $connection = $primary->connstr('postgres') =~ s{'}{''}gr;
	my $last = 'SELECT last_value FROM idempotency_fence';

	sql('CREATE PUBLICATION records FOR TABLE ONLY idempotency_store; CREATE PUBLICATION fences FOR ALL SEQUENCES');
	$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION records CONNECTION '$connection' PUBLICATION records, fences WITH (retain_dead_tuples = true)");
	$subscriber->wait_for_subscription_sync($primary, 'records');
	my $lease = q{SELECT fence FROM idem_begin('leased', lease => '1 hour')};
	my $fence;

	$fence = sql($lease =~ s/leased/leased$_/r) for 1 .. 40;
	$primary->wait_for_catchup('records');
	isnt($subscriber->safe_psql('postgres', $last), sql($last), 'the fences that are given out do not travel by themselves');
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION records REFRESH SEQUENCES');
	$subscriber->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'});
	is($subscriber->safe_psql('postgres', $last), sql($last), 'REFRESH SEQUENCES brings them');
	is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pg_conflict_detection'}), '1', 'the subscriber retains dead rows');
	sql(q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour', lease_expires_at = now() - interval '1 hour' WHERE idempotency_key = 'leased1'; SELECT idem_gc()});
	$primary->wait_for_catchup('records');
	is($subscriber->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE idempotency_key = 'leased1'), count(*) FILTER (WHERE idempotency_key = 'leased2') FROM idempotency_store}),
		'0|1', 'what the publisher collects is gone there, too');
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION records');
	cmp_ok($subscriber->safe_psql('postgres', $lease =~ s/leased/new/r), '>', $fence, 'after the switch fences go on');
	$subscriber->stop;
}

# ---- postgres_fdw hands READ ONLY on ----

{
	sql(<<"SQL");
CREATE EXTENSION postgres_fdw;
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '@{[$primary->host]}', port '@{[$primary->port]}', dbname 'one_table');
CREATE USER MAPPING FOR CURRENT_USER SERVER remote OPTIONS (password_required 'false');
CREATE FOREIGN TABLE far (outcome text) SERVER remote;
SQL
	$primary->safe_psql('one_table', q{CREATE VIEW far AS SELECT outcome::text FROM idem_begin('far')});
	is(sqlstate($primary, 'BEGIN READ ONLY; SELECT * FROM far; COMMIT'), '25006', 'a remote begin in a transaction that is read-only here');
	is(sqlstate($primary, 'BEGIN; SELECT * FROM far; COMMIT'), 'ID428', 'the remote guard refuses the commit of one that was not ended');
}

# ---- constraints that are not enforced ----

sql(q{ALTER TABLE idempotency_scope ALTER CONSTRAINT idempotency_scope_retention_check NOT ENFORCED});
is(sqlstate($primary, q{SELECT idem_set_policy('short', retention => '-1 day')}), 'ID400', 'policies are checked without the constraint, too');

# ---- INSERT ... ON CONFLICT DO SELECT ----

{
	my $create = q{INSERT INTO shipment (order_id, item) VALUES ('order-1', '%s') ON CONFLICT (order_id) DO SELECT RETURNING item, state, old.order_id IS NOT NULL};
	my ($first, $second) = (session($primary), session($primary));

	sql(q{CREATE TABLE shipment (order_id text PRIMARY KEY, item text, state text DEFAULT 'new')});
	is(ask($first, 'BEGIN; ' . sprintf $create, 'book'), 'book|new|f', 'DO SELECT: the first run has made the row');
	$second->query_until(qr/asked/, "\\echo asked\n" . sprintf("$create;\n", 'pen'));
	$primary->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted});
	ask($first, 'COMMIT');
	like(ask($second, 'SELECT 1'), qr/book\|new\|t/, 'the second waits for it, gets the row, and is not told that it asked for something else');
	sql(q{UPDATE shipment SET state = 'sent'});
	is(sql(sprintf $create, 'book'), 'book|sent|t', 'a later one gets the row of now, not the first answer');
	sql(q{UPDATE shipment SET item = NULL});
	is(sql(sprintf $create =~ s/old\.order_id/old IS NOT NULL, old.order_id/r, 'book'), '|sent|f|t', 'the key of the old row tells a repetition, the whole row does not');
	$_->quit for $first, $second;
}

# ---- the lock table ----

{
	my $held = sql(q{BEGIN; SELECT count(*) FROM idem_begin_batch(ARRAY(SELECT 'lock' || n FROM generate_series(1, 6400) n)); ROLLBACK});

	is($held, '6400', 'max_locks_per_transaction * max_connections operations fit');
}

done_testing();
