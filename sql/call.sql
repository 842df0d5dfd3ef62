-- idem_call: begin, run a handler, end, in one call.
CREATE TABLE call_effect (n jsonb, xid xid DEFAULT pg_current_xact_id()::xid, who name DEFAULT current_user);
CREATE FUNCTION call_pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO call_effect VALUES (request);
	IF request ->> 'fail' IS NOT NULL THEN
		RAISE EXCEPTION 'declined' USING ERRCODE = request ->> 'fail', DETAIL = 'a detail', HINT = 'a hint';
	END IF;
	RETURN jsonb_build_object('paid', request);
END
$$;
CREATE FUNCTION call_count() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM call_effect';

-- Returned: COMPLETED with its result. Replayed: the handler does not run.
SELECT answer(idem_call('call_pay(jsonb)', 'call-1', '{"n": 1}'));
SELECT answer(idem_call('call_pay(jsonb)', 'call-1', '{"n": 1}')), answer(idem_begin('call-1')), call_count();
-- in a transaction of its caller, whose rollback undoes it
BEGIN;
SELECT answer(idem_call('call_pay(jsonb)', 'call-2', scope => 'calls'));
SELECT answer(idem_call('call_pay(jsonb)', 'call-2', scope => 'calls')), call_count();
ROLLBACK;
SELECT idem_lookup('call-2', 'calls') IS NULL, call_count();
-- nothing is unfinished, the lock is held until COMMIT
BEGIN;
SELECT answer(idem_call('call_pay(jsonb)', 'call-3'));
SELECT raises($$SELECT idem_complete('call-3')$$), locks_held();
COMMIT;

-- SQL NULL and JSON null, in and out.
CREATE FUNCTION call_echo(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SELECT answer(idem_call('call_echo(jsonb)', 'call-4')), answer(idem_call('call_echo(jsonb)', 'call-5', 'null'));
SELECT answer(idem_begin('call-4')), answer(idem_begin('call-5'));
-- without a request there is no fingerprint; JSON null is one
SELECT idempotency_key, request_hash = idem_fingerprint('null') FROM idempotency_store WHERE idempotency_key IN ('call-4', 'call-5') ORDER BY 1;
-- a strict handler is not called with NULL, as everywhere
CREATE FUNCTION call_strict(request jsonb) RETURNS jsonb STRICT LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called'; END $$;
SELECT answer(idem_call('call_strict(jsonb)', 'call-6')), answer(idem_call('call_strict(jsonb)', 'call-7', 'null'));

-- Raised: the effects are undone, the failure is stored and replayed, and the handler does not run again.
SELECT count(*) FROM call_effect;
SELECT answer(idem_call('call_pay(jsonb)', 'call-8', '{"fail": "P0001"}'));
SELECT answer(idem_call('call_pay(jsonb)', 'call-8', '{"fail": "P0001"}')), call_count();
SELECT status, attempt, retry_at FROM idempotency_store WHERE idempotency_key = 'call-8';
-- the rest of the transaction goes on, and keeps its own effects
BEGIN;
INSERT INTO call_effect VALUES ('"before"');
SELECT outcome, replayed FROM idem_call('call_pay(jsonb)', 'call-9', '{"fail": "22012"}');
INSERT INTO call_effect VALUES ('"after"');
COMMIT;
SELECT n FROM call_effect WHERE jsonb_typeof(n) = 'string' ORDER BY 1;
SELECT answer(idem_lookup('call-9'));

-- record_failure => false: the error is raised, nothing is stored.
SELECT raises_in_full($$SELECT idem_call('call_pay(jsonb)', 'call-10', '{"fail": "P0001"}', record_failure => false)$$);
SELECT idem_lookup('call-10') IS NULL, call_count();
SELECT answer(idem_call('call_pay(jsonb)', 'call-10', '{"n": 10}', record_failure => false));
SELECT answer(idem_call('call_pay(jsonb)', 'call-10', '{"n": 10}', record_failure => false));
-- and there is no subtransaction
BEGIN;
SELECT outcome FROM idem_call('call_pay(jsonb)', 'call-11', '"direct"', record_failure => false);
SELECT outcome FROM idem_call('call_pay(jsonb)', 'call-12', '"caught"');
SELECT n, xmin = xid FROM call_effect WHERE n IN ('"direct"', '"caught"') ORDER BY 1;
ROLLBACK;

-- Every kind of begin: in progress, taken over, retryable, exhausted.
SELECT fence FROM idem_begin('call-13', lease => '1 hour') \gset
SELECT answer(idem_call('call_pay(jsonb)', 'call-13', '13')), answer(idem_call('call_pay(jsonb)', 'call-13', '13', wait => '5 ms')), call_count();
SELECT FROM let_lease_run_out('call-13');
SELECT answer(idem_call('call_echo(jsonb)', 'call-13', '13'));
SELECT raises(format($$SELECT idem_complete('call-13', fence => %s)$$, :fence));
BEGIN;
SELECT answer(idem_begin('call-14'));
SELECT answer(idem_call('call_echo(jsonb)', 'call-14', '14'));
SELECT FROM idem_fail('call-14', retryable => true);
SELECT answer(idem_call('call_echo(jsonb)', 'call-14', '14')), answer(idem_begin('call-14'));
SELECT answer(idem_begin('call-15'));
SELECT FROM idem_fail('call-15', retryable => true);
COMMIT;
SET idempotency.max_attempts = 1;
SELECT answer(idem_call('call_echo(jsonb)', 'call-15'));
RESET idempotency.max_attempts;

-- Called from a block that swallows errors, and from a function in a query.
DO $$
BEGIN
	BEGIN
		PERFORM idem_call('call_pay(jsonb)', 'call-16', '16');
		RAISE EXCEPTION 'swallowed';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE '%', idem_lookup('call-16') IS NULL;
	END;
	PERFORM idem_call('call_pay(jsonb)', 'call-16', '"again"');
END
$$;
SELECT answer(idem_lookup('call-16'));
SELECT sum((o.response_payload ->> 'paid')::int) FROM generate_series(1, 3) n, idem_call('call_pay(jsonb)', 'call-17-' || n, to_jsonb(n)) o;
SELECT call_count();
