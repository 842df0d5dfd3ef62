-- Edges that no other test comes near: the last moment that there is, limits
-- after a rollback, a page that is not done with, and a store with rules.
\pset format unaligned
\pset tuples_only on

-- A lease to within a day of the last moment, and beyond it where the sum is
-- still a number: never stored.
SELECT raises(format('SELECT idem_begin(''edge'', lease => %L)', timestamptz '294276-12-31 12:00 UTC' - clock_timestamp() + '1 day'));
SELECT raises(format('SELECT idem_begin(''edge'', lease => %L)', timestamptz '294276-12-31 12:00 UTC' - clock_timestamp()));
SELECT raises('SELECT idem_begin(''edge'', lease => ''2147483647 days'')');
SELECT idem_lookup('edge') IS NULL;

-- What a savepoint locked and gave back leaves its room to others.
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

-- The hand stays on a page from which a sweep took only some. A background
-- collector must not come in between: all is one transaction.
BEGIN;
TRUNCATE idempotency_store, idempotency_sweep;
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	SELECT n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 10) n;
SELECT idem_gc(4);
SELECT next_page FROM idempotency_sweep;
SELECT idem_gc(100);
SELECT next_page FROM idempotency_sweep;
ROLLBACK;

-- A rule of the owner's sees every operation that ends.
BEGIN;
CREATE TABLE edge_log (key text);
CREATE RULE edge AS ON INSERT TO idempotency_store DO ALSO INSERT INTO edge_log VALUES (NEW.idempotency_key);
SELECT told(idem_begin('edge ruled')), idem_complete('edge ruled', '1');
SELECT key FROM edge_log;
SELECT told(idem_begin('edge ruled'));
ROLLBACK;

-- A primary key of another order finds the same operations.
BEGIN;
ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (idempotency_key, scope);
SELECT told(idem_begin('edge key', 'edge scope')), idem_complete('edge key', '1', 'edge scope');
SELECT told(idem_begin('edge key', 'edge scope')), told(idem_begin('edge scope', 'edge key'));
ROLLBACK;

-- Nothing is begun in a parallel worker, whatever a wrapper claims.
CREATE FUNCTION edge_begin() RETURNS text LANGUAGE sql PARALLEL SAFE AS 'SELECT (idem_begin(''edge parallel'')).outcome::text';
BEGIN;
-- its name has changed in 16
SELECT count(set_config(name, 'on', true)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT raises('SELECT edge_begin()');
ROLLBACK;
DROP FUNCTION edge_begin();
