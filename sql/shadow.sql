-- With any search_path and with planted objects.
CREATE FUNCTION shadow_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
-- Operations that run every statement on the tables.
CREATE FUNCTION shadow_life(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	operation public.idem_operation;
	seen text := '';
BEGIN
	operation := public.idem_begin(name);
	PERFORM public.idem_fail(operation, retryable => true);
	operation := public.idem_begin(name, request => '1');
	PERFORM public.idem_complete(operation, '1');
	seen := public.answer(public.idem_begin(name)) OPERATOR(pg_catalog.||) ', ' OPERATOR(pg_catalog.||) public.answer(public.idem_lookup(name));
	operation := public.idem_begin(name, scope => 'leased', lease => '1 hour');
	PERFORM public.idem_extend(name, '2 hours', 'leased');
	PERFORM public.idem_complete(operation, '2');
	operation := public.idem_begin(name, scope => 'given up', lease => '1 hour');
	PERFORM public.idem_release(name, 'given up');
	seen := seen OPERATOR(pg_catalog.||) ', ' OPERATOR(pg_catalog.||) public.answer(public.idem_call('public.shadow_echo(jsonb)', name, '3', 'call'));
	PERFORM public.idem_advance(name, 1), public.idem_advance(name, 2);
	PERFORM public.idem_begin_batch(ARRAY[name], scope => 'batch');
	PERFORM public.idem_complete_batch(ARRAY[name], scope => 'batch');
	RETURN seen;
END
$$;
SELECT shadow_life('shadow-1');

-- No search_path at all.
SET search_path = '';
SELECT public.shadow_life('shadow-2');
RESET search_path;

-- Tables, types and a sequence of the same names, in pg_temp and in a schema before ours.
CREATE TEMP TABLE idempotency_store (LIKE idempotency_store INCLUDING ALL);
CREATE TEMP TABLE idempotency_stream (LIKE idempotency_stream INCLUDING ALL);
CREATE TEMP TABLE idempotency_secret (only_row bool, lock_key bytea);
CREATE TEMP SEQUENCE idempotency_fence;
CREATE SCHEMA shadow_before;
CREATE TABLE shadow_before.idempotency_store (LIKE public.idempotency_store INCLUDING ALL);
CREATE TABLE shadow_before.pg_extension (extname name, oid oid, extnamespace oid);
CREATE TYPE shadow_before.idempotency_status AS ENUM ('PENDING', 'COMPLETED', 'FAILED');
CREATE TYPE shadow_before.idem_outcome AS ENUM ('FAILED');
SET search_path = shadow_before, pg_temp, public;
SELECT public.shadow_life('shadow-3');
SET search_path = pg_temp, shadow_before, pg_catalog;
SELECT public.shadow_life('shadow-4');
RESET search_path;
SELECT (SELECT count(*) FROM pg_temp.idempotency_store), (SELECT count(*) FROM pg_temp.idempotency_stream), (SELECT count(*) FROM shadow_before.idempotency_store), (SELECT is_called FROM pg_temp.idempotency_fence);
SELECT count(*) FROM public.idempotency_store WHERE idempotency_key ~ '^shadow-[34]$';
DROP TABLE pg_temp.idempotency_store, pg_temp.idempotency_stream, pg_temp.idempotency_secret;
DROP SEQUENCE pg_temp.idempotency_fence;
SET client_min_messages = warning;
DROP SCHEMA shadow_before CASCADE;
RESET client_min_messages;

-- A caller's own operators must not run with the owner's rights.
CREATE ROLE regress_idem_shadow;
SELECT FROM idem_grant('regress_idem_shadow');
CREATE SCHEMA shadow_hostile AUTHORIZATION regress_idem_shadow;
SET ROLE regress_idem_shadow;
CREATE TABLE shadow_hostile.seen (who name, what text);
CREATE FUNCTION shadow_hostile.hostile() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO shadow_hostile.seen VALUES (current_user, 'hostile');
	RETURN true;
END
$$;
CREATE FUNCTION shadow_hostile.equal(text, text) RETURNS bool LANGUAGE sql AS 'SELECT shadow_hostile.hostile() AND $1 OPERATOR(pg_catalog.=) $2';
CREATE FUNCTION shadow_hostile.less(bigint, bigint) RETURNS bool LANGUAGE sql AS 'SELECT shadow_hostile.hostile() AND $1 OPERATOR(pg_catalog.<) $2';
CREATE FUNCTION shadow_hostile.less(timestamptz, timestamptz) RETURNS bool LANGUAGE sql AS 'SELECT shadow_hostile.hostile() AND $1 OPERATOR(pg_catalog.<) $2';
CREATE FUNCTION shadow_hostile.less(tid, tid) RETURNS bool LANGUAGE sql AS 'SELECT shadow_hostile.hostile() AND $1 OPERATOR(pg_catalog.<) $2';
CREATE OPERATOR shadow_hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = shadow_hostile.equal);
CREATE OPERATOR shadow_hostile.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shadow_hostile.less);
CREATE OPERATOR shadow_hostile.< (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = shadow_hostile.less);
CREATE OPERATOR shadow_hostile.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = shadow_hostile.less);
CREATE OPERATOR shadow_hostile.< (LEFTARG = tid, RIGHTARG = tid, FUNCTION = shadow_hostile.less);
CREATE FUNCTION shadow_hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT CASE WHEN shadow_hostile.hostile() THEN pg_catalog.now() END';
SET search_path = shadow_hostile, pg_catalog, public;
SELECT public.shadow_life('shadow-5');
-- also with a store that needs SPI, and in the collector
RESET ROLE;
BEGIN;
ALTER TABLE public.idempotency_store ADD CHECK (attempt > 0);
SET LOCAL ROLE regress_idem_shadow;
SELECT public.shadow_life('shadow-6');
RESET ROLE;
SELECT public.idem_gc() >= 0;
SELECT public.idem_grant('regress_idem_shadow'), public.idem_revoke('regress_idem_shadow'), public.idem_grant('regress_idem_shadow');
COMMIT;
RESET search_path;
SELECT who, what FROM shadow_hostile.seen;
-- the control: a caller's own statement does run them
SET ROLE regress_idem_shadow;
SET search_path = shadow_hostile, pg_catalog, public;
SELECT 'a'::text = 'a'::text;
RESET search_path;
RESET ROLE;
SELECT who, what FROM shadow_hostile.seen;
SELECT FROM idem_revoke('regress_idem_shadow');
DROP OWNED BY regress_idem_shadow;
DROP ROLE regress_idem_shadow;
ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_attempt_check;
