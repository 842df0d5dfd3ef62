# Each step of the protocol of the ring of tables, and the attack that it stands
# against: stale sessions, misplaced rows, rows that come between
# a look and TRUNCATE, tables of others.
use Idempotency;

my ($stage, $conf) = built_with('-DIDEM_FAULTS');
my $node = new_node('ring', conf => "$conf\nwal_level = replica\nmax_wal_senders = 2\n");

# Collection by a session of its own, and what it warns of.
sub collect
{
	my ($stdout, $stderr);

	$node->psql('postgres', 'SELECT idem_gc()', stdout => \$stdout, stderr => \$stderr);
	return $stderr =~ /WARNING:\s+([^\n]*)/ ? $1 : '';
}

sub states { return query(q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state) FROM idempotency_partitions}) }

# Where the records of a name are: in the store itself, or in a table of the ring.
sub tables_with ($key)
{
	return query("SELECT string_agg(replace(tableoid::regclass::text, 'idempotency_', ''), ' ' ORDER BY expires_at) FROM idempotency_store WHERE idempotency_key = '$key'");
}

sub run ($key, $retention = undef)
{
	return query(sprintf q{BEGIN; SELECT outcome FROM idem_begin('%1$s') \gset
\if `test :outcome = ACQUIRED && echo 1 || echo 0`
SELECT FROM idem_complete('%1$s', '1'%2$s);
\endif
COMMIT; SELECT :'outcome'}, $key, $retention ? ", retention => '$retention'" : '') =~ s/\n//gr;
}

sub put ($table, $key, $expires, $more = undef)
{
	return query("INSERT INTO idempotency_store$table (idempotency_key, status, expires_at, response_payload"
		  . ($more ? ", lease_expires_at, fence) VALUES ('$key', 'PENDING'" : ") VALUES ('$key', 'COMPLETED'")
		  . ", now() + interval '$expires', '1'" . ($more ? ", $more)" : ')'));
}

# A table whose range was over at this time, as sessions of now find it.
sub make_over ($table, $ago)
{
	return query("UPDATE idempotency_ring SET kept_until = NULL, range_start = now() - interval '10 days', range_end = now() - interval '$ago' WHERE name = 'idempotency_store$table'");
}

# ---- made: the ring is used when everybody has heard of it ----

my $old = session($node);
ask($old, q{SELECT outcome FROM idem_begin('warm', lease => '1 ms')});
ask($old, q{BEGIN; SELECT outcome FROM idem_begin('old')});
query(q{SELECT idem_partition_store('12 hours')});
is(query('SELECT count(*) FROM idempotency_partitions'), '4', 'four tables for a retention of 24 hours');
is(states(), 'waiting', 'they have no ranges');
is(collect(), '', 'collection');
is(states(), 'waiting', 'gives them none while a transaction is open that holds the store since before');
collect();
is(states(), 'waiting', 'nor later');
is(run('early'), 'ACQUIRED', 'an operation');
is(tables_with('early'), 'store', 'goes to the store itself');
is(ask($old, q{SELECT outcome FROM idem_begin('early')}), 'COMPLETED', 'which the old transaction sees');

# One that has not heard of the ring: as if the ranges had come with a restore.
query(q{UPDATE idempotency_ring SET range_start = now(), range_end = now() + interval '40 hours' WHERE name = 'idempotency_store_p1'});
is(run('unheard'), 'ACQUIRED', 'an operation');
is(tables_with('unheard'), 'store_p1', 'goes to the ring');
is(ask($old, q{SELECT outcome FROM idem_begin('unheard')}), 'COMPLETED', 'a transaction that had not heard of the ring finds it');
ask($old, q{SELECT idem_release('old'); COMMIT});
query('DELETE FROM idempotency_store');
query(q{UPDATE idempotency_ring SET range_start = NULL, range_end = NULL, waits_for = NULL});
collect();
is(states(), 'ahead live', 'then the ranges come');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE range_end - range_start = interval '12 hours'}), '4', 'of the period');
is(query(q{SELECT count(*) FROM (SELECT range_start, lag(range_end) OVER (ORDER BY range_start) AS before FROM idempotency_partitions) r WHERE range_start = before}),
	'3', 'one after the other');

