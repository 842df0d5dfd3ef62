-- If an administrator has changed objects of the extension, there is an error that
-- names them, and no operation is acquired.
\pset format unaligned
\pset tuples_only on

BEGIN;
SELECT answer(idem_begin('changed')), idem_complete('changed', '1');
COMMIT;

CREATE PROCEDURE changed(change text) LANGUAGE plpgsql AS $$
BEGIN
	-- what was known before the change is noticed to be none any more
	PERFORM idem_lookup('changed');
	EXECUTE change;
	RAISE NOTICE '%', change;
	RAISE NOTICE '  begin: %', raises('SELECT idem_begin(''changed-new'')');
	RAISE NOTICE '  replay: %', raises('SELECT idem_begin(''changed'')');
	ROLLBACK;
END
$$;

CALL changed('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey');
CALL changed('ALTER TABLE idempotency_store RENAME TO changed_store; CREATE VIEW idempotency_store AS TABLE changed_store');
CALL changed('ALTER SEQUENCE idempotency_fence RENAME TO changed_fence');
CALL changed('ALTER TYPE idem_operation RENAME TO changed_operation');
CALL changed('ALTER TYPE idempotency_status RENAME VALUE ''COMPLETED'' TO ''DONE''');

-- If claims cannot be read, no scope is open.
SELECT idem_claim_scope('changed scope', CURRENT_ROLE::regrole);
CALL changed('ALTER TABLE idempotency_scope ADD COLUMN more int');
CALL changed('ALTER TABLE idempotency_scope RENAME TO changed_scope');
SELECT idem_unclaim_scope('changed scope');

-- The number of attempts stays at its maximum.
BEGIN;
UPDATE idempotency_store SET attempt = 2147483647, status = 'FAILED', retry_at = now() WHERE idempotency_key = 'changed';
SELECT answer(idem_begin('changed'));
SELECT idem_complete('changed', '2');
SELECT answer(idem_lookup('changed'));
ROLLBACK;

-- With the old objects, calls go on as before.
SELECT answer(idem_begin('changed'));
DROP PROCEDURE changed(text);
