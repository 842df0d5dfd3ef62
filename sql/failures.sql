-- The view of failures: grouped by scope and cause, without keys and payloads.
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idempotency_failures'::regclass AND attnum > 0 ORDER BY attnum;

TRUNCATE idempotency_store;
CREATE FUNCTION failures_handler(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'secret %', request USING ERRCODE = request ->> 'state';
END
$$;
SELECT outcome, count(*) FROM generate_series(1, 3) n,
	idem_call('failures_handler(jsonb)', 'called-' || n, jsonb_build_object('state', CASE n WHEN 3 THEN '23514' ELSE 'SH001' END), 'failures') GROUP BY 1;
-- what an application stores is "other", unless it is a SQLSTATE; SQL NULL, JSON null, an array and a number have no members
BEGIN;
SELECT count(*) FROM unnest(ARRAY['{"reason": "secret"}', '{"reason": ["attempts lost"]}', '{"sqlstate": "23514 "}', '{"sqlstate": "secre"}', '{"sqlstate": 23514.5}', 'null', '["sqlstate"]', '5', NULL]::jsonb[])
	WITH ORDINALITY o (error, n), idem_begin('own-' || n, scope => 'failures') b, LATERAL (SELECT idem_fail(b, error, 402)) f;
SELECT outcome FROM idem_begin('state', scope => 'failures');
SELECT FROM idem_fail('state', '{"sqlstate": "P0001", "secret": 1}', 'failures', retryable => true, retry_after => '1 hour');
SELECT outcome FROM idem_begin('done', scope => 'failures');
SELECT FROM idem_complete('done', '{"sqlstate": "22000"}', 'failures');
COMMIT;
-- the extension's own end, and a record that has expired
SELECT outcome FROM idem_begin('exhausted', scope => 'failures-2', lease => '1 hour');
SELECT FROM let_lease_run_out('exhausted');
SELECT outcome, response_payload FROM idem_begin('exhausted', scope => 'failures-2', max_attempts => 1);
BEGIN;
SELECT outcome FROM idem_begin('expired', scope => 'failures-2');
SELECT FROM idem_fail('expired', scope => 'failures-2');
SELECT outcome FROM idem_begin('running', scope => 'failures-2', lease => '1 hour');
COMMIT;
SELECT FROM let_expire('expired');
SELECT scope, cause, response_code, retryable, operations, first_failed_at <= last_failed_at AND last_failed_at <= clock_timestamp()
FROM idempotency_failures ORDER BY scope, cause COLLATE "C";
SELECT first_failed_at = (SELECT min(updated_at) FROM idempotency_store WHERE idempotency_key LIKE 'own-%'),
	last_failed_at = (SELECT max(updated_at) FROM idempotency_store WHERE idempotency_key LIKE 'own-%')
FROM idempotency_failures WHERE cause = 'other';
SELECT count(*) FROM idempotency_failures f WHERE f::text ~ 'secre|called|own-';

-- A reader of figures sees scopes and numbers. What an operation of a claimed scope has
-- stored is for the members of its role.
CREATE ROLE regress_idem_owner_of_failures;
CREATE ROLE regress_idem_monitor IN ROLE pg_monitor;
SELECT FROM idem_claim_scope('failures', 'regress_idem_owner_of_failures');
CREATE FUNCTION pg_temp.leak(anything anyelement) RETURNS bool LANGUAGE plpgsql IMMUTABLE COST 0.0001 AS $$
BEGIN
	IF anything IS NOT NULL THEN
		RAISE NOTICE 'saw %', anything;
	END IF;
	RETURN true;
END
$$;
GRANT EXECUTE ON FUNCTION pg_temp.leak TO PUBLIC;
SET ROLE regress_idem_monitor;
SELECT scope, cause, response_code, retryable, operations FROM idempotency_failures ORDER BY scope, retryable, cause COLLATE "C";
SELECT count(*) FROM idempotency_failures WHERE scope = 'failures' AND pg_temp.leak(cause) AND pg_temp.leak(response_code);
-- and a cheap condition is no way to the scopes of records that the view does not show
SELECT count(*) FROM idempotency_failures WHERE pg_temp.leak(nullif(scope, 'failures'));
RESET ROLE;
GRANT regress_idem_owner_of_failures TO regress_idem_monitor;
SET ROLE regress_idem_monitor;
SELECT count(DISTINCT cause) FROM idempotency_failures WHERE scope = 'failures';
RESET ROLE;
SELECT idem_unclaim_scope('failures');
DROP ROLE regress_idem_monitor, regress_idem_owner_of_failures;
DROP FUNCTION failures_handler;
DELETE FROM idempotency_store;