# A transaction that ends later than it was made in, but is the same that makes it.
is($node->psql('postgres', q{DO $$ BEGIN PERFORM idem_partition_store('12 hours'); UPDATE idempotency_ring SET range_start = NULL, range_end = NULL, waits_for = NULL; PERFORM idem_gc(); END $$}), 0, 'collection in a transaction that has written');
is(states(), 'waiting', 'rotates nothing');
collect();

# ---- write: where the range of now says ----

is(run('brief', '1 hour'), 'ACQUIRED', 'an operation');
is(run('long', '1 year'), 'ACQUIRED', 'one beyond the ring');
is(tables_with('long'), 'store', 'is in the store itself');
my $first = tables_with('brief');
like($first, qr/^store_p\d$/, 'the other is in the ring');
is(run('brief'), 'COMPLETED', 'and found there');

my $stale = session($node);
my $target = query(q{SELECT substr(name, 18) FROM idempotency_partitions WHERE now() + interval '24 hours' BETWEEN range_start AND range_end});
ask($stale, q{BEGIN; SELECT outcome FROM idem_begin('stale')});
make_over($target, '1 day');
is(collect(), '', 'the table of its record has another range meanwhile');
ask($stale, q{SELECT idem_complete('stale', '1'); COMMIT});
unlike(tables_with('stale'), qr/$target/, 'the record does not go there');
is(run('stale'), 'COMPLETED', 'and is found');

