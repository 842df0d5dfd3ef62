-- Which kinds of table the store may be. It must ensure one row per operation:
-- any other table is refused at the first use, and not later.
BEGIN;
SELECT answer(idem_begin('key-done')), idem_complete('key-done', '1');
COMMIT;
CREATE PROCEDURE key_refused(change text) LANGUAGE plpgsql AS $$
DECLARE
	call text;
	seen text[];
BEGIN
	-- of the tests before
	DELETE FROM idempotency_store WHERE idempotency_key NOT LIKE 'key-%';
	EXECUTE change;
	FOREACH call IN ARRAY ARRAY['SELECT idem_begin(''key-new'')', 'SELECT idem_begin(''key-done'')', 'SELECT idem_lookup(''key-done'')', 'SELECT idem_begin(''key-leased'', lease => ''1 hour'')', 'SELECT idem_gc()'] LOOP
		seen := seen || raises_in_full(call);
	END LOOP;
	RAISE NOTICE '  % of % calls: %', cardinality(array_positions(seen, seen[1])), cardinality(seen), regexp_replace(seen[1], '\n  HINT.*', '');
	ROLLBACK;
END
$$;
-- another table in its place
CREATE FUNCTION key_store(definition text) RETURNS text LANGUAGE sql AS $$
	SELECT format('ALTER TABLE idempotency_store RENAME TO key_old; ALTER INDEX idempotency_store_pkey RENAME TO key_old_pkey; '
		'CREATE TABLE idempotency_store (LIKE key_old INCLUDING DEFAULTS, %s; INSERT INTO idempotency_store TABLE key_old', definition)
$$;
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey');
BEGIN;
ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey;
SELECT raises_in_full('SELECT idem_begin(''key-done'')');
ROLLBACK;
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD UNIQUE (scope, idempotency_key)');
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (scope, idempotency_key) DEFERRABLE');
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (scope, idempotency_key, attempt)');
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (idempotency_key)');
CALL key_refused('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (idempotency_key, attempt)');
CALL key_refused(key_store('PRIMARY KEY (scope, idempotency_key)); ALTER TABLE idempotency_store ALTER idempotency_key TYPE text COLLATE "default"'));
CALL key_refused(key_store('PRIMARY KEY (scope, idempotency_key)); ALTER TABLE idempotency_store ALTER scope TYPE text COLLATE "POSIX"'));
CALL key_refused(key_store('PRIMARY KEY (scope, idempotency_key, expires_at)) PARTITION BY RANGE (expires_at); CREATE TABLE key_part PARTITION OF idempotency_store DEFAULT'));
CALL key_refused(key_store('PRIMARY KEY (scope, idempotency_key)) PARTITION BY HASH (scope); CREATE UNLOGGED TABLE key_part PARTITION OF idempotency_store FOR VALUES WITH (MODULUS 1, REMAINDER 0)'));
-- tables that inherit, without such a key, or with children of their own
CALL key_refused('CREATE TABLE key_child () INHERITS (idempotency_store); INSERT INTO key_child SELECT * FROM ONLY idempotency_store WHERE idempotency_key = ''key-done''');
CALL key_refused('CREATE TABLE key_child (LIKE idempotency_store INCLUDING ALL); ALTER TABLE key_child INHERIT idempotency_store; CREATE TABLE key_grandchild (LIKE idempotency_store INCLUDING ALL) INHERITS (key_child)');
CALL key_refused('CREATE TABLE key_child () INHERITS (idempotency_store); CREATE INDEX ON idempotency_store (expires_at)');

-- A key of exactly these columns is accepted, in every form.
CREATE PROCEDURE key_taken(change text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE change;
	RAISE NOTICE '  %, %', answer(idem_begin('key-done')), answer(idem_begin('key-leased', lease => '1 hour'));
	PERFORM idem_complete('key-leased', '2', fence => (SELECT fence FROM idempotency_store WHERE idempotency_key = 'key-leased'));
	RAISE NOTICE '  %', answer(idem_lookup('key-leased'));
	ROLLBACK;
END
$$;
CALL key_taken('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (idempotency_key, scope)');
CALL key_taken('ALTER TABLE idempotency_store DROP CONSTRAINT idempotency_store_pkey, ADD PRIMARY KEY (scope, idempotency_key) INCLUDE (status)');
CALL key_taken(key_store('PRIMARY KEY (scope, idempotency_key)) PARTITION BY LIST (scope); CREATE TABLE key_part PARTITION OF idempotency_store DEFAULT'));
CALL key_taken('CREATE TABLE key_child () INHERITS (idempotency_store); ALTER TABLE key_child NO INHERIT idempotency_store');
CALL key_taken('CREATE TABLE key_child () INHERITS (idempotency_store); DROP TABLE key_child');
-- so is a table that inherits and has such a key of its own, as those of a ring
CALL key_taken('CREATE TABLE key_child (LIKE idempotency_store INCLUDING ALL); ALTER TABLE key_child INHERIT idempotency_store; WITH moved AS (DELETE FROM ONLY idempotency_store RETURNING *) INSERT INTO key_child SELECT * FROM moved');

-- A partition that becomes UNLOGGED after sessions have used it.
BEGIN;
DO $$BEGIN EXECUTE key_store('PRIMARY KEY (scope, idempotency_key)) PARTITION BY LIST (scope); CREATE TABLE key_part PARTITION OF idempotency_store DEFAULT'); END$$;
SELECT answer(idem_begin('key-done'));
ALTER TABLE key_part SET UNLOGGED;
SELECT raises_in_full('SELECT idem_begin(''key-done'')');
ROLLBACK;

-- A key of that name on another table does not belong to the store: its violation is reported unchanged.
CREATE SCHEMA key_elsewhere;
CREATE TABLE key_elsewhere.idempotency_store (n int CONSTRAINT idempotency_store_pkey PRIMARY KEY);
CREATE SCHEMA key_further;
CREATE TABLE key_further.mine (n int CONSTRAINT idempotency_store_pkey PRIMARY KEY);
INSERT INTO key_elsewhere.idempotency_store VALUES (1);
INSERT INTO key_further.mine VALUES (1);
CREATE FUNCTION key_violate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF new.response_payload IS NOT NULL THEN
		EXECUTE new.response_payload ->> 0;
	END IF;
	RETURN new;
END
$$;
CREATE TRIGGER key_violate BEFORE INSERT ON idempotency_store FOR EACH ROW EXECUTE FUNCTION key_violate();
BEGIN;
SELECT answer(idem_begin('key-violated'));
SELECT raises(format('SELECT idem_complete(''key-violated'', to_jsonb(%L::text))', s)) FROM unnest(ARRAY[
	'INSERT INTO key_elsewhere.idempotency_store VALUES (1)', 'INSERT INTO key_further.mine VALUES (1)',
	'INSERT INTO idempotency_store (idempotency_key, expires_at, status) VALUES (''key-done'', now(), ''COMPLETED'')']) s;
ROLLBACK;
DROP TRIGGER key_violate ON idempotency_store;
DROP FUNCTION key_violate();
SET client_min_messages = warning;
DROP SCHEMA key_elsewhere, key_further CASCADE;
SELECT answer(idem_begin('key-done'));
DELETE FROM idempotency_store WHERE idempotency_key LIKE 'key-%';
DROP PROCEDURE key_refused(text), key_taken(text);
DROP FUNCTION key_store(text);
