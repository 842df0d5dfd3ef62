# The counter slot of a database becomes free when the database is dropped or has
# dropped the extension, and no other database counts into it before.
# The library is built anew for few databases, for points at which
# a test holds a session, and for a collector whose work costs much.
use Idempotency;

my (undef, $conf) = built_with('-DIDEM_FAULTS -DCOUNTED_DATABASES=4 -DCOST_DELAY_MICROSECONDS=2000000');
my $node = new_node('slots',
	conf => $conf . "idempotency.gc_enabled = on\nidempotency.gc_interval = 1\nidempotency.gc_databases = 'postgres, a, b, c, d, e, f'\n");

$Idempotency::patience = 60;

# The databases that are counted.
sub counted
{
	return query(q{SELECT string_agg(datname, ' ' ORDER BY datname) FROM idempotency_stats WHERE acquired IS NOT NULL});
}

my $begin = q{BEGIN; SELECT outcome FROM idem_begin('k'); ROLLBACK};
my %session;

# Counts once in that database, in the session that stays.
sub count_in ($database)
{
	$session{$database} //= session($node, $database);
	ask($session{$database}, $begin);
	return;
}

sub drop_database ($database)
{
	(delete $session{$database})->quit;
	query("DROP DATABASE $database");
	return;
}

# Before the others: the collector of each counts, too.
create_database($_) for qw(a b c);
count_in($_) for qw(a b b c c c);
is(counted(), 'a b c postgres', 'as many databases as there are slots');

# If no slot is free, a database is not counted until one is; the same session notices.
create_database('d');
count_in('d');
is(counted(), 'a b c postgres', 'one more database is not counted');
drop_database('a');
soon('a database gets the slot of one that was dropped', sub { count_in('d'); figure($node, 'acquired', 'd') > 0 });
is(figure($node, 'acquired', 'd'), 1, 'it is counted from zero');
is(counted(), 'b c d postgres', 'and the other has no row');
is(figure($node, 'acquired', 'b') . figure($node, 'acquired', 'c'), '23', 'others keep their figures');

# A session of a database that has dropped the extension remembers its slot.
$node->safe_psql('b', 'DROP EXTENSION idempotency');
soon('a database that has dropped the extension has no row', sub { counted() eq 'c d postgres' });
create_database('e');
count_in('e');
is(counted(), 'c d e postgres', 'its slot is given to another database');
$node->safe_psql('b', 'CREATE EXTENSION idempotency');
count_in('b') for 1 .. 5;
is(join(' ', map { figure($node, 'acquired', $_) } qw(c d e)), '3 1 1', 'who had the slot before does not count into it');
drop_database('c');
soon('the same session is counted when a slot is free', sub { count_in('b'); figure($node, 'acquired', 'b') > 0 });
is(figure($node, 'acquired', 'b'), 1, 'from zero again');
is(counted(), 'b d e postgres', 'in the place of the one that was dropped');

# A slot in which a session is counting just now is not given away.
my $gate = session($node, 'd');

ask($gate, 'SELECT pg_advisory_lock(428)');
ask($session{d}, q{SET idempotency.fault = 'count-entered:wait'});
start_waiting($session{d}, 'SELECT idem_stats_reset()', 'Extension');
$node->safe_psql('d', 'DROP EXTENSION idempotency');

sub collector_has_been_in ($database)
{
	my $before = figure($node, 'sweeps', 'postgres');

	return soon("rounds that visit $database", sub { figure($node, 'sweeps', 'postgres') >= $before + 3 });
}

collector_has_been_in('d');
is(counted(), 'b d e postgres', 'a slot is kept while a session counts in it');
create_database('f');
count_in('f');
ask($gate, 'SELECT pg_advisory_unlock(428)');
$gate->quit;
soon('and is given back afterwards', sub { count_in('f'); figure($node, 'acquired', 'f') > 0 });
is(figure($node, 'acquired', 'f'), 1, 'zero was all that was counted there');
is(counted(), 'b e f postgres', 'in the place of the one that counted');

# Pages cost a thousand times as much as usual, so each pause would be many
# seconds: it ends with the visit.  On a busy machine a visit can take too long
# for another reason, so there is more than one try.
my $within_visit = 0;

for my $try (1 .. 3)
{
	my $start = -s $node->logfile;

	$node->safe_psql('e', q{INSERT INTO idempotency_store (idempotency_key, expires_at, status)
		SELECT n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 6000) n});
	soon('collected: while pages cost a lot', sub { $node->safe_psql('e', 'SELECT count(*) FROM idempotency_store') eq '0' });
	$within_visit = slurp_file($node->logfile, $start) !~ /took too long/;
	last if $within_visit;
}
ok($within_visit, 'no pause is longer than the visit');

$_->quit for values %session;
done_testing();
