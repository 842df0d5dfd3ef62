-- A key of a batch that was used with another request gets MISMATCH, and does not affect the others.
BEGIN;
SELECT answer(idem_begin('mismatch-done', '{"card": "4711"}')), answer(idem_begin('mismatch-failed', '1')), answer(idem_begin('mismatch-retry', '1')), answer(idem_begin('mismatch-open'));
SELECT idem_complete('mismatch-done', '"done"', code => 201, headers => '{"h": 1}', body => '\x01'), idem_fail('mismatch-failed', '"failed"', code => 402),
	idem_fail('mismatch-retry', '"retry"', retryable => true, retry_after => '0'), idem_complete('mismatch-open', '"no request"');
COMMIT;
SELECT answer(idem_begin('mismatch-leased', '1', lease => '1 hour'));
SELECT answer(idem_begin('mismatch-late', '1', lease => '1 hour'));
SELECT FROM let_lease_run_out('mismatch-late');

-- Whatever the status of the record, and before IN_PROGRESS, as ID422. The other keys are begun.
CREATE VIEW mismatch_count AS SELECT mismatches, acquired, in_progress, replayed_completed + replayed_failed AS replayed
	FROM idempotency_stats WHERE datname = current_database();
CREATE TEMP TABLE before AS SELECT * FROM mismatch_count;
BEGIN;
SELECT idempotency_key, answer(b) FROM idem_begin_batch(ARRAY['mismatch-new', 'mismatch-done', 'mismatch-failed', 'mismatch-retry', 'mismatch-open', 'mismatch-leased', 'mismatch-late', 'mismatch-last'],
	ARRAY['2', '2', '2', '2', '2', '2', '2', NULL]::jsonb[]) b;
SELECT locks_held();
SELECT idem_complete_batch(ARRAY['mismatch-new', 'mismatch-last']);
COMMIT;
-- each MISMATCH is counted, if the library is preloaded
SELECT s.mismatches IS NULL OR (s.mismatches - b.mismatches, s.acquired - b.acquired, s.in_progress - b.in_progress, s.replayed - b.replayed) = (5, 2, 0, 1) FROM mismatch_count s, before b;
-- The row has outcome, scope and key, and nothing else.
SELECT b FROM idem_begin_batch(ARRAY['mismatch-done'], ARRAY['2']::jsonb[]) b;
SELECT jsonb_strip_nulls(to_jsonb(b)) FROM idem_begin_batch(ARRAY['mismatch-leased'], ARRAY['2']::jsonb[]) b;
-- nothing was written
SELECT answer(idem_begin('mismatch-done', '{"card": "4711"}')), answer(idem_begin('mismatch-failed', '1')), answer(idem_begin('mismatch-leased', '1'));
SELECT idempotency_key, status, attempt FROM idempotency_store WHERE idempotency_key IN ('mismatch-retry', 'mismatch-late') ORDER BY 1;

-- Twice in one batch: the second is compared with the first.
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-1', 'mismatch-1', 'mismatch-1', 'mismatch-1'], ARRAY['1', '2', '1.0', NULL]::jsonb[]) b;
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-1', 'mismatch-2'], ARRAY['3', '3']::jsonb[]) b;
SELECT raises($$SELECT idem_begin('mismatch-1', '2')$$);
SELECT idem_complete_batch(ARRAY['mismatch-1', 'mismatch-2']);
COMMIT;
-- by hashes, and a hash compared with a request
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-1', 'mismatch-1', 'mismatch-2'], request_hashes => ARRAY[idem_fingerprint('1'), sha256('1'), NULL]) b;
-- before the limit of attempts
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-retry'], ARRAY['2']::jsonb[], max_attempts => 1) b;
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-retry'], ARRAY['1']::jsonb[], max_attempts => 1) b;
-- after a replay, a session looks before it locks
SELECT answer(b) FROM idem_begin_batch(ARRAY['mismatch-done', 'mismatch-done', 'mismatch-failed', 'mismatch-done'], ARRAY[NULL, '2', '2', NULL]::jsonb[]) b;
SELECT locks_held();

-- A MISMATCH cannot be ended, and needs no end at COMMIT.
BEGIN;
SELECT b AS operation FROM idem_begin_batch(ARRAY['mismatch-done'], ARRAY['2']::jsonb[]) b \gset
SELECT raises(format('SELECT idem_complete(%L::idem_operation)', :'operation')), raises($$SELECT idem_complete_batch(ARRAY['mismatch-done'])$$);
COMMIT;
\echo :SQLSTATE
-- no other function answers so
CREATE FUNCTION mismatch_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT raises($$SELECT idem_begin('mismatch-done', '2')$$), raises($$SELECT idem_call('mismatch_echo(jsonb)', 'mismatch-done', '2')$$);
DROP VIEW mismatch_count;
