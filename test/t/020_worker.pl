# The background collector: which databases it visits, how much it does at a
# time, and that it blocks no other session.
use Idempotency;
use Collector;
use Time::HiRes qw(time);

$Idempotency::soon = 120;

my $node = new_node('worker', conf => <<'CONF');
idempotency.gc_enabled = on
idempotency.gc_interval = 1
idempotency.gc_databases = 'postgres, other, "Quoted, Name", plain, nosuch'
CONF

# A collector is at work in that database.
sub wait_for_collector ($server, $database)
{
	wait_until("a collector works in $database", sub { $server->safe_psql('postgres', <<"SQL") });
SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency collector' AND datname = '$database'
SQL
	return;
}

# ---- which databases ----

my $weird = '"We ird; %s"';

create_database('other', $weird);
create_database('Quoted, Name');
create_database('excluded');
query('CREATE DATABASE plain');

soon('the launcher shows itself', sub { launcher($node) });
is(query(<<'SQL'), 'idempotency launcher||t', 'how it shows itself');
SELECT application_name, datname, wait_event IS NOT NULL FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'
SQL

put($node, 'excluded', 10);
put($node, 'postgres', 10);
put($node, 'postgres', 3, live => 1);
put($node, 'other', 10, schema => $weird);
put($node, 'Quoted, Name', 10);
soon('collected: only what has expired', sub { rows($node, 'postgres') == 3 });
is_collected('collected: in a schema with a strange name', $node, 'other', $weird);
is_collected('collected: in a database with a strange name', $node, 'Quoted, Name');
rounds_pass($node, 2, 'postgres');
is(rows($node, 'excluded'), 10, 'not collected: a database that is not named');
reconfigure($node, 'idempotency.gc_databases' => '*');
is_collected('collected after a reload: every database', $node, 'excluded');
unlike(trouble_of($node), qr/(?:ERROR|FATAL|PANIC|TRAP|signal)/,
	'databases without the extension, and those that do not exist, are no errors');

# A name in the setting that no database has is reported once per reload.
my $before_reload = -s $node->logfile;
my $unknown = qr/WARNING:  "idempotency.gc_databases" names databases that do not exist: /;

reconfigure($node, 'idempotency.gc_databases' => 'postgres, Nosuch, "Nosuch", Other, PLAIN');
soon('unknown names are reported after a reload', sub {
		slurp_file($node->logfile, $before_reload) =~ /$unknown"nosuch", "Nosuch"\n.*HINT:  Names are folded to lower case/ });
rounds_pass($node, 3, 'postgres');
is(count_in_log($node, $unknown, $before_reload), 1, 'and not in each round');
reconfigure($node, 'idempotency.gc_enabled' => 'off');
soon('also while the collector is switched off', sub { count_in_log($node, $unknown, $before_reload) == 2 });
reconfigure($node, 'idempotency.gc_enabled' => 'on');
soon('and when it is on again', sub { count_in_log($node, $unknown, $before_reload) == 3 });
reconfigure($node, 'idempotency.gc_databases' => 'postgres, other');
rounds_pass($node, 2, 'postgres');
is(count_in_log($node, $unknown, $before_reload), 3, 'nothing is reported of names that exist');
reconfigure($node, 'idempotency.gc_databases' => '*');
my $before_all = -s $node->logfile;
rounds_pass($node, 2, 'postgres');
is(trouble_of($node, $before_all), '', 'nor of "*"');

