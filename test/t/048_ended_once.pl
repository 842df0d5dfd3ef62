# The answer to COMMIT is lost, and the client sends the whole transaction again,
# in every way in which programs and drivers do that: its business
# write is committed once, and the record does not change.
use Idempotency;

my $node = new_node('once', conf => 'max_prepared_transactions = 5');

query(<<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (request->>'key');
	RETURN request;
END
$$;
-- what a function of the application does with a lease
CREATE FUNCTION finish(k text, f bigint) RETURNS void LANGUAGE sql AS $$
	INSERT INTO effect VALUES (k);
	SELECT idem_complete(key => k, response => '"done"', fence => f);
$$;
-- ... and where it is prepared for what may go wrong
CREATE FUNCTION finish_or_tell(k text, f bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM finish(k, f);
	RETURN 'done';
EXCEPTION WHEN SQLSTATE 'ID409' THEN
	RETURN (idem_begin(key => k)).response_payload;
END
$$;
CREATE FUNCTION begin_and_finish(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	op idem_operation := idem_begin(key => k);
BEGIN
	INSERT INTO effect VALUES (k);
	PERFORM idem_complete(op, '"done"');
	RETURN 'done';
EXCEPTION WHEN SQLSTATE 'ID404' THEN
	RETURN op.response_payload;
END
$$;
CREATE PROCEDURE finish_and_commit(k text, f bigint) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (k);
	PERFORM idem_complete(key => k, response => '"done"', fence => f);
	COMMIT;
END
$$;
SQL

my $write = q{INSERT INTO effect VALUES (':k:')};
my $complete = q{SELECT idem_complete(key => ':k:', response => '"done"', fence => :f:)};
my $begin_bound = q{SELECT idem_begin(key => ':k:')};
my $complete_bound = q{SELECT idem_complete(key => ':k:', response => '"done"')};

# The transaction, its sender, and the answer to the repetition or its SQLSTATE.
my %leased = (
	'one statement after the other' => [ psql => "BEGIN;\n$write;\n$complete;\nCOMMIT;", 'ID409' ],
	'the end before the write' => [ psql => "BEGIN;\n$complete;\n$write;\nCOMMIT;", 'ID409' ],
	'a failure' => [ psql => "BEGIN;\n$write;\nSELECT idem_fail(key => ':k:', error => '\"done\"', fence => :f:);\nCOMMIT;", 'ID409' ],
	'all in one string' => [ string => "BEGIN; $write; $complete; COMMIT", 'ID409' ],
	'one string without BEGIN' => [ string => "$write; $complete", 'ID409' ],
	'one statement in autocommit' => [ string => "WITH w AS ($write) $complete", 'ID409' ],
	'a function' => [ string => q{SELECT finish(':k:', :f:)}, 'ID409' ],
	'a function that catches the error' => [ string => q{SELECT finish_or_tell(':k:', :f:)}, '"done"' ],
	'a procedure that commits' => [ string => q{CALL finish_and_commit(':k:', :f:)}, 'ID409' ],
	'a DO block' => [ string => "DO \$\$ BEGIN $write; PERFORM finish(':k:', :f:); END \$\$", 'ID409', 2 ],
	'a savepoint around both' => [ psql => "BEGIN;\nSAVEPOINT a;\n$write;\n$complete;\nRELEASE a;\nCOMMIT;", 'ID409' ],
	'a savepoint around the end' => [ psql => "BEGIN;\n$write;\nSAVEPOINT a;\n$complete;\nRELEASE a;\nCOMMIT;", 'ID409' ],
	'a savepoint for each statement' => [ psql => "\\set ON_ERROR_ROLLBACK on\nBEGIN;\n$write;\n$complete;\nCOMMIT;", 'ID409' ],
	'the extension of the lease first' =>
	  [ psql => "BEGIN;\nSELECT idem_extend(key => ':k:', lease => '1 hour', fence => :f:);\n$write;\n$complete;\nCOMMIT;", 'ID409' ],
	'two-phase commit' => [ psql => "BEGIN;\n$write;\n$complete;\nPREPARE TRANSACTION ':k:';\nCOMMIT PREPARED ':k:';", 'ID409' ],
	'REPEATABLE READ' => [ psql => "BEGIN ISOLATION LEVEL REPEATABLE READ;\n$write;\n$complete;\nCOMMIT;", 'ID409' ],
	'simple protocol' => [ simple => "BEGIN;\n$write;\n$complete;\nCOMMIT;\n", 'ID409' ],
	'extended protocol' => [ extended => "BEGIN;\n$write;\n$complete;\nCOMMIT;\n", 'ID409' ],
	'prepared statements' => [ prepared => "BEGIN;\n$write;\n$complete;\nCOMMIT;\n", 'ID409' ],
	'a pipeline' => [ extended => "\\startpipeline\nBEGIN;\n$write;\n$complete;\nCOMMIT;\n\\endpipeline\n", 'ID409' ],
	'a pipeline without BEGIN' => [ prepared => "\\startpipeline\n$write;\n$complete;\n\\endpipeline\n", 'ID409' ]);
my %bound = (
	'one statement after the other' => [ psql => "BEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nCOMMIT;", 'ID404' ],
	'all in one string' => [ string => "BEGIN; $begin_bound; $write; $complete_bound; COMMIT", 'ID404' ],
	'one string without BEGIN' => [ string => "$begin_bound; $write; $complete_bound", 'ID404' ],
	'a failure' => [ psql => "BEGIN;\n$begin_bound;\n$write;\nSELECT idem_fail(key => ':k:', error => '\"done\"');\nCOMMIT;", 'ID404' ],
	'a savepoint for each statement' => [ psql => "\\set ON_ERROR_ROLLBACK on\nBEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nCOMMIT;", 'ID404' ],
	'a DO block' => [ string => "DO \$\$ DECLARE op idem_operation := idem_begin(key => ':k:');"
		  . " BEGIN $write; PERFORM idem_complete(op, '\"done\"'); END \$\$", 'ID404' ],
	'a function that catches the error' => [ string => q{SELECT begin_and_finish(':k:')}, '"done"' ],
	'idem_call' => [ string => q{SELECT response_payload->>'key' FROM idem_call('handler(jsonb)', key => ':k:', request => '{"key": ":k:"}')}, ':k:' ],
	'a batch' => [ psql => "BEGIN;\nSELECT idem_begin_batch(keys => ARRAY[':k:']);\n$write;\nSELECT idem_complete_batch(keys => ARRAY[':k:']);\nCOMMIT;", 'ID404' ],
	'two-phase commit' => [ psql => "BEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nPREPARE TRANSACTION ':k:';\nCOMMIT PREPARED ':k:';", 'ID404' ],
	'extended protocol' => [ extended => "BEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nCOMMIT;\n", 'ID404' ],
	'prepared statements' => [ prepared => "BEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nCOMMIT;\n", 'ID404' ],
	'a pipeline' => [ extended => "\\startpipeline\nBEGIN;\n$begin_bound;\n$write;\n$complete_bound;\nCOMMIT;\n\\endpipeline\n", 'ID404' ],
	'a pipeline without BEGIN' => [ prepared => "\\startpipeline\n$begin_bound;\n$write;\n$complete_bound;\n\\endpipeline\n", 'ID404' ]);

my $scripts = PostgreSQL::Test::Utils::tempdir();

# Sends it as psql or pgbench do, and returns the status and the whole output.
sub deliver ($how, $sql)
{
	my $script = "$scripts/script";
	my ($out, $err, $status) = ('', '');
	my @command;

	open(my $file, '>', $script) or die $!;
	print $file $sql;
	close $file;
	@command = $how eq 'psql' ? ('psql', '-XAt', '-v', 'VERBOSITY=verbose', '-v', 'ON_ERROR_STOP=1', '-f', $script)
	  : $how eq 'string' ? ('psql', '-XAt', '-v', 'VERBOSITY=verbose', '-c', $sql)
	  : ('pgbench', '-n', '-t', '1', '-M', $how, '-f', $script);
	$status = IPC::Run::run([ @command, '-d', $node->connstr('postgres') ], '>', \$out, '2>', \$err) ? 0 : 1;
	return ($status, "$out$err");
}

sub record ($key)
{
	return query("SELECT ctid, s FROM idempotency_store s WHERE idempotency_key = '$key'");
}

my $number = 0;

sub once ($name, $fence, $key, $how, $sql, $expected, $writes = 1)
{
	my ($status, $said, $before);

	s/:k:/$key/g, s/:f:/$fence/g for $sql, $expected;
	($status, $said) = deliver($how, $sql);
	is($status, 0, "$name: it is done") or diag $said;
	$before = record($key);
	isnt($before, '', "$name: with a record");
	# all of it, again
	($status, $said) = deliver($how, $sql);
	# pgbench shows the message alone
	$expected = 'lease of operation|is not owned by this transaction' if $expected =~ /^ID/ && $how =~ /simple|extended|prepared/;
	like($said, qr/$expected/, "$name: repeated, it gets the answer");
	is($status, $expected =~ /^"|^k/ ? 0 : 1, "$name: as an error, or as an answer");
	is(query("SELECT count(*) FROM effect WHERE key = '$key'"), $writes, "$name: one effect");
	is(record($key), $before, "$name: the record is as it was");
}

for my $name (sort keys %leased)
{
	my $key = 'k' . ++$number;
	my $fence = query("SELECT fence FROM idem_begin(key => '$key', lease => '1 hour')");

	once("leased, $name", $fence, $key, @{ $leased{$name} });
}
once("transaction-bound, $_", 0, 'k' . ++$number, @{ $bound{$_} }) for sort keys %bound;

# An old owner comes back and ends the operation again, as it does not know that the end was made.
my $fence = query(q{SELECT fence FROM idem_begin(key => 'old', lease => '1 us')});
query(q{SELECT finish('old', fence) FROM idem_begin(key => 'old', lease => '1 hour')});
my ($status, $said) = deliver('string', "SELECT finish('old', $fence)");
like($said, qr/ID409.*DETAIL:  Another attempt completed the operation at \d/s, 'an old owner learns who ended it');
is(query(q{SELECT count(*) FROM effect WHERE key = 'old'}), '1', 'one effect');

$node->stop;
done_testing();
