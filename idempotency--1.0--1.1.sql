-- complain if the script is sourced in psql, rather than by ALTER EXTENSION
\echo Use "ALTER EXTENSION idempotency UPDATE TO '1.1'" to load this file. \quit

-- These functions call one another by EXECUTE, with the name that the schema has at that
-- moment: ALTER SCHEMA ... RENAME would break a name in the body or in SET search_path. And
-- with the schema in the path, an operator or function that somebody has planted there
-- could match better than that of pg_catalog.

-- Statistics for the planner would keep values of responses for longer than the records.
-- Nothing is looked up by them.
ALTER TABLE @extschema@.idempotency_store ALTER response_headers SET STATISTICS 0,
	ALTER response_payload SET STATISTICS 0, ALTER response_body SET STATISTICS 0;
DELETE FROM pg_catalog.pg_statistic
	WHERE starelid OPERATOR(pg_catalog.=) '@extschema@.idempotency_store'::pg_catalog.regclass;

-- The library reads these tables without the executor, and only as heap tables. Where
-- default_table_access_method is another one, version 1.0 has made them so.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT pg_catalog.format('ALTER TABLE %s SET ACCESS METHOD heap', c.oid::pg_catalog.regclass)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid OPERATOR(pg_catalog.=) c.relam
		WHERE a.amname OPERATOR(pg_catalog.<>) 'heap' AND c.oid OPERATOR(pg_catalog.=) ANY (ARRAY[
			'@extschema@.idempotency_scope', '@extschema@.idempotency_secret']::pg_catalog.regclass[])
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;

-- A ring of tables by expiry

CREATE TABLE @extschema@.idempotency_ring (
	name		pg_catalog.name PRIMARY KEY,
	range_start	pg_catalog.timestamptz,
	range_end	pg_catalog.timestamptz,
	period		pg_catalog.interval NOT NULL CHECK (period OPERATOR(pg_catalog.>=) interval '1 second'),
	kept_until	pg_catalog.timestamptz,
	leaving		pg_catalog.bool NOT NULL DEFAULT false,
	waits_for	pg_catalog.text[],
	in_use		pg_catalog.bool NOT NULL DEFAULT true
) USING heap;
COMMENT ON TABLE @extschema@.idempotency_ring IS 'which new records each table of the ring gets; idem_partition_store makes rows, collection changes them';
COMMENT ON COLUMN @extschema@.idempotency_ring.name IS 'name of a table that inherits from idempotency_store';
COMMENT ON COLUMN @extschema@.idempotency_ring.range_start IS 'it gets new records that expire at this time or later; NULL: none';
COMMENT ON COLUMN @extschema@.idempotency_ring.range_end IS 'and before this time';
COMMENT ON COLUMN @extschema@.idempotency_ring.period IS 'how long its next range is';
COMMENT ON COLUMN @extschema@.idempotency_ring.kept_until IS 'a record that expires after the range keeps the table: it is looked at again then';
COMMENT ON COLUMN @extschema@.idempotency_ring.leaving IS 'it gets no further range, and is dropped';
COMMENT ON COLUMN @extschema@.idempotency_ring.waits_for IS 'transactions (of pg_locks) that have to end before a table without a range gets one, or is dropped';
COMMENT ON COLUMN @extschema@.idempotency_ring.in_use IS 'false: new records go to the store itself, as a table of it has something that needs SQL';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_ring', '');

-- A role that changes the store's tables runs what their owners have put on them, with his own
-- rights: triggers and checks, but also functions in indexes, statistics, partition keys
-- and casts, some of it when a statement is merely planned. The caller is often a
-- superuser. So all that is read and written belongs to roles that he trusts anyway:
-- himself, superusers, and the owners of the extension's functions.
CREATE FUNCTION @extschema@.idem_check_owner(store pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	-- an update of the extension by another role makes functions of that role; the extension's owner may add
	-- functions of his own, but none in C
	keepers oid[] := ARRAY(SELECT p.proowner FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_proc p ON p.oid = d.objid WHERE e.extname = 'idempotency' AND p.probin IS NOT NULL ORDER BY p.proname <> 'idem_begin');
	trusted oid[] := ARRAY(SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user OR oid = ANY (keepers));
	strange text;
BEGIN
	IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = store), 'USAGE') THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be owner of table idempotency_store';
	END IF;
	WITH RECURSIVE named (oid, relowner, is_genuine) AS (
		-- an owner may have exchanged a table, but a view has code
		SELECT c.oid, c.relowner, CASE c.relname WHEN 'idempotency_fence' THEN c.relkind = 'S'
			WHEN 'idempotency_partitions' THEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
				AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e')
			ELSE c.relkind IN ('r', 'p') END
		FROM pg_extension e JOIN pg_class c ON c.relnamespace = e.extnamespace
		WHERE e.extname = 'idempotency' AND c.relname IN ('idempotency_store', 'idempotency_scope', 'idempotency_fence',
			'idempotency_ring', 'idempotency_partitions')
	), below (oid) AS (
		SELECT store::oid
		UNION
		SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid
	), found (oid) AS (
		SELECT oid FROM named WHERE relowner <> ALL (trusted) OR NOT is_genuine
		UNION
		SELECT oid FROM below JOIN pg_class USING (oid) WHERE relowner <> ALL (trusted)
	)
	SELECT string_agg(oid::regclass::text, ', ' ORDER BY oid::regclass::text) INTO strange FROM found;
	IF strange IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('cannot change the tables of the store: another role owns %s, or the extension has not made it', strange),
			DETAIL = format('What is on it would run with the rights of role "%s".', current_user),
			HINT = format('Drop the triggers, indexes, statistics, rules, checks and defaults there that you do not know. Then make "%s" the owner.',
				pg_get_userbyid(keepers[1]));
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_owner(regclass) IS
	'internal: raises 42501 if the caller does not own the store, or would run code of another role';

