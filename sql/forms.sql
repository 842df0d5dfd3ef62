-- Every way to call the functions: positions, names, unknown literals, and
-- an idem_operation in place of key, scope and fence.

-- Literals of unknown type mean the form with a key.
BEGIN;
SELECT answer(idem_begin('forms-1')), answer(idem_begin('forms-2')), answer(idem_begin('forms-3', scope => 'forms'));
SELECT FROM idem_complete('forms-1');
SELECT FROM idem_complete('forms-2', '{"a":1}');
SELECT FROM idem_fail('forms-3', '{"a":1}', 'forms');
COMMIT;
SELECT answer(idem_lookup('forms-1')), answer(idem_lookup('forms-2')), answer(idem_lookup('forms-3', 'forms'));

-- Every argument by position, with and without a fence.
BEGIN;
SELECT fence FROM idem_begin('forms-4', NULL, 'forms', sha256('r'), '1 hour', '0', 3) \gset
SELECT FROM idem_complete('forms-4', '{"p": 4}', 'forms', 204, '{"h": 4}', '\x04', :fence, '4 hours');
SELECT fence FROM idem_begin('forms-5', '{"r": 5}', 'forms', NULL, '1 hour', '0', 3) \gset
SELECT FROM idem_fail('forms-5', '{"p": 5}', 'forms', 505, '{"h": 5}', '\x05', :fence, true, '1 hour', '4 hours');
SELECT fence FROM idem_begin('forms-6', NULL, 'forms', NULL, '1 hour') \gset
SELECT idem_extend('forms-6', '2 hours', 'forms', :fence) > clock_timestamp() + interval '1 hour';
SELECT idem_release('forms-6', 'forms', :fence);
COMMIT;
SELECT idempotency_key, answer(idem_lookup(idempotency_key, scope)), request_hash = sha256('r'),
	request_hash = idem_fingerprint('{"r": 5}'), expires_at - coalesce(retry_at, updated_at),
	retry_at - updated_at
FROM idempotency_store WHERE scope = 'forms' ORDER BY 1;

-- By name, in any order.
BEGIN;
SELECT answer(idem_begin(lease => NULL, request => '7', scope => 'forms', key => 'forms-7'));
SELECT idem_complete(retention => '1 hour', body => '\x07', headers => '7', code => 7,
	scope => 'forms', response => '{"p": 7}', key => 'forms-7');
SELECT answer(idem_begin(key => 'forms-8')), answer(idem_lookup(scope => '', key => 'forms-8'));
SELECT FROM idem_fail(key => 'forms-8', error => '{"p": 8}', retryable => true, retry_after => '1 hour');
COMMIT;
SELECT answer(idem_lookup('forms-7', 'forms')), answer(idem_lookup('forms-8'));

-- The operation that idem_begin returned names itself, with its fence.
DO $$
DECLARE
	operation idem_operation;
BEGIN
	operation := idem_begin('forms-op', scope => 'o1');
	PERFORM idem_complete(operation, '{"p": 1}', 201, '{"h": 1}', '\x01', '1 hour');
	operation := idem_begin('forms-op', scope => 'o2', lease => '1 hour');
	PERFORM idem_complete(operation => operation, response => '{"p": 2}', code => 202);
	operation := idem_begin('forms-op', scope => 'o3');
	PERFORM idem_fail(operation, '{"p": 3}', 503, '{"h": 3}', '\x03', true, '1 hour', '3 hours');
	operation := idem_begin('forms-op', scope => 'o4', lease => '1 hour');
	PERFORM idem_fail(operation, error => '{"p": 4}');
END
$$;
SELECT scope, answer(idem_lookup(idempotency_key, scope)), expires_at - coalesce(retry_at, updated_at)
FROM idempotency_store WHERE idempotency_key = 'forms-op' ORDER BY 1;

-- A payload by position is the request: it is compared.
SELECT answer(idem_begin('positions-1', '{"amount": 30, "to": "bob"}')), idem_complete('positions-1', '"paid"');
SELECT answer(idem_begin('positions-1', '{"to": "bob", "amount": 30.0}'));
SELECT raises($$SELECT idem_begin('positions-1', '{"amount": 31, "to": "bob"}')$$);
PREPARE begin_by_position AS SELECT answer(idem_begin($1, $2));
EXECUTE begin_by_position('positions-1', '{"to": "bob", "amount": 30}');
EXECUTE begin_by_position('positions-1', '{"to": "bob", "amount": 31}');
\echo :SQLSTATE
-- with a scope behind it
SELECT answer(idem_begin('positions-1', '1', 'positions')), answer(idem_begin('positions-1', '1.0', 'positions')),
	idem_complete('positions-1', '"there"', 'positions');
