-- Failures: permanent, retryable, and too many attempts.

-- A failure that is not retryable is the stored end, as a success is.
BEGIN;
SELECT answer(idem_begin('failure-1'));
SELECT FROM idem_fail('failure-1', '{"error": "declined"}', code => 402, headers => '{"h": 1}', body => '\x00');
SELECT answer(idem_begin('failure-1'));
COMMIT;
SELECT answer(idem_begin('failure-1')), answer(idem_begin('failure-1', lease => '1 hour'));
SELECT status, attempt, retry_at FROM idempotency_store WHERE idempotency_key = 'failure-1';
-- without an error, and with JSON null for one
SELECT answer(idem_begin('failure-2')), answer(idem_begin('failure-3')), idem_fail('failure-2'), idem_fail('failure-3', 'null');
SELECT answer(idem_begin('failure-2')), answer(idem_begin('failure-3'));
-- rolled back, it is no end
BEGIN;
SELECT answer(idem_begin('failure-4'));
SELECT FROM idem_fail('failure-4');
ROLLBACK;
SELECT idem_lookup('failure-4') IS NULL;

-- Retryable at once: FAILED for idem_lookup, ACQUIRED for idem_begin.
SELECT answer(idem_begin('failure-5', request => '5')),
	idem_fail('failure-5', '{"try": 1}', code => 503, headers => '1', body => '\x01', retryable => true);
SELECT created_at AS created FROM idempotency_store WHERE idempotency_key = 'failure-5' \gset
SELECT answer(idem_lookup('failure-5'));
BEGIN;
SELECT answer(idem_begin('failure-5')), answer(idem_lookup('failure-5'));
ROLLBACK;
-- the attempt that rolled back does not count
BEGIN;
SELECT answer(idem_begin('failure-5'));
SELECT FROM idem_fail('failure-5', '{"try": 2}', retryable => true);
-- the same transaction may try again
SELECT answer(idem_begin('failure-5'));
SELECT FROM idem_complete('failure-5', '"done"');
COMMIT;
-- nothing of the failures is left in the end, except the time of the first begin
SELECT answer(idem_begin('failure-5'));
SELECT created_at = :'created', updated_at > :'created', retry_at FROM idempotency_store WHERE idempotency_key = 'failure-5';

-- retry_after: FAILED with the rest of the pause, then the next attempt.
BEGIN;
SELECT answer(idem_begin('failure-6'));
SELECT FROM idem_fail('failure-6', '{"try": 1}', retryable => true, retry_after => '1 hour');
SELECT answer(idem_begin('failure-6'));
COMMIT;
SELECT answer(idem_begin('failure-6')), answer(idem_lookup('failure-6'));
SELECT retry_after > '59 minutes', retry_after <= '1 hour' FROM idem_begin('failure-6');
-- a failure is an end: a begin does not wait for the end of its pause
SELECT answer(idem_begin('failure-6', wait => '1 s'));
-- the limit does not count before the next attempt is due
SELECT answer(idem_begin('failure-6', max_attempts => 1));
SELECT FROM let_retry('failure-6');
SELECT answer(idem_begin('failure-6')), idem_fail('failure-6', '{"try": 2}');
SELECT answer(idem_begin('failure-6'));

-- Leased attempts fail and are tried again the same way; each has its fence.
SELECT fence AS fence1 FROM idem_begin('failure-7', lease => '1 hour') \gset
SELECT FROM idem_fail('failure-7', '{"try": 1}', fence => :fence1, retryable => true, retry_after => '0');
SELECT answer(idem_begin('failure-7', lease => '1 hour'));
SELECT fence > :fence1 FROM idempotency_store WHERE idempotency_key = 'failure-7';
SELECT raises(format('SELECT idem_complete(''failure-7'', fence => %s)', :fence1));

-- max_attempts: one attempt too many makes the operation FAILED for good.
BEGIN;
SELECT answer(idem_begin('failure-8', max_attempts => 2));
SELECT FROM idem_fail('failure-8', '{"try": 1}', code => 503, headers => '1', body => '\x01', retryable => true);
SELECT answer(idem_begin('failure-8', max_attempts => 2));
SELECT FROM idem_fail('failure-8', '{"try": 2}', code => 503, headers => '1', body => '\x01', retryable => true);
COMMIT;
SELECT answer(idem_begin('failure-8', max_attempts => 2));
SELECT answer(idem_begin('failure-8', max_attempts => 0)), answer(idem_begin('failure-8')), answer(idem_lookup('failure-8'));
SELECT status, attempt, retry_at, updated_at < expires_at FROM idempotency_store WHERE idempotency_key = 'failure-8';
-- that answer needs no end: the operation has ended
BEGIN;
SELECT answer(idem_begin('failure-9'));
SELECT FROM idem_fail('failure-9', retryable => true);
SELECT answer(idem_begin('failure-9', max_attempts => 1));
SELECT raises($$SELECT idem_complete('failure-9')$$);
ROLLBACK;
SELECT idem_lookup('failure-9') IS NULL;

-- A lease that ran out counts as an attempt.
SELECT answer(idem_begin('failure-10', lease => '1 hour', max_attempts => 1));
SELECT answer(idem_begin('failure-10', lease => '1 hour', max_attempts => 1));
SELECT FROM let_lease_run_out('failure-10');
SELECT answer(idem_begin('failure-10', lease => '1 hour', max_attempts => 2));
SELECT FROM let_lease_run_out('failure-10');
SELECT outcome, attempt, replayed, taken_over, response_payload FROM idem_begin('failure-10', lease => '1 hour', max_attempts => 1);
SELECT lease_expires_at FROM idempotency_store WHERE idempotency_key = 'failure-10';

-- The setting is the default of the argument; 0 means no limit.
SET idempotency.max_attempts = 1;
BEGIN;
SELECT answer(idem_begin('failure-11')), answer(idem_begin('failure-12'));
SELECT idem_fail('failure-11', retryable => true), idem_fail('failure-12', retryable => true);
SELECT answer(idem_begin('failure-11', max_attempts => 2)), answer(idem_begin('failure-12', max_attempts => 0));
SELECT idem_fail('failure-11', retryable => true), idem_fail('failure-12', retryable => true);
COMMIT;
SELECT answer(idem_begin('failure-11')), answer(idem_begin('failure-12'));
RESET idempotency.max_attempts;
SELECT raises($$SELECT idem_begin('failure-13', max_attempts => -1)$$);
