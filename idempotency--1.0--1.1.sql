-- complain if the script is sourced in psql, rather than by ALTER EXTENSION
\echo Use "ALTER EXTENSION idempotency UPDATE TO '1.1'" to load this file. \quit

-- A store that is partitioned by expiry

CREATE TABLE @extschema@.idempotency_partitioning (
	only_row	pg_catalog.bool PRIMARY KEY DEFAULT true CHECK (only_row),
	period		pg_catalog.interval NOT NULL CHECK (period OPERATOR(pg_catalog.>=) interval '1 second'),
	leaving		pg_catalog.bool NOT NULL DEFAULT false,
	window_start	pg_catalog.timestamptz,
	window_end	pg_catalog.timestamptz
);
COMMENT ON TABLE @extschema@.idempotency_partitioning IS 'how the store is partitioned; written by idem_partition_store and idem_unpartition_store only; never dumped';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.only_row IS 'keeps the table at one row';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.period IS 'stretch of time of the partitions that are made from now on';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.leaving IS 'the store becomes one table when the records of its partitions have expired';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.window_start IS 'a large default partition has no records from this expiry on, so that partitions can be made';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.window_end IS 'up to this expiry';

CREATE FUNCTION @extschema@.idem_adopt_partition(part pg_catalog.regclass)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_adopt_partition(regclass) IS
	'internal: makes a table of the store belong to the extension';

CREATE FUNCTION @extschema@.idem_disown_partition(part pg_catalog.regclass)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_disown_partition(regclass) IS
	'internal: makes a table of the store independent of the extension, so that it can be dropped';

-- Nobody waits long for a lock that idem_partition_store waits for: it gives up
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

-- Whoever changes the store's tables runs what their owners have put on them, with his own
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
	-- an update of the extension by another role makes functions of that role
	keepers oid[] := ARRAY(SELECT p.proowner FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_proc p ON p.oid = d.objid WHERE e.extname = 'idempotency' ORDER BY p.proname <> 'idem_begin');
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
			'idempotency_partitioning', 'idempotency_partitions')
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

-- A snapshot that is older than the lock on the store does not show all records, and
-- what it does not show would be lost with the tables that are dropped.
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
			DETAIL = 'Its snapshot may not show all records.',
			HINT = 'Use a transaction of isolation level READ COMMITTED.';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_require_read_committed() IS
	'internal: raises 25000 in a transaction that keeps one snapshot';

-- Default privileges of the owner would show records to other roles.
CREATE FUNCTION @extschema@.idem_take_partition(part pg_catalog.regclass, owner pg_catalog.name)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', part,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
		FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = part AND a.grantee <> c.relowner
	LOOP
		EXECUTE command;
	END LOOP;
	EXECUTE format('ALTER TABLE %s OWNER TO %I', part, owner);
	EXECUTE format('SELECT %I.idem_adopt_partition(%L::pg_catalog.regclass)', (SELECT n.nspname
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency'), part::oid);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_take_partition(regclass, name) IS
	'internal: makes a new table part of the extension; nobody but its owner has rights on it';

-- A table that takes the place of the store has to have what is around the store:
-- rights, triggers, publications, and views that read it.
CREATE FUNCTION @extschema@.idem_store_surroundings(store pg_catalog.regclass)
RETURNS pg_catalog.text[]
LANGUAGE sql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- as the constants of a trigger or a view are written and read
SET datestyle = 'ISO'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $$
	SELECT coalesce(array_agg(command ORDER BY place), '{}') FROM (
		SELECT 1 AS place, format('GRANT %s ON %s TO %s%s', a.privilege_type, store,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
			CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) AS command
		FROM pg_class c, aclexplode(c.relacl) a
		WHERE c.oid = store AND a.grantee <> c.relowner
		UNION ALL
		SELECT 1, format('GRANT %s (%I) ON %s TO %s%s', a.privilege_type, t.attname, store,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
			CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM pg_attribute t, aclexplode(t.attacl) a
		WHERE t.attrelid = store AND NOT t.attisdropped
		UNION ALL
		SELECT 2, pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE t.tgrelid = store AND NOT t.tgisinternal
		UNION ALL
		SELECT 3, format('ALTER TABLE %s %s TRIGGER %I', store,
			CASE t.tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, t.tgname)
		FROM pg_trigger t WHERE t.tgrelid = store AND NOT t.tgisinternal AND t.tgenabled <> 'O'
		UNION ALL
		SELECT 4, format('ALTER PUBLICATION %I ADD TABLE %s', p.pubname, store)
		FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = store
		UNION ALL
		SELECT DISTINCT 5, format('CREATE OR REPLACE VIEW %s %s AS %s', v.oid::regclass,
			CASE WHEN v.reloptions IS NULL THEN '' ELSE 'WITH (' || array_to_string(v.reloptions, ', ') || ')' END,
			pg_get_viewdef(v.oid))
		FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
		JOIN pg_class v ON v.oid = r.ev_class
		WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = store AND v.relkind = 'v') AS found
$$;
COMMENT ON FUNCTION @extschema@.idem_store_surroundings(regclass) IS
	'internal: the commands that give rights, triggers, publications and views of the store to a table that takes its place';

-- What another table in the place of the store would not get; NULL: nothing.
CREATE FUNCTION @extschema@.idem_store_obstacle(store pg_catalog.regclass)
RETURNS pg_catalog.text
LANGUAGE sql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE
		WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = store) THEN 'It has row security.'
		WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = store) THEN 'It has rules.'
		WHEN EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = store AND (prqual IS NOT NULL OR prattrs IS NOT NULL))
			THEN 'A publication has only some of its rows or columns.'
		WHEN EXISTS (SELECT FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
			JOIN pg_class v ON v.oid = r.ev_class
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = store AND v.relkind = 'v' AND r.ev_type <> '1')
			THEN 'A rule of a view depends on it.'
		WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = store AND NOT tgisinternal AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL))
			THEN 'It has a trigger with a transition table.'
		WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = store AND NOT attisdropped AND attidentity <> '') THEN 'It has an identity column.'
		-- a view is made anew, and constants in it are read by code of its owner
		ELSE (SELECT format('View %s of another role depends on it.', v.oid::regclass)
			FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
			JOIN pg_class v ON v.oid = r.ev_class JOIN pg_roles o ON o.oid = v.relowner
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = store AND v.relkind = 'v'
			AND v.relowner <> c.relowner AND NOT o.rolsuper AND o.rolname <> current_user LIMIT 1)
	END
	FROM pg_class c WHERE c.oid = store
