-- Answers that no file of sql/ asks for.
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;

BEGIN;
SELECT fence FROM idem_begin('answers-1', lease => '1 hour') \gset
SELECT pg_temp.expect(bool_and(a.outcome = 'IN_PROGRESS' AND a.expires_at IS NULL AND a.lease_expires_at > now()),
	'a lease of this transaction has no expires_at, as in the extension')
FROM (SELECT * FROM idem_begin('answers-1', lease => '1 hour') UNION ALL SELECT * FROM idem_lookup('answers-1')) a;
COMMIT;
SELECT pg_temp.expect(bool_and(a.outcome = 'IN_PROGRESS' AND a.expires_at > a.lease_expires_at), 'that of another one has it')
FROM (SELECT * FROM idem_begin('answers-1', lease => '1 hour') UNION ALL SELECT * FROM idem_lookup('answers-1')) a;

-- a setting that changes how strings are read, before 19; a new session, as functions are read once
SELECT encode(idem_fingerprint(v), 'hex') AS usual FROM to_jsonb('a"b\c}'::text) v \gset
\connect -
SELECT :SERVER_VERSION_NUM < 190000 AS may_differ \gset
\if :may_differ
SET standard_conforming_strings = off;
SET escape_string_warning = off;
\endif
\set unusual none
SELECT encode(idem_fingerprint(v), 'hex') AS unusual FROM to_jsonb(E'a"b\\c}'::text) v \gset
BEGIN;
SET LOCAL idempotency.max_response_size = '100 B';
SELECT idem_begin('answers-2'), idem_complete('answers-2', '1') \gset
\set state :SQLSTATE
ROLLBACK;
RESET standard_conforming_strings;
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;
SELECT pg_temp.expect(:'usual' = :'unusual', 'standard_conforming_strings does not change a fingerprint');
SELECT pg_temp.expect(:'state' = '00000', 'nor a setting with a unit');

