# Other roles and readers of the log see no key in pg_locks, and no
# request and no response in any message (71).
use Idempotency;
use IPC::Run;

my $node = new_node('secrets', conf => <<'CONF');
log_statement = none
log_min_messages = debug1
log_min_error_statement = error
log_error_verbosity = verbose
log_lock_waits = on
deadlock_timeout = 10ms
CONF
my $directory = PostgreSQL::Test::Utils::tempdir();

# Lock ids

query('CREATE ROLE spy LOGIN');
create_database('other');
{
	my @owners = map { session($node, $_) } 'postgres', 'other';
	my ($locks, $ids);

	for my $owner (@owners)
	{
		ask($owner, 'BEGIN');
		ask($owner, q{SELECT idem_begin('PayPeter', scope => 'salaries')});
	}
	$ids = $node->safe_psql('postgres', <<'SQL', extra_params => [ '-U', 'spy' ]);
SELECT count(*), count(DISTINCT database), count(DISTINCT classid), count(DISTINCT objid)
FROM pg_locks WHERE locktype = 'advisory'
SQL
	is($ids, '2|2|2|2', 'one key has other lock ids in another database');
	$locks = $node->safe_psql('postgres', 'SELECT l, a FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)',
		extra_params => [ '-U', 'spy' ]);
	unlike($locks, qr/PayPeter|salaries/i, 'no key to be seen');
	$_->quit for @owners;
}
is(sqlstate($node, 'SET ROLE spy; SELECT lock_key FROM idempotency_secret'), '42501', 'nor the key of the lock ids');

# The log
#
# A failed statement is logged as the client sent it.  If a client puts payloads
# into the text of a statement, they are in the log, and no extension can prevent
# that.  So here they are bind parameters, as they should be: pgbench -M extended
# sends its variables so.

my $marker = 'XyzzyMarker';

