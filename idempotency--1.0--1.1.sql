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

CREATE FUNCTION @extschema@.idem_adopt_partition(name pg_catalog.regclass)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_adopt_partition(regclass) IS
	'internal: makes a table of the store belong to the extension';

CREATE FUNCTION @extschema@.idem_disown_partition(name pg_catalog.regclass)
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

CREATE FUNCTION @extschema@.idem_check_owner()
RETURNS pg_catalog.regclass
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	store record;
BEGIN
	SELECT c.oid, c.relowner INTO store
		FROM pg_extension e JOIN pg_class c ON c.relnamespace = e.extnamespace
		WHERE e.extname = 'idempotency' AND c.relname = 'idempotency_store';
	IF NOT pg_has_role(store.relowner, 'USAGE') THEN
		RAISE insufficient_privilege USING MESSAGE = 'must be owner of table idempotency_store';
	END IF;
	RETURN store.oid;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_check_owner() IS
	'internal: the store, if the caller owns it';

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
			OPERATOR(pg_catalog.+) pg_catalog.current_setting('idempotency.retention')::pg_catalog.interval) THEN 'ahead'
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
	part text;
BEGIN
	SELECT format('%I.%I', n.nspname, 'idempotency_store_' || to_char(range_start AT TIME ZONE 'UTC', 'YYYYMMDD_HH24MISS'))
		INTO part FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store;
	EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', rest);
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)'
		' WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000)', part, rest);
	EXECUTE format('ALTER TABLE %s OWNER TO %I', part,
		pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = store)));
	PERFORM @extschema@.idem_adopt_partition(part::regclass);
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
	store regclass := @extschema@.idem_check_owner();
	rest regclass;
	step numeric;
	retention numeric;
	first numeric;
	part record;
	missing record;
BEGIN
	SELECT i.inhrelid INTO rest FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';
	SELECT extract(epoch FROM period) INTO step FROM @extschema@.idempotency_partitioning;
	IF rest IS NULL OR step IS NULL THEN
		RETURN;
	END IF;
	-- what is over and empty is dropped when nobody uses the store
	FOR part IN
		SELECT c.oid::regclass AS name
		FROM @extschema@.idempotency_partitions p JOIN pg_inherits i ON i.inhparent = store
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relname = p.name
		WHERE p.range_end < clock_timestamp() - step * interval '1 second' AND pg_relation_size(c.oid) = 0
	LOOP
		BEGIN
			EXECUTE format('LOCK TABLE ONLY %s, ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', store, part.name);
			PERFORM @extschema@.idem_disown_partition(part.name);
			EXECUTE format('DROP TABLE %s', part.name);
		EXCEPTION WHEN lock_not_available THEN
			EXIT;
		END;
	END LOOP;
	-- a partition for each stretch of the retention and two more, but no more than 32
	SELECT extract(epoch FROM GREATEST(current_setting('idempotency.retention')::interval,
			max(s.retention), max(s.min_retention)))
		INTO retention FROM @extschema@.idempotency_scope s;
	first := floor(extract(epoch FROM clock_timestamp()) / step);
	FOR missing IN
		SELECT * FROM (
			-- after a change of the period, the first one begins where the last one ends
			SELECT GREATEST(to_timestamp(n * step), (SELECT max(p.range_end)
					FROM @extschema@.idempotency_partitions p WHERE p.range_start < to_timestamp((n + 1) * step))) AS range_start,
				to_timestamp((n + 1) * step) AS range_end
			FROM generate_series(first, first + least(ceil(retention / step) + 2, 31)) n) stretch
		WHERE stretch.range_start < stretch.range_end
	LOOP
		EXIT WHEN NOT @extschema@.idem_make_partition(store, rest, missing.range_start, missing.range_end);
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
	store regclass := @extschema@.idem_check_owner();
	schema_name text;
	owner name;
	surroundings text[];
	command text;
	rest text;
	share int;
