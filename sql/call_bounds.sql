-- A stored error is cut to the size limit of responses, and never fails because of it.
CREATE FUNCTION bounds_raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION USING MESSAGE = repeat('m', (request ->> 0)::int), DETAIL = repeat('d', (request ->> 1)::int), HINT = repeat('h', (request ->> 2)::int);
END
$$;
CREATE FUNCTION bounds_answers(key text, request text, scope text, most int) RETURNS text LANGUAGE sql AS $$
	SELECT format('%s %s: %s %s %s, %s', outcome, p ->> 'sqlstate', length(p ->> 'message'), length(p ->> 'detail'), length(p ->> 'hint'),
		CASE WHEN pg_column_size(p || '{}') - 4 = most THEN 'all of it' WHEN pg_column_size(p || '{}') - 4 < most THEN 'less' ELSE 'MORE' END)
	FROM (SELECT outcome, response_payload FROM idem_call('bounds_raise(jsonb)', key, request::jsonb, scope)) o(outcome, p)
$$;

-- Each text has 8192 bytes at most.
SET idempotency.max_response_size = 1000000;
SELECT bounds_answers('bounds-1', '[10, 20, 30]', '', 1000000), bounds_answers('bounds-2', '[9000, 10000, 8192]', '', 1000000);
-- The bound of the policy: the hint is cut first, then the detail, then the message.
SELECT count(idem_set_policy(n::text, max_response_size => n)::text) FROM unnest(ARRAY[10000, 200, 100, 67, 66, 65, 25, 24, 3, 0]) n;
SELECT bounds_answers('bounds-3', '[8000, 1000, 900]', '10000', 10000), bounds_answers('bounds-4', '[8000, 1000, 1000]', '10000', 10000), bounds_answers('bounds-5', '[8192, 8192, 8192]', '10000', 10000);
SELECT bounds_answers('bounds-6', request, '200', 200) FROM unnest(ARRAY['[50, 50, 50]']) request;
SELECT bounds_answers('bounds-' || n, '[50, 50, 50]', n::text, n) FROM unnest(ARRAY[100, 67, 66]) n;
-- if not even the names fit, the SQLSTATE is stored, or nothing
SELECT n, answer(idem_call('bounds_raise(jsonb)', 'bounds-7', '[5, 5, 5]', n::text)) FROM unnest(ARRAY[100, 67, 66, 65, 25, 24, 3, 0]) n;
-- and the bound of the setting, without a policy
SET idempotency.max_response_size = 90;
SELECT answer(idem_call('bounds_raise(jsonb)', 'bounds-8', '[9, 9, 9]'));
SELECT answer(idem_call('bounds_raise(jsonb)', 'bounds-8', '[9, 9, 9]'));
SET idempotency.max_response_size = 0;
SELECT answer(idem_call('bounds_raise(jsonb)', 'bounds-9', '[9, 9, 9]')), answer(idem_lookup('bounds-9'));
RESET idempotency.max_response_size;
DELETE FROM idempotency_scope;