-- Raises 55000 unless the store is as the script made it: tables that are made like it
-- could not do what its owner has added.
CREATE FUNCTION @extschema@.idem_check_store(store pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	obstacle text;
BEGIN
	SELECT CASE
			WHEN c.relkind <> 'r' THEN 'It is not an ordinary table.'
			WHEN EXISTS (SELECT FROM pg_inherits WHERE inhrelid = store) THEN 'It inherits from another table.'
			-- the tables of a ring are heap tables: what another one does, as encrypting, they would not do
			WHEN a.amname <> 'heap' THEN 'It has another access method than heap.'
			WHEN c.relrowsecurity THEN 'It has row security.'
			WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = store) THEN 'It has a rule.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND store IN (conrelid, confrelid)) THEN 'It has a foreign key, or one refers to it.'
			WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = store) THEN 'It has a trigger.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = store AND contype = 'c') THEN 'It has a check constraint.'
			-- from 18 on the tables of a ring would keep it when the store has lost it
			WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = store AND attnum BETWEEN 1 AND 18 AND attnotnull
				AND attname NOT IN ('created_at', 'updated_at', 'expires_at', 'status', 'attempt', 'scope', 'idempotency_key')) THEN 'It has a further NOT NULL.'
			WHEN (SELECT count(*) FROM pg_index WHERE indrelid = store) <> 1 THEN 'It has a further key or index, or none.'
			-- a dump of a distributed store has the column of the tenants
			WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = store AND attnum > 0
				AND (attname <> 'tenant' OR NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus'))
				AND (attisdropped <> (attnum > 18) OR attgenerated <> '' OR attidentity <> '')) THEN 'It has other columns.'
		END INTO obstacle
		FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam WHERE c.oid = store;
	IF obstacle IS NOT NULL THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'table "idempotency_store" cannot be divided as it is', DETAIL = obstacle;
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_store(regclass) IS
	'internal: raises 55000 if the store has something that the tables of a ring, or shards, could not have';

CREATE VIEW @extschema@.idempotency_partitions AS
SELECT c.relname AS name, r.range_start, r.range_end,
	GREATEST(c.reltuples, 0)::pg_catalog.int8 AS rows_estimate,
	pg_catalog.pg_total_relation_size(c.oid) AS bytes,
	CASE
		WHEN r.kept_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'kept'
		WHEN r.range_end IS NULL THEN 'waiting'
		WHEN r.range_end OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN 'over'
		WHEN r.range_start OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp()
			OPERATOR(pg_catalog.+) COALESCE(NULLIF(pg_catalog.current_setting('idempotency.retention', true), ''), '24 h')::pg_catalog.interval) THEN 'ahead'
		ELSE 'live'
	END AS state
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_class s ON s.relnamespace OPERATOR(pg_catalog.=) e.extnamespace
	AND s.relname OPERATOR(pg_catalog.=) 'idempotency_store' AND s.relkind OPERATOR(pg_catalog.=) 'r'
JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) s.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
LEFT JOIN @extschema@.idempotency_ring r ON r.name OPERATOR(pg_catalog.=) c.relname
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotency';
COMMENT ON VIEW @extschema@.idempotency_partitions IS
	'the tables of the ring that idem_partition_store makes; no rows for a store without one';
COMMENT ON COLUMN @extschema@.idempotency_partitions.name IS 'name of the table, which is in the schema of the extension';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_start IS 'it gets new records that expire at this time or later; NULL: none';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_end IS 'and before this time';
COMMENT ON COLUMN @extschema@.idempotency_partitions.rows_estimate IS 'number of rows, as of the last vacuum';
COMMENT ON COLUMN @extschema@.idempotency_partitions.bytes IS 'size on disk, with its index';
COMMENT ON COLUMN @extschema@.idempotency_partitions.state IS 'live; ahead: for the time to come; over: to be emptied; kept: a record in it expires later than its range; waiting: has no range, until older transactions have ended';

CREATE FUNCTION @extschema@.idem_partition_store(period pg_catalog.interval)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- each column of a new table is merged with that of the store
SET client_min_messages = warning
AS $$
DECLARE
	schema_name text;
	store regclass;
	-- a year of "epoch" has 365.25 days, and its months have 30
	step numeric := extract(epoch FROM period) - extract(year FROM period) * 453600;
	retention numeric;
	wanted int;
	has int;
	number int := 0;
	new_table text;
	command text;
	is_distributed bool := false;
