-- complain if the script is sourced in psql, rather than by ALTER EXTENSION
\echo Use "ALTER EXTENSION idempotency UPDATE TO '1.1'" to load this file. \quit

-- A store that is partitioned by expiry

CREATE TABLE @extschema@.idempotency_partitioning (
	only_row	pg_catalog.bool PRIMARY KEY DEFAULT true CHECK (only_row),
	period		pg_catalog.interval NOT NULL CHECK (period OPERATOR(pg_catalog.>=) interval '1 second')
);
COMMENT ON TABLE @extschema@.idempotency_partitioning IS 'how the store is partitioned; written by idem_partition_store and idem_unpartition_store only; never dumped';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.only_row IS 'keeps the table at one row';
COMMENT ON COLUMN @extschema@.idempotency_partitioning.period IS 'stretch of time of the partitions that are made from now on';

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
CREATE FUNCTION @extschema@.idem_lock_store(store pg_catalog.regclass)
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
			IF tries = 200 THEN
				RAISE lock_not_available USING
					MESSAGE = 'could not lock the store',
					DETAIL = 'A transaction that uses the store has been open for too long.',
					HINT = 'Try again when it has ended: pg_locks shows which it is.';
			END IF;
			PERFORM pg_sleep(0.05 + random() * 0.1);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_lock_store(regclass) IS
	'internal: locks the store for a change of its tables, without a long queue behind the lock';

CREATE FUNCTION @extschema@.idem_check_owner(store pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = store), 'USAGE') THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be owner of table idempotency_store';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_owner(regclass) IS
	'internal: raises 42501 if the caller does not own the store';

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
	EXECUTE format('SELECT %I.idem_adopt_partition(%L)', (SELECT n.nspname
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
			WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = store) THEN 'It has row security.'
			WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = store) THEN 'It has rules.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = store AND contype NOT IN ('p', 'c', 'n')) THEN 'It has a further key, or a foreign key.'
			WHEN EXISTS (SELECT FROM pg_constraint WHERE confrelid = store) THEN 'A foreign key refers to it.'
			WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = store AND NOT tgisinternal AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL)) THEN 'It has a trigger with a transition table.'
		END INTO obstacle
		FROM pg_class c WHERE c.oid = store;
	IF obstacle IS NULL THEN
		SELECT format('%s depends on it.', pg_describe_object(d.classid, d.objid, d.objsubid)) INTO obstacle
			FROM pg_depend d
			LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
			LEFT JOIN pg_class v ON v.oid = r.ev_class
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = store AND d.deptype = 'n'
			AND d.classid <> 'pg_constraint'::regclass AND d.classid <> 'pg_trigger'::regclass
			AND v.relkind IS DISTINCT FROM 'v' LIMIT 1;
	END IF;
	IF obstacle IS NOT NULL THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'table "idempotency_store" cannot be partitioned as it is', DETAIL = obstacle;
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_store(regclass) IS
	'internal: raises 55000 if the store has something that a partitioned store could not have';

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
JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) s.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
CROSS JOIN LATERAL (SELECT
	pg_catalog.substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']*)''\)')::pg_catalog.timestamptz AS range_start,
	pg_catalog.substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']*)''\)')::pg_catalog.timestamptz AS range_end) b
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotency';
COMMENT ON VIEW @extschema@.idempotency_partitions IS
	'the partitions of a store that is partitioned by expiry; no rows for another store';
COMMENT ON COLUMN @extschema@.idempotency_partitions.name IS 'name of the table, which is in the schema of the extension';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_start IS 'its records expire at this time or later; NULL: the default partition';
COMMENT ON COLUMN @extschema@.idempotency_partitions.range_end IS 'its records expire before this time; NULL: the default partition';
COMMENT ON COLUMN @extschema@.idempotency_partitions.rows_estimate IS 'number of rows, as of the last vacuum';
COMMENT ON COLUMN @extschema@.idempotency_partitions.bytes IS 'size on disk, with its index';
COMMENT ON COLUMN @extschema@.idempotency_partitions.state IS 'live; ahead: made for the time to come; over: its records have expired; default: takes what has no other partition';

-- One partition. While the default partition is locked, its rows are searched for
-- those that belong to the new one, so it must be small.
CREATE FUNCTION @extschema@.idem_make_partition(store pg_catalog.regclass, rest pg_catalog.regclass,
	range_start pg_catalog.timestamptz, range_end pg_catalog.timestamptz)
RETURNS pg_catalog.bool
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '20ms'
AS $$
DECLARE
	schema_name text;
	owner name;
	part text;
