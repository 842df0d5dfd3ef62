-- No message, detail, hint or context repeats a request or a response.
-- All texts of an error, while the statement itself does not contain the secret.
CREATE TEMP TABLE secret AS SELECT '{"card": "s3cret"}'::jsonb AS j, 's3cret'::bytea AS b;
CREATE FUNCTION pg_temp.leaks(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
	context text;
	relation text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
		context = PG_EXCEPTION_CONTEXT, relation = TABLE_NAME;
	RETURN sqlstate || CASE WHEN concat(message, detail, hint, context, relation) ~ 's3cret|733363726574' THEN ' leaks' ELSE ' shows nothing' END;
END
$$;
-- the control: the function finds a secret
SELECT pg_temp.leaks('DO $do$ BEGIN RAISE ''%'', (SELECT j FROM secret); END $do$');

-- Mismatch: the message has neither the stored request and response nor the new request.
BEGIN;
SELECT answer(idem_begin('leak-1', request => j)) FROM secret;
SELECT idem_complete('leak-1', j, headers => j, body => b) FROM secret;
SELECT fence FROM idem_begin('leak-2', request => '1', lease => '1 hour') \gset
SELECT answer(idem_begin('leak-3'));
SELECT pg_temp.leaks(s) FROM (VALUES ('SELECT idem_begin(''leak-1'', request => ''1'')'), ('SELECT idem_begin(''leak-1'', request_hash => sha256(b)) FROM secret'),
	('SELECT idem_begin(''leak-2'', request => j) FROM secret'), ('SELECT idem_begin(''leak-4'', request => j, request_hash => b) FROM secret'),
	('SELECT idem_begin(''leak-4'', request_hash => b) FROM secret')) v(s);
-- it does not have the stored fingerprint either
SELECT raises_in_full('SELECT idem_begin(''leak-1'', request => ''1'')') ~ encode(idem_fingerprint(j), 'hex') FROM secret;
-- not owned, lost, and arguments that are wrong
SELECT pg_temp.leaks(s) FROM (VALUES ('SELECT idem_complete(''leak-4'', j, headers => j, body => b) FROM secret'), ('SELECT idem_fail(''leak-4'', j, headers => j, body => b) FROM secret'),
	('SELECT idem_complete(''leak-2'', j, headers => j, body => b, fence => 9223372036854775807) FROM secret'),
	('SELECT idem_complete(''leak-3'', j, headers => j, body => b, retention => ''-1 s'') FROM secret'),
	('SELECT idem_fail(''leak-3'', j, headers => j, body => b, retry_after => ''1 s'') FROM secret')) v(s);
SET LOCAL idempotency.max_response_size = 1;
SELECT pg_temp.leaks(s) FROM (VALUES ('SELECT idem_complete(''leak-3'', j) FROM secret'), ('SELECT idem_complete(''leak-3'', headers => j) FROM secret'),
	('SELECT idem_fail(''leak-3'', body => b) FROM secret')) v(s);
SET LOCAL idempotency.max_response_size TO DEFAULT;
-- a handler's error stays as it is; idem_call adds nothing to it
CREATE FUNCTION leak_handler(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'declined' USING ERRCODE = '40001'; END $$;
SELECT pg_temp.leaks('SELECT idem_call(''leak_handler(jsonb)'', ''leak-5'', j) FROM secret'),
	pg_temp.leaks('SELECT idem_call(''leak_handler(jsonb)'', ''leak-5'', j, record_failure => false) FROM secret'),
	pg_temp.leaks('SELECT idem_call(''upper(text)'', ''leak-5'', j) FROM secret');

-- Constraints that the owner adds to the store print the failing row; not in our calls.
SAVEPOINT a;
ALTER TABLE idempotency_store ADD CHECK (response_code < 600) NOT VALID;
SELECT pg_temp.leaks(s) FROM (VALUES ('SELECT idem_complete(''leak-3'', j, code => 600) FROM secret'),
	('SELECT idem_complete(''leak-2'', j, headers => j, body => b, code => 600) FROM secret'), ('SELECT idem_fail(''leak-3'', body => b, code => 600) FROM secret')) v(s);
ROLLBACK TO a;
ALTER TABLE idempotency_store ALTER response_code SET DEFAULT 0, ADD tenant text;
ALTER TABLE idempotency_store ADD CHECK (tenant IS NOT NULL) NOT VALID;
SELECT pg_temp.leaks('SELECT idem_complete(''leak-3'', j) FROM secret');
ROLLBACK TO a;
CREATE UNIQUE INDEX ON idempotency_store ((response_payload ->> 'card'));
SELECT pg_temp.leaks('SELECT idem_complete(''leak-3'', j) FROM secret');
ROLLBACK TO a;
ALTER TABLE idempotency_store ADD EXCLUDE USING btree (response_body WITH =) WHERE (idempotency_key LIKE 'leak-%');
SELECT pg_temp.leaks('SELECT idem_complete(''leak-3'', body => b) FROM secret');
ROLLBACK TO a;
-- nor does a view that a rule or a trigger of the owner's writes to
CREATE TABLE leak_copy (name text, payload jsonb);
CREATE VIEW leak_view AS SELECT * FROM leak_copy WHERE name <> 'leak-3' WITH CHECK OPTION;
CREATE RULE leak_copied AS ON INSERT TO idempotency_store DO ALSO INSERT INTO leak_view VALUES (new.idempotency_key, new.response_payload);
SELECT pg_temp.leaks('SELECT idem_complete(''leak-3'', j) FROM secret');
ROLLBACK;
-- The refusal of COMMIT has only the name of the operation.
BEGIN;
SELECT answer(idem_begin('leak-6', request => j)) FROM secret;
COMMIT;
-- Names are no secrets: messages have them, whatever their characters.
SELECT raises($$SELECT idem_complete('100%s "quoted" \', scope => '%n')$$);
