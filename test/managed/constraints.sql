-- The deferred trigger cannot be got round: a commit with an operation that has not
-- ended is refused.
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;
\set ON_ERROR_STOP off

BEGIN;
SELECT outcome FROM idem_begin('constraints-1') \gset
SET CONSTRAINTS ALL IMMEDIATE;
\set state :SQLSTATE
ROLLBACK;
SELECT pg_temp.expect(:'state' = 'ID428', 'SET CONSTRAINTS ALL IMMEDIATE refuses at once');

-- checked in a savepoint that is rolled back: checked again at COMMIT
BEGIN;
SELECT outcome FROM idem_begin('constraints-2') \gset
SAVEPOINT a;
SELECT idem_complete('constraints-2') IS NULL AS ended \gset
SET CONSTRAINTS ALL IMMEDIATE;
SELECT :'SQLSTATE' = '00000' AS passed \gset
ROLLBACK TO a;
COMMIT;
SELECT pg_temp.expect(:'passed' AND :'SQLSTATE' = 'ID428' AND idem_lookup('constraints-2') IS NULL,
	'a check that a rollback to a savepoint undoes is made again');

-- immediate from the start: a begin is refused, and nothing passes
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT outcome FROM idem_begin('constraints-3') \gset
\set state :SQLSTATE
ROLLBACK;
SELECT pg_temp.expect(:'state' = 'ID428', 'with immediate constraints there is no begin without a lease');
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT outcome AS leased FROM idem_begin('constraints-3', lease => '1 hour') \gset
COMMIT;
SELECT pg_temp.expect(:'leased' = 'ACQUIRED' AND :'SQLSTATE' = '00000', 'a lease is not concerned');

-- a lease that runs out in the transaction that began it still belongs to that transaction
BEGIN;
SELECT outcome, fence FROM idem_begin('constraints-7', lease => '1 us') \gset
SELECT outcome AS again FROM idem_begin('constraints-7', lease => '1 hour', wait => '1 hour') \gset
SELECT idem_complete('constraints-7', '"own"') IS NULL AS ended \gset
COMMIT;
SELECT pg_temp.expect(:'outcome' = 'ACQUIRED' AND :'again' = 'IN_PROGRESS' AND response_payload = '"own"',
	'a transaction does not take its own lease over') FROM idem_lookup('constraints-7');

-- a deferred trigger of the application that ends the operation comes too late, unless it
-- is made to fire before
CREATE TABLE constraints_late (n int);
CREATE FUNCTION constraints_end() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN PERFORM public.idem_complete(''constraints-8''); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER constraints_end AFTER INSERT ON constraints_late DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION constraints_end();
BEGIN;
SELECT outcome FROM idem_begin('constraints-8') \gset
INSERT INTO constraints_late VALUES (1);
COMMIT;
SELECT pg_temp.expect(:'SQLSTATE' = 'ID428', 'an end in a deferred trigger comes too late');
BEGIN;
SELECT outcome FROM idem_begin('constraints-8') \gset
INSERT INTO constraints_late VALUES (1);
SET CONSTRAINTS constraints_end IMMEDIATE;
COMMIT;
SELECT pg_temp.expect(:'SQLSTATE' = '00000' AND (idem_lookup('constraints-8')).outcome = 'COMPLETED', 'SET CONSTRAINTS lets it fire before');

-- a session that fires no ordinary triggers
BEGIN;
SET LOCAL session_replication_role = replica;
SELECT outcome FROM idem_begin('constraints-4') \gset
COMMIT;
SELECT pg_temp.expect(:'SQLSTATE' = 'ID428', 'the trigger fires in a session of role replica, too');

-- inside a security-restricted operation
CREATE FUNCTION constraints_run(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
	'BEGIN PERFORM public.idem_begin(''constraints-5''); RETURN n; END';
CREATE TABLE constraints_table AS SELECT 1 AS n;
CREATE INDEX ON constraints_table (constraints_run(n));
SELECT pg_temp.expect(:'SQLSTATE' = '42501', 'nothing is begun inside a security-restricted operation');
CREATE FUNCTION constraints_lease(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
	'BEGIN PERFORM public.idem_begin(''constraints-6'', lease => ''1 hour''); RETURN n; END';
CREATE INDEX ON constraints_table (constraints_lease(n));
SELECT pg_temp.expect(:'SQLSTATE' = '42501' AND idem_lookup('constraints-6') IS NULL, 'nor leased');
SELECT pg_temp.expect((SELECT count(*) FROM idempotency_pending) = 0, 'no row of a begin is left');
