# Triggers and other code of the owner run with the owner's rights and
# no others when another role administers the extension: idem_gc, idem_reseal,
# idem_forget, claims and policies, a store that is divided, called by a superuser or by a role with EXECUTE;
# and when the collector, which starts as a superuser, removes a record.
use Idempotency;

my $node = new_node('owners_code', conf => "idempotency.seal_key_file = 'idempotency.keys'\n");

write_keys($node, 'k1 ' . '0123456789abcdef' x 4);

query(q{
	CREATE EXTENSION pgcrypto;
	CREATE ROLE keeper LOGIN;
	CREATE ROLE janitor LOGIN;
	GRANT ALL ON SCHEMA public TO keeper;
	CREATE SCHEMA janitor AUTHORIZATION janitor;
	GRANT EXECUTE ON FUNCTION idem_gc(int), idem_reseal(int), idem_claim_scope(text, regrole), idem_unclaim_scope(text) TO janitor;
	GRANT EXECUTE ON FUNCTION idem_set_policy(text, interval, interval, interval, int, int, int, interval, int, jsonb) TO janitor;
	GRANT EXECUTE ON FUNCTION idem_forget(text, text), idem_forget_failed(text, text, text, int) TO janitor;
	GRANT EXECUTE ON FUNCTION idem_gc(int) TO keeper;
	CREATE TABLE seen (number serial, what text, result text);
	ALTER TABLE seen OWNER TO keeper;
	ALTER SEQUENCE seen_number_seq OWNER TO keeper});
query("ALTER TABLE $_ OWNER TO keeper") for qw(idempotency_store idempotency_sweep idempotency_scope idempotency_forgotten);
# unqualified names in the owner's code are found as for the owner
query(q{
	CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
		RETURN 'done';
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END $$;
	CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO seen (what, result) VALUES (tg_table_name || ' ' || tg_op, current_user);
		INSERT INTO seen (what, result) SELECT s, attempt(s) FROM unnest(ARRAY['SET SESSION AUTHORIZATION postgres', 'SET SESSION AUTHORIZATION DEFAULT', 'RESET SESSION AUTHORIZATION', 'SET ROLE postgres',
			'RESET ROLE', 'ALTER ROLE keeper SUPERUSER', 'CREATE ROLE made', 'SELECT pg_read_file(''PG_VERSION'')',
			'CREATE TEMP TABLE planted (a int)']) s;
		SET search_path = public, keepers_own, pg_temp;
		SET work_mem = '64kB';
		IF tg_op = 'DELETE' THEN RETURN old; END IF;
		RETURN new;
	END $$},
	extra_params => [ '-U', 'keeper' ]);
for my $table (qw(idempotency_store idempotency_sweep idempotency_scope idempotency_forgotten))
{
	query("CREATE TRIGGER climb BEFORE INSERT OR UPDATE OR DELETE ON $table FOR EACH ROW EXECUTE FUNCTION climb()",
		extra_params => [ '-U', 'keeper' ]);
}

# The writes of each function. A row for idem_gc and one for idem_reseal are inserted
# without the triggers.
my %writes = (
	'SELECT idem_gc()' => { 'idempotency_store DELETE' => 1, 'idempotency_sweep INSERT' => 1 },
	'SELECT idem_reseal()' => { 'idempotency_store UPDATE' => 1 },
	q{SELECT idem_forget('old')} => { 'idempotency_store DELETE' => 1 },
	q{SELECT idem_forget_failed('f', 'mended')} => { 'idempotency_store DELETE' => 1, 'idempotency_forgotten INSERT' => 1 },
	q{SELECT idem_claim_scope('s', 'keeper')} => { 'idempotency_scope INSERT' => 1 },
	q{SELECT idem_set_policy('t', max_attempts => 3)} => { 'idempotency_scope INSERT' => 1 },
	q{SELECT idem_unclaim_scope('u')} => { 'idempotency_scope UPDATE' => 1, 'idempotency_scope DELETE' => 1 });

sub prepare
{
	query(q{SET session_replication_role = replica; TRUNCATE seen; TRUNCATE idempotency_store, idempotency_sweep, idempotency_scope;
		INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() - interval '1 hour', 'COMPLETED', 'old');
		INSERT INTO idempotency_store (expires_at, status, idempotency_key, response_payload) VALUES (now() + interval '1 hour', 'COMPLETED', 'clear', '1');
		INSERT INTO idempotency_store (expires_at, status, scope, idempotency_key) VALUES (now() + interval '1 hour', 'FAILED', 'f', 'failed');
		INSERT INTO idempotency_scope (pattern, role) VALUES ('u', 'keeper')});
	return;
}

