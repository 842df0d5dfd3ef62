-- idem_forget: removes the record of an operation, so that it may run again.

-- Operations that have ended, permanently or retryably, and released ones.
SELECT answer(idem_begin(key => 'forget-1', request => '1')), answer(idem_begin(key => 'forget-2')), answer(idem_begin(key => 'forget-3', scope => 'forget')),
	idem_complete(key => 'forget-1', response => '"done"'), idem_fail(key => 'forget-2'), idem_fail(key => 'forget-3', scope => 'forget', retryable => true);
SELECT idem_forget(key => 'forget-1'), idem_forget(key => 'forget-1'), idem_lookup(key => 'forget-1') IS NULL;
SELECT idem_forget('forget-3'), idem_forget('forget-3', 'forget'), idem_forget(key => 'forget-2');
-- the operation may run again, with another request, and as if never begun
SELECT answer(idem_begin(key => 'forget-1', request => '2')), answer(idem_begin(key => 'forget-3', scope => 'forget')),
	idem_complete(key => 'forget-1', response => '"again"'), idem_release(key => 'forget-3', scope => 'forget');
SELECT answer(idem_begin(key => 'forget-1'));
SELECT idem_forget(key => 'forget-none');

-- An operation with a running lease has an owner; after the lease it has none.
SELECT fence FROM idem_begin(key => 'forget-4', lease => '1 hour') \gset
SELECT regexp_replace(raises_in_full($$SELECT idem_forget(key => 'forget-4')$$), 'until .*\.', 'until ... .');
SELECT answer(idem_lookup(key => 'forget-4'));
SELECT FROM let_lease_run_out('forget-4');
SELECT idem_forget(key => 'forget-4');
SELECT raises_why(format($$SELECT idem_complete(key => 'forget-4', fence => %s)$$, :fence)), idem_release(key => 'forget-4', fence => :fence);
SELECT attempt, taken_over, fence > :fence FROM idem_begin(key => 'forget-4', lease => '1 hour');
-- If the sequence is behind, it catches up with the fence of a forgotten record
SELECT last_value AS before FROM idempotency_fence \gset
UPDATE idempotency_store SET fence = 1000000, lease_expires_at = now() - interval '1 s' WHERE idempotency_key = 'forget-4';
SELECT idem_forget(key => 'forget-4');
SELECT fence > 1000000 FROM idem_begin(key => 'forget-4', lease => '1 hour');
SELECT FROM let_lease_run_out('forget-4');
SELECT idem_forget(key => 'forget-4'), setval('idempotency_fence', :before) = :before;

-- An expired record counts as none, and is removed all the same.
SELECT FROM let_expire('forget-1');
SELECT idem_forget(key => 'forget-1'), count(*) FROM idempotency_store WHERE idempotency_key = 'forget-1';
SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'forget-1';

-- Operations that this transaction has begun or ended are refused.
BEGIN;
SELECT answer(idem_begin(key => 'forget-5')), answer(idem_begin(key => 'forget-6', lease => '1 hour'));
SELECT raises_in_full($$SELECT idem_forget(key => 'forget-5')$$), raises_why($$SELECT idem_forget(key => 'forget-6')$$);
SELECT idem_complete(key => 'forget-5'), idem_release(key => 'forget-6');
SELECT raises_why($$SELECT idem_forget(key => 'forget-5')$$), idem_forget(key => 'forget-6');
COMMIT;
-- forgotten and begun again in one transaction
BEGIN;
SELECT idem_forget(key => 'forget-5'), locks_held();
SELECT answer(idem_begin(key => 'forget-5')), idem_complete(key => 'forget-5', response => '"again"');
COMMIT;
SELECT answer(idem_begin(key => 'forget-5'));
-- undone by a rollback, and by a rollback to a savepoint
BEGIN;
SELECT idem_forget(key => 'forget-5');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT idem_forget(key => 'forget-5'), answer(idem_begin(key => 'forget-5'));
ROLLBACK TO a;
SELECT locks_held(), answer(idem_begin(key => 'forget-5'));
COMMIT;
-- without a record no lock is kept
BEGIN;
SELECT idem_forget(key => 'forget-none'), locks_held();
COMMIT;
-- a limit on locks counts it
BEGIN;
SET LOCAL idempotency.max_operations_per_transaction = 1;
SELECT idem_forget(key => 'forget-5');
SELECT left(raises($$SELECT idem_forget(key => 'forget-none')$$), 5);
ROLLBACK;

-- The owner's trigger runs as the owner, and not as the caller. If it suppresses the DELETE, nothing is forgotten.
CREATE FUNCTION forget_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'deleted by %', CASE WHEN current_user = (SELECT relowner::regrole::text FROM pg_class WHERE oid = TG_RELID) THEN 'the owner' ELSE current_user END;
	RETURN CASE WHEN TG_ARGV[0] = 'keep' THEN NULL ELSE OLD END;
END
$$;
CREATE ROLE regress_idem_forget;
GRANT EXECUTE ON FUNCTION idem_forget TO regress_idem_forget;
CREATE TRIGGER forget_guard BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION forget_guard('go');
BEGIN;
SET LOCAL ROLE regress_idem_forget;
SELECT idem_forget(key => 'forget-5'), current_user;
ROLLBACK;
DROP TRIGGER forget_guard ON idempotency_store;
CREATE TRIGGER forget_guard BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION forget_guard('keep');
SELECT left(raises($$SELECT idem_forget(key => 'forget-5')$$), 5);
DROP TRIGGER forget_guard ON idempotency_store;
DROP FUNCTION forget_guard;

-- Rights: not given by idem_grant, and claims hold.
SELECT idem_grant('regress_idem_forget'), idem_revoke('regress_idem_forget');
SET ROLE regress_idem_forget;
SELECT idem_forget(key => 'forget-5');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idem_forget FROM regress_idem_forget;
SELECT FROM idem_grant('regress_idem_forget');
SET ROLE regress_idem_forget;
SELECT raises($$SELECT idem_forget(key => 'forget-5')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem_forget TO regress_idem_forget;
CREATE ROLE regress_idem_forget_owner;
SELECT FROM idem_claim_scope('forget', 'regress_idem_forget_owner');
SET ROLE regress_idem_forget;
SELECT left(raises($$SELECT idem_forget(key => 'forget-3', scope => 'forget')$$), 5);
RESET ROLE;
SELECT idem_unclaim_scope('forget');
DROP OWNED BY regress_idem_forget;
DROP ROLE regress_idem_forget, regress_idem_forget_owner;

-- Bad input.
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_forget(NULL)', 'SELECT idem_forget('''')', 'SELECT idem_forget(''k'', NULL)', 'SELECT idem_forget(repeat(''k'', 256))',
	'SELECT idem_forget(''k'', repeat(''k'', 256))']) s;
BEGIN READ ONLY;
SELECT idem_forget('k');
\echo :SQLSTATE
ROLLBACK;
