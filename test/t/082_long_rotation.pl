# A rotation of the ring takes longer than the collector's visits, as it reads a whole table:
# it may, it keeps what it has done, and nobody who wants the database
# has to wait for it.
use Idempotency;

my $node = new_node('long_rotation', conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");

$Idempotency::patience = 60;

sub in_large ($sql)
{
	return $node->safe_psql('large', $sql);
}

sub at_work
{
	return query(q{SELECT count(*) FROM pg_stat_activity
		WHERE backend_type = 'idempotency collector' AND datname = 'large' AND xact_start < clock_timestamp() - interval '1 second'});
}

sub ended { return slurp_file($node->logfile) =~ /the worker in database "large" took too long/ }

query("CREATE DATABASE $_") for 'large', 'small';
for my $database ('small', 'large')
{
	$node->safe_psql($database, <<'SQL');
BEGIN;	-- the collector sees the tables with their triggers, or not at all
CREATE EXTENSION idempotency;
CREATE TABLE done (began timestamptz, ended timestamptz);
CREATE TABLE gate (seconds int);
INSERT INTO gate VALUES (CASE current_database() WHEN 'large' THEN 7 ELSE 0 END);
SELECT idem_partition_store('4 hours');
-- as if the tables were large; the first one is over again at once
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM pg_sleep(max(seconds)) FROM public.gate;
	INSERT INTO public.done VALUES (began, clock_timestamp());
	RETURN NULL;
END
$$;
CREATE TRIGGER slow BEFORE TRUNCATE ON idempotency_store_p1 EXECUTE FUNCTION slow();
CREATE TRIGGER slow BEFORE TRUNCATE ON idempotency_store_p2 EXECUTE FUNCTION slow();
CREATE TRIGGER slow BEFORE TRUNCATE ON idempotency_store_p3 EXECUTE FUNCTION slow();
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	new.range_start := now() - interval '2 days';
	new.range_end := now() - interval '1 day';
	RETURN new;
END
$$;
CREATE TRIGGER again BEFORE UPDATE ON idempotency_ring FOR EACH ROW WHEN (new.name = 'idempotency_store_p1' AND new.range_start > now()) EXECUTE FUNCTION again();
COMMIT;
SQL
}
wait_until('a rotation has ended', sub { in_large('SELECT count(*) FROM done') ne '0' });
ok(!ended(), 'seven seconds are not too long for it');

# ---- other databases have as much time ----

wait_until('a rotation has ended again', sub { in_large('SELECT count(*) FROM done') gt '1' });
my ($from, $to) = split /\|/, in_large('SELECT ended, next FROM (SELECT ended, lead(began) OVER (ORDER BY began) AS next FROM done) visits ORDER BY 1 LIMIT 1');
is(in_large("SELECT '$to'::timestamptz - '$from'::timestamptz >= interval '7 s'"), 't', 'after a long visit a database is left alone for as long');
cmp_ok($node->safe_psql('small', "SELECT count(*) FROM done WHERE began > '$from' AND ended < '$to'"), '>=', 2, 'and another one is visited meanwhile');
in_large('UPDATE gate SET seconds = 5');

# ---- one table with rows in each transaction ----

in_large('DROP TRIGGER again ON idempotency_ring');
wait_until('the first table has a range that lasts', sub { in_large(q{SELECT range_end > now() FROM idempotency_partitions WHERE name = 'idempotency_store_p1'}) eq 't' });
# a look at the tables themselves would be in the way of their rotation
my $rotations = in_large('SELECT count(*) FROM done');

in_large(<<'SQL');
BEGIN;
UPDATE idempotency_ring SET range_start = now() - interval '3 days', range_end = now() - interval '1 day' WHERE name IN ('idempotency_store_p2', 'idempotency_store_p3');
INSERT INTO idempotency_store_p2 (idempotency_key, expires_at, status) VALUES ('first', now() - interval '60 hours', 'COMPLETED');
INSERT INTO idempotency_store_p3 (idempotency_key, expires_at, status) VALUES ('second', now() - interval '36 hours', 'COMPLETED');
COMMIT;
SQL
wait_until('a table was emptied', sub { in_large('SELECT count(*) FROM done') > $rotations });
is(in_large('SELECT count(*) FROM done'), $rotations + 1, 'one table a visit');
# what is left does not wait for the interval
$node->append_conf('postgresql.conf', 'idempotency.gc_interval = 600');
$node->reload;
wait_until('both were emptied', sub { in_large('SELECT count(*) FROM done') > $rotations + 1 });
is(in_large('SELECT count(*) FROM idempotency_store'), '0', 'and the other one at the next visit');

# ---- nobody waits for it ----

$node->append_conf('postgresql.conf', 'idempotency.gc_interval = 1');
$node->reload;
in_large('UPDATE gate SET seconds = 200');
in_large(q{UPDATE idempotency_ring SET range_start = now() - interval '3 days', range_end = now() - interval '1 day' WHERE name = 'idempotency_store_p1'});
wait_until('a rotation is at work', sub { at_work() ne '0' });
is(sqlstate($node, 'DROP DATABASE large'), '', 'DROP DATABASE while it is at work');

$node->stop('fast');
done_testing();
