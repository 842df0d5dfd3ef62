-- The catalog entries that the script made: each query lists those that are wrong.
CREATE TEMP VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE d.deptype = 'e' AND e.extname = 'idempotency';
CREATE TEMP VIEW function AS
SELECT p.*, oid::regprocedure AS signature FROM pg_proc p WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_proc'::regclass);
CREATE TEMP VIEW relation AS
SELECT c.*, oid::regclass AS name FROM pg_class c WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass);
-- the views above are not empty, and have the expected rows
SELECT count(*) >= 17 FROM function;
SELECT name FROM relation WHERE relname IN ('idempotency_store', 'idempotency_fence', 'idempotency_stream', 'idempotency_secret') ORDER BY relname COLLATE "C";

-- Functions: commented,
SELECT signature FROM function WHERE coalesce(obj_description(oid, 'pg_proc'), '') = '';
-- not SECURITY DEFINER,
SELECT signature FROM function WHERE prosecdef;
-- in C, with a pinned search_path, or parsed when they were created,
SELECT signature FROM function JOIN pg_language l ON l.oid = prolang
WHERE lanname <> 'c' AND prosqlbody IS NULL AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false);
-- never in a parallel worker, unless they only compute or only read,
SELECT signature FROM function WHERE CASE WHEN provolatile = 'i' THEN 's' WHEN proname IN ('idem_lookup', 'idem_lost_attempts', 'idem_may_use_scope') THEN 'r' ELSE 'u' END <> proparallel AND proname !~ '^idem_(lost_)?stats';
-- not leakproof, and only for roles with a grant.
SELECT signature FROM function WHERE proleakproof OR prosupport <> 0;
SELECT signature FROM function WHERE proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0);

-- Tables, views, sequences, and every column of theirs: commented,
SELECT name FROM relation WHERE relkind <> 'c' AND coalesce(obj_description(oid, 'pg_class'), '') = '';
SELECT name, attname FROM relation JOIN pg_attribute ON attrelid = relation.oid AND attnum > 0 AND NOT attisdropped
WHERE relkind = 'r' AND coalesce(col_description(attrelid, attnum), '') = '';
-- logged, without rights for PUBLIC,
SELECT name FROM relation WHERE relpersistence <> 'p';
SELECT name, privilege_type FROM relation, aclexplode(relacl) WHERE grantee = 0;
-- with keys compared by bytes.
SELECT name, attname FROM relation JOIN pg_attribute ON attrelid = relation.oid AND attname IN ('scope', 'idempotency_key', 'stream')
WHERE relkind = 'r' AND attcollation <> '"C"'::regcollation;
-- the store has no index but its key's
SELECT count(*) FROM pg_index WHERE indrelid = 'idempotency_store'::regclass;
-- Types are commented, and columns have types of the server or of the extension.
SELECT oid::regtype FROM pg_type WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_type'::regclass)
AND coalesce(obj_description(oid, 'pg_type'), '') = '' AND typtype <> 'b' AND (typrelid = 0 OR (SELECT relkind FROM pg_class c WHERE c.oid = typrelid) = 'c');

-- Dumped with the database: the rows and the fences, not the secret.
SELECT c::regclass FROM pg_extension, unnest(extconfig) c WHERE extname = 'idempotency'
AND c::regclass IN ('idempotency_store'::regclass, 'idempotency_fence'::regclass, 'idempotency_stream'::regclass, 'idempotency_secret'::regclass) ORDER BY c::regclass::text COLLATE "C";
SELECT DISTINCT unnest(extcondition) FROM pg_extension WHERE extname = 'idempotency';

-- The extension is not relocatable, and requires no other one.
SELECT extrelocatable, extversion FROM pg_extension WHERE extname = 'idempotency';
SELECT refobjid::regclass FROM pg_depend WHERE classid = 'pg_extension'::regclass AND deptype = 'n' AND refclassid = 'pg_extension'::regclass
AND objid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency');
-- The script cannot be sourced, and its objects cannot be dropped alone.
SELECT left(raises('DROP TABLE idempotency_store'), 5), left(raises('DROP FUNCTION idem_lookup(text, text)'), 5), left(raises('DROP TYPE idem_outcome'), 5);

