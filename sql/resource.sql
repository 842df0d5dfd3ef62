-- Names that several operations share: idem_lock, and idem_advance, which refuses to go back.

-- All of them until the transaction ends, each once; a second call adds none.
BEGIN;
SELECT idem_lock(ARRAY['account 2', 'account 1', 'account 2']), locks_held();
SELECT idem_lock(ARRAY['account 1', 'account 3'], '1 hour'), locks_held();
SELECT idem_lock(ARRAY[]::text[]), locks_held();
-- a rollback to a savepoint releases the locks taken after it, and no others
SAVEPOINT a;
SELECT idem_lock(ARRAY['account 1', 'account 4']), locks_held();
ROLLBACK TO a;
SELECT locks_held();
-- operations have other locks, even with the same name
SELECT answer(idem_begin('account 1')), locks_held();
SELECT idem_release('account 1'), locks_held();
-- SQL users cannot release our locks
SELECT pg_advisory_unlock_all(), locks_held();
COMMIT;
SELECT locks_held();
-- COMMIT does not refuse a transaction because of a lock
SELECT idem_lock(ARRAY['account 1']);
-- New locks count against the limit, those held already do not
SET idempotency.max_operations_per_transaction = 3;
BEGIN;
SELECT idem_lock(ARRAY['a', 'b']), raises('SELECT idem_lock(ARRAY[''c'', ''d''])'), locks_held();
SELECT idem_lock(ARRAY['a', 'b', 'c']), raises('SELECT idem_begin(''resource-1'')'), locks_held();
COMMIT;
RESET idempotency.max_operations_per_transaction;
SELECT raises(s) FROM (VALUES ('SELECT idem_lock(NULL)'), ('SELECT idem_lock(ARRAY[''a'', NULL])'), ('SELECT idem_lock(ARRAY[''''])'),
	('SELECT idem_lock(ARRAY[''a''], NULL)'), ('SELECT idem_lock(ARRAY[''a''], ''-1 s'')')) v(s);

-- A stream moves forward only: gaps are fine, repeats and the past are not.
SELECT seq, idem_advance('stream 1', seq) FROM unnest(ARRAY[5, 5, 4, 6, 100, 99, 7, 101]) seq;
SELECT seq, updated_at <= clock_timestamp() FROM idempotency_stream WHERE stream = 'stream 1';
-- every stream on its own, in every scope
SELECT idem_advance('stream 2', 1), idem_advance('stream 1', 1, 'other'), idem_advance('STREAM 1', 1);
-- the ends of the range
SELECT idem_advance('stream 3', -9223372036854775808), idem_advance('stream 3', -9223372036854775808), idem_advance('stream 3', -1),
	idem_advance('stream 3', 0), idem_advance('stream 3', 9223372036854775807), idem_advance('stream 3', 9223372036854775807);
SELECT left(raises('SELECT idem_advance(''stream 3'', 9223372036854775808)'), 5);
-- a rollback undoes the move: the event may come again
BEGIN;
SELECT idem_advance('stream 1', 200), idem_advance('stream 1', 200);
SAVEPOINT a;
SELECT idem_advance('stream 1', 300);
ROLLBACK TO a;
SELECT idem_advance('stream 1', 201);
ROLLBACK;
SELECT idem_advance('stream 1', 102), idem_advance('stream 1', 102);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_advance('stream 1', 103), idem_advance('stream 1', 103), idem_advance('stream 1', 102);
COMMIT;
SELECT raises(s) FROM (VALUES ('SELECT idem_advance(NULL, 1)'), ('SELECT idem_advance('''', 1)'), ('SELECT idem_advance(repeat(''s'', 256), 1)'), ('SELECT idem_advance(''s'', NULL)'),
	('SELECT idem_advance(''s'', 1, NULL)'), ('SELECT idem_advance(''s'', 1, repeat(''s'', 256))')) v(s);
SELECT idem_advance(repeat('s', 255), 1, repeat('s', 255));
BEGIN READ ONLY;
SELECT raises('SELECT idem_advance(''stream 1'', 1000)');
ROLLBACK;
CREATE TABLE resource_table AS SELECT 1 AS n;
CREATE FUNCTION resource_queue(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE SET search_path = public AS 'BEGIN PERFORM idem_advance(''stream 1'', 1000); RETURN n; END';
SELECT raises('CREATE INDEX ON resource_table (resource_queue(n))');
