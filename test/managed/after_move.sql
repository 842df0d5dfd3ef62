-- The records of before_move.sql, in the extension.
\set ON_ERROR_STOP off
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;

SELECT pg_temp.expect(count(*) > 0 AND bool_and(probin IS NOT NULL), 'the functions are those of the extension')
FROM pg_proc WHERE proname = 'idem_begin';
SELECT pg_temp.expect(count(*) = 5 AND bool_and((to_jsonb(idem_lookup(key, 'move')) - 'retry_after')::text = answer),
	'the extension answers each as before, byte for byte') FROM move_answer;
SELECT pg_temp.expect(answer.response_payload = '"late"', 'a transaction that was open committed before the move')
FROM idem_lookup('move-late') answer;

SELECT pg_temp.expect(count(*) = 1 AND bool_and(f.operations = 2 AND f = m::text::idempotency_forgotten), 'who has forgotten failures, when and why is as before')
FROM move_forgotten m FULL JOIN idempotency_forgotten f USING (call_id);

-- the same request is the same, another one is not
SELECT pg_temp.expect(replayed AND response_body = '\x00ff', 'a replay has the fingerprint of before')
FROM idem_begin('move-done', '{"n": 1.5}', 'move');
SELECT outcome FROM idem_begin('move-done', '{"n": 2}', 'move') \gset
SELECT pg_temp.expect(:'SQLSTATE' = 'ID422', 'another request is refused');

SELECT fence AS leased FROM move_answer WHERE key = 'move-leased' \gset
SELECT pg_temp.expect(outcome = 'IN_PROGRESS', 'an open lease goes on') FROM idem_begin('move-leased', scope => 'move', lease => '1 hour');
SELECT idem_complete('move-leased', '"by its fence"', 'move', fence => :leased) IS NULL AS ended \gset
SELECT pg_temp.expect(response_payload = '"by its fence"', 'it is ended by its fence') FROM idem_lookup('move-leased', 'move');
SELECT pg_temp.expect(taken_over AND fence > (SELECT max(m.fence) FROM move_answer m), 'a lease that ran out is taken over with a greater fence')
FROM idem_begin('move-over', scope => 'move', lease => '1 hour');
SELECT pg_temp.expect(fence > (SELECT max(m.fence) FROM move_answer m), 'new fences are greater')
FROM idem_begin('move-new', scope => 'move', lease => '1 hour');
SELECT idem_complete('move-over', NULL, 'move', fence => fence) FROM move_answer WHERE key = 'move-over' \gset
SELECT pg_temp.expect(:'SQLSTATE' = 'ID409', 'an old fence is refused');

SET ROLE move_app;
SELECT pg_temp.expect(replayed, 'a role has kept its rights') FROM idem_begin('move-failed', scope => 'move');
RESET ROLE;
SELECT pg_temp.expect(NOT EXISTS (SELECT FROM pg_class WHERE relname = 'idempotency_pending')
	AND NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'idempotency_managed'), 'nothing of the old functions is left');