# one row a name, wherever it goes
for my $retention ('1 hour', '1 year', '13 hours')
{
	my $fence = query("SELECT fence FROM idem_begin('moves', lease => '1 hour')");

	query("SELECT idem_complete('moves', '1', fence => $fence, retention => '$retention')");
	is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'moves'}), '1', "one row for $retention");
	query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 second' WHERE idempotency_key = 'moves'});
}
# an expired copy where the record belongs, by another writer
put('', 'copies', '-1 hour');
put($first =~ s/store//r, 'copies', '-2 hours');
is(run('copies', '1 hour'), 'ACQUIRED', 'two rows that have expired');
is(tables_with('copies'), $first, 'become one');

# ---- look-up: no range and no clock hides a record ----

make_over('_p1', '9 days');
put('_p1', 'misplaced', '1 hour');
is(run('misplaced'), 'COMPLETED', 'a live record in a table that is over is found');
like(collect(), qr/has records that expire after its range/, 'collection warns');
is(collect(), '', 'once');
is(run('misplaced'), 'COMPLETED', 'and leaves the table as it is');
like(states(), qr/kept/, 'which the view shows');
put('', 'both', '1 hour');
put('_p1', 'both', '2 hours');
is(query(q{SELECT idem_forget('misplaced')}), 't', 'a misplaced record is forgotten');
is(tables_with('misplaced'), '', 'where it is');

# At SERIALIZABLE, that a key is nowhere is read as well, in an empty table, too.
query(q{DELETE FROM idempotency_store; UPDATE idempotency_ring SET range_end = range_end - interval '100 days', range_start = range_start - interval '100 days', kept_until = NULL});
collect();
is(query('SELECT sum(pg_relation_size(name::regclass)) FROM idempotency_partitions'), '0', 'all tables are empty');
my @skewed = map { session($node) } 1 .. 2;
ask($skewed[$_], 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT outcome FROM idem_lookup(' . (1 - $_) . '::text)') for 0, 1;
my $lost = 0;
$lost += complaint($skewed[$_], "SELECT outcome FROM idem_begin('$_'); SELECT idem_complete('$_', '1')") =~ /could not serialize/ for 0, 1;
$lost += complaint($skewed[$_], 'COMMIT') =~ /could not serialize/ for 0, 1;
cmp_ok($lost, '>', 0, 'one of two that have not seen each other fails');
$_->quit for @skewed;

# ---- over: emptied when all in it has expired, and not before ----

sub fill ($table)
{
	put($table, "over $table", '-1 day');
	make_over($table, '1 day');
	return;
}

fill('_p1');
query('BEGIN; SELECT idem_gc(); COMMIT');
is(tables_with('over _p1'), 'store_p1', 'not in a transaction block');
query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; COMMIT; SET default_transaction_isolation = $$repeatable read$$; SELECT idem_gc()');
is(tables_with('over _p1'), 'store_p1', 'not with a snapshot that is kept');
make_over('_p1', '1 minute');
collect();
is(tables_with('over _p1'), 'store_p1', 'not right after its range');
make_over('_p1', '1 day');
query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 minute' WHERE idempotency_key = 'over _p1'});
like(collect(), qr/expire after its range/, 'nor right after its last record');
make_over('_p1', '1 day');
query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour' WHERE idempotency_key = 'over _p1'});
my $reader = session($node);
ask($reader, q{BEGIN; SELECT idempotency_key FROM idempotency_store_p1});
is(collect(), '', 'a reader is in the way');
is(tables_with('over _p1'), 'store_p1', 'and waited for by nobody');
ask($reader, 'COMMIT');
put('_p1', 'leased', '-1 day', q{now() + interval '1 hour', 7});
like(collect(), qr/expire after its range/, 'a lease that runs');
is(tables_with('leased'), 'store_p1', 'keeps the table');
query(q{UPDATE idempotency_store SET lease_expires_at = now() - interval '1 hour', fence = 5000 WHERE idempotency_key = 'leased'});
make_over('_p1', '1 day');
my $end = query('SELECT max(range_end) FROM idempotency_partitions');
is(collect(), '', 'nothing keeps it');
is(tables_with('leased'), '', 'it is emptied');
is(query("SELECT range_start = '$end' FROM idempotency_partitions WHERE name = 'idempotency_store_p1'"), 't', 'and has the range after the last one');
cmp_ok(query(q{SELECT fence FROM idem_begin('fence', lease => '1 ms')}), '>', 5000, 'no fence comes twice');

# An insert between the look and TRUNCATE.
my $gate = session($node);
my $writer = session($node);
my $collector = session($node);
my $writer_pid = ask($writer, 'SELECT pg_backend_pid()');

sub at_the_gate
{
	ask($gate, 'SELECT pg_advisory_lock(428)');
	ask($collector, q{SET idempotency.fault = 'ring-read:wait'});
	start_waiting($collector, 'SELECT idem_gc()', 'Extension');
	return;
}

fill('_p2');
at_the_gate();
is(query(q{SELECT count(*) FROM idempotency_store_p2}), '1', 'readers go on while the table is read');
$writer->query_until(qr/asking/, "\\echo asking\nINSERT INTO idempotency_store_p2 (idempotency_key, status, expires_at) VALUES ('late', 'COMPLETED', now() + interval '1 hour');\n");
wait_until('the writer waits, or is done', sub {
		query("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $writer_pid") eq 't' || query(q{SELECT count(*) FROM idempotency_store_p2}) eq '2' });
ask($gate, 'SELECT pg_advisory_unlock_all()');
ask($collector, 'SELECT 1');
ask($writer, 'SELECT 1');
is(tables_with('over _p2'), '', 'the table is emptied although a writer queues');
is(run('late'), 'COMPLETED', 'and what the writer brings is not lost');
query('DELETE FROM idempotency_store');

# The owner of the schema puts tables of his own in the place of ours while one is read.
fill('_p2');
at_the_gate();
query(q{
	ALTER SCHEMA public RENAME TO moved;
	CREATE SCHEMA public;
	CREATE TABLE public.ran (what text);
	CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.ran VALUES (tg_table_name); RETURN NULL; END';
	CREATE TABLE public.idempotency_store_p2 ();
	CREATE TABLE public.idempotency_ring (LIKE moved.idempotency_ring);
	CREATE TRIGGER t BEFORE TRUNCATE ON public.idempotency_store_p2 EXECUTE FUNCTION note();
	CREATE TRIGGER t BEFORE UPDATE ON public.idempotency_ring EXECUTE FUNCTION note()});
ask($gate, 'SELECT pg_advisory_unlock_all()');
ask($collector, 'SELECT 1');
is(query('SELECT string_agg(what, $$ $$) FROM ran'), '', 'nothing of a schema that took the name runs');
query('DROP SCHEMA public CASCADE; ALTER SCHEMA moved RENAME TO public');
is(tables_with('over _p2'), '', 'and the table is emptied');

# A table without a page is passed over without a lock. It may be another file by then, or none.
sub hold_at ($point, $session, $sql)
{
	ask($session, "SET idempotency.fault = '$point:wait'");
	ask($gate, 'SELECT pg_advisory_lock(428)');
	start_waiting($session, $sql, 'Extension');
	return;
}

my @tables = map { "idempotency_store_p$_" } 1 .. 4;
my ($before, $missing) = map { session($node) } 1 .. 2;

query('TRUNCATE idempotency_store');
is(ask($before, q{SELECT outcome IS NULL FROM idem_lookup('elsewhere')}), 't', 'a session knows empty tables');
hold_at('tables-listed', $before, q{SELECT outcome FROM idem_begin('elsewhere')});
query("TRUNCATE ONLY $_") for @tables;
put('_p3', 'elsewhere', '1 hour');
ask($gate, 'SELECT pg_advisory_unlock_all()');
like(ask($before, 'SELECT 1'), qr/^COMPLETED$/m, 'what is in the next file of an empty table is found');
query('TRUNCATE idempotency_store');
hold_at('length-asked', $missing, q{SELECT outcome FROM idem_begin('gone')});
query("TRUNCATE ONLY $_") for @tables;
query('CHECKPOINT');	# removes the files
put('_p3', 'gone', '1 hour');
ask($gate, 'SELECT pg_advisory_unlock_all()');
like(ask($missing, 'SELECT 1'), qr/^COMPLETED$/m, 'so it is when the file is removed while its length is asked for');
$_->quit for $before, $missing;
query('TRUNCATE idempotency_store');

# A session that writes to it waits, and puts the record where the new range says. The old
# one is of a clock that was wrong: so an empty table is rotated while the range has room.
query(q{UPDATE idempotency_ring SET kept_until = NULL, range_start = now() + interval '400 days', range_end = now() + interval '402 days' WHERE name = 'idempotency_store_p2'});
query('TRUNCATE ONLY idempotency_store_p2');	# its new file makes sessions read the ring
ask($writer, q{BEGIN; SELECT outcome FROM idem_begin('queues')});
at_the_gate();
start_waiting($writer, q{SELECT idem_complete('queues', '1', retention => '401 days'); COMMIT});
ask($gate, 'SELECT pg_advisory_unlock_all()');
ask($collector, 'SELECT 1');
ask($writer, 'SELECT 1');
is(query(q{SELECT range_start < now() + interval '30 days' FROM idempotency_ring WHERE name = 'idempotency_store_p2'}), 't', 'the table has another range');
is(tables_with('queues'), 'store', 'a writer that waited reads the ring again');

# The locks do not last until a standby has answered.
fill('_p3');
reconfigure($node, synchronous_standby_names => 'nobody');
my ($emptied, $hangs);
$node->psql('postgres', 'SELECT idem_gc() > 0', stdout => \$emptied, timeout => 60, timed_out => \$hangs);
is($hangs ? 'it waits' : $emptied, 't', 'COMMIT does not wait for a standby');
is(tables_with('over _p3'), '', 'when a table was emptied');
reconfigure($node, synchronous_standby_names => undef);

# The disk is full: the new files of a table that is emptied need pages.  The store itself is swept without.
fill('_p3');
put('', 'over in the store', '-1 day');
query(q{CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full USING MESSAGE = 'no space'; END $$;
	CREATE TRIGGER is_full BEFORE TRUNCATE ON idempotency_store_p3 EXECUTE FUNCTION disk_is_full()});
collect();	# which says first that a ring with a trigger is not used
is(collect(), 'could not rotate the ring of the store: no space', 'collection says that a table could not be emptied');
is(tables_with('over _p3'), 'store_p3', 'which is still there');
is(tables_with('over in the store'), '', 'and goes on with the store');
query('DROP FUNCTION disk_is_full() CASCADE; TRUNCATE idempotency_store');

# The clock was far ahead.
query(q{TRUNCATE idempotency_store; UPDATE idempotency_ring SET range_start = range_start + interval '4 years', range_end = range_end + interval '4 years'});
collect() for 1 .. 2;
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE range_end < now() + interval '1 year'}), '4', 'ranges of a clock that was wrong are taken back');