BEGIN
	IF period IS NULL OR NOT isfinite(period) OR step < 1 OR step > 31622400 THEN
		RAISE EXCEPTION 'period must be from one second to one year' USING ERRCODE = 'ID400';
	END IF;
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	IF has_table_privilege('pg_namespace', 'UPDATE') THEN
		PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	ELSIF EXISTS (SELECT FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace JOIN pg_database d ON d.datname = current_database()
		JOIN pg_roles r ON r.oid = CASE n.nspowner WHEN 'pg_database_owner'::regrole THEN d.datdba ELSE n.nspowner END
		WHERE e.extname = 'idempotency' AND NOT r.rolsuper AND r.rolname <> current_user AND r.oid NOT IN (SELECT p.proowner FROM pg_proc p
			JOIN pg_depend f ON f.classid = 'pg_proc'::regclass AND f.objid = p.oid AND f.deptype = 'e'
			WHERE f.refclassid = 'pg_extension'::regclass AND f.refobjid = e.oid AND p.probin IS NOT NULL))
	THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'another role owns the schema of the extension',
			DETAIL = format('It could give the name to another schema, whose functions would run with the rights of role "%s".', current_user),
			HINT = 'Let a superuser own the schema, or call the function as a superuser.';
	END IF;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	-- one change at a time
	EXECUTE format('LOCK TABLE %s.idempotency_ring IN SHARE ROW EXCLUSIVE MODE', schema_name);
	IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
		EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition WHERE logicalrelid = $1)' INTO is_distributed USING store;
	END IF;
	IF is_distributed THEN
		RAISE feature_not_supported USING
			MESSAGE = 'a store that is distributed over the nodes of a Citus cluster has no ring of tables';
	END IF;
	EXECUTE format('SELECT %s.idem_check_store($1)', schema_name) USING store;
	EXECUTE format('SELECT extract(epoch FROM GREATEST(coalesce(nullif(current_setting(''idempotency.retention'', true), ''''), ''24 h'')::interval,'
		' max(retention), max(min_retention))) FROM ONLY %s.idempotency_scope', schema_name) INTO retention;
	-- one for each period of the retention, one that is over and one that is ahead
	wanted := least(greatest(ceil(retention / step) + 2, 2), 32);
	IF ceil(retention / step) + 2 > 32 THEN
		RAISE WARNING 'a period of % is short for a retention of %', period, retention * interval '1 second'
			USING DETAIL = 'A ring has 32 tables at most; records that expire later than its ranges are in the store itself, and are swept one by one.',
			HINT = 'Choose half of the retention, or so.';
	END IF;
	SELECT count(*) INTO has FROM pg_inherits WHERE inhparent = store;
	WHILE has < wanted LOOP
		number := number + 1;
		new_table := format('%s.idempotency_store_p%s', schema_name, number);
		-- somebody may have a table of that name
		CONTINUE WHEN to_regclass(new_table) IS NOT NULL OR to_regtype(new_table) IS NOT NULL;
		SELECT format('CREATE TABLE %s (LIKE %s INCLUDING ALL) INHERITS (%s) USING heap%s%s', new_table, store, store,
				' WITH (' || nullif(array_to_string(c.reloptions, ', '), '') || ')', ' TABLESPACE ' || quote_ident(t.spcname))
			INTO command FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = store;
		EXECUTE command;
		-- default privileges would show records to other roles
		FOR command IN
			SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', new_table,
				CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
			FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = new_table::regclass AND a.grantee <> c.relowner
		LOOP
			EXECUTE command;
		END LOOP;
		EXECUTE format('ALTER TABLE %s ALTER response_headers SET STATISTICS 0, ALTER response_payload SET STATISTICS 0,'
			' ALTER response_body SET STATISTICS 0', new_table);
		EXECUTE format('ALTER TABLE %s OWNER TO %I', new_table, (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = store));
		has := has + 1;
	END LOOP;
	EXECUTE format('DELETE FROM %s.idempotency_ring WHERE name NOT IN (SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid'
		' WHERE i.inhparent = $1)', schema_name) USING store;
	EXECUTE format('INSERT INTO %s.idempotency_ring (name, period) SELECT DISTINCT c.relname, $2 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid'
		' WHERE i.inhparent = $1 ON CONFLICT (name) DO UPDATE SET period = EXCLUDED.period, leaving = false', schema_name)
		-- ranges do not follow the calendar, nor the time zone of the session that collects
		USING store, make_interval(secs => step::float8);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_partition_store(interval) IS
	'give the store a ring of tables by expiry, each for so much time; none of them is made or dropped later';

CREATE FUNCTION @extschema@.idem_unpartition_store()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
BEGIN
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	IF has_table_privilege('pg_namespace', 'UPDATE') THEN
		PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	ELSIF EXISTS (SELECT FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace JOIN pg_database d ON d.datname = current_database()
		JOIN pg_roles r ON r.oid = CASE n.nspowner WHEN 'pg_database_owner'::regrole THEN d.datdba ELSE n.nspowner END
		WHERE e.extname = 'idempotency' AND NOT r.rolsuper AND r.rolname <> current_user AND r.oid NOT IN (SELECT p.proowner FROM pg_proc p
			JOIN pg_depend f ON f.classid = 'pg_proc'::regclass AND f.objid = p.oid AND f.deptype = 'e'
			WHERE f.refclassid = 'pg_extension'::regclass AND f.refobjid = e.oid AND p.probin IS NOT NULL))
	THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'another role owns the schema of the extension',
			DETAIL = format('It could give the name to another schema, whose functions would run with the rights of role "%s".', current_user),
			HINT = 'Let a superuser own the schema, or call the function as a superuser.';
	END IF;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	EXECUTE format('UPDATE %s.idempotency_ring SET leaving = true', schema_name);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_unpartition_store() IS
	'give the tables of the ring no further range: collection drops each when its records have expired';

-- A store that is distributed over the nodes of a Citus cluster

-- Nobody waits long for a lock that idem_distribute_store waits for: it gives up
-- after 50 milliseconds, lets those behind it go on, and tries again.
CREATE FUNCTION @extschema@.idem_lock_store(store pg_catalog.regclass, max_tries pg_catalog.int4)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
	tries int := 0;
BEGIN
	LOOP
		BEGIN
			EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', store);
			RETURN;
		EXCEPTION WHEN lock_not_available THEN
			tries := tries + 1;
			IF tries >= max_tries THEN
				RAISE lock_not_available USING
					MESSAGE = 'could not lock the store',
					DETAIL = 'A transaction that uses the store has been open for too long, or VACUUM is at work on it.',
					HINT = 'Try again when that has ended: pg_locks shows what it is.';
			END IF;
			PERFORM pg_sleep(0.05 + random() * 0.1);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_lock_store(regclass, int) IS
	'internal: locks the store for a change of its tables, without a long queue behind the lock';

-- A snapshot that is older than the lock on the store does not show all records, and
-- what it does not show would be lost with the tables that are dropped.  Nor does it show
-- all tables of a ring.
CREATE FUNCTION @extschema@.idem_require_read_committed()
RETURNS pg_catalog.void
LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RAISE invalid_transaction_state USING
			MESSAGE = format('the tables of the store cannot be changed in a transaction of isolation level %s',
				upper(current_setting('transaction_isolation'))),
			DETAIL = 'Its snapshot may not show all tables and records.',
			HINT = 'Use a transaction of isolation level READ COMMITTED.';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_require_read_committed() IS
	'internal: raises 25000 in a transaction that keeps one snapshot';

-- Citus runs the command on each worker, in a transaction of its own.
CREATE FUNCTION @extschema@.idem_on_workers(command pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node record;
BEGIN
	FOR node IN EXECUTE 'SELECT * FROM run_command_on_workers($1)' USING command LOOP
		IF NOT node.success THEN
			RAISE object_not_in_prerequisite_state USING
				MESSAGE = format('node %s:%s could not follow', node.nodename, node.nodeport),
				DETAIL = node.result,
				HINT = 'Mend what the node reports, and call the function again.';
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_on_workers(text) IS
	'internal: runs a command on each worker of the Citus cluster; 55000 if it fails on one';

-- The extension calls it at COMMIT, as the role that has begun an operation on another
-- node: so it is one of the functions that idem_grant is for.
CREATE FUNCTION @extschema@.idem_require_ended(scope pg_catalog.text)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_require_ended(text) IS
	'internal: raises ID428 if this transaction has begun an operation on this node and not ended it';

CREATE OR REPLACE FUNCTION @extschema@.idem_set_rights(role pg_catalog.regrole, command pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	object record;
	schema_name name;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be null' USING ERRCODE = 'ID400';
	END IF;
	-- regrole accepts any number, even if no role has this OID
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION 'role with OID % does not exist', role::oid USING ERRCODE = 'undefined_object';
	END IF;
	SELECT n.nspname INTO schema_name
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		WHERE e.extname = 'idempotency';
	-- idem_revoke leaves this right: the schema may hold other objects
	IF command LIKE 'GRANT %' AND NOT has_schema_privilege(role, schema_name, 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', schema_name, role);
	END IF;
	FOR object IN
		SELECT 'EXECUTE' AS right, 'FUNCTION ' || p.oid::regprocedure AS name
		FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
		JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		WHERE e.extname = 'idempotency'
		AND p.proname IN ('idem_begin', 'idem_complete', 'idem_fail', 'idem_release', 'idem_extend', 'idem_progress',
			'idem_lookup', 'idem_lost_attempts', 'idem_call', 'idem_begin_batch', 'idem_complete_batch', 'idem_lock',
			'idem_advance', 'idem_fingerprint', 'idem_step_key', 'idem_require_ended')
		UNION ALL
		SELECT 'USAGE', 'TYPE ' || t.oid::regtype
		FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
		JOIN pg_type t ON d.classid = 'pg_type'::regclass AND d.objid = t.oid
		WHERE e.extname = 'idempotency'
		AND t.typname IN ('idem_operation', 'idem_outcome', 'idempotency_status')
	LOOP
		EXECUTE format(command, object.right, object.name, role);
	END LOOP;
END
$$;
-- The note is where the response will be.
CREATE FUNCTION @extschema@.idem_progress(
	key			pg_catalog.text,
	progress	pg_catalog.jsonb,
	scope		pg_catalog.text DEFAULT '',
	fence		pg_catalog.int8 DEFAULT NULL,
	lease		pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.timestamptz
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_progress(text, jsonb, text, bigint, interval) IS
	'leave a note of how far a leased attempt came, for its next owner; returns the end of the lease';

CREATE FUNCTION @extschema@.idem_progress(
	operation	@extschema@.idem_operation,
	progress	pg_catalog.jsonb,
	lease		pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.timestamptz
AS 'MODULE_PATHNAME', 'idem_progress_operation' LANGUAGE c VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_progress(@extschema@.idem_operation, jsonb, interval) IS
	'leave a note of how far the leased attempt that idem_begin returned came; returns the end of the lease';

COMMENT ON COLUMN @extschema@.idempotency_store.response_payload IS 'response or error, as jsonb; PENDING: the note of progress';

-- Attempts that were lost with their transaction

CREATE FUNCTION @extschema@.idem_lost_attempts(
	key		pg_catalog.text,
	scope	pg_catalog.text DEFAULT '')
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION @extschema@.idem_lost_attempts(text, text) IS
	'how often an operation was begun and rolled back since its last end, release or forgetting; NULL when the library is not preloaded';

ALTER TABLE @extschema@.idempotency_scope
	ADD COLUMN max_lost_attempts pg_catalog.int4 CHECK (max_lost_attempts OPERATOR(pg_catalog.>=) 0),
	ADD COLUMN too_large_response pg_catalog.jsonb
		CHECK (pg_catalog.octet_length(too_large_response::pg_catalog.text) OPERATOR(pg_catalog.<=) 1000);
COMMENT ON COLUMN @extschema@.idempotency_scope.max_lost_attempts IS 'how many attempts of an operation may be lost with their transaction; 0: no limit';
COMMENT ON COLUMN @extschema@.idempotency_scope.too_large_response IS 'what is stored in place of the response of a completed operation that is too large';

DROP FUNCTION @extschema@.idem_set_policy(text, interval, interval, interval, int, int, int, interval);
CREATE FUNCTION @extschema@.idem_set_policy(
	pattern				pg_catalog.text,
	retention			pg_catalog.interval DEFAULT NULL,
	min_retention		pg_catalog.interval DEFAULT NULL,
	max_retention		pg_catalog.interval DEFAULT NULL,
	max_attempts		pg_catalog.int4 DEFAULT NULL,
	attempts_limit		pg_catalog.int4 DEFAULT NULL,
	max_response_size	pg_catalog.int4 DEFAULT NULL,
	max_lease			pg_catalog.interval DEFAULT NULL,
	max_lost_attempts	pg_catalog.int4 DEFAULT NULL,
	too_large_response	pg_catalog.jsonb DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_set_policy(text, interval, interval, interval, int, int, int, interval, int, jsonb) IS
	'set defaults and bounds for scopes; where an argument is NULL, shorter patterns and then the settings decide';

CREATE FUNCTION @extschema@.idem_lost_stats(
	OUT datid					pg_catalog.oid,
	OUT attempts_lost			pg_catalog.int8,
	OUT operations_losing		pg_catalog.int8,
	OUT operations_near_limit	pg_catalog.int8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.idem_lost_stats() IS
	'internal: the figures of lost attempts behind idempotency_stats; no rows when the library is not preloaded';

-- Others may depend on the view, so it is not made anew. Columns can only come behind those of 1.0.
CREATE OR REPLACE VIEW @extschema@.idempotency_stats AS
SELECT d.datname, s.acquired, s.replayed_completed, s.replayed_failed, s.in_progress,
	s.mismatches, s.taken_over, s.completed, s.failed, s.released, s.forgotten, s.leases_lost,
	s.commits_refused, s.waits,
	s.wait_microseconds OPERATOR(pg_catalog.*) interval '1 microsecond' AS wait_time,
	s.wait_microseconds::pg_catalog.float8 OPERATOR(pg_catalog./) 1000000 AS wait_seconds,
	s.collected_rows, s.sweeps, s.last_sweep_at,
	s.last_sweep_microseconds OPERATOR(pg_catalog.*) interval '1 microsecond' AS last_sweep_duration,
	s.last_sweep_microseconds::pg_catalog.float8 OPERATOR(pg_catalog./) 1000000 AS last_sweep_seconds,
	s.backlog_rows, l.attempts_lost, l.operations_losing, l.operations_near_limit
FROM pg_catalog.pg_database d
LEFT JOIN @extschema@.idem_stats() s ON s.datid OPERATOR(pg_catalog.=) d.oid
LEFT JOIN @extschema@.idem_lost_stats() l ON l.datid OPERATOR(pg_catalog.=) d.oid
WHERE s.datid IS NOT NULL OR d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();

-- Citus distributes by a column, and sends a call to the node of an argument. Both
-- have the type of the tenants.
CREATE FUNCTION @extschema@.idem_prepare_node(tenant_type pg_catalog.text, roles pg_catalog.text[] DEFAULT '{}',
	fence pg_catalog.int8 DEFAULT 0)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
SET citus.enable_ddl_propagation = off
AS $$
DECLARE
	schema_name text;
	store regclass;
	plain_type text := regexp_replace(tenant_type, ' COLLATE .*', '');
	original record;
	variant regprocedure;
	role text;
BEGIN
	IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be superuser: functions in C are created on each node';
	END IF;
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner($1)', schema_name) USING store;
	IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = store) THEN
		RAISE feature_not_supported USING
			MESSAGE = 'a store with a ring of tables cannot be distributed',
			HINT = 'Call idem_unpartition_store(), and wait until the tables have gone.';
	END IF;
	IF plain_type NOT IN ('bigint', 'integer', 'uuid', 'text', 'character varying') THEN
		RAISE feature_not_supported USING
			MESSAGE = format('tenants of type %s are not supported', plain_type),
			HINT = 'Distribute the business tables by a column of type bigint, integer, uuid, text or varchar.';
	END IF;
	IF current_setting('shared_preload_libraries') !~ 'citus.*idempotency' THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'the library is not preloaded',
			HINT = 'Set shared_preload_libraries = ''citus, idempotency'' on each node and start it again.';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = store AND a.attname = 'tenant' AND NOT a.attisdropped
		AND tenant_type = format_type(a.atttypid, NULL) || coalesce(' COLLATE ' || l.oid::regcollation, ''))
	THEN
		EXECUTE format('ALTER TABLE %1$s DROP COLUMN IF EXISTS tenant, DROP CONSTRAINT IF EXISTS idempotency_store_pkey,'
			' ADD COLUMN tenant %2$s', store, tenant_type);
		EXECUTE format('UPDATE %s SET tenant = scope::%s', store, plain_type);
		EXECUTE format('ALTER TABLE %s ALTER COLUMN tenant SET NOT NULL,'
			' ADD CONSTRAINT idempotency_store_pkey PRIMARY KEY (scope, idempotency_key, tenant)', store);
		EXECUTE format('COMMENT ON COLUMN %s.tenant IS %L', store, 'the scope as the type of the tenants; Citus distributes the store by it');
	END IF;
	FOR original IN
		SELECT p.proname, p.prosrc, p.probin, pg_get_function_result(p.oid) AS result,
			(SELECT string_agg(quote_ident(name) || ' ' || format_type(type, NULL), ', ' ORDER BY number)
				FROM unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY u (name, type, number)) AS arguments,
			(SELECT string_agg(format_type(type, NULL), ', ' ORDER BY number)
				FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u (type, number)) AS types
		FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'idempotency' AND (p.proargnames && '{key,keys}' OR p.proname = 'idem_require_ended')
			AND 'scope' = ANY (p.proargnames) AND 'tenant' <> ALL (p.proargnames)
	LOOP
		-- one that somebody else has made there makes CREATE FUNCTION fail
		CONTINUE WHEN EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
			WHERE e.extname = 'idempotency' AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
			AND d.objid = to_regprocedure(format('%s.%I(%s, %s)', schema_name, original.proname, original.types, plain_type)));
		EXECUTE format('CREATE FUNCTION %s.%I(%s, tenant %s) RETURNS %s AS %L, %L LANGUAGE c VOLATILE PARALLEL UNSAFE',
			schema_name, original.proname, original.arguments, plain_type, original.result, original.probin, original.prosrc);
		variant := to_regprocedure(format('%s.%I(%s, %s)', schema_name, original.proname, original.types, plain_type));
		EXECUTE format('COMMENT ON FUNCTION %s IS %L', variant, 'internal: the function that Citus sends to the node of the tenant');
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', variant);
		EXECUTE format('ALTER EXTENSION idempotency ADD FUNCTION %s', variant);
	END LOOP;
	FOREACH role IN ARRAY roles LOOP
		EXECUTE format('SELECT %s.idem_grant($1::regrole)', schema_name) USING role;
	END LOOP;
	-- no fence of this node may be one that the coordinator has given out
	EXECUTE format('SELECT setval(%L, $1) FROM %2$s.idempotency_fence WHERE last_value < $1', schema_name || '.idempotency_fence', schema_name)
		USING fence;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_prepare_node(text, text[], bigint) IS
	'prepare a node for a store that is distributed by tenants of this type; a new node needs it before citus_add_node';

CREATE FUNCTION @extschema@.idem_distribute_store(colocate_with pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
SET citus.enable_unsafe_triggers = on
AS $$
DECLARE
	schema_name text;
	store regclass;
	scopes regclass;
	tenant_type text;
	roles text[];
	fence bigint;
	variant regprocedure;
	is_new bool;
BEGIN
	IF colocate_with IS NULL THEN
		RAISE EXCEPTION 'colocate_with must not be null' USING ERRCODE = 'ID400';
	END IF;
	IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be superuser: functions in C are created on each node';
	END IF;
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	SELECT quote_ident(n.nspname), s.oid, r.oid INTO schema_name, store, scopes
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class s ON s.relnamespace = n.oid AND s.relname = 'idempotency_store'
		JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = 'idempotency_scope'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_require_coordinator(), %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	EXECUTE 'SELECT format_type(a.atttypid, NULL) || coalesce('' COLLATE '' || l.oid::regcollation, '''')'
		' FROM pg_dist_partition p JOIN pg_attribute a ON a.attrelid = p.logicalrelid'
		' AND a.attname = column_to_column_name(p.logicalrelid, p.partkey)'
		' LEFT JOIN pg_collation l ON l.oid = a.attcollation'
		' WHERE p.logicalrelid = $1 AND p.partmethod = ''h'' AND p.repmodel = ''s'''
		INTO tenant_type USING colocate_with;
	IF tenant_type IS NULL THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('table "%s" is not distributed by a column', colocate_with),
			HINT = 'Name a business table that create_distributed_table() has distributed by the tenant.';
	END IF;
	EXECUTE 'SELECT NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1)' INTO is_new USING store;
	IF is_new THEN
		EXECUTE format('SELECT %1$s.idem_lock_store($1, 200), %1$s.idem_check_store($1)', schema_name) USING store;
		IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = store) THEN
			RAISE feature_not_supported USING
				MESSAGE = 'a store with a ring of tables cannot be distributed',
				HINT = 'Call idem_unpartition_store(), and wait until the tables have gone.';
		END IF;
	END IF;
	-- the functions have the same rights on all nodes
	SELECT coalesce(array_agg(DISTINCT a.grantee::regrole::text), '{}') INTO roles FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_proc p ON p.oid = d.objid CROSS JOIN aclexplode(p.proacl) a
		WHERE e.extname = 'idempotency' AND p.proname = 'idem_begin' AND a.grantee NOT IN (0, p.proowner);
	EXECUTE format('SELECT last_value FROM %s.idempotency_fence', schema_name) INTO fence;
	IF is_new THEN
		-- a restored store has fences that no sequence knows: in records, and the Citus fences
		EXECUTE format('SELECT greatest($1, max(fence)) FROM %s', store) INTO fence USING fence;
	END IF;
	EXECUTE format('SELECT %1$s.idem_on_workers($1)', schema_name)
		USING format('SELECT %s.idem_prepare_node(%L::pg_catalog.text, %L::pg_catalog.text[], %s::pg_catalog.int8)', schema_name, tenant_type, roles, fence);
	EXECUTE format('SELECT %s.idem_prepare_node($1, $2, $3)', schema_name) USING tenant_type, roles, fence;
	IF is_new THEN
		EXECUTE 'SELECT create_distributed_table($1, ''tenant'', colocate_with := $2)' USING store, colocate_with::text;
		EXECUTE 'SELECT create_reference_table($1)' USING scopes;
		EXECUTE 'SELECT truncate_local_data_after_distributing_table(one) FROM unnest(ARRAY[$1, $2]) one' USING store, scopes;
	END IF;
	FOR variant IN SELECT p.oid FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'idempotency' AND 'tenant' = ANY (p.proargnames) AND 'scope' = ANY (p.proargnames)
	LOOP
		EXECUTE 'SELECT create_distributed_function($1, ''tenant'', colocate_with := $2, force_delegation := true)'
			USING variant, store::text;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_distribute_store(regclass) IS
	'distribute the store over the nodes of a Citus cluster, each scope beside the rows of this table with the same tenant';

