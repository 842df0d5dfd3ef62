-- Progress: the owner of a lease leaves a note, and the next owner finds it.

CREATE FUNCTION pg_temp.noted(o idem_operation) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', o.outcome, o.attempt, CASE WHEN o.taken_over THEN 'taken over' END, coalesce(o.response_payload::text, 'no note'))
$$;

-- The note does not end the operation, and the lease ends when it would.
SELECT fence, lease_expires_at AS due FROM idem_begin('progress-1', lease => '1 hour') \gset
SELECT idem_progress('progress-1', '{"charged": "ch_1"}', fence => :fence) = :'due';
SELECT status, lease_expires_at = :'due', response_payload, response_code, expires_at > lease_expires_at FROM idempotency_store WHERE idempotency_key = 'progress-1';
-- With a lease it is extended, too, in either direction.
SELECT idem_progress('progress-1', '{"charged": "ch_2"}', fence => :fence, lease => '2 hours') > clock_timestamp() + interval '119 minutes';
-- Others learn nothing of it from a begin; who may look the operation up sees it.
SELECT pg_temp.noted(idem_begin('progress-1')), pg_temp.noted(idem_begin('progress-1', lease => '1 hour', wait => '1 ms')), pg_temp.noted(idem_lookup('progress-1'));
-- An extension keeps it.
SELECT idem_extend('progress-1', '1 us', fence => :fence) IS NOT NULL;
-- The next owner has the last note, with attempt and fence; if it leaves none, the one after it has the same.
SELECT pg_temp.noted(o), o.fence > :fence AS newer, o.replayed FROM idem_begin('progress-1', lease => '1 us') o;
SELECT raises(format($$SELECT idem_progress('progress-1', '"stale"', fence => %s)$$, :fence));
SELECT pg_temp.noted(idem_lookup('progress-1'));
-- A transaction that takes the operation over has it, and so has who comes after its rollback.
BEGIN;
SELECT pg_temp.noted(idem_begin('progress-1')), pg_temp.noted(idem_lookup('progress-1'));
SELECT raises($$SELECT idem_progress('progress-1', '"none"')$$);
ROLLBACK;
SELECT pg_temp.noted(o), o.fence AS third FROM idem_begin('progress-1', lease => '1 hour') o \gset
\echo :noted
SELECT idem_progress('progress-1', '{"charged": "ch_2", "mailed": true}', fence => :third) IS NOT NULL;
-- A release keeps it; the attempt is undone.
SELECT idem_release('progress-1', fence => :third), pg_temp.noted(idem_lookup('progress-1'));
SELECT pg_temp.noted(o), o.fence AS fourth FROM idem_begin('progress-1', lease => '1 hour') o \gset
\echo :noted
-- It is gone when the operation ends, also if that has no response.
SELECT FROM idem_complete('progress-1', fence => :fourth);
SELECT pg_temp.noted(idem_begin('progress-1')), pg_temp.noted(idem_lookup('progress-1'));
SELECT raises(format($$SELECT idem_progress('progress-1', '1', fence => %s)$$, :fourth));

-- In the transaction of the begin no fence is needed; a savepoint takes the note back.
BEGIN;
SELECT fence FROM idem_begin('progress-2', lease => '1 hour') \gset
SELECT idem_progress('progress-2', '1') IS NOT NULL;
SAVEPOINT s;
SELECT idem_progress('progress-2', '2', lease => '1 us') < clock_timestamp();
ROLLBACK TO s;
SELECT pg_temp.noted(idem_lookup('progress-2')), lease_expires_at > now() + interval '59 minutes' FROM idem_lookup('progress-2');
COMMIT;
-- JSON null is a note. The first attempt's release leaves nothing.
SELECT idem_progress('progress-2', 'null', fence => :fence, lease => '1 us') IS NOT NULL, pg_temp.noted(idem_lookup('progress-2'));
BEGIN;
SELECT pg_temp.noted(o), o.response_payload IS NULL FROM idem_begin('progress-2') o;
ROLLBACK;
SELECT idem_release('progress-2', fence => :fence), idem_lookup('progress-2') IS NULL;
-- The idem_operation that idem_begin returned stands for key, scope and fence.
DO $$
DECLARE
	operation idem_operation;
BEGIN
	operation := idem_begin('progress-3', lease => '1 hour', scope => 'progress');
	PERFORM idem_progress(operation, '[1]');
	PERFORM idem_progress(operation, '[1, 2]', lease => '1 us');
	COMMIT;
	operation := idem_begin('progress-3', lease => '1 hour', scope => 'progress');
	RAISE NOTICE '%', pg_temp.noted(operation);
	-- a retryable failure is an end: what it stored is no note
	PERFORM idem_fail(operation, '"later"', retryable => true, retry_after => '0');
	COMMIT;
	RAISE NOTICE '%', pg_temp.noted(idem_begin('progress-3', lease => '1 hour', scope => 'progress'));
END
$$;
-- A record that has expired counts as absent, with its note.
SELECT fence FROM idem_begin('progress-4', lease => '1 us') \gset
SELECT idem_progress('progress-4', '4', fence => :fence) IS NOT NULL;
UPDATE idempotency_store SET expires_at = now() - interval '1 second' WHERE idempotency_key = 'progress-4';
SELECT pg_temp.noted(idem_lookup('progress-4')), pg_temp.noted(idem_begin('progress-4', lease => '1 hour'));

-- The arguments, and their limits.
SELECT raises(s) FROM (VALUES ($$SELECT idem_progress('k', NULL)$$), ($$SELECT idem_progress(NULL, '1')$$), ($$SELECT idem_progress('', '1')$$),
	($$SELECT idem_progress('k', '1', scope => NULL)$$), ($$SELECT idem_progress('k', '1', fence => 0)$$), ($$SELECT idem_progress('k', '1', lease => '0')$$),
	($$SELECT idem_progress('k', '1', lease => '-1 s')$$), ($$SELECT idem_progress('k', '1')$$), ($$SELECT idem_progress('k', '1', fence => 1)$$),
	($$SELECT idem_progress(NULL::idem_operation, '1')$$), ($$SELECT idem_progress(idem_begin('progress-4'), NULL)$$),
	($$SELECT idem_progress(idem_begin('progress-4'), '1')$$)) v(s);
BEGIN READ ONLY;
SELECT raises($$SELECT idem_progress('k', '1', fence => 1)$$);
ROLLBACK;
-- It is bounded as a response is, and a note that is refused changes nothing.
SELECT fence FROM idem_begin('progress-5', lease => '1 hour') \gset
SELECT idem_progress('progress-5', '5', fence => :fence) IS NOT NULL;
SET idempotency.max_response_size = '1kB';
SELECT raises_in_full(format($$SELECT idem_progress('progress-5', to_jsonb(repeat('x', 2000)), fence => %s)$$, :fence));
RESET idempotency.max_response_size;
SELECT pg_temp.noted(idem_lookup('progress-5'));
-- A record whose lease was taken out of it by hand takes the note, and has no end to tell.
UPDATE idempotency_store SET lease_expires_at = NULL WHERE idempotency_key = 'progress-5';
SELECT idem_progress('progress-5', '6', fence => :fence) IS NULL, pg_temp.noted(idem_lookup('progress-5'));
SELECT idem_progress(jsonb_populate_record(NULL::idem_operation, jsonb_build_object('outcome', 'ACQUIRED', 'scope', '', 'idempotency_key', 'progress-5', 'fence', :fence)), '7') IS NULL,
	pg_temp.noted(idem_lookup('progress-5'));
