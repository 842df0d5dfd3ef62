-- Policies: defaults that arguments override, within bounds.
CREATE FUNCTION pg_temp.kept(key text) RETURNS interval LANGUAGE sql AS $$
	SELECT expires_at - updated_at FROM idempotency_store WHERE idempotency_key = key
$$;
CREATE FUNCTION pg_temp.keep(key text, scope text, retention interval DEFAULT NULL) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(key, scope => scope);
	PERFORM idem_complete(key, scope => scope, retention => retention);
	RETURN pg_temp.kept(key);
END
$$;

-- Retention: the setting, the policy of the scope, the argument, the bounds.
SELECT pg_temp.keep('policy-1', 'short'), pg_temp.keep('policy-2', 'short', '5 min');
SELECT FROM idem_set_policy('short*', retention => '1 hour', min_retention => '10 min', max_retention => '2 h');
SELECT pg_temp.keep('policy-3', 'short'), pg_temp.keep('policy-4', 'shorter', '5 min'), pg_temp.keep('policy-5', 'short', '30 min'), pg_temp.keep('policy-6', 'short', '1 day');
SELECT pg_temp.keep('policy-7', 'other');
SET idempotency.retention = '7d';
SELECT pg_temp.keep('policy-8', 'short'), pg_temp.keep('policy-9', 'other');
RESET idempotency.retention;
-- bounds hold for the setting, too
SELECT idem_set_policy('bounds', max_retention => '1 min'), idem_set_policy('bounds/long', min_retention => '2 days');
SELECT pg_temp.keep('policy-10', 'bounds'), pg_temp.keep('policy-11', 'bounds/long');
-- a longer pattern keeps the properties of shorter ones that it does not set
SELECT FROM idem_set_policy('short/er', max_retention => '20 min');
SELECT pg_temp.keep('policy-12', 'short/er'), pg_temp.keep('policy-13', 'short/er', '1 min');
-- the same for idem_call, idem_fail and leases
CREATE FUNCTION policy_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT (idem_call('policy_echo(jsonb)', 'policy-14', scope => 'short')).outcome, pg_temp.kept('policy-14');
BEGIN;
SELECT answer(idem_begin('policy-15', scope => 'short')), idem_fail('policy-15', scope => 'short');
SELECT pg_temp.kept('policy-15');
COMMIT;
SELECT answer(idem_begin('policy-16', scope => 'short', lease => '1 min'));
SELECT expires_at - lease_expires_at FROM idempotency_store WHERE idempotency_key = 'policy-16';