$$;
COMMENT ON FUNCTION @extschema@.idem_store_obstacle(regclass) IS
	'internal: what a table in the place of the store would not get; NULL if it gets everything';

-- What idem_partition_store could not take along, it does not lose silently.
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
			WHEN c.relispartition OR EXISTS (SELECT FROM pg_inherits WHERE store IN (inhparent, inhrelid)) THEN 'It inherits, or another table inherits from it.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = store AND contype NOT IN ('p', 'c', 'n', 't')) THEN 'It has a further key, or a foreign key.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE confrelid = store) THEN 'A foreign key refers to it.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = store AND NOT convalidated) THEN 'It has a constraint that is not validated.'
		END INTO obstacle
		FROM pg_class c WHERE c.oid = store;
	IF obstacle IS NULL THEN
		EXECUTE format('SELECT %I.idem_store_obstacle($1)', (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.oid = store)) INTO obstacle USING store;
	END IF;
	IF obstacle IS NULL THEN
		SELECT format('%s depends on it.', pg_describe_object(d.classid, d.objid, d.objsubid)) INTO obstacle
			FROM pg_depend d
			LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
			LEFT JOIN pg_class v ON v.oid = r.ev_class
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = store AND d.deptype = 'n'
			AND d.classid <> 'pg_constraint'::regclass AND d.classid <> 'pg_trigger'::regclass
			-- a temporary view of another session cannot be made anew
			AND (v.relkind IS DISTINCT FROM 'v' OR (v.relpersistence = 't' AND v.relnamespace <> pg_my_temp_schema())) LIMIT 1;
	END IF;
	IF obstacle IS NOT NULL THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'table "idempotency_store" cannot be divided as it is', DETAIL = obstacle;
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_store(regclass) IS
	'internal: raises 55000 if the store has something that a partitioned store could not have';

-- The bounds are written and read in one style, whatever that of the session is: of some
-- zones the short names mean more than one.
CREATE FUNCTION @extschema@.idem_partition_range(part pg_catalog.regclass,
	OUT range_start pg_catalog.timestamptz, OUT range_end pg_catalog.timestamptz)
LANGUAGE sql STABLE STRICT PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
	SELECT substring(bound, 'FROM [(]''([^'']*)''[)]')::timestamptz, substring(bound, 'TO [(]''([^'']*)''[)]')::timestamptz
	FROM (SELECT pg_get_expr(relpartbound, oid) AS bound FROM pg_class WHERE oid = part) c
$$;
COMMENT ON FUNCTION @extschema@.idem_partition_range(regclass) IS
	'internal: which records a partition of the store has; view idempotency_partitions calls it';

CREATE VIEW @extschema@.idempotency_partitions AS
SELECT c.relname AS name, b.range_start, b.range_end,
	GREATEST(c.reltuples, 0)::pg_catalog.int8 AS rows_estimate,
	pg_catalog.pg_total_relation_size(c.oid) AS bytes,
	CASE
		WHEN b.range_end IS NULL THEN 'default'
		WHEN b.range_end OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN 'over'
		WHEN b.range_start OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp()
			OPERATOR(pg_catalog.+) COALESCE(pg_catalog.current_setting('idempotency.retention', true), '24 h')::pg_catalog.interval) THEN 'ahead'
		ELSE 'live'
	END AS state
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_class s ON s.relnamespace OPERATOR(pg_catalog.=) e.extnamespace
	AND s.relname OPERATOR(pg_catalog.=) 'idempotency_store'
	AND pg_catalog.pg_get_partkeydef(s.oid) OPERATOR(pg_catalog.=) ANY (ARRAY['RANGE (expires_at)', 'RANGE ("expires_at")'])
JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) s.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
CROSS JOIN LATERAL @extschema@.idem_partition_range(c.oid::pg_catalog.regclass) b
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotency';
COMMENT ON VIEW @extschema@.idempotency_partitions IS
	'the partitions of a store that is partitioned by expiry; no rows for another store';
COMMENT ON COLUMN @extschema@.idempotency_partitions.name IS 'name of the table, which is in the schema of the extension';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_start IS 'its records expire at this time or later; NULL: the default partition';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_end IS 'its records expire before this time; NULL: the default partition';
COMMENT ON COLUMN @extschema@.idempotency_partitions.rows_estimate IS 'number of rows, as of the last vacuum';
COMMENT ON COLUMN @extschema@.idempotency_partitions.bytes IS 'size on disk, with its index';
COMMENT ON COLUMN @extschema@.idempotency_partitions.state IS 'live; ahead: made for the time to come; over: its records have expired; default: takes what has no other partition';