BEGIN
	SELECT quote_ident(n.nspname), pg_get_userbyid(c.relowner) INTO schema_name, owner
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store;
	part := schema_name || '.idempotency_store_' || to_char(range_start AT TIME ZONE 'UTC', 'YYYYMMDD_HH24MISS');
	EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', rest);
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)'
		' WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000)', part, rest);
	EXECUTE format('SELECT %s.idem_take_partition(%L, %L)', schema_name, part, owner);
	EXECUTE format('WITH moved AS (DELETE FROM ONLY %s WHERE expires_at >= %L AND expires_at < %L RETURNING *)'
		' INSERT INTO %s SELECT * FROM moved', rest, range_start, range_end, part);
	EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', store, part, range_start, range_end);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_make_partition(regclass, regclass, timestamptz, timestamptz) IS
	'internal: adds a partition to the store; false if a lock was not free';

-- Collection calls it, as the owner of the store.
CREATE FUNCTION @extschema@.idem_tend_partitions()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	rest regclass;
	step numeric;
	retention numeric;
	part regclass;
	stretch record;
	made bool;
BEGIN
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner(%L)', schema_name, store::oid);
	SELECT i.inhrelid INTO rest FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';
	EXECUTE format('SELECT extract(epoch FROM period) FROM %s.idempotency_partitioning', schema_name) INTO step;
	IF rest IS NULL OR step IS NULL THEN
		RETURN;
	END IF;
	-- what is over and empty is dropped when nobody uses the store
	FOR part IN EXECUTE format('SELECT c.oid FROM %s.idempotency_partitions p'
		' JOIN pg_class c ON c.relname = p.name AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = $1)'
		' WHERE p.range_end < clock_timestamp() - $2 * interval ''1 second'' AND pg_relation_size(c.oid) = 0', schema_name)
		USING store, step
	LOOP
		BEGIN
			EXECUTE format('LOCK TABLE ONLY %s, ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', store, part);
			EXECUTE format('SELECT %s.idem_disown_partition(%L)', schema_name, part::oid);
			EXECUTE format('DROP TABLE %s', part);
		EXCEPTION WHEN lock_not_available THEN
			EXIT;
		END;
	END LOOP;
	EXECUTE format('SELECT extract(epoch FROM GREATEST(coalesce(current_setting(''idempotency.retention'', true), ''24 h'')::interval,'
		' max(retention), max(min_retention))) FROM %s.idempotency_scope', schema_name) INTO retention;
	-- A partition for each stretch of the retention and two more, but no more than 32.
	-- After a change of the period, the first one begins where the last one ends.
	FOR stretch IN EXECUTE format('SELECT * FROM (SELECT GREATEST(to_timestamp(n * $1), (SELECT max(p.range_end)'
		' FROM %s.idempotency_partitions p WHERE p.range_start < to_timestamp((n + 1) * $1))) AS range_start,'
		' to_timestamp((n + 1) * $1) AS range_end FROM generate_series($2, $2 + $3) n) s'
		' WHERE s.range_start < s.range_end ORDER BY 1', schema_name)
		USING step, floor(extract(epoch FROM clock_timestamp()) / step), least(ceil(retention / step) + 2, 31)
	LOOP
		EXECUTE format('SELECT %s.idem_make_partition($1, $2, $3, $4)', schema_name)
			INTO made USING store, rest, stretch.range_start, stretch.range_end;
		EXIT WHEN NOT made;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_tend_partitions() IS
	'internal: makes partitions ahead of time, and drops those that nobody needs';

CREATE FUNCTION @extschema@.idem_partition_store(period pg_catalog.interval)
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	owner name;
	surroundings text[];
	command text;
	share numeric;
	-- it has no value before the library is loaded
	retention text := coalesce(current_setting('idempotency.retention', true), '24 h');
