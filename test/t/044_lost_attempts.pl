# Lost attempts: which rollbacks count, what forgets the count, and the limit that
# ends an operation whose transaction always rolls back (docs/reference/idem_lost_attempts.md).
use File::Basename qw(dirname);
use Idempotency;
use Wire;

my $node = new_node('lost', conf => "max_prepared_transactions = 10\nmax_connections = 30\nlog_line_prefix = '%p %e '\n");

query(<<'SQL');
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE effect (key text, parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE many AS SELECT n FROM generate_series(1, 20000) n;
CREATE FUNCTION raise(state text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = state; END $$;
CREATE FUNCTION caught(state text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM raise(state); EXCEPTION WHEN others THEN NULL; END $$;
CREATE FUNCTION handler(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM raise(request->>0); RETURN '1'; END $$;
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM raise(new.key); RETURN NULL; END $$;
CREATE TABLE late (key text);
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
CREATE TABLE locked ();
CREATE PROCEDURE rolls_back(key text) LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_begin(key); ROLLBACK; END $$;
CREATE PROCEDURE commits(key text) LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_begin(key); PERFORM idem_complete(key); COMMIT; PERFORM raise('22012'); END $$;
CREATE PROCEDURE forgets_end(key text) LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_begin(key); COMMIT; END $$;
CREATE PROCEDURE breaks(key text) LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_begin(key); PERFORM idem_complete(key); INSERT INTO effect VALUES (key, 99); COMMIT; END $$;
SQL

sub lost ($key)
{
	return query("SELECT idem_lost_attempts('$key')");
}

is(query(q{SELECT pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc WHERE proname = 'idem_lost_attempts'}),
	q{key text, scope text DEFAULT ''::text|integer}, 'the function');
is(query(q{SELECT name, setting, min_val, context FROM pg_settings WHERE name ~ '^idempotency.*lost' ORDER BY 1}),
	"idempotency.lost_attempts_tracked|10000|0|postmaster\nidempotency.max_lost_attempts|0|0|user", 'the settings');

# ---- a session that ends its transaction itself ----

my $holder = session($node);

ask($holder, 'BEGIN; LOCK TABLE locked');

my $begin = q{BEGIN; SELECT idem_begin('k')};
my $end = q{SELECT idem_complete('k')};

for my $case (
	[ 'ROLLBACK of the client', "$begin; ROLLBACK", 1 ],
	[ 'also after the end', "$begin; $end; ROLLBACK", 1 ],
	[ 'an error', "$begin; SELECT 1/0; ROLLBACK", 1 ],
	[ 'an error of a single statement', q{SELECT idem_begin('k'), 1/(n - 1) FROM many WHERE n = 1}, 1 ],
	[ 'ID428', "$begin; COMMIT", 1 ],
	[ 'ID428 without BEGIN', q{SELECT idem_begin('k')}, 1 ],
	[ 'a deferred constraint', "$begin; $end; INSERT INTO effect VALUES ('k', 99); COMMIT", 1 ],
	[ 'several statements in one', q{SELECT idem_begin('k')\; SELECT 1/0}, 1 ],
	[ 'statement_timeout', "$begin; SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60); ROLLBACK", 1 ],
	[ 'statement_timeout in another language', "SET lc_messages = 'de_DE.UTF-8'; $begin; SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60); ROLLBACK", 1 ],
	[ 'in a parallel worker', "SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0; SET parallel_tuple_cost = 0; $begin; SELECT count(*) FROM many WHERE 1/(n - n) = 1; ROLLBACK", 1 ],
	[ 'ROLLBACK AND CHAIN, and another one', "$begin; ROLLBACK AND CHAIN; SELECT idem_begin('k'); ROLLBACK", 2 ],
	[ 'a cursor that COMMIT reads to its end', "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT idem_begin('k'); COMMIT", 1 ],
	[ 'an error of COPY', "$begin; COPY (SELECT 1/0) TO STDOUT; ROLLBACK", 1 ],
	[ 'a lease that was not committed', q{BEGIN; SELECT idem_begin('k', lease => '1 hour'); ROLLBACK}, 1 ],
	(map { [ "class $_", "$begin; SELECT raise('$_'); ROLLBACK", 0 ] } qw(08006 40001 40P01 53100 53200 57P01 57014 58030 55P03)),
	(map { [ "class $_", "$begin; SELECT raise('$_'); ROLLBACK", 1 ] } qw(22012 23505 42P01 55006 P0001 XX000 ID422)),
	[ '40001 at COMMIT', "$begin; $end; INSERT INTO late VALUES ('40001'); COMMIT", 0 ],
	[ 'lock_timeout', "SET lock_timeout = '1ms'; $begin; LOCK TABLE locked; ROLLBACK", 0 ],
	[ 'COMMIT', "$begin; $end; COMMIT; SELECT idem_forget('k')", 0 ],
	[ 'two operations', "$begin, idem_begin('other'); ROLLBACK", 0 ],
	[ 'two operations, one of them in a savepoint', "$begin; SAVEPOINT s; SELECT idem_begin('other'); ROLLBACK TO s; ROLLBACK", 0 ],
	[ 'one operation, begun twice', "BEGIN; SAVEPOINT s; SELECT idem_begin('k'); ROLLBACK TO s; SELECT idem_begin('k'); ROLLBACK", 1 ],
	[ 'begun after a savepoint', "BEGIN; SAVEPOINT s; SELECT idem_begin('k'); ROLLBACK", 1 ],
	[ 'begun after a savepoint, which is rolled back', "BEGIN; SAVEPOINT s; SELECT idem_begin('k'); ROLLBACK TO s; ROLLBACK", 1 ],
	[ 'a rollback to a savepoint, and COMMIT', "BEGIN; SAVEPOINT s; SELECT idem_begin('k'); ROLLBACK TO s; COMMIT", 0 ],
	[ 'an error after a savepoint', "$begin; SAVEPOINT s; SELECT 1/0; ROLLBACK", 1 ],
	[ '40001 after a savepoint', "$begin; SAVEPOINT s; SELECT raise('40001'); ROLLBACK", 0 ],
	[ '40001 after a savepoint, to which the client rolls back first', "$begin; SAVEPOINT s; SELECT raise('40001'); ROLLBACK TO s; ROLLBACK", 1 ],
	[ '40001 after a savepoint, and the client goes on', "$begin; SAVEPOINT s; SELECT raise('40001'); ROLLBACK TO s; SELECT 1/0; ROLLBACK", 1 ],
	[ '40001 that a block catches', "$begin, caught('40001'); ROLLBACK", 1 ],
	[ 'an error that a block catches, and 40001', "$begin, caught('22012'); SELECT raise('40001'); ROLLBACK", 0 ],
	[ 'released, and rolled back', "$begin; SELECT idem_release('k'); ROLLBACK", 0 ],
	[ 'released, and another one begun', "BEGIN; SELECT idem_begin('other'), idem_release('other'); SELECT idem_begin('k'); ROLLBACK", 1 ],
	[ 'released after a savepoint, and rolled back', "$begin; SAVEPOINT s; SELECT idem_release('k'); ROLLBACK", 0 ],
	[ 'released after a savepoint, and begun again', "BEGIN; SAVEPOINT s; SELECT idem_begin('k'), idem_release('k'); SELECT idem_begin('k'); ROLLBACK", 1 ],
	[ 'released, which is taken back, and another one begun', "BEGIN; SELECT idem_begin('other'); SAVEPOINT s; SELECT idem_release('other'); ROLLBACK TO s; $begin; ROLLBACK" =~ s/; BEGIN;/;/r, 0 ],
	[ 'nothing was acquired', "BEGIN; SELECT idem_lookup('k'), idem_lost_attempts('k'); ROLLBACK", 0 ],
	[ 'a transaction that was prepared', "$begin; $end; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'", 0 ],
	[ 'a transaction that cannot be prepared', "$begin; PREPARE TRANSACTION 'p'; ROLLBACK", 1 ],
	[ 'ROLLBACK of a procedure', q{CALL rolls_back('k')}, 1 ],
	[ 'a procedure that fails after its COMMIT', q{CALL commits('k'); SELECT idem_forget('k')}, 0 ],
	[ 'a procedure whose COMMIT is refused', q{CALL forgets_end('k')}, 1 ],
	[ 'a procedure whose COMMIT breaks a constraint', q{CALL breaks('k')}, 1 ],
	[ 'idem_call that raises', q{SELECT idem_call('handler(jsonb)', 'k', '["42P01"]')}, 1 ],
	[ 'idem_call that raises 40001', q{SELECT idem_call('handler(jsonb)', 'k', '["40001"]')}, 0 ],
	[ 'idem_call that records the failure', q{SELECT idem_call('handler(jsonb)', 'k', '["22012"]'); SELECT idem_forget('k')}, 0 ],
	[ 'idem_call that does not', q{SELECT idem_call('handler(jsonb)', 'k', '["22012"]', record_failure => false)}, 1 ],
	[ 'a batch of one', q{BEGIN; SELECT idem_begin_batch(ARRAY['k']); SELECT 1/0; ROLLBACK}, 1 ])
{
	# a session whose interrupts are held off for ever would sleep on
	$node->psql('postgres', "$case->[1]; RESET lc_messages; SET statement_timeout = '10ms'; SELECT pg_sleep(5)",
		on_error_stop => 0, stdout => \my $answer, stderr => \my $error);
	is(lost('k'), $case->[2], $case->[0]);
	like($error, qr/canceling statement due to statement timeout\s*\z/, 'and the session obeys');
	query(q{BEGIN; SELECT idem_begin('k'), idem_release('k'); COMMIT});
}
$holder->quit;

# ---- a session that somebody ends ----

# A transaction that owns the operation 'k' and waits; its session, and its pid.
sub owner ($sql)
{
	my $session = session($node);
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	ask($session, "$begin");
	$session->query_until(qr/waits/, "\\echo waits\n$sql\n") if $sql;
	wait_until('the session waits', sub {
			query("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid") eq 't' }) if $sql;
	return ($session, $pid);
}

sub is_gone ($pid)
{
	return wait_until('the session is gone', sub {
			query("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") eq '0' });
}

sub lost_and_forgotten ($expected, $what)
{
	is(lost('k'), $expected, $what);
	query(q{BEGIN; SELECT idem_begin('k'), idem_release('k'); COMMIT});
	return;
}

my ($session, $pid) = owner('SELECT pg_sleep(60);');

query("SELECT pg_cancel_backend($pid)");
like($session->query('SELECT 1'), qr/^$/, 'the transaction has failed');
lost_and_forgotten(0, 'pg_cancel_backend');
$session->quit;

for my $sql ('', 'SELECT pg_sleep(60);')
{
	($session, $pid) = owner($sql);
	query("SELECT pg_terminate_backend($pid, 60000)");
	$session->{run}->finish;
	lost_and_forgotten(0, 'pg_terminate_backend, ' . ($sql ? 'in a statement' : 'between two'));
}

($session, $pid) = owner('');
$session->{run}->kill_kill;
is_gone($pid);
lost_and_forgotten(1, 'a client that was killed');

($session, $pid) = owner('');
ask($session, 'SAVEPOINT s');
$session->query(q{SELECT raise('40001')});
$session->{run}->kill_kill;
is_gone($pid);
lost_and_forgotten(0, 'a client that was killed after a serialization failure');

for my $case ([ "idle_in_transaction_session_timeout = '10ms'", '25P03' ], $node->pg_version >= 17 ? [ "transaction_timeout = '1s'", '25P04' ] : ())
{
	my ($setting, $state) = @$case;

	$session = session($node);
	$pid = ask($session, 'SELECT pg_backend_pid()');
	$session->query_until(qr/begun/, "SET $setting; " . $begin =~ s/;/\\;/r . ";\n\\echo begun\n");
	is_gone($pid);
	$session->{run}->finish;
	like(slurp_file($node->logfile), qr/^$pid $state FATAL:/m, "$setting: $state");
	lost_and_forgotten(1, $setting);
}

# ---- the fast path of the protocol, where no portal is active ----

my $socket = connect_raw($node);

# Sends a message, and returns the bodies of the answers.
sub exchange
{
	send_message($socket, @_);
	return join '', map { $_->[1] } answers($socket);
}

exchange('Q', "$begin\0");
exchange('F', pack('N n n N a5 n', query(q{SELECT 'caught'::regproc::oid}), 0, 1, 5, '40001', 0));
like(exchange('Q', "SET LOCAL statement_timeout = '10ms'; SELECT pg_sleep(5)\0"), qr/57014/, 'after a call by the fast path a session obeys');
exchange('Q', "ROLLBACK\0");
$socket->close;
lost_and_forgotten(1, 'a call by the fast path');

# ---- what forgets ----

sub lose ($key, $times = 1)
{
	$node->safe_psql('postgres', join '', map { "BEGIN; SELECT idem_begin('$key'); ROLLBACK;" } 1 .. $times);
	return;
}

for my $case (
	[ 'an end', "$begin; $end; COMMIT", 0 ],
	[ 'a failure', "$begin; SELECT idem_fail('k'); COMMIT", 0 ],
	[ 'a retryable one', "$begin; SELECT idem_fail('k', retryable => true); COMMIT", 0 ],
	[ 'a prepared transaction', "$begin; $end; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'", 0 ],
	[ 'an end by fence', q{SELECT fence FROM idem_begin('k', lease => '1 hour') \gset
		SELECT idem_complete('k', fence => :fence)}, 0 ],
	[ 'no lease as such', q{SELECT idem_begin('k', lease => '1 us')}, 2 ],
	[ 'a release', "$begin; SELECT idem_release('k'); COMMIT", 0 ],
	[ 'a release by fence', q{SELECT fence FROM idem_begin('k', lease => '1 hour') \gset
		SELECT idem_release('k', fence => :fence)}, 0 ],
	[ 'a release in a savepoint', "$begin; SAVEPOINT s; SELECT idem_release('k'); COMMIT", 0 ],
	[ 'no release that is rolled back', "$begin; SELECT idem_release('k'); ROLLBACK", 2 ],
	[ 'no end that is rolled back', "$begin; $end; ROLLBACK", 3 ],
	[ 'no end that a savepoint takes back', "$begin; SAVEPOINT s; $end; ROLLBACK TO s; ROLLBACK", 3 ],
	[ 'no replay of an end that is rolled back', "$begin; $end; SELECT outcome FROM idem_begin('k'); ROLLBACK", 3 ],
	[ 'idem_forget without a record', q{SELECT idem_forget('k')}, 0 ],
	[ 'idem_forget', q{INSERT INTO idempotency_store (idempotency_key, status, expires_at) VALUES ('k', 'COMPLETED', 'infinity'); SELECT idem_forget('k')}, 0 ],
	[ 'a replay', q{INSERT INTO idempotency_store (idempotency_key, status, expires_at) VALUES ('k', 'COMPLETED', 'infinity'); SELECT idem_begin('k')}, 0 ],
	[ 'a look-up: not', q{SELECT idem_lookup('k')}, 2 ])
{
	lose('k', 2);
	query($case->[1]);
	is(lost('k'), $case->[2], "what forgets: $case->[0]");
	query(q{DELETE FROM idempotency_store; SELECT idem_forget('k')});
}

# a savepoint that failed has given the lock up, and its transaction counts when another has ended the operation
my ($failed, $ends) = (session($node), session($node));

ask($failed, "BEGIN; SAVEPOINT s; SELECT idem_begin('k')");
$failed->query('SELECT 1/0');
ask($ends, "$begin; $end");
ask($failed, 'ROLLBACK');
is(lost('k'), 1, 'an attempt is lost after another has ended the operation');
ask($ends, 'COMMIT');
is(lost('k'), 0, 'and before the commit of that end, which forgets it');
$_->quit for $failed, $ends;
query(q{SELECT idem_forget('k')});

# ---- the limit ----

sub deliver ($sql)
{
	$node->psql('postgres', "$sql; SELECT 1/0; ROLLBACK", on_error_stop => 0, stdout => \my $answer, stderr => \my $error);
	return $answer;
}

my $limited = q{SET idempotency.max_lost_attempts = 3; BEGIN; SELECT outcome, attempt, response_payload FROM idem_begin('poison', '{"order": 1}')};

is(deliver($limited), 'ACQUIRED|1|', "delivery $_ of a poison message") for 1 .. 3;
is(query('SELECT attempts_lost > 40, operations_losing, operations_near_limit FROM idempotency_stats'), 't|1|1', 'the figures');
is(deliver($limited), 'FAILED|1|{"reason": "attempts lost", "lost_attempts": 3}', 'one more would be too many');
is(lost('poison'), 3, 'the end was rolled back, so nothing is forgotten');
like(query($limited . q{; SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'; ROLLBACK}), qr{^FAILED.*\n1$}, 'until then its lock is held');
my $final = query("$limited; COMMIT; SELECT outcome, attempt, replayed, response_payload FROM idem_begin('poison', '{\"order\": 1}')");
is($final, "FAILED|1|{\"reason\": \"attempts lost\", \"lost_attempts\": 3}\nFAILED|1|t|{\"reason\": \"attempts lost\", \"lost_attempts\": 3}", 'it stays');
is(lost('poison'), 0, 'and its attempts are forgotten');
is(sqlstate($node, q{SELECT idem_begin('poison', '{"order": 2}')}), 'ID422', 'another request with that key is found');
query(q{SELECT idem_forget('poison')});
is(deliver($limited), 'ACQUIRED|1|', 'idem_forget lets it run again');
is(deliver(q{BEGIN; SELECT outcome FROM idem_begin('poison')}), 'ACQUIRED', 'without a limit it goes on') for 1 .. 4;
is(query('SELECT operations_losing, operations_near_limit FROM idempotency_stats'), '1|0', 'and near none');

# a policy, before and after the setting
query(q{SELECT idem_set_policy('jobs*', max_lost_attempts => 1), idem_set_policy('jobs-free', max_lost_attempts => 0)});
is(deliver(q{BEGIN; SELECT outcome FROM idem_begin('j', scope => 'jobs-1')}), 'ACQUIRED', 'a policy');
is(deliver(q{SET idempotency.max_lost_attempts = 9; BEGIN; SELECT outcome FROM idem_begin('j', scope => 'jobs-1')}), 'FAILED', 'it has precedence over the setting');
is(deliver(q{SET idempotency.max_lost_attempts = 1; BEGIN; SELECT outcome FROM idem_begin('j', scope => 'jobs-free')}), 'ACQUIRED', 'also with no limit') for 1 .. 2;

# a record of earlier attempts: the number of these is as it was
query(q{BEGIN; SELECT idem_begin('r', scope => 'jobs-1'), idem_fail('r', retryable => true, scope => 'jobs-1'); COMMIT});
is(deliver(q{BEGIN; SELECT outcome, attempt FROM idem_begin('r', scope => 'jobs-1')}), 'ACQUIRED|2', 'a second attempt is lost');
is(query(q{SELECT outcome, attempt, response_payload FROM idem_begin('r', scope => 'jobs-1')}),
	'FAILED|1|{"reason": "attempts lost", "lost_attempts": 1}', 'and ends the operation');
is(deliver(q{BEGIN; SELECT outcome FROM idem_begin('l', scope => 'jobs-1')}), 'ACQUIRED', 'a lost attempt');
is(query(q{SELECT outcome FROM idem_begin('l', scope => 'jobs-1', lease => '1 hour')}), 'FAILED', 'a begin with a lease ends it, too');

# 99 good messages beside one that is poison
my $batch = q{SET idempotency.max_lost_attempts = 1; BEGIN; SELECT string_agg(DISTINCT outcome::text, ' ') FROM idem_begin_batch((SELECT array_agg('b' || n) FROM generate_series(1, 100) n))};

is(deliver($batch), 'ACQUIRED', "delivery $_ of a batch") for 1 .. 2;
is(lost('b1') + lost('b100'), 0, 'it counts for none of them');

# ---- rights, and other databases ----

query(q{CREATE ROLE app LOGIN; CREATE ROLE rival LOGIN; SELECT idem_grant('app'), idem_grant('rival'), idem_claim_scope('mine', 'app')});
is(query(q{SET ROLE app; SELECT idem_lost_attempts('k', 'mine')}), 0, 'idem_grant lets a role ask');
is(sqlstate($node, q{SET ROLE rival; SELECT idem_lost_attempts('k', 'mine')}), 'ID403', 'but not for the scope of another');
lose('k');
# a copy has the same secret, and so the same lock ids
query('CREATE DATABASE copy TEMPLATE postgres');
is($node->safe_psql('copy', q{SELECT idem_lost_attempts('k')}), 0, 'each database counts for itself');
$node->safe_psql('copy', q{BEGIN; SELECT idem_begin('k'); ROLLBACK});
query('DROP DATABASE copy');
query('CREATE DATABASE copy TEMPLATE postgres');
is($node->safe_psql('copy', q{SELECT idem_lost_attempts('k')}), 0, 'a database of the same name counts anew');
is(lost('k'), 1, 'and others go on');

# ---- a restart, and a table that is full ----

my $libraries = dirname(build_module('worker')) . ':' . query('SHOW dynamic_library_path');

$node->append_conf('postgresql.conf', "idempotency.lost_attempts_tracked = 8\ndynamic_library_path = '$libraries'");
$node->stop('immediate');
$node->start;
is(lost('k'), 0, 'a crash of the server forgets');
lose('stays');
lose("full $_"), lose('stays') for 1 .. 12;
is(join(' ', map { lost("full $_") } 1 .. 12), '0 0 0 0 0 1 1 1 1 1 1 1', 'the operations whose last lost attempts are the oldest are forgotten');
is(lost('stays'), 13, 'what is lost again and again stays');
query(q{CREATE FUNCTION run_in_worker(text) RETURNS void LANGUAGE c STRICT AS 'worker'});
query(q{SELECT run_in_worker($$SELECT idem_begin('worked'), raise('22012')$$)});
is(lost('worked'), 1, 'a background worker that reports its error and goes on');
query(q{SELECT run_in_worker($$SELECT idem_begin('worked'), raise('22012'); SELECT idem_begin('unfinished')$$)});
is(lost('worked') . lost('unfinished'), 20, 'that error is not the one of the next operation');
$node->append_conf('postgresql.conf', 'idempotency.lost_attempts_tracked = 0');
$node->restart;
lose('k');
is(query(q{SELECT idem_lost_attempts('k') IS NULL, attempts_lost IS NULL, acquired FROM idempotency_stats}), 't|t|1', 'nobody counts');
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
is(query(q{SELECT idem_lost_attempts('k') IS NULL, attempts_lost IS NULL FROM idempotency_stats}), 't|t', 'nor without preloading');
is(deliver($limited), 'ACQUIRED|1|', 'and no limit is reached') for 1 .. 4;
done_testing();