-- Only the coordinator changes what all nodes share.
CREATE FUNCTION @extschema@.idem_require_coordinator()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	is_coordinator bool;
	is_member bool;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('extension "citus" is not installed in database "%s"', current_database()),
			HINT = 'On one server the store needs no distribution; idem_partition_store() is for large stores.';
	END IF;
	EXECUTE 'SELECT groupid = 0, EXISTS (SELECT FROM pg_dist_node WHERE groupid = 0) FROM pg_dist_local_group'
		INTO is_coordinator, is_member;
	IF NOT is_coordinator THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'this node is not the coordinator of the cluster',
			HINT = 'Connect to the coordinator.';
	ELSIF NOT is_member THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'the coordinator does not belong to the cluster',
			HINT = 'Run SELECT citus_set_coordinator_host(...), so that it has the claims and policies, too.';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_require_coordinator() IS
	'internal: raises 55000 unless this is the coordinator of a Citus cluster';

-- The coordinator needs it to have its store for itself. Workers stay prepared.
CREATE FUNCTION @extschema@.idem_restore_node()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET citus.enable_ddl_propagation = off
AS $$
DECLARE
	schema_name text;
	store regclass;
	variant regprocedure;
BEGIN
	IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be superuser: functions in C are created on each node';
	END IF;
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner($1)', schema_name) USING store;
	IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = store) THEN
		RAISE feature_not_supported USING
			MESSAGE = 'a store with a ring of tables cannot lose the column of the tenants',
			HINT = 'Call idem_unpartition_store(), and wait until the tables have gone.';
	END IF;
	FOR variant IN SELECT p.oid FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'idempotency' AND 'tenant' = ANY (p.proargnames) AND 'scope' = ANY (p.proargnames)
	LOOP
		EXECUTE format('ALTER EXTENSION idempotency DROP FUNCTION %s', variant);
		EXECUTE format('DROP FUNCTION %s', variant);
	END LOOP;
	IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = store AND attname = 'tenant' AND NOT attisdropped) THEN
		EXECUTE format('ALTER TABLE %s DROP COLUMN tenant', store);
		EXECUTE format('ALTER TABLE %s ADD CONSTRAINT idempotency_store_pkey PRIMARY KEY (scope, idempotency_key)', store);
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_restore_node() IS
	'undo idem_prepare_node on a node that has left the cluster';

