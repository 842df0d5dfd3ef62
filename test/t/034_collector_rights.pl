# The collector starts as a superuser. Triggers of the store run with the rights
# of the store's owner there, and cannot get back to those of the superuser.
use Idempotency;

my $node = new_node('collector_rights', conf => "idempotency.gc_enabled = off\nidempotency.gc_interval = 1\n");

query(q{
	CREATE ROLE keeper LOGIN;
	GRANT ALL ON SCHEMA public TO keeper;
	ALTER TABLE idempotency_store OWNER TO keeper;
	ALTER TABLE idempotency_sweep OWNER TO keeper;
	CREATE TABLE seen (what text PRIMARY KEY, result text);
	ALTER TABLE seen OWNER TO keeper});
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
		RETURN 'done, as ' || current_user;
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END $$;
	CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO seen VALUES (tg_name || ' user', current_user);
		INSERT INTO seen SELECT tg_name || ' ' || s, attempt(s) FROM unnest(ARRAY['SET SESSION AUTHORIZATION postgres', 'SET SESSION AUTHORIZATION DEFAULT',
			'RESET SESSION AUTHORIZATION', 'SET ROLE postgres', 'ALTER ROLE keeper SUPERUSER', 'CREATE ROLE made']) s;
		RETURN old;
	END $$;
	CREATE TRIGGER before BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION climb();
	CREATE CONSTRAINT TRIGGER deferred AFTER DELETE ON idempotency_store DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION climb();
	INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() - interval '1 hour', 'COMPLETED', 'k')},
	extra_params => [ '-U', 'keeper' ]);
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_until('the record is collected', sub { query('SELECT count(*) FROM idempotency_store') eq '0' });

is(query(q{SELECT string_agg(what || ': ' || result, ', ' ORDER BY what) FROM seen WHERE what LIKE '%user'}),
	'before user: keeper, deferred user: keeper', 'both triggers ran, as the owner of the store');
is(query(q{SELECT count(*) FROM seen WHERE result ~ '^[0-9A-Z]{5}$'}), '12', 'and every way up is refused')
  or diag(query('SELECT * FROM seen'));
is(query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'}), 'f', 'the owner is no superuser');

done_testing();
