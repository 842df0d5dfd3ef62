-- Key, payload, scope: the order of arguments in every function.
\pset format unaligned
\pset tuples_only on

SELECT p.proname, string_agg(a.name, ', ' ORDER BY a.n)
FROM pg_proc p, unnest(p.proargnames) WITH ORDINALITY a(name, n)
WHERE p.oid IN (SELECT d.objid FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND d.deptype = 'e' WHERE e.extname = 'idempotency')
AND a.name IN ('key', 'keys', 'request', 'requests', 'response', 'responses', 'error', 'scope')
GROUP BY p.oid, p.proname HAVING count(*) > 2 ORDER BY 1, 2;

-- A payload by position is the request: it is compared.
BEGIN;
SELECT answer(idem_begin('positions-1', '{"amount": 30, "to": "bob"}'));
SELECT idem_complete('positions-1', '"paid"');
COMMIT;
SELECT answer(idem_begin('positions-1', '{"to": "bob", "amount": 30.0}'));
SELECT raises($$SELECT idem_begin('positions-1', '{"amount": 31, "to": "bob"}')$$);
PREPARE begin_by_position AS SELECT answer(idem_begin($1, $2));
EXECUTE begin_by_position('positions-1', '{"to": "bob", "amount": 30}');
EXECUTE begin_by_position('positions-1', '{"to": "bob", "amount": 31}');
\echo :SQLSTATE
-- with a scope behind it
BEGIN;
SELECT answer(idem_begin('positions-1', '1', 'positions')), answer(idem_begin('positions-1', '1.0', 'positions'));
SELECT idem_complete('positions-1', '"there"', 'positions');
COMMIT;
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