# The test can only see that nothing happens, so it takes some intervals.
reconfigure($node, 'idempotency.gc_enabled' => 'off');
rounds_pass($node, 0, 'postgres');
wait_until('no collector works', sub { !query(q{SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency collector' HAVING count(*) > 0}) });
query('SELECT pg_sleep(1)');
put($node, 'other', 10, schema => $weird);
query('SELECT pg_sleep(3)');
is(rows($node, 'other', $weird), 10, 'switched off by a reload');
reconfigure($node, 'idempotency.gc_enabled' => 'on');
is_collected('switched on by a reload', $node, 'other', $weird);

# ---- how much at a time ----

sub make_backlog ($database, $count, $batch)
{
	reconfigure($node, 'idempotency.gc_enabled' => 'off');
	reconfigure($node, 'idempotency.gc_batch_size' => $batch);
	query('SELECT pg_sleep(1.5)');
	put($node, $database, $count);
	return;
}

create_database('backlog');
$node->safe_psql('backlog', <<'SQL');
CREATE TABLE step (id xid8 PRIMARY KEY);
CREATE FUNCTION note_step() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN INSERT INTO step VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING; RETURN NULL; END $$;
CREATE TRIGGER note_step AFTER DELETE ON idempotency_store FOR EACH STATEMENT EXECUTE FUNCTION note_step();
SQL
make_backlog('backlog', 200_000, 1000);
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_for_collector($node, 'backlog');
is(query(<<'SQL'), 't', 'the collector shows itself');
SELECT coalesce(bool_and(application_name IN ('idempotency collector', '')), true)
FROM pg_stat_activity WHERE backend_type = 'idempotency collector'
SQL
soon('a backlog can be seen', sub { figure($node, 'backlog_rows', 'backlog') > 0 });
is_collected('the backlog is gone', $node, 'backlog');
is(figure($node, 'collected_rows', 'backlog'), 200_000, 'every row was counted');
cmp_ok($node->safe_psql('backlog', 'SELECT count(*) FROM step'), '>=', 200, 'in transactions of a batch each');
cmp_ok(figure($node, 'sweeps', 'backlog'), '<', 100, 'which are no sweeps: these go round the store');
$node->safe_psql('backlog', 'DROP TRIGGER note_step ON idempotency_store');
soon('no backlog is left to be seen', sub { figure($node, 'backlog_rows', 'backlog') == 0 });

# The collector notices a reload in the middle of a backlog, too.
make_backlog('backlog', 100_000, 50);
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_for_collector($node, 'backlog');
reconfigure($node, 'idempotency.gc_enabled' => 'off');
wait_until('nothing moves', sub {
		my $before = figure($node, 'collected_rows', 'backlog');

		query('SELECT pg_sleep(2.5)');
		return figure($node, 'collected_rows', 'backlog') == $before;
	});
cmp_ok(rows($node, 'backlog'), '>', 0, 'switched off in the middle of a backlog');

# ---- it blocks no other session ----

# CREATE DATABASE ... TEMPLATE, RENAME and DROP succeed. The backlog is still there.
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_for_collector($node, 'backlog');
is(sqlstate($node, 'CREATE DATABASE copy TEMPLATE backlog'), '', 'CREATE DATABASE TEMPLATE while a collector works');
put($node, 'backlog', 20_000);
wait_for_collector($node, 'backlog');
is(sqlstate($node, 'ALTER DATABASE backlog RENAME TO moved'), '', 'ALTER DATABASE RENAME while a collector works');
put($node, 'moved', 20_000);
wait_for_collector($node, 'moved');
is(sqlstate($node, 'DROP DATABASE moved'), '', 'DROP DATABASE while a collector works');
is(sqlstate($node, 'DROP DATABASE copy'), '', 'and of another one that it visits');

# DROP EXTENSION succeeds, and the worker leaves without an error.
my $before_drop = -s $node->logfile;
my $dropping = session($node, 'excluded');
my $sweeps;

put($node, 'excluded', 20_000);
wait_for_collector($node, 'excluded');
is(sqlstate($node, 'DROP EXTENSION idempotency', 'excluded'), '', 'DROP EXTENSION while a collector works');
$node->safe_psql('excluded', 'CREATE EXTENSION idempotency');
ask($dropping, 'BEGIN');
ask($dropping, 'DROP EXTENSION idempotency');
# either it waits for the DROP, or it does not and goes on with other databases
$sweeps = figure($node, 'sweeps', 'postgres');
wait_until('a collector has met the DROP', sub {
		figure($node, 'sweeps', 'postgres') >= $sweeps + 2 || query(<<'SQL') eq 't' });
SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND backend_type = 'idempotency collector'
SQL
ask($dropping, 'COMMIT');
$dropping->quit;
rounds_pass($node, 1, 'postgres');
is(trouble_of($node, $before_drop), '', 'a collector leaves quietly when the extension is dropped');

# It has found the extension, and looks for its objects, when the DROP commits.
$node->safe_psql('excluded', 'CREATE EXTENSION idempotency');
$dropping = session($node, 'excluded');
ask($dropping, 'BEGIN');
ask($dropping, 'LOCK TABLE pg_enum IN ACCESS EXCLUSIVE MODE');
wait_until('a collector looks for its objects', sub { query(<<'SQL') eq 't' });
SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND backend_type = 'idempotency collector' AND relation = 'pg_enum'::regclass
SQL
ask($dropping, 'DROP EXTENSION idempotency');
ask($dropping, 'COMMIT');
$dropping->quit;
rounds_pass($node, 1, 'postgres');
is(trouble_of($node, $before_drop), '', 'and when it looks for objects that go with the extension');
$node->safe_psql('excluded', 'CREATE EXTENSION idempotency');

# DDL on one store delays neither the other databases nor itself.
my $locking = session($node, 'excluded');

ask($locking, 'BEGIN');
ask($locking, 'LOCK TABLE idempotency_store IN ACCESS EXCLUSIVE MODE');
put($node, 'other', 10, schema => $weird);
rounds_pass($node, 2, 'postgres');
is_collected('collected: while the store of another database is locked', $node, 'other', $weird);
ask($locking, 'COMMIT');
$locking->quit;
put($node, 'excluded', 10);
is_collected('collected: once the lock is gone', $node, 'excluded');

# Settings of a database do not apply to the collector.
query("ALTER DATABASE other SET $_")
  for 'default_transaction_read_only = on', q{default_transaction_isolation = 'serializable'},
  q{search_path = ''}, q{statement_timeout = '1ms'}, q{lock_timeout = '1ms'}, q{role = 'pg_monitor'};
put($node, 'excluded', 10);
{
	# settings of the connection have priority over those of the database
	local $ENV{PGOPTIONS} =
	  '-c statement_timeout=0 -c lock_timeout=0 -c default_transaction_read_only=off';

$node->safe_psql('other', <<"SQL");
SET default_transaction_read_only = off;
BEGIN READ WRITE;
RESET ROLE;
SET LOCAL role = none;
INSERT INTO $weird.idempotency_store (idempotency_key, expires_at, status) VALUES ('settings', now() - interval '1 day', 'COMPLETED');
COMMIT;
SQL
soon('collected: whatever the database sets', sub { $node->safe_psql('other',
			"SET ROLE none; SELECT count(*) FROM $weird.idempotency_store") == 0 });
}
query('ALTER DATABASE other RESET ALL');

# A missing synchronous standby delays commits, but not those of the collector:
# otherwise it would stay in the database as long.
{
	local $ENV{PGOPTIONS} = '-c synchronous_commit=local';

	reconfigure($node, synchronous_standby_names => 'away');
	create_database('brief');
	put($node, 'brief', 10);
	put($node, 'excluded', 10);
	is_collected('collected: while a synchronous standby is away', $node, 'brief');
	is_collected('collected: in every database', $node, 'excluded');
	is(sqlstate($node, 'DROP DATABASE brief'), '', 'DROP DATABASE while a synchronous standby is away');
	reconfigure($node, synchronous_standby_names => undef);
	rounds_pass($node, 1, 'postgres');
}

# A DROP DATABASE that was interrupted leaves a database that nobody can enter
# (15.4 and later).
query('CREATE DATABASE invalid ALLOW_CONNECTIONS false');
query(q{UPDATE pg_database SET datconnlimit = -2, datallowconn = true WHERE datname = 'invalid'});
rounds_pass($node, 2, 'postgres');
unlike(trouble_of($node), qr/invalid database/, 'not tried: a database that is invalid');
query('DROP DATABASE invalid');

# The pause grows, and other databases are visited.
my $before_failures = -s $node->logfile;
my $since = time;

$node->safe_psql('excluded', <<'SQL');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION refuse();
SQL
put($node, 'excluded', 10);
soon('a sweep fails', sub { slurp_file($node->logfile, $before_failures) =~ /not this one/ });
put($node, 'other', 10, schema => $weird);
is_collected('collected: while another database fails', $node, 'other', $weird);
rounds_pass($node, 12, 'postgres');
my $failures = count_in_log($node, qr/ERROR:  not this one/, $before_failures);
cmp_ok($failures, '>=', 2, 'a sweep that fails is tried again');
like(slurp_file($node->logfile, $before_failures), qr/ERROR:  not this one\n.*CONTEXT: .*\n(?:\t.*\n)*\tidempotency collector in database "excluded"$/m,
	'the log says in which database');
cmp_ok($failures, '<=', 2 + log(time - $since) / log(2), 'but later and later');
$node->safe_psql('excluded', 'DROP TRIGGER refuse ON idempotency_store');
is_collected('collected: when it fails no more', $node, 'excluded');

# The collector starts as a superuser, but the owner's triggers run with the
# owner's rights, also deferred ones at COMMIT.
$node->safe_psql('excluded', <<'SQL');
CREATE ROLE keeper;
ALTER TABLE idempotency_store OWNER TO keeper;
ALTER TABLE idempotency_sweep OWNER TO keeper;
CREATE TABLE seen (tg text, who name);
GRANT INSERT ON seen TO keeper;
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN INSERT INTO public.seen VALUES (tg_name, current_user); RETURN old; END $$;
CREATE TRIGGER at_once BEFORE DELETE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION see();
CREATE CONSTRAINT TRIGGER put_off AFTER DELETE ON idempotency_store DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
SQL
put($node, 'excluded', 10);
is_collected('collected: a store of somebody who is no superuser', $node, 'excluded');
is($node->safe_psql('excluded', 'SELECT tg, who, count(*) FROM seen GROUP BY 1, 2 ORDER BY 1'),
	"at_once|keeper|10\nput_off|keeper|10", 'its triggers run as the owner');
$node->safe_psql('excluded', 'DROP TRIGGER at_once ON idempotency_store; DROP TRIGGER put_off ON idempotency_store');

# ---- ended from outside ----

my $first = launcher($node);

make_backlog('excluded', 50_000, 50);
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_for_collector($node, 'excluded');
wait_until('a collector is ended', sub { query(<<'SQL') });
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency collector' AND datname = 'excluded'
SQL
reconfigure($node, 'idempotency.gc_batch_size' => 10000);
is_collected('collected: after a collector was ended', $node, 'excluded');
query("SELECT pg_terminate_backend($first)");
soon('a launcher that was ended comes back', sub { (launcher($node) || $first) != $first });
put($node, 'postgres', 10);
soon('collected: by the new launcher', sub { rows($node, 'postgres') == 3 });

make_backlog('excluded', 100_000, 50);
reconfigure($node, 'idempotency.gc_enabled' => 'on');
wait_for_collector($node, 'excluded');
my $start = time;
$node->stop('fast');
cmp_ok(time - $start, '<', 10, 'a fast shutdown does not wait for a backlog');
is(join("\n", grep { !/not this one|due to administrator command|invalid database|names databases that do not exist/ } split /\n/, trouble_of($node)), '',
	'nothing else in the log');

# ---- no worker is free ----

# One is taken by logical replication.
my $small = new_node('small', conf => <<'CONF');
idempotency.gc_enabled = on
idempotency.gc_interval = 1
max_worker_processes = 2
CONF

soon('no worker is free: the log says so, with a hint', sub {
		slurp_file($small->logfile) =~ /LOG:  idempotency collector: no background worker is free\n.*HINT:  Raise max_worker_processes/ });
is($small->safe_psql('postgres', q{SELECT outcome FROM idem_begin('k', lease => '1 hour')}),
	'ACQUIRED', 'no worker is free: functions work');
put($small, 'postgres', 10);
is($small->safe_psql('postgres', 'SELECT idem_gc()'), 10, 'no worker is free: by hand it goes');
$small->append_conf('postgresql.conf', 'max_worker_processes = 1');
$small->restart;
is($small->safe_psql('postgres', q{SELECT outcome FROM idem_begin('k')}), 'IN_PROGRESS', 'no launcher: functions work');
is(launcher($small), '', 'no launcher');
like(slurp_file($small->logfile), qr/too many background workers/, 'no launcher: the log says so');
$small->append_conf('postgresql.conf', 'max_worker_processes = 8');
put($small, 'postgres', 10);
$small->restart;
soon('enough workers: it is collected', sub { rows($small, 'postgres') == 1 });
$small->stop;

# ---- a standby ----

my $primary = new_node('primary', allows_streaming => 1);
my $standby = new_standby($primary, "idempotency.gc_enabled = on\nidempotency.gc_interval = 1");

put($primary, 'postgres', 10);
$primary->wait_for_catchup($standby);
is(launcher($standby), '', 'standby: no launcher');
is(rows($standby, 'postgres'), 10, 'standby: nothing is collected');
$primary->stop;
$standby->promote;
is_collected('promoted: collected', $standby, 'postgres');
soon('promoted: the launcher shows itself', sub { launcher($standby) });
unlike(trouble_of($standby), qr/ERROR|WARNING|PANIC|TRAP|idempotency/, 'promoted: nothing else in the log');
$standby->stop;

done_testing();