BEGIN
	IF period IS NULL OR NOT isfinite(period) OR extract(epoch FROM period) < 1 OR extract(epoch FROM period) > 31622400 THEN
		RAISE EXCEPTION 'period must be from one second to one year' USING ERRCODE = 'ID400';
	END IF;
	share := ceil(extract(epoch FROM current_setting('idempotency.retention')::interval) / extract(epoch FROM period));
	IF share > 29 THEN
		RAISE WARNING 'a period of % is short for a retention of %', period, current_setting('idempotency.retention')
			USING DETAIL = format('Records would be in %s partitions, and each begin looks into all of them. There are no more than 32; the other records are in the default partition.', share),
			HINT = 'Choose a sixth of the retention, or so.';
	END IF;
	-- one change of the store at a time
	LOCK TABLE @extschema@.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE;
	IF NOT EXISTS (SELECT FROM @extschema@.idempotency_partitions WHERE state = 'default') THEN
		SELECT quote_ident(n.nspname), pg_get_userbyid(c.relowner) INTO schema_name, owner
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store;
		rest := schema_name || '.idempotency_store_default';
		PERFORM @extschema@.idem_lock_store(store);
		PERFORM @extschema@.idem_check_store(store);
		surroundings := @extschema@.idem_store_surroundings(schema_name || '.idempotency_store');
		PERFORM @extschema@.idem_clear_store(store);
		EXECUTE format('ALTER TABLE %s.idempotency_store RENAME TO idempotency_store_default', schema_name);
		EXECUTE format('CREATE TABLE %s.idempotency_store (LIKE %s INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS)'
			' PARTITION BY RANGE (expires_at)', schema_name, rest);
		EXECUTE format('ALTER TABLE %s.idempotency_store OWNER TO %I', schema_name, owner);
		EXECUTE format('COMMENT ON TABLE %s.idempotency_store IS %L', schema_name, obj_description(store, 'pg_class'));
		EXECUTE format('ALTER TABLE %s.idempotency_store ATTACH PARTITION %s DEFAULT', schema_name, rest);
		PERFORM @extschema@.idem_adopt_partition((schema_name || '.idempotency_store')::regclass);
		FOREACH command IN ARRAY surroundings LOOP
			EXECUTE command;
		END LOOP;
	END IF;
	INSERT INTO @extschema@.idempotency_partitioning (period) VALUES (idem_partition_store.period)
		ON CONFLICT (only_row) DO UPDATE SET period = EXCLUDED.period;
	PERFORM @extschema@.idem_tend_partitions();
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
	store regclass := @extschema@.idem_check_owner();
	schema_name text;
	surroundings text[];
	command text;
	rest regclass;
	part regclass;
	names text;
BEGIN
	LOCK TABLE @extschema@.idempotency_partitioning IN SHARE ROW EXCLUSIVE MODE;
	IF NOT EXISTS (SELECT FROM @extschema@.idempotency_partitions WHERE state = 'default') THEN
		RETURN;
	END IF;
	PERFORM @extschema@.idem_lock_store(store);
	SELECT quote_ident(n.nspname) INTO schema_name
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = store;
	SELECT i.inhrelid INTO rest FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = store AND pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';
	SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names
		FROM pg_attribute WHERE attrelid = store AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
	surroundings := @extschema@.idem_store_surroundings(store);
	PERFORM @extschema@.idem_clear_store(store);
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
	FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = store UNION ALL SELECT store::oid LOOP
		PERFORM @extschema@.idem_disown_partition(part);
	END LOOP;
	EXECUTE format('DROP TABLE %s', store);
	DELETE FROM @extschema@.idempotency_partitioning;
END
$$;
COMMENT ON FUNCTION @extschema@.idem_unpartition_store() IS
	'make the store one table again; the store is locked while the live records of its partitions are copied';

REVOKE ALL ON FUNCTION @extschema@.idem_adopt_partition(regclass), @extschema@.idem_disown_partition(regclass),
	@extschema@.idem_lock_store(regclass), @extschema@.idem_check_owner(), @extschema@.idem_store_surroundings(regclass),
	@extschema@.idem_check_store(regclass), @extschema@.idem_make_partition(regclass, regclass, timestamptz, timestamptz),
	@extschema@.idem_tend_partitions(), @extschema@.idem_partition_store(interval), @extschema@.idem_clear_store(regclass),
	@extschema@.idem_unpartition_store() FROM PUBLIC;
REVOKE ALL ON @extschema@.idempotency_partitioning, @extschema@.idempotency_partitions FROM PUBLIC;
GRANT SELECT ON @extschema@.idempotency_partitions TO pg_monitor, pg_read_all_stats;