# The triggers of these writes ran, and could not get at other rights. One statement may be no way up.
sub ran_as_owner ($name, $writes, $harmless = '')
{
	is(query(q{SELECT string_agg(what, ',' ORDER BY what) FROM (SELECT what || ' ' || count(*) FROM seen WHERE result = 'keeper' GROUP BY what) s (what)}),
		join(',', map { "$_ $writes->{$_}" } sort keys %$writes), "$name: the triggers ran as the owner");
	is(query(q{SELECT count(*) FROM seen WHERE what LIKE 'idempotency%' AND result <> 'keeper'}), '0', "$name: and as nobody else");
	is(query(q{SELECT count(*) FROM seen WHERE what !~ '^idempotency' AND what <> '} . $harmless . q{' AND result !~ '^[0-9A-Z]{5}$'}), '0', "$name: every way up is refused")
	  or diag(query('SELECT * FROM seen'));
	cmp_ok(query(q{SELECT count(*) FROM seen WHERE result ~ '^42501$'}), '>=', 6, "$name: they were tried");
	return;
}

for my $user ('postgres', 'janitor')
{
	for my $call (sort keys %writes)
	{
		my $name = "$call by $user";
		my $after;

		prepare();
		# the caller's search_path must not reach into the owner's code
		if ($user eq 'janitor')
		{
			query(q{DROP SCHEMA janitor CASCADE; CREATE SCHEMA janitor;
				CREATE TABLE janitor.seen (number serial, what text, result text); GRANT ALL ON SCHEMA janitor TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA janitor TO PUBLIC;
				GRANT ALL ON ALL SEQUENCES IN SCHEMA janitor TO PUBLIC;
				CREATE FUNCTION janitor.attempt(text) RETURNS text LANGUAGE sql AS 'SELECT ''planted by the janitor'''});
		}
		my $path = $user eq 'janitor' ? 'SET search_path = janitor, public; CREATE TEMP TABLE seen (number serial, what text, result text);' : '';
		$after = query("$path BEGIN; $call; SELECT current_user, session_user, current_setting('search_path'), current_setting('work_mem'); COMMIT",
			extra_params => [ '-U', $user ]);
		like($after, qr/^\Q$user|$user|\E(?:janitor, public|"\$user", public)\|4MB$/m, "$name: user and settings are the caller's again");
		ran_as_owner($name, $writes{$call});
	}
}

# Deferred triggers would run as the caller, so they are refused; the owner himself
# and the collector may have them.
prepare();
query(q{CREATE CONSTRAINT TRIGGER later AFTER DELETE ON idempotency_store DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION climb()},
	extra_params => [ '-U', 'keeper' ]);
is(sqlstate($node, 'SELECT idem_gc()'), '42501', 'a deferred trigger is refused where a superuser calls');
is(query('SELECT count(*) FROM idempotency_store'), '3', 'and nothing is removed');
is(query('SELECT idem_gc()', extra_params => [ '-U', 'keeper' ]), '1', 'the owner calls it');
is(query(q{SELECT count(*) FROM seen WHERE what LIKE 'idempotency_store DELETE' AND result = 'keeper'}), '2', 'then both run');
prepare();
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_until('the record is collected', sub { query('SELECT count(*) FROM idempotency_store') eq '2' });
reconfigure($node, 'idempotency.gc_enabled' => undef);
ran_as_owner('the collector', { 'idempotency_store DELETE' => 2, 'idempotency_sweep INSERT' => 1 }, 'CREATE TEMP TABLE planted (a int)');
is(query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'}), 'f', 'the owner is no superuser');
query('DROP TRIGGER later ON idempotency_store', extra_params => [ '-U', 'keeper' ]);

# The right to call is the caller's own.
query('CREATE ROLE nobody_special LOGIN; GRANT keeper TO janitor');
is(sqlstate($node, "SET ROLE nobody_special; $_"), '42501', "no right: $_") for sort keys %writes;

# After an error the caller has his own rights again, in a savepoint and in a block.
prepare();
query(q{CREATE OR REPLACE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN SET work_mem = '64kB'; RAISE 'no'; END $$}, extra_params => [ '-U', 'keeper' ]);
for my $call (sort keys %writes)
{
	is(query(qq{BEGIN; DO \$\$ BEGIN EXECUTE '} . $call =~ s/'/''/gr . qq{'; EXCEPTION WHEN raise_exception THEN NULL; END \$\$;
		SELECT current_user, current_setting('search_path'), current_setting('work_mem'); COMMIT},
		extra_params => [ '-U', 'postgres' ]), 'postgres|"$user", public|4MB', "after an error: $call");
}

# Who has the tables of the store changed would run much more of his code, so that is refused.
prepare();
is(sqlstate($node, q{SELECT idem_partition_store('4 hours')}), '42501', 'a superuser does not change the tables of another role');

is(sqlstate($node, q{SET ROLE nobody_special; SELECT idem_partition_store('4 hours')}), '42501', 'no right to divide the store');

done_testing();
