-- idem_call: what may be a handler, and with whose rights it runs.
\pset format unaligned
\pset tuples_only on
CREATE FUNCTION handler_two(jsonb, int DEFAULT 1) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION handler_none() RETURNS jsonb LANGUAGE sql AS 'SELECT ''1''::jsonb';
CREATE FUNCTION handler_json(json) RETURNS jsonb LANGUAGE sql AS 'SELECT ''1''::jsonb';
CREATE FUNCTION handler_text(jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''1''';
CREATE FUNCTION handler_void(jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION handler_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION handler_table(jsonb) RETURNS TABLE (a jsonb) LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION handler_any(anyelement) RETURNS anyelement LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION handler_variadic(VARIADIC jsonb[]) RETURNS jsonb LANGUAGE sql AS 'SELECT $1[1]';
CREATE DOMAIN handler_domain AS jsonb;
CREATE FUNCTION handler_domain(handler_domain) RETURNS jsonb LANGUAGE sql AS 'SELECT $1::jsonb';
CREATE PROCEDURE handler_procedure(INOUT jsonb) LANGUAGE sql AS 'SELECT $1';
CREATE AGGREGATE handler_aggregate(jsonb) (sfunc = jsonb_concat, stype = jsonb);
CREATE FUNCTION handler_window(jsonb) RETURNS jsonb WINDOW LANGUAGE internal AS 'window_first_value';
SELECT handler, raises(format('SELECT idem_call(%L, ''handler-1'', ''1'')', handler))
FROM unnest(ARRAY['handler_two(jsonb,int)', 'handler_none()', 'handler_json(json)', 'handler_text(jsonb)', 'handler_void(jsonb)', 'handler_set(jsonb)',
	'handler_table(jsonb)', 'handler_any(anyelement)', 'handler_variadic(jsonb[])', 'handler_domain(handler_domain)', 'handler_procedure(jsonb)', 'handler_aggregate(jsonb)', 'handler_window(jsonb)']) handler;
-- none at all, or none any more
SELECT raises('SELECT idem_call(0::regprocedure, ''handler-1'')'), raises('SELECT idem_call(NULL, ''handler-1'')'),
	left(raises('SELECT idem_call(''handler_missing(jsonb)'', ''handler-1'')'), 5);
-- a handler is checked before anything is begun, also where it would not run
SELECT idem_lookup('handler-1') IS NULL, locks_held();

-- Every language, volatility and kind of argument will do.
CREATE FUNCTION handler_sql(jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql RETURN $1;
CREATE FUNCTION handler_atomic(request jsonb) RETURNS jsonb LANGUAGE sql BEGIN ATOMIC SELECT request; SELECT jsonb_build_array(request); END;
CREATE FUNCTION handler_out(INOUT request jsonb) STABLE LANGUAGE plpgsql AS 'BEGIN request := jsonb_build_array(request); END';
SELECT handler, told(idem_call(handler::regprocedure, 'handler-2-' || handler, '[2]'))
FROM unnest(ARRAY['handler_sql(jsonb)', 'handler_atomic(jsonb)', 'handler_out(jsonb)']) handler;
-- a large request and result, toasted on their way
CREATE TEMP TABLE large AS SELECT jsonb_agg(md5(n::text)) AS request FROM generate_series(1, 10000) n;
SELECT response_payload = jsonb_build_array(request) FROM large, idem_call('handler_out(jsonb)', 'handler-4', request);
SELECT o.response_payload = jsonb_build_array(request), o.replayed FROM large, idem_begin('handler-4', request => request) o;

-- With the caller's rights: it needs EXECUTE on the handler,
CREATE ROLE regress_idem_caller;
SELECT idem_grant('regress_idem_caller');
CREATE TABLE handler_who (who name, path text);
CREATE FUNCTION handler_who(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.handler_who VALUES (current_user, current_setting('search_path'));
	RETURN to_jsonb(current_user::text || ' ' || current_setting('search_path'));
END
$$;
REVOKE EXECUTE ON FUNCTION handler_who(jsonb) FROM PUBLIC;
SET ROLE regress_idem_caller;
SELECT raises('SELECT idem_call(''handler_who(jsonb)'', ''handler-5'')');
-- also where it would not run
RESET ROLE;
SELECT told(idem_call('handler_sql(jsonb)', 'handler-6'));
SET ROLE regress_idem_caller;
SELECT raises('SELECT idem_call(''handler_who(jsonb)'', ''handler-6'')');
RESET ROLE;
GRANT EXECUTE ON FUNCTION handler_who(jsonb) TO regress_idem_caller;
SET ROLE regress_idem_caller;
-- and what the handler touches it must be allowed itself: a failure of the operation,
SELECT response_payload ->> 'sqlstate', response_payload ->> 'message' FROM idem_call('handler_who(jsonb)', 'handler-5');
RESET ROLE;
-- unless the handler is SECURITY DEFINER. Its own settings hold while it runs.
ALTER FUNCTION handler_who(jsonb) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
SET ROLE regress_idem_caller;
SELECT response_payload <> to_jsonb(current_user || ' ' || current_setting('search_path')), response_payload ->> 0 ~ ' pg_catalog, pg_temp$'
FROM idem_call('handler_who(jsonb)', 'handler-7');
SELECT current_user, current_setting('search_path') = 'pg_catalog, pg_temp';
-- the same after it has raised
RESET ROLE;
CREATE FUNCTION handler_raise(jsonb) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RAISE EXCEPTION ''%'', current_user = session_user; END';
SET ROLE regress_idem_caller;
SELECT response_payload ->> 'message', current_user, current_setting('search_path') = 'pg_catalog, pg_temp' FROM idem_call('handler_raise(jsonb)', 'handler-8');
RESET ROLE;
SELECT who = current_user, path FROM handler_who;
SELECT idem_revoke('regress_idem_caller');
DROP OWNED BY regress_idem_caller;
DROP ROLE regress_idem_caller;