BEGIN
	IF period IS NULL OR NOT isfinite(period) OR extract(epoch FROM period) < 1 OR extract(epoch FROM period) > 31622400 THEN
		RAISE EXCEPTION 'period must be from one second to one year' USING ERRCODE = 'ID400';
	END IF;
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner(%L)', schema_name, store::oid);
	share := ceil(extract(epoch FROM retention::interval) / extract(epoch FROM period));
	IF share > 29 THEN
		RAISE WARNING 'a period of % is short for a retention of %', period, retention
			USING DETAIL = format('Live records would be in %s partitions, and each begin looks into all of them. There are no more than 32; the other records are in the default partition.', share),
			HINT = 'Choose a sixth of the retention, or so.';
	END IF;
	-- one change of the store at a time
	EXECUTE format('LOCK TABLE %s.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE', schema_name);
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	IF NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT')
	THEN
		owner := pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = store));
		EXECUTE format('SELECT %1$s.idem_lock_store(%2$L), %1$s.idem_check_store(%2$L)', schema_name, store::oid);
		EXECUTE format('SELECT %s.idem_store_surroundings(%L)', schema_name, store::oid) INTO surroundings;
		EXECUTE format('SELECT %s.idem_clear_store(%L)', schema_name, store::oid);
		EXECUTE format('ALTER TABLE %s.idempotency_store RENAME TO idempotency_store_default', schema_name);
		EXECUTE format('CREATE TABLE %1$s.idempotency_store (LIKE %1$s.idempotency_store_default'
			' INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS) PARTITION BY RANGE (expires_at)', schema_name);
		-- a publication via the root names the columns of this identity; the rows have their partition's
		EXECUTE format('ALTER TABLE %s.idempotency_store REPLICA IDENTITY FULL', schema_name);
		EXECUTE format('COMMENT ON TABLE %s.idempotency_store IS %L', schema_name, obj_description(store, 'pg_class'));
		EXECUTE format('ALTER TABLE %1$s.idempotency_store ATTACH PARTITION %1$s.idempotency_store_default DEFAULT', schema_name);
		EXECUTE format('SELECT %1$s.idem_take_partition(%2$L, %3$L)', schema_name, schema_name || '.idempotency_store', owner);
		FOREACH command IN ARRAY surroundings LOOP
			EXECUTE command;
		END LOOP;
	END IF;
	EXECUTE format('INSERT INTO %s.idempotency_partitioning (period) VALUES ($1)'
		' ON CONFLICT (only_row) DO UPDATE SET period = EXCLUDED.period', schema_name) USING period;
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

CREATE FUNCTION @extschema@.idem_unpartition_store()
RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	schema_name text;
	store regclass;
	rest regclass;
	surroundings text[];
	command text;
	names text;
BEGIN
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	EXECUTE format('SELECT %s.idem_check_owner(%L)', schema_name, store::oid);
	EXECUTE format('LOCK TABLE %s.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE', schema_name);
	SELECT quote_ident(n.nspname), c.oid INTO schema_name, store
		FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'idempotency_store'
		WHERE e.extname = 'idempotency';
	SELECT i.inhrelid INTO rest FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';
	IF rest IS NULL THEN
		RETURN;
	END IF;
	EXECUTE format('SELECT %s.idem_lock_store(%L)', schema_name, store::oid);
	SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names
		FROM pg_attribute WHERE attrelid = store AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
	EXECUTE format('SELECT %s.idem_store_surroundings(%L)', schema_name, store::oid) INTO surroundings;
	EXECUTE format('SELECT %s.idem_clear_store(%L)', schema_name, store::oid);
	EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', store, rest);
	EXECUTE format('ALTER TABLE %s RENAME TO idempotency_store_partitioned', store);
	EXECUTE format('ALTER TABLE %s RENAME TO idempotency_store', rest);
	-- rows that have expired may be there besides the row that counts
	EXECUTE format('INSERT INTO %s AS old (%s) SELECT %s FROM %s WHERE expires_at > clock_timestamp()'
		' ON CONFLICT (scope, idempotency_key) DO UPDATE SET (%s) = (%s) WHERE old.expires_at < EXCLUDED.expires_at',
		rest, names, names, store, names,
		(SELECT string_agg('EXCLUDED.' || name, ', ') FROM string_to_table(names, ', ') name));
	FOREACH command IN ARRAY surroundings LOOP
		EXECUTE command;
	END LOOP;
	EXECUTE format('SELECT %s.idem_disown_partition(part) FROM (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1'
		' UNION ALL SELECT $1) all_parts (part)', schema_name) USING store::oid;
	EXECUTE format('DROP TABLE %s', store);
	EXECUTE format('DELETE FROM %s.idempotency_partitioning', schema_name);
END
$$;
COMMENT ON FUNCTION @extschema@.idem_unpartition_store() IS
	'make the store one table again; the store is locked while the live records of its partitions are copied';

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
			WHERE e.extname = 'idempotency' AND p.proname IN ('idem_adopt_partition', 'idem_check_owner', 'idem_check_store',
				'idem_clear_store', 'idem_disown_partition', 'idem_lock_store', 'idem_make_partition', 'idem_partition_store',
				'idem_store_surroundings', 'idem_take_partition', 'idem_tend_partitions', 'idem_unpartition_store')
		) m, aclexplode(m.rights) a
		WHERE a.grantee <> m.owner
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT SELECT ON @extschema@.idempotency_partitions TO pg_monitor, pg_read_all_stats;