CREATE FUNCTION @extschema@.idem_undistribute_store()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	scopes regclass;
	distributed regclass[];
	one regclass;
	table_name text;
	command text;
	columns text;
BEGIN
	IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be superuser: functions in C are created on each node';
	END IF;
	-- until the end nobody gives the name of the schema to another one, whose functions would run
	PERFORM FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency' FOR KEY SHARE OF n;
	SELECT quote_ident(n.nspname), s.oid, r.oid INTO schema_name, store, scopes
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class s ON s.relnamespace = n.oid AND s.relname = 'idempotency_store'
		JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = 'idempotency_scope'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_require_coordinator(), %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	EXECUTE 'SELECT coalesce(array_agg(logicalrelid::regclass), ''{}'') FROM pg_dist_partition WHERE logicalrelid IN ($1, $2)'
		INTO distributed USING store, scopes;
	FOREACH one IN ARRAY distributed LOOP
		EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', one);
		EXECUTE format('CREATE TEMP TABLE idem_kept_%s ON COMMIT DROP AS SELECT * FROM %s', one::oid, one);
		SELECT relname INTO table_name FROM pg_class WHERE oid = one;
		EXECUTE 'SELECT master_remove_distributed_table_metadata_from_workers($1, $2, $3)' USING one, schema_name, table_name;
		EXECUTE 'SELECT citus_drop_all_shards($1, $2, $3)' USING one, schema_name, table_name;
		EXECUTE 'SELECT master_remove_partition_metadata($1, $2, $3)' USING one, schema_name, table_name;
		FOR command IN SELECT format('DROP TRIGGER %I ON %s', t.tgname, one) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
			WHERE t.tgrelid = one AND p.proname = 'citus_truncate_trigger'
		LOOP
			EXECUTE command;
		END LOOP;
		-- what was there before the table was distributed
		EXECUTE format('TRUNCATE %s', one);
	END LOOP;
	EXECUTE format('SELECT %s.idem_restore_node()', schema_name);
	FOREACH one IN ARRAY distributed LOOP
		SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
			WHERE attrelid = one AND attnum > 0 AND NOT attisdropped;
		EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM pg_temp.idem_kept_%s', one, columns, columns, one::oid);
	END LOOP;
	-- the Citus fences are not needed when the sequence is above all of them
	EXECUTE format('SELECT setval(%L, greatest((SELECT last_value FROM %s.idempotency_fence), max(fence))) FROM %s',
		schema_name || '.idempotency_fence', schema_name, store);
	EXECUTE format('DELETE FROM %s WHERE length(idempotency_key) = 0', store);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_undistribute_store() IS
	'bring all records back to the coordinator; the store is locked meanwhile';