-- The default partition, NULL in a store that is not partitioned by expiry.
CREATE FUNCTION @extschema@.idem_rest_of_store(store pg_catalog.regclass)
RETURNS pg_catalog.regclass
LANGUAGE sql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT i.inhrelid::regclass FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
	WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'
	-- as written with quote_all_identifiers, too
	AND pg_get_partkeydef(store) IN ('RANGE (expires_at)', 'RANGE ("expires_at")')
$$;
COMMENT ON FUNCTION @extschema@.idem_rest_of_store(regclass) IS
	'internal: the default partition of a store that is partitioned by expiry';

-- Tables like the model, for the partitions that begin at these times. They are
-- made before the store is locked, as that takes longer than to attach them.
CREATE FUNCTION @extschema@.idem_new_partitions(model pg_catalog.regclass, starts pg_catalog.timestamptz[])
RETURNS pg_catalog.regclass[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	owner name;
	range_start timestamptz;
	base text;
	part text;
	number int;
	parts regclass[] := '{}';
BEGIN
	SELECT quote_ident(n.nspname), pg_get_userbyid(c.relowner) INTO schema_name, owner
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = model;
	FOREACH range_start IN ARRAY starts LOOP
		base := schema_name || '.idempotency_store_' || to_char(range_start AT TIME ZONE 'UTC',
			CASE WHEN date_trunc('second', range_start) = range_start THEN 'YYYYMMDD_HH24MISS' ELSE 'YYYYMMDD_HH24MISSUS' END);
		-- somebody may have detached a partition of that name, and kept it
		part := base;
		number := 0;
		WHILE to_regclass(part) IS NOT NULL LOOP
			number := number + 1;
			part := base || '_' || number;
		END LOOP;
		EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL EXCLUDING IDENTITY)'
			' WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000)', part, model);
		-- a default partition may have it for its own rows
		IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = part::regclass AND conname = 'idempotency_store_window') THEN
			EXECUTE format('ALTER TABLE %s DROP CONSTRAINT idempotency_store_window', part);
		END IF;
		EXECUTE format('SELECT %s.idem_take_partition($1, $2)', schema_name) USING part::regclass, owner;
		parts := parts || part::regclass;
	END LOOP;
	RETURN parts;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_new_partitions(regclass, timestamptz[]) IS
	'internal: makes tables that are to be partitions of the store';

-- The rows of a table that are moved must not be in it when a partition is attached, and
-- logical subscribers hear of them only if they come to a table that is a partition.
CREATE FUNCTION @extschema@.idem_move_rows(take pg_catalog.text, meanwhile pg_catalog.text, give pg_catalog.text)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_move_rows(text, text, text) IS
	'internal: runs three commands as the owner of the store; the rows that the first one returns are the table "moved" of the third, which runs if there are any; returns how many rows the first one changed';

-- While the default partition is locked, its rows are searched for those that
-- belong to the new partitions, so it must be small, or a validated check must
-- say that it has none. A row that moves is neither new nor gone: no trigger fires.
CREATE FUNCTION @extschema@.idem_attach_partitions(store pg_catalog.regclass, rest pg_catalog.regclass,
	parts pg_catalog.regclass[], starts pg_catalog.timestamptz[], ends pg_catalog.timestamptz[])
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
DECLARE
	is_checked bool := EXISTS (SELECT FROM pg_constraint
		WHERE conrelid = rest AND conname = 'idempotency_store_window' AND convalidated);
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store);
	names text := (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
		WHERE attrelid = rest AND attnum > 0 AND NOT attisdropped AND attgenerated = '');
	enable text[];
	attach text;
	command text;
BEGIN
	EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', rest);
	SELECT array_agg(format('ALTER TABLE ONLY %s ENABLE %s TRIGGER %I', rest,
			CASE tgenabled WHEN 'R' THEN 'REPLICA' WHEN 'A' THEN 'ALWAYS' ELSE '' END, tgname))
		INTO enable FROM pg_trigger WHERE tgrelid = rest AND NOT tgisinternal AND tgenabled <> 'D';
	FOR i IN 1 .. cardinality(parts) LOOP
		attach := format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', store, parts[i], starts[i], ends[i]);
		IF NOT is_checked THEN
			EXECUTE format('SELECT %s.idem_move_rows($1, $2, $3)', schema_name) USING
				format('ALTER TABLE ONLY %1$s DISABLE TRIGGER USER; DELETE FROM ONLY %1$s WHERE expires_at >= %2$L AND expires_at < %3$L RETURNING %4$s',
					rest, starts[i], ends[i], names),
				attach,
				format('ALTER TABLE %1$s DISABLE TRIGGER USER; INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM moved', parts[i], names);
			FOR command IN
				SELECT format('ALTER TABLE %s ENABLE %s TRIGGER %I', parts[i],
					CASE above.tgenabled WHEN 'R' THEN 'REPLICA' WHEN 'A' THEN 'ALWAYS' ELSE '' END, t.tgname)
				FROM pg_trigger t JOIN pg_trigger above ON above.oid = t.tgparentid
				WHERE t.tgrelid = parts[i] AND t.tgenabled <> above.tgenabled
				UNION ALL SELECT unnest(enable)
			LOOP
				EXECUTE command;
			END LOOP;
		ELSE
			EXECUTE attach;
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_attach_partitions(regclass, regclass, regclass[], timestamptz[], timestamptz[]) IS
	'internal: adds tables to the store as its partitions, and moves their rows there';

