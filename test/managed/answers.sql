-- Answers that no file of sql/ asks for.
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;
\set ON_ERROR_STOP off

BEGIN;
SELECT fence FROM idem_begin('answers-1', lease => '1 hour') \gset
SELECT pg_temp.expect(bool_and(a.outcome = 'IN_PROGRESS' AND a.expires_at IS NULL AND a.lease_expires_at > now()),
	'a lease of this transaction has no expires_at, as in the extension')
FROM (SELECT * FROM idem_begin('answers-1', lease => '1 hour') UNION ALL SELECT * FROM idem_lookup('answers-1')) a;
COMMIT;
SELECT pg_temp.expect(bool_and(a.outcome = 'IN_PROGRESS' AND a.expires_at > a.lease_expires_at), 'that of another one has it')
FROM (SELECT * FROM idem_begin('answers-1', lease => '1 hour') UNION ALL SELECT * FROM idem_lookup('answers-1')) a;

-- a setting that changes how strings are read; a new session, as functions are read once
SELECT encode(idem_fingerprint(v), 'hex') AS usual FROM to_jsonb('a"b\c}'::text) v \gset
\connect -
SET standard_conforming_strings = off;
SET escape_string_warning = off;
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

-- a copy without its data has no secret
BEGIN;
DELETE FROM idempotency_secret;
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
INSERT INTO idempotency_secret (lock_key) VALUES (hashtextextended(gen_random_uuid()::text, 0));
\set healed none
SELECT outcome AS healed FROM idem_begin('answers-3', lease => '1 hour') \gset
ROLLBACK;
SELECT pg_temp.expect((:'begun', :'waited', :'ended', :'collected') = ('55000', '55000', '55000', '55000'), 'without the secret all that locks is refused');
SELECT pg_temp.expect(:'healed' = 'ACQUIRED', 'the statement of the hint makes one');
