-- idem_call: which errors are a failure of the operation, and which parts of them are stored.
CREATE FUNCTION errors_raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_call('errors_echo(jsonb)', 'errors-inner', request);
	RAISE EXCEPTION USING ERRCODE = request ->> 'state', MESSAGE = repeat('xy', coalesce((request ->> 'times')::int, 1));
END
$$;
CREATE FUNCTION errors_echo(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';

-- Transient errors: raised again unchanged, nothing is stored, another try may succeed.
SELECT raises($$SELECT idem_call('errors_raise(jsonb)', 'errors-1', '{"state": "40001"}')$$), idem_lookup('errors-1') IS NULL;
SELECT answer(idem_call('errors_echo(jsonb)', 'errors-1', '{"state": "done"}'));
-- Permanent: errors about the request. call_classes.sql has every class.
SELECT response_payload ->> 'sqlstate', outcome FROM idem_call('errors_raise(jsonb)', 'errors-P0001', '{"state": "P0001"}');
-- the effects of the handler are undone, also those of an idem_call of another key
SELECT idem_lookup('errors-inner') IS NULL, locks_held();

-- Errors of the server, with and without detail and hint.
CREATE TABLE errors_unique (n int PRIMARY KEY);
INSERT INTO errors_unique VALUES (1);
CREATE FUNCTION errors_unique(request jsonb) RETURNS jsonb LANGUAGE sql AS 'INSERT INTO errors_unique VALUES (1) RETURNING ''1''::jsonb';
CREATE FUNCTION errors_missing(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE undefined_function USING MESSAGE = 'function errors_no_such_function(jsonb) does not exist', DETAIL = 'Nobody made it.', HINT = 'Make it.'; END$$;
SELECT jsonb_pretty(response_payload) FROM idem_call('errors_unique(jsonb)', 'errors-2');
SELECT raises_in_full($$SELECT idem_call('errors_missing(jsonb)', 'errors-3')$$);
SELECT idem_lookup('errors-3') IS NULL;
SELECT response_payload, response_code, response_headers, response_body FROM idem_call('errors_raise(jsonb)', 'errors-4', '{"state": "P0001"}');

-- A very long message is cut between two characters, and the operation ends all the same.
SELECT outcome, length(response_payload ->> 'message') BETWEEN 1000 AND 10000, response_payload ->> 'message' ~ '^(xy)+x?$'
FROM idem_call('errors_raise(jsonb)', 'errors-5', '{"state": "P0001", "times": 5000000}');

-- A result over the limit is ID413: the effects are undone, nothing is stored.
CREATE FUNCTION errors_large(request jsonb) RETURNS jsonb LANGUAGE sql AS
'INSERT INTO errors_unique VALUES (2); SELECT to_jsonb(repeat(''x'', request::int))';
SELECT raises($$SELECT idem_call('errors_large(jsonb)', 'errors-6', '1048576')$$);
SELECT idem_lookup('errors-6') IS NULL, count(*) FROM errors_unique WHERE n = 2;
SELECT length(response_payload ->> 0) FROM idem_call('errors_large(jsonb)', 'errors-6', '1000000');

-- If a handler ends its own operation, idem_call has nothing to end: an error,
-- and no effects. If a handler begins its own operation, it gets IN_PROGRESS.
CREATE FUNCTION errors_ends(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO errors_unique VALUES (3);
	IF request = '"complete"' THEN
		PERFORM idem_complete('errors-7');
	ELSIF request = '"release"' THEN
		PERFORM idem_release('errors-7');
	ELSIF request = '"again"' THEN
		PERFORM idem_release('errors-7');
		PERFORM idem_begin('errors-7');
	END IF;
	RETURN to_jsonb(answer(idem_call('errors_ends(jsonb)', 'errors-7', request)));
END
$$;
SELECT raises(format('SELECT idem_call(''errors_ends(jsonb)'', ''errors-7'', %L, record_failure => %L)', request, recorded)),
	idem_lookup('errors-7') IS NULL, locks_held(), (SELECT count(*) FROM errors_unique WHERE n = 3)
FROM unnest(ARRAY['"complete"']) request, unnest(ARRAY[true, false]) recorded;
SELECT raises(format('SELECT idem_call(''errors_ends(jsonb)'', ''errors-7'', %L)', request))
FROM unnest(ARRAY['"again"', '"nothing"']) request;
SELECT answer(idem_lookup('errors-7'));

-- Handlers may begin, end and call other operations; an unfinished one is refused.
CREATE FUNCTION errors_nested(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(idem_step_key(request ->> 0, 'bound'));
	PERFORM idem_complete(idem_step_key(request ->> 0, 'bound'), '"b"');
	PERFORM idem_begin(idem_step_key(request ->> 0, 'leased'), lease => '1 hour');
	PERFORM idem_call('errors_echo(jsonb)', idem_step_key(request ->> 0, 'call'), request);
	PERFORM idem_call('errors_unique(jsonb)', idem_step_key(request ->> 0, 'failed'));
	IF request = '"errors-9"' THEN
		PERFORM idem_begin('errors-9:open');
	END IF;
	RETURN request;
END
$$;
SELECT answer(idem_call('errors_nested(jsonb)', 'errors-8', '"errors-8"'));
SELECT step, answer(idem_lookup(idem_step_key('errors-8', step))) FROM unnest(ARRAY['bound', 'leased', 'call']) step;
SELECT outcome, response_payload ->> 'sqlstate' FROM idem_lookup('errors-8:failed');
SELECT idem_call('errors_nested(jsonb)', 'errors-9', '"errors-9"');
\echo :SQLSTATE
SELECT idem_lookup('errors-9') IS NULL, idem_lookup('errors-9:leased') IS NULL;
