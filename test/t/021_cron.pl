# pg_cron runs the sweep where the library is not preloaded, and jobs of its own where it
# is.  It fires on whole minutes, so this takes one.
use Idempotency;

plan skip_all => 'Debian has no pg_cron for this PostgreSQL yet' if !has_pg_cron();

my $node = new_node('cron', conf => <<'CONF');
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
CONF
my $weird = '"We ird; %s"';

query("DROP EXTENSION idempotency; CREATE SCHEMA $weird; CREATE EXTENSION idempotency SCHEMA $weird");
create_database('other');

is(sqlstate($node, "SELECT $weird.idem_schedule_gc()"), '55000', 'pg_cron is not installed in this database');
query('CREATE EXTENSION pg_cron');

# Each call gives the same job, and may change its schedule.
my $id = query("SELECT $weird.idem_schedule_gc('*/5 * * * *')");

like($id, qr/^\d+$/, 'a job id');
is(query("SELECT $weird.idem_schedule_gc('*/5 * * * *')"), $id, 'again: the same job');
is(query("SELECT $weird.idem_schedule_gc()"), $id, 'with another schedule: the same job');
is(query('SELECT jobid, schedule, database, active FROM cron.job'),
	"$id|* * * * *|postgres|t", 'one job, with the newest schedule');
is(sqlstate($node, "SELECT $weird.idem_schedule_gc('$_')"), '22023', "no schedule: $_")
  for 'every now and then', '61 * * * *', '* * * *';
is(sqlstate($node, "SELECT $weird.idem_schedule_gc(NULL)"), 'ID400', 'no schedule: NULL');
is(query('SELECT jobid, schedule FROM cron.job'), "$id|* * * * *", 'nothing has changed');

# It fails in any other database than cron.database_name.
is(sqlstate($node, 'SELECT idem_schedule_gc()', 'other'), '55000', 'another database: refused');
query(<<'SQL');
SELECT cron.schedule_in_database('idempotency gc of other', '* * * * *', 'SELECT public.idem_gc()', 'other')
SQL

# A job that begins an operation: its background worker ends with the error of the job.
my $worker = new_node('worker', conf => <<'CONF');
shared_preload_libraries = 'idempotency, pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
max_worker_processes = 20
CONF
my $stopped = q{FROM pg_stat_activity WHERE backend_type = 'pg_cron' AND wait_event = 'PgSleep'};

$worker->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_cron;
CREATE FUNCTION raise(state text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = state; END $$;
SELECT cron.schedule(state, '* * * * *', format('SELECT idem_begin(%1$L), raise(%1$L)', state))
	FROM unnest('{22012,40001,53200,57014,P0001}'::text[]) state;
SELECT cron.schedule('ID428', '* * * * *', $$SELECT idem_begin('ID428')$$);
SELECT cron.schedule('stopped', '* * * * *', $$SELECT idem_begin('stopped'), pg_sleep(1000)$$);
SQL

# It fires.
my $expired = q{(idempotency_key, expires_at, status)
	SELECT CASE n WHEN 0 THEN 'live' ELSE 'expired-' || n END,
		now() + CASE n WHEN 0 THEN '1 day' ELSE '-1 day' END::interval, 'COMPLETED' FROM generate_series(0, 20) n};

query("INSERT INTO $weird.idempotency_store $expired");
$node->safe_psql('other', "INSERT INTO idempotency_store $expired");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM $weird.idempotency_store")
  or die 'the job has not fired';
is(query("SELECT idempotency_key FROM $weird.idempotency_store"), 'live',
	'fired: only what has expired is gone');
$node->poll_query_until('other', 'SELECT count(*) = 1 FROM idempotency_store')
  or die 'the job of the other database has not fired';
is($node->safe_psql('other', 'SELECT idempotency_key FROM idempotency_store'), 'live',
	'fired: in the other database too');
$node->poll_query_until('postgres', "SELECT count(DISTINCT jobid) = 2 FROM cron.job_run_details WHERE status = 'succeeded'")
  or die 'pg_cron does not report success';
is(query("SELECT count(*) FROM cron.job_run_details WHERE status = 'failed'"), 0, 'no run has failed');
unlike(slurp_file($node->logfile), qr/(?:WARNING|PANIC):/, 'nothing else in the log');

$worker->poll_query_until('postgres', "SELECT count(DISTINCT jobid) = 6 FROM cron.job_run_details WHERE status = 'failed'")
  or die 'the jobs have not failed';
$worker->poll_query_until('postgres', "SELECT count(*) > 0 $stopped") or die 'the job does not sleep';
$worker->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $stopped");
$worker->poll_query_until('postgres', "SELECT count(*) = 0 $stopped") or die 'the job sleeps on';
is($worker->safe_psql('postgres', q{SELECT string_agg(jobname, ' ' ORDER BY jobname) FROM cron.job WHERE idem_lost_attempts(jobname) > 0}),
	'22012 ID428 P0001', 'a background worker loses attempts by what is not the fault of the server');

done_testing();