-- Attempts.
SELECT FROM idem_set_policy('tries', max_attempts => 2, attempts_limit => 3);
CREATE FUNCTION pg_temp.attempts(key text, most int DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	made int := 0;
BEGIN
	LOOP
		EXIT WHEN made = 5;
		EXIT WHEN (idem_begin(key, scope => 'tries', max_attempts => most)).outcome <> 'ACQUIRED';
		made := made + 1;
		PERFORM idem_fail(key, scope => 'tries', retryable => true);
		PERFORM let_retry(key);
	END LOOP;
	RETURN made;
END
$$;
SELECT pg_temp.attempts('policy-20'), pg_temp.attempts('policy-21', 1), pg_temp.attempts('policy-22', 3), pg_temp.attempts('policy-23', 4), pg_temp.attempts('policy-24', 0);
SET idempotency.max_attempts = 1;
SELECT pg_temp.attempts('policy-25');
SELECT FROM idem_set_policy('tries', max_attempts => 0);
SELECT pg_temp.attempts('policy-26');
SELECT FROM idem_set_policy('tries');
SELECT pg_temp.attempts('policy-27');
RESET idempotency.max_attempts;

-- The size of responses: that of the policy if there is one, otherwise the setting.
SELECT idem_set_policy('big', max_response_size => 100), idem_set_policy('none', max_response_size => 0);
BEGIN;
SELECT answer(idem_begin('policy-30', scope => 'big')), answer(idem_begin('policy-31', scope => 'none')), answer(idem_begin('policy-32'));
SET LOCAL idempotency.max_response_size = 10;
SELECT raises_in_full('SELECT idem_complete(''policy-30'', scope => ''big'', body => repeat(''x'', 101)::bytea)');
SELECT raises_in_full('SELECT idem_complete(''policy-32'', body => repeat(''x'', 101)::bytea)');
SELECT FROM idem_complete('policy-30', scope => 'big', body => repeat('x', 100)::bytea);
SELECT raises('SELECT idem_complete(''policy-31'', ''1'', scope => ''none'')'), idem_complete('policy-31', scope => 'none'), idem_complete('policy-32');
COMMIT;

-- A policy may have a response in place of one that is too large.  The caller gets the whole one, a replay gets that of the policy.
SELECT idem_set_policy('large*', max_response_size => 60, too_large_response => '{"at": "/x"}'), idem_set_policy('large/more', max_attempts => 9),
	idem_set_policy('large/tiny', max_response_size => 0), idem_set_policy('large/null', too_large_response => 'null');
CREATE FUNCTION pg_temp.replayed(key text, scope text) RETURNS text LANGUAGE sql AS
	'SELECT jsonb_strip_nulls(to_jsonb(o) - ''{attempt,created_at,updated_at,expires_at,taken_over}''::text[])::text FROM idem_begin($1, scope => $2) o';
BEGIN;
SELECT answer(idem_begin('policy-33', scope => 'large')), answer(idem_begin('policy-34', scope => 'large/more')), answer(idem_begin('policy-35', scope => 'large/null'));
SELECT idem_complete('policy-33', scope => 'large', code => 201, headers => '{"Type": "b"}', body => repeat('x', 60)::bytea);
SELECT FROM idem_complete('policy-34', to_jsonb(repeat('x', 30)), scope => 'large/more', code => 202, headers => '{"Type": "b"}');
SELECT idem_complete('policy-35', to_jsonb(repeat('x', 80)), scope => 'large/null');
COMMIT;
SELECT pg_temp.replayed('policy-33', 'large'), pg_temp.replayed('policy-34', 'large/more'), pg_temp.replayed('policy-35', 'large/null');
SELECT answer(idem_call('policy_echo(jsonb)', 'policy-36', to_jsonb(repeat('x', 80)), 'large')), pg_temp.replayed('policy-36', 'large');
SELECT fence FROM idem_begin('policy-37', scope => 'large', lease => '1 min') \gset
SELECT idem_complete('policy-37', to_jsonb(repeat('x', 80)), 'large', fence => :fence);
SELECT answer(o) FROM idem_begin('policy-37', scope => 'large') o;
-- a second end stores nothing and gives no notice; a failure is no work that was done; the limit may be zero
SELECT raises('SELECT idem_complete(''policy-37'', to_jsonb(repeat(''x'', 80)), ''large'')');
BEGIN;
SELECT answer(idem_begin('policy-40', scope => 'large')), answer(idem_begin('policy-41', scope => 'large/tiny'));
SELECT raises('SELECT idem_fail(''policy-40'', to_jsonb(repeat(''x'', 80)), ''large'')'), idem_complete('policy-41', '22', 'large/tiny');
SELECT pg_temp.replayed('policy-41', 'large/tiny');
ROLLBACK;
BEGIN;
SELECT count(outcome) FROM idem_begin_batch('{policy-38,policy-39}', scope => 'large');
SELECT idem_complete_batch('{policy-38,policy-39}', ARRAY['1', to_jsonb(repeat('x', 80))], 'large');
COMMIT;
SELECT pg_temp.replayed('policy-38', 'large'), pg_temp.replayed('policy-39', 'large');
-- the policy is asked when the operation ends
BEGIN;
SELECT answer(idem_begin('policy-42', scope => 'large')), idem_set_policy('large*', max_response_size => 60);
SELECT raises('SELECT idem_complete(''policy-42'', to_jsonb(repeat(''x'', 80)), ''large'')');
ROLLBACK;

-- A second call replaces the policy; a call without properties removes it.
SELECT * FROM idempotency_scope ORDER BY pattern;
SELECT idem_set_policy(pattern) FROM idempotency_scope;
SELECT count(*) FROM idempotency_scope;
SELECT pg_temp.keep('policy-40', 'short');

-- Policies that are refused.
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_set_policy(NULL)', 'SELECT idem_set_policy(''a*b'')', 'SELECT idem_set_policy(''p'', retention => ''0'')',
	'SELECT idem_set_policy(''p'', min_retention => ''-1 s'')', 'SELECT idem_set_policy(''p'', max_retention => ''100000000 years'')',
	'SELECT idem_set_policy(''p'', retention => ''1 s'', min_retention => ''2 s'')', 'SELECT idem_set_policy(''p'', retention => ''2 s'', max_retention => ''1 s'')',
	'SELECT idem_set_policy(''p'', min_retention => ''2 s'', max_retention => ''1 s'')', 'SELECT idem_set_policy(''p'', max_attempts => -1)',
	'SELECT idem_set_policy(''p'', attempts_limit => 0)', 'SELECT idem_set_policy(''p'', max_attempts => 3, attempts_limit => 2)',
	'SELECT idem_set_policy(''p'', max_response_size => -1)', 'SELECT idem_set_policy(''p'', too_large_response => to_jsonb(repeat(''x'', 999)))',
	'INSERT INTO idempotency_scope (pattern, too_large_response) VALUES (''p'', to_jsonb(repeat(''x'', 999)))', 'INSERT INTO idempotency_scope (pattern, retention) VALUES (''p'', ''0'')']) s;
