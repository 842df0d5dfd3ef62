-- Edge cases that no other test reaches: the last possible time, limits after a
-- rollback, a page with more expired rows, and a store with rules.

-- A retention, from a rule that the owner wrote by hand, that ends less than an hour
-- before the last possible time, beyond that time, and beyond the largest number:
-- such a record is never stored.
INSERT INTO idempotency_scope (pattern, retention) VALUES ('edge/1', timestamptz '294276-12-31 23:00 UTC' - clock_timestamp()),
	('edge/2', timestamptz '294276-12-31 12:00 UTC' - clock_timestamp() + '2 days'), ('edge/3', '106751990 days');
SELECT raises(format('SELECT idem_begin(''edge'', scope => ''edge/%s'', lease => ''1 hour 1 min'')', n)), idem_lookup('edge', 'edge/' || n) IS NULL FROM generate_series(1, 3) n;
DELETE FROM idempotency_scope WHERE pattern LIKE 'edge/_';

-- Locks that a rollback to a savepoint released do not count.
SET idempotency.max_operations_per_transaction = 3;
BEGIN;
SAVEPOINT a;
SELECT idem_lock(ARRAY['edge 1', 'edge 2', 'edge 3']);
SELECT raises('SELECT idem_lock(ARRAY[''edge 4''])');
ROLLBACK TO a;
SELECT idem_lock(ARRAY['edge 4', 'edge 5', 'edge 6']);
SELECT raises('SELECT idem_lock(ARRAY[''edge 7''])');
ROLLBACK;
RESET idempotency.max_operations_per_transaction;

-- If a sweep removed only some rows of a page, it goes on at this page. A background
-- collector must not come in between: all is one transaction.
BEGIN;
TRUNCATE idempotency_store, idempotency_sweep;
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	SELECT n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 300) n;
SELECT idem_gc(4);
UPDATE idempotency_sweep SET next_page = 1 RETURNING (SELECT next_page FROM idempotency_sweep);
SELECT idem_gc(4);
SELECT next_page FROM idempotency_sweep;
-- On to the end, and then from the first page to its start.
SELECT idem_gc(1000);
SELECT next_page FROM idempotency_sweep;
-- At the end of the store it is one sweep, and the next begins at the first page.
UPDATE idempotency_sweep SET next_page = 0, began_at = '2000-01-01';
SELECT idem_gc();
SELECT next_page, began_at >= now() FROM idempotency_sweep;
ROLLBACK;

-- A rule of the owner fires for every operation that ends.
BEGIN;
CREATE TABLE edge_log (key text);
CREATE RULE edge AS ON INSERT TO idempotency_store DO ALSO INSERT INTO edge_log VALUES (NEW.idempotency_key);
SELECT answer(idem_begin('edge ruled')), idem_complete('edge ruled', '1');
SELECT key FROM edge_log;
SELECT answer(idem_begin('edge ruled'));
ROLLBACK;

-- A primary key with its columns in another order finds the same operations.
BEGIN;
ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (idempotency_key, scope);
SELECT answer(idem_begin('edge key', scope => 'edge scope')), idem_complete('edge key', '1', 'edge scope');
SELECT answer(idem_begin('edge key', scope => 'edge scope')), answer(idem_begin('edge scope', scope => 'edge key'));
ROLLBACK;

-- Nothing is begun in a parallel worker, even if a wrapper is marked PARALLEL SAFE.
CREATE FUNCTION edge_begin() RETURNS text LANGUAGE sql PARALLEL SAFE AS 'SELECT (idem_begin(''edge parallel'')).outcome::text';
BEGIN;
-- its name has changed in 16
SELECT count(set_config(name, 'on', true)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT raises('SELECT edge_begin()');
ROLLBACK;
DROP FUNCTION edge_begin();
