-- Leased operations: begin, in progress, complete, extend, release.

-- The lease is written at once, and needs no end in its transaction.
SELECT fence FROM idem_begin('lease-1', lease => '1 hour') \gset
SELECT status, attempt, fence = :fence, created_at = updated_at, lease_expires_at - updated_at, expires_at > lease_expires_at
FROM idempotency_store WHERE idempotency_key = 'lease-1';
-- Others see how long it runs, but not its fence.
SELECT answer(idem_begin('lease-1')), answer(idem_begin('lease-1', lease => '1 hour')), answer(idem_lookup('lease-1'));
SELECT o.lease_expires_at = s.lease_expires_at, o.fence, retry_after > '59 minutes', retry_after <= '1 hour', o.attempt
FROM idempotency_store s, idem_begin('lease-1') o WHERE s.idempotency_key = 'lease-1';
SELECT fence IS NULL FROM idem_lookup('lease-1');
-- a wait ends in the same answer
SELECT answer(idem_begin('lease-1', wait => '10 ms'));
-- Without its fence it does not belong to this transaction.
SELECT raises(s) FROM (VALUES ($$SELECT idem_complete('lease-1')$$), ($$SELECT idem_fail('lease-1')$$),
	($$SELECT idem_release('lease-1')$$), ($$SELECT idem_extend('lease-1', '1 s')$$)) v(s);
-- A fence that was never given out, or belongs to another operation, is not current.
SELECT fence AS other FROM idem_begin('lease-2', lease => '1 hour') \gset
SELECT raises(format(s, f)) FROM (VALUES (:other), (9223372036854775807)) f(f), (VALUES
	('SELECT idem_complete(''lease-1'', fence => %s)'), ('SELECT idem_fail(''lease-1'', fence => %s)'),
	('SELECT idem_extend(''lease-1'', ''1 hour'', fence => %s)'),
	('SELECT idem_complete(''lease-none'', fence => %s)'), ('SELECT idem_extend(''lease-none'', ''1 s'', fence => %s)')) v(s)
ORDER BY s COLLATE "C", f;
SELECT idem_release('lease-1', fence => :other), idem_release('lease-none', fence => :other);
SELECT raises(format($$SELECT idem_complete('lease-1', scope => 'lease', fence => %s)$$, :fence));
SELECT answer(idem_begin('lease-1'));
-- With it, any transaction can end it, once. A second end is ID409 with a detail of the first, and nothing is written.
SELECT FROM idem_complete('lease-1', '"first"', code => 200, fence => :fence);
SELECT answer(idem_begin('lease-1'));
SELECT ctid, updated_at FROM idempotency_store WHERE idempotency_key = 'lease-1' \gset
SELECT raises_why(format($$SELECT idem_complete('lease-1', '"again"', code => 500, fence => %s)$$, :fence));
SELECT ctid = :'ctid', updated_at = :'updated_at' FROM idempotency_store WHERE idempotency_key = 'lease-1';
SELECT answer(idem_begin('lease-1'));
-- any other end, too
SELECT raises_in_full(format($$SELECT idem_fail('lease-1', fence => %s)$$, :fence)) ~ '^ID409: lease of operation "lease-1" of scope "" was lost\n  DETAIL The operation was completed at 2.*\.\n  HINT Roll back, and call idem_begin';
SELECT raises_why(format($$SELECT idem_extend('lease-1', '1 hour', fence => %s)$$, :fence));
SELECT idem_release('lease-1', fence => :fence);
SELECT FROM idem_fail('lease-2', '"first"', fence => :other);
SELECT raises_why(format(s, :other)) FROM (VALUES ('SELECT idem_complete(''lease-2'', fence => %s)'), ('SELECT idem_fail(''lease-2'', ''"again"'', fence => %s)'),
	('SELECT idem_extend(''lease-2'', ''1 hour'', fence => %s)')) v(s);
SELECT idem_release('lease-2', fence => :other), answer(idem_begin('lease-2'));
SELECT raises_why($$SELECT idem_complete('lease-none', fence => 9223372036854775807)$$);
-- the detail says nothing untrue of a fence that no attempt has had
SELECT FROM idem_begin('lease-13', lease => '1 hour');
BEGIN;
SELECT FROM idem_begin('lease-14');
SELECT FROM idem_complete('lease-14');
COMMIT;
SELECT raises_why(format($$SELECT idem_extend('lease-%s', '1 s', fence => 9223372036854775807)$$, n)) FROM generate_series(13, 14) n;

