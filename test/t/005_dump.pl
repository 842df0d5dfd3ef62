# pg_dump and pg_restore: records, marks, claims, policies and
# the fence sequence come along, whatever the schema is called, and fences never
# repeat.
use Idempotency;

my $node = new_node('dump');

# Everything that belongs to the data, in a form that can be compared.
sub contents ($database, $schema)
{
	return $node->safe_psql($database, <<"SQL");
SELECT md5(string_agg(s::text, E'\\n' ORDER BY scope, idempotency_key)) FROM $schema.idempotency_store s;
SELECT md5(string_agg(s::text, E'\\n' ORDER BY scope, stream)) FROM $schema.idempotency_stream s;
SELECT string_agg(s::text, E'\\n' ORDER BY pattern) FROM $schema.idempotency_scope s;
SELECT string_agg(s::text, E'\\n' ORDER BY forgotten_at) FROM $schema.idempotency_forgotten s;
SELECT last_value, is_called FROM $schema.idempotency_fence;
SQL
}

sub begin_leased ($database, $key)
{
	return $node->safe_psql($database, "SELECT fence FROM idem_begin('$key', lease => '1 hour')");
}

query('CREATE ROLE teller; CREATE ROLE stranger');

# What of the application, the extension and its store a dump with these options has.
sub dumped ($database, @options)
{
	my ($dump) = run_command([ 'pg_dump', @options, $node->connstr($database) ]);

	return join ' ', $dump =~ /^(CREATE EXTENSION|COPY .*?\.(?:sale|idempotency_store)\b)/gm;
}

for my $schema ('public', 'idem', '"Odd Schema"')
{
	my $name = $schema =~ s/\W//gr;
	my $from = lc "from_$name";
	my ($fence, $contents);

	query("CREATE DATABASE $from TEMPLATE template0");
	query("ALTER DATABASE $from SET search_path = $schema, public");
	$node->safe_psql($from, <<"SQL");
CREATE SCHEMA app CREATE TABLE sale (id int);
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION idempotency SCHEMA $schema;
SELECT idem_grant('teller'), idem_grant('stranger');
SELECT idem_claim_scope('bank*', 'teller'), idem_set_policy('bank/eu', retention => '7 days', max_attempts => 3, too_large_response => '{"at": "/"}');
BEGIN;
SELECT idem_begin('completed', scope => 'scope', request => '1');
SELECT idem_complete('completed', '"done"', 'scope', 201, '{"a": "b"}', '\\x00ff0a');
SELECT idem_begin('failed');
SELECT idem_fail('failed', 'null', retryable => true, retry_after => '1 hour');
SELECT idem_advance('stream', 42);
SELECT idem_begin('dead'), idem_fail('dead');
COMMIT;
SELECT idem_forget_failed('', 'mended');
SELECT idem_begin('many' || i, lease => '1 hour') FROM generate_series(1, 40) i;
SQL
	$fence = begin_leased($from, 'leased');
	$contents = contents($from, $schema);
	like(dumped($from), qr/EXTENSION.*COPY \Q$schema\E\.idempotency_store/, "$from: a dump has the extension and the records");
	is(dumped($from, '-n', $schema), "COPY $schema.idempotency_store", "$from: that of its schema has the records alone");
	is(dumped($from, @$_), 'COPY app.sale', "$from: @$_ has neither") for [ '-n', 'app' ], [ '-t', 'app.sale' ];

	for my $format ('plain', 'custom')
	{
		my $to = lc "to_${name}_$format";

		dump_and_restore($from, $to, $format);
		query("ALTER DATABASE $to SET search_path = $schema, public");
		is(contents($to, $schema), $contents, "$to: all data");
		is($node->safe_psql($to, q{SELECT outcome, response_payload, response_body FROM idem_begin('completed', scope => 'scope')}),
			'COMPLETED|"done"|\x00ff0a', "$to: a replay");
		is(sqlstate($node, q{SELECT idem_begin('completed', scope => 'scope', request => '2')}, $to),
			'ID422', "$to: the fingerprint");
		cmp_ok(begin_leased($to, 'new'), '>', $fence, "$to: fences go on growing");
		is(sqlstate($node, "SELECT idem_complete('leased', fence => $fence)", $to),
			'', "$to: a lease can be ended by its fence");
		is($node->safe_psql($to, q{SELECT idem_advance('stream', 42), idem_advance('stream', 43)}),
			'f|t', "$to: the marks of streams");
		is(sqlstate($node, "SET ROLE stranger; SELECT idem_lookup('k', 'bank/eu')", $to), 'ID403', "$to: the claims");
		is(sqlstate($node, "SET ROLE teller; SELECT idem_lookup('k', 'bank/eu')", $to), '', "$to: and the rights");
		is( $node->safe_psql($to, q{BEGIN; SELECT outcome FROM idem_begin('policy', scope => 'bank/eu');
			SELECT idem_complete('policy', scope => 'bank/eu'); COMMIT;
			SELECT expires_at - updated_at FROM idem_lookup('policy', 'bank/eu')}),
			"ACQUIRED\n\n7 days", "$to: the policies");
	}
}

# The key of the lock ids is a database's own: a copy that is restored elsewhere
# must not show the same ids.
is($node->safe_psql('from_idem', 'SELECT lock_key FROM idem.idempotency_secret')
	  eq $node->safe_psql('to_idem_plain', 'SELECT lock_key FROM idem.idempotency_secret'),
	'', 'the key of the lock ids is not dumped');

# A dump has the owner of the tables of a ring, but not that of the extension.
query('CREATE ROLE keeper; CREATE DATABASE kept');
$node->safe_psql('kept', q{CREATE EXTENSION idempotency; SELECT idem_partition_store('12 hours')});
$node->safe_psql('kept', 'SELECT idem_gc()') for 1, 2;
$node->safe_psql('kept', q{BEGIN; SELECT idem_begin('k'), idem_complete('k', retention => '1 hour'); COMMIT});
like($node->safe_psql('kept', 'SELECT tableoid::regclass FROM idempotency_store'), qr/_p/, 'a record is in the ring');

sub give_to_keeper ($database, $tables)
{
	$node->safe_psql($database, "SELECT format('ALTER TABLE %s OWNER TO keeper', t) FROM ($tables) all_of (t) \\gexec");
	return;
}

my $of_extension = q{SELECT objid::regclass FROM pg_depend WHERE classid = 'pg_class'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency')};
give_to_keeper('kept', "$of_extension UNION SELECT name::regclass FROM idempotency_partitions");
dump_and_restore('kept', 'kept_by_another', 'custom');
my ($stdout, $stderr);
$node->psql('kept_by_another', q{SELECT idem_begin('k')}, stdout => \$stdout, stderr => \$stderr);
like($stderr, qr/belongs to another role.*HINT:  Run ALTER TABLE \.\.\. OWNER TO/s, 'tables of two owners are an error, which says what helps');
give_to_keeper('kept_by_another', $of_extension);
is($node->safe_psql('kept_by_another', q{SELECT outcome FROM idem_begin('k')}), 'COMPLETED', 'and then the record is a replay');

done_testing();