-- The size of a stored error by the setting, which is the same as that by the policies of
-- sql/call_bounds.sql.
CREATE FUNCTION pg_temp.bounds_raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION USING MESSAGE = repeat('é', (request ->> 0)::int / 2), DETAIL = repeat('d', (request ->> 1)::int), HINT = repeat('h', (request ->> 2)::int);
END
$$;
CREATE FUNCTION pg_temp.bounds_answers(n int, request jsonb, most int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	p jsonb;
BEGIN
	PERFORM set_config('idempotency.max_response_size', most::text, true);
	p := (idem_call('pg_temp.bounds_raise(jsonb)', 'bounds-' || n, request)).response_payload;
	RETURN concat_ws(' ', octet_length(p ->> 'message'), octet_length(p ->> 'detail'), octet_length(p ->> 'hint'), p ->> 'sqlstate', most - pg_column_size(p || '{}') + 4);
END
$$;
SELECT string_agg(pg_temp.bounds_answers(b.n, b.size, b.most), ', ' ORDER BY b.n) AS answers
FROM (VALUES (1, '[8000, 1000, 900]'::jsonb, 10000), (2, '[8000, 1000, 1000]', 10000), (3, '[8192, 8192, 8192]', 10000), (4, '[50, 50, 50]', 100),
	(5, '[50, 50, 50]', 99), (6, '[50, 50, 50]', 66), (7, '[50, 50, 50]', 65), (8, '[50, 50, 50]', 25), (9, '[50, 50, 50]', 24)) b (n, size, most) \gset
SELECT pg_temp.expect(:'answers' =
	'8000 1000 900 P0001 34, 8000 1000 934 P0001 0, 8192 1742 0 P0001 0, 34 0 0 P0001 0, 32 0 0 P0001 1, 0 0 0 P0001 0, P0001 40, P0001 0, ',
	'a stored error is cut as in the extension, between characters');

-- The size of a response that a table has compressed, also when plans have become generic.
CREATE TEMP TABLE compressed AS SELECT to_jsonb(repeat('x', 6000)) AS response;
CREATE FUNCTION pg_temp.complete_compressed(n int, size int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('idempotency.max_response_size', size::text, true), idem_begin('compressed-' || n);
	PERFORM idem_complete('compressed-' || n, response) FROM compressed;
	RETURN true;
EXCEPTION WHEN SQLSTATE 'ID413' THEN
	RETURN false;
END
$$;
SELECT pg_temp.expect(bool_and(pg_temp.complete_compressed(n, 6008 - n % 2) = (n % 2 = 0)),
	'a compressed response counts uncompressed')
FROM generate_series(1, 20) n;

-- No response gets into a view of statistics.
DO $$ BEGIN PERFORM idem_complete(idem_begin(n::text, scope => 'counted'), '"s3cret"', headers => '"s3cret"', body => 's3cret') FROM generate_series(1, 50) n; END $$;
ANALYZE idempotency_store;
SELECT pg_temp.expect(string_agg(attname, ' ') = 'scope', 'the planner''s statistics have no response')
FROM pg_stats WHERE tablename = 'idempotency_store' AND concat(most_common_vals, histogram_bounds) ~ 's3cret|733363726574|counted';

-- An operator's code is not run by others without their knowing: idem_forget, too.
BEGIN;
SELECT idem_begin('answers-6'), idem_complete('answers-6') \gset
COMMIT;
CREATE FUNCTION pg_temp.forget(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.idem_forget(''answers-6''); RETURN n; END';
CREATE TEMP TABLE forgets AS SELECT 1 AS n;
\set ON_ERROR_STOP off
CREATE INDEX ON forgets (pg_temp.forget(n));
\set state :SQLSTATE
\set ON_ERROR_STOP on
SELECT pg_temp.expect(:'state' = '42501' AND NOT idem_lookup('answers-6') IS NULL, 'nothing is forgotten inside a security-restricted operation');
-- a release in this transaction leaves the record of the attempt before, which has no owner
SELECT fence AS brief FROM idem_begin('answers-7', lease => '1 us') \gset
BEGIN;
SELECT fence AS later FROM idem_begin('answers-7', lease => '1 hour') \gset
SELECT idem_release('answers-7', fence => :later) AS released, idem_forget('answers-7') AS forgotten \gset
COMMIT;
SELECT pg_temp.expect((:'released', :'forgotten') = ('t', 't') AND idem_lookup('answers-7') IS NULL, 'a released attempt is forgotten in the same transaction');
-- another session's end is no end of this transaction, at any isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
CREATE TEMP TABLE forgets_xid AS SELECT 1;
SELECT idem_forget('answers-6') AS forgotten, idem_forget('answers-6') AS twice \gset
COMMIT;
SELECT pg_temp.expect((:'forgotten', :'twice') = ('t', 'f'), 'a record of before is forgotten in a transaction that writes');
BEGIN;
SAVEPOINT a;
SELECT idem_begin('answers-6'), idem_complete('answers-6') \gset
RELEASE a;
SAVEPOINT b;
\set ON_ERROR_STOP off
SELECT idem_forget('answers-6');
\set state :SQLSTATE
\set ON_ERROR_STOP on
ROLLBACK TO b;
COMMIT;
SELECT pg_temp.expect(:'state' = 'ID409', 'what a savepoint of this transaction has ended is in use');

-- current_user is the owner of a function with SECURITY DEFINER: what is noted is the role of the session
CREATE ROLE managed_desk;
GRANT EXECUTE ON FUNCTION idem_forget_failed TO managed_desk;
CREATE FUNCTION pg_temp.for_others(scope text) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$
	SELECT public.idem_forget_failed(scope, 'for others')
$$;
GRANT EXECUTE ON FUNCTION pg_temp.for_others TO managed_desk;
BEGIN;
SELECT count(*) AS begun FROM unnest('{answers-8,answers-9}'::text[]) key, idem_begin(key, scope => key) o, idem_fail(o) \gset
COMMIT;
BEGIN;
SET LOCAL ROLE managed_desk;
SELECT pg_temp.for_others('answers-8') AS forgotten \gset
RESET ROLE;
SELECT pg_temp.for_others('answers-9') AS forgotten \gset
COMMIT;
SELECT pg_temp.expect(string_agg((role = CASE scope WHEN 'answers-8' THEN 'managed_desk' ELSE SESSION_USER END)::text, ' ') = 'true true',
	'a function of another role notes the role of the session, or of its SET ROLE') FROM idempotency_forgotten WHERE reason = 'for others';

-- a copy without its data has no secret
BEGIN;
DELETE FROM idempotency_secret;
\set ON_ERROR_STOP off
SAVEPOINT a;
SELECT idem_begin('answers-3');
\set begun :SQLSTATE
ROLLBACK TO a;
SELECT idem_begin('answers-3', wait => '1 ms');
\set waited :SQLSTATE
ROLLBACK TO a;
SELECT idem_complete('answers-1', fence => :fence);
\set ended :SQLSTATE
ROLLBACK TO a;
SELECT idem_gc();
\set collected :SQLSTATE
ROLLBACK TO a;
\set ON_ERROR_STOP on
INSERT INTO idempotency_secret (lock_key) VALUES (hashtextextended(gen_random_uuid()::text, 0));
\set healed none
SELECT outcome AS healed FROM idem_begin('answers-3', lease => '1 hour') \gset
ROLLBACK;
SELECT pg_temp.expect((:'begun', :'waited', :'ended', :'collected') = ('55000', '55000', '55000', '55000'), 'without the secret all that locks is refused');
SELECT pg_temp.expect(:'healed' = 'ACQUIRED', 'the statement of the hint makes one');

-- Another owner comes between the look without the lock and the look with it: the caller
-- keeps no lock, as the owner needs it, and counts no operation. The function of the lock
-- id runs in between, so here it is the other owner.
BEGIN;
CREATE OR REPLACE FUNCTION idem_lock_id(key text, scope text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
	INSERT INTO idempotency_store (scope, idempotency_key, fence, status, lease_expires_at, expires_at)
		VALUES ($2, $1, 1, CASE WHEN key LIKE '%leased' THEN 'PENDING' ELSE 'COMPLETED' END::idempotency_status,
			now() + interval '1 hour', now() + interval '2 hours')
		ON CONFLICT (scope, idempotency_key) DO UPDATE SET fence = idempotency_store.fence + 1;
	RETURN 42;
END
$$;
SELECT string_agg(outcome::text, ' ') AS answers FROM unnest('{answers-4-leased,answers-4}'::text[]) k, idem_begin(k) \gset
SELECT string_agg(outcome::text, ' ') AS answers_waiting FROM unnest('{answers-5-leased,answers-5}'::text[]) k, idem_begin(k, wait => '1 ms') \gset
SELECT idem_release('answers-4-leased', fence => 1) AS released \gset
SAVEPOINT a;
\set ON_ERROR_STOP off
SELECT idem_complete('answers-5-leased', fence => 1);
\set ended :SQLSTATE
\set ON_ERROR_STOP on
ROLLBACK TO a;
SELECT count(*) AS locks, coalesce(nullif(current_setting('idem.held', true), ''), '0') AS counted
FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() \gset
ROLLBACK;
SELECT pg_temp.expect((:'answers', :'answers_waiting', :'released', :'ended') = ('IN_PROGRESS COMPLETED', 'IN_PROGRESS COMPLETED', 'f', 'ID409'),
	'an owner that comes between the two looks is seen');
SELECT pg_temp.expect((:'locks', :'counted') = ('0', '0'), 'and nothing is held that it needs');