# ---- a week without collection ----

my @week = map { "week $_" } 1, 13, 25;
is(run($_, (split ' ')[1] . ' hours'), 'ACQUIRED', "an operation that is kept for $_ hours") for @week;
cmp_ok(query(q{SELECT count(DISTINCT tableoid) FROM idempotency_store WHERE idempotency_key LIKE 'week %'}), '>=', 3, 'in three tables');
query(q{UPDATE idempotency_store SET expires_at = expires_at - interval '7 days', created_at = created_at - interval '7 days';
	UPDATE idempotency_ring SET range_start = range_start - interval '7 days', range_end = range_end - interval '7 days'});
is(states(), 'over', 'a week later all tables are over');
is(run('after the week', '1 hour'), 'ACQUIRED', 'a new operation');
is(tables_with('after the week'), 'store', 'goes to the store itself');
is(run($week[1], '1 hour'), 'ACQUIRED', 'a key whose record has expired is free');
is(tables_with($week[1]), 'store', 'and its new record is the only one');
collect() for 1 .. 4;
is(query(q{SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM idempotency_store}), "after the week $week[1]", 'collection empties all of them');
is(states(), 'ahead live', 'and gives them ranges');
is(query(q{SELECT count(*) FROM idempotency_partitions WHERE now() + interval '24 hours' BETWEEN range_start AND range_end}), '1', 'of now');
is(run('after the week'), 'COMPLETED', 'what went to the store is found');
is(run('in the ring', '1 hour'), 'ACQUIRED', 'a new operation');
like(tables_with('in the ring'), qr/_p/, 'goes to the ring again');
query('TRUNCATE idempotency_store');

