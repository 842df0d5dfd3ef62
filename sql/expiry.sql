-- Retention: how long a record is kept, and when it has expired. A collector may
-- remove expired records at any time, which makes no difference.

CREATE FUNCTION pg_temp.kept(name text) RETURNS interval LANGUAGE sql AS $$
	SELECT expires_at - coalesce(retry_at, updated_at) FROM idempotency_store WHERE idempotency_key = name
$$;

-- The setting, the argument, and for a retryable failure in addition to its pause.
BEGIN;
SELECT answer(idem_begin('expiry-' || n)) FROM generate_series(1, 5) n;
SELECT idem_complete('expiry-1'), idem_complete('expiry-2', retention => '1 hour'), idem_fail('expiry-3'),
	idem_fail('expiry-4', retention => '1 month'),
	idem_fail('expiry-5', retryable => true, retry_after => '2 days', retention => '1 hour');
COMMIT;
SELECT n, pg_temp.kept('expiry-' || n) FROM generate_series(1, 5) n;
SELECT expires_at - updated_at FROM idempotency_store WHERE idempotency_key = 'expiry-5';
SET idempotency.retention = '2h';
BEGIN;
SELECT answer(idem_begin('expiry-' || n)) FROM generate_series(6, 7) n;
SELECT idem_complete('expiry-6'), idem_complete('expiry-7', retention => '90 minutes');
COMMIT;
SELECT n, pg_temp.kept('expiry-' || n) FROM generate_series(6, 7) n;
CREATE FUNCTION pg_temp.handle(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(1 / request::int)';
SELECT answer(idem_call('pg_temp.handle(jsonb)', 'expiry-8', '1')),
	answer(idem_call('pg_temp.handle(jsonb)', 'expiry-9', '1', retention => '1 minute')),
	answer(idem_call('pg_temp.handle(jsonb)', 'expiry-10', '0', retention => '2 minutes'));
SELECT n, pg_temp.kept('expiry-' || n) FROM generate_series(8, 10) n;
RESET idempotency.retention;
-- the answer has the expiry, and a replay does not change it
SELECT o.expires_at = s.expires_at FROM idempotency_store s, idem_begin('expiry-1') o WHERE s.idempotency_key = 'expiry-1';
SELECT pg_temp.kept('expiry-1');

-- After its expiry a record counts as absent, collected or not.
SELECT let_expire('expiry-1'), let_expire('expiry-3'), let_expire('expiry-5');
SELECT idem_lookup('expiry-1') IS NULL, idem_lookup('expiry-3') IS NULL, idem_lookup('expiry-5') IS NULL;
BEGIN;
SELECT answer(idem_begin('expiry-1')), answer(idem_begin('expiry-3', lease => '1 hour')), answer(idem_begin('expiry-5'));
ROLLBACK;
SELECT idem_lookup('expiry-1') IS NULL;
-- the limit of attempts counts from the start again
BEGIN;
SELECT answer(idem_begin('expiry-11'));
SELECT FROM idem_fail('expiry-11', retryable => true);
SELECT answer(idem_begin('expiry-11'));
SELECT FROM idem_fail('expiry-11', retryable => true);
SELECT FROM let_expire('expiry-11');
SELECT answer(idem_begin('expiry-11', max_attempts => 1));
SELECT idem_release('expiry-11');
COMMIT;
-- The new record replaces the old one, and keeps nothing of it
SELECT answer(idem_begin('expiry-15', request => '2')), idem_complete('expiry-15', '"first"', code => 1, headers => '1', body => '\x01');
SELECT answer(idem_begin('expiry-15'));
UPDATE idempotency_store SET created_at = now() - interval '1 year', expires_at = now() - interval '1 month'
WHERE idempotency_key = 'expiry-15';
SELECT answer(idem_begin('expiry-15')), idem_complete('expiry-15', '"second"');
SELECT answer(idem_begin('expiry-15', request => '3'));
SELECT created_at >= now() - interval '1 hour', request_hash FROM idempotency_store WHERE idempotency_key = 'expiry-15';
-- released after it had expired: no record is left
SELECT FROM let_expire('expiry-15');
SELECT answer(idem_begin('expiry-15')), idem_release('expiry-15');
SELECT idem_lookup('expiry-15') IS NULL;

-- A leased record never expires before its lease does: not when it is begun,
SET idempotency.retention = '1s';
SELECT fence AS fence1, outcome FROM idem_begin('expiry-12', lease => '1 hour') \gset
SELECT expires_at >= lease_expires_at FROM idempotency_store WHERE idempotency_key = 'expiry-12';
-- not when it is extended,
SELECT fence FROM idem_begin('expiry-13', lease => '1 minute') \gset
SELECT idem_extend('expiry-13', '1 hour', fence => :fence) AS extended \gset
SELECT expires_at >= lease_expires_at, lease_expires_at = :'extended', lease_expires_at - updated_at
FROM idempotency_store WHERE idempotency_key = 'expiry-13';
RESET idempotency.retention;
-- nor when somebody has changed its expiry by hand.
SELECT FROM let_expire('expiry-12');
SELECT answer(idem_begin('expiry-12')), answer(idem_lookup('expiry-12'));
-- When both times have passed, it is absent: no takeover, attempt 1.
SELECT FROM let_lease_run_out('expiry-12');
SELECT idem_lookup('expiry-12') IS NULL;
SELECT answer(idem_begin('expiry-12', lease => '1 hour'));
SELECT fence > :fence1 FROM idempotency_store WHERE idempotency_key = 'expiry-12';
-- Expired, but neither collected nor begun again: its owner may still end it.
SELECT fence FROM idem_begin('expiry-14', lease => '1 hour') \gset
BEGIN;
SELECT let_lease_run_out('expiry-14'), let_expire('expiry-14');
SELECT FROM idem_complete('expiry-14', '14', fence => :fence);
COMMIT;
SELECT answer(idem_begin('expiry-14'));
