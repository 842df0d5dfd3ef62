-- The same key means the same request: ID422 before anything else.

BEGIN;
SELECT answer(idem_begin('request-1', request => '{"amount": 1, "to": "a"}'));
-- refused while this transaction holds the operation, as IN_PROGRESS would be
SELECT raises($$SELECT idem_begin('request-1', request => '{"amount": 2}')$$);
SELECT answer(idem_begin('request-1', request => '{"to": "a", "amount": 1.0}'));
SELECT FROM idem_complete('request-1', '"paid"');
SELECT raises($$SELECT idem_begin('request-1', request => '{"amount": 2}')$$);
COMMIT;

-- Equal jsonb values are the same request.
SELECT answer(idem_begin('request-1', request => ' {"to":"\u0061",  "amount": 1.00, "to":"a"}'));
SELECT raises($$SELECT idem_begin('request-1', request => '{"amount": "1", "to": "a"}')$$);
-- the hash may be given in its place, and is stored
SELECT answer(idem_begin('request-1', request_hash => idem_fingerprint('{"amount": 1, "to": "a"}')));
SELECT raises($$SELECT idem_begin('request-1', request_hash => sha256('other'))$$);
SELECT request_hash = idem_fingerprint('{"amount": 1, "to": "a"}') FROM idempotency_store WHERE idempotency_key = 'request-1';
-- JSON null is a request, SQL NULL is none: no check if a side has none
SELECT raises($$SELECT idem_begin('request-1', request => 'null')$$);
SELECT answer(idem_begin('request-1')), answer(idem_begin('request-1', request => NULL, request_hash => NULL));
SELECT answer(idem_begin('request-2')), answer(idem_begin('request-2', request => '2')), idem_complete('request-2');
SELECT answer(idem_begin('request-2', request => '2')), answer(idem_begin('request-2', request => '3'));
SELECT answer(idem_begin('request-3', request => 'null')), idem_complete('request-3');
SELECT answer(idem_begin('request-3', request => 'null'));
SELECT raises($$SELECT idem_begin('request-3', request => '0')$$);

-- Both at once, even when they agree, and hashes of another length: ID400.
SELECT raises($$SELECT idem_begin('request-4', request => '1', request_hash => idem_fingerprint('1'))$$);
SELECT raises(format('SELECT idem_begin(''request-4'', request_hash => %L)', decode(repeat('ab', n), 'hex')))
FROM unnest(ARRAY[0, 31, 33]) n;
SELECT idem_lookup('request-4') IS NULL;

-- Leased: before IN_PROGRESS, before a takeover, with and without a lease of the new begin.
SELECT answer(idem_begin('request-5', request => '5', lease => '1 hour'));
SELECT raises($$SELECT idem_begin('request-5', request => '6')$$);
SELECT raises($$SELECT idem_begin('request-5', request => '6', lease => '1 hour', wait => '1 s')$$);
SELECT answer(idem_begin('request-5', request => '5.0'));
SELECT FROM let_lease_run_out('request-5');
SELECT raises($$SELECT idem_begin('request-5', request => '6', lease => '1 hour')$$);
-- before the limit of attempts, too
SELECT raises($$SELECT idem_begin('request-5', request => '6', max_attempts => 1)$$);
-- an attempt without a request keeps the fingerprint of the one before
SELECT answer(idem_begin('request-5', lease => '1 hour'));
SELECT raises($$SELECT idem_begin('request-5', request => '6')$$);
-- and the first attempt with a request sets it
SELECT answer(idem_begin('request-6', lease => '1 hour'));
SELECT FROM let_lease_run_out('request-6');
SELECT answer(idem_begin('request-6', request => '6', lease => '1 hour'));
SELECT raises($$SELECT idem_begin('request-6', request => '7')$$);

-- FAILED, permanent and retryable.
BEGIN;
SELECT answer(idem_begin('request-7', request => '7')), answer(idem_begin('request-8', request => '8')),
	answer(idem_begin('request-9', request => '9'));
SELECT idem_fail('request-7'), idem_fail('request-8', retryable => true),
	idem_fail('request-9', retryable => true, retry_after => '1 hour');
COMMIT;
SELECT raises(format('SELECT idem_begin(%L, request => ''0'')', key))
FROM unnest(ARRAY['request-7', 'request-8', 'request-9']) key;
BEGIN;
SELECT answer(idem_begin('request-8'));
SELECT raises($$SELECT idem_begin('request-8', request => '0')$$);
SELECT FROM idem_complete('request-8');
COMMIT;
SELECT raises($$SELECT idem_begin('request-8', request => '0')$$);

-- A mismatch changes nothing and keeps no lock.
BEGIN;
SELECT raises($$SELECT idem_begin('request-1', request => '0')$$);
SELECT locks_held();
COMMIT;
SELECT answer(idem_begin('request-1', request => '{"amount": 1, "to": "a"}'));

-- An expired record counts as absent, whatever its request was.
SELECT FROM let_expire('request-1');
SELECT answer(idem_begin('request-1', request => '{"amount": 2}')), idem_complete('request-1');
SELECT raises($$SELECT idem_begin('request-1', request => '{"amount": 1, "to": "a"}')$$);
-- released: likewise
BEGIN;
SELECT answer(idem_begin('request-10', request => '1'));
SELECT idem_release('request-10');
SELECT answer(idem_begin('request-10', request => '2'));
SELECT raises($$SELECT idem_begin('request-10', request => '1')$$);
SELECT idem_release('request-10');
COMMIT;

-- idem_call compares the same fingerprint.
CREATE FUNCTION pg_temp.echo(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SELECT answer(idem_call('pg_temp.echo(jsonb)', 'request-11', '{"n": 1}'));
SELECT answer(idem_call('pg_temp.echo(jsonb)', 'request-11', '{"n": 1.0}')), answer(idem_begin('request-11', request => '{"n": 1}'));
SELECT raises($$SELECT idem_call('pg_temp.echo(jsonb)', 'request-11', '{"n": 2}')$$);
SELECT answer(idem_call('pg_temp.echo(jsonb)', 'request-11'));
