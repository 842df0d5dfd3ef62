-- idem_call: the class of an error decides whether it is stored, and whether a retry runs the handler.
CREATE TABLE classes_run (state text);
CREATE SEQUENCE classes_runs;
CREATE FUNCTION classes_raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('classes_runs');	-- not undone
	INSERT INTO classes_run VALUES (request ->> 'state');
	RAISE EXCEPTION 'raised' USING ERRCODE = request ->> 'state';
END
$$;
-- The answers of a call and of its retry, and how often the handler ran.
CREATE FUNCTION classes_try(state text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answers text[];
BEGIN
	PERFORM setval('classes_runs', 1, false);
	FOR try IN 1 .. 2 LOOP
		BEGIN
			answers := answers || (SELECT outcome || CASE WHEN replayed THEN ' replayed' ELSE '' END || CASE WHEN response_payload ->> 'sqlstate' = state THEN '' ELSE ' of another error' END
				FROM idem_call('classes_raise(jsonb)', 'classes-' || state, jsonb_build_object('state', state)));
		EXCEPTION WHEN OTHERS OR assert_failure OR query_canceled THEN
			answers := answers || (CASE WHEN sqlstate = state THEN 'raised' ELSE sqlstate || ': ' || sqlerrm END);
		END;
	END LOOP;
	RETURN array_to_string(answers, ', ') || ' | ' || (SELECT last_value FROM classes_runs) || ' runs | '
		|| CASE WHEN idem_lookup('classes-' || state) IS NULL THEN 'nothing stored' ELSE 'stored' END;
END
$$;

-- Errors about the request: stored, and replayed without another run.
SELECT string_agg(state, ' ' ORDER BY state COLLATE "C"), classes_try(state) FROM unnest(ARRAY['21000', '22000', '22012', '22P02', '23000', '23505', '23514', '44000', 'P0000', 'P0001', 'P0002', 'P0003']) state GROUP BY 2;
-- the application's own classes, whatever their first character
SELECT string_agg(state, ' ' ORDER BY state COLLATE "C"), classes_try(state) FROM unnest(ARRAY['56000', '59000', '45000', '1A000', 'X0X00', 'ZZ999', 'PX001', 'I1400', 'IE000', 'H1000']) state GROUP BY 2;
-- Transient errors: raised again, nothing stored, the retry runs.
SELECT string_agg(state, ' ' ORDER BY state COLLATE "C"), classes_try(state) FROM unnest(ARRAY['08000', '08006', '40000', '40001', '40P01', '53000', '53100', '53200', '53400', '55000', '55006', '55P03', '57000', '57014', '57P01', '57P05',
	'58000', '58030', '58P01', '72000', 'XX000', 'XX001', 'XX002']) state GROUP BY 2;
-- Mistakes in the program or its set-up.
SELECT string_agg(state, ' ' ORDER BY state COLLATE "C"), classes_try(state) FROM unnest(ARRAY['00001', '01000', '02000', '03000', '09000', '0A000', '0B000', '0F000', '0L000', '0LP01', '0P000', '0Z000', '0Z002', '10608', '20000', '24000', '25000',
	'25006', '25P02', '26000', '27000', '28000', '28P01', '2B000', '2BP01', '2D000', '2F000', '2F005', '34000', '38000', '38004', '39000', '39P01', '3B000', '3B001', '3D000', '3F000', '42000', '42501',
	'42601', '42703', '42883', '42P01', '54000', '54001', 'F0000', 'F0001', 'HV000', 'HV00C', 'P0004']) state GROUP BY 2;
-- Our own: the handler got the error from one of these functions.
SELECT string_agg(state, ' ' ORDER BY state COLLATE "C"), classes_try(state) FROM unnest(ARRAY['ID400', 'ID403', 'ID404', 'ID409', 'ID413', 'ID421', 'ID422', 'ID428', 'ID999']) state GROUP BY 2;
-- no effects stay
SELECT count(*) FROM classes_run;

-- The same for errors that the server raises itself.
CREATE TABLE classes_rule (n int PRIMARY KEY CHECK (n > 0));
CREATE VIEW classes_view AS SELECT n FROM classes_rule WHERE n < 10 WITH CHECK OPTION;
CREATE FUNCTION classes_run(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN EXECUTE request ->> 0; RETURN ''"ran"''; END';
CREATE FUNCTION classes_told(request text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer idem_operation;
BEGIN
	answer := idem_call('classes_run(jsonb)', 'classes: ' || request, to_jsonb(request));
	RETURN answer.outcome || ' ' || (answer.response_payload ->> 'sqlstate');
EXCEPTION WHEN OTHERS OR assert_failure THEN
	RETURN 'raised ' || sqlstate || CASE WHEN idem_lookup('classes: ' || request) IS NULL THEN '' ELSE ' and stored' END;
END
$$;
SELECT statement, classes_told(statement) FROM (VALUES ('SELECT (SELECT n FROM generate_series(1, 2) n)'), ('SELECT 1 / 0'), ('SELECT ''x''::int'),
	('INSERT INTO classes_rule VALUES (0)'), ('INSERT INTO classes_rule VALUES (NULL)'), ('INSERT INTO classes_view VALUES (10)'),
	('DO $do$ BEGIN RAISE EXCEPTION ''declined''; END $do$'), ('DO $do$ DECLARE n int; BEGIN SELECT 1 INTO STRICT n WHERE false; END $do$'),
	('DO $do$ BEGIN ASSERT false; END $do$'), ('DO $do$ BEGIN CASE 1 WHEN 2 THEN NULL; END CASE; END $do$'), ('SELECT * FROM classes_none'), ('SELECT nonsense('), ('CREATE DATABASE classes_none'),
	('SET TRANSACTION ISOLATION LEVEL SERIALIZABLE'), ('ROLLBACK TO classes_none'), ('EXECUTE classes_none'), ('FETCH classes_none'), ('SELECT classes_none.f()'),
	('SELECT idem_begin('''')'), ('SELECT idem_complete(''classes-none'')'), ('SELECT idem_begin(''classes-22012'', ''{"other": "request"}'')')) v(statement);

-- record_failure => false: every error is raised.
SELECT state, left(raises(format('SELECT idem_call(''classes_raise(jsonb)'', ''classes-10'', jsonb_build_object(''state'', %L), record_failure => false)', state)), 5), idem_lookup('classes-10') IS NULL
FROM unnest(ARRAY['22012', 'P0001', '45000', '42P01', '40001']) state;
CREATE FUNCTION classes_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
-- after a raised error another try may succeed, and it is attempt 1
SELECT answer(idem_call('classes_echo(jsonb)', 'classes-42P01', '{"state": "42P01"}'));
