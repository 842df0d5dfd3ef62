-- The fingerprint is that of the extension, byte for byte, for many random values.
CREATE FUNCTION pg_temp.expect(good bool, what text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN good THEN 'ok: ' ELSE 'not ok: ' END || what
$$;
CREATE SCHEMA real;
CREATE EXTENSION idempotency SCHEMA real;

-- Every kind of character: marks of JSON, escapes, control characters, all lengths of UTF-8.
CREATE FUNCTION pg_temp.random_string() RETURNS text LANGUAGE sql VOLATILE AS $$
	SELECT coalesce(string_agg(c, ''), '') FROM (
		SELECT (ARRAY['"', '\', '/', '{', '}', '[', ']', ',', ':', ' ', 'a', 'B', '0', '-', '.', 'true', 'null', 'é', 'ß', '€', '漢',
			chr(1 + (random() * 30)::int), chr(127), chr(8232), chr(65533), chr(128512), chr(1114109)])[1 + (random() * 26)::int] AS c
		FROM generate_series(1, (random() * 12)::int)) p
$$;
CREATE FUNCTION pg_temp.random_number() RETURNS text LANGUAGE sql VOLATILE AS $$
	SELECT CASE (random() * 5)::int
		WHEN 0 THEN ((random() - 0.5) * 1e6)::int::text
		WHEN 1 THEN round(((random() - 0.5) * 1e9)::numeric, (random() * 12)::int)::text
		WHEN 2 THEN (1 + random() * 8)::int || repeat('0', (random() * 30)::int)
		WHEN 3 THEN '-0.' || repeat('0', (random() * 9)::int) || (random() * 99)::int || repeat('0', (random() * 4)::int)
		WHEN 4 THEN round((random() * 999)::numeric, 3) || 'e' || ((random() - 0.5) * 300)::int
		ELSE '0.0' || repeat('0', (random() * 5)::int) END
$$;
CREATE FUNCTION pg_temp.random_json(depth int) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	CASE (random() * CASE WHEN depth > 0 THEN 6.99 ELSE 4.99 END - 0.5)::int
		WHEN 0 THEN RETURN (ARRAY['true', 'false', 'null'])[1 + (random() * 2)::int];
		WHEN 1, 2 THEN RETURN pg_temp.random_number();
		WHEN 3, 4 THEN RETURN to_json(pg_temp.random_string());
		WHEN 5 THEN RETURN (SELECT '[' || coalesce(string_agg(pg_temp.random_json(depth - 1), ', '), '') || ']'
			FROM generate_series(1, (random() * 4)::int));
		ELSE RETURN (SELECT '{' || coalesce(string_agg(to_json(pg_temp.random_string()) || ': ' || pg_temp.random_json(depth - 1), ', '), '') || '}'
			FROM generate_series(1, (random() * 5)::int));
	END CASE;
END
$$;

CREATE TEMP TABLE value AS SELECT pg_temp.random_json(4)::jsonb AS value FROM generate_series(1, 6000);
INSERT INTO value SELECT to_jsonb(repeat('x', n)) FROM unnest(ARRAY[255, 256, 65536, 300000]) n;
INSERT INTO value SELECT to_jsonb(chr(n)) FROM generate_series(1, 1000) n WHERE n NOT BETWEEN 55296 AND 57343;
INSERT INTO value SELECT ('1e' || n)::jsonb FROM unnest(ARRAY[0, 1, 4, 100, 131071, -1, -100, -16383]) n;
SELECT pg_temp.expect(count(*) > 6000 AND count(DISTINCT value) > 4000 AND count(*) FILTER (WHERE jsonb_typeof(value) = 'object') > 300,
	'there are many values of every kind') FROM value;
SELECT pg_temp.expect(count(*) FILTER (WHERE public.idem_fingerprint(value) IS DISTINCT FROM real.idem_fingerprint(value)) = 0,
	format('the fingerprints of %s values are those of the extension', count(*))) FROM value;
SELECT pg_temp.expect(count(DISTINCT value) = count(DISTINCT public.idem_fingerprint(value)), 'different values have different ones') FROM value;
SELECT pg_temp.expect(bool_and(public.idem_step_key(k, 's') = real.idem_step_key(k, 's')), 'step keys are those of the extension')
FROM unnest(ARRAY['k', repeat('k', 252), repeat('k', 253), repeat('k', 254), repeat('漢', 300)]) k;
DROP SCHEMA real CASCADE;
