# Tables that the library reads without the executor: one after a data-only
# restore, another one that was replaced before the collector reads it, and those
# of a database whose tables are no heap tables unless told otherwise.
use Idempotency;

my $node = new_node('raw_tables', conf => "restart_after_crash = on\nidempotency.gc_interval = 1\n");

# ---- pg_dump -a --disable-triggers ----

my $dump = PostgreSQL::Test::Utils::tempdir() . '/data.sql';

query(q{
	CREATE ROLE app; CREATE ROLE keeper;
	SELECT idem_claim_scope('restored', 'keeper')});
$node->command_ok([ 'pg_dump', '-a', '--disable-triggers', '-f', $dump, $node->connstr('postgres') ], 'pg_dump of data only');
query('CREATE DATABASE target TEMPLATE template0');
$node->safe_psql('target', q{CREATE EXTENSION idempotency; SELECT idem_grant('app')});

my $connected = session($node, 'target');
my $may_use = sub {
	my $complaint = complaint($connected, "SELECT idem_lookup('k', scope => '$_[0]')");
	return $complaint =~ /may not use scope/ ? 'no' : $complaint =~ /ERROR/ ? $complaint : 'yes';
};

ask($connected, 'SET ROLE app');
is($may_use->('restored'), 'yes', 'nothing is claimed yet');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('target'), '-f', $dump ], 'restored into a database in use');
is($may_use->('restored'), 'no', 'a connected session sees the restored claim');
is($node->safe_psql('target', q{SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid = 'idempotency_scope'::regclass}),
	'O', 'the restore has left triggers that leave out replicas');
is($may_use->('later'), 'yes', 'another scope is open');
$node->safe_psql('target', q{SET session_replication_role = replica; INSERT INTO idempotency_scope (pattern, role) VALUES ('later', 'keeper')});
is($may_use->('later'), 'no', 'and closed when a replica claims it');
is(count_in_log($node, qr/changes of table "idempotency_scope" are not announced/), 1, 'the log says so, once a session');
$node->safe_psql('target', 'ALTER TABLE idempotency_scope ENABLE ALWAYS TRIGGER idem_scope_changed, ENABLE ALWAYS TRIGGER idem_scope_emptied');
$node->safe_psql('target', q{SET session_replication_role = replica; INSERT INTO idempotency_scope (pattern, role) VALUES ('last', 'keeper')});
is($may_use->('last'), 'no', 'repaired, every change is announced');
$connected->quit;

# ---- the collector ----

# in a session that has nothing in its caches yet
for my $change (
	'CREATE VIEW idempotency_secret AS TABLE secret',
	'CREATE TABLE idempotency_secret (LIKE secret) PARTITION BY LIST (only_row)',
	'CREATE TABLE idempotency_secret (LIKE secret); ALTER TABLE idempotency_secret ALTER lock_key DROP NOT NULL; INSERT INTO idempotency_secret VALUES (true, NULL)')
{
	my $hits = count_in_log($node, qr/ERROR:  idempotency_secret of extension/);

	$node->safe_psql('target', "ALTER TABLE idempotency_secret RENAME TO secret; $change");
	reconfigure($node, 'idempotency.gc_enabled' => 'on');
	wait_until('the collector has met it', sub { count_in_log($node, qr/ERROR:  idempotency_secret of extension/) > $hits });
	reconfigure($node, 'idempotency.gc_enabled' => undef);
	is(sqlstate($node, q{SELECT idem_begin('k', lease => '1 hour')}, 'target'), '55000', 'a new session is refused: ' . substr($change, 0, 40));
	$node->safe_psql('target', 'DROP ' . ($change =~ /VIEW/ ? 'VIEW' : 'TABLE') . ' idempotency_secret; ALTER TABLE secret RENAME TO idempotency_secret');
}
is(count_in_log($node, qr/terminated by signal/), 0, 'no process has crashed');
is($node->safe_psql('target', q{SELECT outcome FROM idem_begin('k', lease => '1 hour')}), 'ACQUIRED', 'put back, all is well');

# ---- another default_table_access_method ----

query('CREATE DATABASE other TEMPLATE template0');
$node->safe_psql('other', q{
	CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
	ALTER DATABASE other SET default_table_access_method = other});
$node->safe_psql('other', 'CREATE EXTENSION idempotency');
is($node->safe_psql('other', q{SELECT outcome FROM idem_begin('k', lease => '1 hour')}), 'ACQUIRED', 'an operation begins where tables have another access method');
is($node->safe_psql('other', q{SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = 'idempotency_store'::regclass}),
	'other', 'which the store has');
my $owner = session($node, 'other');
like(complaint($owner, q{SELECT idem_partition_store('12 hours')}), qr/cannot be divided.*access method/s,
	'no ring is made for it: its tables would not have that, which may be what encrypts them');
$owner->quit;
$node->safe_psql('other', q{ALTER TABLE idempotency_store SET ACCESS METHOD heap; SELECT idem_partition_store('12 hours')});
is($node->safe_psql('other', q{SELECT outcome FROM idem_begin('k')}), 'IN_PROGRESS', 'a heap table gets a ring');

done_testing();