-- In the transaction that began it no fence is needed.
BEGIN;
SELECT answer(idem_begin('lease-3', lease => '1 hour')), answer(idem_begin('lease-3')), answer(idem_lookup('lease-3'));
SELECT FROM idem_complete('lease-3', '3');
SELECT answer(idem_begin('lease-3'));
SELECT raises($$SELECT idem_complete('lease-3')$$);
SELECT raises_why(format($$SELECT idem_complete('lease-3', fence => %s)$$, fence)) FROM idempotency_store WHERE idempotency_key = 'lease-3';
SELECT answer(idem_begin('lease-4', lease => '1 hour'));
SELECT FROM idem_fail('lease-4', '4');
SELECT answer(idem_begin('lease-5', lease => '1 hour'));
SELECT idem_extend('lease-5', '2 hours') > clock_timestamp() + interval '119 minutes';
SELECT answer(idem_begin('lease-6', lease => '1 hour'));
SELECT idem_release('lease-6');
COMMIT;
SELECT key, coalesce(answer(idem_lookup(key)), 'nothing') FROM unnest(ARRAY['lease-3', 'lease-4', 'lease-5', 'lease-6']) key;
-- A rollback undoes a lease, but no fence is given out twice.
BEGIN;
SELECT fence AS fence1 FROM idem_begin('lease-7', lease => '1 hour') \gset
ROLLBACK;
SELECT fence > :fence1, attempt FROM idem_begin('lease-7', lease => '1 hour');

-- Extend: the interval counts from now, longer or shorter, and also after the lease has run out.
SELECT fence FROM idem_begin('lease-8', lease => '1 hour') \gset
SELECT e - clock_timestamp() BETWEEN '119 minutes' AND '2 hours' FROM idem_extend('lease-8', '2 hours', fence => :fence) e;
SELECT e - clock_timestamp() BETWEEN '30 s' AND '1 minute' FROM idem_extend('lease-8', '1 minute', fence => :fence) e;
SELECT retry_after BETWEEN '30 s' AND '1 minute', attempt FROM idem_begin('lease-8');
SELECT FROM let_lease_run_out('lease-8');
SELECT answer(idem_lookup('lease-8'));
SELECT idem_extend('lease-8', '1 hour', fence => :fence) > clock_timestamp();
SELECT answer(idem_begin('lease-8')), answer(idem_lookup('lease-8'));
-- the fence stays
SELECT fence = :fence, attempt FROM idempotency_store WHERE idempotency_key = 'lease-8';

-- Run out, but not taken over: it can still be completed, failed or released.
SELECT FROM let_lease_run_out('lease-8');
SELECT FROM idem_complete('lease-8', '8', fence => :fence);
SELECT fence FROM idem_begin('lease-9', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('lease-9');
SELECT FROM idem_fail('lease-9', '9', fence => :fence);
SELECT fence FROM idem_begin('lease-10', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('lease-10');
SELECT idem_release('lease-10', fence => :fence), idem_release('lease-10', fence => :fence);
SELECT answer(idem_begin('lease-8')), answer(idem_begin('lease-9')), idem_lookup('lease-10') IS NULL;
-- Released: the next begin is attempt 1, with a new fence; the old fence is stale.
SELECT fence > :fence, attempt, taken_over FROM idem_begin('lease-10', lease => '1 hour');
SELECT raises_why(format($$SELECT idem_complete('lease-10', fence => %s)$$, :fence)), idem_release('lease-10', fence => :fence);
SELECT answer(idem_lookup('lease-10'));

-- A lease counts from the clock, not from the transaction's start.
BEGIN;
SELECT pg_sleep(0.02);
SELECT lease_expires_at >= now() + interval '1 hour 20 ms' FROM idem_begin('lease-11', lease => '1 hour');
SELECT idem_extend('lease-11', '1 hour') >= now() + interval '1 hour 20 ms';
SELECT FROM idem_complete('lease-11');
SELECT updated_at >= now() + interval '20 ms', expires_at - updated_at FROM idempotency_store WHERE idempotency_key = 'lease-11';
COMMIT;
-- Months are 30 days and days 24 hours.
SELECT o.lease_expires_at - o.updated_at FROM idem_begin('lease-12', lease => '1 month 1 day') o;
