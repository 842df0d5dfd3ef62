-- COMMIT is refused while an operation is
-- unfinished, whatever the way in which the transaction ends.
CREATE TEMP TABLE effect (n int);

-- Autocommit without a lease. The message begins with the missing command.
SELECT idem_begin('commit-1', scope => 'some scope');
\echo :SQLSTATE
SELECT outcome FROM idem_begin('commit-1', scope => 'some scope', lease => '1 hour');

-- The refused transaction has no effect, and the key is free.
BEGIN;
INSERT INTO effect VALUES (1);
SELECT answer(idem_begin('commit-2')), answer(idem_begin('commit-3'));
SELECT FROM idem_complete('commit-2');
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM effect;
SELECT idem_lookup('commit-2') IS NULL, idem_lookup('commit-3') IS NULL;
BEGIN;
SELECT answer(idem_begin('commit-3'));
SELECT FROM idem_complete('commit-3');
COMMIT;
\echo :SQLSTATE
-- A retry of a failed operation is unfinished, too; a leased one is not.
BEGIN;
SELECT answer(idem_begin('commit-4'));
SELECT FROM idem_fail('commit-4', retryable => true);
SELECT answer(idem_begin('commit-4')), answer(idem_begin('commit-5', lease => '1 hour'));
COMMIT;
\echo :SQLSTATE

-- COMMIT AND CHAIN: the next transaction has begun no operation.
BEGIN;
SELECT answer(idem_begin('commit-6'));
COMMIT AND CHAIN;
\echo :SQLSTATE
BEGIN;
SELECT answer(idem_begin('commit-6'));
SELECT FROM idem_complete('commit-6');
COMMIT AND CHAIN;
SELECT raises($$SELECT idem_complete('commit-6')$$);
SELECT answer(idem_begin('commit-6')), answer(idem_begin('commit-7'));
ROLLBACK AND CHAIN;
SELECT raises($$SELECT idem_complete('commit-7')$$);
COMMIT;
\echo :SQLSTATE

-- Nor may it be prepared for two-phase commit.
BEGIN;
SELECT answer(idem_begin('commit-8'));
PREPARE TRANSACTION 'idempotency commit-8';
\echo :SQLSTATE
-- (if it were prepared, it would block all later tests)
SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE gid = 'idempotency commit-8' \gexec
SELECT idem_lookup('commit-8') IS NULL;

-- Several statements in one string, one transaction.
SELECT answer(idem_begin('commit-9'))\; SELECT idem_complete('commit-9', '9');
SELECT answer(idem_begin('commit-10'))\; SELECT 10;
\echo :SQLSTATE
BEGIN\; SELECT answer(idem_begin('commit-10'))\; COMMIT;
\echo :SQLSTATE
SELECT answer(idem_lookup('commit-9')), idem_lookup('commit-10') IS NULL;
-- COPY
COPY (SELECT outcome FROM idem_begin('commit-11')) TO STDOUT;
-- DO, with and without transactions of its own
DO $$ BEGIN PERFORM idem_begin('commit-12'); END $$;
\echo :SQLSTATE
DO $$ BEGIN PERFORM idem_begin('commit-12'); COMMIT; END $$;
\echo :SQLSTATE
DO $$ BEGIN PERFORM idem_begin('commit-12'); ROLLBACK; PERFORM idem_begin('commit-12'); PERFORM idem_complete('commit-12'); END $$;
\echo :SQLSTATE
-- a procedure: its committed operations stay, the unfinished one is rolled back
CREATE PROCEDURE commit_procedure(INOUT seen text DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin('commit-13');
	PERFORM idem_complete('commit-13', '13');
	COMMIT;
	seen := answer(idem_begin('commit-13'));
	RAISE NOTICE '%', seen;
	PERFORM idem_begin('commit-14');
END
$$;
CALL commit_procedure();
\echo :SQLSTATE
DROP PROCEDURE commit_procedure;
SELECT answer(idem_lookup('commit-13')), idem_lookup('commit-14') IS NULL;

-- Begun during COMMIT, by a deferred trigger or by a cursor.
CREATE FUNCTION pg_temp.begin_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(tg_argv[0]);
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.begin_late('commit-15');
INSERT INTO effect VALUES (15);
\echo :SQLSTATE
BEGIN;
DECLARE late CURSOR WITH HOLD FOR SELECT idem_begin('commit-16');
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM effect WHERE n = 15;

-- Read-only from after the begin on; the end is then refused.
BEGIN;
SELECT answer(idem_begin('commit-17'));
SET TRANSACTION READ ONLY;
SELECT raises(s) FROM (VALUES ($$SELECT idem_complete('commit-17')$$), ($$SELECT idem_fail('commit-17')$$),
	($$SELECT idem_release('commit-17')$$)) v(s);
COMMIT;
\echo :SQLSTATE
BEGIN;
SELECT answer(idem_begin('commit-17'));
SELECT FROM idem_complete('commit-17');
SET TRANSACTION READ ONLY;
COMMIT;
\echo :SQLSTATE

-- COMMIT of a failed transaction is a ROLLBACK, and no error.
BEGIN;
SELECT answer(idem_begin('commit-18'));
SELECT FROM idem_complete('commit-18');
SELECT 1 / 0;
\set QUIET off
COMMIT;
\set QUIET on
\echo :SQLSTATE
SELECT idem_lookup('commit-18') IS NULL;
