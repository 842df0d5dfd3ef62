# The care for a store that is partitioned by expiry takes longer than the collector's
# visits, as it reads a whole partition (FAILURES 144): it may, it keeps what it has done,
# and nobody who wants the database has to wait for it.
use strict;
use warnings;

use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('long_care', conf => "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\n");

$Idempotency::patience = 60;

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('large', $sql);
}

sub at_work
{
	return $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity
		WHERE backend_type = 'idempotency collector' AND datname = 'large' AND xact_start < clock_timestamp() - interval '1 second'});
}

sub ended { return slurp_file($node->logfile) =~ /the worker in database "large" took too long/ }

$node->safe_psql('postgres', "CREATE DATABASE $_") for 'large', 'small';
for my $database ('small', 'large')
{
	$node->safe_psql($database, <<'SQL');
CREATE EXTENSION idempotency;
SELECT idem_partition_store('4 hours');
CREATE TABLE done (began timestamptz, ended timestamptz);
CREATE TABLE gate (seconds int);
INSERT INTO gate VALUES (CASE current_database() WHEN 'large' THEN 7 ELSE 0 END);
-- as if the default partition were large
CREATE OR REPLACE FUNCTION idem_tend_partitions() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM pg_sleep(max(seconds)) FROM public.gate;
	INSERT INTO public.done VALUES (began, clock_timestamp());
END
$$;
SQL
}
wait_until('the care has ended', sub { query('SELECT count(*) FROM done') ne '0' });
ok(!ended(), 'seven seconds are not too long for it');

# ---- other databases have as much time ----

wait_until('the care has ended again', sub { query('SELECT count(*) FROM done') gt '1' });
my ($from, $to) = split /\|/, query('SELECT ended, next FROM (SELECT ended, lead(began) OVER (ORDER BY began) AS next FROM done) visits ORDER BY 1 LIMIT 1');
is(query("SELECT '$to'::timestamptz - '$from'::timestamptz >= interval '7 s'"), 't', 'after a long visit a database is left alone for as long');
cmp_ok($node->safe_psql('small', "SELECT count(*) FROM done WHERE began > '$from' AND ended < '$to'"), '>=', 2, 'and another one is visited meanwhile');
query('UPDATE gate SET seconds = 5');

# ---- one partition with rows in each transaction ----

query(<<'SQL');
BEGIN;
SELECT idem_make_partitions('idempotency_store', 'idempotency_store_default',
	ARRAY[now() - interval '3 days', now() - interval '2 days'], ARRAY[now() - interval '2 days', now() - interval '1 day']);
INSERT INTO idempotency_store (idempotency_key, expires_at, status)
	VALUES ('first', now() - interval '60 hours', 'COMPLETED'), ('second', now() - interval '36 hours', 'COMPLETED');
COMMIT;
SQL
wait_until('a partition was emptied', sub { query('SELECT count(*) FROM idempotency_store') eq '1' });
pass('one partition a visit');
# what is left does not wait for the interval
$node->append_conf('postgresql.conf', 'idempotency.gc_interval = 600');
$node->reload;
wait_until('both were emptied', sub { query('SELECT count(*) FROM idempotency_store') eq '0' });
pass('and the other one at the next visit');

# ---- nobody waits for it ----

$node->append_conf('postgresql.conf', 'idempotency.gc_interval = 1');
$node->reload;
query('UPDATE gate SET seconds = 200');
wait_until('the care is at work', sub { at_work() ne '0' });
is(sqlstate($node, 'DROP DATABASE large'), '', 'DROP DATABASE while it is at work');

$node->stop('fast');
done_testing();