CREATE FUNCTION @extschema@.idem_make_partitions(store pg_catalog.regclass, rest pg_catalog.regclass,
	starts pg_catalog.timestamptz[], ends pg_catalog.timestamptz[])
RETURNS pg_catalog.bool
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
AS $$
DECLARE
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store);
BEGIN
	EXECUTE format('SELECT %1$s.idem_attach_partitions($1, $2, %1$s.idem_new_partitions($2, $3), $3, $4)', schema_name)
		USING store, rest, starts, ends;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_make_partitions(regclass, regclass, timestamptz[], timestamptz[]) IS
	'internal: adds partitions to the store; false if a lock was not free';

-- From one time to another in steps. A stretch that has a partition is left out,
-- and after a change of the period the first one begins where the last one ends.
CREATE FUNCTION @extschema@.idem_stretches(range_start pg_catalog.timestamptz, range_end pg_catalog.timestamptz, step pg_catalog.numeric,
	OUT starts pg_catalog.timestamptz[], OUT ends pg_catalog.timestamptz[])
LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
BEGIN
	EXECUTE format('SELECT coalesce(array_agg(first ORDER BY first), ''{}''), coalesce(array_agg(last ORDER BY first), ''{}'') FROM ('
		' SELECT GREATEST(to_timestamp(n * $3), $1, (SELECT max(p.range_end) FROM %I.idempotency_partitions p'
		' WHERE p.range_start < to_timestamp((n + 1) * $3))) AS first, to_timestamp((n + 1) * $3) AS last'
		' FROM generate_series(floor(extract(epoch FROM $1) / $3), ceil(extract(epoch FROM $2) / $3) - 1) n) s WHERE first < last',
		(SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'idempotency'))
		INTO starts, ends USING range_start, range_end, step;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_stretches(timestamptz, timestamptz, numeric) IS
	'internal: the partitions that are missing between two times';

-- Partitions beside a large default partition, in three transactions, none of which
-- holds a lock for long that sessions wait for. The first opens a window of time
-- that is yet to come: from then on no record with an expiry in it is stored in
-- the default partition. The second sees to the records that are there already, and
-- has this checked, while sessions go on. The third attaches the partitions of the
-- window. So that a record need not move, it is kept until the window ends, which
-- is longer and never shorter than was wanted.
CREATE FUNCTION @extschema@.idem_leave_window()
RETURNS pg_catalog.trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF new.expires_at >= tg_argv[0]::timestamptz AND new.expires_at < tg_argv[1]::timestamptz THEN
		new.expires_at := tg_argv[1];
	END IF;
	RETURN new;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_leave_window() IS
	'internal: keeps a record longer, so that no record expires in the stretch of time of partitions that are being made';

CREATE FUNCTION @extschema@.idem_open_window(rest pg_catalog.regclass, range_start pg_catalog.timestamptz, range_end pg_catalog.timestamptz)
RETURNS pg_catalog.bool
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
DECLARE
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rest);
BEGIN
	EXECUTE format('ALTER TABLE %s ADD CONSTRAINT idempotency_store_window CHECK (expires_at < %L OR expires_at >= %L) NOT VALID',
		rest, range_start, range_end);
	EXECUTE format('CREATE TRIGGER idempotency_store_window BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s.idem_leave_window(%L, %L)',
		rest, schema_name, range_start, range_end);
	EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER idempotency_store_window', rest);
	EXECUTE format('UPDATE %s.idempotency_partitioning SET window_start = $1, window_end = $2', schema_name) USING range_start, range_end;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_open_window(regclass, timestamptz, timestamptz) IS
	'internal: from now on no record that expires in this stretch of time goes to the default partition; false if a lock was not free';

-- Only a transaction that nobody waits for has the check validated.
CREATE FUNCTION @extschema@.idem_settle_window(rest pg_catalog.regclass, range_start pg_catalog.timestamptz, range_end pg_catalog.timestamptz)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
DECLARE
	kept bigint;
BEGIN
	IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' AND locktype = 'relation') THEN
		RETURN;
	END IF;
	EXECUTE format('SELECT %I.idem_move_rows($1, ''SELECT'', ''SELECT'')',
		(SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rest)) INTO kept USING
		format('WITH few AS MATERIALIZED (SELECT ctid FROM ONLY %1$s WHERE expires_at >= %2$L AND expires_at < %3$L LIMIT 1000 FOR UPDATE SKIP LOCKED)'
			' UPDATE ONLY %1$s kept SET expires_at = %3$L FROM few WHERE kept.ctid OPERATOR(pg_catalog.=) few.ctid', rest, range_start, range_end);
	IF kept = 0 THEN
		EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT idempotency_store_window', rest);
	END IF;
EXCEPTION WHEN lock_not_available OR check_violation THEN
	RETURN;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_settle_window(regclass, timestamptz, timestamptz) IS
	'internal: keeps the records of the default partition that expire in this stretch of time longer, or has it checked that there are none';

CREATE FUNCTION @extschema@.idem_close_window(rest pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = rest AND conname = 'idempotency_store_window') THEN
		EXECUTE format('DROP TRIGGER idempotency_store_window ON %s', rest);
		EXECUTE format('ALTER TABLE %s DROP CONSTRAINT idempotency_store_window', rest);
	END IF;
	EXECUTE format('UPDATE %I.idempotency_partitioning SET window_start = NULL, window_end = NULL',
		(SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rest));
END
$$;
COMMENT ON FUNCTION @extschema@.idem_close_window(regclass) IS
	'internal: the default partition takes all records again that have no other partition';

