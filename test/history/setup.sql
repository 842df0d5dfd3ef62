-- Lists that operations append to and read, and the handler of idem_call. No constraint
-- keeps an operation from appending twice: that is the extension's task here.
CREATE EXTENSION idempotency;
CREATE EXTENSION amcheck;

CREATE TABLE list (id int PRIMARY KEY, elements bigint[] NOT NULL);

-- Executions by the handler; clients number their own below that.
CREATE SEQUENCE run START 8388608;

CREATE FUNCTION append(list int, element bigint) RETURNS void LANGUAGE sql
BEGIN ATOMIC
	INSERT INTO list VALUES (list, ARRAY[element])
	ON CONFLICT (id) DO UPDATE SET elements = list.elements || element;
END;

-- An element is made as plan.py makes it.
CREATE FUNCTION execute(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	run bigint := nextval('run');
	reads jsonb := '[]';
	step record;
BEGIN
	FOR step IN SELECT value ->> 0 AS kind, (value ->> 1)::int AS list, ordinality - 1 AS index
		FROM jsonb_array_elements(request -> 'steps') WITH ORDINALITY ORDER BY ordinality
	LOOP
		IF step.kind = 'append' THEN
			PERFORM append(step.list, ((((request ->> 'number')::bigint << 24) | run) << 3) | step.index);
		ELSE
			reads := reads || jsonb_build_array(coalesce(
				(SELECT to_jsonb(elements) FROM list WHERE id = step.list), '[]'));
		END IF;
		PERFORM pg_sleep((request ->> 'pause')::float8);
	END LOOP;
	IF (request ->> 'declined')::boolean THEN
		RAISE 'declined' USING ERRCODE = 'P0402', DETAIL = run;
	END IF;
	RETURN jsonb_build_object('run', run, 'reads', reads);
END
$$;

-- For a trigger on the store, which comes and goes.
CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';

ALTER ROLE client SET enable_seqscan = off;
ALTER ROLE client SET lock_timeout = '4s';
ALTER ROLE client SET statement_timeout = '15s';
GRANT ALL ON list TO client;
GRANT ALL ON SEQUENCE run TO client;
SELECT idem_grant('client');