# ---- identity: whose tables they are ----

sub refuses ($change, $why)
{
	my ($stdout, $stderr);

	$node->psql('postgres', "BEGIN; $change; SELECT idem_begin('k', lease => '1 s'); ROLLBACK", stdout => \$stdout, stderr => \$stderr);
	return $stderr =~ /$why/ ? 1 : diag($stderr) && 0;
}

query('CREATE ROLE stranger');
ok(refuses('ALTER TABLE idempotency_store_p1 OWNER TO stranger', 'It belongs to another role'), 'a table of another role is refused');
ok(refuses('ALTER TABLE idempotency_store_p1 SET UNLOGGED', 'is not logged'), 'one that a crash empties');
ok(refuses('CREATE TABLE child () INHERITS (idempotency_store_p1)', 'Other tables inherit from it'), 'one with children');
ok(refuses('CREATE TABLE child () INHERITS (idempotency_store)', 'primary key of table "child"'), 'one without a key');
is($node->psql('postgres', 'BEGIN; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO stranger, PUBLIC; CREATE TABLE other ();'
		  . q{SELECT idem_partition_store('1 hour'); SELECT 1 / (count(*) = 0)::int FROM pg_class c, aclexplode(c.relacl) a WHERE c.relname LIKE 'idempotency_store_p%' AND a.grantee <> c.relowner; ROLLBACK}),
	0, 'default privileges give no right on the tables');
is(query(q{SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND objid IN (SELECT name::regclass FROM idempotency_partitions)}), '0', 'they are no members of the extension');

# As idem_reseal does, an UPDATE leaves updated_at as it is. The record is still there, and no trigger has kept it.
put('_p1', 'resealed', '1 hour');
ask($gate, q{BEGIN; UPDATE idempotency_store SET response_code = 200 WHERE idempotency_key = 'resealed'});
start_waiting($writer, q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT idem_forget('resealed')});
ask($gate, 'COMMIT');
$writer->query('ROLLBACK');
like($writer->{stderr}, qr/stored concurrently by another writer/, 'at REPEATABLE READ a record that was sealed meanwhile is a lost race');

# ---- something that needs SQL, added later ----

is(run('before', '1 hour'), 'ACQUIRED', 'an operation');
like(tables_with('before'), qr/_p/, 'in the ring');
query(q{CREATE TABLE fired (key text);
	CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fired VALUES (new.idempotency_key); RETURN new; END $$;
	CREATE TRIGGER fire BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION fire()});