-- The next of the three steps. There are up to four partitions in a window. Between
-- two windows a second is left, in which the records expire that were kept longer.
CREATE FUNCTION @extschema@.idem_make_window(store pg_catalog.regclass, rest pg_catalog.regclass, step pg_catalog.numeric, retention pg_catalog.numeric)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
DECLARE
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store);
	horizon timestamptz := to_timestamp(ceil((extract(epoch FROM clock_timestamp()) + retention) / step) * step);
	last_end timestamptz;
	partitions bigint;
	range_start timestamptz;
	range_end timestamptz;
BEGIN
	EXECUTE format('SELECT window_start, window_end FROM %s.idempotency_partitioning', schema_name) INTO range_start, range_end;
	IF range_start IS NULL THEN
		EXECUTE format('SELECT max(range_end), count(*) FROM %s.idempotency_partitions WHERE range_end > clock_timestamp()', schema_name)
			INTO last_end, partitions;
		IF partitions <= 28 AND (last_end IS NULL OR last_end <= horizon) THEN
			range_start := GREATEST(horizon, last_end + interval '1 second');
			EXECUTE format('SELECT %s.idem_open_window($1, $2, $3)', schema_name)
				USING rest, range_start, to_timestamp((floor(extract(epoch FROM range_start) / step) + 4) * step);
		END IF;
	ELSIF NOT (SELECT convalidated FROM pg_constraint WHERE conrelid = rest AND conname = 'idempotency_store_window') THEN
		EXECUTE format('SELECT %s.idem_settle_window($1, $2, $3)', schema_name) USING rest, range_start, range_end;
	ELSE
		-- beyond the window there are records, and the period may be another one now
		EXECUTE format('SELECT %1$s.idem_attach_partitions($1, $2, %1$s.idem_new_partitions($2, s.starts), s.starts, s.ends)'
			' FROM (SELECT starts, ARRAY(SELECT least(one, $4) FROM unnest(ends) one ORDER BY 1) AS ends FROM %1$s.idem_stretches($3, $4, $5)) s',
			schema_name) USING store, rest, range_start, range_end, step;
		EXECUTE format('SELECT %s.idem_close_window($1)', schema_name) USING rest;
	END IF;
EXCEPTION WHEN lock_not_available THEN
	RETURN;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_make_window(regclass, regclass, numeric, numeric) IS
	'internal: the next step on the way to more partitions beside a large default partition';

-- Drops the partitions that are empty, if their records expire before that time.
-- What cannot be locked soon is left for the next time.
CREATE FUNCTION @extschema@.idem_drop_partitions(store pg_catalog.regclass, before pg_catalog.timestamptz)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
SET timezone = 'UTC'
SET datestyle = 'ISO'
AS $$
DECLARE
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store);
	part regclass;
BEGIN
	FOR part IN EXECUTE format('SELECT c.oid FROM %s.idempotency_partitions p'
		' JOIN pg_class c ON c.relname = p.name AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = $1)'
		' WHERE p.range_end < $2 AND pg_relation_size(c.oid) = 0', schema_name) USING store, before
	LOOP
		BEGIN
			EXECUTE format('LOCK TABLE ONLY %s, ONLY %s IN ACCESS EXCLUSIVE MODE', store, part);
			-- a row may have come before the lock
			IF pg_relation_size(part) = 0 THEN
				EXECUTE format('SELECT %s.idem_disown_partition($1)', schema_name) USING part;
				EXECUTE format('DROP TABLE %s', part);
			END IF;
		EXCEPTION
			WHEN lock_not_available THEN
				RETURN;
			-- anybody can make a view of it
			WHEN dependent_objects_still_exist THEN
				RAISE WARNING 'cannot drop partition %, as other objects depend on it', part
					USING ERRCODE = 'dependent_objects_still_exist',
					HINT = 'Drop these objects: pg_depend shows which they are.';
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_drop_partitions(regclass, timestamptz) IS
	'internal: drops the partitions that are empty, and whose records expire before that time';

-- Collection calls it, as the owner of the store.
CREATE FUNCTION @extschema@.idem_tend_partitions()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
	schema_name text;
	store regclass;
	rest regclass;
	step numeric;
	retention numeric;
	is_leaving bool;
	in_window bool;
	at timestamptz := clock_timestamp();
BEGIN
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner($1)', schema_name) USING store;
	-- idem_gc() may be called in such a transaction; another visit does what is left here
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RETURN;
	END IF;
	-- first of all locks, as idem_partition_store takes it; who has it changes the store now
	BEGIN
		EXECUTE format('LOCK TABLE %s.idempotency_partitioning IN ROW EXCLUSIVE MODE NOWAIT', schema_name);
	EXCEPTION WHEN lock_not_available THEN
		RETURN;
	END;
	store := to_regclass(schema_name || '.idempotency_store');
	EXECUTE format('SELECT %s.idem_rest_of_store($1)', schema_name) INTO rest USING store;
	EXECUTE format('SELECT extract(epoch FROM period), leaving, window_start IS NOT NULL FROM %s.idempotency_partitioning', schema_name)
		INTO step, is_leaving, in_window;
	IF rest IS NULL OR step IS NULL THEN
		RETURN;
	END IF;
	IF is_leaving THEN
		EXECUTE format('SELECT %s.idem_drop_partitions($1, $2)', schema_name) USING store, 'infinity'::timestamptz;
		EXECUTE format('SELECT %s.idem_merge_partitions($1, $2, 1)', schema_name) USING store, rest;
		RETURN;
	END IF;
	EXECUTE format('SELECT extract(epoch FROM GREATEST(coalesce(current_setting(''idempotency.retention'', true), ''24 h'')::interval,'
		' max(retention), max(min_retention))) FROM ONLY %s.idempotency_scope', schema_name) INTO retention;
	IF in_window OR pg_relation_size(rest) > 262144 THEN
		EXECUTE format('SELECT %s.idem_make_window($1, $2, $3, $4)', schema_name) USING store, rest, step, retention;
	ELSE
		-- a partition for each stretch of the retention and two more, but no more than 32
		EXECUTE format('SELECT %1$s.idem_make_partitions($1, $2, s.starts, s.ends)'
			' FROM %1$s.idem_stretches(to_timestamp(floor(extract(epoch FROM $3) / $4) * $4), $3 + least($5 + 2 * $4, 31 * $4) * interval ''1 second'', $4) s'
			' WHERE cardinality(s.starts) > 0', schema_name) USING store, rest, at, step, retention;
	END IF;
	-- last, as it locks the store
	EXECUTE format('SELECT %s.idem_drop_partitions($1, $2)', schema_name) USING store, at - step * interval '1 second';
