-- Scopes that belong to roles, and policies.
CREATE ROLE regress_idem_pay;
CREATE ROLE regress_idem_pay_2025 IN ROLE regress_idem_pay;
CREATE ROLE regress_idem_pay_2026 IN ROLE regress_idem_pay;
CREATE ROLE regress_idem_shop;
SELECT idem_grant(r) FROM unnest(ARRAY['regress_idem_pay', 'regress_idem_shop']::regrole[]) r;
CREATE FUNCTION scope_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
-- who may begin where
CREATE FUNCTION scope_matrix(scopes text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	who text;
	state text;
BEGIN
	FOR who, state IN
		SELECT r, string_agg(s || ' ' || pg_temp.as_role(r, format('SELECT idem_lookup(%L, %L)', 'k', s)), ', ' ORDER BY n)
		FROM unnest(ARRAY['regress_idem_pay', 'regress_idem_pay_2025', 'regress_idem_shop']) r, unnest(scopes) WITH ORDINALITY s(s, n) GROUP BY r ORDER BY r
	LOOP
		RETURN NEXT who || ': ' || state;
	END LOOP;
END
$$;
CREATE FUNCTION pg_temp.as_role(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', who);
	state := left(raises(statement), 5);
	RESET ROLE;
	RETURN replace(state, 'no er', 'ok');
END
$$;

-- A role that is no member gets the same error, whether or not the key exists,
-- from each function with a scope.
BEGIN;
SELECT answer(idem_begin('there', scope => 'pay', request => '1')), idem_complete('there', '"secret"', 'pay');
SELECT answer(idem_begin('leased', scope => 'pay', lease => '1 hour'));
COMMIT;
SELECT FROM idem_claim_scope('pay', 'regress_idem_pay');
SELECT k, who, string_agg(DISTINCT regexp_replace(pg_temp.as_role(who, format(s, k)), '^(ID404|ID409|ID422)$', 'ok'), ' ')
FROM unnest(ARRAY['there', 'leased', 'absent']) k, unnest(ARRAY['regress_idem_pay', 'regress_idem_pay_2025', 'regress_idem_shop']) who,
	unnest(ARRAY['SELECT idem_lookup(%L, ''pay'')', 'DO $d$ BEGIN PERFORM idem_begin(%L, scope => ''pay'', request => ''2'', lease => ''1 s''); RAISE SQLSTATE ''ID409''; END $d$',
	'SELECT idem_complete(%L, scope => ''pay'')', 'SELECT idem_complete(%L, scope => ''pay'', fence => 999999)', 'SELECT idem_fail(%L, scope => ''pay'')',
	'SELECT idem_release(%L, ''pay'')', 'SELECT idem_extend(%L, ''1 s'', ''pay'', 999999)',
	'DO $d$ BEGIN PERFORM idem_call(''scope_echo(jsonb)'', %L, ''2'', ''pay''); RAISE SQLSTATE ''ID409''; END $d$',
	'DO $d$ BEGIN PERFORM idem_begin_batch(ARRAY[%L], scope => ''pay''); RAISE SQLSTATE ''ID409''; END $d$',
	'SELECT idem_complete_batch(ARRAY[%L], scope => ''pay'')', 'SELECT idem_advance(%L, 1, ''pay'')']) s
GROUP BY k, who ORDER BY k, who;
SET ROLE regress_idem_shop;
SELECT raises_in_full('SELECT idem_begin(''there'', scope => ''pay'')');
SELECT raises('SELECT idem_begin(''there'', scope => ''pay'')') = raises('SELECT idem_begin(''absent'', scope => ''pay'')') AS no_oracle;
RESET ROLE;
-- New credentials of the same role get replays.
SET ROLE regress_idem_pay_2026;
SELECT answer(idem_begin('there', scope => 'pay', request => '1'));
RESET ROLE;
-- The current role counts, at each call.
BEGIN;
SELECT answer(idem_begin('k', scope => 'pay'));
SET LOCAL ROLE regress_idem_shop;
SELECT raises('SELECT idem_complete(''k'', scope => ''pay'')');
ROLLBACK;

-- The longest pattern with a claim decides.
SELECT idem_claim_scope('*', 'regress_idem_shop'), idem_claim_scope('pay*', 'regress_idem_pay'), idem_claim_scope('pay/shop', 'regress_idem_shop'),
	idem_claim_scope('pay', 'regress_idem_shop');
SELECT scope_matrix(ARRAY['', 'pay', 'payx', 'pay/shop', 'pay/shop2', 'pa']);
-- a policy of a longer pattern does not remove a claim
SELECT FROM idem_set_policy('payx*', max_attempts => 3);
SELECT scope_matrix(ARRAY['payx', 'payxy']);
SELECT idem_unclaim_scope('pay*'), idem_unclaim_scope('pay*'), idem_unclaim_scope('payx*'), idem_unclaim_scope('nobody claimed it');
SELECT scope_matrix(ARRAY['pay', 'payx', 'pay/shop', 'pay/shop2']);
SELECT idem_unclaim_scope('*'), idem_unclaim_scope('pay'), idem_unclaim_scope('pay/shop');
SELECT scope_matrix(ARRAY['', 'pay', 'payx']);
SELECT pattern, role FROM idempotency_scope ORDER BY 1;

-- A claim can be rolled back; in its own transaction it counts at once.
BEGIN;
SELECT FROM idem_claim_scope('pay', 'regress_idem_pay');
SELECT scope_matrix(ARRAY['pay']);
ROLLBACK;
SELECT scope_matrix(ARRAY['pay']);
-- A role that is renamed or dropped has no members: the scope stays closed.
SELECT FROM idem_claim_scope('pay', 'regress_idem_pay');
ALTER ROLE regress_idem_pay RENAME TO regress_idem_paid;
CREATE ROLE regress_idem_pay;
SELECT pg_temp.as_role(r, 'SELECT idem_lookup(''there'', ''pay'')') FROM unnest(ARRAY['regress_idem_paid', 'regress_idem_shop']) r;
DROP ROLE regress_idem_pay;
SELECT pg_temp.as_role(r, 'SELECT idem_lookup(''there'', ''pay'')') FROM unnest(ARRAY['regress_idem_paid', 'regress_idem_shop']) r;
SELECT answer(idem_lookup('there', 'pay')), idem_claim_scope('pay', 'regress_idem_paid');
SELECT pg_temp.as_role('regress_idem_paid', 'SELECT idem_lookup(''there'', ''pay'')');
-- The monitoring role sees the lease, but not the key.
CREATE ROLE regress_idem_monitor IN ROLE pg_monitor;
SET ROLE regress_idem_monitor;
SELECT kind, scope, idempotency_key, attempt FROM idempotency_in_flight WHERE scope = 'pay';
RESET ROLE;
SELECT kind, scope, idempotency_key, attempt FROM idempotency_in_flight WHERE scope = 'pay';
SELECT idem_unclaim_scope('pay');

-- Patterns and roles that are refused.
SELECT raises(s) FROM unnest(ARRAY['SELECT idem_claim_scope(NULL, ''regress_idem_shop'')', 'SELECT idem_claim_scope(''pay'', NULL)', 'SELECT idem_claim_scope(''p*y'', ''regress_idem_shop'')',
	'SELECT idem_claim_scope(''pay**'', ''regress_idem_shop'')', 'SELECT idem_claim_scope(repeat(''p'', 256), ''regress_idem_shop'')',
	'SELECT idem_claim_scope(''pay'', 0::oid::regrole)', 'SELECT idem_claim_scope(''pay'', 4294967290)', 'SELECT idem_unclaim_scope(NULL)']) s;
DELETE FROM idempotency_scope;
DELETE FROM idempotency_store WHERE scope = 'pay';
SELECT idem_revoke('regress_idem_paid'), idem_revoke('regress_idem_shop');
DROP ROLE regress_idem_paid, regress_idem_pay_2025, regress_idem_pay_2026, regress_idem_shop, regress_idem_monitor;