SELECT count(*) FROM idempotency_scope;

-- Bounds of leases and pauses, after which records are kept for the retention.
SELECT idem_set_policy('lease*', max_retention => '1 min', max_lease => '10 min'), idem_set_policy('lease/short', max_lease => '1 s'), idem_set_policy('lease/more', max_attempts => 9);
CREATE FUNCTION pg_temp.lease(key text, scope text, lease interval, more interval) RETURNS TABLE (begun interval, extended interval, row_kept interval) LANGUAGE plpgsql AS $$
DECLARE
	op idem_operation := idem_begin(key => key, scope => scope, lease => lease);
	until timestamptz;
BEGIN
	until := idem_extend(key => key, lease => more, scope => scope, fence => op.fence);
	RETURN QUERY SELECT op.lease_expires_at - op.updated_at, lease_expires_at - updated_at, expires_at - lease_expires_at
		FROM idempotency_store s WHERE s.idempotency_key = key AND until = lease_expires_at;
END
$$;
SELECT l.* FROM (VALUES ('policy-50', 'lease', '9 min'::interval, '11 min'::interval), ('policy-51', 'lease/more', '36500 days', '9 min'),
	('policy-52', 'lease/short', '9 min', '9 min')) v(k, s, a, b), pg_temp.lease(k, s, a, b) l ORDER BY k;
CREATE FUNCTION pg_temp.pause(key text, scope text, pause interval) RETURNS TABLE (paused interval, row_kept interval) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_begin(key => key, scope => scope);
	PERFORM idem_fail(key => key, scope => scope, retryable => true, retry_after => pause);
	RETURN QUERY SELECT retry_at - updated_at, expires_at - retry_at FROM idempotency_store s WHERE s.idempotency_key = key;
END
$$;
SELECT p.* FROM (VALUES ('policy-60', 'lease', '9 min'::interval), ('policy-61', 'lease', '36500 days'), ('policy-62', 'lease/short', '9 min')) v(k, s, a), pg_temp.pause(k, s, a) p ORDER BY k;
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_set_policy(''p'', max_lease => ''0'')', 'SELECT idem_set_policy(''p'', max_lease => ''36501 days'')',
	'INSERT INTO idempotency_scope (pattern, max_lease) VALUES (''p'', ''0'')']) s;
SELECT pattern, max_retention, max_lease FROM idempotency_scope ORDER BY pattern;
SELECT count(idem_set_policy(pattern)) FROM idempotency_scope;

-- A note of progress is bounded as a response and a lease are.
BEGIN;
SELECT FROM idem_set_policy('policy-progress', max_response_size => 20, max_lease => '1 minute');
SELECT fence FROM idem_begin('noted', lease => '1 hour', scope => 'policy-progress') \gset
SELECT raises(format($$SELECT idem_progress('noted', '"longer than that"', 'policy-progress', %s)$$, :fence));
SELECT idem_progress('noted', '6', 'policy-progress', :fence, '1 hour') < clock_timestamp() + interval '2 minutes';
ROLLBACK;

-- A limit of lost attempts stands alone, and goes with the policy.
SELECT idem_set_policy('policy-lost', max_lost_attempts => 0), raises($$SELECT idem_set_policy('p', max_lost_attempts => -1)$$),
	left(raises($$INSERT INTO idempotency_scope (pattern, max_lost_attempts) VALUES ('p', -1)$$), 5);
SELECT max_attempts, max_lost_attempts FROM idempotency_scope WHERE pattern = 'policy-lost';
SELECT FROM idem_set_policy('policy-lost', max_attempts => 2, max_lost_attempts => 3);
SELECT FROM idem_set_policy('policy-lost', max_attempts => 2);
SELECT max_attempts, max_lost_attempts FROM idempotency_scope WHERE pattern = 'policy-lost';
SELECT FROM idem_set_policy('policy-lost');
SELECT count(*) FROM idempotency_scope WHERE pattern IN ('policy-lost', 'p');