-- The desk of the operator: failures

-- The words of the extension, and a SQLSTATE, say nothing of a request. All else that an
-- application has stored might.
CREATE FUNCTION @extschema@.idem_failure_cause(payload pg_catalog.jsonb, is_sealed pg_catalog.bool)
RETURNS pg_catalog.text
LANGUAGE sql IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE
RETURN CASE
	WHEN is_sealed THEN 'sealed'
	WHEN (payload OPERATOR(pg_catalog.->>) 'reason') OPERATOR(pg_catalog.=) ANY (ARRAY['attempts exhausted', 'attempts lost'])
		THEN payload OPERATOR(pg_catalog.->>) 'reason'
	WHEN (payload OPERATOR(pg_catalog.->>) 'sqlstate') OPERATOR(pg_catalog.~) '^[0-9A-Z]{5}$'
		THEN payload OPERATOR(pg_catalog.->>) 'sqlstate'
	ELSE 'other'
END;
COMMENT ON FUNCTION @extschema@.idem_failure_cause(jsonb, bool) IS
	'internal: what a view may show of a stored failure';

-- In these two views a function in the reader's condition, however cheap, sees only what the
-- view shows, and not the scopes of all other records.  The planner looks through a UNION ALL
-- at the top of a view in spite of the barrier: so the view of 1.0 gets a level more.

