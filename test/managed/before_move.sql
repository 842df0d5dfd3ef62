-- Records of every kind, before they move to the extension.
CREATE ROLE move_app LOGIN;
SELECT idem_grant('move_app') AS granted \gset

BEGIN;
SELECT count(*) AS begun FROM idem_begin('move-done', '{"n": 1.50}', 'move') a, idem_begin('move-failed', scope => 'move') b,
	idem_begin('move-later', scope => 'move') c \gset
SELECT idem_complete('move-done', '{"a": [1, "é"]}', 'move', 201, '{"h": "1"}', '\x00ff') AS a,
	idem_fail('move-failed', 'null', 'move', 402) AS b,
	idem_fail('move-later', '"busy"', 'move', retryable => true, retry_after => '1 hour') AS c \gset
COMMIT;
SELECT fence AS early FROM idem_begin('move-leased', '{"n": 2}', 'move', lease => '1 hour') \gset
SELECT fence AS late FROM idem_begin('move-over', scope => 'move', lease => '1 hour') \gset
UPDATE idempotency_store SET lease_expires_at = now() - interval '1 s' WHERE idempotency_key = 'move-over';

BEGIN;
SELECT count(*) AS begun FROM unnest(ARRAY['move-dead-1', 'move-dead-2']) key, idem_begin(key, scope => 'move-dead') o, idem_fail(o, '{"sqlstate": "23503"}') \gset
COMMIT;
SELECT idem_forget_failed('move-dead', 'a ticket', '23503') AS forgotten \gset
CREATE TABLE move_forgotten AS SELECT * FROM idempotency_forgotten;

-- what the extension has to answer
CREATE TABLE move_answer AS
SELECT idempotency_key AS key, (to_jsonb(idem_lookup(idempotency_key, scope)) - 'retry_after')::text AS answer, fence
FROM idempotency_store;
SELECT CASE WHEN count(*) = 5 AND :late > :early THEN 'ok: ' ELSE 'not ok: ' END || 'records of every kind are there to be moved'
FROM move_answer;
