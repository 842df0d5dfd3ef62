-- A lease that ran out: the next begin takes the operation over.

SELECT fence AS fence1, created_at AS created FROM idem_begin('takeover-1', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('takeover-1');
-- only a begin takes over
SELECT answer(idem_lookup('takeover-1'));
SELECT outcome, attempt, taken_over, replayed, fence > :fence1, created_at = :'created', updated_at > :'created', retry_after,
	lease_expires_at - updated_at, response_payload
FROM idem_begin('takeover-1', lease => '1 hour');
SELECT answer(idem_begin('takeover-1'));
SELECT fence AS fence2, ctid FROM idempotency_store WHERE idempotency_key = 'takeover-1' \gset
-- The old owner wakes up, gets ID409, and writes nothing.
SELECT raises_why(format(s, :fence1)) FROM (VALUES
	('SELECT idem_complete(''takeover-1'', ''1'', fence => %s)'), ('SELECT idem_fail(''takeover-1'', ''1'', fence => %s)'),
	('SELECT idem_extend(''takeover-1'', ''2 hours'', fence => %s)')) v(s);
SELECT idem_release('takeover-1', fence => :fence1);
SELECT status, fence = :fence2, ctid = :'ctid' FROM idempotency_store WHERE idempotency_key = 'takeover-1';
-- the new one completes, after which the old one is refused as before
SELECT FROM idem_complete('takeover-1', '"second"', fence => :fence2);
SELECT raises_why(format($$SELECT idem_complete('takeover-1', '1', fence => %s)$$, :fence1)), idem_release('takeover-1', fence => :fence1);
SELECT answer(idem_begin('takeover-1'));

-- Again and again: attempts count, fences only grow.
SELECT answer(idem_begin('takeover-2', lease => '1 hour'));
CREATE TEMP TABLE fences AS SELECT 1 AS attempt, fence FROM idempotency_store WHERE idempotency_key = 'takeover-2';
DO $$
BEGIN
	FOR n IN 2..5 LOOP
		PERFORM let_lease_run_out('takeover-2');
		INSERT INTO fences SELECT o.attempt, o.fence FROM idem_begin('takeover-2', lease => '1 hour') o;
		COMMIT;
	END LOOP;
END
$$;
SELECT count(DISTINCT fence), array_agg(attempt ORDER BY fence) FROM fences;
-- Released by the last owner: the earlier attempts stay known, the next begin is attempt 5 again.
SELECT idem_release('takeover-2', fence => max(fence)) FROM fences;
SELECT answer(idem_lookup('takeover-2')), s.fence > max(f.fence), expires_at - lease_expires_at FROM idempotency_store s, fences f WHERE idempotency_key = 'takeover-2' GROUP BY s.fence, expires_at, lease_expires_at;
-- that attempt has no owner: neither the last one nor the one before
SELECT fence, idem_release('takeover-2', fence => fence), raises_why(format($$SELECT idem_complete('takeover-2', fence => %s)$$, fence)),
	raises_why(format($$SELECT idem_extend('takeover-2', '1 s', fence => %s)$$, fence)) FROM (SELECT 0) z, LATERAL (SELECT max(fence) AS fence FROM fences) f \gset last_
SELECT :'last_idem_release', :'last_raises_why';
SELECT raises_why(format($$SELECT idem_complete('takeover-2', fence => %s)$$, fence)) FROM fences ORDER BY fence DESC OFFSET 1 LIMIT 1;
SELECT answer(idem_begin('takeover-2', lease => '1 hour', max_attempts => 5));
SELECT s.fence > max(f.fence) FROM idempotency_store s, fences f WHERE idempotency_key = 'takeover-2' GROUP BY s.fence;
-- begun and released in one transaction
SELECT FROM let_lease_run_out('takeover-2');
BEGIN;
SELECT answer(idem_begin('takeover-2', lease => '1 hour'));
SELECT idem_release('takeover-2'), answer(idem_begin('takeover-2'));
SELECT idem_release('takeover-2'), answer(idem_lookup('takeover-2'));
COMMIT;
SELECT answer(idem_begin('takeover-2', lease => '1 hour'));
-- a retryable failure
SELECT FROM idem_fail('takeover-8', '"busy"', fence => (idem_begin('takeover-8', lease => '1 hour')).fence, retryable => true);
SELECT idem_release('takeover-8', fence => (idem_begin('takeover-8', lease => '1 hour')).fence);
SELECT answer(idem_begin('takeover-8', lease => '1 hour'));

-- Taken over without a lease: transaction-bound, without a fence.
SELECT fence AS fence1 FROM idem_begin('takeover-3', request => '3', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('takeover-3');
BEGIN;
SELECT answer(idem_begin('takeover-3')), answer(idem_begin('takeover-3')), answer(idem_lookup('takeover-3'));
-- nothing is written before its end
SELECT status, attempt, fence = :fence1 FROM idempotency_store WHERE idempotency_key = 'takeover-3';
-- the old fence is not current here either
SELECT raises_why(format(s, :fence1)), left(raises(format(s, :fence1)), 5) FROM (VALUES
	('SELECT idem_complete(''takeover-3'', fence => %s)'), ('SELECT idem_fail(''takeover-3'', fence => %s)'),
	('SELECT idem_extend(''takeover-3'', ''1 hour'', fence => %s)'), ('SELECT idem_extend(''takeover-3'', ''1 hour'')')) v(s);
SELECT idem_release('takeover-3', fence => :fence1);
SELECT FROM idem_complete('takeover-3', '"bound"');
COMMIT;
SELECT answer(idem_begin('takeover-3', request => '3'));
SELECT raises_why(format($$SELECT idem_complete('takeover-3', fence => %s)$$, :fence1));
SELECT status, attempt, fence, lease_expires_at FROM idempotency_store WHERE idempotency_key = 'takeover-3';
-- the next lease has a greater fence all the same
SELECT FROM let_expire('takeover-3');
SELECT fence > :fence1, attempt FROM idem_begin('takeover-3', lease => '1 hour');

-- It is unfinished at COMMIT as any other, and a rollback undoes the takeover.
SELECT fence FROM idem_begin('takeover-4', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('takeover-4');
SELECT answer(idem_begin('takeover-4'));
BEGIN;
SELECT answer(idem_begin('takeover-4'));
ROLLBACK;
SELECT answer(idem_lookup('takeover-4'));
SELECT FROM idem_complete('takeover-4', '"first"', fence => :fence);
SELECT answer(idem_begin('takeover-4'));
-- After the release, the record of the lease that ran out is unchanged.
SELECT fence FROM idem_begin('takeover-5', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('takeover-5');
SELECT ctid FROM idempotency_store WHERE idempotency_key = 'takeover-5' \gset
SELECT answer(idem_begin('takeover-5')), idem_release('takeover-5');
SELECT answer(idem_lookup('takeover-5')), ctid = :'ctid', fence = :fence FROM idempotency_store WHERE idempotency_key = 'takeover-5';
BEGIN;
SELECT answer(idem_begin('takeover-5'));
ROLLBACK;
SELECT FROM idem_complete('takeover-5', fence => :fence);
-- The same for a retryable failure, and for an expired record.
BEGIN;
SELECT answer(idem_begin('takeover-9')), idem_fail('takeover-9', '"busy"', retryable => true);
COMMIT;
SELECT ctid FROM idempotency_store WHERE idempotency_key = 'takeover-9' \gset
BEGIN;
SELECT answer(idem_begin('takeover-9'));
SELECT idem_release('takeover-9'), locks_held();
SELECT answer(idem_begin('takeover-9')), idem_release('takeover-9');
COMMIT;
SELECT answer(idem_lookup('takeover-9')), ctid = :'ctid' FROM idempotency_store WHERE idempotency_key = 'takeover-9';
SELECT FROM let_expire('takeover-9');
BEGIN;
SELECT answer(idem_begin('takeover-9'));
SELECT idem_release('takeover-9'), idem_lookup('takeover-9') IS NULL, count(*) FROM idempotency_store WHERE idempotency_key = 'takeover-9';
COMMIT;

-- At the limit of attempts the operation fails, and the owner of the lease that ran out is refused.
SELECT fence FROM idem_begin('takeover-6', lease => '1 hour') \gset
SELECT FROM let_lease_run_out('takeover-6');
SELECT answer(idem_begin('takeover-6', max_attempts => 1)) ~ 'FAILED .* "attempts exhausted"';
SELECT raises_why(format(s, :fence)) FROM (VALUES ('SELECT idem_complete(''takeover-6'', fence => %s)'),
	('SELECT idem_fail(''takeover-6'', fence => %s)'), ('SELECT idem_extend(''takeover-6'', ''1 s'', fence => %s)')) v(s);
SELECT idem_release('takeover-6', fence => :fence);
-- A sequence that fell behind the rows (a copy of them was loaded
-- without it) still gives a greater fence.
SELECT answer(idem_begin('takeover-7', lease => '1 hour'));
BEGIN;
UPDATE idempotency_store SET fence = 9000000000000000000, lease_expires_at = now() - interval '1 s' WHERE idempotency_key = 'takeover-7';
SELECT fence > 9000000000000000000 FROM idem_begin('takeover-7', lease => '1 hour');
ROLLBACK;
