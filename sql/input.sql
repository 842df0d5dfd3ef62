-- Arguments of functions. Every wrong one is ID400.

CREATE FUNCTION pg_temp.handle(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';

-- Keys and scopes in every function that takes them: NULL, empty, too long, huge.
SELECT string_agg(f, ', ' ORDER BY f COLLATE "C"), (SELECT string_agg(left(raises('SELECT ' || replace(f, '?', bad)), 5), ' ')
	FROM unnest(ARRAY['NULL', '''''', 'repeat(''k'', 256)', 'repeat(''k'', 10000000)']) bad)
FROM (VALUES ('idem_begin(?)'), ('idem_begin(?, lease => ''1 s'')'), ('idem_complete(?)'), ('idem_complete(?, fence => 9223372036854775807)'),
	('idem_fail(?)'), ('idem_release(?)'), ('idem_release(?, fence => 9223372036854775807)'), ('idem_extend(?, ''1 s'')'), ('idem_lookup(?)'),
	('idem_call(''pg_temp.handle(jsonb)'', ?)')) v(f) GROUP BY 2;
SELECT string_agg(f, ', ' ORDER BY f COLLATE "C"), (SELECT string_agg(left(raises('SELECT ' || replace(f, '?', bad)), 5), ' ')
	FROM unnest(ARRAY['NULL', 'repeat(''s'', 256)', 'repeat(''s'', 10000000)']) bad)
FROM (VALUES ('idem_begin(''k'', scope => ?)'), ('idem_complete(''k'', scope => ?)'), ('idem_fail(''k'', scope => ?)'),
	('idem_release(''k'', ?)'), ('idem_extend(''k'', ''1 s'', ?)'), ('idem_lookup(''k'', ?)'),
	('idem_call(''pg_temp.handle(jsonb)'', ''k'', scope => ?)')) v(f) GROUP BY 2;
SELECT raises('SELECT idem_begin(NULL)'), raises('SELECT idem_begin('''')'), raises('SELECT idem_begin(repeat(''k'', 256))'),
	raises('SELECT idem_begin(''k'', scope => NULL)'), raises('SELECT idem_begin(''k'', scope => repeat(''s'', 256))');

-- 255 characters, a blank, quotes, backslashes, letter case: ordinary names,
-- compared byte by byte.
CREATE TEMP TABLE names AS
SELECT n, name FROM unnest(ARRAY[repeat('k', 255), repeat('k', 254) || 'l', ' ', '  ', E'\t', E'\n', '''', '"', '\', '\\', '$1', '%s',
	'A', 'a', 'a ', 'NULL', '{a}', 'x''; DROP TABLE idempotency_store; --']) WITH ORDINALITY u(name, n);
BEGIN;
SELECT DISTINCT answer(idem_begin(name, scope => scope)) FROM names, unnest(ARRAY['', name]) scope;
SELECT count(idem_complete(name, to_jsonb(n), scope)::text) FROM names, unnest(ARRAY['', name]) scope;
COMMIT;
SELECT count(*), bool_and(o.response_payload = to_jsonb(n)), bool_and(o.idempotency_key = name), bool_and(o.scope = s)
FROM names, unnest(ARRAY['', name]) s, idem_begin(name, scope => s) o;
-- a key must be text without NUL
SELECT left(raises('SELECT idem_begin(chr(0))'), 5), left(raises($$SELECT idem_begin(E'\000')$$), 5);

-- Durations: lease, wait, retention, retry_after, the extension of a lease.
SELECT fence FROM idem_begin('input-leased', lease => '1 hour') \gset
BEGIN;
SELECT answer(idem_begin('input-1'));
SELECT raises(format(s, d)) FROM (VALUES
	(1, 'SELECT idem_begin(''input-2'', lease => %L)'), (2, 'SELECT idem_begin(''input-2'', wait => %L)'),
	(3, 'SELECT idem_complete(''input-1'', retention => %L)'), (4, 'SELECT idem_fail(''input-1'', retention => %L)'),
	(5, 'SELECT idem_fail(''input-1'', retryable => true, retry_after => %L)'),
	(6, 'SELECT idem_call(''pg_temp.handle(jsonb)'', ''input-2'', wait => %L)'),
	(7, 'SELECT idem_call(''pg_temp.handle(jsonb)'', ''input-2'', retention => %L)'),
	(8, 'SELECT idem_extend(''input-leased'', %L, fence => ' || :'fence' || ')')) v(n, s),
	(VALUES (1, '-1 s'), (2, '1 month -31 days'), (3, '178000000 years')) w(m, d) ORDER BY n, m;
