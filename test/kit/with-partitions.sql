-- Gives the store a ring of tables as soon as the extension is created in this
-- database.  The answers have to be the same.  No other session can know the store
-- yet, so the tables can have their ranges at once.
CREATE SCHEMA with_partitions;

CREATE FUNCTION with_partitions.partition() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	schema_name name := (SELECT n.nspname FROM pg_namespace n JOIN pg_extension e ON n.oid = e.extnamespace
		WHERE e.extname = 'idempotency');
BEGIN
	IF schema_name IS NOT NULL THEN
		EXECUTE format('SELECT %I.idem_partition_store(''4 hours'')', schema_name);
		EXECUTE format('UPDATE %I.idempotency_ring r SET range_start = now() + number * period, range_end = now() + (number + 1) * period,'
			-- a trigger comes next: collection would warn
			' in_use = to_regnamespace(''with_trigger'') IS NULL'
			' FROM (SELECT name, row_number() OVER (ORDER BY name) - 1 AS number FROM %1$I.idempotency_ring) n WHERE n.name = r.name', schema_name);
	END IF;
END
$$;

CREATE EVENT TRIGGER with_partitions ON ddl_command_end
WHEN TAG IN ('CREATE EXTENSION')
EXECUTE FUNCTION with_partitions.partition();
