# FORCE ROW LEVEL SECURITY and an owner who is no superuser, with invalidations
# of the store all the time, and on a server that discards its caches all the
# time.
use Idempotency;

my $node = new_node('forced_rls');
my $calls = 400;

query(q{
	CREATE ROLE keeper; CREATE ROLE app; CREATE ROLE reader;
	SELECT idem_grant('app');
	BEGIN; SELECT idem_begin('done'), idem_complete('done', '1'); COMMIT;
	ALTER TABLE idempotency_store OWNER TO keeper;
	ALTER TABLE idempotency_store ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
	-- SQL all the way
	CREATE INDEX ON idempotency_store (expires_at);
	CREATE TABLE storm (over boolean);
	CREATE TABLE results (outcome text);
	GRANT INSERT ON results TO app;
	-- each news of its own
	CREATE PROCEDURE storm() LANGUAGE plpgsql AS $$
	BEGIN
		WHILE NOT EXISTS (SELECT FROM storm) LOOP
			GRANT SELECT ON idempotency_store TO reader;
			COMMIT;
			REVOKE SELECT ON idempotency_store FROM reader;
			COMMIT;
			ANALYZE idempotency_store;
			COMMIT;
		END LOOP;
	END $$;
	-- a replay, a look-up and a whole lease in each round
	CREATE PROCEDURE calls(rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		o idem_operation;
	BEGIN
		FOR i IN 1 .. rounds LOOP
			o := idem_begin('done');
			INSERT INTO results VALUES ('done: ' || o.outcome);
			IF o.outcome = 'ACQUIRED' THEN PERFORM idem_release('done'); END IF;
			COMMIT;
			INSERT INTO results VALUES ('look-up: ' || coalesce((idem_lookup('done')).outcome::text, 'nothing'));
			COMMIT;
			o := idem_begin('leased-' || i, lease => '1 hour');
			COMMIT;
			BEGIN
				PERFORM idem_complete(o, '1');
				INSERT INTO results VALUES ('lease: completed');
			EXCEPTION WHEN OTHERS THEN
				INSERT INTO results VALUES ('lease: ' || SQLSTATE);
			END;
			COMMIT;
		END LOOP;
	END $$;
	GRANT EXECUTE ON PROCEDURE calls(int) TO app;
});

sub answer
{
	return query(q{WITH t AS (DELETE FROM results RETURNING outcome)
		SELECT string_agg(DISTINCT outcome, ', ' ORDER BY outcome) || ' of ' || count(*) FROM t});
}

my $right = 'done: COMPLETED, lease: completed, look-up: COMPLETED';
my $storm = session($node);

$storm->query_until(qr/storm/, "\\echo storm\nCALL storm();\n");
query("SET ROLE app; CALL calls($calls)");
is(answer(), "$right of " . 3 * $calls, 'in a storm of GRANT, REVOKE and ANALYZE');
query('INSERT INTO storm VALUES (true); DELETE FROM idempotency_store WHERE idempotency_key <> $$done$$');
$storm->quit;

# Only servers that were built for tests can do this.
SKIP:
{
	skip 'the server cannot discard its caches', 1
	  if sqlstate($node, 'SET debug_discard_caches = 1') ne '';
	query('SET debug_discard_caches = 1; SET ROLE app; CALL calls(1)');
	is(answer(), "$right of 3", 'with caches that are discarded at every opportunity');
}

done_testing();
