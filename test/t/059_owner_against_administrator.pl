# The owner of the tables, who is no superuser, puts code on them in every
# way that a table has for code. A superuser then calls every function and reads every view,
# and the collector visits the database. The code may run as the owner, never as somebody else.
use Idempotency;

my $node = new_node('owner_against_administrator', conf => "idempotency.gc_interval = 1\nmax_worker_processes = 16\n");
my $expired = q{INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() - interval '1 hour', 'COMPLETED', 'expired')};
my @tables = qw(idempotency_store idempotency_scope idempotency_stream idempotency_sweep idempotency_secret);

# A message in the log outlives a rollback.
query(q{CREATE ROLE keeper LOGIN; CREATE DATABASE original});
$node->safe_psql('original', qq{CREATE EXTENSION idempotency; $expired});
$node->safe_psql('original', q{
	GRANT ALL ON SCHEMA public TO keeper;
	CREATE FUNCTION handle(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT ''{"handled": true}''::jsonb';
	INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() + interval '1 hour', 'COMPLETED', 'done');
	INSERT INTO idempotency_store (expires_at, status, idempotency_key) VALUES (now() + interval '1 hour', 'COMPLETED', 'unwanted');
	INSERT INTO idempotency_scope (pattern, role) VALUES ('claimed', 'keeper');
	INSERT INTO idempotency_stream (seq, updated_at, scope, stream) VALUES (1, now(), '', 'events');
	CREATE SCHEMA keeper AUTHORIZATION keeper;
	GRANT USAGE ON SCHEMA keeper TO PUBLIC});
