-- The owner's trigger on the store releases the very operation whose end fired it, and begins others.  The end stores the
-- request of its own operation.
CREATE FUNCTION pg_temp.begin_others() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_release(key => 'reenter-1');
	PERFORM idem_begin(key => 'reenter-other-' || n, request => '3') FROM generate_series(1, 20) n;
	RETURN NULL;
END
$$;
CREATE TRIGGER begin_others BEFORE INSERT ON idempotency_store FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.begin_others();
BEGIN;
SELECT answer(idem_begin(key => 'reenter-1', request => '2'));
SELECT FROM idem_complete(key => 'reenter-1');
SELECT request_hash = idem_fingerprint('2') FROM idempotency_store WHERE idempotency_key = 'reenter-1';
ROLLBACK;
DROP TRIGGER begin_others ON idempotency_store;

-- The same while a lease is extended.
CREATE FUNCTION pg_temp.release_this() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF new.idempotency_key = 'reenter-2' THEN
		PERFORM idem_release(key => new.idempotency_key, scope => new.scope, fence => new.fence);
		PERFORM idem_begin(key => 'reenter-other-' || n, request => '3') FROM generate_series(1, 20) n;
	END IF;
	RETURN NULL;
END
$$;
CREATE TRIGGER release_this AFTER UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION pg_temp.release_this();
BEGIN;
SELECT answer(idem_begin(key => 'reenter-2', request => '2', lease => '1 hour'));
SELECT idem_extend(key => 'reenter-2', lease => '1 hour') > now();
SELECT answer(idem_begin(key => 'reenter-2', request => '2'));
ROLLBACK;
DROP TRIGGER release_this ON idempotency_store;