like(collect(), qr/is not used for new records/, 'collection warns of a trigger');
is(collect(), '', 'once');
is(sqlstate($node, q{SELECT idem_partition_store('1 hour')}), '55000', 'no ring is made');
is(run('before'), 'COMPLETED', 'what is in the ring is found');
is(run('after', '1 hour'), 'ACQUIRED', 'a new record');
is(tables_with('after'), 'store', 'goes to the store itself');
is(query('SELECT count(*) FROM fired'), '1', 'where the trigger fires');
query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 second' WHERE idempotency_key = 'before'});
is(run('before', '1 hour'), 'ACQUIRED', 'a record in the ring is replaced');
is(tables_with('before'), 'store', 'by one in the store');
is(query(q{BEGIN; SELECT FROM idem_begin('locks'); SELECT FROM idem_complete('locks', '1');
	SELECT count(*) FROM pg_locks WHERE relation IN (SELECT name::regclass FROM idempotency_partitions) AND pid = pg_backend_pid(); ROLLBACK}) =~ s/\n//gr, '0', 'no statement locks the tables of the ring');
query('CREATE TRIGGER fire BEFORE INSERT ON idempotency_store_p1 FOR EACH ROW EXECUTE FUNCTION fire()');
put('_p1', 'in a table with a trigger', '1 hour');
is(run('in a table with a trigger'), 'COMPLETED', 'a table of the ring with a trigger is looked into');
is(query(q{SELECT idem_forget('in a table with a trigger')}), 't', 'and deleted from');
query(q{CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_forget('second') WHERE old.idempotency_key = 'first'; RETURN old; END $$;
	CREATE TRIGGER forget BEFORE DELETE ON idempotency_store_p1 FOR EACH ROW EXECUTE FUNCTION forget();
	CREATE TRIGGER forget BEFORE DELETE ON idempotency_store_p2 FOR EACH ROW EXECUTE FUNCTION forget()});
put('_p1', 'first', '1 hour');
put('_p2', 'second', '1 hour');
is(query(q{SELECT idem_forget('first')}), 't', 'while a trigger deletes a record of another table of the ring');
is(tables_with('first') . tables_with('second'), '', 'both are gone');
query('DROP FUNCTION forget CASCADE');
query(q{CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE TRIGGER keep BEFORE DELETE ON idempotency_store_p1 FOR EACH ROW EXECUTE FUNCTION keep()});
put('_p1', 'kept', '1 hour');
is(sqlstate($node, q{SELECT idem_forget('kept')}), '09000', 'a trigger that keeps a record in the ring is named');
query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 second' WHERE idempotency_key = 'kept'});
is(sqlstate($node, q{SELECT FROM idem_begin('kept', lease => '1 hour')}), '09000', 'when it keeps an expired one, too');
query('DROP TRIGGER fire ON idempotency_store; DROP TRIGGER fire ON idempotency_store_p1; DROP TRIGGER keep ON idempotency_store_p1; DROP FUNCTION keep');
is(collect(), '', 'without them');
is(run('again', '1 hour'), 'ACQUIRED', 'the ring');
like(tables_with('again'), qr/_p/, 'is used again');

# ---- dropped ----

ask($old, q{BEGIN; SELECT outcome FROM idem_begin('old')});
query('SELECT idem_unpartition_store()');
collect() for 1 .. 3;
cmp_ok(query('SELECT count(*) FROM idempotency_partitions'), '>', 1, 'tables stay while a transaction is open that holds the store');
is(run('again'), 'COMPLETED', 'with their records');
ask($old, q{SELECT idem_release('old'); COMMIT});
collect() for 1 .. 3;
is(query('SELECT bool_and(pg_relation_size(name::regclass) > 0) FROM idempotency_partitions'), 't', 'empty ones go');
is(ask($stale, q{SELECT outcome FROM idem_begin('again')}), 'COMPLETED', 'a session that knew them looks on');
is(ask($old, q{SELECT outcome FROM idem_lookup('again')}), 'COMPLETED', 'and another one');
query(q{UPDATE idempotency_store SET expires_at = now() - interval '1 hour'; UPDATE idempotency_ring SET range_start = now() - interval '3 days', range_end = now() - interval '1 day'});
collect() for 1 .. 3;
is(query('SELECT count(*) FROM idempotency_partitions'), '0', 'the last one goes when its records have expired');
is(query('SELECT count(*) FROM idempotency_ring'), '0', 'and nothing is left');
is(run('again', '1 hour'), 'ACQUIRED', 'the store is one table');
$_->quit for $old, $stale, $reader, $gate, $writer, $collector;

done_testing();