END
$$;
COMMENT ON FUNCTION @extschema@.idem_tend_partitions() IS
	'internal: makes partitions ahead of time, drops those that nobody needs, and ends what idem_unpartition_store began';

CREATE FUNCTION @extschema@.idem_partition_store(period pg_catalog.interval)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	rest regclass;
	owner name;
	surroundings text[];
	command text;
	step numeric := extract(epoch FROM period);
	retention numeric;
	patience text := current_setting('lock_timeout');
	starts timestamptz[] := '{}';
	ends timestamptz[] := '{}';
	parts regclass[];
	part regclass;
BEGIN
	IF period IS NULL OR NOT isfinite(period) OR step < 1 OR step > 31622400 THEN
		RAISE EXCEPTION 'period must be from one second to one year' USING ERRCODE = 'ID400';
	END IF;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	EXECUTE format('SELECT extract(epoch FROM GREATEST(coalesce(current_setting(''idempotency.retention'', true), ''24 h'')::interval,'
		' max(retention), max(min_retention))) FROM ONLY %s.idempotency_scope', schema_name) INTO retention;
	IF ceil(retention / step) > 29 THEN
		RAISE WARNING 'a period of % is short for a retention of %', period, retention * interval '1 second'
			USING DETAIL = format('Live records would be in %s partitions, and each begin looks into all of them. There are no more than 32; the other records are in the default partition.', ceil(retention / step)),
			HINT = 'Choose half of the retention, or so.';
	END IF;
	-- one change of the store at a time
	EXECUTE format('LOCK TABLE %s.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE', schema_name);
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_rest_of_store($1)', schema_name) INTO rest USING store;
	IF rest IS NULL THEN
		owner := pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = store));
		EXECUTE format('SELECT %s.idem_check_store($1)', schema_name) USING store;
		-- of a large one, idem_tend_partitions makes the partitions
		IF pg_relation_size(store) <= 262144 THEN
			EXECUTE format('SELECT s.starts, s.ends FROM %s.idem_stretches(to_timestamp(floor($1 / $2) * $2),'
				' to_timestamp($1 + least($3 + 2 * $2, 31 * $2)), $2) s', schema_name)
				INTO starts, ends USING extract(epoch FROM clock_timestamp()), step, retention;
		END IF;
		EXECUTE format('SELECT %s.idem_new_partitions($1, $2)', schema_name) INTO parts USING store, starts;
		EXECUTE format('SELECT %1$s.idem_lock_store($1, 200), %1$s.idem_check_store($1)', schema_name) USING store;
		-- sessions wait behind it from now on
		SET LOCAL lock_timeout = '50ms';
		IF pg_relation_size(store) > 1048576 THEN
			-- it has become large meanwhile
			FOREACH part IN ARRAY parts LOOP
				EXECUTE format('SELECT %s.idem_disown_partition($1)', schema_name) USING part;
				EXECUTE format('DROP TABLE %s', part);
			END LOOP;
			parts := '{}';
		END IF;
		EXECUTE format('SELECT %s.idem_store_surroundings($1)', schema_name) INTO surroundings USING store;
		EXECUTE format('SELECT %s.idem_clear_store($1)', schema_name) USING store;
		rest := store;
		EXECUTE format('ALTER TABLE %s.idempotency_store RENAME TO idempotency_store_default', schema_name);
		EXECUTE format('CREATE TABLE %1$s.idempotency_store (LIKE %1$s.idempotency_store_default'
			' INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS) PARTITION BY RANGE (expires_at)', schema_name);
		store := (schema_name || '.idempotency_store')::regclass;
		-- a publication via the root names the columns of this identity; the rows have their partition's
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', store);
		EXECUTE format('COMMENT ON TABLE %s IS %L', store, obj_description(rest, 'pg_class'));
		EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s DEFAULT', store, rest);
		EXECUTE format('SELECT %s.idem_take_partition($1, $2)', schema_name) USING store, owner;
		EXECUTE format('SELECT %s.idem_attach_partitions($1, $2, $3, $4, $5)', schema_name) USING store, rest, parts, starts, ends;
		FOREACH command IN ARRAY surroundings LOOP
			EXECUTE command;
		END LOOP;
		EXECUTE format('SET LOCAL lock_timeout = %L', patience);
	END IF;
	EXECUTE format('INSERT INTO %s.idempotency_partitioning (period) VALUES ($1)'
		' ON CONFLICT (only_row) DO UPDATE SET period = EXCLUDED.period, leaving = false', schema_name) USING period;
	EXECUTE format('SELECT %s.idem_tend_partitions()', schema_name);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_partition_store(interval) IS
	'partition the store by expiry, without copying it; each partition is for so much time';