SELECT raises(s) FROM (VALUES ('SELECT idem_begin(''input-2'', lease => ''0'')'), ('SELECT idem_begin(''input-2'', wait => NULL)'),
	('SELECT idem_complete(''input-1'', retention => ''0'')'), ('SELECT idem_extend(''input-leased'', ''0'', fence => 9223372036854775807)'),
	('SELECT idem_extend(''input-leased'', NULL, fence => 9223372036854775807)'),
	('SELECT idem_call(''pg_temp.handle(jsonb)'', ''input-2'', wait => NULL)')) v(s);
-- Beyond the calendar, and too long to be intended
SELECT raises(format(s, d)) FROM (VALUES (1, '106751990 days'), (2, '36500 days 1 microsecond')) w(m, d), (VALUES ('SELECT idem_begin(''input-2'', lease => %L)'),
	('SELECT idem_begin(''input-2'', wait => %L)'),
	('SELECT idem_complete(''input-1'', retention => %L)'),
	('SELECT idem_fail(''input-1'', retryable => true, retry_after => %L)'),
	('SELECT idem_extend(''input-leased'', %L, fence => ' || :'fence' || ')')) v(s) ORDER BY m, s;
-- infinite intervals are there from 17 on; before, the type refuses them
SELECT bool_and(left(raises(s), 5) = CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'ID400' ELSE '22007' END)
FROM (VALUES ('SELECT idem_begin(''input-2'', lease => ''infinity'')'), ('SELECT idem_begin(''input-2'', wait => ''infinity'')'),
	('SELECT idem_begin(''input-2'', wait => ''-infinity'')'), ('SELECT idem_complete(''input-1'', retention => ''infinity'')'),
	('SELECT idem_fail(''input-1'', retryable => true, retry_after => ''infinity'')'),
	('SELECT idem_extend(''input-leased'', ''infinity'', fence => ' || :'fence' || ')')) v(s);
-- nothing of all this ended or began anything
SELECT answer(idem_lookup('input-1')), idem_lookup('input-2') IS NULL;
-- very long and very short ones are fine
SELECT answer(idem_begin('input-3', lease => '36500 days', wait => '36500 days')), (idem_begin('input-4', lease => '1 day -23:59:59.999999')).outcome;
ROLLBACK;

-- Fences, counts, flags.
SELECT raises(s) FROM (VALUES ('SELECT idem_complete(''k'', fence => 0)'), ('SELECT idem_fail(''k'', fence => -1)'),
	('SELECT idem_release(''k'', fence => 0)'), ('SELECT idem_extend(''k'', ''1 s'', fence => -9223372036854775808)'),
	('SELECT idem_begin(''k'', max_attempts => -1)'), ('SELECT idem_fail(''k'', retryable => NULL)'),
	('SELECT idem_fail(''k'', retry_after => ''1 s'')'),
	('SELECT idem_call(''pg_temp.handle(jsonb)'', ''k'', record_failure => NULL)'), ('SELECT idem_call(NULL, ''k'')')) v(s);
-- jsonb itself refuses \u0000 and text that is not JSON.
SELECT left(raises(s), 5) FROM (VALUES ('SELECT idem_begin(''k'', request => ''"\u0000"'')'), ('SELECT idem_complete(''k'', ''{'')')) v(s);

-- Responses at the limit and over: payload, headers and body count together.
SET idempotency.max_response_size = '100B';
BEGIN;
SELECT answer(idem_begin('input-6')), answer(idem_begin('input-7')), answer(idem_begin('input-8', lease => '1 hour'));
SELECT raises(s) FROM (VALUES ('SELECT idem_complete(''input-6'', body => decode(repeat(''00'', 101), ''hex''))'),
	('SELECT idem_fail(''input-6'', body => decode(repeat(''00'', 101), ''hex''))'),
	('SELECT idem_complete(''input-8'', body => decode(repeat(''00'', 101), ''hex''))')) v(s);
SELECT left(raises(s), 5) FROM (VALUES ('SELECT idem_complete(''input-6'', to_jsonb(repeat(''x'', 100)))'),
	('SELECT idem_complete(''input-6'', headers => to_jsonb(repeat(''x'', 100)))'),
	('SELECT idem_complete(''input-6'', ''1'', body => decode(repeat(''00'', 99), ''hex''))'),
	('SELECT idem_complete(''input-6'', headers => ''1'', body => decode(repeat(''00'', 99), ''hex''))')) v(s);
SELECT idem_complete('input-6', body => decode(repeat('00', 100), 'hex')), idem_fail('input-7', body => decode(repeat('ff', 100), 'hex'));
COMMIT;
SELECT length(response_body) FROM idem_begin('input-6');
RESET idempotency.max_response_size;