SELECT answer(idem_begin('positions-1', NULL, 'positions')), answer(idem_lookup('positions-1', 'positions'));
SELECT raises($$SELECT idem_begin('positions-1', '2', 'positions')$$);
-- the same in batches, and in idem_call, whose handler gets the request
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-2', 'positions-3'], ARRAY['2', '3']::jsonb[], 'positions') b;
SELECT idem_complete_batch(ARRAY['positions-2', 'positions-3'], ARRAY['"two"', '"three"']::jsonb[], 'positions');
COMMIT;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-2', 'positions-3'], ARRAY['2.0', '3.0']::jsonb[], 'positions') b;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-2', 'positions-3'], ARRAY['3', '2']::jsonb[], 'positions') b;
CREATE FUNCTION positions_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-4', '{"a": 1, "b": 2}', 'positions'));
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-4', '{"b": 2, "a": 1}', 'positions'));
SELECT raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-4', '{"a": 1}', 'positions')$$);

-- A scope in the payload's place is no JSON: 22P02, and nothing is begun.
BEGIN;
SELECT raises($$SELECT idem_begin('positions-5', 'orders')$$), raises($$SELECT idem_begin('positions-5', '')$$),
	raises($$SELECT idem_begin_batch(ARRAY['positions-5'], 'orders')$$),
	raises($$SELECT idem_complete('positions-5', 'orders')$$), raises($$SELECT idem_fail('positions-5', 'orders')$$),
	raises($$SELECT idem_complete_batch(ARRAY['positions-5'], 'orders')$$),
	raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-5', 'orders')$$);
-- a scope of type text there matches no function
SELECT raises($$SELECT idem_begin('positions-5', 'orders'::text)$$);
SELECT raises($$SELECT idem_begin('positions-5', 'orders', '{"amount": 1}')$$);
SELECT locks_held(), idem_lookup('positions-5') IS NULL, idem_lookup('positions-5', 'orders') IS NULL;
COMMIT;

-- The hash of a request: idem_call compares it in place of the request.
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-6', '{"a": 1}', request_hash => sha256('as it was sent')));
SELECT request_hash = sha256('as it was sent') FROM idempotency_store WHERE idempotency_key = 'positions-6';
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-6', '{"a": 2}', request_hash => sha256('as it was sent')));
SELECT raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-6', '{"a": 1}')$$);
SELECT raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-6', '{"a": 1}', request_hash => sha256('another'))$$);
SELECT raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-7', '1', request_hash => '\x00')$$);
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-7', request_hash => idem_fingerprint('7')));
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-7', '7.0'));
-- in a batch, element by element, and not both of one key
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-8', 'positions-9', 'positions-10'], ARRAY['8', NULL, NULL]::jsonb[],
	request_hashes => ARRAY[NULL, idem_fingerprint('9'), NULL]) b;
SELECT idem_complete_batch(ARRAY['positions-8', 'positions-9', 'positions-10']);
COMMIT;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-8', 'positions-9', 'positions-10'], ARRAY[NULL, '9.0', '10']::jsonb[],
	request_hashes => ARRAY[idem_fingerprint('8'), NULL, NULL]) b;
SELECT raises(format('SELECT idem_begin_batch(ARRAY[''positions-11'', ''positions-12''], %s)', a)) FROM (VALUES
	('ARRAY[''1'', ''2'']::jsonb[], request_hashes => ARRAY[NULL, sha256(''2'')]'), ('request_hashes => ARRAY[sha256(''1'')]'),
	('request_hashes => ARRAY[]::bytea[]'), ('request_hashes => ARRAY[sha256(''1''), ''\x00'']'),
	('request_hashes => ARRAY[sha256(''1''), '''']'), ('max_attempts => -1')) v(a);
SELECT idem_lookup('positions-11') IS NULL;

-- Attempts: as idem_begin counts them.
BEGIN;
SELECT answer(idem_begin('positions-13')), answer(idem_begin('positions-14')), idem_fail('positions-13', retryable => true), idem_fail('positions-14', retryable => true);
COMMIT;
BEGIN;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-13'], max_attempts => 0) b;
ROLLBACK;
SELECT answer(b) FROM idem_begin_batch(ARRAY['positions-13'], max_attempts => 1) b;
SELECT raises($$SELECT idem_call('positions_echo(jsonb)', 'positions-14', max_attempts => -1)$$);
SELECT answer(idem_call('positions_echo(jsonb)', 'positions-14', max_attempts => 1));
