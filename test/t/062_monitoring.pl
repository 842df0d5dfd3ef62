# The alerts of docs/operating.md, as a role that has pg_monitor and nothing else:
# each is silent while all is well, reports the trouble, and is silent again.
use FindBin;
use Idempotency;

my $node = new_node('monitoring', conf => 'max_prepared_transactions = 10');
my $page = slurp_file("$FindBin::RealBin/../../docs/operating.md");
my ($section) = $page =~ /^## Monitoring\n(.*?)^## /ms or die 'docs/operating.md has no section on monitoring';
my ($alerts) = $section =~ /^### Alerts\n(.*)/ms or die 'docs/operating.md has no alerts';

# Its title, and the last query before the next title.
my %alert;

for my $part (split /^(?=\*\*)/m, $alerts)
{
	my ($title) = $part =~ /^\*\*([^*.]+)/ or next;
	my ($query) = grep { /^SELECT/ } $part =~ /^```sql\n(.*?)^```/msg;

	$alert{$title} = $query =~ s/;\s*\z//r;
}

query(q{
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request'});

my $monitor = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'monitor' ]);
my $worker = session($node);

ask($monitor, '\pset null NULL');

# The rows of an alert, after some of its words were replaced.
sub answer ($title, %replace)
{
	my $query = $alert{$title};

	for my $words (keys %replace)
	{
		$query =~ s/\Q$words\E/$replace{$words}/ or die "the alert \"$title\" does not say \"$words\"";
	}
	return ask($monitor, "$query;") // '';
}

sub one_row { return scalar(split /\n/, $_[0]) == 1 }

my @case = (
	{
		title => 'Stuck leases',
		trouble => sub {
			query(q{SELECT idem_begin('stuck', lease => '1 hour');
				UPDATE idempotency_store SET lease_expires_at = now() - interval '1 hour'});
		},
		over => sub { query(q{SELECT idem_release('stuck', fence => fence) FROM idempotency_store}) },
		says => qr/^\|stuck\|1\|/
	},
	{
		title => 'Operations of transactions that stay open',
		at_once => { "'1 minute'" => "'0'" },
		trouble => sub {
			ask($worker, q{BEGIN; SELECT outcome FROM idem_begin('open')});
			# its answer comes a moment before it waits for its client
			wait_until('the session waits', sub {
				query(q{SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND wait_event = 'ClientRead'})
			});
		},
		over => sub { ask($worker, 'ROLLBACK') },
		says => qr/^\d+\|.*\|idle in transaction\|ClientRead$/
	},
	{
		title => 'Orphaned prepared transactions',
		at_once => { "'5 minutes'" => "'0'" },
		trouble => sub {
			query(q{BEGIN; SELECT idem_begin('prepared'); SELECT idem_complete('prepared'); PREPARE TRANSACTION 'orphan'});
		},
		over => sub { query(q{ROLLBACK PREPARED 'orphan'}) },
		says => qr/^orphan\|/
	},
	{
		title => 'A growing backlog',
		at_once => { '1000000' => '100' },
		trouble => sub {
			query(q{INSERT INTO idempotency_store (idempotency_key, expires_at, status)
				SELECT n, now() - interval '1 day', 'COMPLETED' FROM generate_series(1, 1000) n});
			query('SELECT idem_gc(300)');
		},
		over => sub { query('SELECT idem_gc()') },
		says => qr/^postgres\|\d+\|/
	},
	{
		title => 'No collection in this database',
		trouble => sub { query(q{UPDATE idempotency_sweep SET swept_at = now() - interval '1 hour'}) },
		over => sub { query('SELECT idem_gc()') },
		says => qr/^\d{4}-/
	},
	{
		title => 'No collection in some database of the server',
		at_once => { "interval '15 minutes'" => "interval '0'", '3 *' => '0 *' },
		trouble => sub { query('SELECT idem_gc()') },
		over => sub { },
		says => qr/^postgres\|/
	},
	{
		title => 'Collection is left to a publisher that sends nothing',
		trouble => sub {
			# as if it had connected once
			query(q{CREATE SUBSCRIPTION forgotten CONNECTION 'dbname=nowhere' PUBLICATION nothing WITH (connect = false, slot_name = NONE);
				INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, 'idempotency_store'::regclass, 'r' FROM pg_subscription});
		},
		over => sub { query('DROP SUBSCRIPTION forgotten') },
		says => qr/^idempotency_store\|forgotten\|f$/
	},
	{
		title => 'Poison messages',
		trouble => sub { query(q{SET idempotency.max_lost_attempts = 2; BEGIN; SELECT idem_begin('poison'); ROLLBACK}) },
		over => sub { query(q{SELECT idem_forget('poison')}) },
		says => qr/^postgres\|1\|\d+$/
	},
	{
		title => 'Permanent failures',
		trouble => sub {
			query(q{BEGIN; SELECT idem_begin('dead', scope => 'letters');
				SELECT idem_fail('dead', '{"sqlstate": "23514", "message": "secret"}', 'letters', code => 422); COMMIT});
		},
		over => sub { query(q{SELECT idem_forget('dead', 'letters')}) },
		says => qr/^letters\|23514\|422\|1\|/
	},
	{
		title => 'Refused commits, mismatches, lost leases',
		trouble => sub {
			$node->psql('postgres', q{SELECT idem_begin('unfinished')});
			query(q{BEGIN; SELECT idem_begin('two', request => '1'); SELECT idem_complete('two'); COMMIT});
			$node->psql('postgres', q{SELECT idem_begin('two', request => '2')});
			query(q{SELECT idem_begin('lost', lease => '1 hour')});
			$node->psql('postgres', q{SELECT idem_extend('lost', '1 hour', fence => 1)});
		},
		over => sub {
			my ($figures) = $alerts =~ /^(CREATE TEMP TABLE last_figures AS.*?;)$/ms or die 'how the last figures are kept';

			ask($monitor, "DROP TABLE last_figures; $figures");
		},
		says => qr/^postgres\|1\|1\|1$/
	});

