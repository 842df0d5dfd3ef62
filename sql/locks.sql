-- The locks of a session: on operations, on the table, and their limit.

-- Taken by one statement, released by another; after an end kept until COMMIT.
BEGIN;
SELECT answer(idem_begin('locks-1')), locks_held();
SELECT idem_release('locks-1'), locks_held();
SELECT answer(idem_begin('locks-1')), answer(idem_begin('locks-2')), locks_held();
SELECT idem_complete('locks-1'), idem_fail('locks-2');
SELECT locks_held();
COMMIT;
SELECT locks_held();
-- A replay keeps no lock, and neither does a begin of a key that others have leased.
BEGIN;
SELECT answer(idem_begin('locks-1')), answer(idem_begin('locks-2')), locks_held();
SELECT raises($$SELECT idem_complete('locks-1', fence => 9223372036854775807)$$), idem_release('locks-1', fence => 9223372036854775807), locks_held();
COMMIT;
SELECT fence FROM idem_begin('locks-3', lease => '1 hour') \gset
BEGIN;
SELECT answer(idem_begin('locks-3')), answer(idem_begin('locks-3', wait => '5 ms')), answer(idem_begin('locks-2')), locks_held();
-- ended by its fence: locked until COMMIT; after a refused end: not locked
SELECT idem_complete('locks-3', fence => :fence), locks_held();
SELECT raises(format($$SELECT idem_complete('locks-3', fence => %s)$$, :fence)), idem_release('locks-3', fence => :fence), answer(idem_begin('locks-3')), locks_held();
COMMIT;
BEGIN;
SELECT raises(format($$SELECT idem_complete('locks-3', fence => %s)$$, :fence)), idem_release('locks-3', fence => :fence), locks_held();
COMMIT;

-- A cursor's begin outlives the cursor, and its rollback does not.
BEGIN;
DECLARE c CURSOR FOR SELECT answer(idem_begin('locks-4'));
FETCH c;
CLOSE c;
SELECT answer(idem_begin('locks-4')), locks_held();
SELECT idem_release('locks-4'), locks_held();
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT answer(idem_begin('locks-4'));
FETCH c;
ROLLBACK TO a;
SELECT locks_held();
COMMIT;

-- SQL users cannot release our locks.
BEGIN;
SELECT answer(idem_begin('locks-5'));
SELECT pg_advisory_unlock_all(), locks_held();
SELECT FROM idem_complete('locks-5');
COMMIT;
-- nor take them: SQL has the classes 1 and 2, Citus 4 to 16
BEGIN;
SELECT answer(idem_begin('locks-6'));
SELECT objsubid NOT IN (1, 2) AND objsubid NOT BETWEEN 4 AND 16, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

-- DDL on the store blocks the begin, not COMMIT.
BEGIN;
SELECT answer(idem_begin('locks-7'));
SELECT mode FROM pg_locks WHERE relation = 'idempotency_store'::regclass AND pid = pg_backend_pid() AND mode = 'RowExclusiveLock';
ROLLBACK;
-- idem_lookup does not block readers
BEGIN;
SELECT idem_lookup('locks-7') IS NULL;
SELECT DISTINCT mode FROM pg_locks WHERE relation = 'idempotency_store'::regclass AND pid = pg_backend_pid();
ROLLBACK;
-- Lock ids have a secret: they are not the plain hash of a key.
BEGIN;
SELECT answer(idem_begin('locks-8'));
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
AND ((classid::bigint << 32) | objid::bigint) IN (hashtextextended('locks-8', 0), hashtextextended('locks-8', hashtextextended('', 0)));
ROLLBACK;

-- The limit of operations in one transaction.
SET idempotency.max_operations_per_transaction = 2;
BEGIN;
SELECT answer(idem_begin('locks-9')), answer(idem_begin('locks-10', lease => '1 hour'));
SELECT raises($$SELECT idem_begin('locks-11')$$);
SELECT raises($$SELECT idem_begin('locks-11', lease => '1 hour')$$);
-- ended ones count, as they are locked; the end of a begun operation needs no further lock
SELECT idem_complete('locks-9'), idem_complete('locks-10');
SELECT raises($$SELECT idem_begin('locks-11')$$), locks_held();
COMMIT;
BEGIN;
SELECT answer(idem_begin('locks-11'));
SAVEPOINT a;
SELECT answer(idem_begin('locks-12'));
ROLLBACK TO a;
-- operations that were rolled back or released do not count, and neither do replays
SELECT answer(idem_begin('locks-12'));
SELECT idem_release('locks-12');
SELECT answer(idem_begin('locks-9')), answer(idem_begin('locks-10')), answer(idem_begin('locks-2'));
SELECT answer(idem_begin('locks-13'));
SELECT raises($$SELECT idem_begin('locks-14')$$), locks_held();
ROLLBACK;
RESET idempotency.max_operations_per_transaction;
-- many of them, at once
BEGIN;
SELECT count(*), count(DISTINCT answer(idem_begin('locks-many-' || n))) FROM generate_series(1, 999) n;
SELECT locks_held(), count(idem_complete('locks-many-' || n)::text) FROM generate_series(1, 999) n;
COMMIT;
SELECT count(*), min(answer(idem_begin('locks-many-' || n))), max(answer(idem_begin('locks-many-' || n))) FROM generate_series(1, 999) n;
