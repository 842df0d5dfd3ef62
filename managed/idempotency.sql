-- The extension "idempotency" without C, for databases that load no extensions of
-- their own: types, tables and functions with the same names, in PL/pgSQL.
--
--     psql -v ON_ERROR_STOP=1 -f managed/idempotency.sql
--
-- It installs into the first schema of the search_path, as any role that may create
-- there, and needs no superuser. docs/guide/managed-databases.md says what is
-- different.
--
-- Two tables take the place of the memory that the extension has. A row of
-- idempotency_pending is an operation that this transaction has begun: other
-- transactions never see it, a rollback to a savepoint undoes its changes, and a
-- deferred trigger refuses the COMMIT while it is there. idempotency_secret has the
-- secret of the lock ids.
--
-- The functions run with the rights of their owner, so each one that a role can be
-- allowed to call has a search_path of its own.

BEGIN;

-- What others have put into the schemas of the search_path must not run with the rights
-- of the role that installs: from here on only pg_catalog is searched.
SELECT pg_catalog.set_config('idem.home', pg_catalog.current_schema(), true);
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
	home name := current_setting('idem.home');
	home_id oid;
	us oid := quote_ident(current_user)::regrole;
	stranger record;
BEGIN
	IF current_setting('server_version_num')::int < 150000 THEN
		RAISE EXCEPTION 'PostgreSQL 15 or newer is needed' USING ERRCODE = 'feature_not_supported';
	END IF;
	-- fingerprints and the order of members are those of UTF-8
	IF current_setting('server_encoding') <> 'UTF8' THEN
		RAISE EXCEPTION 'the encoding of the database must be UTF8' USING ERRCODE = 'feature_not_supported';
	END IF;
	IF home = '' THEN
		RAISE EXCEPTION 'no schema to install into' USING ERRCODE = 'invalid_schema_name',
			HINT = 'Create a schema, and set search_path to it.';
	END IF;
	home_id := quote_ident(home)::regnamespace;
	-- who may create objects there could run code with the rights of our owner
	SELECT m.role, CASE WHEN m.role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(m.role)) END AS name, m.owns INTO stranger
		FROM (
			SELECT CASE WHEN n.nspowner = 'pg_database_owner'::regrole THEN d.datdba ELSE n.nspowner END AS role, true AS owns
			FROM pg_namespace n, pg_database d WHERE n.oid = home_id AND d.datname = current_database()
			UNION ALL
			SELECT a.grantee, false FROM pg_namespace n, aclexplode(n.nspacl) a
			WHERE n.oid = home_id AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) m
		WHERE m.role <> us AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = m.role AND r.rolsuper)
		ORDER BY m.owns, name LIMIT 1;
	IF stranger.owns THEN
		RAISE EXCEPTION 'schema "%" belongs to %', home, stranger.name
			USING ERRCODE = 'insufficient_privilege',
			HINT = format('Install as that role, or into a schema that belongs to %I.', current_user);
	ELSIF NOT stranger.owns THEN
		RAISE EXCEPTION '% may create objects in schema "%"', stranger.name, home
			USING ERRCODE = 'insufficient_privilege',
			HINT = format('Use a schema of its own, or run REVOKE CREATE ON SCHEMA %I FROM %s.', home, stranger.name);
	END IF;
	-- what they have created while they could would match better than what we call
	SELECT o.what, quote_ident(pg_get_userbyid(o.owner)) AS name INTO stranger
		FROM (
			SELECT 'function ' || p.oid::regprocedure AS what, p.proowner AS owner FROM pg_proc p WHERE p.pronamespace = home_id
			UNION ALL
			SELECT 'operator ' || o.oid::regoperator, o.oprowner FROM pg_operator o WHERE o.oprnamespace = home_id) o
		WHERE o.owner <> us AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = o.owner AND r.rolsuper)
		ORDER BY 1 LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION '% in schema "%" belongs to %', stranger.what, home, stranger.name
			USING ERRCODE = 'insufficient_privilege',
			HINT = 'Use a schema of its own.';
	END IF;
END
$$;

-- What is created now goes into this schema, and functions with "FROM CURRENT" keep
-- this search_path; pg_catalog comes first by itself.
SELECT set_config('search_path', quote_ident(current_setting('idem.home')) || ', pg_temp', true);

-- Types and tables, as the extension has them. Columns of sealing are left out.

CREATE TYPE idempotency_status AS ENUM ('PENDING', 'COMPLETED', 'FAILED');
COMMENT ON TYPE idempotency_status IS 'state of an operation in the store';

CREATE TYPE idem_outcome AS ENUM ('ACQUIRED', 'IN_PROGRESS', 'COMPLETED', 'FAILED', 'MISMATCH');
COMMENT ON TYPE idem_outcome IS 'answer to a begin';

CREATE TYPE idem_operation AS (
	outcome				idem_outcome,
	scope				text,
	idempotency_key		text,
	attempt				int,
	taken_over			bool,
	replayed			bool,
	fence				bigint,
	lease_expires_at	timestamptz,
	retry_after			interval,
	response_code		int,
	response_headers	jsonb,
	response_payload	jsonb,
	response_body		bytea,
	created_at			timestamptz,
	updated_at			timestamptz,
	expires_at			timestamptz
);
COMMENT ON TYPE idem_operation IS 'result of idem_begin and idem_lookup';

