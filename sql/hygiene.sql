-- What the script made of the catalogs: each query lists what is not as it should be.
\pset format unaligned
\pset tuples_only on
CREATE TEMP VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE d.deptype = 'e' AND e.extname = 'idempotency';
CREATE TEMP VIEW function AS
SELECT p.*, oid::regprocedure AS signature FROM pg_proc p WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_proc'::regclass);
CREATE TEMP VIEW relation AS
SELECT c.*, oid::regclass AS name FROM pg_class c WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass);
-- the views above are not empty, and know what is in them
SELECT count(*) >= 17 FROM function;
SELECT name FROM relation WHERE relname IN ('idempotency_store', 'idempotency_fence', 'idempotency_stream', 'idempotency_secret') ORDER BY relname COLLATE "C";

-- Functions: commented,
SELECT signature FROM function WHERE coalesce(obj_description(oid, 'pg_proc'), '') = '';
-- without rights of their definer's,
SELECT signature FROM function WHERE prosecdef;
-- in C, with a pinned search_path, or parsed when they were created,
SELECT signature FROM function JOIN pg_language l ON l.oid = prolang
WHERE lanname <> 'c' AND prosqlbody IS NULL AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false);
-- never in a parallel worker unless they compute only or look only,
SELECT signature FROM function WHERE CASE WHEN provolatile = 'i' THEN 's' WHEN proname IN ('idem_lookup', 'idem_may_use_scope') THEN 'r' ELSE 'u' END <> proparallel AND proname !~ '^idem_stats';
-- leakproof to nobody, for nobody but those who were granted them.
SELECT signature FROM function WHERE proleakproof OR prosupport <> 0;
SELECT signature FROM function WHERE proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0);

-- Tables, views, sequences, and every column of theirs: commented,
SELECT name FROM relation WHERE relkind <> 'c' AND coalesce(obj_description(oid, 'pg_class'), '') = '';
SELECT name, attname FROM relation JOIN pg_attribute ON attrelid = relation.oid AND attnum > 0 AND NOT attisdropped
WHERE relkind = 'r' AND coalesce(col_description(attrelid, attnum), '') = '';
-- logged, not open to everybody,
SELECT name FROM relation WHERE relpersistence <> 'p';
SELECT name, privilege_type FROM relation, aclexplode(relacl) WHERE grantee = 0;
-- with keys compared by bytes.
SELECT name, attname FROM relation JOIN pg_attribute ON attrelid = relation.oid AND attname IN ('scope', 'idempotency_key', 'stream')
WHERE relkind = 'r' AND attcollation <> '"C"'::regcollation;
-- the store has no index but its key's
SELECT count(*) FROM pg_index WHERE indrelid = 'idempotency_store'::regclass;
-- Types are commented, and columns are of the server's types or ours.
SELECT oid::regtype FROM pg_type WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_type'::regclass)
AND coalesce(obj_description(oid, 'pg_type'), '') = '' AND typtype <> 'b' AND (typrelid = 0 OR (SELECT relkind FROM pg_class c WHERE c.oid = typrelid) = 'c');

-- FAILURES 58: dumped with the database: the rows and the fences, not the secret.
SELECT c::regclass FROM pg_extension, unnest(extconfig) c WHERE extname = 'idempotency'
AND c::regclass IN ('idempotency_store'::regclass, 'idempotency_fence'::regclass, 'idempotency_stream'::regclass, 'idempotency_secret'::regclass) ORDER BY c::regclass::text COLLATE "C";
SELECT DISTINCT unnest(extcondition) FROM pg_extension WHERE extname = 'idempotency';

-- The extension stays where it was created, and asks for nothing else.
SELECT extrelocatable, extversion FROM pg_extension WHERE extname = 'idempotency';
SELECT refobjid::regclass FROM pg_depend WHERE classid = 'pg_extension'::regclass AND deptype = 'n' AND refclassid = 'pg_extension'::regclass
AND objid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency');
-- The script is not to be sourced, and its parts are not to be dropped alone.
SELECT left(raises('DROP TABLE idempotency_store'), 5), left(raises('DROP FUNCTION idem_lookup(text, text)'), 5), left(raises('DROP TYPE idem_outcome'), 5);
