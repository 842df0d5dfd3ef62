-- idem_forget_failed: removes failures of a scope, and notes who did it and why.
DELETE FROM idempotency_store;
CREATE FUNCTION make_failures() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin('other-' || n, scope => 'dead'), idem_fail('other-' || n, '"secret"', 'dead') FROM generate_series(1, 3) n;
	PERFORM idem_begin('state', scope => 'dead'), idem_fail('state', '{"sqlstate": "23514"}', 'dead');
	PERFORM idem_begin('later', scope => 'dead'), idem_fail('later', scope => 'dead', retryable => true, retry_after => '1 hour');
	PERFORM idem_begin('done', scope => 'dead'), idem_complete('done', '1', 'dead');
	PERFORM idem_begin('leased', scope => 'dead', lease => '1 hour');
	PERFORM idem_begin('expired', scope => 'dead'), idem_fail('expired', scope => 'dead');
	PERFORM idem_begin('elsewhere', scope => 'dead-2'), idem_fail('elsewhere', scope => 'dead-2');
END
$$;
SELECT FROM make_failures();
SELECT FROM let_expire('expired');

-- The cause that the view shows, the bound with the oldest first, then all: never what has completed, is leased, or is of another scope.
SELECT idem_forget_failed('dead', 'the account is there now', cause => '23514'), idem_forget_failed('dead', 'nothing', cause => '23514');
SELECT idem_forget_failed('dead', 'a first try', max_rows => 2);
SELECT idempotency_key FROM idempotency_store WHERE scope = 'dead' AND status = 'FAILED' ORDER BY 1;
SELECT idem_forget_failed(scope => 'dead', reason => 'the rest');
SELECT idem_forget_failed('dead', 'nothing is left'), idem_forget_failed('dead', 'of no such cause', cause => '');
SELECT scope, idempotency_key, status FROM idempotency_store ORDER BY 1, 2;
-- they run again from the first attempt, with another request
BEGIN;
SELECT outcome, attempt FROM idem_begin('state', '2', scope => 'dead');
SELECT FROM idem_complete('state', '"again"', 'dead');
COMMIT;
-- a row for each call that has removed something
SELECT session_role = session_user, role = current_user, forgotten_at <= clock_timestamp(), scope, cause, reason, operations FROM idempotency_forgotten ORDER BY forgotten_at;
DELETE FROM idempotency_forgotten;

-- It is undone with its transaction, and what this transaction owns is passed over.
DELETE FROM idempotency_store;
SELECT FROM make_failures();
BEGIN;
SELECT idem_forget_failed('dead', 'undone'), locks_held();
ROLLBACK;
SELECT count(*), (SELECT count(*) FROM idempotency_forgotten) FROM idempotency_store WHERE status = 'FAILED';
SELECT FROM let_retry('later');
BEGIN;
SELECT answer(idem_begin('later', scope => 'dead'));
SELECT idem_forget_failed('dead', 'all but one', max_rows => 10);
SELECT FROM idem_complete('later', scope => 'dead');
COMMIT;
-- a limit on locks counts them
DELETE FROM idempotency_store;
SELECT FROM make_failures();
BEGIN;
SET LOCAL idempotency.max_operations_per_transaction = 2;
SELECT left(raises($$SELECT idem_forget_failed('dead', 'too many')$$), 5), idem_forget_failed('dead', 'two', max_rows => 2);
COMMIT;

-- Rights: not given by idem_grant; claims hold, also where nothing has failed; the table is the owner's.
CREATE ROLE regress_idem_desk;
CREATE ROLE regress_idem_desk_owner;
SELECT idem_grant('regress_idem_desk'), idem_claim_scope('dead', 'regress_idem_desk_owner');
SET ROLE regress_idem_desk;
SELECT raises($$SELECT idem_forget_failed('dead', 'no right')$$), raises('SELECT FROM idempotency_forgotten');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem_forget_failed TO regress_idem_desk;
DELETE FROM idempotency_forgotten;
SET ROLE regress_idem_desk;
SELECT left(raises($$SELECT idem_forget_failed('dead', 'no member')$$), 5), left(raises($$SELECT idem_forget_failed('dead', 'no member', cause => 'none')$$), 5);
SELECT idem_forget_failed('dead-2', 'a member of none');
RESET ROLE;
GRANT regress_idem_desk_owner TO regress_idem_desk;
SET ROLE regress_idem_desk;
SELECT idem_forget_failed('dead', 'a member');
RESET ROLE;
SELECT session_role = session_user, role, scope, reason, operations FROM idempotency_forgotten ORDER BY forgotten_at;
SELECT idem_unclaim_scope('dead');
DROP OWNED BY regress_idem_desk;
DROP ROLE regress_idem_desk, regress_idem_desk_owner;

-- A cause is the same here and in the view.
DELETE FROM idempotency_store;
SELECT FROM make_failures();
BEGIN;
SELECT count(*) FROM unnest(ARRAY['{"reason": "attempts lost"}', '{"reason": "attempts exhausted"}', '{"reason": "other"}', '{"sqlstate": "secre"}', '{"sqlstate": "SH001"}']::jsonb[]) error, idem_begin(error::text, scope => 'dead') o, idem_fail(o, error);
COMMIT;
SELECT cause, retryable, operations FROM idempotency_failures WHERE scope = 'dead' ORDER BY cause COLLATE "C", retryable;
SELECT f.cause, f.operations = idem_forget_failed('dead', 'each', f.cause) FROM (SELECT cause, sum(operations) AS operations FROM idempotency_failures WHERE scope = 'dead' GROUP BY 1) f ORDER BY f.cause COLLATE "C";
SELECT count(*) FROM idempotency_failures WHERE scope = 'dead';

-- Bad input.
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_forget_failed(NULL, ''r'')', 'SELECT idem_forget_failed('''', NULL)', 'SELECT idem_forget_failed('''', '''')', 'SELECT idem_forget_failed(repeat(''s'', 256), ''r'')',
	'SELECT idem_forget_failed('''', ''r'', max_rows => 0)', 'SELECT idem_forget_failed('''', ''r'', max_rows => NULL)']) s;
BEGIN READ ONLY;
SELECT idem_forget_failed('', 'r');
\echo :SQLSTATE
ROLLBACK;
DROP FUNCTION make_failures;
DELETE FROM idempotency_store;
DELETE FROM idempotency_forgotten;
