-- FORCE ROW LEVEL SECURITY and an owner who is no superuser. An
-- invalidation of the store comes after a statement was analyzed and before it runs:
-- an index expression, which is evaluated for the plan, grants a right.
-- dead rows of before could keep the index out of plans, as long as another session has an old snapshot
TRUNCATE idempotency_store;
BEGIN;
SELECT answer(idem_begin('forced-done')), idem_complete('forced-done', '1');
COMMIT;
SELECT fence FROM idem_begin('forced-leased', lease => '1 hour') \gset
CREATE ROLE regress_idem_forced;
CREATE ROLE regress_idem_forced_app;
SELECT idem_grant('regress_idem_forced_app'), idem_grant('regress_idem_forced');
SELECT relowner::regrole AS owner FROM pg_class WHERE oid = 'idempotency_store'::regclass \gset
ALTER TABLE idempotency_store OWNER TO regress_idem_forced;
ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE SEQUENCE forced_news;
GRANT SELECT, USAGE ON forced_news TO regress_idem_forced;
CREATE FUNCTION forced_grant() RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
	GRANT SELECT ON idempotency_store TO regress_idem_forced_app;
	REVOKE SELECT ON idempotency_store FROM regress_idem_forced_app;
	RETURN nextval('forced_news');
END
$$;
ALTER FUNCTION forced_grant() OWNER TO regress_idem_forced;
CREATE FUNCTION forced_expression(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.forced_grant(); RETURN 1; END';
-- autovacuum would run the expression, too, and two of its GRANTs at once are "tuple concurrently updated"
ALTER TABLE idempotency_store SET (autovacuum_enabled = off);
CREATE INDEX forced ON idempotency_store ((forced_expression(1)));
-- Each in a session that has not planned anything before; row security is on for the owner.
\c -
SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'forced-%';
SET ROLE regress_idem_forced;
SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'forced-%';
SELECT last_value AS before FROM forced_news \gset
\c -
SET ROLE regress_idem_forced_app;
SELECT answer(idem_begin('forced-done'));
SELECT answer(idem_begin('forced-done')), answer(idem_lookup('forced-done'));
\c -
SET ROLE regress_idem_forced_app;
SELECT answer(idem_lookup('forced-done'));
\c -
SET ROLE regress_idem_forced_app;
SELECT answer(idem_begin('forced-leased'));
SELECT idem_extend('forced-leased', '2 hours', fence => :fence) > now();
SELECT FROM idem_complete('forced-leased', '2', fence => :fence);
SELECT answer(idem_lookup('forced-leased'));
RESET ROLE;
-- there was an invalidation each time
SELECT last_value - :before FROM forced_news;
-- Another role and another setting make the server analyze the statement again, too.
\c -
SET ROLE regress_idem_forced_app;
SELECT answer(idem_lookup('forced-done'));
SET ROLE regress_idem_forced;
SELECT answer(idem_lookup('forced-done'));
SET row_security = off;
SELECT answer(idem_lookup('forced-done'));
SET ROLE regress_idem_forced_app;
SELECT answer(idem_lookup('forced-done'));
RESET ROLE;
RESET row_security;
-- A trigger runs with the caller's state: with row security, and with the caller's settings.
DROP INDEX forced;
ALTER TABLE idempotency_store RESET (autovacuum_enabled);
CREATE FUNCTION forced_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE '% sees % rows, enable_seqscan is %', current_user, (SELECT count(*) FROM public.idempotency_store), current_setting('enable_seqscan');
	RETURN NULL;
END
$$;
CREATE TRIGGER forced AFTER DELETE OR INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION forced_trigger();
SET ROLE regress_idem_forced;
SELECT fence FROM idem_begin('forced-new', lease => '1 hour') \gset
SELECT idem_release('forced-new', fence => :fence);
RESET ROLE;
DROP TRIGGER forced ON idempotency_store;
ALTER TABLE idempotency_store DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
ALTER TABLE idempotency_store OWNER TO :owner;
DROP FUNCTION forced_trigger(), forced_expression(int), forced_grant();
DROP SEQUENCE forced_news;
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'forced-%';
SELECT idem_revoke('regress_idem_forced_app'), idem_revoke('regress_idem_forced');
DROP OWNED BY regress_idem_forced;
DROP ROLE regress_idem_forced, regress_idem_forced_app;