is_deeply([ sort keys %alert ], [ sort map { $_->{title} } @case ], 'every alert of the page is tried here');

# A store that was never swept is reported, too, until the first sweep.
is(answer('No collection in this database'), 'NULL', 'a database that was never swept is reported');
query('SELECT idem_gc()');
ask($monitor, 'CREATE TEMP TABLE last_figures AS SELECT datname, commits_refused, mismatches, leases_lost FROM idempotency_stats');
is(answer($_), '', "all is well: $_") for sort keys %alert;
for my $case (@case)
{
	my ($title, $row) = ($case->{title});
	my %at_once = %{ $case->{at_once} // {} };

	$case->{trouble}->();
	$row = answer($title, %at_once);
	ok(one_row($row), "$title: one row") or diag($row);
	like($row, $case->{says}, "$title: what it says");
	unlike($row, qr/secret/, "$title: no payload");
	$case->{over}->();
	is(answer($title), '', "$title: over");
}

# One that nobody has ever visited, such as a database whose name gc_databases has wrong.
my $elsewhere = 'No collection in some database of the server';

query('CREATE DATABASE unvisited');
$node->safe_psql('unvisited', 'CREATE EXTENSION idempotency; TABLE idempotency_stats');
is(answer($elsewhere), '', "$elsewhere: not at once");
like(answer($elsewhere, "interval '15 minutes'" => "interval '0'"), qr/^unvisited\|NULL\|NULL$/m, "$elsewhere: one that was never visited");
$node->safe_psql('unvisited', 'SELECT idem_gc()');
unlike(answer($elsewhere, "interval '15 minutes'" => "interval '0'"), qr/NULL/, "$elsewhere: until somebody collects there");

# The query for an exporter: numbers only, but for the name of the database.
my ($exported) = $section =~ /^(SELECT datname, acquired,.*?);$/ms or die 'the query for an exporter';

is(ask($monitor, "SELECT string_agg(DISTINCT jsonb_typeof(v), ' ' ORDER BY jsonb_typeof(v)) FROM ($exported) q, jsonb_each(to_jsonb(q) - 'datname') e(k, v)
	WHERE q.datname = 'postgres'"), 'number', 'an exporter gets numbers');
is(ask($monitor, "SELECT count(*) FROM (SELECT * FROM idempotency_stats LIMIT 0) s RIGHT JOIN pg_attribute a ON false
	WHERE attrelid = 'idempotency_stats'::regclass AND attnum > 0 AND attname NOT IN ('wait_time', 'last_sweep_at', 'last_sweep_duration')
	AND attname NOT IN (SELECT jsonb_object_keys(to_jsonb(q)) FROM ($exported) q)"), 0, 'an exporter gets every figure');

$monitor->quit;
$worker->quit;
done_testing();