CREATE OR REPLACE VIEW @extschema@.idempotency_in_flight WITH (security_barrier = true) AS
SELECT f.kind, f.scope, f.idempotency_key, f.attempt, f.age, f.lease_left, f.pid, f.gid
FROM (
	SELECT 'leased'::pg_catalog.text AS kind, o.scope,
		CASE WHEN @extschema@.idem_may_use_scope(o.scope) THEN o.idempotency_key END AS idempotency_key, o.attempt,
		CASE WHEN pg_catalog.isfinite(o.updated_at)
			THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) o.updated_at END AS age,
		CASE WHEN pg_catalog.isfinite(o.lease_expires_at)
			THEN o.lease_expires_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp() END AS lease_left,
		NULL::pg_catalog.int4 AS pid, NULL::pg_catalog.text AS gid
	FROM @extschema@.idempotency_store o
	WHERE pg_catalog.enum_eq(o.status, 'PENDING')
	UNION ALL
	SELECT CASE WHEN l.pid IS NULL THEN 'prepared' ELSE 'transaction' END, NULL, NULL, NULL,
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) COALESCE(a.xact_start, p.prepared),
		NULL, l.pid, p.gid
	FROM pg_catalog.pg_locks l
	LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
	LEFT JOIN pg_catalog.pg_locks x ON l.pid IS NULL AND x.pid IS NULL
		AND x.locktype OPERATOR(pg_catalog.=) 'transactionid' AND x.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
	LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction OPERATOR(pg_catalog.=) x.transactionid
	WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7648 AND l.granted
	AND l.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
) f;

