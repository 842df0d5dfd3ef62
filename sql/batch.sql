-- idem_begin_batch and idem_complete_batch: many operations in one call.
-- A row per key, in input order; a key that comes twice is acquired once.
SELECT fence FROM idem_begin('batch-leased', lease => '1 hour') \gset
SELECT answer(idem_begin('batch-done', request => '1')), answer(idem_begin('batch-failed')), answer(idem_begin('batch-retry')),
	idem_complete('batch-done', '"done"'), idem_fail('batch-failed', '"failed"'), idem_fail('batch-retry', retryable => true);
BEGIN;
SELECT idempotency_key, scope, answer(b) FROM idem_begin_batch(ARRAY['batch-z', 'batch-done', 'batch-a', 'batch-failed', 'batch-z', 'batch-leased', 'batch-retry']) b;
-- transaction-bound, each with its lock
SELECT locks_held(), answer(idem_begin('batch-a'));
SELECT idem_complete_batch(ARRAY['batch-a', 'batch-retry', 'batch-z'], ARRAY['"a"', NULL, 'null']::jsonb[]);
SELECT raises('SELECT idem_complete_batch(ARRAY[''batch-a''])');
COMMIT;
SELECT idempotency_key, answer(b) FROM idem_begin_batch(ARRAY['batch-retry', 'batch-z', 'batch-a']) b;
-- the same records as with single calls
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['batch-1', 'batch-2'], ARRAY['{"n": 1}', NULL]::jsonb[], 'batch') b;
SELECT idem_complete_batch(ARRAY['batch-1', 'batch-2'], scope => 'batch');
COMMIT;
SELECT idempotency_key, status, attempt, fence, request_hash = idem_fingerprint('{"n": 1.0}'), response_payload, expires_at - updated_at
FROM idempotency_store WHERE scope = 'batch' ORDER BY 1;
SELECT count(*) FROM idem_begin_batch(ARRAY[]::text[]);
SELECT idem_complete_batch(ARRAY[]::text[]);

-- If one operation has no end, COMMIT is refused, and all are rolled back.
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['batch-3', 'batch-4']) b;
SELECT idem_complete_batch(ARRAY['batch-3']);
COMMIT;
\echo :SQLSTATE
SELECT idem_lookup('batch-3') IS NULL;
-- An error in the middle undoes the whole batch.
BEGIN;
SELECT raises('SELECT count(*), 1 / 0 FROM idem_begin_batch(ARRAY[''batch-5'', ''batch-done'']) HAVING count(*) = 2');
SELECT locks_held(), idem_lookup('batch-5') IS NULL;
SELECT answer(b) FROM idem_begin_batch(ARRAY['batch-5', 'batch-6']) b;
SELECT raises('SELECT idem_complete_batch(ARRAY[''batch-5'', ''batch-none'', ''batch-6''])');
SELECT answer(idem_lookup('batch-5'));
SAVEPOINT a;
SELECT idem_complete_batch(ARRAY['batch-5', 'batch-6']);
ROLLBACK TO a;
SELECT raises('SELECT idem_complete_batch(ARRAY[''batch-5'', ''batch-5''])');
SELECT idem_complete_batch(ARRAY['batch-6', 'batch-5']);
COMMIT;
-- What is acquired counts against the limit, replays and duplicates do not; beyond it nothing is acquired.
SET idempotency.max_operations_per_transaction = 2;
BEGIN;
SELECT raises('SELECT idem_begin_batch(ARRAY[''batch-7'', ''batch-8'', ''batch-9''])'), locks_held();
SELECT outcome FROM idem_begin_batch(ARRAY['batch-done', 'batch-7', 'batch-5', 'batch-7', 'batch-6', 'batch-8', 'batch-8']);
ROLLBACK;
RESET idempotency.max_operations_per_transaction;
SET idempotency.max_response_size = 10;
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['batch-7']) b;
SELECT left(raises('SELECT idem_complete_batch(ARRAY[''batch-7''], ARRAY[to_jsonb(repeat(''x'', 100))])'), 5);
ROLLBACK;
RESET idempotency.max_response_size;

-- Arguments.
SELECT raises(s) FROM (VALUES ('SELECT idem_begin_batch(NULL)'), ('SELECT idem_begin_batch(ARRAY[''k'', NULL])'), ('SELECT idem_begin_batch(ARRAY[''k'', ''''])'),
	('SELECT idem_begin_batch(ARRAY[repeat(''k'', 256)])'), ('SELECT idem_begin_batch(ARRAY[''k''], scope => NULL)'), ('SELECT idem_begin_batch(ARRAY[''k''], requests => ARRAY[]::jsonb[])'),
	('SELECT idem_begin_batch(ARRAY[''k''], requests => ARRAY[''1'', ''2'']::jsonb[])'), ('SELECT idem_complete_batch(NULL)'), ('SELECT idem_complete_batch(ARRAY[NULL]::text[])'),
	('SELECT idem_complete_batch(ARRAY[''k''], ARRAY[''1'', ''2'']::jsonb[])'), ('SELECT idem_complete_batch(ARRAY[''k''], scope => NULL)')) v(s);
BEGIN READ ONLY;
SELECT raises('SELECT idem_begin_batch(ARRAY[''k''])'), raises('SELECT idem_complete_batch(ARRAY[''k''])');
ROLLBACK;
-- a thousand at once
BEGIN;
SELECT count(*), min(answer(b)), max(answer(b)) FROM idem_begin_batch((SELECT array_agg('batch-many-' || n) FROM generate_series(1, 1000) n)) b;
SELECT idem_complete_batch((SELECT array_agg('batch-many-' || n) FROM generate_series(1, 1000) n), (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 1000) n));
COMMIT;
SELECT count(*), bool_and(response_payload = to_jsonb(n)) FROM generate_series(1, 1000) n, idem_begin('batch-many-' || n);

-- A takeover has the note of the owner before, here as in idem_begin.
SELECT fence FROM idem_begin('batch-noted', lease => '1 hour') \gset
SELECT idem_progress('batch-noted', '"noted"', fence => :fence, lease => '1 us') IS NOT NULL;
BEGIN;
SELECT outcome, attempt, taken_over, response_payload FROM idem_begin_batch(ARRAY['batch-noted']);
ROLLBACK;
