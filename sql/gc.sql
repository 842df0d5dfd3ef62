-- idem_gc: which rows it removes, which rows it keeps, and where it goes on.
-- A background collector may be at work. Rows that it must not remove are inserted
-- and removed in one transaction.

CREATE FUNCTION pg_temp.put(name text, status idempotency_status, expired boolean, lease interval DEFAULT NULL, retry interval DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_store (idempotency_key, status, expires_at, lease_expires_at, fence, retry_at, attempt)
	SELECT name, status, now() + CASE WHEN expired THEN '-1 day' ELSE '1 day' END::interval, now() + lease,
		CASE WHEN lease IS NOT NULL THEN nextval('idempotency_fence') END, now() + retry, 3
$$;
-- So many records that expired long ago, about 7 to a page.
CREATE FUNCTION pg_temp.put_expired(count int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_body)
	SELECT 'gc-' || gen_random_uuid(), now() - interval '1 day', 'COMPLETED', decode(repeat('00', 1000), 'hex') FROM generate_series(1, count)
$$;
CREATE FUNCTION pg_temp.kept() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM idempotency_store
$$;

-- An empty store, also one that was never swept.
BEGIN;
TRUNCATE idempotency_store;
SELECT idem_gc();
DELETE FROM idempotency_sweep;
SELECT idem_gc();
SELECT next_page, swept_at >= now() FROM idempotency_sweep;

-- Only expired records.
SELECT pg_temp.put('completed', 'COMPLETED', false), pg_temp.put('completed-expired', 'COMPLETED', true),
	pg_temp.put('failed', 'FAILED', false), pg_temp.put('failed-expired', 'FAILED', true);
-- A retryable failure is kept until it expires, due or not.
SELECT pg_temp.put('retry', 'FAILED', false, retry => '1 hour'), pg_temp.put('retry-due', 'FAILED', false, retry => '-1 hour'),
	pg_temp.put('retry-expired', 'FAILED', true, retry => '1 hour'), pg_temp.put('retry-due-expired', 'FAILED', true, retry => '-2 days');
-- A lease that still runs is never removed, though its record is past
-- expires_at; one that has run out is removed when that is past, too.
SELECT pg_temp.put('lease', 'PENDING', false, lease => '1 hour'), pg_temp.put('lease-over', 'PENDING', false, lease => '-1 hour'),
	pg_temp.put('lease-expired', 'PENDING', true, lease => '1 hour'), pg_temp.put('lease-over-expired', 'PENDING', true, lease => '-1 hour');
SELECT idem_gc();
SELECT pg_temp.kept();
SELECT idem_gc();
COMMIT;
-- After collection an operation can be begun again, as attempt 1; a kept one goes on.
BEGIN;
SELECT n, answer(idem_begin(n)) FROM unnest(ARRAY['completed', 'completed-expired', 'failed-expired', 'lease-expired', 'lease-over', 'lease-over-expired', 'retry-due']) n;
ROLLBACK;

-- The owner of a lease that was collected has lost it.
SELECT fence FROM idem_begin('gc-lost', lease => '1 hour') \gset
BEGIN;
SELECT let_lease_run_out('gc-lost'), let_expire('gc-lost');
SELECT idem_gc();
COMMIT;
SELECT raises(format($$SELECT idem_complete('gc-lost', fence => %s)$$, :fence));
SELECT fence > :fence, attempt, taken_over FROM idem_begin('gc-lost', lease => '1 hour');

-- An expired operation that this transaction has begun needs no row to end.
BEGIN;
SELECT answer(idem_begin('gc-anew'));
SELECT FROM idem_complete('gc-anew', '"old"');
SELECT FROM let_expire('gc-anew');
SELECT answer(idem_begin('gc-anew'));
SELECT idem_gc();
SELECT FROM idem_complete('gc-anew', '"new"');
SELECT answer(idem_lookup('gc-anew'));
COMMIT;
BEGIN;
SELECT FROM let_expire('gc-anew');
SELECT answer(idem_begin('gc-anew'));
SELECT idem_gc();
SELECT idem_release('gc-anew');
COMMIT;
SELECT idem_lookup('gc-anew') IS NULL;

-- No more than max_rows, and the next call goes on from there.
BEGIN;
TRUNCATE idempotency_store;
SELECT FROM pg_temp.put_expired(100);
SELECT idem_gc(1), idem_gc(30), idem_gc(30);
SELECT count(*) FROM idempotency_store;
SELECT idem_gc(39), idem_gc(39);
-- One call on a small store reads it once, whatever its start.
SELECT FROM pg_temp.put_expired(100);
UPDATE idempotency_sweep SET next_page = 5;
SELECT idem_gc();
SELECT count(*) FROM idempotency_store;
-- Several sweeps.
SELECT round, pg_temp.put_expired(50), idem_gc(40), idem_gc(40) FROM generate_series(1, 3) round;
SELECT count(*) FROM idempotency_store;
-- More pages than one statement looks at.
SELECT FROM pg_temp.put_expired(1500);
SELECT pg_relation_size('idempotency_store') / current_setting('block_size')::int > 128;
SELECT idem_gc();
SELECT count(*) FROM idempotency_store;

-- The position is remembered, and rolled back with what was removed.
TRUNCATE idempotency_store;
SELECT FROM pg_temp.put_expired(1500);
UPDATE idempotency_sweep SET next_page = 0;
SAVEPOINT sweep;
SELECT idem_gc(1200);
SELECT next_page > 0, (SELECT count(*) FROM idempotency_store) FROM idempotency_sweep;
ROLLBACK TO sweep;
SELECT next_page, (SELECT count(*) FROM idempotency_store) FROM idempotency_sweep;
SELECT idem_gc(1200), idem_gc(200), idem_gc(200);
SELECT count(*) FROM idempotency_store;
-- The store has fewer pages than the position of the last sweep, or is empty.
TRUNCATE idempotency_store;
SELECT FROM pg_temp.put_expired(10);
SELECT idem_gc();
UPDATE idempotency_sweep SET next_page = 4294967295;
SELECT FROM pg_temp.put_expired(10);
SELECT idem_gc();
TRUNCATE idempotency_store;
SELECT idem_gc();

-- A plan that was made for a small store is not used for a large one: that would
-- take a minute instead of a moment.
SELECT sum(idem_gc(1)) FROM generate_series(1, 10), pg_temp.put_expired(10);
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
SELECT 'gc-' || n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 100000) n;
SET LOCAL statement_timeout = '20s';
SELECT idem_gc(100000);
SET LOCAL statement_timeout = 0;

-- Arguments, read-only transactions, rights.
SELECT raises('SELECT idem_gc(' || n || ')') FROM unnest(ARRAY['NULL', '0', '-1', '-2147483648']) n;
SELECT idem_gc(2147483647);
COMMIT;
BEGIN READ ONLY;
SELECT raises('SELECT idem_gc()');
COMMIT;
CREATE ROLE regress_idem_gc;
SELECT FROM idem_grant('regress_idem_gc');
SET ROLE regress_idem_gc;
SELECT raises('SELECT idem_gc()');
RESET ROLE;
SELECT FROM idem_revoke('regress_idem_gc');
DROP ROLE regress_idem_gc;
