# Responses that are sealed with pgcrypto, and keyed fingerprints: neither the
# tables nor the WAL nor a dump has them in clear, and without the
# right key there is an error, never a second execution.
use File::Find;
use Idempotency;

my $node = new_node('sealing', conf => "log_statement = none\nlog_min_messages = debug1\nlog_error_verbosity = verbose\n");
my $key_file = $node->data_dir . '/idempotency.keys';
my %secret = map { $_ => unpack('H*', pack('N8', map { int rand 2**32 } 1 .. 8)) } qw(k1 k2 other);

# Everything that the life of an operation stores.
sub complete ($key, $response, $database = undef)
{
	return query("BEGIN; SELECT outcome FROM idem_begin('$key', request => '\"card 4711\"'); "
		  . "SELECT idem_complete('$key', $response); COMMIT", $database);
}

sub replay ($key, $request = undef)
{
	$request = defined $request ? ", request => '$request'" : '';
	return query("SELECT outcome, response_code, response_headers, response_payload, encode(response_body, 'hex') FROM idem_begin('$key'$request)");
}

my $all = q{'{"payload": "PlainPayload"}', code => 201, headers => '{"h": "PlainHeaders"}', body => 'PlainBody'};
my $replayed = 'COMPLETED|201|{"h": "PlainHeaders"}|{"payload": "PlainPayload"}|' . unpack('H*', 'PlainBody');

# The control: without a key nothing is sealed.
complete('clear', $all);
is(query(q{SELECT seal_key IS NULL AND sealed IS NULL AND hash_key IS NULL AND response_body = 'PlainBody'
	AND request_hash = idem_fingerprint('"card 4711"') FROM idempotency_store}), 't', 'no key: nothing is sealed');
is(sqlstate($node, 'SELECT idem_reseal()'), '55000', 'nor is there anything to seal with');

# Large ones, which the store keeps compressed or out of line.
query(q{CREATE TABLE large AS SELECT n, CASE n WHEN 1 THEN repeat('x', 5000)::bytea WHEN 2 THEN convert_to(repeat(n::text, 50), 'UTF8')
	ELSE (SELECT string_agg(sha256((n * 1000 + i)::text::bytea), '') FROM generate_series(1, 400 * n) i) END AS body FROM generate_series(1, 6) n});
for my $n (1 .. 6)
{
	query("BEGIN; SELECT idem_begin('large $n'); SELECT idem_complete('large $n', to_jsonb(encode(body, 'hex')), headers => to_jsonb(repeat('h', 3000)), body => body) FROM large WHERE n = $n; COMMIT");
}

sub large_ones
{
	return query(q{SELECT count(*) FROM large l, idem_lookup('large ' || l.n) o
		WHERE o.response_body = l.body AND o.response_payload = to_jsonb(encode(l.body, 'hex')) AND o.response_headers = to_jsonb(repeat('h', 3000))});
}
is(large_ones(), '6', 'large responses');

# With one
write_keys($node, '# keys of the test', '', "k1\t$secret{k1}");
reconfigure($node, 'idempotency.seal_key_file' => 'idempotency.keys');
is(sqlstate($node, "BEGIN; SELECT idem_begin('early'); SELECT idem_complete('early', '1')"),
	'55000', 'sealing needs pgcrypto');
like(($node->psql('postgres', "BEGIN; SELECT idem_begin('early'); SELECT idem_complete('early', '1')"))[2],
	qr/HINT:.*CREATE EXTENSION pgcrypto/, 'and says how to get it');
is(query("BEGIN; SELECT outcome FROM idem_begin('nothing secret'); SELECT idem_complete('nothing secret', code => 204); COMMIT"),
	"ACQUIRED\n", 'an end without a response does not');
query('CREATE SCHEMA crypto; CREATE EXTENSION pgcrypto SCHEMA crypto');

sub is_sealed ($key, $with, $name)
{
	is(query(qq{SELECT seal_key, response_payload IS NULL AND response_headers IS NULL AND response_body IS NULL,
		sealed IS NOT NULL FROM idempotency_store WHERE idempotency_key = '$key'}), "$with|t|t", "$name: sealed with $with");
	return;
}