CREATE TABLE idempotency_store (
	created_at			timestamptz NOT NULL DEFAULT clock_timestamp(),
	updated_at			timestamptz NOT NULL DEFAULT clock_timestamp(),
	expires_at			timestamptz NOT NULL,
	lease_expires_at	timestamptz,
	retry_at			timestamptz,
	fence				bigint,
	status				idempotency_status NOT NULL,
	attempt				int NOT NULL DEFAULT 1,
	response_code		int,
	scope				text COLLATE "C" NOT NULL DEFAULT '',
	idempotency_key		text COLLATE "C" NOT NULL,
	request_hash		bytea,
	response_headers	jsonb,
	response_payload	jsonb,
	response_body		bytea,
	PRIMARY KEY (scope, idempotency_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000);
-- Statistics for the planner would keep values of responses for longer than the records.
ALTER TABLE idempotency_store ALTER response_headers SET STATISTICS 0,
	ALTER response_payload SET STATISTICS 0, ALTER response_body SET STATISTICS 0;
COMMENT ON TABLE idempotency_store IS 'one row per operation that has ended or is leased; written by the idem_ functions only';

-- Its rows never outlive their transaction, so a crash may empty it, and it needs no
-- WAL. It stays small as long as vacuum comes soon.
CREATE UNLOGGED TABLE idempotency_pending (
	created_at			timestamptz NOT NULL,
	expected				timestamptz,
	attempt				int NOT NULL,
	scope				text COLLATE "C" NOT NULL,
	idempotency_key		text COLLATE "C" NOT NULL,
	request_hash		bytea,
	PRIMARY KEY (scope, idempotency_key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE idempotency_pending IS 'transaction-bound operations that have not ended; each transaction sees its own only';
COMMENT ON COLUMN idempotency_pending.expected IS 'updated_at of the row of the store that the begin has read; NULL: there was none';

CREATE SEQUENCE idempotency_fence AS bigint;
COMMENT ON SEQUENCE idempotency_fence IS 'source of the fences of leased attempts; each is greater than all before it';

CREATE TABLE idempotency_secret (
	only_row	bool PRIMARY KEY DEFAULT true CHECK (only_row),
	lock_key	bigint NOT NULL
);
COMMENT ON TABLE idempotency_secret IS 'secret of the lock ids of this database';
INSERT INTO idempotency_secret (lock_key) VALUES (('x' || left(replace(gen_random_uuid()::text, '-', ''), 12)
	|| right(gen_random_uuid()::text, 4))::bit(64)::bigint);

CREATE TABLE idempotency_sweep (
	only_row	bool PRIMARY KEY DEFAULT true CHECK (only_row),
	next_page	bigint NOT NULL,
	began_at	timestamptz NOT NULL,
	swept_at	timestamptz NOT NULL
);
COMMENT ON TABLE idempotency_sweep IS 'position of the present sweep';

CREATE TABLE idempotency_forgotten (
	call_id			uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	forgotten_at	timestamptz NOT NULL DEFAULT clock_timestamp(),
	session_role	name NOT NULL DEFAULT SESSION_USER,
	role			name NOT NULL,
	scope			text COLLATE "C" NOT NULL,
	cause			text,
	reason			text NOT NULL,
	operations		bigint NOT NULL
);
COMMENT ON TABLE idempotency_forgotten IS 'who has forgotten failures, and why: one row for each call of idem_forget_failed that removed something';

-- Arguments: everything wrong is ID400, before anything is looked up or written.

CREATE FUNCTION idem_refuse_write(function text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION 'cannot execute % %', function,
		CASE WHEN pg_is_in_recovery() THEN 'during recovery' ELSE 'in a read-only transaction' END
		USING ERRCODE = 'read_only_sql_transaction';
END
$$;
COMMENT ON FUNCTION idem_refuse_write(text) IS 'internal: the error of a read-only transaction, and of a standby';

CREATE FUNCTION idem_check_text(value text, name text, may_be_empty bool) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF value IS NULL THEN
		RAISE EXCEPTION '% must not be null', name USING ERRCODE = 'ID400';
	ELSIF value = '' AND NOT may_be_empty THEN
		RAISE EXCEPTION '% must not be empty', name USING ERRCODE = 'ID400';
	ELSIF length(value) > 255 THEN
		RAISE EXCEPTION '% must not be longer than 255 characters', name
			USING ERRCODE = 'ID400', HINT = 'Use a hash of it, as idem_step_key does.';
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_text(text, text, bool) IS 'internal: refuses what is no key or scope';

-- What every function that writes refuses first; nothing is called in the usual case.
CREATE FUNCTION idem_check_call(function text, key text, scope text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		PERFORM idem_refuse_write(function);
	END IF;
	IF key IS NULL OR scope IS NULL OR key = '' OR length(key) > 255 OR length(scope) > 255 THEN
		PERFORM idem_check_text(key, 'key', false);
		PERFORM idem_check_text(scope, 'scope', true);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_call(text, text, text) IS 'internal: refuses read-only transactions and names that are none';

CREATE FUNCTION idem_check_max_rows(max_rows int) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF max_rows IS NULL OR max_rows <= 0 THEN
		RAISE EXCEPTION 'max_rows must %', CASE WHEN max_rows IS NULL THEN 'not be null' ELSE 'be positive' END
			USING ERRCODE = 'ID400';
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_max_rows(int) IS 'internal: refuses what bounds nothing';

CREATE FUNCTION idem_check_fence(fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF fence <= 0 THEN
		RAISE EXCEPTION 'fence must be positive' USING ERRCODE = 'ID400';
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_fence(bigint) IS 'internal: fences are handed out from 1';

-- An interval as elapsed time: days of 24 hours and months of 30 days.
CREATE FUNCTION idem_duration(value interval, name text, may_be_zero bool DEFAULT false) RETURNS interval
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
	seconds numeric;
BEGIN
	IF value IS NULL THEN
		RETURN NULL;
	ELSIF NOT isfinite(value) THEN
		RAISE EXCEPTION '% must be finite', name USING ERRCODE = 'ID400';
	END IF;
	-- a year of "epoch" has 365.25 days, and its months have 30
	seconds := extract(epoch FROM value) - extract(year FROM value) * 453600;
	IF seconds > 36500 * 86400::numeric THEN
		RAISE EXCEPTION '% must not be longer than 36500 days', name USING ERRCODE = 'ID400';
	ELSIF seconds < 0 AND may_be_zero THEN
		RAISE EXCEPTION '% must not be negative', name USING ERRCODE = 'ID400';
	ELSIF seconds <= 0 AND NOT may_be_zero THEN
		RAISE EXCEPTION '% must be positive', name USING ERRCODE = 'ID400';
	END IF;
	RETURN make_interval(secs => seconds::float8);
END
$$;
COMMENT ON FUNCTION idem_duration(interval, text, bool) IS 'internal: an interval of an argument as hours, minutes and seconds';

-- Settings have the names of the extension. Here everybody may set all of them.
CREATE FUNCTION idem_setting(name text, absent text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
	RETURN coalesce(nullif(current_setting('idempotency.' || name, true), ''), absent);
END
$$;
COMMENT ON FUNCTION idem_setting(text, text) IS 'internal: a setting of the session, or its default';

-- A number without a unit is of that unit.
CREATE FUNCTION idem_setting_duration(name text, absent text, unit text) RETURNS interval
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	value text := idem_setting(name, absent);
BEGIN
	RETURN idem_duration((value || CASE WHEN value ~ '^[0-9]+$' THEN unit ELSE '' END)::interval,
		'idempotency.' || name, name = 'end_wait');
END
$$;
COMMENT ON FUNCTION idem_setting_duration(text, text, text) IS 'internal: a setting that is a time';

CREATE FUNCTION idem_retention(asked interval) RETURNS interval
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
	RETURN coalesce(asked, idem_setting_duration('retention', '24h', 's'));
END
$$;
COMMENT ON FUNCTION idem_retention(interval) IS 'internal: how long a record is kept';

-- The time that is left, in hours, minutes and seconds as the extension gives it.
CREATE FUNCTION idem_time_left(due timestamptz, now timestamptz) RETURNS interval
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
	RETURN make_interval(secs => greatest(extract(epoch FROM due - now), 0)::float8);
END
$$;
COMMENT ON FUNCTION idem_time_left(timestamptz, timestamptz) IS 'internal: the retry_after of an answer';

-- Fingerprints. jsonb::text has the members in their order, without duplicates and
-- white space. Strings with a backslash are E'', whose meaning no setting changes. Each token of it is hashed as docs/reference/idem_fingerprint.md says.

CREATE FUNCTION idem_token(token text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
	bytes bytea;
	digits text;
	kept text;
	exponent int;
BEGIN
	CASE left(token, 1)
		WHEN '"' THEN
			bytes := convert_to(CASE WHEN strpos(token, E'\\') = 0
				THEN substr(token, 2, length(token) - 2) ELSE token::jsonb #>> '{}' END, 'UTF8');
			RETURN 's'::bytea || int4send(octet_length(bytes)) || bytes;
		WHEN '{', '}', '[', ']', 't', 'f' THEN
			RETURN left(token, 1)::bytea;
		WHEN 'n' THEN
			RETURN 'z'::bytea;
		ELSE
			digits := ltrim(translate(token, '-.', ''), '0');
			kept := rtrim(digits, '0');
			exponent := length(digits) - length(kept)
				- CASE WHEN strpos(token, '.') > 0 THEN length(token) - strpos(token, '.') ELSE 0 END;
			kept := CASE WHEN kept = '' THEN '0e0'
				ELSE CASE WHEN left(token, 1) = '-' THEN '-' ELSE '' END || kept || 'e' || exponent END;
			RETURN 'n'::bytea || int4send(length(kept)) || kept::bytea;
	END CASE;
END
$$;
COMMENT ON FUNCTION idem_token(text) IS 'internal: the bytes that are hashed for one token of JSON';

CREATE FUNCTION idem_fingerprint(request jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT AS $$
DECLARE
	bytes bytea;
BEGIN
	SELECT string_agg(idem_token(t.token[1]), '' ORDER BY t.n) INTO bytes
		FROM regexp_matches(request::text, E'"(?:[^"\\\\]|\\\\.)*"|[][{}]|[a-z]+|[-.0-9]+', 'g') WITH ORDINALITY t (token, n);
	IF jsonb_typeof(request) IN ('object', 'array') THEN
		RETURN sha256(bytes);
	END IF;
	RETURN sha256('r'::bytea || bytes || ']'::bytea);
END
$$;
COMMENT ON FUNCTION idem_fingerprint(jsonb) IS 'SHA-256 fingerprint of a request; equal jsonb values have equal fingerprints';

CREATE FUNCTION idem_step_key(key text, step text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path FROM CURRENT AS $$
BEGIN
	IF key IS NULL OR step IS NULL THEN
		RAISE EXCEPTION '% must not be null', CASE WHEN key IS NULL THEN 'key' ELSE 'step' END USING ERRCODE = 'ID400';
	ELSIF key = '' OR step = '' THEN
		RAISE EXCEPTION '% must not be empty', CASE WHEN key = '' THEN 'key' ELSE 'step' END USING ERRCODE = 'ID400';
	ELSIF length(key) + 1 + length(step) <= 255 THEN
		RETURN key || ':' || step;
	END IF;
	RETURN 'sha256:' || encode(sha256(convert_to(key || ':' || step, 'UTF8')), 'hex');
END
$$;
COMMENT ON FUNCTION idem_step_key(text, text) IS 'key of one step of a larger operation';

-- Locks. The lock of an operation makes begin exclusive: a session that has it reads
-- every record that was committed before. It ends with the transaction.

CREATE FUNCTION idem_refuse_without_secret() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION 'table "idempotency_secret" has no row' USING ERRCODE = 'object_not_in_prerequisite_state',
		DETAIL = 'A copy of the schema without its data has none.',
		HINT = 'As the owner, run INSERT INTO idempotency_secret (lock_key) VALUES (hashtextextended(gen_random_uuid()::text, 0)).';
END
$$;
COMMENT ON FUNCTION idem_refuse_without_secret() IS 'internal: the error of a copy that has no secret';

CREATE FUNCTION idem_lock_id(key text, scope text) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	id bigint := (SELECT hashtextextended(key, hashtextextended(scope, lock_key)) FROM idempotency_secret);
BEGIN
	IF id IS NULL THEN
		PERFORM idem_refuse_without_secret();
	END IF;
	RETURN id;
END
$$;
COMMENT ON FUNCTION idem_lock_id(text, text) IS 'internal: id of the advisory lock of an operation';

-- Takes the lock if it comes free in that time. The timed wait ends with an error, so
-- it happens in a subtransaction. A shorter lock_timeout of the caller stays an error.
CREATE FUNCTION idem_lock_within(id bigint, wait interval) RETURNS bool
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	theirs text := current_setting('lock_timeout');
	milliseconds bigint := least(floor(extract(epoch FROM wait) * 1000) + 1, 2147483647);
	ours bool;
BEGIN
	IF pg_try_advisory_xact_lock(id) THEN
		RETURN true;
	ELSIF wait <= '0' THEN
		RETURN false;
	END IF;
	ours := theirs = '0' OR milliseconds < extract(epoch FROM theirs::interval) * 1000;
	BEGIN
		IF ours THEN
			PERFORM set_config('lock_timeout', milliseconds::text, true);
		END IF;
		PERFORM pg_advisory_xact_lock(id);
	EXCEPTION WHEN lock_not_available THEN
		IF NOT ours THEN
			RAISE;
		END IF;
		RETURN false;
	END;
	PERFORM set_config('lock_timeout', theirs, true);
	RETURN true;
END
$$;
COMMENT ON FUNCTION idem_lock_within(bigint, interval) IS 'internal: takes a lock in bounded time';

-- A transaction counts its operations in a setting, which a rollback sets back.
CREATE FUNCTION idem_reserve() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	held int := coalesce(nullif(current_setting('idem.held', true), ''), '0');
	most int := idem_setting('max_operations_per_transaction', '1000');
BEGIN
	IF held >= most THEN
		RAISE EXCEPTION 'a transaction cannot hold more than % operations and resource locks', most
			USING ERRCODE = 'configuration_limit_exceeded',
			HINT = 'Commit more often, or raise idempotency.max_operations_per_transaction together with max_locks_per_transaction.';
	END IF;
	PERFORM set_config('idem.held', (held + 1)::text, true);
END
$$;
COMMENT ON FUNCTION idem_reserve() IS 'internal: counts one more operation of this transaction';

-- Fences. A fence is greater than that of every earlier attempt of its operation.

CREATE FUNCTION idem_last_fence() RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RETURN (SELECT CASE WHEN is_called THEN last_value ELSE greatest(last_value, 1) - 1 END FROM idempotency_fence);
END
$$;
COMMENT ON FUNCTION idem_last_fence() IS 'internal: the greatest fence that the sequence knows';

-- If the sequence is behind (rows were loaded without it), it catches up. This ALTER
-- SEQUENCE changes nothing, but locks out those who draw a number; what setval sets
-- holds even after a rollback.
CREATE FUNCTION idem_keep_fence(fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF fence IS NULL OR idem_last_fence() >= fence THEN
		RETURN;
	END IF;
	IF fence >= (SELECT seqmax FROM pg_sequence WHERE seqrelid = 'idempotency_fence'::regclass) THEN
		RAISE EXCEPTION 'there is no fence greater than that of the last attempt'
			USING ERRCODE = 'sequence_generator_limit_exceeded',
			HINT = 'Sequence "idempotency_fence" is at its end, or the row has a fence that did not come from it. '
				'The owner of the extension can correct the sequence or the row.';
	END IF;
	ALTER SEQUENCE idempotency_fence OWNED BY NONE;
	IF idem_last_fence() < fence THEN
		PERFORM setval('idempotency_fence', fence);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_keep_fence(bigint) IS 'internal: every new fence is greater than this one, whose row may go';

CREATE FUNCTION idem_next_fence(after bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	sequence record;
	fence bigint;
BEGIN
	PERFORM idem_keep_fence(after);
	SELECT s.*, c.relpersistence INTO sequence
		FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE s.seqrelid = 'idempotency_fence'::regclass;
	IF sequence.seqcache <> 1 OR sequence.seqincrement <= 0 OR sequence.seqmin <= 0 OR sequence.seqcycle THEN
		RAISE EXCEPTION 'sequence "idempotency_fence" has been changed' USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = 'With such a CACHE, INCREMENT, MINVALUE or CYCLE a fence could be smaller than an earlier one.',
			HINT = 'Run ALTER SEQUENCE ... CACHE 1 INCREMENT 1 MINVALUE 1 NO CYCLE.';
	ELSIF sequence.relpersistence <> 'p' THEN
		RAISE EXCEPTION 'sequence "idempotency_fence" is not logged' USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = 'A crash would set the sequence back.', HINT = 'Run ALTER SEQUENCE ... SET LOGGED.';
	END IF;
	fence := nextval('idempotency_fence');
	IF fence <= after THEN
		RAISE EXCEPTION 'sequence "idempotency_fence" was set back concurrently'
			USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
	END IF;
	RETURN fence;
END
$$;
COMMENT ON FUNCTION idem_next_fence(bigint) IS 'internal: a new fence, greater than the one given';

-- The fences of leases that this transaction has begun are in a setting: it needs no
-- fence to end them. Who forges the setting must know the fence.

CREATE FUNCTION idem_leases() RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED AS $$
BEGIN
	RETURN coalesce(nullif(current_setting('idem.leases', true), ''), '{}');
END
$$;
COMMENT ON FUNCTION idem_leases() IS 'internal: the fences of the leases that this transaction has begun, by scope and key';

CREATE FUNCTION idem_own_fence(key text, scope text) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED AS $$
BEGIN
	RETURN idem_leases() ->> jsonb_build_array(scope, key)::text;
END
$$;
COMMENT ON FUNCTION idem_own_fence(text, text) IS 'internal: fence of the lease that this transaction has begun';

CREATE FUNCTION idem_note_lease(key text, scope text, fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	leases jsonb := idem_leases();
	name text := jsonb_build_array(scope, key);
BEGIN
	IF fence IS NOT NULL THEN
		PERFORM set_config('idem.leases', (leases || jsonb_build_object(name, fence))::text, true);
	ELSIF leases ? name THEN
		PERFORM set_config('idem.leases', (leases - name)::text, true);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_note_lease(text, text, bigint) IS 'internal: this transaction has begun a lease, or (NULL) ended it';

-- The store

-- A lease outlives the expiry of its record.
CREATE FUNCTION idem_is_absent(stored idempotency_store, now timestamptz) RETURNS bool
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	RETURN stored.expires_at IS NULL OR (stored.expires_at <= now
		AND (stored.status = 'PENDING' AND stored.lease_expires_at > now) IS NOT TRUE);
END
$$;
COMMENT ON FUNCTION idem_is_absent(idempotency_store, timestamptz) IS 'internal: does the row count as none?';

CREATE FUNCTION idem_has_snapshot() RETURNS bool
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
	RETURN current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
END
$$;
COMMENT ON FUNCTION idem_has_snapshot() IS 'internal: does the transaction read from one snapshot?';

-- At REPEATABLE READ and SERIALIZABLE the snapshot must see the newest version of a
-- row: the lock on it fails if not. Where the snapshot sees none, an insert shows
-- whether there is a newer one. Both raise 40001, and both are undone at once: nobody
-- waits for a transaction that has only looked. The insert waits for another one that
-- is not committed, so the lock of the operation comes first.
CREATE FUNCTION idem_check_snapshot(key text, name_scope text, seen bool, locked bool) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF seen THEN
		PERFORM FROM idempotency_store s WHERE s.scope = name_scope AND s.idempotency_key = key FOR SHARE SKIP LOCKED;
	ELSIF locked THEN
		INSERT INTO idempotency_store (scope, idempotency_key, status, expires_at)
			VALUES (name_scope, key, 'FAILED', '-infinity') ON CONFLICT DO NOTHING;
	END IF;
	RAISE SQLSTATE 'ID001';
EXCEPTION WHEN SQLSTATE 'ID001' THEN
	NULL;
END
$$;
COMMENT ON FUNCTION idem_check_snapshot(text, text, bool, bool) IS 'internal: 40001 if the newest version of a row is outside of the snapshot';

-- What a session with the lock of the operation finds holds until it writes.
CREATE FUNCTION idem_find(key text, name_scope text, locked bool) RETURNS idempotency_store
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	stored idempotency_store;
BEGIN
	SELECT * INTO stored FROM idempotency_store s WHERE s.scope = name_scope AND s.idempotency_key = key;
	IF idem_has_snapshot() THEN
		PERFORM idem_check_snapshot(key, name_scope, FOUND, locked);
	END IF;
	RETURN stored;
END
$$;
COMMENT ON FUNCTION idem_find(text, text, bool) IS 'internal: the newest committed record of a name, or the one of this transaction';

-- The row replaces the version that the caller has read, or is inserted if there was
-- none or if that was collected.
CREATE FUNCTION idem_put(new idempotency_store, expected timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	INSERT INTO idempotency_store AS s (created_at, updated_at, expires_at, lease_expires_at, retry_at, fence, status,
			attempt, response_code, scope, idempotency_key, request_hash, response_headers, response_payload, response_body)
		VALUES (new.created_at, new.updated_at, new.expires_at, new.lease_expires_at, new.retry_at, new.fence, new.status,
			new.attempt, new.response_code, new.scope, new.idempotency_key, new.request_hash, new.response_headers,
			new.response_payload, new.response_body)
		ON CONFLICT (scope, idempotency_key) DO UPDATE
		SET (created_at, updated_at, expires_at, lease_expires_at, retry_at, fence, status, attempt,
				response_code, request_hash, response_headers, response_payload, response_body)
			= (EXCLUDED.created_at, EXCLUDED.updated_at, EXCLUDED.expires_at, EXCLUDED.lease_expires_at, EXCLUDED.retry_at,
				EXCLUDED.fence, EXCLUDED.status, EXCLUDED.attempt, EXCLUDED.response_code, EXCLUDED.request_hash,
				EXCLUDED.response_headers, EXCLUDED.response_payload, EXCLUDED.response_body)
		WHERE s.updated_at = expected;
	IF NOT FOUND THEN
		PERFORM idem_refuse_unwritten(new.idempotency_key, new.scope, expected);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_put(idempotency_store, timestamptz) IS 'internal: stores a record';

-- Another writer was first, unless what the caller has read, or that there was nothing, is
-- still so.
CREATE FUNCTION idem_refuse_unwritten(key text, name_scope text, expected timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF expected IS NOT DISTINCT FROM
		(SELECT s.updated_at FROM idempotency_store s WHERE s.scope = name_scope AND s.idempotency_key = key) THEN
		RAISE EXCEPTION 'operation could not be stored' USING ERRCODE = 'triggered_action_exception',
			DETAIL = 'A trigger or rule on table "idempotency_store" suppressed the write.';
	END IF;
	RAISE EXCEPTION 'operation was stored concurrently by another writer'
		USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
END
$$;
COMMENT ON FUNCTION idem_refuse_unwritten(text, text, timestamptz) IS 'internal: the error of a row that was not written';

-- What leases and their ends write is durable when COMMIT returns.
CREATE FUNCTION idem_force_sync() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'local', true);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_force_sync() IS 'internal: COMMIT of this transaction waits for the disk';

-- Answers

CREATE FUNCTION idem_replay(stored idempotency_store, now timestamptz) RETURNS idem_operation
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	RETURN ROW(stored.status::text::idem_outcome, stored.scope, stored.idempotency_key, stored.attempt, false, true,
		stored.fence, stored.lease_expires_at, idem_time_left(stored.retry_at, now), stored.response_code,
		stored.response_headers, stored.response_payload, stored.response_body, stored.created_at,
		stored.updated_at, stored.expires_at)::idem_operation;
END
$$;
COMMENT ON FUNCTION idem_replay(idempotency_store, timestamptz) IS 'internal: the stored end of an operation as an answer';

-- Without the fence: with it the caller could end the operation. A lease that this
-- transaction has begun has no expires_at yet.
CREATE FUNCTION idem_in_progress(stored idempotency_store, now timestamptz) RETURNS idem_operation
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED AS $$
BEGIN
	IF idem_own_fence(stored.idempotency_key, stored.scope) IS NOT NULL THEN
		stored.updated_at := stored.created_at;
		stored.expires_at := NULL;
	END IF;
	RETURN ROW('IN_PROGRESS', stored.scope, stored.idempotency_key, stored.attempt, false, false, NULL,
		stored.lease_expires_at, idem_time_left(stored.lease_expires_at, now), NULL, NULL, NULL, NULL,
		stored.created_at, stored.updated_at, stored.expires_at)::idem_operation;
END
$$;
COMMENT ON FUNCTION idem_in_progress(idempotency_store, timestamptz) IS 'internal: somebody has a lease of the operation';

CREATE FUNCTION idem_in_progress_here(own idempotency_pending) RETURNS idem_operation
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	RETURN ROW('IN_PROGRESS', own.scope, own.idempotency_key, own.attempt, false, false, NULL, NULL, NULL,
		NULL, NULL, NULL, NULL, own.created_at, own.created_at, NULL)::idem_operation;
END
$$;
COMMENT ON FUNCTION idem_in_progress_here(idempotency_pending) IS 'internal: this transaction owns the operation';

-- What a batch says of a key that was used with another request. For all others it is an error.
CREATE FUNCTION idem_mismatch(key text, scope text) RETURNS idem_operation
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	RETURN ROW('MISMATCH', scope, key, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::idem_operation;
END
$$;
COMMENT ON FUNCTION idem_mismatch(text, text) IS 'internal: the answer for a key that was used with another request';

CREATE FUNCTION idem_refuse_mismatch(key text, scope text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION 'operation "%" of scope "%" was begun before with a different request', key, scope
		USING ERRCODE = 'ID422', HINT = 'Use a new key for a new request, and send the same request with the same key.';
END
$$;
COMMENT ON FUNCTION idem_refuse_mismatch(text, text) IS 'internal: the error of a key that was used with another request';

-- Begin

-- What a begin does with what it has found. Without the lock, the answer can only be
-- that of another owner.
CREATE FUNCTION idem_decide(stored idempotency_store, absent bool, hash bytea, attempts int, locked bool, now timestamptz)
RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	IF NOT absent THEN
		IF stored.request_hash <> hash THEN
			RETURN 'mismatch';
		ELSIF stored.status = 'COMPLETED' OR stored.status = 'FAILED' AND (stored.retry_at <= now) IS NOT TRUE THEN
			RETURN 'replay';
		ELSIF stored.status = 'PENDING' AND stored.lease_expires_at > now THEN
			RETURN 'in progress';
		END IF;
	END IF;
	IF NOT locked THEN
		RETURN 'in transaction';
	END IF;
	RETURN CASE WHEN attempts > 0 AND NOT absent AND stored.attempt >= attempts THEN 'exhausted' ELSE 'acquire' END;
END
$$;
COMMENT ON FUNCTION idem_decide(idempotency_store, bool, bytea, int, bool, timestamptz) IS 'internal: what a begin does';

-- The attempt would be one too many: the operation has failed for good.
CREATE FUNCTION idem_exhaust(stored idempotency_store, now timestamptz) RETURNS idem_operation
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	expected timestamptz := stored.updated_at;
BEGIN
	PERFORM idem_reserve();
	PERFORM idem_keep_fence(stored.fence);
	stored.status := 'FAILED';
	stored.fence := NULL;
	stored.lease_expires_at := NULL;
	stored.retry_at := NULL;
	stored.response_code := NULL;
	stored.response_headers := NULL;
	stored.response_body := NULL;
	stored.response_payload := jsonb_build_object('reason', 'attempts exhausted', 'attempts', stored.attempt);
	stored.updated_at := now;
	stored.expires_at := now + idem_retention(NULL);
	PERFORM idem_put(stored, expected);
	PERFORM idem_force_sync();
	RETURN idem_replay(stored, now);
END
$$;
COMMENT ON FUNCTION idem_exhaust(idempotency_store, timestamptz) IS 'internal: stores that no attempt is left';

-- The caller owns the operation, whose lock is held. NULL: it does already.
CREATE FUNCTION idem_acquire(stored idempotency_store, absent bool, key text, name_scope text, hash bytea,
	lease interval, now timestamptz)
RETURNS idem_operation LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	new idempotency_store;
BEGIN
	new.status := 'PENDING';
	new.scope := name_scope;
	new.idempotency_key := key;
	new.created_at := CASE WHEN absent THEN now ELSE stored.created_at END;
	new.updated_at := now;
	new.attempt := CASE WHEN absent THEN 1 ELSE least(stored.attempt::bigint + 1, 2147483647) END;
	new.request_hash := CASE WHEN absent THEN hash ELSE coalesce(hash, stored.request_hash) END;
	IF NOT absent AND stored.status = 'PENDING' THEN
		new.response_payload := stored.response_payload;
	END IF;
	PERFORM idem_reserve();
	IF lease IS NULL THEN
		INSERT INTO idempotency_pending (created_at, expected, attempt, scope, idempotency_key, request_hash)
			VALUES (new.created_at, stored.updated_at, new.attempt, name_scope, key, new.request_hash);
		PERFORM idem_keep_fence(stored.fence);
	ELSE
		new.fence := idem_next_fence(stored.fence);
		new.lease_expires_at := now + lease;
		new.expires_at := new.lease_expires_at + idem_retention(NULL);
		PERFORM idem_put(new, stored.updated_at);
		PERFORM idem_force_sync();
		PERFORM idem_note_lease(key, name_scope, new.fence);
	END IF;
	RETURN ROW('ACQUIRED', new.scope, new.idempotency_key, new.attempt, NOT absent AND stored.status = 'PENDING', false,
		new.fence, new.lease_expires_at, NULL, NULL, NULL, new.response_payload, NULL, new.created_at, new.updated_at,
		new.expires_at)::idem_operation;
END
$$;
COMMENT ON FUNCTION idem_acquire(idempotency_store, bool, text, text, bytea, interval, timestamptz) IS
	'internal: the operation belongs to the caller from now on';

-- Looks an operation up, and decides. With the lock held, what it says is final.
CREATE FUNCTION idem_look(key text, scope text, hash bytea, attempts int, locked bool,
	OUT stored idempotency_store, OUT absent bool, OUT verdict text, OUT now timestamptz)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	stored := idem_find(key, scope, locked);
	now := clock_timestamp();
	absent := idem_is_absent(stored, now);
	verdict := idem_decide(stored, absent, hash, attempts, locked, now);
END
$$;
COMMENT ON FUNCTION idem_look(text, text, bytea, int, bool) IS 'internal: what a begin finds, and what it does';

-- This transaction has begun the operation; NULL: it has not.
CREATE FUNCTION idem_begun_here(key text, name_scope text, hash bytea) RETURNS idem_operation
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	own idempotency_pending;
BEGIN
	SELECT * INTO own FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key;
	IF NOT FOUND THEN
		RETURN NULL;
	ELSIF own.request_hash <> hash THEN
		RETURN idem_mismatch(key, name_scope);
	END IF;
	RETURN idem_in_progress_here(own);
END
$$;
COMMENT ON FUNCTION idem_begun_here(text, text, bytea) IS 'internal: the answer to a second begin in one transaction';

-- Looks again with the lock. A caller that gets the answer of another owner gives the
-- lock back at once, as that owner needs it: the subtransaction that took it is rolled back.
CREATE FUNCTION idem_look_locked(key text, scope text, hash bytea, attempts int, lock_wait interval) RETURNS record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	id bigint := idem_lock_id(key, scope);
	look record;
BEGIN
	BEGIN
		IF idem_lock_within(id, lock_wait) THEN
			look := idem_look(key, scope, hash, attempts, true);
			IF look.verdict NOT IN ('acquire', 'exhausted') THEN
				RAISE SQLSTATE 'ID001';
			END IF;
			RETURN look;
		END IF;
	EXCEPTION WHEN SQLSTATE 'ID001' THEN
		RETURN look;
	END;
	RETURN idem_look(key, scope, hash, attempts, false);
END
$$;
COMMENT ON FUNCTION idem_look_locked(text, text, bytea, int, interval) IS 'internal: what a begin finds with the lock, if that comes free in time';

-- One try. A caller that gets an answer of another owner takes no lock.
CREATE FUNCTION idem_try(key text, name_scope text, hash bytea, lease interval, attempts int, lock_wait interval)
RETURNS idem_operation LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	look record := idem_look(key, name_scope, hash, attempts, false);
	answer idem_operation;
BEGIN
	IF look.verdict = 'in transaction' THEN
		-- a lease of this transaction that ran out meanwhile
		IF idem_own_fence(key, name_scope) IS NOT NULL THEN
			RETURN idem_in_progress(look.stored, look.now);
		END IF;
		answer := idem_begun_here(key, name_scope, hash);
		IF answer.outcome IS NOT NULL THEN
			RETURN answer;
		END IF;
		look := idem_look_locked(key, name_scope, hash, attempts, lock_wait);
	END IF;
	CASE look.verdict
		WHEN 'acquire' THEN
			RETURN idem_acquire(look.stored, look.absent, key, name_scope, hash, lease, look.now);
		WHEN 'exhausted' THEN
			RETURN idem_exhaust(look.stored, look.now);
		WHEN 'replay' THEN
			RETURN idem_replay(look.stored, look.now);
		WHEN 'in progress' THEN
			RETURN idem_in_progress(look.stored, look.now);
		WHEN 'mismatch' THEN
			RETURN idem_mismatch(key, name_scope);
		ELSE
			answer.outcome := 'IN_PROGRESS';
			answer.scope := name_scope;
			answer.idempotency_key := key;
			answer.taken_over := false;
			answer.replayed := false;
	END CASE;
	RETURN answer;
END
$$;
COMMENT ON FUNCTION idem_try(text, text, bytea, interval, int, interval) IS 'internal: one try to begin';

-- Tries until the operation has ended, is ours, or the time is up. The wait for an
-- open transaction is in the lock manager; the wait for a lease looks again and again.
CREATE FUNCTION idem_begin_within(key text, scope text, hash bytea, lease interval, attempts int, wait interval)
RETURNS idem_operation LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + wait;
	remaining interval := wait;
	pause float8 := 0.002;
	answer idem_operation;
BEGIN
	LOOP
		answer := idem_try(key, scope, hash, lease, attempts, remaining);
		remaining := deadline - clock_timestamp();
		-- without a time to retry after, the whole wait was for the lock
		EXIT WHEN answer.outcome <> 'IN_PROGRESS' OR answer.retry_after IS NULL OR remaining <= '0';
		PERFORM pg_sleep(least(pause, extract(epoch FROM least(remaining, answer.retry_after))));
		pause := least(pause * 2, 0.05);
	END LOOP;
	RETURN answer;
END
$$;
COMMENT ON FUNCTION idem_begin_within(text, text, bytea, interval, int, interval) IS 'internal: tries to begin for so long';

CREATE FUNCTION idem_request_hash(request jsonb, request_hash bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	IF request_hash IS NULL THEN
		RETURN idem_fingerprint(request);
	ELSIF request IS NOT NULL THEN
		RAISE EXCEPTION 'request and request_hash must not both be given' USING ERRCODE = 'ID400';
	ELSIF octet_length(request_hash) <> 32 THEN
		RAISE EXCEPTION 'request_hash must have 32 bytes, not %', octet_length(request_hash)
			USING ERRCODE = 'ID400', HINT = 'It is the SHA-256 of the request.';
	END IF;
	RETURN request_hash;
END
$$;
COMMENT ON FUNCTION idem_request_hash(jsonb, bytea) IS 'internal: the fingerprint of a request, or the hash that the caller gave';

CREATE FUNCTION idem_max_attempts(asked int) RETURNS int
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
	IF asked < 0 THEN
		RAISE EXCEPTION 'max_attempts must not be negative' USING ERRCODE = 'ID400';
	END IF;
	RETURN coalesce(asked, idem_setting('max_attempts', '0')::int);
END
$$;
COMMENT ON FUNCTION idem_max_attempts(int) IS 'internal: how many attempts an operation may have; 0: no limit';

CREATE FUNCTION idem_begin(
	key				text,
	request			jsonb DEFAULT NULL,
	scope			text DEFAULT '',
	request_hash	bytea DEFAULT NULL,
	lease			interval DEFAULT NULL,
	wait			interval DEFAULT '0',
	max_attempts	int DEFAULT NULL)
RETURNS idem_operation
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	answer idem_operation;
BEGIN
	PERFORM idem_check_call('idem_begin()', key, scope);
	request_hash := idem_request_hash(request, request_hash);
	lease := idem_duration(lease, 'lease');
	IF wait IS NULL THEN
		RAISE EXCEPTION 'wait must not be null' USING ERRCODE = 'ID400';
	ELSIF wait <> '0' THEN
		wait := idem_duration(wait, 'wait', true);
		-- nobody waits for a lease of the own transaction
		IF idem_own_fence(key, scope) IS NOT NULL THEN
			wait := '0';
		END IF;
	END IF;
	max_attempts := idem_max_attempts(max_attempts);
	IF wait = '0' THEN
		answer := idem_try(key, scope, request_hash, lease, max_attempts, wait);
	ELSE
		answer := idem_begin_within(key, scope, request_hash, lease, max_attempts, wait);
	END IF;
	IF answer.outcome = 'MISMATCH' THEN
		PERFORM idem_refuse_mismatch(key, scope);
	END IF;
	RETURN answer;
END
$$;
COMMENT ON FUNCTION idem_begin(text, jsonb, text, bytea, interval, interval, int) IS
	'acquire an operation, or answer how it ended or that it is in progress';

-- A deferred trigger refuses the COMMIT of an operation that has not ended. It is in
-- the queue once for each begin, and looks whether the row is still there.
CREATE FUNCTION idem_refuse_unfinished() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM FROM idempotency_pending p WHERE p.scope = new.scope AND p.idempotency_key = new.idempotency_key;
	IF FOUND THEN
		-- a single statement without BEGIN is as old as its transaction
		RAISE EXCEPTION '%operation "%" of scope "%" was begun but neither completed, failed nor released',
			CASE WHEN statement_timestamp() = transaction_timestamp() THEN 'begin needs BEGIN ... COMMIT, or a lease: ' ELSE '' END,
			new.idempotency_key, new.scope
			USING ERRCODE = 'ID428',
			HINT = 'Call idem_complete, idem_fail or idem_release before COMMIT, in the transaction that called idem_begin, or begin with a lease.';
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem_refuse_unfinished() IS 'internal: refuses the COMMIT of an operation that has not ended';

CREATE CONSTRAINT TRIGGER idem_refuse_unfinished AFTER INSERT ON idempotency_pending
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION idem_refuse_unfinished();
ALTER TABLE idempotency_pending ENABLE ALWAYS TRIGGER idem_refuse_unfinished;

-- The server refuses deferred triggers inside a security-restricted operation, where a
-- privileged user runs code of others without knowing it. So this one, which does
-- nothing, keeps leases out of there, as the one above does with begins without a lease.
CREATE FUNCTION idem_refuse_restricted() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT AS $$
BEGIN
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem_refuse_restricted() IS 'internal: keeps leases out of security-restricted operations';

CREATE CONSTRAINT TRIGGER idem_refuse_restricted AFTER INSERT OR UPDATE ON idempotency_store
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.fence IS NOT NULL) EXECUTE FUNCTION idem_refuse_restricted();
ALTER TABLE idempotency_store ENABLE ALWAYS TRIGGER idem_refuse_restricted;

-- Owners: the transaction that began the operation, or a session with the fence of an
-- attempt that is current and has not ended. No attempt ends twice.

CREATE FUNCTION idem_not_owned(key text, name_scope text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	begun text;
BEGIN
	SELECT b.scope INTO begun FROM (
		SELECT p.scope FROM idempotency_pending p WHERE p.idempotency_key = key
		UNION ALL
		SELECT l.name::jsonb ->> 0 FROM jsonb_object_keys(idem_leases()) l (name)
		WHERE l.name::jsonb ->> 1 = key) b LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'operation "%" of scope "%" is not owned by this transaction', key, name_scope USING ERRCODE = 'ID404',
			DETAIL = format('This transaction has begun an operation of this key in scope "%s".', begun),
			HINT = 'Use the same scope as in idem_begin.';
	END IF;
	RAISE EXCEPTION 'operation "%" of scope "%" is not owned by this transaction', key, name_scope USING ERRCODE = 'ID404',
		HINT = 'Call idem_begin in this transaction, go on only if its outcome is ACQUIRED, and end the operation once. For a leased operation, give the fence.';
END
$$;
COMMENT ON FUNCTION idem_not_owned(text, text) IS 'internal: the error of an end without a begin';

-- A sentence about the end of an attempt; it shows nothing of a response.
CREATE FUNCTION idem_how_it_ended(fence bigint, stored idempotency_store) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	same bool := stored.fence IS NOT DISTINCT FROM fence;
	at text := to_char(stored.updated_at, 'YYYY-MM-DD HH24:MI:SS.US TZ');
BEGIN
	IF stored.status IS NULL THEN
		RETURN 'There is no record: the attempt was released, forgotten or collected, or never begun.';
	ELSIF stored.status = 'COMPLETED' THEN
		RETURN format(CASE WHEN same THEN 'The operation was completed at %s.'
			ELSE 'Another attempt completed the operation at %s.' END, at);
	ELSIF stored.status = 'FAILED' THEN
		RETURN format(CASE WHEN same THEN 'The operation failed at %s.'
			ELSE 'In another attempt, or because no attempt was left, the operation failed at %s.' END, at);
	END IF;
	-- a release writes a lease that is over already
	RETURN CASE WHEN stored.lease_expires_at <= stored.updated_at THEN 'The last attempt was released.'
		ELSE 'Another attempt is current.' END;
END
$$;
COMMENT ON FUNCTION idem_how_it_ended(bigint, idempotency_store) IS 'internal: the detail of ID409';

CREATE FUNCTION idem_lease_lost(key text, scope text, detail text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION 'lease of operation "%" of scope "%" was lost', key, scope USING ERRCODE = 'ID409',
		DETAIL = detail,
		HINT = 'Roll back, and call idem_begin again: its outcome says how the operation ended.';
END
$$;
COMMENT ON FUNCTION idem_lease_lost(text, text, text) IS 'internal: the error of a fence that is no longer current';

CREATE FUNCTION idem_lock_by_fence(key text, scope text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	end_wait interval := idem_setting_duration('end_wait', '10s', 'ms');
BEGIN
	IF idem_own_fence(key, scope) IS NULL THEN
		PERFORM idem_reserve();
	END IF;
	IF NOT idem_lock_within(idem_lock_id(key, scope), end_wait) THEN
		RAISE EXCEPTION 'operation "%" of scope "%" is in use by another transaction', key, scope
			USING ERRCODE = 'lock_not_available',
			DETAIL = format('Its lock was not free within %s ms, and nothing was written.', (extract(epoch FROM end_wait) * 1000)::bigint),
			HINT = 'Retry the transaction. Setting idempotency.end_wait is how long an end by fence waits.';
	END IF;
END
$$;
COMMENT ON FUNCTION idem_lock_by_fence(text, text) IS 'internal: the lock of an operation that is ended by its fence';

-- The record of the attempt with that fence, whose lock is held from now on. Where the
-- attempt is not current: ID409 if that is strict, else NULL, and the lock is given back.
-- A look before the lock keeps locks out of calls that are refused.
CREATE FUNCTION idem_owned(key text, name_scope text, fence bigint, strict bool) RETURNS idempotency_store
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	stored idempotency_store;
	detail text;
BEGIN
	PERFORM FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key;
	IF FOUND THEN
		detail := 'This transaction has begun another attempt.';
	ELSE
		stored := idem_find(key, name_scope, false);
		IF stored.fence = fence AND stored.status = 'PENDING' OR idem_has_snapshot() THEN
			BEGIN
				PERFORM idem_lock_by_fence(key, name_scope);
				stored := idem_find(key, name_scope, true);
				IF stored.fence = fence AND stored.status = 'PENDING' THEN
					RETURN stored;
				END IF;
				RAISE SQLSTATE 'ID001';
			EXCEPTION WHEN SQLSTATE 'ID001' THEN
				NULL;
			END;
		END IF;
		detail := idem_how_it_ended(fence, stored);
	END IF;
	IF strict THEN
		PERFORM idem_lease_lost(key, name_scope, detail);
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem_owned(text, text, bigint, bool) IS 'internal: the record of a current attempt';

-- Ends

CREATE FUNCTION idem_max_response_size() RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	setting text := idem_setting('max_response_size', '1048576');
BEGIN
	RETURN CASE WHEN setting = '1048576' THEN 1048576 ELSE pg_size_bytes(regexp_replace(setting, '^([0-9]+) *B$', E'\\1')) END;
END
$$;
COMMENT ON FUNCTION idem_max_response_size() IS 'internal: how many bytes a response may have';

CREATE FUNCTION idem_check_size(what text, response jsonb, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	-- uncompressed: #> unpacks a value that comes from a table; a length word of four bytes
	-- is not part of it
	size bigint := coalesce(pg_column_size(response #> '{}') - 4, 0)
		+ coalesce(pg_column_size(headers #> '{}') - 4, 0) + coalesce(octet_length(body), 0);
	most bigint := idem_max_response_size();
BEGIN
	IF size > most THEN
		RAISE EXCEPTION '% of % bytes is larger than idempotency.max_response_size', what, size USING ERRCODE = 'ID413',
			DETAIL = format('The limit is %s bytes for payload, headers and body together.', most),
			HINT = format('Store the %s elsewhere and a reference to it here, or raise the limit.', what);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_size(text, jsonb, jsonb, bytea) IS 'internal: refuses a response, or a note of progress, that is too large';

-- Without a fence: what this transaction has begun, and no other one.
CREATE FUNCTION idem_end(key text, name_scope text, end_fence bigint, end_status idempotency_status, code int,
	headers jsonb, payload jsonb, body bytea, retry_after interval, retention interval)
RETURNS idempotency_store LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	own idempotency_pending;
	stored idempotency_store;
	expected timestamptz;
	now timestamptz;
BEGIN
	PERFORM idem_check_size('response', payload, headers, body);
	IF end_fence IS NULL THEN
		DELETE FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key RETURNING * INTO own;
		IF NOT FOUND THEN
			end_fence := idem_own_fence(key, name_scope);
			IF end_fence IS NULL THEN
				PERFORM idem_not_owned(key, name_scope);
			END IF;
		END IF;
	END IF;
	IF end_fence IS NULL THEN
		stored.scope := name_scope;
		stored.idempotency_key := key;
		stored.attempt := own.attempt;
		stored.request_hash := own.request_hash;
		stored.created_at := own.created_at;
		expected := own.expected;
	ELSE
		stored := idem_owned(key, name_scope, end_fence, true);
		expected := stored.updated_at;
		PERFORM idem_force_sync();
		PERFORM idem_note_lease(key, name_scope, NULL);
	END IF;
	now := clock_timestamp();
	stored.status := end_status;
	stored.response_code := code;
	stored.response_headers := headers;
	stored.response_payload := payload;
	stored.response_body := body;
	stored.lease_expires_at := NULL;
	stored.retry_at := now + retry_after;
	stored.updated_at := now;
	-- the record of a retryable failure is kept for longer than its retry_after
	stored.expires_at := coalesce(stored.retry_at, now) + idem_retention(retention);
	PERFORM idem_put(stored, expected);
	RETURN stored;
END
$$;
COMMENT ON FUNCTION idem_end(text, text, bigint, idempotency_status, int, jsonb, jsonb, bytea, interval, interval) IS
	'internal: end an operation, and store its response; returns its record';

-- The operation that idem_begin returned: the caller may end it only if it was ACQUIRED.
CREATE FUNCTION idem_check_operation(function text, operation idem_operation) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		PERFORM idem_refuse_write(function);
	END IF;
	IF operation IS NOT DISTINCT FROM NULL THEN
		RAISE EXCEPTION 'operation must not be null' USING ERRCODE = 'ID400';
	ELSIF operation.outcome IS NULL OR operation.scope IS NULL OR operation.idempotency_key IS NULL THEN
		RAISE EXCEPTION 'operation must be what idem_begin returned' USING ERRCODE = 'ID400';
	END IF;
	PERFORM idem_check_call(function, operation.idempotency_key, operation.scope);
	IF operation.outcome <> 'ACQUIRED' THEN
		RAISE EXCEPTION 'operation "%" of scope "%" was not acquired', operation.idempotency_key, operation.scope
			USING ERRCODE = 'ID404', HINT = 'Go on only if the outcome of idem_begin is ACQUIRED.';
	END IF;
	PERFORM idem_check_fence(operation.fence);
END
$$;
COMMENT ON FUNCTION idem_check_operation(text, idem_operation) IS 'internal: refuses an operation that was not acquired';

CREATE FUNCTION idem_complete(
	key			text,
	response	jsonb DEFAULT NULL,
	scope		text DEFAULT '',
	code		int DEFAULT NULL,
	headers		jsonb DEFAULT NULL,
	body		bytea DEFAULT NULL,
	fence		bigint DEFAULT NULL,
	retention	interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_complete()', key, scope);
	PERFORM idem_check_fence(fence);
	PERFORM idem_end(key, scope, fence, 'COMPLETED', code, headers, response, body, NULL, idem_duration(retention, 'retention'));
END
$$;
COMMENT ON FUNCTION idem_complete(text, jsonb, text, int, jsonb, bytea, bigint, interval) IS
	'end an operation with success and store its response';

CREATE FUNCTION idem_complete(
	operation	idem_operation,
	response	jsonb DEFAULT NULL,
	code		int DEFAULT NULL,
	headers		jsonb DEFAULT NULL,
	body		bytea DEFAULT NULL,
	retention	interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_operation('idem_complete()', operation);
	PERFORM idem_end(operation.idempotency_key, operation.scope, operation.fence, 'COMPLETED', code, headers, response, body,
		NULL, idem_duration(retention, 'retention'));
END
$$;
COMMENT ON FUNCTION idem_complete(idem_operation, jsonb, int, jsonb, bytea, interval) IS
	'end with success the operation that idem_begin returned, and store its response';

-- The pause before the next attempt; NULL: there is none.
CREATE FUNCTION idem_pause(retryable bool, retry_after interval) RETURNS interval
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	pause interval := idem_duration(retry_after, 'retry_after', true);
BEGIN
	IF retryable THEN
		RETURN coalesce(pause, '0');
	ELSIF retry_after IS NOT NULL THEN
		RAISE EXCEPTION 'retry_after needs retryable => true'
			USING ERRCODE = 'ID400', HINT = 'Give retryable => true, or leave retry_after out.';
	ELSIF retryable IS NULL THEN
		RAISE EXCEPTION 'retryable must not be null' USING ERRCODE = 'ID400';
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem_pause(bool, interval) IS 'internal: how long after a failure the next attempt may begin';

CREATE FUNCTION idem_fail(
	key			text,
	error		jsonb DEFAULT NULL,
	scope		text DEFAULT '',
	code		int DEFAULT NULL,
	headers		jsonb DEFAULT NULL,
	body		bytea DEFAULT NULL,
	fence		bigint DEFAULT NULL,
	retryable	bool DEFAULT false,
	retry_after	interval DEFAULT NULL,
	retention	interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_fail()', key, scope);
	PERFORM idem_check_fence(fence);
	PERFORM idem_end(key, scope, fence, 'FAILED', code, headers, error, body, idem_pause(retryable, retry_after),
		idem_duration(retention, 'retention'));
END
$$;
COMMENT ON FUNCTION idem_fail(text, jsonb, text, int, jsonb, bytea, bigint, bool, interval, interval) IS
	'end an operation with a failure, permanent or retryable, and store its error';

CREATE FUNCTION idem_fail(
	operation	idem_operation,
	error		jsonb DEFAULT NULL,
	code		int DEFAULT NULL,
	headers		jsonb DEFAULT NULL,
	body		bytea DEFAULT NULL,
	retryable	bool DEFAULT false,
	retry_after	interval DEFAULT NULL,
	retention	interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_operation('idem_fail()', operation);
	PERFORM idem_end(operation.idempotency_key, operation.scope, operation.fence, 'FAILED', code, headers, error, body,
		idem_pause(retryable, retry_after), idem_duration(retention, 'retention'));
END
$$;
COMMENT ON FUNCTION idem_fail(idem_operation, jsonb, int, jsonb, bytea, bool, interval, interval) IS
	'end with a failure the operation that idem_begin returned, and store its error';

-- Release and extend

-- A first attempt is as if never begun. The release of a later one leaves the record of
-- its predecessor: PENDING, with its lease over, and with a fence that no caller knows.
CREATE FUNCTION idem_release_lease(key text, name_scope text, fence bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	stored idempotency_store := idem_owned(key, name_scope, fence, false);
	expected timestamptz := stored.updated_at;
BEGIN
	IF stored.status IS NULL THEN
		RETURN false;
	ELSIF stored.attempt > 1 THEN
		stored.attempt := stored.attempt - 1;
		stored.fence := idem_next_fence(stored.fence);
		stored.updated_at := clock_timestamp();
		stored.lease_expires_at := stored.updated_at;
		stored.expires_at := stored.lease_expires_at + idem_retention(NULL);
		PERFORM idem_put(stored, expected);
	ELSE
		PERFORM idem_keep_fence(fence);
		DELETE FROM idempotency_store s WHERE s.scope = name_scope AND s.idempotency_key = key AND s.updated_at = expected;
		IF NOT FOUND THEN
			PERFORM idem_refuse_unwritten(key, name_scope, expected);
		END IF;
	END IF;
	PERFORM idem_force_sync();
	PERFORM idem_note_lease(key, name_scope, NULL);
	RETURN true;
END
$$;
COMMENT ON FUNCTION idem_release_lease(text, text, bigint) IS 'internal: undo the begin of a leased attempt';

CREATE FUNCTION idem_undo(key text, name_scope text, fence bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF fence IS NULL THEN
		DELETE FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key;
		IF FOUND THEN
			RETURN true;
		END IF;
		fence := idem_own_fence(key, name_scope);
		IF fence IS NULL THEN
			PERFORM idem_not_owned(key, name_scope);
		END IF;
	END IF;
	RETURN idem_release_lease(key, name_scope, fence);
END
$$;
COMMENT ON FUNCTION idem_undo(text, text, bigint) IS 'internal: undo a begin';

CREATE FUNCTION idem_release(key text, scope text DEFAULT '', fence bigint DEFAULT NULL)
RETURNS bool
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_release()', key, scope);
	PERFORM idem_check_fence(fence);
	RETURN idem_undo(key, scope, fence);
END
$$;
COMMENT ON FUNCTION idem_release(text, text, bigint) IS
	'undo the begin of an operation; false when the fence is no longer current';

CREATE FUNCTION idem_release(operation idem_operation)
RETURNS bool
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_operation('idem_release()', operation);
	RETURN idem_undo(operation.idempotency_key, operation.scope, operation.fence);
END
$$;
COMMENT ON FUNCTION idem_release(idem_operation) IS
	'undo the begin of the operation that idem_begin returned; false when the fence is no longer current';

-- What the owner of a lease changes while it works: its end, its note of progress, or both.
-- NULL: no change.
CREATE FUNCTION idem_change_lease(key text, name_scope text, fence bigint, lease interval, progress jsonb) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	stored idempotency_store;
	expected timestamptz;
BEGIN
	lease := idem_duration(lease, 'lease');
	PERFORM idem_check_size('progress', progress, NULL, NULL);
	IF fence IS NULL THEN
		PERFORM FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key;
		IF FOUND THEN
			RAISE EXCEPTION 'operation "%" of scope "%" has no lease', key, name_scope
				USING ERRCODE = 'ID400', HINT = 'This transaction owns it until its end.';
		END IF;
		fence := idem_own_fence(key, name_scope);
		IF fence IS NULL THEN
			PERFORM idem_not_owned(key, name_scope);
		END IF;
	END IF;
	stored := idem_owned(key, name_scope, fence, true);
	expected := stored.updated_at;
	stored.updated_at := clock_timestamp();
	stored.response_payload := coalesce(progress, stored.response_payload);
	IF lease IS NOT NULL THEN
		stored.lease_expires_at := stored.updated_at + lease;
		stored.expires_at := stored.lease_expires_at + idem_retention(NULL);
	END IF;
	PERFORM idem_put(stored, expected);
	PERFORM idem_force_sync();
	RETURN stored.lease_expires_at;
END
$$;
COMMENT ON FUNCTION idem_change_lease(text, text, bigint, interval, jsonb) IS
	'internal: change the end of a lease, its note of progress, or both';

CREATE FUNCTION idem_check_given(given bool, name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	IF NOT given THEN
		RAISE EXCEPTION '% must not be null', name USING ERRCODE = 'ID400';
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_given(bool, text) IS 'internal: refuses an argument that is NULL';

CREATE FUNCTION idem_extend(key text, lease interval, scope text DEFAULT '', fence bigint DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_extend()', key, scope);
	PERFORM idem_check_given(lease IS NOT NULL, 'lease');
	PERFORM idem_check_fence(fence);
	RETURN idem_change_lease(key, scope, fence, lease, NULL);
END
$$;
COMMENT ON FUNCTION idem_extend(text, interval, text, bigint) IS
	'change the end of a lease to now plus the interval; returns the new end';

CREATE FUNCTION idem_extend(operation idem_operation, lease interval)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_operation('idem_extend()', operation);
	PERFORM idem_check_given(lease IS NOT NULL, 'lease');
	RETURN idem_change_lease(operation.idempotency_key, operation.scope, operation.fence, lease, NULL);
END
$$;
COMMENT ON FUNCTION idem_extend(idem_operation, interval) IS
	'change the end of the lease of the operation that idem_begin returned to now plus the interval; returns the new end';

CREATE FUNCTION idem_progress(key text, progress jsonb, scope text DEFAULT '', fence bigint DEFAULT NULL,
	lease interval DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_progress()', key, scope);
	PERFORM idem_check_given(progress IS NOT NULL, 'progress');
	PERFORM idem_check_fence(fence);
	RETURN idem_change_lease(key, scope, fence, lease, progress);
END
$$;
COMMENT ON FUNCTION idem_progress(text, jsonb, text, bigint, interval) IS
	'leave a note of how far a leased attempt came, for its next owner; returns the end of the lease';

CREATE FUNCTION idem_progress(operation idem_operation, progress jsonb, lease interval DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_operation('idem_progress()', operation);
	PERFORM idem_check_given(progress IS NOT NULL, 'progress');
	RETURN idem_change_lease(operation.idempotency_key, operation.scope, operation.fence, lease, progress);
END
$$;
COMMENT ON FUNCTION idem_progress(idem_operation, jsonb, interval) IS
	'leave a note of how far the leased attempt that idem_begin returned came; returns the end of the lease';

-- Batches: one call for many operations of one scope. An error undoes the whole call.

CREATE FUNCTION idem_check_batch(function text, keys text[], scope text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		PERFORM idem_refuse_write(function);
	END IF;
	PERFORM idem_check_given(keys IS NOT NULL, 'keys');
	PERFORM idem_check_text(k.key, 'key', false) FROM unnest(keys) k (key);
	PERFORM idem_check_text(scope, 'scope', true);
END
$$;
COMMENT ON FUNCTION idem_check_batch(text, text[], text) IS 'internal: refuses read-only transactions and names that are none';

-- NULL: no values were given.
CREATE FUNCTION idem_check_values(name text, given int, keys int) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	IF given <> keys THEN
		RAISE EXCEPTION '% must have as many elements as keys', name USING ERRCODE = 'ID400',
			DETAIL = format('There are %s, and %s keys.', given, keys);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_check_values(text, int, int) IS 'internal: refuses values that do not belong to the keys of a batch';

CREATE FUNCTION idem_begin_batch(
	keys			text[],
	requests		jsonb[] DEFAULT NULL,
	scope			text DEFAULT '',
	request_hashes	bytea[] DEFAULT NULL,
	max_attempts	int DEFAULT NULL)
RETURNS SETOF idem_operation
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	one record;
BEGIN
	PERFORM idem_check_batch('idem_begin_batch()', keys, scope);
	PERFORM idem_check_values('requests', cardinality(requests), cardinality(keys));
	PERFORM idem_check_values('request_hashes', cardinality(request_hashes), cardinality(keys));
	max_attempts := idem_max_attempts(max_attempts);
	FOR one IN
		SELECT g.key, g.request, g.hash FROM unnest(keys, requests, request_hashes) g (key, request, hash)
	LOOP
		RETURN NEXT idem_try(one.key, scope, idem_request_hash(one.request, one.hash), NULL, max_attempts, '0');
	END LOOP;
END
$$;
COMMENT ON FUNCTION idem_begin_batch(text[], jsonb[], text, bytea[], int) IS
	'idem_begin for many keys of one scope; returns a row per key, in the order of the keys';

CREATE FUNCTION idem_complete_batch(
	keys		text[],
	responses	jsonb[] DEFAULT NULL,
	scope		text DEFAULT '')
RETURNS bigint
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	one record;
BEGIN
	PERFORM idem_check_batch('idem_complete_batch()', keys, scope);
	PERFORM idem_check_values('responses', cardinality(responses), cardinality(keys));
	FOR one IN SELECT g.key, g.response FROM unnest(keys, responses) g (key, response) LOOP
		PERFORM idem_end(one.key, scope, NULL, 'COMPLETED', NULL, NULL, one.response, NULL, NULL, NULL);
	END LOOP;
	RETURN cardinality(keys);
END
$$;
COMMENT ON FUNCTION idem_complete_batch(text[], jsonb[], text) IS
	'idem_complete for many keys of one scope; returns the number of operations that it ended';

-- Call: begin, run a handler, and end. idem_call itself has the rights and the search_path
-- of its caller, for the handler. What needs the rights of the owner is in the other
-- functions, each of which does no more than idem_begin, idem_complete or idem_fail do.

-- The statement that runs a handler.
CREATE FUNCTION idem_handler(handler oid, caller name) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	rule text := 'The handler is a function f(jsonb) RETURNS jsonb, named with the types of its arguments: ''f(jsonb)''.';
	named record;
BEGIN
	PERFORM idem_check_given(handler IS NOT NULL, 'handler');
	SELECT n.nspname, p.* INTO named FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = handler;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'handler with OID % does not exist', handler USING ERRCODE = 'ID400', HINT = rule;
	ELSIF named.prokind <> 'f' OR named.proretset OR named.pronargs <> 1 OR named.proargtypes[0] <> 'jsonb'::regtype
		OR named.prorettype <> 'jsonb'::regtype THEN
		RAISE EXCEPTION 'handler must be a function that takes one jsonb and returns jsonb'
			USING ERRCODE = 'ID400', DETAIL = format('%s is not.', handler::regprocedure), HINT = rule;
	ELSIF NOT has_schema_privilege(caller, named.pronamespace, 'USAGE') THEN
		RAISE EXCEPTION 'permission denied for schema %', named.nspname USING ERRCODE = 'insufficient_privilege';
	ELSIF NOT has_function_privilege(caller, handler, 'EXECUTE') THEN
		RAISE EXCEPTION 'permission denied for function %', named.proname USING ERRCODE = 'insufficient_privilege';
	END IF;
	RETURN format('SELECT %I.%I($1)', named.nspname, named.proname);
END
$$;
COMMENT ON FUNCTION idem_handler(oid, name) IS 'internal: refuses what is no handler; returns the statement that runs it';

-- run: the statement of the handler; NULL if it does not run.
CREATE FUNCTION idem_call_begin(caller name, handler regprocedure, key text, request jsonb, scope text, wait interval,
	retention interval, record_failure bool, request_hash bytea, max_attempts int, OUT answer idem_operation, OUT run text)
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_check_call('idem_call()', key, scope);
	run := idem_handler(handler, caller);
	PERFORM idem_duration(retention, 'retention');
	PERFORM idem_check_given(record_failure IS NOT NULL, 'record_failure');
	-- the handler gets the request; where the caller brings a hash, that is the fingerprint
	answer := idem_begin(key, CASE WHEN request_hash IS NULL THEN request END, scope, request_hash, NULL, wait, max_attempts);
	IF answer.outcome <> 'ACQUIRED' THEN
		run := NULL;
	END IF;
END
$$;
COMMENT ON FUNCTION idem_call_begin(name, regprocedure, text, jsonb, text, interval, interval, bool, bytea, int) IS
	'internal: the begin of idem_call';

CREATE FUNCTION idem_call_end(begun idem_operation, status idempotency_status, response jsonb, retention interval)
RETURNS idem_operation
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	stored idempotency_store;
	answer idem_operation;
BEGIN
	PERFORM idem_check_operation('idem_call()', begun);
	stored := idem_end(begun.idempotency_key, begun.scope, begun.fence, status, NULL, NULL, response, NULL, NULL,
		idem_duration(retention, 'retention'));
	answer := idem_replay(stored, stored.updated_at);
	answer.taken_over := begun.taken_over;
	answer.replayed := false;
	RETURN answer;
END
$$;
COMMENT ON FUNCTION idem_call_end(idem_operation, idempotency_status, jsonb, interval) IS 'internal: the end of idem_call';

-- No more bytes than that, and no half of a character.
CREATE FUNCTION idem_clip(value text, bytes int) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
	whole bytea;
BEGIN
	IF octet_length(value) <= bytes THEN
		RETURN value;
	END IF;
	whole := convert_to(value, 'UTF8');
	WHILE bytes > 0 AND get_byte(whole, bytes) & 192 = 128 LOOP
		bytes := bytes - 1;
	END LOOP;
	RETURN convert_from(substr(whole, 1, bytes), 'UTF8');
END
$$;
COMMENT ON FUNCTION idem_clip(text, int) IS 'internal: the first bytes of a text';

-- Only an error about the request is stored, as a stored failure is replayed until it
-- expires. Every class of PostgreSQL is listed; all others are the application's own.
CREATE FUNCTION idem_is_failure(state text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	RETURN state <> 'P0004' AND left(state, 2) NOT IN (
		-- another try may succeed
		'08', '40', '53', '55', '57', '58', '72', 'XX',
		-- a mistake in the program or its set-up
		'00', '01', '02', '03', '09', '0A', '0B', '0F', '0L', '0P', '0Z', '10', '20', '24', '25', '26', '27', '28',
		'2B', '2D', '2F', '34', '38', '39', '3B', '3D', '3F', '42', '54', 'F0', 'HV',
		-- our own
		'ID');
END
$$;
COMMENT ON FUNCTION idem_is_failure(text) IS 'internal: is the error about the request?';

-- The record of a handler's error; NULL: the error is raised again. Texts are cut to the
-- size of a response, the last ones first. If not even their names fit, the SQLSTATE
-- alone is stored, or nothing.
CREATE FUNCTION idem_call_fail(begun idem_operation, state text, message text, detail text, hint text, retention interval)
RETURNS idem_operation
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	names text[] := '{sqlstate,message,detail,hint}';
	texts text[];
	most bigint := idem_max_response_size();
	failure jsonb;
	excess bigint;
	kept text;
BEGIN
	IF NOT idem_is_failure(state) THEN
		RETURN NULL;
	END IF;
	texts := ARRAY[state, idem_clip(message, 8192), idem_clip(nullif(detail, ''), 8192), idem_clip(nullif(hint, ''), 8192)];
	failure := jsonb_object(names, texts);
	excess := pg_column_size(failure) - 4 - most;
	IF excess > 0 THEN
		FOR i IN REVERSE 4 .. 2 LOOP
			EXIT WHEN excess <= 0;
			CONTINUE WHEN texts[i] IS NULL;
			kept := idem_clip(texts[i], greatest(octet_length(texts[i]) - excess, 0)::int);
			excess := excess - octet_length(texts[i]) + octet_length(kept);
			texts[i] := kept;
		END LOOP;
		failure := jsonb_object(names, texts);
	END IF;
	IF pg_column_size(failure) - 4 > most THEN
		failure := jsonb_build_object('sqlstate', state);
	END IF;
	RETURN idem_call_end(begun, 'FAILED', CASE WHEN pg_column_size(failure) - 4 <= most THEN failure END, retention);
END
$$;
COMMENT ON FUNCTION idem_call_fail(idem_operation, text, text, text, text, interval) IS
	'internal: the end of idem_call after an error of the handler';

-- Nothing in this body is found by the search_path: every function and type has its
-- schema, and there is no operator. The subtransaction of EXCEPTION undoes what the handler
-- did; it does not catch 57014 and P0004, which are never stored.
DO $do$
BEGIN
	EXECUTE format('CREATE FUNCTION idem_call(
		handler			regprocedure,
		key				text,
		request			jsonb DEFAULT NULL,
		scope			text DEFAULT %L,
		wait			interval DEFAULT %L,
		retention		interval DEFAULT NULL,
		record_failure	bool DEFAULT true,
		request_hash	bytea DEFAULT NULL,
		max_attempts	int DEFAULT NULL)
	RETURNS idem_operation
	LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY INVOKER AS %L', '', '0', replace($body$
DECLARE
	begun record;
	result pg_catalog.jsonb;
	state pg_catalog.text;
	message pg_catalog.text;
	detail pg_catalog.text;
	hint pg_catalog.text;
	answer home.idem_operation;
BEGIN
	SELECT * INTO begun FROM home.idem_call_begin(current_user, handler, key, request, scope, wait, retention,
		record_failure, request_hash, max_attempts);
	IF begun.run IS NULL THEN
		RETURN begun.answer;
	ELSIF record_failure THEN
		BEGIN
			EXECUTE begun.run INTO result USING request;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
				detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
			answer := home.idem_call_fail(begun.answer, state, message, detail, hint, retention);
			IF answer IS NULL THEN
				RAISE;
			END IF;
			RETURN answer;
		END;
	ELSE
		EXECUTE begun.run INTO result USING request;
	END IF;
	RETURN home.idem_call_end(begun.answer, 'COMPLETED', result, retention);
END
$body$, 'home.', quote_ident(current_schema()) || '.'));
END
$do$;
COMMENT ON FUNCTION idem_call(regprocedure, text, jsonb, text, interval, interval, bool, bytea, int) IS
	'run handler(request) at most once and store what it returned or raised';

-- Forget

CREATE FUNCTION idem_in_use(key text, scope text, by_whom text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION 'operation "%" of scope "%" is in use', key, scope USING ERRCODE = 'ID409', DETAIL = by_whom,
		HINT = 'Call idem_forget again when the operation has no owner.';
END
$$;
COMMENT ON FUNCTION idem_in_use(text, text, text) IS 'internal: the error of forgetting an operation that has an owner';

-- Has this transaction, or a subtransaction of it, written that version of a row? The ids
-- of both follow each other. Rows of an earlier time are left out: their ids may come round.
CREATE FUNCTION idem_written_here(writer xid, at timestamptz) RETURNS bool
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	own bigint := pg_current_xact_id_if_assigned()::text;
	later bigint := (writer::text::bigint - (own & 4294967295)) & 4294967295;
BEGIN
	RETURN own IS NOT NULL AND at >= transaction_timestamp() AND later < 2147483648
		AND pg_xact_status((own + later)::text::xid8) = 'in progress';
END
$$;
COMMENT ON FUNCTION idem_written_here(xid, timestamptz) IS 'internal: has this transaction written the row?';

-- The record of an operation that nobody owns, whose lock is held from now on. Without a
-- record the lock is given back. With failed_at the record has to be that version of it, and
-- an operation that is in use counts as one without a record.
CREATE FUNCTION idem_unowned(key text, name_scope text, failed_at timestamptz DEFAULT NULL) RETURNS idempotency_store
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
	stored idempotency_store;
	here text := 'This transaction has begun or ended the operation.';
	written bool;
BEGIN
	PERFORM FROM idempotency_pending p WHERE p.scope = name_scope AND p.idempotency_key = key;
	IF FOUND OR idem_own_fence(key, name_scope) IS NOT NULL THEN
		PERFORM idem_in_use(key, name_scope, here);
	END IF;
	PERFORM idem_reserve();
	IF NOT idem_lock_within(idem_lock_id(key, name_scope), '0') THEN
		PERFORM idem_in_use(key, name_scope, 'Another transaction owns the operation.');
	END IF;
	stored := idem_find(key, name_scope, true);
	IF stored.status IS NULL OR stored.updated_at <> failed_at THEN
		RAISE SQLSTATE 'ID001';
	ELSIF stored.status = 'PENDING' AND stored.lease_expires_at > clock_timestamp() THEN
		PERFORM idem_in_use(key, name_scope, format('Its lease runs until %s.', stored.lease_expires_at));
	END IF;
	-- a release leaves a record, too: that of the attempt before, which has no owner
	SELECT idem_written_here(s.xmin, s.updated_at) INTO written FROM idempotency_store s
		WHERE s.scope = name_scope AND s.idempotency_key = key AND s.status <> 'PENDING';
	IF written THEN
		PERFORM idem_in_use(key, name_scope, here);
	END IF;
	RETURN stored;
EXCEPTION
	WHEN SQLSTATE 'ID001' THEN
		RETURN NULL;
	WHEN SQLSTATE 'ID409' THEN
		IF failed_at IS NULL THEN
			RAISE;
		END IF;
		RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem_unowned(text, text, timestamptz) IS 'internal: the record of an operation that nobody owns';

-- The UPDATE keeps this out of security-restricted operations, by the trigger on fences.
CREATE FUNCTION idem_remove(stored idempotency_store) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	PERFORM idem_keep_fence(stored.fence);
	UPDATE idempotency_store s SET fence = coalesce(s.fence, 1)
		WHERE s.scope = stored.scope AND s.idempotency_key = stored.idempotency_key AND s.updated_at = stored.updated_at;
	DELETE FROM idempotency_store s
		WHERE s.scope = stored.scope AND s.idempotency_key = stored.idempotency_key AND s.updated_at = stored.updated_at;
	IF NOT FOUND THEN
		PERFORM idem_refuse_unwritten(stored.idempotency_key, stored.scope, stored.updated_at);
	END IF;
	PERFORM idem_force_sync();
END
$$;
COMMENT ON FUNCTION idem_remove(idempotency_store) IS 'internal: remove a record whose lock is held';

CREATE FUNCTION idem_forget(key text, scope text DEFAULT '')
RETURNS bool
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	stored idempotency_store;
BEGIN
	PERFORM idem_check_call('idem_forget()', key, scope);
	stored := idem_unowned(key, scope);
	IF stored.status IS NULL THEN
		RETURN false;
	END IF;
	PERFORM idem_remove(stored);
	RETURN NOT idem_is_absent(stored, clock_timestamp());
END
$$;
COMMENT ON FUNCTION idem_forget(text, text) IS
	'remove the record of an operation that has no owner, so that the operation may run again; false when there is no record';

-- The words of the extension, and a SQLSTATE, say nothing of a request. All else that an
-- application has stored might.
CREATE FUNCTION idem_failure_cause(payload jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
	WHEN payload ->> 'reason' IN ('attempts exhausted', 'attempts lost') THEN payload ->> 'reason'
	WHEN payload ->> 'sqlstate' ~ '^[0-9A-Z]{5}$' THEN payload ->> 'sqlstate'
	ELSE 'other'
END;
COMMENT ON FUNCTION idem_failure_cause(jsonb) IS 'internal: what a view may show of a stored failure';

-- A function in the reader's condition, however cheap, sees only what the view shows, and
-- nothing of all other records.
CREATE VIEW idempotency_failures WITH (security_barrier = true) AS
SELECT scope, idem_failure_cause(response_payload) AS cause, response_code, retry_at IS NOT NULL AS retryable,
	count(*) AS operations, min(updated_at) AS first_failed_at, max(updated_at) AS last_failed_at
FROM idempotency_store
WHERE status = 'FAILED' AND expires_at > clock_timestamp()
GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW idempotency_failures IS 'stored failures by scope and cause, without keys and payloads';

-- The oldest come first. The role of SET ROLE is known here, current_user is our owner.
CREATE FUNCTION idem_forget_failed(scope text, reason text, cause text DEFAULT NULL, max_rows int DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	failed idempotency_store;
	forgotten bigint := 0;
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		PERFORM idem_refuse_write('idem_forget_failed()');
	END IF;
	PERFORM idem_check_text(scope, 'scope', true);
	-- of any length
	PERFORM idem_check_text(left(reason, 1), 'reason', false);
	PERFORM idem_check_max_rows(max_rows);
	FOR failed IN
		SELECT * FROM idempotency_store s
		WHERE s.scope = idem_forget_failed.scope AND s.status = 'FAILED' AND s.expires_at > clock_timestamp()
		AND (cause IS NULL OR idem_failure_cause(s.response_payload) = cause)
		ORDER BY s.updated_at, s.idempotency_key LIMIT max_rows
	LOOP
		-- passes over what is tried again, or has been since
		failed := idem_unowned(failed.idempotency_key, scope, failed.updated_at);
		IF failed.status IS NOT NULL THEN
			PERFORM idem_remove(failed);
			forgotten := forgotten + 1;
		END IF;
	END LOOP;
	IF forgotten > 0 THEN
		INSERT INTO idempotency_forgotten (role, scope, cause, reason, operations)
			VALUES (coalesce(nullif(current_setting('role'), 'none'), SESSION_USER), scope, cause, reason, forgotten);
	END IF;
	RETURN forgotten;
END
$$;
COMMENT ON FUNCTION idem_forget_failed(text, text, text, int) IS
	'remove the records of up to max_rows failures of a scope, so that these operations may run again, and note who did it and why; returns how many';

-- Looking up: writes nothing, and works on a standby, which has no unlogged tables.

CREATE FUNCTION idem_lookup(key text, scope text DEFAULT '')
RETURNS idem_operation
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	own idempotency_pending;
	stored idempotency_store;
	now timestamptz := clock_timestamp();
	answer idem_operation;
BEGIN
	PERFORM idem_check_text(key, 'key', false);
	PERFORM idem_check_text(scope, 'scope', true);
	IF NOT pg_is_in_recovery() THEN
		SELECT * INTO own FROM idempotency_pending p
			WHERE p.scope = idem_lookup.scope AND p.idempotency_key = key;
		IF FOUND THEN
			answer := idem_in_progress_here(own);
		END IF;
	END IF;
	SELECT * INTO stored FROM idempotency_store s
		WHERE s.scope = idem_lookup.scope AND s.idempotency_key = key;
	IF idem_is_absent(stored, now) THEN
		RETURN answer;
	ELSIF stored.status <> 'PENDING' THEN
		RETURN coalesce(answer, idem_replay(stored, now));
	END IF;
	answer := coalesce(answer, idem_in_progress(stored, now));
	answer.response_payload := stored.response_payload;
	RETURN answer;
END
$$;
COMMENT ON FUNCTION idem_lookup(text, text) IS
	'read the record of an operation; NULL when there is none; writes nothing';

-- Collection: a sweep goes round the pages of the store, so that no insert has to pay
-- for an index. A row that another session has locked is passed over.

-- Removes up to so many expired rows of these pages. A row whose fence the sequence has
-- not reached stays until the next sweep; the sequence catches up first. A plan that
-- was made for a small store must not read a large one as a whole.
CREATE FUNCTION idem_sweep_pages(first_page bigint, end_page bigint, max_rows bigint, OUT removed bigint, OUT next_page bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET enable_seqscan = off AS $$
DECLARE
	last_fence bigint := idem_last_fence();
	now timestamptz := clock_timestamp();
	behind bigint;
	last_tid tid;
BEGIN
	WITH expired AS MATERIALIZED (
		SELECT s.ctid AS tid, s.fence FROM idempotency_store s
		WHERE s.ctid >= format('(%s,0)', first_page)::tid AND s.ctid < format('(%s,0)', end_page)::tid
		AND s.expires_at <= now AND (s.status <> 'PENDING' OR (s.lease_expires_at > now) IS NOT TRUE)
		LIMIT max_rows FOR UPDATE SKIP LOCKED
	), gone AS (
		DELETE FROM idempotency_store s
		WHERE s.ctid = ANY (ARRAY(SELECT e.tid FROM expired e WHERE (e.fence > last_fence) IS NOT TRUE))
		RETURNING s.ctid AS tid
	)
	SELECT count(*), max(gone.tid), (SELECT max(e.fence) FROM expired e WHERE e.fence > last_fence)
		INTO removed, last_tid, behind FROM gone;
	next_page := CASE WHEN removed < max_rows THEN end_page ELSE ltrim(split_part(last_tid::text, ',', 1), '(')::bigint END;
	IF behind < (SELECT seqmax FROM pg_sequence WHERE seqrelid = 'idempotency_fence'::regclass) THEN
		PERFORM idem_keep_fence(behind);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_sweep_pages(bigint, bigint, bigint) IS 'internal: removes expired records from some pages of the store';

-- Goes on from where the last committed sweep stopped, over 8192 pages and once round
-- the store at most, until so many rows are removed.
CREATE FUNCTION idem_gc(max_rows int DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
	mine bool;
	pages bigint;
	ahead bigint;
	page bigint;
	began timestamptz;
	piece record;
	removed bigint := 0;
BEGIN
	IF current_setting('transaction_read_only') = 'on' THEN
		PERFORM idem_refuse_write('idem_gc()');
	END IF;
	PERFORM idem_check_max_rows(max_rows);
	-- one sweep at a time; the others do not wait for it
	mine := (SELECT pg_try_advisory_xact_lock(hashtextextended('', lock_key)) FROM idempotency_secret);
	IF mine IS NULL THEN
		PERFORM idem_refuse_without_secret();
	ELSIF NOT mine THEN
		RETURN 0;
	END IF;
	pages := pg_relation_size('idempotency_store') / current_setting('block_size')::int;
	-- A store that comes from a publisher is collected there. An expired row that was removed
	-- here would be missed when the publisher updates it: its key is used again.
	-- Who may subscribe may name any table, but writes only those that he has a right to.
	IF EXISTS (SELECT FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid JOIN pg_class c ON c.oid = r.srrelid
		WHERE c.oid = 'idempotency_store'::regclass
		AND (pg_has_role(s.subowner, c.relowner, 'MEMBER') OR has_table_privilege(s.subowner, c.oid, 'INSERT'))) THEN
		pages := 0;
	END IF;
	ahead := least(pages, 8192);
	SELECT w.next_page, w.began_at INTO page, began FROM idempotency_sweep w;
	page := coalesce(page, 0);
	LOOP
		IF page >= pages THEN
			page := 0;
		END IF;
		IF page = 0 OR began IS NULL THEN
			began := clock_timestamp();
		END IF;
		EXIT WHEN ahead <= 0 OR removed >= max_rows;
		SELECT * INTO piece FROM idem_sweep_pages(page, least(page + 128, page + ahead, pages), max_rows - removed);
		removed := removed + piece.removed;
		ahead := ahead - (piece.next_page - page);
		page := piece.next_page;
	END LOOP;
	INSERT INTO idempotency_sweep (next_page, began_at, swept_at) VALUES (page, began, clock_timestamp())
		ON CONFLICT (only_row) DO UPDATE
		SET next_page = EXCLUDED.next_page, began_at = EXCLUDED.began_at, swept_at = EXCLUDED.swept_at;
	RETURN removed;
END
$$;
COMMENT ON FUNCTION idem_gc(int) IS 'remove up to max_rows expired records; returns how many it removed';

CREATE FUNCTION idem_schedule_gc(schedule text DEFAULT '* * * * *')
RETURNS bigint
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
SET search_path FROM CURRENT AS $$
DECLARE
	job bigint;
BEGIN
	IF schedule IS NULL OR schedule = '' THEN
		RAISE EXCEPTION 'schedule must not be null or empty' USING ERRCODE = 'ID400';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
		RAISE EXCEPTION 'extension "pg_cron" is not installed in database "%"', current_database()
			USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'Run CREATE EXTENSION pg_cron in this database (cron.database_name must name it).';
	END IF;
	EXECUTE 'SELECT cron.schedule_in_database($1, $2, $3, $4, NULL::text, true)' INTO job
		USING 'idempotency gc of ' || current_database(), schedule,
			format('SELECT %I.idem_gc(10000::pg_catalog.int4)', current_schema()), current_database()::text;
	RETURN job;
END
$$;
COMMENT ON FUNCTION idem_schedule_gc(text) IS
	'let pg_cron run idem_gc() in this database; returns the id of the job, which a repeated call keeps';

-- Rights: nobody has any until the owner grants them.

CREATE FUNCTION idem_set_rights(role regrole, command text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT AS $$
DECLARE
	object record;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION 'role must not be null' USING ERRCODE = 'ID400';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION 'role with OID % does not exist', role::oid USING ERRCODE = 'undefined_object';
	END IF;
	-- idem_revoke leaves this right: the schema may hold other objects
	IF command LIKE 'GRANT %' AND NOT has_schema_privilege(role, current_schema(), 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', current_schema(), role);
	END IF;
	FOR object IN
		SELECT 'EXECUTE' AS right, 'FUNCTION ' || p.oid::regprocedure AS name FROM pg_proc p
		WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
		AND p.proname IN ('idem_begin', 'idem_complete', 'idem_fail', 'idem_release', 'idem_extend', 'idem_progress',
			'idem_lookup', 'idem_fingerprint', 'idem_step_key', 'idem_begin_batch', 'idem_complete_batch', 'idem_call',
			-- what those of them call that run with the rights of their caller
			'idem_token', 'idem_call_begin', 'idem_call_end', 'idem_call_fail')
		UNION ALL
		SELECT 'USAGE', 'TYPE ' || t
		FROM unnest(ARRAY['idem_operation', 'idem_outcome', 'idempotency_status']) t
	LOOP
		EXECUTE format(command, object.right, object.name, role);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idem_set_rights(regrole, text) IS
	'internal: runs a GRANT or REVOKE for every application function and its types';

CREATE FUNCTION idem_grant(role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_set_rights(role, 'GRANT %s ON %s TO %s');
END
$$;
COMMENT ON FUNCTION idem_grant(regrole) IS
	'let a role call the application functions and use their types; it gets no right on any table';

CREATE FUNCTION idem_revoke(role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_set_rights(role, 'REVOKE %s ON %s FROM %s');
END
$$;
COMMENT ON FUNCTION idem_revoke(regrole) IS
	'take back the rights on functions and types that idem_grant gave';

-- PUBLIC and default privileges have given rights by now. All of them are revoked, so
-- that only the owner has rights.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE ALL ON %s %s FROM %s', m.kind, m.name,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
		FROM (
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
				c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS rights
			FROM pg_class c WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'S', 'v')
			AND c.relname IN ('idempotency_store', 'idempotency_pending', 'idempotency_secret', 'idempotency_sweep', 'idempotency_fence',
				'idempotency_failures', 'idempotency_forgotten')
			UNION ALL
			SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
			FROM pg_proc p WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'idem\_%'
			UNION ALL
			SELECT 'TYPE', t.oid::regtype::text, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
			FROM pg_type t WHERE t.typnamespace = quote_ident(current_schema())::regnamespace
			AND t.typname IN ('idem_operation', 'idem_outcome', 'idempotency_status')) m, aclexplode(m.rights) a
		WHERE a.grantee <> m.owner
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
-- as in the extension: these see scopes and numbers of everything
GRANT SELECT ON idempotency_failures TO pg_monitor, pg_read_all_stats;
GRANT EXECUTE ON FUNCTION idem_failure_cause(jsonb) TO pg_monitor, pg_read_all_stats;

COMMIT;
