-- Transaction-bound operations: begin, complete, replay.

-- Key, effect and response commit together. The replay is the stored answer,
-- in the transaction that ended it and in every later one.
CREATE TEMP TABLE effect (n int);
BEGIN;
SELECT answer(idem_begin('replay-1'));
INSERT INTO effect VALUES (1);
SELECT idem_complete('replay-1', '{"b": 2, "a": 1}', code => 201,
	headers => '{"etag": "x"}', body => '\x00ff0a5c27');
SELECT answer(idem_begin('replay-1'));
COMMIT;
SELECT answer(idem_begin('replay-1'));
SELECT answer(idem_begin('replay-1', request => '1', lease => '1 hour', wait => '1 s', max_attempts => 1));
SELECT answer(idem_lookup('replay-1'));
SELECT status, attempt, fence, lease_expires_at, request_hash FROM idempotency_store
WHERE idempotency_key = 'replay-1';

-- The columns that answer() leaves out.
SELECT scope, idempotency_key, fence, lease_expires_at, retry_after,
	created_at <= updated_at, updated_at <= clock_timestamp(), updated_at < expires_at
FROM idem_begin('replay-1');
BEGIN;
SELECT scope, idempotency_key, fence, lease_expires_at, retry_after, response_code,
	created_at <= clock_timestamp(), expires_at
FROM idem_begin('replay-new', scope => 'some scope');
SELECT idem_release('replay-new', 'some scope');
COMMIT;

-- After a rollback there is neither the effect nor the key.
BEGIN;
SELECT answer(idem_begin('replay-2'));
INSERT INTO effect VALUES (2);
SELECT FROM idem_complete('replay-2', '"lost"');
ROLLBACK;
SELECT n FROM effect;
SELECT idem_lookup('replay-2') IS NULL;
SELECT answer(idem_begin('replay-2')), idem_complete('replay-2', '"kept"');
SELECT answer(idem_begin('replay-2'));

-- SQL NULL and JSON null stay distinct, and so do no bytes and an empty string.
BEGIN;
SELECT answer(idem_begin('replay-nothing')), answer(idem_begin('replay-null'));
SELECT FROM idem_complete('replay-nothing');
SELECT FROM idem_complete('replay-null', 'null', code => 0, headers => 'null', body => '');
COMMIT;
SELECT answer(idem_begin('replay-nothing'));
SELECT answer(idem_begin('replay-null'));

-- Every byte comes back as it was, short or toasted.
CREATE TEMP TABLE bytes AS
SELECT decode(string_agg(lpad(to_hex(n), 2, '0'), '' ORDER BY n), 'hex') AS each,
	(SELECT string_agg(sha256(n::text::bytea), '' ORDER BY n) FROM generate_series(1, 5000) n) AS many
FROM generate_series(0, 255) n;
BEGIN;
SELECT answer(idem_begin('replay-each')), answer(idem_begin('replay-many'));
SELECT idem_complete('replay-each', body => each),
	idem_complete('replay-many', to_jsonb(encode(many, 'base64')), headers => to_jsonb(repeat('h', 9999)), body => many)
FROM bytes;
SELECT response_body = many FROM bytes, idem_begin('replay-many');
COMMIT;
SELECT response_body = each, length(response_body) FROM bytes, idem_begin('replay-each');
SELECT response_body = many, length(response_body), response_payload = to_jsonb(encode(many, 'base64')),
	response_headers = to_jsonb(repeat('h', 9999))
FROM bytes, idem_begin('replay-many');

-- The scope is part of the name; scope and key are not just concatenated.
SELECT answer(idem_begin('replay-1', scope => 'replay')), answer(idem_begin('1', scope => 'replay-')), answer(idem_begin('-1', scope => 'replay')),
	idem_complete('replay-1', '1', 'replay'), idem_complete('1', '2', 'replay-'), idem_complete('-1', '3', 'replay');
SELECT answer(idem_begin('1', scope => 'replay-')), answer(idem_begin('-1', scope => 'replay')), answer(idem_begin('replay-1', scope => 'replay'));
SELECT idem_lookup('-1') IS NULL, idem_lookup('-1', 'REPLAY') IS NULL;

-- The second begin in the transaction that holds the key: IN_PROGRESS, whatever
-- its wait. idem_lookup answers the same.
BEGIN;
SELECT answer(idem_begin('replay-3'));
SELECT answer(idem_begin('replay-3')), answer(idem_begin('replay-3', wait => '1 s'));
SELECT answer(idem_begin('replay-3', lease => '1 hour')), answer(idem_lookup('replay-3'));
SELECT FROM idem_complete('replay-3');
-- an operation that has ended has no owner any more
SELECT raises(s) FROM (VALUES
	($$SELECT idem_complete('replay-3')$$), ($$SELECT idem_fail('replay-3')$$),
	($$SELECT idem_release('replay-3')$$), ($$SELECT idem_extend('replay-3', '1 hour')$$)) v(s);
SELECT answer(idem_lookup('replay-3'));
COMMIT;

-- Released: as if never begun.
BEGIN;
SELECT answer(idem_begin('replay-4'));
SELECT idem_release('replay-4');
SELECT answer(idem_begin('replay-4'));
SELECT idem_release('replay-4');
SELECT raises($$SELECT idem_complete('replay-4')$$);
COMMIT;
SELECT idem_lookup('replay-4') IS NULL;

-- Nothing was begun here: ID404.
SELECT raises(s) FROM (VALUES
	($$SELECT idem_complete('replay-5', scope => 'sc')$$), ($$SELECT idem_fail('replay-5')$$),
	($$SELECT idem_release('replay-5')$$), ($$SELECT idem_extend('replay-5', '1 hour')$$)) v(s);
-- the begin of an earlier transaction does not count either
BEGIN;
SELECT answer(idem_begin('replay-5'));
ROLLBACK;
SELECT raises($$SELECT idem_complete('replay-5')$$);
