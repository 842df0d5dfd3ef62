-- idem_call: which functions can be handlers, and with whose rights they run.
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
SELECT string_agg(handler, ' ' ORDER BY handler COLLATE "C"), raises(format('SELECT idem_call(%L, ''handler-1'', ''1'')', handler))
FROM unnest(ARRAY['handler_two(jsonb,int)', 'handler_none()', 'handler_json(json)', 'handler_text(jsonb)', 'handler_void(jsonb)', 'handler_set(jsonb)',
	'handler_table(jsonb)', 'handler_any(anyelement)', 'handler_variadic(jsonb[])', 'handler_domain(handler_domain)', 'handler_procedure(jsonb)', 'handler_aggregate(jsonb)', 'handler_window(jsonb)']) handler GROUP BY 2;
-- a function that never existed, or was dropped
SELECT raises('SELECT idem_call(0::regprocedure, ''handler-1'')'), raises('SELECT idem_call(NULL, ''handler-1'')'),
	left(raises('SELECT idem_call(''handler_missing(jsonb)'', ''handler-1'')'), 5);
-- a handler is checked before the begin, also if it would not run
SELECT idem_lookup('handler-1') IS NULL, locks_held();

-- Every language, volatility and kind of argument is allowed.
CREATE FUNCTION handler_sql(jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql RETURN $1;
CREATE FUNCTION handler_atomic(request jsonb) RETURNS jsonb LANGUAGE sql BEGIN ATOMIC SELECT request; SELECT jsonb_build_array(request); END;
CREATE FUNCTION handler_out(INOUT request jsonb) STABLE LANGUAGE plpgsql AS 'BEGIN request := jsonb_build_array(request); END';
SELECT handler, answer(idem_call(handler::regprocedure, 'handler-2-' || handler, '[2]'))
FROM unnest(ARRAY['handler_sql(jsonb)', 'handler_atomic(jsonb)', 'handler_out(jsonb)']) handler;
-- a large request and result, toasted on their way
CREATE TEMP TABLE large AS SELECT jsonb_agg(md5(n::text)) AS request FROM generate_series(1, 10000) n;
SELECT response_payload = jsonb_build_array(request) FROM large, idem_call('handler_out(jsonb)', 'handler-4', request);
SELECT o.response_payload = jsonb_build_array(request), o.replayed FROM large, idem_begin('handler-4', request => request) o;

-- The caller needs EXECUTE on the handler,
CREATE ROLE regress_idem_caller;
SELECT FROM idem_grant('regress_idem_caller');
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
-- also if the handler would not run
RESET ROLE;
SELECT answer(idem_call('handler_sql(jsonb)', 'handler-6'));
SET ROLE regress_idem_caller;
SELECT raises('SELECT idem_call(''handler_who(jsonb)'', ''handler-6'')');
RESET ROLE;
GRANT EXECUTE ON FUNCTION handler_who(jsonb) TO regress_idem_caller;
SET ROLE regress_idem_caller;
-- and rights on the objects that the handler uses,
SELECT raises('SELECT idem_call(''handler_who(jsonb)'', ''handler-5'')');
SELECT idem_lookup('handler-5') IS NULL;
RESET ROLE;
-- unless the handler is SECURITY DEFINER. The handler's settings hold while it runs.
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

-- The caller needs USAGE on the handler's schema, too, if the handler comes by name or by OID.
CREATE SCHEMA regress_idem_closed;
CREATE FUNCTION regress_idem_closed.handle(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
GRANT EXECUTE ON FUNCTION regress_idem_closed.handle(jsonb) TO regress_idem_caller;
SELECT 'regress_idem_closed.handle(jsonb)'::regprocedure::oid AS closed \gset
SET ROLE regress_idem_caller;
SELECT raises(format('SELECT idem_call(%s, ''handler-9'')', :closed)), raises(format('SELECT idem_call(''%s'', ''handler-9'')', :closed)),
	raises('SELECT idem_call(''regress_idem_closed.handle(jsonb)'', ''handler-9'')');
SELECT idem_lookup('handler-9') IS NULL, locks_held();
RESET ROLE;
SELECT answer(idem_call(:closed, 'handler-9', '9'));
-- a replay is refused as well
SET ROLE regress_idem_caller;
SELECT raises(format('SELECT idem_call(%s, ''handler-9'')', :closed));
RESET ROLE;
GRANT USAGE ON SCHEMA regress_idem_closed TO regress_idem_caller;
SET ROLE regress_idem_caller;
SELECT answer(idem_call(:closed, 'handler-9', '9')), answer(idem_call(:closed, 'handler-10', '10'));
RESET ROLE;
DROP FUNCTION regress_idem_closed.handle(jsonb);
DROP SCHEMA regress_idem_closed;

-- If no function has the name, the error says so; if a function does not fit, the error says what fits.
SELECT raises('SELECT idem_call(''handler_missing'', ''handler-11'')'), raises('SELECT idem_call(''handler_missing(jsonb)'', ''handler-11'')');
SELECT raises_in_full('SELECT idem_call(0::regprocedure, ''handler-11'')');
SELECT raises_in_full('SELECT idem_call(''handler_text(jsonb)'', ''handler-11'')');
-- A handler that makes the transaction read-only: the end is refused.
CREATE FUNCTION handler_closes(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT set_config('transaction_read_only', 'on', true) IS NULL; SELECT $1 $$;
SELECT raises('SELECT idem_call(''handler_closes(jsonb)'', ''handler-11'', record_failure => false)');
SELECT FROM idem_revoke('regress_idem_caller');
DROP OWNED BY regress_idem_caller;
DROP ROLE regress_idem_caller;
