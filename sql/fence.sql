-- A fence is greater than that of every earlier attempt of its
-- operation, whatever happened to the sequence, or there is an error.

CREATE ROLE regress_idem_fence;
SELECT FROM idem_grant('regress_idem_fence');
SELECT last_value AS before FROM idempotency_fence \gset
CREATE FUNCTION pg_temp.lease(name text) RETURNS bigint LANGUAGE sql AS $$
	SELECT fence FROM idem_begin(key => name, lease => '1 hour')
$$;
GRANT EXECUTE ON FUNCTION pg_temp.lease TO regress_idem_fence;
-- an operation whose lease has run out, and a sequence that is far behind its fence
CREATE FUNCTION pg_temp.old_lease(name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	given bigint;
BEGIN
	PERFORM setval('idempotency_fence', 500 + nextval('idempotency_fence'));
	given := pg_temp.lease(name);
	PERFORM let_lease_run_out(name);
	PERFORM setval('idempotency_fence', given - 400);
	RETURN given;
END
$$;

-- A sequence that can give smaller numbers is refused, before it gives one.
SELECT pg_temp.lease('fence-1') AS fence1 \gset
ALTER SEQUENCE idempotency_fence CACHE 100;
SELECT raises_in_full($$SELECT pg_temp.lease('fence-2')$$);
SELECT nextval('idempotency_fence') AS cached \gset
-- an end needs no new fence, nor does a transaction
SELECT FROM idem_complete(key => 'fence-1', fence => :fence1);
BEGIN;
SELECT answer(idem_begin(key => 'fence-2')), idem_release(key => 'fence-2');
COMMIT;
ALTER SEQUENCE idempotency_fence CACHE 1;
SELECT pg_temp.lease('fence-2') > :fence1;
CREATE FUNCTION pg_temp.altered(how text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE 'ALTER SEQUENCE idempotency_fence ' || how;
	answer := raises_why($q$SELECT pg_temp.lease('fence-3')$q$);
	RAISE EXCEPTION '%', answer;
EXCEPTION WHEN raise_exception THEN
	RETURN how || ': ' || SQLERRM;
END
$$;
SELECT pg_temp.altered(how) FROM unnest(ARRAY['INCREMENT -1', 'CYCLE', 'MINVALUE -5', 'SET UNLOGGED']) how;
SELECT pg_temp.lease('fence-3') > :fence1;

-- Set back, or behind replicated rows: the next attempt has a greater fence than the last.
SELECT pg_temp.old_lease('fence-4') AS old \gset
SET ROLE regress_idem_fence;
SELECT pg_temp.lease('fence-4') > :old, current_user;
RESET ROLE;
-- and so has every later fence
SELECT pg_temp.lease('fence-5') > :old;
-- a rollback undoes nothing of that
SELECT pg_temp.old_lease('fence-6') AS old \gset
BEGIN;
SELECT pg_temp.lease('fence-6') > :old;
ROLLBACK;
SELECT last_value > :old FROM idempotency_fence;

-- When the row loses its fence, the sequence catches up with it: a transaction takes the operation over ...
SELECT pg_temp.old_lease('fence-7') AS old \gset
SET ROLE regress_idem_fence;
SELECT answer(idem_begin(key => 'fence-7')), idem_fail(key => 'fence-7', retryable => true);
SELECT pg_temp.lease('fence-7') > :old;
RESET ROLE;
-- ... its attempts are exhausted ...
SELECT pg_temp.old_lease('fence-8') AS old \gset
SET ROLE regress_idem_fence;
SELECT answer(idem_begin(key => 'fence-8', max_attempts => 1));
RESET ROLE;
SELECT FROM let_expire('fence-8');
SELECT pg_temp.lease('fence-8') > :old;
-- ... the first attempt is released ...
SELECT pg_temp.old_lease('fence-9') AS old \gset
SET ROLE regress_idem_fence;
SELECT idem_release(key => 'fence-9', fence => :old);
SELECT pg_temp.lease('fence-9') > :old;
RESET ROLE;
-- ... or a later one, whose row has another fence then.
SELECT pg_temp.old_lease('fence-10') AS old \gset
UPDATE idempotency_store SET attempt = 2 WHERE idempotency_key = 'fence-10';
SELECT idem_release(key => 'fence-10', fence => :old);
SELECT fence > :old, attempt FROM idempotency_store WHERE idempotency_key = 'fence-10';
-- ... and before its record is collected: the first sweep lets the sequence catch up, the next one removes the record.
SELECT pg_temp.old_lease('fence-17') AS old \gset
SELECT FROM let_expire('fence-17');
SELECT idem_gc() >= 0, count(*) FROM idempotency_store WHERE idempotency_key = 'fence-17';
SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'fence-17';
SELECT idem_gc() > 0;
SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'fence-17';
SELECT pg_temp.lease('fence-17') > :old;
-- If the sequence is ahead, it does not change.
SELECT last_value FROM idempotency_fence \gset
SELECT pg_temp.lease('fence-11') = :last_value + 1;
SELECT FROM let_lease_run_out('fence-11');
SELECT pg_temp.lease('fence-11') = :last_value + 2;

-- No number is left: an error, never an overflow.
INSERT INTO idempotency_store (idempotency_key, status, attempt, expires_at, lease_expires_at, fence)
	SELECT 'fence-' || n, 'PENDING', 1, now() + interval '1 hour', now() - interval '1 s', 9223372036854775807 FROM generate_series(12, 14) n;
SELECT raises_in_full($$SELECT pg_temp.lease('fence-12')$$);
SELECT raises(s) FROM (VALUES ($$SELECT idem_begin(key => 'fence-12')$$), ($$SELECT idem_begin(key => 'fence-12', max_attempts => 1)$$),
	($$SELECT idem_release(key => 'fence-12', fence => 9223372036854775807)$$)) v(s);
UPDATE idempotency_store SET attempt = 2 WHERE idempotency_key = 'fence-13';
SELECT raises($$SELECT idem_release(key => 'fence-13', fence => 9223372036854775807)$$);
-- its owner can end it, and the end keeps the fence
SELECT FROM idem_complete(key => 'fence-14', fence => 9223372036854775807);
SELECT fence, answer(idem_lookup(key => 'fence-14')) FROM idempotency_store WHERE idempotency_key = 'fence-14';
-- the end of a sequence with a smaller MAXVALUE
SELECT pg_temp.old_lease('fence-15') AS old \gset
CREATE FUNCTION pg_temp.ends_at(most bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('ALTER SEQUENCE idempotency_fence MAXVALUE %s', most);
END
$$;
SELECT FROM pg_temp.ends_at(:old);
SELECT left(raises($$SELECT pg_temp.lease('fence-15')$$), 5), fence = :old FROM idempotency_store WHERE idempotency_key = 'fence-15';
SELECT setval('idempotency_fence', :old) = :old, raises($$SELECT pg_temp.lease('fence-16')$$) ~ '^2200H: nextval: reached maximum value of sequence';
ALTER SEQUENCE idempotency_fence NO MAXVALUE;
SELECT pg_temp.lease('fence-15') > :old, pg_temp.lease('fence-16') > :old;

DELETE FROM idempotency_store WHERE idempotency_key ~ '^fence-';
SELECT setval('idempotency_fence', :before) = :before;
DROP OWNED BY regress_idem_fence;
DROP ROLE regress_idem_fence;