$node->safe_psql('original', "ALTER TABLE $_ OWNER TO keeper") for @tables;
# The owner of an extension that is trusted is who created it, and may say which tables belong to it.
$node->safe_psql('original', q{UPDATE pg_extension SET extowner = 'keeper'::regrole WHERE extname = 'idempotency'});
$node->safe_psql('original', q{
	ALTER SEQUENCE idempotency_fence OWNER TO keeper;
	ALTER TYPE idempotency_status OWNER TO keeper;
	SET ROLE keeper;
	CREATE FUNCTION keeper.note(what text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		RAISE LOG 'planted % ran as % in % by %', what, current_user, current_database(), current_setting('application_name');
		RETURN 0;
	END $$;
	CREATE FUNCTION keeper.fire() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM keeper.note(tg_argv[0]);
		IF tg_op = 'DELETE' THEN RETURN old; END IF;
		RETURN new;
	END $$;
	-- one more function of the extension, which is no reason to trust its owner
	CREATE FUNCTION keeper.member() RETURNS int LANGUAGE sql RETURN 1;
	ALTER EXTENSION idempotency ADD FUNCTION keeper.member()});

# The same with a ring of tables, whose first one is over.
my @ring = qw(idempotency_ring idempotency_store_p1 idempotency_store_p2);
query('CREATE DATABASE ringed TEMPLATE original');
$node->safe_psql('ringed', "ALTER TABLE $_ OWNER TO postgres") for @tables, 'idempotency_fence';
$node->safe_psql('ringed', q{SELECT idem_partition_store('12 hours')});
$node->safe_psql('ringed', 'SELECT idem_gc()') for 1, 2;
$node->safe_psql('ringed', q{UPDATE idempotency_ring SET range_start = now() - interval '10 days', range_end = now() - interval '1 day' WHERE name = 'idempotency_store_p1'});
$node->safe_psql('ringed', "ALTER TABLE $_ OWNER TO keeper") for @tables, 'idempotency_fence', 'idempotency_ring', split /\n/, $node->safe_psql('ringed', 'SELECT name FROM idempotency_partitions');

# Code that every table can have.
sub on_each (@on)
{
	return (
		'check' => [ map { "ALTER TABLE $_ ADD CHECK (keeper.note('check') = 0)" } @on ],
		'index expression' => [ map { "CREATE INDEX ON $_ ((1 + keeper.note('index')))" } @on ],
		'index predicate' => [ map { "CREATE INDEX ON $_ ((true)) WHERE 0 = keeper.note('index')" } @on ],
		'statistics' => [ map { ("CREATE STATISTICS s_$_ ON (1 + keeper.note('statistics')), (2 + keeper.note('statistics')) FROM $_", "ANALYZE $_") } @on ],
		'policy' => [
			map { ("ALTER TABLE $_ ENABLE ROW LEVEL SECURITY", "ALTER TABLE $_ FORCE ROW LEVEL SECURITY",
				"CREATE POLICY p ON $_ USING (keeper.note('policy') = 0) WITH CHECK (keeper.note('policy') = 0)") } @on ],
		'trigger' => [ map { "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON $_ FOR EACH ROW EXECUTE FUNCTION keeper.fire('trigger')" } @on ],
		'condition of a trigger' => [
			map { "CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON $_ FOR EACH ROW WHEN (keeper.note('condition') = 0) EXECUTE FUNCTION keeper.fire('trigger')" } @on ],
		'deferred trigger' => [
			map { "CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON $_ DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION keeper.fire('trigger')" } @on ]);
}

# Another table of that name in its place, as a member of the extension.
sub in_place_of ($table, @statements)
{
	return ["ALTER EXTENSION idempotency DROP TABLE $table", "ALTER TABLE $table RENAME TO moved", @statements,
		"ALTER EXTENSION idempotency ADD TABLE public.$table"];
}

# What the owner puts there, a database for each.
my $moved = 'ALTER TABLE %1$s RENAME TO moved';
my %plants = (
	on_each(@tables),
	(map { ("partition key of $_" => in_place_of($_, "CREATE TABLE public.$_ (x int, tenant int) PARTITION BY RANGE ((x + keeper.note('partition_key')))")) } @tables),
	'partition key below' => in_place_of('idempotency_store',
		'CREATE TABLE public.idempotency_store (LIKE moved) PARTITION BY RANGE (expires_at)',
		q{CREATE TABLE below PARTITION OF idempotency_store DEFAULT PARTITION BY RANGE ((attempt + keeper.note('partition_key')))}),
	'partition key below a hash' => in_place_of('idempotency_store',
		'CREATE TABLE public.idempotency_store (LIKE moved) PARTITION BY HASH (scope)',
		q{CREATE TABLE below PARTITION OF idempotency_store FOR VALUES WITH (MODULUS 1, REMAINDER 0) PARTITION BY RANGE ((attempt + keeper.note('partition_key')))}),
	(map { ("view in place of $_" => ["ALTER TABLE $_ RENAME TO moved", "CREATE VIEW public.$_ AS SELECT *, keeper.note('view') FROM moved"]) } @tables),
	'view in place of idempotency_fence' => [ 'ALTER SEQUENCE idempotency_fence RENAME TO moved', q{CREATE VIEW public.idempotency_fence AS SELECT keeper.note('view')} ],
	'default' => [
		q{ALTER TABLE idempotency_store ADD extra int DEFAULT keeper.note('default')},
		q{ALTER TABLE idempotency_stream ADD extra int DEFAULT keeper.note('default')},
		q{ALTER TABLE idempotency_sweep ADD extra int DEFAULT keeper.note('default')},
		q{ALTER TABLE idempotency_scope ALTER max_attempts SET DEFAULT keeper.note('default')} ],
	'generated column' => [
		map { "ALTER TABLE $_ ADD extra int GENERATED ALWAYS AS (keeper.note('generated')) STORED" } qw(idempotency_store idempotency_stream idempotency_sweep) ],
	'generated column of the rules' => [
		q{ALTER TABLE idempotency_scope ADD extra int GENERATED ALWAYS AS (keeper.note('generated')) STORED} ],
	'rule' => [ map { ("CREATE RULE deleted AS ON DELETE TO $_ DO ALSO SELECT keeper.note('rule')") } @tables ],
	'rule of inserts' => [ map { ("CREATE RULE inserted AS ON INSERT TO $_ DO ALSO SELECT keeper.note('rule')") } @tables ],
	'type' => [
		q{CREATE FUNCTION keeper.distance(text, text) RETURNS float8 IMMUTABLE LANGUAGE sql AS 'SELECT keeper.note(''type'')::float8'},
		'CREATE TYPE keeper.span AS RANGE (subtype = text, subtype_diff = keeper.distance)',
		map { ("ALTER TABLE $_ ADD extra keeper.span DEFAULT '[a,z]'", "CREATE INDEX ON $_ USING gist (extra)") } qw(idempotency_store idempotency_stream idempotency_sweep) ],
	'domain' => [
		q{CREATE DOMAIN keeper.narrow AS int CHECK (keeper.note('domain') = 0)},
		map { "ALTER TABLE $_ ADD extra keeper.narrow" } qw(idempotency_store idempotency_stream idempotency_sweep) ],
	'cast' => [
		'CREATE TYPE keeper.page AS (page int8)',
		q{CREATE FUNCTION keeper.page(int8) RETURNS keeper.page LANGUAGE sql AS 'SELECT ROW($1 + keeper.note(''cast''))::keeper.page'},
		q{CREATE FUNCTION keeper.number(keeper.page) RETURNS int8 LANGUAGE sql AS 'SELECT $1.page + keeper.note(''cast'')'},
		'CREATE CAST (int8 AS keeper.page) WITH FUNCTION keeper.page(int8) AS IMPLICIT',
		'CREATE CAST (keeper.page AS int8) WITH FUNCTION keeper.number(keeper.page) AS IMPLICIT',
		'ALTER TABLE idempotency_stream ALTER seq TYPE keeper.page',
		'ALTER TABLE idempotency_sweep ALTER next_page TYPE keeper.page' ],
	'operator' => [
		q{CREATE FUNCTION keeper.same(text, text) RETURNS bool LANGUAGE sql AS 'SELECT keeper.note(''operator'') = 0'},
		q{CREATE FUNCTION keeper.after(timestamptz, timestamptz) RETURNS bool LANGUAGE sql AS 'SELECT keeper.note(''operator'') = 0'},
		map { ("CREATE OPERATOR public.$_ (FUNCTION = keeper.same, LEFTARG = text, RIGHTARG = text)",
			"CREATE OPERATOR public.$_ (FUNCTION = keeper.after, LEFTARG = timestamptz, RIGHTARG = timestamptz)") } qw(= < > <= >= <>) ]);

# The same on the tables of the ring, and on the one that has their ranges.
my %on_ring = (
	on_each(@ring),
	'partition key' => [ 'ALTER TABLE idempotency_ring RENAME TO moved', q{CREATE TABLE public.idempotency_ring (x int) PARTITION BY RANGE ((x + keeper.note('partition_key')))} ],
	'partition key of a table' => [
		'ALTER TABLE idempotency_store_p1 NO INHERIT idempotency_store', 'ALTER TABLE idempotency_store_p1 RENAME TO moved',
		q{CREATE TABLE public.idempotency_store_p1 (LIKE moved) PARTITION BY RANGE ((attempt + keeper.note('partition_key')))} ],
	'view' => [ 'ALTER TABLE idempotency_ring RENAME TO moved', q{CREATE VIEW public.idempotency_ring AS SELECT *, keeper.note('view') FROM moved} ],
	'default' => [ map { "ALTER TABLE $_ ADD extra int DEFAULT keeper.note('default')" } 'idempotency_ring' ],
	'generated column' => [ map { "ALTER TABLE $_ ADD extra int GENERATED ALWAYS AS (keeper.note('generated')) STORED" } 'idempotency_store' ],
	'rule' => [ map { ("CREATE RULE changed AS ON UPDATE TO $_ DO ALSO SELECT keeper.note('rule')") } @ring ],
	'trigger of TRUNCATE' => [ map { "CREATE TRIGGER t AFTER TRUNCATE ON $_ EXECUTE FUNCTION keeper.fire('trigger')" } @ring ],
	'domain' => [ q{CREATE DOMAIN keeper.narrow AS int CHECK (keeper.note('domain') = 0)}, 'ALTER TABLE idempotency_ring ADD extra keeper.narrow DEFAULT 1' ]);
$plants{"ring: $_"} = $on_ring{$_} for keys %on_ring;
# and if idempotency_ring is all that he owns
$plants{'ring alone'} = [
	q{CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON idempotency_ring FOR EACH ROW EXECUTE FUNCTION keeper.fire('trigger')},
	q{CREATE RULE changed AS ON UPDATE TO idempotency_ring DO ALSO SELECT keeper.note('rule')} ];

# and if it is a type
$plants{'cast of a type alone'} = $plants{'ring: cast of a type alone'} = [
	q{CREATE FUNCTION keeper.text(idempotency_status) RETURNS text LANGUAGE sql AS 'SELECT ''FAILED'' || keeper.note(''cast'')'},
	'CREATE CAST (idempotency_status AS text) WITH FUNCTION keeper.text(idempotency_status) AS IMPLICIT' ];

# Each call in a session of its own, so that nothing is in a cache.
my %calls = (
	idem_begin => q{BEGIN; SELECT idem_begin('new'); SELECT idem_complete('new', '{"a": 1}'); COMMIT},
	idem_begin_lease => q{DO $$ DECLARE o idem_operation := idem_begin('leased', lease => '1 h'); BEGIN PERFORM idem_extend(o, '2 h'); PERFORM idem_fail(o, '{}'); END $$},
	idem_progress => q{DO $$ DECLARE o idem_operation := idem_begin('noted', lease => '1 h'); BEGIN PERFORM idem_progress(o, '1'); PERFORM idem_complete(o, '1'); END $$},
	idem_lost_attempts => q{BEGIN; SELECT idem_begin('lost'); ROLLBACK; SELECT idem_lost_attempts('lost'), idem_begin('lost', lease => '1 h')},
	idem_release => q{DO $$ DECLARE o idem_operation := idem_begin('released', lease => '1 h'); BEGIN PERFORM idem_release(o); END $$},
	idem_lookup => q{SELECT idem_lookup('done')},
	idem_call => q{SELECT idem_call('handle', 'called')},
	idem_begin_batch => q{BEGIN; SELECT idem_begin_batch('{b1,b2,done}'); SELECT idem_complete_batch('{b1,b2}'); COMMIT},
	idem_advance => q{SELECT idem_advance('events', 7), idem_advance('others', 7)},
	idem_lock => q{SELECT idem_lock('{resource}')},
	idem_forget => q{SELECT idem_forget('unwanted')},
	idem_forget_failed => q{SELECT idem_forget_failed('', 'mended')},
	idem_gc => q{SELECT idem_gc()},
	idem_reseal => q{SELECT idem_reseal()},
	idem_claim_scope => q{SELECT idem_claim_scope('s', 'keeper')},
	idem_unclaim_scope => q{SELECT idem_unclaim_scope('claimed')},
	idem_set_policy => q{SELECT idem_set_policy('p', max_lease => '1 h')},
	idem_may_use_scope => q{SELECT idem_may_use_scope('claimed')},
	idempotency_failures => q{SELECT * FROM idempotency_failures},
	idempotency_in_flight => q{SELECT * FROM idempotency_in_flight},
	idempotency_partitions => q{SELECT * FROM idempotency_partitions},
	idempotency_stats => q{SELECT * FROM idempotency_stats},
	idem_stats_reset => q{SELECT idem_stats_reset()},
	idem_grant => q{SELECT idem_grant('keeper')},
	idem_revoke => q{SELECT idem_revoke('keeper')},
	idem_schedule_gc => q{SELECT idem_schedule_gc()},
	idem_partition_store => q{SELECT idem_partition_store('1 day')},
	idem_unpartition_store => q{SELECT idem_unpartition_store()},
	idem_distribute_store => q{SELECT idem_distribute_store('pg_class')},
	idem_undistribute_store => q{SELECT idem_undistribute_store()},
	idem_prepare_node => q{SELECT idem_prepare_node('text')},
	idem_restore_node => q{SELECT idem_restore_node()});
my @order = ((grep { !/forget|gc|unclaim/ } sort keys %calls), qw(idem_forget idem_forget_failed idem_unclaim_scope idem_gc));
my $number = 0;
my %database = map { $_ => 'plant' . ++$number } sort keys %plants;

for my $plant (sort keys %plants)
{
	my $database = $database{$plant};
	my $script = '';

	$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE " . ($plant =~ /^ring/ ? 'ringed' : 'original'));
	if ($plant eq 'ring alone' || $plant eq 'ring: cast of a type alone')
	{
		$node->safe_psql($database, "ALTER TABLE $_ OWNER TO postgres") for 'idempotency_store', split /\n/, $node->safe_psql($database, 'SELECT name FROM idempotency_partitions');
	}
	if ($plant eq 'cast of a type alone')
	{
		$node->safe_psql($database, "ALTER TABLE $_ OWNER TO postgres") for @tables;
	}
	$node->safe_psql($database, join('; ', @{ $plants{$plant} }), extra_params => [ '-U', 'keeper' ]);
	$script .= "\\c\nSET application_name = '$_';\n$calls{$_};\n" for @order;
	$node->psql($database, $script, on_error_stop => 0);
}

# An operator class could be anything at all, so only superusers make them.
is(sqlstate($node, q{SET ROLE keeper; CREATE OPERATOR CLASS keeper.mine FOR TYPE int USING btree AS OPERATOR 1 <, FUNCTION 1 btint4cmp(int, int)}, 'original'),
	'42501', 'the owner makes no operator class');

# The collector's turn: after two rounds it has been in every database.
for my $plant (sort keys %plants)
{
	$node->psql($database{$plant}, "SET session_replication_role = replica; $expired", extra_params => [ '-U', 'keeper' ]);
	# idem_gc has given the first table of a ring its next range
	$node->psql($database{$plant}, q{UPDATE idempotency_ring SET range_start = now() - interval '10 days', range_end = now() - interval '1 day' WHERE name = 'idempotency_store_p2'},
		extra_params => [ '-U', 'keeper' ]) if $plant =~ /^ring/;
}
$node->append_conf('postgresql.conf', 'idempotency.gc_enabled = on');
$node->reload;
for my $round (1, 2)
{
	query($expired);
	wait_until("round $round", sub { query('SELECT count(*) FROM idempotency_store') eq '0' });
}

# Refused before anything is opened, or needed by nothing that is called: only the owner inserts into the ring.
my $never = qr/^(?:ring: )?(?:partition key|view|operator|type|policy|cast of a type)|^ring: (?:default|domain)$/;
# A query on a view is planned for its reader, whose own query it is: docs/security.md.
my @planned = ('index expression', 'index predicate', 'statistics');
my %of_the_reader = map { ("$_, idempotency_in_flight" => 1, "$_, idempotency_failures" => 1) } @planned, (map { "ring: $_" } @planned, 'check');
$of_the_reader{"ring: $_, idempotency_partitions"} = 1 for @planned;
my $log = slurp_file($node->logfile);
my %ran;

$ran{$2}{ $3 || 'collector' }{$1}++ while $log =~ /planted \w+ ran as (\w+) in (\w+) by ([^\n]*)/g;
for my $plant (sort keys %plants)
{
	my $ran = $ran{ $database{$plant} } // {};
	my @calls = grep { $calls{$_} || $_ eq 'collector' } sort keys %$ran;

	for my $call (@calls)
	{
		next if $of_the_reader{"$plant, $call"};
		is(join(',', sort keys %{ $ran->{$call} }), 'keeper', "$plant, $call");
	}
	if ($plant =~ $never)
	{
		is("@calls", '', "$plant: never runs");
	}
	else
	{
		cmp_ok(scalar @calls, '>', 0, "$plant: runs");
	}
}
for my $plant ('check', 'default', 'index expression', 'trigger', 'deferred trigger')
{
	ok($ran{ $database{$plant} }{collector}{keeper}, "$plant: the collector runs it");
}
ok($ran{ $database{"ring: $_"} }{collector}{keeper}, "ring: $_: the collector runs it") for 'check', 'index expression', 'trigger', 'trigger of TRUNCATE', 'deferred trigger';
ok($ran{ $database{'ring alone'} }{collector}{keeper}, 'ring alone: the collector runs it');
is(query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'}), 'f', 'the owner is no superuser');

done_testing();
