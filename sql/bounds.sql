-- Limits of one transaction: locks and memory.

-- A release that has to keep its lock still counts.
SET idempotency.max_operations_per_transaction = 3;
SELECT raises($q$DO $do$ BEGIN
	FOR i IN 1..10 LOOP
		PERFORM idem_begin('bounds-' || i);
		BEGIN
			PERFORM idem_release('bounds-' || i);
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
END $do$$q$);
-- So does an operation of another transaction that is ended by its fence.
CREATE TEMP TABLE bounds AS
SELECT n, (idem_begin('bounds-leased-' || n, lease => '1 hour')).fence FROM generate_series(1, 3) n;
SET idempotency.max_operations_per_transaction = 2;
SELECT raises($$SELECT idem_complete('bounds-leased-' || n, fence => fence) FROM bounds$$);
SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'bounds-leased-%' AND status = 'PENDING';
RESET idempotency.max_operations_per_transaction;

-- Released and rolled back operations cost no memory.
CREATE FUNCTION bounds_memory() RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN coalesce(sum(total_bytes), 0) < 65536 THEN 'little' ELSE 'much' END
	FROM pg_backend_memory_contexts WHERE name = 'idempotency operations'
$$;
BEGIN;
DO $$ BEGIN
	FOR i IN 1..20000 LOOP
		PERFORM idem_begin('bounds'), idem_release('bounds');
	END LOOP;
END $$;
SELECT bounds_memory(), locks_held();
DO $$ BEGIN
	FOR i IN 1..5000 LOOP
		BEGIN
			PERFORM idem_begin('bounds-' || i, request => to_jsonb(i)), 1 / 0;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT bounds_memory(), locks_held();
SELECT answer(idem_begin('bounds')), answer(idem_begin('bounds-1'));
ROLLBACK;

-- Locks on entities are refused inside a security-restricted operation.
CREATE FUNCTION bounds_lock(key text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	PERFORM idem_lock(ARRAY[key]);
	RETURN key;
END
$$;
CREATE TEMP TABLE bounds_indexed AS SELECT 'k' AS key;
SELECT raises('CREATE INDEX ON bounds_indexed (bounds_lock(key))');
SELECT locks_held();

DROP FUNCTION bounds_memory(), bounds_lock(text);
