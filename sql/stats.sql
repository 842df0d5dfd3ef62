-- Figures: the rows of the views, and a missing pg_cron.

SELECT relname COLLATE "C", string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
WHERE attrelid IN ('idempotency_stats'::regclass, 'idempotency_in_flight'::regclass) AND attnum > 0 GROUP BY 1 ORDER BY 1;

-- Operations in flight.
TRUNCATE idempotency_store;
BEGIN;
SELECT answer(idem_begin('stats-1', request => '"secret"'));
SELECT answer(idem_begin('stats-2', scope => 'stats', request => '"secret"', lease => '1 hour'));
SELECT kind, scope, idempotency_key, attempt, age BETWEEN '0' AND '1 minute', lease_left > '59 minutes', pid = pg_backend_pid(), gid
FROM idempotency_in_flight ORDER BY kind COLLATE "C", scope;
SELECT FROM idem_complete('stats-1', '"secret"');
COMMIT;
SELECT FROM let_lease_run_out('stats-2');
-- the lease is over, and nobody has taken it over or ended it
SELECT kind, scope, idempotency_key, attempt, age < '1 minute', lease_left < '0', pid, gid FROM idempotency_in_flight;
-- Locks that do not belong to operations are not shown.
BEGIN;
SELECT idem_lock(ARRAY['stats']);
SELECT FROM pg_advisory_xact_lock(1);
SELECT idem_gc() IS NULL;
SELECT count(*) FROM idempotency_in_flight WHERE kind <> 'leased';
COMMIT;
SELECT idem_release('stats-2', 'stats', fence) FROM idempotency_store WHERE scope = 'stats';
SELECT count(*) FROM idempotency_in_flight;
-- Times that the owner has made infinite are no error: a figure that has no value
-- is NULL.
BEGIN;
SELECT answer(idem_begin('stats-' || t, lease => '1 hour')) FROM unnest(ARRAY['infinity', '-infinity']) t;
UPDATE idempotency_store SET created_at = t::timestamptz, updated_at = t::timestamptz, lease_expires_at = t::timestamptz, expires_at = t::timestamptz
FROM unnest(ARRAY['infinity', '-infinity']) t WHERE idempotency_key = 'stats-' || t;
SELECT idempotency_key, age, lease_left FROM idempotency_in_flight WHERE kind = 'leased' ORDER BY 1;
COMMIT;
SELECT outcome, lease_expires_at FROM idem_begin('stats-infinity', lease => '1 hour');
SELECT outcome, lease_expires_at FROM idem_lookup('stats-infinity');
SELECT outcome, attempt FROM idem_begin('stats--infinity', lease => '1 hour');
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'stats-%infinity';

-- Always a row for this database, with all figures or, without preloading, none.
SELECT count(*) FROM idempotency_stats WHERE datname = current_database();
SELECT (acquired IS NULL) = (current_setting('shared_preload_libraries') !~ 'idempotency'),
	num_nulls(acquired, replayed_completed, replayed_failed, in_progress, mismatches, taken_over, completed, failed, released, forgotten,
		leases_lost, commits_refused, waits, wait_time, wait_seconds, collected_rows, sweeps, attempts_lost, operations_losing, operations_near_limit) IN (0, 20)
FROM idempotency_stats WHERE datname = current_database();

-- A cheap condition of a reader is no way to the scopes of records that the view does not show.
-- Who may read the views: test/t/031_privileges.pl.
CREATE FUNCTION pg_temp.leak(scope text) RETURNS bool LANGUAGE plpgsql IMMUTABLE COST 0.0001 AS $$
BEGIN
	RAISE NOTICE 'saw scope "%"', scope;
	RETURN true;
END
$$;
CREATE ROLE regress_idem_monitor IN ROLE pg_monitor;
SET ROLE regress_idem_monitor;
SET enable_indexscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM idempotency_in_flight WHERE kind = 'leased' AND pg_temp.leak(scope);
RESET ROLE;
DROP ROLE regress_idem_monitor;

-- The owner may reset, preloaded or not.
SELECT raises('SELECT idem_stats_reset()');

-- pg_cron is not here.
SELECT replace(raises_in_full('SELECT idem_schedule_gc()'), current_database(), 'this one');
SELECT raises_in_full('SELECT idem_schedule_gc(NULL)');
SELECT raises_in_full($$SELECT idem_schedule_gc('')$$);
