-- Gives the store a user's trigger as soon as the extension is created in this
-- database, so that the extension has to take its SPI path; a store that is there
-- already gets it by with_trigger.attach_to.  The trigger changes nothing but
-- counts, in a sequence that no rollback can reset.
CREATE SCHEMA with_trigger;
CREATE SEQUENCE with_trigger.fired;

CREATE FUNCTION with_trigger.fire() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
	PERFORM nextval('with_trigger.fired');
	RETURN coalesce(new, old);
END
$$;

CREATE FUNCTION with_trigger.attach_to(store regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER with_trigger
		BEFORE INSERT OR UPDATE OR DELETE ON %s
		FOR EACH ROW EXECUTE FUNCTION with_trigger.fire()', store);
END
$$;

CREATE FUNCTION with_trigger.attach() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	store regclass := (
		SELECT c.oid
		FROM pg_class c JOIN pg_extension e ON c.relnamespace = e.extnamespace
		WHERE e.extname = 'idempotency' AND c.relname = 'idempotency_store');
BEGIN
	IF store IS NOT NULL AND NOT EXISTS (SELECT FROM pg_trigger
		WHERE tgrelid = store AND tgname = 'with_trigger')
	THEN
		PERFORM with_trigger.attach_to(store);
	END IF;
END
$$;

CREATE EVENT TRIGGER with_trigger ON ddl_command_end
WHEN TAG IN ('CREATE EXTENSION')
EXECUTE FUNCTION with_trigger.attach();
