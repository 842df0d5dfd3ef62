-- Names in UTF-8. Skipped in databases of other encodings.
SELECT getdatabaseencoding() <> 'UTF8' AS skip \gset
\if :skip
\quit
\endif

-- Characters count, not bytes: 255 of four bytes each, in key and scope.
CREATE TEMP TABLE long AS SELECT string_agg(chr(65536 + n), '') AS name FROM generate_series(1, 255) n;
SELECT answer(idem_begin(name, scope => name)), idem_complete(name, '1', name) FROM long;
SELECT answer(idem_begin(name, scope => name)), octet_length(name) FROM long;
SELECT raises(format('SELECT idem_begin(%L)', name || 'x')), raises(format('SELECT idem_begin(''k'', scope => %L)', name || 'x')) FROM long;

-- Names that look the same can differ: they are compared by bytes, not
-- by normal form, letter case or collation.
BEGIN;
SELECT answer(idem_begin(name)) FROM unnest(ARRAY[U&'caf\00e9', U&'cafe\0301', U&'CAF\00c9', U&'caf\00e9\200b']) name;
SELECT idem_complete(name, to_jsonb(n)) FROM unnest(ARRAY[U&'caf\00e9', U&'cafe\0301', U&'CAF\00c9', U&'caf\00e9\200b']) WITH ORDINALITY u(name, n);
COMMIT;
SELECT answer(idem_lookup(U&'caf\00e9')), answer(idem_lookup(U&'cafe\0301')), answer(idem_lookup(U&'CAF\00c9')), answer(idem_lookup(U&'caf\00e9\200b'));
-- the same for requests
SELECT idem_fingerprint(to_jsonb(U&'\00e9'::text)) = idem_fingerprint(to_jsonb(U&'e\0301'::text)),
	idem_fingerprint(to_jsonb(U&'\00e9'::text)) = idem_fingerprint('"\u00e9"');

-- The server itself refuses invalid UTF-8.
SELECT left(raises($$SELECT idem_begin(convert_from('\xff', 'UTF8'))$$), 5), left(raises($$SELECT idem_begin(E'\xc3')$$), 5);
-- the bytes of a response need not be text
SELECT answer(idem_begin('unicode-1')), idem_complete('unicode-1', '"\u00e9"', body => '\xff00c3');
SELECT response_payload = to_jsonb(U&'\00e9'::text), response_body FROM idem_begin('unicode-1');
-- If an error is too long for its scope, it is cut between two characters.
CREATE FUNCTION unicode_raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', repeat(U&'\00e9', 100); END $$;
SELECT count(idem_set_policy('unicode ' || n, max_response_size => n)::text) FROM generate_series(90, 93) n;
SELECT n, response_payload ->> 'message' = repeat(U&'\00e9', length(response_payload ->> 'message')), length(response_payload ->> 'message')
FROM generate_series(90, 93) n, idem_call('unicode_raise(jsonb)', 'unicode-2', scope => 'unicode ' || n);
DELETE FROM idempotency_scope;

-- Step keys count characters, too, and hash the bytes of the whole.
SELECT idem_step_key(repeat(U&'\00e9', 253), 's') = repeat(U&'\00e9', 253) || ':s',
	idem_step_key(repeat(U&'\00e9', 254), 's') = 'sha256:' || encode(sha256(convert_to(repeat(U&'\00e9', 254) || ':s', 'UTF8')), 'hex');