query(<<"SQL");
CREATE FUNCTION raise(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	\$\$BEGIN RAISE EXCEPTION 'handler says %', request USING DETAIL = request, HINT = request; END\$\$;
CREATE FUNCTION constant(request jsonb) RETURNS jsonb LANGUAGE sql AS
	\$\$SELECT '"$marker constant"'::jsonb\$\$;
CREATE TABLE lease (name text, fence bigint);
INSERT INTO lease SELECT 'current', fence FROM idem_begin('leased', request => '"$marker"', lease => '1 hour');
BEGIN;
SELECT idem_begin('done', request => '"$marker"');
SELECT idem_complete('done', '"$marker"', headers => '{"h": "$marker"}', body => '$marker');
COMMIT;
SQL

# Runs a script with the markers as parameters, one transaction, and returns the
# SQLSTATEs that the server logged for it.
my $scripts = 0;

sub errors_of ($script)
{
	my $file = "$directory/" . ++$scripts . '.sql';
	my $from = -s $node->logfile;
	my $output = '';

	append_to_file($file, $script);
	IPC::Run::run(
		[
			'pgbench', '-n', '-M', 'extended', '-c', 1, '-t', 1, '-f', $file,
			'-D', qq(secret="$marker"), '-D', "bytes=$marker",
			'-D', 'hash=' . "\\x" . unpack('H*', substr($marker x 3, 0, 32)),
			$node->connstr('postgres')
		],
		'>&', \$output);
	return join ' ', slurp_file($node->logfile, $from) =~ /(?:ERROR|FATAL):  (\w{5}):/g;
}

my @cases = (
	[ 'ID400', 'SELECT idem_begin(repeat(:bytes, 100));' ],
	[ 'ID400', q{SELECT idem_begin('k', request => :secret::jsonb, request_hash => :hash::bytea);} ],
	[ 'ID400', q{SELECT idem_begin('k', request_hash => :bytes::bytea);} ],
	[ 'ID400', q{SELECT idem_begin('k', request => :secret::jsonb, lease => '-1 s');} ],
	[ 'ID404', q{SELECT idem_complete('k', :secret::jsonb, body => :bytes::bytea);} ],
	[ 'ID404', q{SELECT idem_fail('k', :secret::jsonb, headers => :secret::jsonb);} ],
	[ 'ID409', q{SELECT idem_complete('leased', :secret::jsonb, fence => fence + 1) FROM lease;} ],
	[ 'ID409', q{SELECT idem_fail('leased', :secret::jsonb, fence => fence + 1) FROM lease;} ],
	[ 'ID413', qq{BEGIN;\nSET LOCAL idempotency.max_response_size = 8;\nSELECT idem_begin('k');\n}
		  . q{SELECT idem_complete('k', :secret::jsonb, headers => :secret::jsonb, body => :bytes::bytea);} ],
	[ 'ID422', q{SELECT idem_begin('done', request => (:secret || ' ')::jsonb || '1');} ],
	[ 'ID422', q{SELECT idem_begin('leased', request => (:secret || ' ')::jsonb || '1', wait => '1s');} ],
	[ 'ID428', q{SELECT idem_begin('k', request => :secret::jsonb);} ],
	[ '25006', qq{BEGIN READ ONLY;\nSELECT idem_begin('k', request => :secret::jsonb);} ],
	[ '40001', qq{BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 1;\n}
		  . q{SELECT idem_complete('leased', :secret::jsonb, fence => fence) FROM lease, elsewhere('SELECT idem_extend(''leased'', ''2 hours'', fence => fence) FROM lease');} ],
	[ '42501', qq{BEGIN;\nSET LOCAL ROLE spy;\nSELECT idem_begin('k', request => :secret::jsonb);} ],
	[ '55P03', qq{BEGIN;\nSET LOCAL lock_timeout = '50ms';\nSELECT idem_begin('held', request => :secret::jsonb, wait => '100s');} ],
	[ '57014', qq{BEGIN;\nSET LOCAL statement_timeout = '50ms';\nSELECT idem_begin('held', request => :secret::jsonb, wait => '100s');} ],
	# a failure that is stored is no error, and not logged either
	[ '', q{SELECT idem_call('raise(jsonb)', 'raised', :secret::jsonb);} ],
	[ '', q{SELECT idem_call('constant(jsonb)', 'constant', :secret::jsonb);} ],
	[ 'ID413', qq{BEGIN;\nSET LOCAL idempotency.max_response_size = 8;\nSELECT idem_call('constant(jsonb)', 'large', :secret::jsonb);} ],
	[ 'ID422', q{SELECT idem_call('constant(jsonb)', 'done', (:secret || ' ')::jsonb || '1');} ]);

# Constraints that the owner adds to the store must not make the server print rows.
my @guarded = (
	[ 'CHECK constraint', 'ALTER TABLE idempotency_store ADD CONSTRAINT guard CHECK (response_code < 500)',
		'23514', 'ALTER TABLE idempotency_store DROP CONSTRAINT guard' ],
	[ 'unique index', q{CREATE UNIQUE INDEX guard ON idempotency_store (response_payload) WHERE response_code = 500;}
		  . q{ BEGIN; SELECT idem_begin('guard'); SELECT idem_complete('guard', '"} . $marker . q{"', code => 500); COMMIT},
		'(?:23505|40001)', 'DROP INDEX guard' ]);

query(<<'SQL');
CREATE EXTENSION dblink;
CREATE FUNCTION elsewhere(statement text) RETURNS SETOF int LANGUAGE sql AS
	$$SELECT 1 FROM dblink('dbname=postgres host=' || split_part(current_setting('unix_socket_directories'), ',', 1)
		|| ' port=' || current_setting('port'), statement) AS answer(ignored text)$$;
SQL

my $holder = session($node);

for my $store ('plain store', 'store with a trigger')
{
	if ($store ne 'plain store')
	{
		query(<<'SQL');
CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TRIGGER pass BEFORE INSERT OR UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION pass();
DELETE FROM idempotency_store WHERE idempotency_key IN ('raised', 'constant', 'guard');
SQL
	}
	ask($holder, 'BEGIN');
	ask($holder, q{SELECT idem_begin('held')});
	for my $case (@cases)
	{
		my ($state, $script) = @$case;
		my $from = -s $node->logfile;

		is(errors_of($script), $state, "$store: " . ($state || 'no error') . ": $script");
		unlike(slurp_file($node->logfile, $from), qr/$marker/i, "$store: nothing of it in the log");
	}
	ask($holder, 'ROLLBACK');
	for my $guard (@guarded)
	{
		my ($name, $create, $state, $drop) = @$guard;
		my $from;

		query($create);
		$from = -s $node->logfile;
		like(errors_of("BEGIN;\nSELECT idem_begin('k');\n"
				  . 'SELECT idem_complete(\'k\', :secret::jsonb, code => 500, body => :bytes::bytea);'),
			qr/^$state$/, "$store: $name of the owner's");
		unlike(slurp_file($node->logfile, $from), qr/$marker/i, "$store: nothing of it in the log");
		query($drop);
	}
}
$holder->quit;

# The markers are not in views that count statements or show sessions.
unlike(query('SELECT * FROM pg_stat_activity'), qr/$marker/, 'nor in pg_stat_activity');

# The server keeps no values of responses for its planner: they would outlive the records.
sub columns_with_values ($setup)
{
	query(<<"SQL", 'older');
$setup;
SELECT count(idem_complete(idem_begin(n::text), '"$marker"', headers => '"$marker"', body => '$marker')) FROM generate_series(1, 50) n;
ANALYZE;
SQL
	return query(<<'SQL', 'older');
SELECT string_agg(DISTINCT attname, ' ') FROM pg_stats
WHERE tablename LIKE 'idempotency%' AND concat(most_common_vals, histogram_bounds) ~ 'XyzzyMarker|58797a7a79|COMPLETED'
SQL
}

query('CREATE DATABASE older');
is(columns_with_values(q{CREATE EXTENSION idempotency VERSION '1.0'}), 'response_body response_headers response_payload status', 'version 1.0 had them');
is(columns_with_values("ALTER EXTENSION idempotency UPDATE; DELETE FROM idempotency_store"), 'status', 'no response in the planner\'s statistics');
is(columns_with_values("DELETE FROM idempotency_store; SELECT idem_partition_store('12 hours'); SELECT idem_gc()"), 'status', 'nor in those of a ring');

# The search itself works: the text of a statement is in the log.
$node->psql('postgres', qq{SELECT idem_complete('k', '"$marker"')});
like(slurp_file($node->logfile), qr/$marker/, 'a literal in a statement that fails is logged by the server');

done_testing();
