-- Moves the records of managed/idempotency.sql into the extension, in one transaction:
--
--     psql -v ON_ERROR_STOP=1 -f managed/move-to-extension.sql
--
-- Run it as a role that may create the extension, on a server that has it installed.
-- Records keep their responses, attempts and times. Leases go on with their fences, and
-- every new fence is greater than all of them. Roles keep their rights. The functions
-- have the same names, so applications go on as before. The script waits for open
-- transactions that use the functions, and they wait for the script.

BEGIN;

DO $$
DECLARE
	home name;
	roles regrole[];
	object record;
	moved bigint;
	fence bigint;
BEGIN
	BEGIN
		SELECT n.nspname INTO STRICT home FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relname = 'idempotency_pending' AND c.relkind = 'r' AND c.relpersistence = 'u';
	EXCEPTION WHEN no_data_found OR too_many_rows THEN
		RAISE EXCEPTION 'there is not exactly one schema with the functions of managed/idempotency.sql'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END;
	EXECUTE format('LOCK TABLE %1$I.idempotency_store, %1$I.idempotency_pending IN ACCESS EXCLUSIVE MODE', home);
	SELECT array_agg(a.grantee::regrole) INTO roles FROM pg_proc p, aclexplode(p.proacl) a
		WHERE p.pronamespace = quote_ident(home)::regnamespace AND p.proname = 'idem_begin'
		AND a.grantee NOT IN (0, p.proowner);

	-- the names have to be free
	CREATE SCHEMA idempotency_managed;
	FOR object IN
		SELECT 'TABLE' AS kind, unnest(ARRAY['idempotency_store', 'idempotency_pending', 'idempotency_secret', 'idempotency_sweep']) AS name
		UNION ALL
		SELECT 'SEQUENCE', 'idempotency_fence'
		UNION ALL
		SELECT 'TYPE', unnest(ARRAY['idem_operation', 'idem_outcome', 'idempotency_status'])
	LOOP
		EXECUTE format('ALTER %s %I.%I SET SCHEMA idempotency_managed', object.kind, home, object.name);
	END LOOP;
	DROP TRIGGER idem_refuse_unfinished ON idempotency_managed.idempotency_pending;
	DROP TRIGGER idem_refuse_restricted ON idempotency_managed.idempotency_store;
	FOR object IN
		SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_class c ON c.relowner = p.proowner
		WHERE c.oid = 'idempotency_managed.idempotency_store'::regclass
		AND p.pronamespace = quote_ident(home)::regnamespace
		AND (obj_description(p.oid, 'pg_proc') LIKE 'internal: %' OR p.proname IN ('idem_begin', 'idem_complete', 'idem_fail',
			'idem_release', 'idem_extend', 'idem_lookup', 'idem_fingerprint', 'idem_step_key', 'idem_gc', 'idem_schedule_gc',
			'idem_grant', 'idem_revoke'))
	LOOP
		EXECUTE format('DROP FUNCTION %s', object.name);
	END LOOP;

	EXECUTE format('CREATE EXTENSION idempotency SCHEMA %I', home);
	EXECUTE format('INSERT INTO %1$I.idempotency_store (created_at, updated_at, expires_at, lease_expires_at, retry_at, fence,
			status, attempt, response_code, scope, idempotency_key, request_hash, response_headers, response_payload, response_body)
		SELECT created_at, updated_at, expires_at, lease_expires_at, retry_at, fence,
			status::text::%1$I.idempotency_status, attempt, response_code, scope, idempotency_key, request_hash,
			response_headers, response_payload, response_body
		FROM idempotency_managed.idempotency_store', home);
	GET DIAGNOSTICS moved = ROW_COUNT;
	SELECT greatest(f.last_value, (SELECT max(s.fence) FROM idempotency_managed.idempotency_store s))
		INTO fence FROM idempotency_managed.idempotency_fence f;
	PERFORM setval(format('%I.idempotency_fence', home)::regclass, fence);
	FOR object IN SELECT unnest(roles) AS role LOOP
		EXECUTE format('SELECT %I.idem_grant(%L)', home, object.role);
	END LOOP;

	DROP TABLE idempotency_managed.idempotency_store, idempotency_managed.idempotency_pending,
		idempotency_managed.idempotency_secret, idempotency_managed.idempotency_sweep;
	DROP SEQUENCE idempotency_managed.idempotency_fence;
	DROP TYPE idempotency_managed.idem_operation, idempotency_managed.idem_outcome, idempotency_managed.idempotency_status;
	DROP SCHEMA idempotency_managed;
	RAISE NOTICE '% records moved; every new fence is greater than %', moved, fence;
END
$$;

COMMIT;
