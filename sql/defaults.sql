-- Default privileges of the role that creates the extension give no right on it:
-- neither on tables nor on the functions of the administrator.
CREATE ROLE regress_idem_default;
BEGIN;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_idem_default, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO regress_idem_default;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO regress_idem_default;
SET LOCAL client_min_messages = warning;
DROP EXTENSION idempotency CASCADE;
RESET client_min_messages;
SET LOCAL search_path = public, pg_catalog;
CREATE EXTENSION idempotency;
SHOW search_path;
CREATE TABLE defaults_table (a int);
-- the default privileges do hold for other tables
SELECT has_table_privilege('regress_idem_default', 'defaults_table', 'SELECT');
SELECT c.relname, a.grantee::regrole FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relname LIKE 'idem%' AND a.grantee NOT IN (c.relowner, 'pg_monitor'::regrole, 'pg_read_all_stats'::regrole);
SELECT p.proname, a.grantee::regrole FROM pg_proc p, aclexplode(p.proacl) a
WHERE p.proname LIKE 'idem%' AND a.grantee NOT IN (p.proowner, 'pg_monitor'::regrole, 'pg_read_all_stats'::regrole);
SELECT has_table_privilege('pg_monitor', 'idempotency_stats', 'SELECT'), has_function_privilege('pg_monitor', 'idem_stats()', 'EXECUTE');
ROLLBACK;
DROP ROLE regress_idem_default;