CREATE FUNCTION @extschema@.idem_clear_store(store pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('DROP TRIGGER %I ON %s', tgname, store) FROM pg_trigger WHERE tgrelid = store AND NOT tgisinternal
		UNION ALL
		SELECT format('ALTER PUBLICATION %I DROP TABLE %s', p.pubname, store)
		FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = store
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_clear_store(regclass) IS
	'internal: takes away from the store what another table gets in its place';

-- The store is locked while records are copied, so there must be few that live.
CREATE FUNCTION @extschema@.idem_merge_partitions(store pg_catalog.regclass, rest pg_catalog.regclass, max_tries pg_catalog.int4)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
	schema_name text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store);
	surroundings text[];
	command text;
	names text;
	bytes bigint;
	publication name;
	obstacle text;
BEGIN
	-- before the store is locked, and again when nobody can change it any more
	FOR look IN 1 .. 2 LOOP
		EXECUTE format('SELECT %s.idem_store_obstacle($1)', schema_name) INTO obstacle USING store;
		IF obstacle IS NOT NULL THEN
			IF max_tries > 1 THEN
				RAISE object_not_in_prerequisite_state USING
					MESSAGE = 'the store cannot become one table as it is', DETAIL = obstacle;
			END IF;
			RAISE WARNING 'the store cannot become one table as it is' USING DETAIL = obstacle;
			RETURN;
		END IF;
		SELECT p.pubname INTO publication FROM pg_publication p WHERE p.puballtables OR EXISTS (
			SELECT FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid WHERE n.pnpubid = p.oid AND c.oid = store);
		IF publication IS NOT NULL THEN
			IF max_tries > 1 THEN
				RAISE object_not_in_prerequisite_state USING
					MESSAGE = format('the store cannot become one table, as publication "%s" publishes all tables of its schema', publication),
					DETAIL = 'Subscribers would get records again that they have.',
					HINT = 'Publish the tables by their names instead.';
			END IF;
			RAISE WARNING 'the store does not become one table, as publication "%" publishes all tables of its schema', publication;
			RETURN;
		END IF;
		-- those that are over count, too: collection looks after their fences
		SELECT sum(pg_relation_size(inhrelid)) INTO bytes FROM pg_inherits WHERE inhparent = store AND inhrelid <> rest;
		IF bytes > 262144 THEN
			RETURN;
		END IF;
		EXECUTE format('SELECT %s.idem_lock_store($1, $2)', schema_name) USING store, max_tries;
	END LOOP;
	EXECUTE format('SELECT %s.idem_close_window($1)', schema_name) USING rest;
	SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names
		FROM pg_attribute WHERE attrelid = store AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
	EXECUTE format('SELECT %s.idem_store_surroundings($1)', schema_name) INTO surroundings USING store;
	EXECUTE format('SELECT %s.idem_clear_store($1)', schema_name) USING store;
	EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', store, rest);
	EXECUTE format('ALTER TABLE %s RENAME TO idempotency_store_partitioned', store);
	EXECUTE format('ALTER TABLE %s RENAME TO idempotency_store', rest);
	-- rows that were written past the extension may have fences that the sequence has not reached;
	-- the greatest of all numbers is left out, as no fence could follow it
	EXECUTE format('SELECT setval(%1$L, max(fence)) FROM (SELECT fence FROM %2$s UNION ALL'
		' SELECT old.fence FROM %2$s new CROSS JOIN LATERAL (SELECT fence FROM %3$s old'
		' WHERE (old.scope, old.idempotency_key) = (new.scope, new.idempotency_key) LIMIT 1) old) fences'
		' WHERE fence < (SELECT seqmax FROM pg_sequence WHERE seqrelid = %1$L::regclass)'
		' HAVING max(fence) > (SELECT last_value - (NOT is_called)::int FROM %1$s)', schema_name || '.idempotency_fence', store, rest);
	-- another row of the same name may be there besides the one that counts
	EXECUTE format('SELECT %s.idem_move_rows($1, ''SELECT'', ''SELECT'')', schema_name) USING
		format('INSERT INTO %1$s AS old (%2$s) SELECT DISTINCT ON (scope, idempotency_key) %2$s FROM %3$s WHERE expires_at > clock_timestamp()'
			' OR (status OPERATOR(pg_catalog.=) ''PENDING'' AND lease_expires_at > clock_timestamp()) ORDER BY scope, idempotency_key, expires_at DESC'
			' ON CONFLICT (scope, idempotency_key) DO UPDATE SET (%2$s) = (%4$s) WHERE old.expires_at < EXCLUDED.expires_at',
			rest, names, store, (SELECT string_agg('EXCLUDED.' || name, ', ') FROM string_to_table(names, ', ') name));
	FOREACH command IN ARRAY surroundings LOOP
		EXECUTE command;
	END LOOP;
	EXECUTE format('SELECT %s.idem_disown_partition(part::regclass) FROM (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1'
		' UNION ALL SELECT $1) all_parts (part)', schema_name) USING store::oid;
	EXECUTE format('DROP TABLE %s', store);
	EXECUTE format('DELETE FROM %s.idempotency_partitioning', schema_name);
EXCEPTION WHEN lock_not_available THEN
	IF max_tries > 1 THEN
		RAISE;
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_merge_partitions(regclass, regclass, int) IS
	'internal: makes the store one table, if its partitions have few records that live';

