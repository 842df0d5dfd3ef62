-- A rollback to a savepoint undoes the begins and
-- ends after it.

-- Begun inside: forgotten and unlocked.
BEGIN;
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-1', request => '1')), locks_held();
ROLLBACK TO a;
SELECT locks_held(), idem_lookup('savepoint-1') IS NULL;
SELECT raises($$SELECT idem_complete('savepoint-1')$$);
SELECT answer(idem_begin('savepoint-1', request => '2'));
ROLLBACK TO a;
COMMIT;
-- the savepoint itself is not part of what is rolled back
BEGIN;
SELECT answer(idem_begin('savepoint-2'));
SAVEPOINT a;
ROLLBACK TO a;
SELECT answer(idem_begin('savepoint-2')), locks_held();
SELECT FROM idem_complete('savepoint-2');
COMMIT;
-- Ended inside: pending again.
BEGIN;
SELECT answer(idem_begin('savepoint-3', request => '3'));
SAVEPOINT a;
SELECT FROM idem_complete('savepoint-3', '"lost"');
ROLLBACK TO a;
SELECT answer(idem_begin('savepoint-3')), raises($$SELECT idem_begin('savepoint-3', request => '4')$$);
SELECT FROM idem_fail('savepoint-3', '"lost, too"');
ROLLBACK TO a;
SELECT idem_release('savepoint-3');
ROLLBACK TO a;
SELECT answer(idem_lookup('savepoint-3')), locks_held();
SELECT FROM idem_complete('savepoint-3', '"kept"');
COMMIT;
SELECT answer(idem_begin('savepoint-3', request => '3'));
-- pending again, it is unfinished at COMMIT
BEGIN;
SELECT answer(idem_begin('savepoint-4'));
SAVEPOINT a;
SELECT FROM idem_complete('savepoint-4');
ROLLBACK TO a;
COMMIT;
\echo :SQLSTATE
-- Begun in the parent and again in a savepoint: the parent keeps it.
BEGIN;
SELECT answer(idem_begin('savepoint-5'));
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-5'));
ROLLBACK TO a;
SELECT answer(idem_begin('savepoint-5')), locks_held();
SAVEPOINT b;
-- released and begun again inside
SELECT idem_release('savepoint-5');
SELECT answer(idem_begin('savepoint-5', request => '5'));
ROLLBACK TO b;
SELECT raises($$SELECT idem_begin('savepoint-5', request => '6')$$), locks_held();
SELECT FROM idem_complete('savepoint-5');
COMMIT;
-- A released savepoint passes its begins and ends to its parent: to end them there,
BEGIN;
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-6'));
RELEASE a;
SELECT answer(idem_begin('savepoint-6')), locks_held();
SELECT idem_release('savepoint-6'), locks_held();
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-6'));
RELEASE a;
SELECT FROM idem_complete('savepoint-6');
COMMIT;
-- to be refused there,
BEGIN;
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-7'));
RELEASE a;
COMMIT;
\echo :SQLSTATE
-- and to roll them back with it, three levels deep.
BEGIN;
SELECT answer(idem_begin('savepoint-8-1'));
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-8-2'));
SAVEPOINT b;
SELECT answer(idem_begin('savepoint-8-3'));
SELECT idem_complete('savepoint-8-1', '"in b"'), idem_complete('savepoint-8-2', '"in b"'), idem_complete('savepoint-8-3', '"in b"');
SAVEPOINT c;
SELECT answer(idem_begin('savepoint-8-4'));
RELEASE c;
RELEASE b;
SELECT locks_held();
SELECT answer(idem_begin('savepoint-8-' || n)) FROM generate_series(1, 4) n;
ROLLBACK TO a;
SELECT locks_held();
SELECT n, coalesce(answer(idem_lookup('savepoint-8-' || n)), 'nothing') FROM generate_series(1, 4) n;
SELECT FROM idem_complete('savepoint-8-1', '"outside"');
COMMIT;
-- A block that swallows an error is a savepoint.
DO $$
BEGIN
	PERFORM idem_begin('savepoint-9-1');
	BEGIN
		PERFORM idem_complete('savepoint-9-1', '"lost"');
		PERFORM idem_begin('savepoint-9-2');
		RAISE EXCEPTION 'swallowed';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE '%, %, % lock', answer(idem_begin('savepoint-9-1')), idem_lookup('savepoint-9-2') IS NULL, locks_held();
	END;
	-- its end, too, when a later statement of the block fails
	BEGIN
		PERFORM idem_complete('savepoint-9-1', '"kept"');
		PERFORM idem_complete('savepoint-9-1');
	EXCEPTION WHEN SQLSTATE 'ID404' THEN
		PERFORM idem_complete('savepoint-9-1', '"kept outside"');
	END;
END
$$;
SELECT answer(idem_begin('savepoint-9-1'));
-- A retryable failure and its next attempt, in one transaction.
BEGIN;
SELECT answer(idem_begin('savepoint-10'));
SELECT FROM idem_fail('savepoint-10', '"try 1"', retryable => true);
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-10'));
SELECT FROM idem_complete('savepoint-10', '"lost"');
ROLLBACK TO a;
SELECT answer(idem_lookup('savepoint-10'));
SELECT answer(idem_begin('savepoint-10'));
SELECT FROM idem_complete('savepoint-10', '"try 2"');
COMMIT;
SELECT answer(idem_begin('savepoint-10'));
-- Leased: the rollback undoes the record, and so it does its end and extension.
BEGIN;
SAVEPOINT a;
SELECT answer(idem_begin('savepoint-11', lease => '1 hour'));
ROLLBACK TO a;
SELECT locks_held(), answer(idem_begin('savepoint-11', lease => '1 hour'));
SAVEPOINT b;
SELECT idem_extend('savepoint-11', '3 hours') > clock_timestamp() + interval '2 hours';
SELECT FROM idem_complete('savepoint-11', '"lost"');
ROLLBACK TO b;
SELECT answer(idem_lookup('savepoint-11')), retry_after <= '1 hour' FROM idem_begin('savepoint-11');
SELECT idem_release('savepoint-11');
ROLLBACK TO b;
SELECT FROM idem_complete('savepoint-11', '"kept"');
COMMIT;
SELECT answer(idem_begin('savepoint-11'));
