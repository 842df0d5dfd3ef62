-- Moves the records of managed/idempotency.sql, or of the trusted language extension that is
-- made of it, into the extension, in one transaction:
--
--     psql -v ON_ERROR_STOP=1 -f managed/move-to-extension.sql
--
-- Run it as a role that may create the extension, on a server that has it installed.
-- Records keep their responses, attempts and times, and so does idempotency_forgotten. Leases go on with their fences, and
-- every new fence is greater than all of them. Roles keep their rights. The functions
-- have the same names, so applications go on as before. The script waits for open
-- transactions that use the functions, and they wait for the script.
--
-- A superuser runs it on tables of a role that is none. So only pg_catalog is searched,
-- and the owner of the tables reads them.

-- a snapshot of before the lock on the tables would lack what was committed while it waited
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL search_path = pg_catalog, pg_temp;
-- a policy that hides records is an error
SET LOCAL row_security = off;

DO $$
DECLARE
	home name;
	home_id oid;
	owner oid;
	trusted record;
	roles oid[];
	object record;
	role oid;
	has_forgotten bool;
	moved bigint;
	fence bigint;
BEGIN
	SELECT min(n.nspname), min(n.oid) INTO home, home_id
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = 'idempotency_pending' AND c.relkind = 'r' AND c.relpersistence = 'u'
		HAVING count(*) = 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'there is not exactly one schema with the functions of managed/idempotency.sql'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	-- Its owner could give the name to another schema: then what he has put there would get
	-- the records. Until COMMIT nobody renames it.
	SELECT n.nspname INTO home FROM pg_namespace n WHERE n.oid = home_id FOR UPDATE;
	EXECUTE format('LOCK TABLE %1$I.idempotency_store, %1$I.idempotency_pending IN ACCESS EXCLUSIVE MODE', home);
	SELECT c.relowner INTO owner FROM pg_class c WHERE c.relnamespace = home_id AND c.relname = 'idempotency_store';

	-- A trusted language extension gives up its objects, which then are as those of the script.
	-- What belongs to another object goes with it: from 17 on the type of an array, or of a
	-- table's rows, is a member, too.
	SELECT e.oid, e.extname INTO trusted FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
		WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_class'::regclass
		AND d.objid = (SELECT c.oid FROM pg_class c WHERE c.relnamespace = home_id AND c.relname = 'idempotency_pending');
	IF FOUND THEN
		FOR object IN
			SELECT i.type, i.identity FROM pg_depend d, pg_identify_object(d.classid, d.objid, 0) i
			WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = trusted.oid
			AND NOT EXISTS (SELECT FROM pg_depend p WHERE p.classid = d.classid AND p.objid = d.objid AND p.deptype = 'i')
		LOOP
			EXECUTE format('ALTER EXTENSION %I DROP %s %s', trusted.extname, object.type, object.identity);
		END LOOP;
		EXECUTE format('DROP EXTENSION %I', trusted.extname);
		-- while pg_tle knows the name, CREATE EXTENSION makes its extension
		IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_tle') THEN
			PERFORM pgtle.uninstall_extension_if_exists(trusted.extname::text);
		END IF;
	END IF;

	-- the names have to be free; a script of 1.0 has no view, and no idempotency_forgotten
	IF EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = home_id AND c.relname = 'idempotency_failures' AND c.relkind = 'v' AND c.relowner = owner) THEN
		EXECUTE format('DROP VIEW %I.idempotency_failures', home);
	END IF;
	has_forgotten := EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = home_id AND c.relname = 'idempotency_forgotten');
	CREATE SCHEMA idempotency_managed;
	FOR object IN
		SELECT 'TABLE' AS kind, 'r' AS relkind, unnest(ARRAY['idempotency_store', 'idempotency_pending', 'idempotency_secret', 'idempotency_sweep']
			|| CASE WHEN has_forgotten THEN '{idempotency_forgotten}'::text[] END) AS name
		UNION ALL
		SELECT 'SEQUENCE', 'S', 'idempotency_fence'
		UNION ALL
		SELECT 'TYPE', NULL, unnest(ARRAY['idem_operation', 'idem_outcome', 'idempotency_status'])
	LOOP
		IF object.relkind IS NOT NULL AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = home_id
			AND c.relname = object.name AND c.relkind::text = object.relkind AND c.relowner = owner AND NOT c.relispartition) THEN
			RAISE EXCEPTION '"%.%" is not the one that managed/idempotency.sql has created', home, object.name
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		EXECUTE format('ALTER %s %I.%I SET SCHEMA idempotency_managed', object.kind, home, object.name);
	END LOOP;

	-- A materialized view is filled as its owner, in an operation that is restricted:
	-- code that he has put on the table cannot become another role, and leaves nothing
	-- that runs later. He has no right on the schema, so he cannot change the view.
	CREATE MATERIALIZED VIEW idempotency_managed.record AS
		SELECT s.created_at::timestamptz, s.updated_at::timestamptz, s.expires_at::timestamptz,
			s.lease_expires_at::timestamptz, s.retry_at::timestamptz, s.fence::bigint, s.status::text,
			s.attempt::int, s.response_code::int, s.scope::text, s.idempotency_key::text,
			s.request_hash::bytea, s.response_headers::jsonb, s.response_payload::jsonb, s.response_body::bytea
		FROM idempotency_managed.idempotency_store s
		WITH NO DATA;
	IF has_forgotten THEN
		CREATE MATERIALIZED VIEW idempotency_managed.forgotten AS
			SELECT f.call_id::uuid, f.forgotten_at::timestamptz, f.session_role::name, f.role::name,
				f.scope::text, f.cause::text, f.reason::text, f.operations::bigint
			FROM idempotency_managed.idempotency_forgotten f
			WITH NO DATA;
	END IF;
	FOR object IN
		SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = 'idempotency_managed'::regnamespace AND c.relkind = 'm'
	LOOP
		EXECUTE format('ALTER MATERIALIZED VIEW idempotency_managed.%I OWNER TO %s', object.name, owner::regrole);
		EXECUTE format('REFRESH MATERIALIZED VIEW idempotency_managed.%I', object.name);
		EXECUTE format('ALTER MATERIALIZED VIEW idempotency_managed.%I OWNER TO %I', object.name, current_user);
	END LOOP;

	SELECT array_agg(a.grantee) INTO roles FROM pg_proc p, aclexplode(p.proacl) a
		WHERE p.pronamespace = home_id AND p.proowner = owner AND p.proname = 'idem_begin' AND a.grantee NOT IN (0, p.proowner);
	DROP TRIGGER idem_refuse_unfinished ON idempotency_managed.idempotency_pending;
	DROP TRIGGER idem_refuse_restricted ON idempotency_managed.idempotency_store;
	FOR object IN
		SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.proowner = owner AND p.pronamespace = home_id
		AND (obj_description(p.oid, 'pg_proc') LIKE 'internal: %' OR p.proname IN ('idem_begin', 'idem_complete', 'idem_fail',
			'idem_release', 'idem_extend', 'idem_progress', 'idem_lookup', 'idem_fingerprint', 'idem_step_key', 'idem_call',
			'idem_begin_batch', 'idem_complete_batch', 'idem_forget', 'idem_forget_failed', 'idem_gc', 'idem_schedule_gc', 'idem_grant', 'idem_revoke'))
	LOOP
		EXECUTE format('DROP FUNCTION %s', object.name);
	END LOOP;

	EXECUTE format('CREATE EXTENSION idempotency SCHEMA %I', home);
	EXECUTE format('INSERT INTO %1$I.idempotency_store (created_at, updated_at, expires_at, lease_expires_at, retry_at, fence,
			status, attempt, response_code, scope, idempotency_key, request_hash, response_headers, response_payload, response_body)
		SELECT created_at, updated_at, expires_at, lease_expires_at, retry_at, fence,
			status::%1$I.idempotency_status, attempt, response_code, scope, idempotency_key, request_hash,
			response_headers, response_payload, response_body
		FROM idempotency_managed.record', home);
	GET DIAGNOSTICS moved = ROW_COUNT;
	IF has_forgotten THEN
		EXECUTE format('INSERT INTO %I.idempotency_forgotten (call_id, forgotten_at, session_role, role, scope, cause, reason, operations)
			SELECT call_id, forgotten_at, session_role, role, scope, cause, reason, operations
			FROM idempotency_managed.forgotten', home);
		DROP MATERIALIZED VIEW idempotency_managed.forgotten;
		DROP TABLE idempotency_managed.idempotency_forgotten;
	END IF;
	SELECT greatest(f.last_value, (SELECT max(r.fence) FROM idempotency_managed.record r))
		INTO fence FROM idempotency_managed.idempotency_fence f;
	PERFORM setval(format('%I.idempotency_fence', home)::regclass, fence);
	FOREACH role IN ARRAY coalesce(roles, '{}') LOOP
		-- the exact signature: one that somebody has planted beside it must not match better
		EXECUTE format('SELECT %I.idem_grant(%L::regrole)', home, role);
	END LOOP;

	DROP MATERIALIZED VIEW idempotency_managed.record;
	DROP TABLE idempotency_managed.idempotency_store, idempotency_managed.idempotency_pending,
		idempotency_managed.idempotency_secret, idempotency_managed.idempotency_sweep;
	DROP SEQUENCE idempotency_managed.idempotency_fence;
	DROP TYPE idempotency_managed.idem_operation, idempotency_managed.idem_outcome, idempotency_managed.idempotency_status;
	DROP SCHEMA idempotency_managed;
	RAISE NOTICE '% % moved; every new fence is greater than %', moved, CASE moved WHEN 1 THEN 'record' ELSE 'records' END, fence;
END
$$;

COMMIT;