CREATE FUNCTION @extschema@.idem_unpartition_store()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	rest regclass;
BEGIN
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %1$s.idem_check_owner($1), %1$s.idem_require_read_committed()', schema_name) USING store;
	EXECUTE format('LOCK TABLE %s.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE', schema_name);
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_rest_of_store($1)', schema_name) INTO rest USING store;
	IF rest IS NULL THEN
		RETURN;
	END IF;
	-- where there are more records, idem_tend_partitions does it when they have expired
	EXECUTE format('UPDATE %s.idempotency_partitioning SET leaving = true', schema_name);
	EXECUTE format('SELECT %s.idem_merge_partitions($1, $2, 200)', schema_name) USING store, rest;
	EXECUTE format('SELECT %s.idem_tend_partitions()', schema_name);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_unpartition_store() IS
	'make the store one table again, as soon as its partitions have few records that live';

-- A store that is distributed over the nodes of a Citus cluster

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
		AND p.proname IN ('idem_begin', 'idem_complete', 'idem_fail', 'idem_release', 'idem_extend',
			'idem_lookup', 'idem_call', 'idem_begin_batch', 'idem_complete_batch', 'idem_lock',
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
-- Citus distributes by a column, and sends a call to the node of an argument. Both
-- have the type of the tenants.
CREATE FUNCTION @extschema@.idem_prepare_node(tenant_type pg_catalog.text, roles pg_catalog.text[] DEFAULT '{}',
	fence pg_catalog.int8 DEFAULT 0)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
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
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner($1)', schema_name) USING store;
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
			(SELECT string_agg(quote_ident(name) || ' ' || format_type(type, NULL), ', ' ORDER BY place)
				FROM unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY u (name, type, place)) AS arguments,
			(SELECT string_agg(format_type(type, NULL), ', ' ORDER BY place)
				FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u (type, place)) AS types
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
		IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = store AND NOT tgisinternal)
			OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = store AND contype = 'c')
			OR (SELECT count(*) FROM pg_index WHERE indrelid = store) <> 1 THEN
			RAISE object_not_in_prerequisite_state USING
				MESSAGE = 'table "idempotency_store" cannot be divided as it is',
				DETAIL = 'It has a trigger, a check constraint or a further index.';
		END IF;
	END IF;
	-- the functions have the same rights on all nodes
	SELECT coalesce(array_agg(DISTINCT a.grantee::regrole::text), '{}') INTO roles FROM pg_extension e
		JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_proc p ON p.oid = d.objid CROSS JOIN aclexplode(p.proacl) a
		WHERE e.extname = 'idempotency' AND p.proname = 'idem_begin' AND a.grantee NOT IN (0, p.proowner);
	EXECUTE format('SELECT last_value FROM %s.idempotency_fence', schema_name) INTO fence;
	IF is_new THEN
		-- a restored store has fences and marks that no sequence knows
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
	IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be superuser: functions in C are created on each node';
	END IF;
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
	store regclass;
	variant regprocedure;
BEGIN
	SELECT c.oid INTO store FROM pg_extension e
		JOIN pg_class c ON c.relnamespace = e.extnamespace AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
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
	-- the marks have served when the sequence is above all of them
	EXECUTE format('SELECT setval(%L, greatest((SELECT last_value FROM %s.idempotency_fence), max(fence))) FROM %s',
		schema_name || '.idempotency_fence', schema_name, store);
	EXECUTE format('DELETE FROM %s WHERE length(idempotency_key) = 0', store);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_undistribute_store() IS
	'bring all records back to the coordinator; the store is locked meanwhile';

-- PUBLIC and default privileges have given rights on what is new.
DO $$
DECLARE
	command text;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	FOR command IN
		SELECT format('REVOKE ALL ON %s %s FROM %s', m.kind, m.name,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
		FROM (
			SELECT 'TABLE' AS kind, c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS rights
			FROM pg_class c JOIN pg_extension e ON c.relnamespace = e.extnamespace
			WHERE e.extname = 'idempotency' AND c.relname IN ('idempotency_partitioning', 'idempotency_partitions')
			UNION ALL
			SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
			FROM pg_proc p JOIN pg_extension e ON p.pronamespace = e.extnamespace
			WHERE e.extname = 'idempotency' AND p.proname IN ('idem_adopt_partition', 'idem_attach_partitions', 'idem_check_owner', 'idem_check_store', 'idem_clear_store',
				'idem_close_window', 'idem_disown_partition', 'idem_drop_partitions', 'idem_leave_window', 'idem_lock_store',
				'idem_make_partitions', 'idem_make_window', 'idem_merge_partitions', 'idem_move_rows', 'idem_new_partitions',
				'idem_open_window', 'idem_partition_range', 'idem_partition_store', 'idem_rest_of_store', 'idem_settle_window',
				'idem_store_obstacle', 'idem_store_surroundings', 'idem_stretches', 'idem_take_partition', 'idem_tend_partitions',
				'idem_unpartition_store',
				'idem_distribute_store', 'idem_on_workers', 'idem_prepare_node', 'idem_require_coordinator',
				'idem_require_ended', 'idem_require_read_committed', 'idem_restore_node', 'idem_undistribute_store')
		) m, aclexplode(m.rights) a
		WHERE a.grantee <> m.owner
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT SELECT ON @extschema@.idempotency_partitions TO pg_monitor, pg_read_all_stats;
GRANT EXECUTE ON FUNCTION @extschema@.idem_partition_range(regclass) TO pg_monitor, pg_read_all_stats;
