-- The objects that the fuzzer needs in a database: handlers of all kinds.  @schema@ is the
-- extension's, quoted.
CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA fuzz, @schema@ TO PUBLIC;
SELECT @schema@.idem_grant('fuzz_app');
GRANT EXECUTE ON FUNCTION @schema@.idem_may_use_scope(text), @schema@.idem_fingerprint(jsonb) TO fuzz_app;
-- idem_grant does not give this right
GRANT EXECUTE ON FUNCTION @schema@.idem_forget(text, text), @schema@.idem_forget_failed(text, text, text, int) TO fuzz_app;

CREATE FUNCTION fuzz.returns(request jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{"marker": "PayloadMarker4711"}'::jsonb$$;
CREATE FUNCTION fuzz.echo(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RETURN request; END$$;
CREATE FUNCTION fuzz.nothing(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION fuzz.strict(request jsonb) RETURNS jsonb LANGUAGE sql STRICT AS 'SELECT request';
-- No constant: from 18 on a session would keep the plan, with a megabyte in it.
CREATE FUNCTION fuzz.large(request jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(repeat('PayloadMarker4711', greatest(70000, length(request::text))))$$;
CREATE FUNCTION fuzz.raises(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'handler raises' USING ERRCODE = 'HX001', DETAIL = repeat('détail ', 3000), HINT = ''; END$$;
CREATE FUNCTION fuzz.transient(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'handler gives up' USING ERRCODE = '53HX1'; END$$;
CREATE FUNCTION fuzz.internal(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'handler breaks' USING ERRCODE = 'XXHX1'; END$$;
CREATE FUNCTION fuzz.mistaken(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'handler is wrong' USING ERRCODE = '42HX1'; END$$;
CREATE FUNCTION fuzz.begins(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RETURN to_jsonb((@schema@.idem_begin('inner')).outcome); END$$;
CREATE FUNCTION fuzz.ends(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN PERFORM @schema@.idem_complete('a', request); RETURN request; END$$;
CREATE FUNCTION fuzz.resets(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN PERFORM @schema@.idem_release(k) FROM unnest(ARRAY['a', 'b', 'c']) k; RETURN request;
	EXCEPTION WHEN OTHERS THEN RETURN '"caught"'; END$$;
CREATE FUNCTION fuzz.nests(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	$$BEGIN RETURN jsonb_agg((@schema@.idem_call('fuzz.nests(jsonb)', k, request)).outcome) FROM unnest(ARRAY['a', 'b', 'c']) k; END$$;
CREATE FUNCTION fuzz.commits(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN COMMIT; RETURN request; END';

-- no handlers
CREATE FUNCTION fuzz.two(a jsonb, b jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT a';
CREATE FUNCTION fuzz.many(request jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT request';
CREATE FUNCTION fuzz.other(request text) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(request)';
CREATE FUNCTION fuzz.trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE PROCEDURE fuzz.procedure(request jsonb) LANGUAGE sql AS 'SELECT request';
CREATE AGGREGATE fuzz.total(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
CREATE FUNCTION fuzz.rank(request jsonb) RETURNS jsonb LANGUAGE internal WINDOW AS 'window_rank';
CREATE FUNCTION fuzz.secret(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
REVOKE ALL ON FUNCTION fuzz.secret(jsonb) FROM PUBLIC;