CREATE VIEW @extschema@.idempotency_failures WITH (security_barrier = true) AS
SELECT o.scope,
	CASE WHEN @extschema@.idem_may_use_scope(o.scope)
		THEN @extschema@.idem_failure_cause(o.response_payload, o.sealed IS NOT NULL) END AS cause,
	CASE WHEN @extschema@.idem_may_use_scope(o.scope) THEN o.response_code END AS response_code,
	o.retry_at IS NOT NULL AS retryable,
	pg_catalog.count(*) AS operations,
	pg_catalog.min(o.updated_at) AS first_failed_at,
	pg_catalog.max(o.updated_at) AS last_failed_at
FROM @extschema@.idempotency_store o
WHERE pg_catalog.enum_eq(o.status, 'FAILED') AND o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW @extschema@.idempotency_failures IS
	'stored failures by scope and cause, without keys and payloads';

CREATE TABLE @extschema@.idempotency_forgotten (
	call_id			pg_catalog.uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
	forgotten_at	pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	session_role	pg_catalog.name NOT NULL DEFAULT SESSION_USER,
	role			pg_catalog.name NOT NULL,
	scope			pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	cause			pg_catalog.text,
	reason			pg_catalog.text NOT NULL,
	operations		pg_catalog.int8 NOT NULL
);
COMMENT ON TABLE @extschema@.idempotency_forgotten IS 'who has forgotten failures, and why: one row for each call of idem_forget_failed that removed something';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.call_id IS 'of the call';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.forgotten_at IS 'when';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.session_role IS 'the role that has logged in';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.role IS 'the role that has called: another one after SET ROLE, and in a function with SECURITY DEFINER';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.scope IS 'scope of the operations';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.cause IS 'cause that was asked for; NULL: any';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.reason IS 'what the caller has said';
COMMENT ON COLUMN @extschema@.idempotency_forgotten.operations IS 'how many records the call removed';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_forgotten', '');

CREATE FUNCTION @extschema@.idem_forget_failed(
	scope		pg_catalog.text,
	reason		pg_catalog.text,
	cause		pg_catalog.text DEFAULT NULL,
	max_rows	pg_catalog.int4 DEFAULT 1000)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_forget_failed(text, text, text, int) IS
	'remove the records of up to max_rows failures of a scope, so that these operations may run again, and note who did it and why; returns how many';

-- What is new belongs to the owner of what was there: idem_grant, his calls and collection need it.
-- And PUBLIC and default privileges have given rights on it.
DO $$
DECLARE
	command text;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	FOR command IN
		WITH made AS (
			SELECT 'TABLE' AS kind, c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS rights, s.relowner AS keeper
			FROM pg_extension e
			JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
			JOIN pg_class c ON c.oid = d.objid
			LEFT JOIN pg_class s ON s.relnamespace = e.extnamespace AND s.relname = 'idempotency_store'
			WHERE e.extname = 'idempotency' AND c.relname IN ('idempotency_ring', 'idempotency_partitions', 'idempotency_failures', 'idempotency_forgotten')
			UNION ALL
			SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)),
				(SELECT g.proowner FROM pg_proc g WHERE g.pronamespace = e.extnamespace AND g.proname = 'idem_gc' AND g.proargtypes = '23')
			FROM pg_extension e
			JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			JOIN pg_proc p ON p.oid = d.objid
			WHERE e.extname = 'idempotency' AND p.proname IN ('idem_check_owner', 'idem_check_store', 'idem_failure_cause', 'idem_forget_failed', 'idem_lock_store', 'idem_partition_store', 'idem_unpartition_store',
				'idem_distribute_store', 'idem_lost_attempts', 'idem_lost_stats', 'idem_on_workers', 'idem_prepare_node', 'idem_progress',
				'idem_require_coordinator', 'idem_require_ended', 'idem_require_read_committed', 'idem_restore_node', 'idem_set_policy',
				'idem_undistribute_store')
		)
		SELECT format('ALTER %s %s OWNER TO %I', kind, name, pg_get_userbyid(keeper)) FROM made
			-- what this script has made, and not what others have added to the extension
			WHERE owner <> keeper AND pg_get_userbyid(owner) = current_user
		UNION ALL
		SELECT format('REVOKE ALL ON %s %s FROM %s', kind, name,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
		FROM made, aclexplode(rights) a WHERE a.grantee <> owner AND a.grantee IS DISTINCT FROM keeper
		ORDER BY 1
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT SELECT ON @extschema@.idempotency_partitions, @extschema@.idempotency_failures TO pg_monitor, pg_read_all_stats;
GRANT EXECUTE ON FUNCTION @extschema@.idem_lost_stats(), @extschema@.idem_failure_cause(jsonb, bool) TO pg_monitor, pg_read_all_stats;
