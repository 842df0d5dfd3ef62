# Who only looks at a store with a ring of tables, and who has no right on it: a reader of
# the view while tables go, a role that holds a lock on a table, and the predicate locks
# of SERIALIZABLE.
use Idempotency;

my $node = new_node('ring_bystanders');

# ---- predicate locks at SERIALIZABLE ----

# How many operations of new keys take.
sub predicate_locks ($operations)
{
	return (split /\n/, query(qq{BEGIN ISOLATION LEVEL SERIALIZABLE;
		SELECT FROM (SELECT idem_begin(n || md5(random()::text)) AS o FROM generate_series(1, $operations) n) b, idem_complete(b.o) OFFSET 1000000;
		SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid();
		ROLLBACK}))[-1];
}

# Enough rows that the index of a table has many pages.
sub fill ($table)
{
	return query("INSERT INTO $table (idempotency_key, status, expires_at) SELECT md5('$table' || n), 'COMPLETED', now() + interval '1 hour' FROM generate_series(1, 10000) n");
}

fill('idempotency_store');
my @operations = (1, 20, 500);
my @one_table = map { predicate_locks($_) } @operations;
query(q{SELECT idem_partition_store('12 hours')});
query('SELECT idem_gc()') for 1, 2;
fill("idempotency_store_p$_") for 1 .. 4;
my @ring = map { predicate_locks($_) } @operations;
diag "predicate locks of 1, 20 and 500 operations: @one_table for one table, @ring for a ring of four";
cmp_ok($one_table[0], '>', 0, 'a begin at SERIALIZABLE takes predicate locks');
# Two keys may meet on one page of an index, so the bound counts from what a single key takes.
cmp_ok($ring[$_], '<=', 5 * $one_table[0] * $operations[$_], "$operations[$_] in a ring of four: as many for each table, and for the store itself") for 0 .. 2;
cmp_ok($ring[2], '<=', 5 * 2 * 33, 'many in one table become one for the table');

# ---- a role without rights holds a lock on a table ----

query(q{CREATE ROLE app LOGIN; SELECT idem_grant('app')});
query(q{BEGIN; SELECT idem_begin('more' || n), idem_complete('more' || n) FROM generate_series(1, 100) n; COMMIT});
my $table = query(q{SELECT tableoid::regclass FROM idempotency_store WHERE idempotency_key = 'more1'});
like($table, qr/^idempotency_store_p\d$/, 'the records are in the ring');
query("UPDATE idempotency_store SET expires_at = now() - interval '1 hour' WHERE tableoid = '$table'::regclass");
query("UPDATE idempotency_ring SET range_start = now() - interval '10 days', range_end = now() - interval '1 day' WHERE name = '$table'");
my $holder = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'app' ]);
ask($holder, "BEGIN; PREPARE held AS SELECT FROM $table");
is(query("SELECT count(*) FROM pg_locks WHERE relation = '$table'::regclass AND pid <> pg_backend_pid()"), '1', 'a role without rights holds a lock on a table of the ring');
is(query('SET statement_timeout = $$20 s$$; SELECT idem_gc()'), '0', 'collection does not wait for it, and leaves the table');
is(query(q{SET statement_timeout = '20 s'; BEGIN; SELECT outcome FROM idem_begin('more2'); SELECT idem_complete('more2', '2'); COMMIT}) =~ s/\n//gr, 'ACQUIRED', 'nor does an operation');
is(query(q{SELECT state FROM idempotency_partitions WHERE name = '} . "$table'"), 'over', 'the view shows it');
ask($holder, 'COMMIT');
cmp_ok(query('SELECT idem_gc()'), '>', 90, 'then the table is emptied');
$holder->quit;

# ---- a reader of the view while tables go ----

my $reader = session($node);
ask($reader, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
query('TRUNCATE idempotency_store; SELECT idem_unpartition_store()');
query('SELECT idem_gc()') for 1 .. 3;
is(query('SELECT count(*) FROM idempotency_partitions'), '0', 'the tables have gone');
is(ask($reader, 'SELECT count(*), count(bytes) FROM idempotency_partitions'), '4|0', 'a reader of a snapshot from before is shown them, without their size');
ask($reader, 'COMMIT');
$reader->quit;

done_testing();
