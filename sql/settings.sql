-- Settings: defaults, units, limits, and who may set what.
-- Without preloading they exist from the first call on.
SELECT idem_step_key('settings', '1');
SELECT name, setting, unit, context, min_val, boot_val FROM pg_settings
WHERE name IN ('idempotency.retention', 'idempotency.max_attempts', 'idempotency.max_response_size', 'idempotency.max_operations_per_transaction', 'idempotency.end_wait') ORDER BY name COLLATE "C";
SHOW idempotency.retention;
SHOW idempotency.max_response_size;
SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%' AND coalesce(short_desc, '') = '';
-- units
SET idempotency.retention = '90min';
SET idempotency.max_response_size = '2kB';
SELECT current_setting('idempotency.retention'), current_setting('idempotency.max_response_size');
RESET idempotency.retention;
RESET idempotency.max_response_size;
-- out of range, of the wrong kind, and of unknown name
SELECT DISTINCT left(raises(s), 5) FROM (VALUES ('SET idempotency.retention = 0'), ('SET idempotency.retention = -1'), ('SET idempotency.max_attempts = -1'),
	('SET idempotency.max_operations_per_transaction = 0'), ('SET idempotency.max_response_size = -1'), ('SET idempotency.retention = ''infinity'''), ('SET idempotency.end_wait = -1'), ('SET idempotency.end_wait = ''25 days''')) v(s);
SELECT raises('SET idempotency.retension = 1');
-- worker settings belong to the server's configuration
SELECT name, raises(format('SET idempotency.%s = DEFAULT', name)) FROM unnest(ARRAY['gc_enabled', 'gc_interval', 'gc_batch_size', 'gc_databases']) name;

-- Only the administrator may change settings that protect the server.
CREATE ROLE regress_idem_settings;
SET ROLE regress_idem_settings;
SELECT left(raises(s), 8) FROM (VALUES ('SET idempotency.max_response_size = ''512MB'''), ('SET idempotency.max_operations_per_transaction = 1000000'),
	('ALTER ROLE regress_idem_settings SET idempotency.max_response_size = ''512MB'''),
	('SET idempotency.retention = ''1h'''), ('SET idempotency.max_attempts = 3'), ('SET idempotency.end_wait = ''1s'''), ('ALTER ROLE regress_idem_settings SET idempotency.retention = ''1h''')) v(s);
SELECT current_setting('idempotency.retention'), current_setting('idempotency.max_attempts'), current_setting('idempotency.max_response_size');
RESET ROLE;
RESET idempotency.retention;
RESET idempotency.max_attempts;
RESET idempotency.end_wait;
ALTER ROLE regress_idem_settings SET idempotency.max_response_size = '2MB';
SELECT unnest(setconfig) FROM pg_db_role_setting WHERE setrole = 'regress_idem_settings'::regrole ORDER BY 1;
DROP ROLE regress_idem_settings;

-- SET LOCAL ends with its transaction, SET of a function with the function.
BEGIN;
SET LOCAL idempotency.retention = '2h';
SELECT answer(idem_begin('settings-1')), answer(idem_begin('settings-2'));
SELECT FROM idem_complete('settings-1');
COMMIT;
\echo :SQLSTATE
CREATE FUNCTION settings_end() RETURNS void LANGUAGE sql SET idempotency.retention = '3h' AS 'SELECT idem_complete(''settings-2'')';
BEGIN;
SET LOCAL idempotency.retention = '2h';
SELECT answer(idem_begin('settings-1')), answer(idem_begin('settings-2')), answer(idem_begin('settings-3', lease => '1 hour'));
SELECT idem_complete('settings-1'), settings_end(), idem_complete('settings-3');
COMMIT;
SELECT answer(idem_begin('settings-4')), idem_complete('settings-4');
SELECT idempotency_key, expires_at - updated_at FROM idempotency_store WHERE idempotency_key ~ '^settings-' ORDER BY 1;

-- Set for the database: sessions that start later have it, preloaded or not.
DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I SET idempotency.retention = ''4h''', current_database());
	EXECUTE format('ALTER DATABASE %I SET idempotency.max_operations_per_transaction = 7', current_database());
END $$;
\c -
SELECT idem_step_key('settings', '2');
SELECT current_setting('idempotency.retention'), current_setting('idempotency.max_operations_per_transaction');
DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I RESET idempotency.retention', current_database());
	EXECUTE format('ALTER DATABASE %I RESET idempotency.max_operations_per_transaction', current_database());
END $$;
\c -
SELECT idem_step_key('settings', '3');
SELECT current_setting('idempotency.retention'), current_setting('idempotency.max_operations_per_transaction');