complete('sealed', $all);
is_sealed('sealed', 'k1', 'idem_complete');
is(replay('sealed', '"card 4711"'), $replayed, 'and replayed as it was');
is(query("SELECT response_payload FROM idem_lookup('sealed')"), '{"payload": "PlainPayload"}', 'idem_lookup opens it, too');
query(q{SELECT idem_set_policy('', max_response_size => 9, too_large_response => '"elsewhere"')});
complete('too large', $all);
query(q{SELECT idem_set_policy('')});
is_sealed('too large', 'k1', 'what a policy has in place of a response');
is(replay('too large'), 'COMPLETED|201||"elsewhere"|', 'and it is replayed');
# Responses from before the key are refused, unless the setting accepts them.
is(sqlstate($node, q{SELECT idem_begin('clear')}), '55000', 'what was stored before the key is not replayed');
reconfigure($node, 'idempotency.accept_clear_responses' => 'on');
is(replay('clear', '"card 4711"'), $replayed, 'but where they are accepted it is, and its fingerprint still compares');
is(large_ones(), '6', 'large responses, too');

for my $case ([ 'sql null', 'NULL', '||' ], [ 'json null', q{'null'}, '|null|' ], [ 'body', q{NULL, body => '\x00ff'}, '||00ff' ],
	[ 'empty', q{'""', body => ''}, '|""|' ], [ 'headers', q{NULL, headers => '{"a": [1.10, "\u00fc"]}'}, '{"a": [1.10, "' . "\xc3\xbc" . '"]}||' ])
{
	my ($key, $response, $answer) = @$case;

	complete($key, $response);
	is(replay($key), "COMPLETED||$answer", "replayed: $key");
}
query(q{CREATE FUNCTION pay(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'});
query(q{CREATE FUNCTION decline(jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''%'', $1->>0; END'});
is(query(q{SELECT outcome, replayed, response_payload FROM idem_call('pay(jsonb)', 'called', '"PlainCall"')}),
	'COMPLETED|f|"PlainCall"', 'idem_call answers its first caller');
is_sealed('called', 'k1', 'idem_call');
is(query(q{SELECT outcome, response_payload->>'message' FROM idem_call('decline(jsonb)', 'declined', '"PlainFailure"')}), 'FAILED|PlainFailure', 'and with a failure');
is_sealed('declined', 'k1', 'a failure of idem_call');
is(query(q{SELECT cause, operations FROM idempotency_failures}), 'sealed|1', 'a view opens no failure');
is(query(q{SELECT outcome, replayed, response_payload->>'message' FROM idem_call('decline(jsonb)', 'declined', '"PlainFailure"')}), 'FAILED|t|PlainFailure', 'which is replayed');
query(q{SELECT idem_complete('leased', '"PlainLease"', fence => fence) FROM idem_begin('leased', lease => '1 hour')});
is_sealed('leased', 'k1', 'a leased operation');
query(q{BEGIN; SELECT count(*) FROM idem_begin_batch(ARRAY['b1', 'b2']); SELECT idem_complete_batch(ARRAY['b1', 'b2'], ARRAY['"PlainBatch"', NULL]::jsonb[]); COMMIT});
is_sealed('b1', 'k1', 'a batch');
query(q{BEGIN; SELECT idem_begin('retry'); SELECT idem_fail('retry', '"PlainRetry"', retryable => true); COMMIT});
is_sealed('retry', 'k1', 'a failure to be tried again');
is(query(q{SELECT outcome, response_payload->>'reason' FROM idem_begin('retry', max_attempts => 1)}), 'FAILED|attempts exhausted', 'and no more');
is_sealed('retry', 'k1', 'exhausted attempts');
# A note of progress goes from one attempt to the next, sealed all the time.
my $fence = query(q{SELECT fence FROM idem_begin('noted', lease => '1 hour')});
query(qq{SELECT idem_progress('noted', '"PlainProgress"', fence => $fence, lease => '1 us')});
is_sealed('noted', 'k1', 'idem_progress');
is(query(q{SELECT outcome, response_payload FROM idem_lookup('noted')}), 'IN_PROGRESS|"PlainProgress"', 'idem_lookup opens it');
is(query(q{SELECT outcome, attempt, response_payload FROM idem_begin('noted', lease => '1 us')}), 'ACQUIRED|2|"PlainProgress"', 'and so does the next owner');
is_sealed('noted', 'k1', 'the next attempt');
is(query(q{SELECT idem_release('noted', fence => fence) FROM idempotency_store WHERE idempotency_key = 'noted'}), 't', 'which is released');
is(query(q{SELECT outcome, attempt, response_payload FROM idem_begin('noted', lease => '1 us')}), 'ACQUIRED|2|"PlainProgress"', 'leaves it to the one after it');
# Table files, WAL and dump have no response in clear. The response of 'clear' is
# the control: the search finds it.
sub found_in_files ($text)
{
	my @found;

	query('CHECKPOINT');
	find({ no_chdir => 1, wanted => sub {
		return unless -f && m{/(?:base|global|pg_wal)/};
		push @found, $_ if slurp_file($_) =~ /\Q$text\E/;
	} }, $node->data_dir);
	return scalar @found;
}

cmp_ok(found_in_files('PlainPayload'), '>', 0, 'the search finds what is not sealed');
is(found_in_files("Plain$_"), 0, "Plain$_ is in no table file and in no WAL") for qw(Call Failure Lease Batch Retry Progress);
is(found_in_files($secret{k1}), 0, 'nor is the secret');

my $directory = PostgreSQL::Test::Utils::tempdir();
for my $format ('plain', 'custom')
{
	$node->command_ok([ 'pg_dump', "--format=$format", '--compress=0', '--file', "$directory/$format", $node->connstr('postgres') ], "pg_dump, $format");
	my $dump = slurp_file("$directory/$format");

	like($dump, qr/PlainPayload/, "$format dump: the search finds what is not sealed");
	unlike($dump, qr/Plain(?:Call|Lease|Batch|Retry|Progress)|\Q$secret{k1}\E/, "$format dump: nothing of what is sealed");
}
unlike(query('SELECT string_agg(s::text, E\'\n\') FROM idempotency_store s WHERE idempotency_key <> \'clear\''), qr/Plain/,
	'nor does SQL on the table show it, to whoever may read all data');

# Fingerprints
isnt(query(q{SELECT request_hash FROM idempotency_store WHERE idempotency_key = 'sealed'}), query(q{SELECT idem_fingerprint('"card 4711"')}),
	'the stored fingerprint cannot be tried out without the key');
complete('sealed too', 'NULL');
is(query(q{SELECT count(DISTINCT request_hash), min(octet_length(request_hash)), max(octet_length(request_hash))
	FROM idempotency_store WHERE idempotency_key IN ('sealed', 'sealed too')}), '2|32|32', 'and is another one for another key');
is(sqlstate($node, q{SELECT idem_begin('sealed', request => '"card 4712"')}), 'ID422', 'another request is a mismatch');
is(sqlstate($node, q{SELECT idem_begin('clear', request => '"card 4712"')}), 'ID422', 'also against an older fingerprint');
is(sqlstate($node, q{BEGIN; SELECT idem_begin('here', request => '1'); SELECT idem_begin('here', request => '2')}), 'ID422', 'also in the transaction that began it');
is(query(q{SELECT outcome FROM idem_begin('sealed', request_hash => idem_fingerprint('"card 4711"'))}), 'COMPLETED', 'a hash that the caller brings compares as well');

# Rotation: the newest key seals, older ones still open.
write_keys($node, "k1 $secret{k1}", "k2  $secret{k2}");
complete('new', $all);
is_sealed('new', 'k2', 'after the rotation');
is(replay('sealed', '"card 4711"'), $replayed, 'the old key still opens, and its fingerprints compare');
is(replay('new', '"card 4711"'), $replayed, 'so does the new one');
{
	my $before = query(q{SELECT string_agg(concat_ws(' ', idempotency_key, status, attempt, fence, request_hash, created_at, updated_at, expires_at), ';'
		ORDER BY idempotency_key) FROM idempotency_store});
	my $responses = query(q{SELECT count(*) FROM idempotency_store WHERE (sealed IS NOT NULL OR response_payload IS NOT NULL) AND seal_key IS DISTINCT FROM 'k2'});
	my $sealed;

	query(q{CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER suppress BEFORE UPDATE ON idempotency_store FOR EACH ROW EXECUTE FUNCTION suppress()});
	is(sqlstate($node, 'SELECT idem_reseal()'), '09000', 'a trigger that keeps the old version is named');
	query('DROP FUNCTION suppress CASCADE');
	$sealed = query('SELECT idem_reseal(2)');
	is($sealed, '2', 'idem_reseal keeps to its limit');
	$sealed += query('SELECT idem_reseal()');
	is($sealed, $responses, 'and seals what was sealed before, or not at all');
	is(query('SELECT idem_reseal()'), '0', 'until nothing is left');
	query(q{CREATE TABLE memory (used bigint);
		CREATE FUNCTION note_memory() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN INSERT INTO memory SELECT sum(used_bytes) FROM pg_backend_memory_contexts; RETURN NEW; END';
		CREATE TRIGGER note_memory BEFORE UPDATE ON idempotency_store FOR EACH ROW WHEN (NEW.idempotency_key LIKE '%00')
			EXECUTE FUNCTION note_memory();
		INSERT INTO idempotency_store (scope, idempotency_key, expires_at, status, response_payload)
			SELECT 'many', i, 'infinity', 'COMPLETED', to_jsonb(repeat('x', 1700)) FROM generate_series(1, 4000) i});
	is(query('SELECT idem_reseal(4000)'), '4000', 'a large store in one call');
	cmp_ok(query('SELECT max(used) - min(used) FROM memory'), '<', 3e6, 'takes memory for a piece of it');
	query(q{DROP FUNCTION note_memory CASCADE; DELETE FROM idempotency_store WHERE scope = 'many'});
	is(query(q{SELECT string_agg(concat_ws(' ', idempotency_key, status, attempt, fence, request_hash, created_at, updated_at, expires_at), ';'
		ORDER BY idempotency_key) FROM idempotency_store}), $before, 'nothing else of a record changes');
}
is_sealed('clear', 'k2', 'from before there was a key');
is_sealed('noted', 'k2', 'a note of progress');
is(query(q{SELECT outcome, attempt, response_payload FROM idem_begin('noted', lease => '1 us')}), 'ACQUIRED|3|"PlainProgress"', 'which is handed on');
reconfigure($node, 'idempotency.accept_clear_responses' => undef);
is(query(q{SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'large %' AND seal_key = 'k2' AND response_body IS NULL}), '6', 'and so are large responses');
is(large_ones(), '6', 'which are what they were, to the byte');
is(replay($_, '"card 4711"'), $replayed, "replayed after idem_reseal: $_") for 'clear', 'sealed', 'new';

# Without the right key, or with damaged data: an error and no second execution.
sub refuses ($key, $state, $name)
{
	my $before = query('SELECT md5(string_agg(s::text, \';\' ORDER BY idempotency_key)) FROM idempotency_store s');

	is(sqlstate($node, "SELECT idem_begin('$key')"), $state, "$name: idem_begin");
	is(sqlstate($node, "SELECT idem_lookup('$key')"), $state, "$name: idem_lookup");
	is(sqlstate($node, "SELECT idem_call('pay(jsonb)', '$key')"), $state, "$name: idem_call");
	is(query('SELECT md5(string_agg(s::text, \';\' ORDER BY idempotency_key)) FROM idempotency_store s'), $before, "$name: nothing was written");
	return;
}

write_keys($node, "k1 $secret{k1}", "k2 $secret{other}");
refuses('sealed', 'XX001', 'another secret under the same name');
refuses('noted', 'XX001', 'a note under another secret');
write_keys($node, "k1 $secret{k1}");
refuses('sealed', '55000', 'a key that is not there any more');
refuses('noted', '55000', 'a note under a key that is not there any more');
like(($node->psql('postgres', q{SELECT idem_begin('noted')}))[2], qr/seal key "k2"|key "k2"/, 'it is named');
is(sqlstate($node, q{SELECT idem_begin('sealed', request => '"card 4712"')}), '55000', 'a fingerprint of a lost key is no mismatch')
  if query(q{SELECT hash_key FROM idempotency_store WHERE idempotency_key = 'sealed'}) eq 'k2';
is(sqlstate($node, q{SELECT idem_begin('new', request => '"card 4711"')}), '55000', 'a fingerprint that needs the lost key');
reconfigure($node, 'idempotency.seal_key_file' => '');
refuses('sealed', '55000', 'no key file');
reconfigure($node, 'idempotency.seal_key_file' => 'idempotency.keys');

write_keys($node, "k1 $secret{k1}", "k2 $secret{k2}");
query(q{CREATE TABLE kept AS SELECT * FROM idempotency_store});
query(q{UPDATE idempotency_store SET sealed = set_byte(sealed, length(sealed) - 5, get_byte(sealed, length(sealed) - 5) # 1) WHERE idempotency_key = 'sealed'});
refuses('sealed', 'XX001', 'damaged data');
write_keys($node, "k1 $secret{k1}", "k2 $secret{k2}", "k3 $secret{other}");
{
	my $others = query(q{SELECT count(*) - 1 FROM idempotency_store WHERE sealed IS NOT NULL});
	my ($status, $sealed, $warnings) = $node->psql('postgres', 'SELECT idem_reseal()');

	is($sealed, $others, 'idem_reseal goes past it, and seals the others');
	like($warnings, qr/WARNING:  response of operation "sealed" of scope "" was not sealed anew/, 'and says which it was');
	like($warnings, qr/WARNING:  1 response was passed over/, 'and how many there were');
	is(query(q{SELECT string_agg(idempotency_key, ' ') FROM idempotency_store WHERE sealed IS NOT NULL AND seal_key <> 'k3'}), 'sealed', 'which stays as it is');
	query(q{UPDATE idempotency_store s SET sealed = k.sealed, seal_key = k.seal_key FROM kept k WHERE k.scope = s.scope AND k.idempotency_key = s.idempotency_key AND s.idempotency_key <> 'sealed'});
}
write_keys($node, "k1 $secret{k1}", "k2 $secret{k2}");
query(q{UPDATE idempotency_store SET sealed = (SELECT sealed FROM kept WHERE idempotency_key = 'called') WHERE idempotency_key = 'sealed'});
refuses('sealed', 'XX001', 'the response of another operation');
query(q{UPDATE idempotency_store SET sealed = NULL, seal_key = NULL, response_payload = '"planted"' WHERE idempotency_key = 'noted'});
refuses('noted', '55000', 'a note in clear');
like(($node->psql('postgres', q{SELECT idem_begin('noted')}))[2], qr/progress of operation "noted".*HINT:  The operation is not taken over until its progress can be handed on/s, 'which the message calls so');
is(sqlstate($node, qq{SELECT idem_extend('noted', '1 us', fence => fence) FROM idempotency_store WHERE idempotency_key = 'noted'}), '55000', 'an extension does not seal it');
is(sqlstate($node, qq{SELECT idem_release('noted', fence => fence) FROM idempotency_store WHERE idempotency_key = 'noted'}), '55000', 'nor does a release');
query(q{UPDATE idempotency_store SET sealed = (SELECT sealed FROM kept WHERE idempotency_key = 'sealed'), seal_key = 'k2', response_payload = NULL WHERE idempotency_key = 'noted'});
refuses('noted', 'XX001', 'a note that was a response');
query(q{UPDATE idempotency_store s SET sealed = '\x' WHERE idempotency_key = 'sealed'});
refuses('sealed', 'XX001', 'nothing where a response was');
query(q{UPDATE idempotency_store s SET seal_key = NULL WHERE idempotency_key = 'new'});
refuses('new', 'XX001', 'no name of a key');
query(q{UPDATE idempotency_store s SET sealed = k.sealed, seal_key = k.seal_key FROM kept k WHERE k.scope = s.scope AND k.idempotency_key = s.idempotency_key});
is(replay('sealed', '"card 4711"'), $replayed, 'put right again, it is replayed');

# The file itself
sub refused_file ($state, $name)
{
	is(sqlstate($node, q{SELECT idem_begin('sealed')}), $state, "$name: $state");
	is(sqlstate($node, 'SELECT idem_reseal()'), $state, "$name: idem_reseal");
	is(sqlstate($node, q{BEGIN; SELECT idem_begin('unsealed'); SELECT idem_complete('unsealed', '1')}), $state, "$name: nothing is stored in clear instead");
	return;
}

chmod 0640, $key_file;
refused_file('F0000', 'readable by the group');
chmod 0602, $key_file;
refused_file('F0000', 'writable by others');
unlink $key_file;
refused_file('58P01', 'no file');
mkdir $key_file;
refused_file('F0000', 'a directory');
rmdir $key_file;
my $secret = $secret{k1};
for my $case ([ 'empty', '' ], [ 'comments only', '# nothing' ], [ 'a short secret', 'k1 ' . substr($secret, 0, 31) ], [ 'no secret', 'k1' ],
	[ 'three words', "k1 $secret more" ], [ 'a name twice', "k1 $secret", "k1 $secret{k2}" ], [ 'a long name', ('k' x 64) . " $secret" ],
	[ 'a name that is not ASCII', "k\xc3\xbc $secret" ], [ 'a byte 0', "k1 $secret\0" ], [ 'too large', "# " . ('x' x 70000), "k1 $secret" ])
{
	my ($name, @lines) = @$case;

	write_keys($node, @lines);
	refused_file('F0000', $name);
}
# what is cut is long enough for a secret
write_keys($node, "k1 $secret", "k2 $secret{k2}");
truncate $key_file, (-s $key_file) - 24;
refused_file('F0000', 'half of a line');
write_keys($node, "  k1   $secret{k1}  ", "k2 $secret{k2}\r");
is(replay('sealed', '"card 4711"'), $replayed, 'blanks and carriage returns are no part of a key');

# Which roles may set it, and see it
is(sqlstate($node, q{SET idempotency.seal_key_file = '/tmp/mine'}), '55P02', 'no session can set it');
is(sqlstate($node, q{ALTER ROLE postgres SET idempotency.seal_key_file = '/tmp/mine'}), '55P02', 'nor a role have it set');
query('CREATE ROLE app');
is(sqlstate($node, q{SET ROLE app; SHOW idempotency.seal_key_file}), '42501', 'nor everybody see it');
query('SELECT idem_grant(\'app\')');
is(query(q{SET ROLE app; SELECT outcome FROM idem_begin('sealed', request => '"card 4711"')}), 'COMPLETED', 'an application needs no right on it, nor on pgcrypto');
query('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA crypto FROM PUBLIC');
is(query(q{SET ROLE app; SELECT outcome FROM idem_begin('sealed', request => '"card 4711"')}), 'COMPLETED', 'even where pgcrypto is closed to it');

# A function that only looks like pgcrypto's is never called.
create_database('fake');
query(q{CREATE FUNCTION pgp_sym_encrypt_bytea(bytea, text, text) RETURNS bytea LANGUAGE sql AS 'SELECT $1'}, 'fake');
is(sqlstate($node, q{BEGIN; SELECT idem_begin('k'); SELECT idem_complete('k', '1')}, 'fake'), '55000', 'a function of that name is not enough');

# A session that is connected when a key is added uses the new key from then on.
write_keys($node, "k1 $secret{k1}");
my $living = session($node);
for my $newest ('k1', 'k2')
{
	write_keys($node, "k1 $secret{k1}", "k2 $secret{k2}") if $newest eq 'k2';
	ask($living, "BEGIN; SELECT idem_begin('living $newest'), idem_complete('living $newest', '1'); COMMIT");
	is(query("SELECT seal_key FROM idempotency_store WHERE idempotency_key = 'living $newest'"),
		$newest, "a session that lives on seals with $newest");
}
$living->quit;

# The owner of a lease reads its note before idem_reseal has sealed that anew, and stores it after that.
for my $case ([ 'extend', q{idem_extend('keeper', '1 us', fence => fence) IS NOT NULL} ], [ 'release', q{idem_release('keeper', fence => fence)} ])
{
	my ($name, $call) = @$case;
	my ($resealing, $owner) = (session($node), session($node));

	query(q{DELETE FROM idempotency_store WHERE idempotency_key = 'keeper'});
	write_keys($node, "k1 $secret{k1}");
	query(q{SELECT idem_begin('keeper', lease => '1 us')});
	query(q{SELECT idem_progress('keeper', '"PlainProgress"', fence => fence) FROM idem_begin('keeper', lease => '1 us')});
	is_sealed('keeper', 'k1', "before $name");
	write_keys($node, "k1 $secret{k1}", "k2 $secret{k2}");
	ask($resealing, 'BEGIN');
	# which also warns of what was damaged above
	cmp_ok($resealing->query('SELECT idem_reseal()'), '>', 0, 'a note is sealed anew');
	$owner->{stdin} .= "SELECT $call FROM idempotency_store WHERE idempotency_key = 'keeper';\n";
	$owner->{run}->pump_nb;
	wait_until("$name waits for the row", sub { $owner->{run}->pump_nb; query(q{SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'}) });
	ask($resealing, 'COMMIT');
	ask($owner, 'SELECT 1');
	$_->quit for $resealing, $owner;
	is_sealed('keeper', 'k2', "after $name");
	is(query(q{SELECT outcome, response_payload FROM idem_begin('keeper', lease => '1 us')}), 'ACQUIRED|"PlainProgress"', 'and handed on');
}

# The log of all of this, at debug1, with locations.
my $log = slurp_file($node->logfile);

unlike($log, qr/\Q$_\E/, 'no secret in the log') for values %secret;
unlike($log =~ s/^.*STATEMENT: .*$//mgr, qr/Plain(?:Payload|Headers|Body|Call|Lease|Progress)/, 'and no response');

done_testing();
