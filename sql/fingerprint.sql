-- idem_fingerprint: equal exactly if the values are equal by jsonb's "=". idem_step_key.

CREATE TEMP TABLE value AS SELECT row_number() OVER () AS n, value FROM (VALUES
	('null'), ('true'), ('false'), ('0'), ('-0'), ('0.0'), ('1'), ('1.0'), ('1.00'), ('10'), ('1e1'), ('1E+1'), ('0.1e2'), ('-1'), ('-1.0'),
	('100'), ('1e2'), ('0.001'), ('1e-3'), ('0.0010'), ('1e100'), ('1' || repeat('0', 100)), ('1' || repeat('0', 100) || '.0'), ('1e-100'),
	('12345678901234567890123456789'), ('12345678901234567890123456789.0'), ('12345678901234567890123456788'), ('9007199254740993'), ('9007199254740992'),
	('0.1'), ('0.10'), ('0.1000000000000000055511151231257827'),
	('""'), ('"0"'), ('"1"'), ('"1.0"'), ('"null"'), ('"true"'), ('"a"'), ('"\u0061"'), ('"A"'), ('"ab"'), ('" a"'), ('"a "'), ('"\n"'), ('"\\n"'), ('"\u000a"'),
	('[]'), ('[[]]'), ('[[[]]]'), ('[[],[]]'), ('{}'), ('[{}]'), ('[{},{}]'), ('[null]'), ('[null,null]'), ('[true]'), ('[1]'), ('[1.0]'), ('[[1]]'), ('["1"]'), ('["a"]'), ('[""]'),
	('["a","b"]'), ('["b","a"]'), ('["ab"]'), ('["a",["b"]]'), ('[["a"],"b"]'), ('[["a","b"]]'), ('["a","b",[]]'), ('[1,2]'), ('[12]'), ('[1,[2]]'), ('[1, 2.0]'), ('[2,1]'),
	('{"a":null}'), ('{"a":1}'), ('{"a":1.0}'), ('{"a": 2, "a": 1}'), ('{"a":"1"}'), ('{"a":[1]}'), ('{"a":{}}'), ('{"a":[]}'), ('{"a":""}'), ('{"":"a"}'), ('{"a":"b"}'), ('{"b":"a"}'), ('[["a","b"]]'),
	('{"a":1,"b":2}'), ('{"b":2,"a":1}'), ('{"b":2.0,"a":1e0}'), ('{"a":2,"b":1}'), ('{"a":{"b":2}}'), ('{"a":{"b":2.00}}'), ('{"ab":2}'), ('{"a":"b","c":"d"}'), ('{"a":"b","cd":""}'),
	('{"aa":1,"b":2}'), ('{"b":2,"aa":1}'), ('{"a":[1,{"b":[2,{"c":null}]}]}'), ('{"a":[1.0,{"b":[2.0,{"c":null}]}]}'), ('{"a":[1,{"b":[2,{"c":false}]}]}'),
	('{"a":[1,{"b":[2],"c":null}]}')) v(text), LATERAL (SELECT text::jsonb AS value) j;
-- strings that contain the letters and marks of the canonical spelling
INSERT INTO value SELECT 200 + row_number() OVER (), to_jsonb(text) FROM unnest(ARRAY['r', 's', 'n', 'z', '[', ']', '{', '}', 'rz]', 'n1', E's\x01a', 's' || chr(1) || 'a', '["a"]', '{"a":1}']) text;
INSERT INTO value SELECT 300 + row_number() OVER (), jsonb_build_array(text) FROM unnest(ARRAY['r', 'rz]', ']', '"', '","', 'a","b', E'a\x01s']) text;
-- long ones, and one that is nested deeply
INSERT INTO value SELECT 400 + n, to_jsonb(repeat('x', n)) FROM unnest(ARRAY[255, 256, 65535, 65536, 1000000]) n;
INSERT INTO value SELECT 500 + n, (repeat('[', n) || repeat(']', n))::jsonb FROM unnest(ARRAY[999, 1000]) n;
SELECT count(*), bool_and(length(idem_fingerprint(value)) = 32), count(DISTINCT value), count(DISTINCT idem_fingerprint(value)) FROM value;
-- every pair for which "=" and the fingerprint differ: there must be none
SELECT a.value, b.value FROM value a JOIN value b ON a.n < b.n
WHERE (a.value = b.value) <> (idem_fingerprint(a.value) = idem_fingerprint(b.value));
-- a value from a table, compressed or out of line, is the same as a literal
CREATE TEMP TABLE stored (v jsonb);
INSERT INTO stored SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 1000) n;
SELECT idem_fingerprint(v) = idem_fingerprint((SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 1000) n)) FROM stored;
SELECT idem_fingerprint(v -> 5) = idem_fingerprint(to_jsonb(md5('6'))) FROM stored;
SELECT idem_fingerprint(NULL) IS NULL;
-- Stored fingerprints are compared by later versions, so the spelling is fixed:
-- a letter for each token, strings and numbers with their length, numbers as
-- digits and exponent.
SELECT idem_fingerprint('1.50') = sha256('rn\000\000\000\00515e-1]'),
	idem_fingerprint('{"b": [true, null], "a": "x"}') = sha256('{s\000\000\000\001as\000\000\000\001xs\000\000\000\001b[tz]}');
SELECT count(*) FILTER (WHERE idem_fingerprint(json::jsonb) = sha256(('rn\000\000\000'::bytea || set_byte('\x00', 0, length(spelled)) || spelled::bytea || ']'))), count(*)
FROM (VALUES ('0', '0e0'), ('-0.00', '0e0'), ('7', '7e0'), ('-10', '-1e1'), ('10000', '1e4'), ('12300.4560', '12300456e-3'), ('0.0001', '1e-4'), ('0.00001234', '1234e-8'),
	('1e131071', '1e131071'), ('-1e-16383', '-1e-16383'), ('100000000000000000000000000001', '100000000000000000000000000001e0')) v(json, spelled);
-- Such a number costs no more than its text
SELECT idem_fingerprint(('[' || repeat('1e131071,', 20000) || '0]')::jsonb) IS NOT NULL;

-- idem_step_key: readable if it fits into a key.
SELECT idem_step_key('order-1', 'charge'), idem_step_key('a:b', ' c ');
SELECT idem_step_key(repeat('k', 250), 'step') = repeat('k', 250) || ':step';
SELECT idem_step_key(repeat('k', 251), 'step') = 'sha256:' || encode(sha256(convert_to(repeat('k', 251) || ':step', 'UTF8')), 'hex'),
	length(idem_step_key(repeat('k', 251), 'step'));
SELECT idem_step_key('k', repeat('s', 1000000)) = 'sha256:' || encode(sha256(convert_to('k:' || repeat('s', 1000000), 'UTF8')), 'hex');
-- its result is a key
SELECT answer(idem_begin(idem_step_key(repeat('k', 255), 'charge'))), idem_complete(idem_step_key(repeat('k', 255), 'charge'));
SELECT raises(s) FROM (VALUES ('SELECT idem_step_key(NULL, ''s'')'), ('SELECT idem_step_key(''k'', NULL)'),
	('SELECT idem_step_key('''', ''s'')'), ('SELECT idem_step_key(''k'', '''')')) v(s);
