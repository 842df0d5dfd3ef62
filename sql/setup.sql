-- Creates the extension, and the helpers that the other files share.
CREATE EXTENSION idempotency;

-- The error of a statement: SQLSTATE and message; in full: detail and hint, too.
CREATE FUNCTION raises_in_full(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS OR query_canceled THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', state || ': ' || message, '  DETAIL ' || nullif(detail, ''),
		'  HINT ' || nullif(hint, ''));
END
$$;
CREATE FUNCTION raises(statement text) RETURNS text LANGUAGE sql AS $$
	SELECT split_part(raises_in_full(statement), E'\n', 1)
$$;
-- SQLSTATE and detail, with times replaced by dots.
CREATE FUNCTION raises_why(statement text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(left(r, 5) || ': ' || substring(r FROM '\n  DETAIL ([^\n]*)'), ' at \d.*', ' at ...')
	FROM raises_in_full(statement) r
$$;

-- An idem_operation without the values that differ from run to run. It takes any record,
-- so that it does not depend on the extension.
CREATE FUNCTION answer(operation record) RETURNS text LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN concat_ws(' ', operation.outcome,
		'attempt ' || operation.attempt,
		CASE WHEN operation.taken_over THEN 'taken-over' END,
		CASE WHEN operation.replayed THEN 'replayed' END,
		CASE WHEN operation.fence IS NOT NULL THEN 'fence' END,
		CASE WHEN operation.lease_expires_at > clock_timestamp() THEN 'lease'
			WHEN operation.lease_expires_at IS NOT NULL THEN 'lease-over' END,
		CASE WHEN operation.retry_after > '0' THEN 'retry-later'
			WHEN operation.retry_after IS NOT NULL THEN 'retry-now' END,
		'code ' || operation.response_code,
		'headers ' || operation.response_headers::text,
		'payload ' || operation.response_payload::text,
		'body ' || encode(operation.response_body, 'hex'));
END
$$;

-- Lets time pass: for a lease, for the pause before a retry, for the retention.
CREATE FUNCTION let_lease_run_out(name text) RETURNS void LANGUAGE sql AS $$
	UPDATE idempotency_store SET lease_expires_at = clock_timestamp() - interval '1 second'
	WHERE idempotency_key = name AND lease_expires_at IS NOT NULL
$$;
CREATE FUNCTION let_retry(name text) RETURNS void LANGUAGE sql AS $$
	UPDATE idempotency_store SET retry_at = clock_timestamp() - interval '1 second'
	WHERE idempotency_key = name AND retry_at IS NOT NULL
$$;
CREATE FUNCTION let_expire(name text) RETURNS void LANGUAGE sql AS $$
	UPDATE idempotency_store SET expires_at = clock_timestamp() - interval '1 second'
	WHERE idempotency_key = name
$$;

-- How many locks of the kind that operations take this session holds.
CREATE FUNCTION locks_held() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
$$;
