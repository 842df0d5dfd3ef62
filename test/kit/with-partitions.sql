-- Partitions the store by expiry as soon as the extension is created in this
-- database.  The answers have to be the same.
CREATE SCHEMA with_partitions;

CREATE FUNCTION with_partitions.partition() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	schema_name name := (SELECT n.nspname FROM pg_namespace n JOIN pg_extension e ON n.oid = e.extnamespace
		WHERE e.extname = 'idempotency');
BEGIN
	IF schema_name IS NOT NULL THEN
		EXECUTE format('SELECT %I.idem_partition_store(''4 hours'')', schema_name);
	END IF;
END
$$;

CREATE EVENT TRIGGER with_partitions ON ddl_command_end
WHEN TAG IN ('CREATE EXTENSION')
EXECUTE FUNCTION with_partitions.partition();
