-- Isolation levels, read-only transactions, and code that runs as another user.

-- One session sees its own operations at every level.
CREATE FUNCTION pg_temp.life(name text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN NEXT answer(idem_begin(name));
	PERFORM idem_fail(name, '1', retryable => true);
	RETURN NEXT answer(idem_begin(name));
	PERFORM idem_complete(name, '2');
	RETURN NEXT answer(idem_begin(name));
	RETURN NEXT answer(idem_lookup(name));
	RETURN NEXT answer(idem_begin(name, scope => 'leased', lease => '1 hour'));
	PERFORM idem_extend(name, '2 hours', 'leased');
	PERFORM idem_complete(name, '3', 'leased');
	RETURN NEXT answer(idem_begin(name, scope => 'leased'));
	RETURN NEXT answer(idem_call('levels_echo(jsonb)', name, '4', 'call'));
	RETURN NEXT answer(idem_call('levels_echo(jsonb)', name, '4', 'call'));
END
$$;
CREATE FUNCTION levels_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.life('levels-1');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT pg_temp.life('levels-2') AS lived INTO TEMP levels_serializable;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
-- what was committed before is replayed, and taken over
SELECT answer(idem_begin('levels-1')), answer(idem_begin('levels-2', scope => 'leased'));
ROLLBACK;
BEGIN;
SELECT pg_temp.life('levels-3') EXCEPT SELECT lived FROM levels_serializable;
ROLLBACK;

-- Read-only: every function that could change a record is refused, whatever its answer would be.
BEGIN READ ONLY;
SELECT raises(s) FROM (VALUES ('SELECT idem_begin(''levels-4'')'), ('SELECT idem_begin(''levels-1'')'), ('SELECT idem_begin(''levels-4'', lease => ''1 s'')'),
	('SELECT idem_complete(''levels-4'')'), ('SELECT idem_complete(''levels-4'', fence => 1)'), ('SELECT idem_complete(idem_lookup(''levels-1''))'),
	('SELECT idem_fail(''levels-4'')'), ('SELECT idem_fail(idem_lookup(''levels-1''))'), ('SELECT idem_release(''levels-4'', fence => 1)'), ('SELECT idem_extend(''levels-4'', ''1 s'', fence => 1)'),
	('SELECT idem_call(''levels_echo(jsonb)'', ''levels-1'')')) v(s);
-- but idem_lookup works, and functions that only compute work
SELECT answer(idem_lookup('levels-1')), idem_lookup('levels-4') IS NULL, idem_step_key('k', 's'), length(idem_fingerprint('1'));
COMMIT;
SELECT answer(idem_lookup('levels-1')) = (SELECT answer(idem_begin('levels-1')));

-- Inside a security-restricted operation a privileged user runs code
-- of others without knowing it: refused.
CREATE TABLE levels_table (n int);
INSERT INTO levels_table VALUES (1);
CREATE FUNCTION levels_run(n int, statement text) RETURNS int LANGUAGE plpgsql IMMUTABLE SET search_path = public AS $$
BEGIN
	EXECUTE statement;
	RETURN n;
END
$$;
SELECT raises(format('CREATE INDEX ON levels_table (levels_run(n, %L))', s)) FROM (VALUES
	('SELECT idem_begin(''levels-5'')'), ('SELECT idem_begin(''levels-5'', lease => ''1 hour'')'), ('SELECT idem_complete(''levels-5'', fence => 1)'),
	('SELECT idem_fail(''levels-5'', fence => 1)'), ('SELECT idem_release(''levels-5'', fence => 1)'), ('SELECT idem_extend(''levels-5'', ''1 s'', fence => 1)'),
	('SELECT idem_call(''levels_echo(jsonb)'', ''levels-5'')')) v(s);
CREATE MATERIALIZED VIEW levels_view AS SELECT public.levels_run(n, 'SELECT 1') AS n FROM levels_table WITH NO DATA;
CREATE MATERIALIZED VIEW levels_queue AS SELECT public.levels_run(n, 'SELECT idem_begin(''levels-5'', lease => ''1 hour'')') AS n FROM levels_table WITH NO DATA;
SELECT raises('REFRESH MATERIALIZED VIEW levels_view'), raises('REFRESH MATERIALIZED VIEW levels_queue');
SELECT idem_lookup('levels-5') IS NULL;
-- the same function works outside of one
SELECT levels_run(1, 'SELECT idem_begin(''levels-6'', lease => ''1 hour'')'), answer(idem_lookup('levels-6'));

-- Two functions are immutable: an index can be built on them.
CREATE TABLE levels_index (request jsonb, step text);
CREATE INDEX ON levels_index (idem_fingerprint(request), idem_step_key('key', step));
DROP TABLE levels_index;