-- The checks of pgspot, in the catalog. Triggers call the extension's own functions,
-- fire with every session_replication_role, and are on its own tables;
SELECT tgrelid::regclass, tgname, tgfoid::regprocedure FROM pg_trigger t WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM relation)
AND (tgfoid NOT IN (SELECT oid FROM function) OR tgenabled <> 'A') AND tgname <> 'with_trigger';
SELECT tgname FROM pg_trigger WHERE tgfoid IN (SELECT oid FROM function) AND tgrelid NOT IN (SELECT oid FROM relation);
SELECT tgrelid::regclass, count(*) FROM pg_trigger WHERE tgfoid IN (SELECT oid FROM function) GROUP BY 1;
-- functions in C are in this library and in no other;
SELECT signature, probin FROM function WHERE prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AND probin !~ '(^|/)idempotency$';
SELECT DISTINCT lanname FROM function JOIN pg_language l ON l.oid = prolang ORDER BY 1;
-- whatever views, parsed bodies, defaults, checks and rules use (functions, operators, types, relations, collations) is the server's or the extension's;
CREATE TEMP VIEW using_object AS
SELECT classid, objid FROM member
UNION ALL SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM relation)
UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM relation)
UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE conrelid IN (SELECT oid FROM relation)
UNION ALL SELECT 'pg_trigger'::regclass, oid FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM relation) AND tgname <> 'with_trigger';
SELECT count(DISTINCT u.classid) > 5 FROM using_object u;
CREATE TEMP VIEW foreign_object AS SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS what, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) AS uses
FROM pg_depend d JOIN using_object u USING (classid, objid) WHERE d.deptype = 'n' AND d.refobjid >= 16384
AND (d.refclassid, d.refobjid) NOT IN (SELECT classid, objid FROM using_object)
AND NOT (d.refclassid = 'pg_namespace'::regclass AND d.refobjid = (SELECT extnamespace FROM pg_extension WHERE extname = 'idempotency'));
SELECT * FROM foreign_object;
-- (the query finds such objects)
BEGIN;
CREATE FUNCTION hygiene_planted(timestamptz, interval) RETURNS timestamptz LANGUAGE sql AS 'SELECT $1';
CREATE OPERATOR public.<-> (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = hygiene_planted);
ALTER TABLE idempotency_store ALTER created_at SET DEFAULT now() <-> interval '1 s';
CREATE OR REPLACE VIEW idempotency_stats AS SELECT datname, acquired, replayed_completed, replayed_failed, in_progress, mismatches, taken_over, completed, failed, released, forgotten, leases_lost,
	commits_refused, waits, NULL::interval AS wait_time, NULL::float8 AS wait_seconds, collected_rows, sweeps, NULL::timestamptz <-> '1 s' AS last_sweep_at, NULL::interval AS last_sweep_duration, NULL::float8 AS last_sweep_seconds, backlog_rows, NULL::bigint AS attempts_lost, NULL::bigint AS operations_losing, NULL::bigint AS operations_near_limit FROM idem_stats() JOIN pg_database ON datid = oid;
SELECT * FROM foreign_object ORDER BY 1;
ROLLBACK;
-- names in the bodies of the others are found in pg_catalog, or are made by format() from the catalog;
SELECT signature FROM function WHERE prosqlbody IS NULL AND prolang IN (SELECT oid FROM pg_language WHERE lanname IN ('sql', 'plpgsql'))
AND prosrc ~* '\m(public\.|"\$user"|set_config|search_path|dblink)';
-- rows of the tables are keyed and checked by the server's operators;
SELECT indexrelid::regclass, o.opcname FROM pg_index i, unnest(i.indclass) c JOIN pg_opclass o ON o.oid = c WHERE indrelid IN (SELECT oid FROM relation) AND o.opcnamespace <> 'pg_catalog'::regnamespace;
-- one owner, to whom all of it belongs.
SELECT count(DISTINCT o) FROM (SELECT relowner FROM relation UNION SELECT proowner FROM function UNION SELECT extowner FROM pg_extension WHERE extname = 'idempotency'
	UNION SELECT typowner FROM pg_type WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_type'::regclass)) o(o);
-- Rights: for roles of idem_grant and for monitoring; none with a grant option, and no default privileges.
SELECT signature, grantee::regrole FROM function, aclexplode(proacl) a WHERE a.grantee <> proowner AND (a.is_grantable OR a.grantee::regrole::text NOT IN ('pg_monitor', 'pg_read_all_stats')) ORDER BY 1, 2;
SELECT signature FROM function, aclexplode(proacl) WHERE grantee = 'pg_monitor'::regrole ORDER BY signature::text COLLATE "C";
SELECT name, grantee::regrole, privilege_type FROM relation, aclexplode(relacl) a WHERE a.grantee <> relowner ORDER BY name::text COLLATE "C", grantee::regrole::text COLLATE "C";
SELECT attrelid::regclass, attname FROM pg_attribute WHERE attrelid IN (SELECT oid FROM relation) AND attacl IS NOT NULL;
