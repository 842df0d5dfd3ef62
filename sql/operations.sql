-- idem_complete, idem_fail, idem_release and idem_extend take the result of idem_begin: its name and its fence.

-- In PL/pgSQL, bound to the transaction.
CREATE FUNCTION pg_temp.run(key text, scope text, what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	op idem_operation;
	answer text;
BEGIN
	op := idem_begin(key, '{"n": 1}', scope);
	IF op.outcome <> 'ACQUIRED' THEN
		RETURN answer(op);
	END IF;
	CASE what
		WHEN 'complete' THEN PERFORM idem_complete(op, '"done"', code => 201);
		WHEN 'fail' THEN PERFORM idem_fail(op, '"declined"', code => 402);
		WHEN 'release' THEN answer := idem_release(op);
		WHEN 'extend' THEN PERFORM idem_extend(op, '1 hour');
	END CASE;
	RETURN concat_ws(' ', what, answer);
END
$$;
SELECT pg_temp.run('operations-1', 'o', what) FROM unnest(ARRAY['release', 'fail', 'complete']) what;
SELECT pg_temp.run('operations-2', 'o', what) FROM unnest(ARRAY['release', 'complete', 'complete']) what;
SELECT answer(idem_lookup('operations-1', 'o')), answer(idem_lookup('operations-2', 'o')), idem_lookup('operations-1') IS NULL;
-- it has no lease to extend
SELECT raises($$SELECT pg_temp.run('operations-3', 'o', 'extend')$$);
SELECT idem_lookup('operations-3', 'o') IS NULL, locks_held();

-- Leased: the fence is the operation's.
SELECT idem_begin('operations-4', NULL, 'o', lease => '1 hour') AS operation \gset
SELECT idem_extend(:'operation'::idem_operation, '3 hours') - clock_timestamp() > interval '2 hours';
SELECT idem_extend(operation => :'operation'::idem_operation, lease => '1 minute') - clock_timestamp() < interval '1 hour';
SELECT lease_expires_at - updated_at FROM idempotency_store WHERE idempotency_key = 'operations-4';
SELECT idem_release(operation => :'operation'::idem_operation);
-- the attempt is over: false and ID409, and nothing is written
SELECT idem_release(:'operation'::idem_operation);
SELECT left(raises(format('SELECT %s(%L::idem_operation%s)', f, :'operation', more)), 5)
FROM (VALUES ('idem_extend', ', ''1 hour'''), ('idem_complete', ''), ('idem_fail', '')) v(f, more);
BEGIN;
SELECT idem_begin('operations-6', scope => 'o') AS operation \gset
SELECT FROM idem_complete(:'operation'::idem_operation, '6');
COMMIT;
SELECT answer(idem_lookup('operations-6', 'o'));

-- Only an operation that was ACQUIRED, and without a fence only by this transaction.
SELECT idem_begin('operations-6', scope => 'o') AS operation \gset
SELECT raises(format('SELECT %s(%L::idem_operation%s)', f, :'operation', more))
FROM (VALUES ('idem_release', ''), ('idem_extend', ', ''1 hour'''), ('idem_complete', ''), ('idem_fail', '')) v(f, more);
BEGIN;
SELECT idem_begin('operations-7') AS operation \gset
ROLLBACK;
SELECT left(raises(format('SELECT %s(%L::idem_operation%s)', f, :'operation', more)), 5)
FROM (VALUES ('idem_release', ''), ('idem_extend', ', ''1 hour'''), ('idem_complete', ''), ('idem_fail', '')) v(f, more);
SELECT raises(s) FROM (VALUES ('SELECT idem_release(NULL::idem_operation)'), ('SELECT idem_extend(NULL::idem_operation, ''1 s'')'),
	('SELECT idem_release(idem_lookup(''operations-none''))'), ('SELECT idem_extend(idem_lookup(''operations-none''), ''1 s'')'),
	('SELECT idem_release(''(ACQUIRED,"",k,1,f,f,-5,,,,,,,,,)''::idem_operation)'),
	('SELECT idem_extend(''(ACQUIRED,"",k,1,f,f,5,,,,,,,,,)''::idem_operation, NULL)'),
	('SELECT idem_extend(''(ACQUIRED,"",k,1,f,f,5,,,,,,,,,)''::idem_operation, ''-1 s'')'),
	('SELECT idem_complete(NULL::idem_operation)'), ('SELECT idem_fail(NULL::idem_operation)'),
	('SELECT idem_complete(''(,,,,,,,,,,,,,,,)''::idem_operation)'),
	('SELECT idem_complete(''(ACQUIRED,"","",,,,,,,,,,,,,)''::idem_operation)')) v(s);

-- Literals of unknown type still mean the form with a key.
SELECT raises('SELECT idem_release(''operations-8'')'), raises('SELECT idem_extend(''operations-8'', ''1 s'')'), raises('SELECT idem_release(NULL)');
