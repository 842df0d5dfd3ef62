-- What a session holds: operations' locks, the lock on the table, the limit.
\pset format unaligned
\pset tuples_only on

-- Taken by one statement, given back by another; kept until COMMIT by an end.
BEGIN;
SELECT told(idem_begin('locks-1')), locks_held();
SELECT idem_release('locks-1'), locks_held();
SELECT told(idem_begin('locks-1')), told(idem_begin('locks-2')), locks_held();
SELECT idem_complete('locks-1'), idem_fail('locks-2');
SELECT locks_held();
COMMIT;
SELECT locks_held();
-- A replay, and a key that is leased to others, hold nothing.
BEGIN;
SELECT told(idem_begin('locks-1')), told(idem_begin('locks-2')), locks_held();
SELECT raises($$SELECT idem_complete('locks-1', fence => 9223372036854775807)$$), idem_release('locks-1', fence => 9223372036854775807), locks_held();
COMMIT;
SELECT fence FROM idem_begin('locks-3', lease => '1 hour') \gset
BEGIN;
SELECT told(idem_begin('locks-3')), told(idem_begin('locks-3', wait => '5 ms')), told(idem_begin('locks-2')), locks_held();
-- ended by its fence: locked until COMMIT; who is refused: nothing more
SELECT idem_complete('locks-3', fence => :fence), locks_held();
SELECT raises(format($$SELECT idem_complete('locks-3', fence => %s)$$, :fence)), idem_release('locks-3', fence => :fence), told(idem_begin('locks-3')), locks_held();
COMMIT;
BEGIN;
SELECT raises(format($$SELECT idem_complete('locks-3', fence => %s)$$, :fence)), idem_release('locks-3', fence => :fence), locks_held();
COMMIT;

-- A cursor's begin outlives the cursor, and its rollback does not.
BEGIN;
DECLARE c CURSOR FOR SELECT told(idem_begin('locks-4'));
FETCH c;
CLOSE c;
SELECT told(idem_begin('locks-4')), locks_held();
SELECT idem_release('locks-4'), locks_held();
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT told(idem_begin('locks-4'));
FETCH c;
ROLLBACK TO a;
SELECT locks_held();
COMMIT;

-- FAILURES 35: what SQL users unlock is not ours.
BEGIN;
SELECT told(idem_begin('locks-5'));
SELECT pg_advisory_unlock_all(), locks_held();
SELECT idem_complete('locks-5');
COMMIT;
-- nor is it what they lock: SQL has the classes 1 and 2, Citus 4 to 16
BEGIN;
SELECT told(idem_begin('locks-6'));
SELECT objsubid NOT IN (1, 2) AND objsubid NOT BETWEEN 4 AND 16, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

-- FAILURES 37: DDL on the store meets us at begin, not at COMMIT.
BEGIN;
SELECT told(idem_begin('locks-7'));
SELECT mode FROM pg_locks WHERE relation = 'idempotency_store'::regclass AND pid = pg_backend_pid() AND mode = 'RowExclusiveLock';
ROLLBACK;
-- a mere look does not get in the way of anything that reads
BEGIN;
SELECT idem_lookup('locks-7') IS NULL;
SELECT DISTINCT mode FROM pg_locks WHERE relation = 'idempotency_store'::regclass AND pid = pg_backend_pid();
ROLLBACK;
-- FAILURES 70: lock ids are seeded: they do not give a key away by its plain hash.
BEGIN;
SELECT told(idem_begin('locks-8'));
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
AND ((classid::bigint << 32) | objid::bigint) IN (hashtextextended('locks-8', 0), hashtextextended('locks-8', hashtextextended('', 0)));
ROLLBACK;

-- FAILURES 34: so many operations in one transaction and no more.
SET idempotency.max_operations_per_transaction = 2;
BEGIN;
SELECT told(idem_begin('locks-9')), told(idem_begin('locks-10', lease => '1 hour'));
SELECT raises($$SELECT idem_begin('locks-11')$$);
SELECT raises($$SELECT idem_begin('locks-11', lease => '1 hour')$$);
-- ended ones count, for they are locked; ending what was begun needs no more
SELECT idem_complete('locks-9'), idem_complete('locks-10');
SELECT raises($$SELECT idem_begin('locks-11')$$), locks_held();
COMMIT;
BEGIN;
SELECT told(idem_begin('locks-11'));
SAVEPOINT a;
SELECT told(idem_begin('locks-12'));
ROLLBACK TO a;
-- neither what was rolled back counts, nor what was released, nor replays
SELECT told(idem_begin('locks-12'));
SELECT idem_release('locks-12');
SELECT told(idem_begin('locks-9')), told(idem_begin('locks-10')), told(idem_begin('locks-2'));
SELECT told(idem_begin('locks-13'));
SELECT raises($$SELECT idem_begin('locks-14')$$), locks_held();
ROLLBACK;
RESET idempotency.max_operations_per_transaction;
-- many of them, at once
BEGIN;
SELECT count(*), count(DISTINCT told(idem_begin('locks-many-' || n))) FROM generate_series(1, 999) n;
SELECT locks_held(), count(idem_complete('locks-many-' || n)::text) FROM generate_series(1, 999) n;
COMMIT;
SELECT count(*), min(told(idem_begin('locks-many-' || n))), max(told(idem_begin('locks-many-' || n))) FROM generate_series(1, 999) n;
