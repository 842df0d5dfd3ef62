# Who may call and read what.  Every function, table, view and sequence that the
# extension has now, taken from the catalog, against every kind of role; what
# result must be that of docs/security.md, so an object that the page does not
# have fails the test.
use FindBin;
use Idempotency;

my $node = new_node('privileges');
my $page = slurp_file("$FindBin::RealBin/../../docs/security.md");

# In the order of the columns of the page.
my @roles = qw(postgres idem_owner payer app monitor reader writer nobody);

# The owner of the extension is no superuser any more. "payer" is
# a member of the role that has claimed scope "pay", "app" is not.
query(q{
	DROP EXTENSION idempotency;
	CREATE ROLE idem_owner LOGIN SUPERUSER;
	CREATE ROLE payers; CREATE ROLE payer LOGIN IN ROLE payers;
	CREATE ROLE app LOGIN; CREATE ROLE nobody LOGIN; CREATE ROLE other;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE reader LOGIN IN ROLE pg_read_all_data;
	CREATE ROLE writer LOGIN IN ROLE pg_write_all_data;
	CREATE ROLE statistician LOGIN IN ROLE pg_read_all_stats;
	SET ROLE idem_owner;
	CREATE EXTENSION idempotency;
	SELECT idem_grant('payer'), idem_grant('app'), idem_claim_scope('pay', 'payers');
	RESET ROLE;
	ALTER ROLE idem_owner NOSUPERUSER;
	GRANT CREATE ON SCHEMA public TO idem_owner;
	CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	CREATE TABLE lease AS SELECT s AS scope, o, (o).fence FROM unnest(ARRAY['free', 'pay']) s, idem_begin('leased', scope => s, lease => '1 hour') o;
	BEGIN;
	SELECT idem_begin('done', scope => s), idem_complete('done', '1', s) FROM unnest(ARRAY['free', 'pay']) s;
	COMMIT;
	CREATE VIEW member AS SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE d.deptype = 'e' AND e.extname = 'idempotency';
	GRANT SELECT ON lease TO PUBLIC;
});

# A statement for each function that succeeds where rights allow it, by its name
# and the type of its first argument where there are several. %s is the scope;
# what comes before a | the superuser does in the same transaction.
my %call = (
	idem_begin => q{SELECT idem_begin('new', scope => '%s')},
	'idem_complete(text)' => q{SELECT idem_complete('leased', scope => scope, fence => fence) FROM lease WHERE scope = '%s'},
	'idem_complete(idem_operation)' => q{SELECT idem_complete(o) FROM lease WHERE scope = '%s'},
	'idem_fail(text)' => q{SELECT idem_fail('leased', scope => scope, fence => fence) FROM lease WHERE scope = '%s'},
	'idem_fail(idem_operation)' => q{SELECT idem_fail(o) FROM lease WHERE scope = '%s'},
	'idem_release(text)' => q{SELECT idem_release('leased', scope, fence) FROM lease WHERE scope = '%s'},
	'idem_release(idem_operation)' => q{SELECT idem_release(o) FROM lease WHERE scope = '%s'},
	'idem_extend(text)' => q{SELECT idem_extend('leased', '2 hours', scope, fence) FROM lease WHERE scope = '%s'},
	'idem_extend(idem_operation)' => q{SELECT idem_extend(o, '2 hours') FROM lease WHERE scope = '%s'},
	idem_lookup => q{SELECT idem_lookup('done', '%s')},
	idem_lost_attempts => q{SELECT idem_lost_attempts('done', '%s')},
	'idem_progress(text)' => q{SELECT idem_progress('leased', '1', scope, fence) FROM lease WHERE scope = '%s'},
	'idem_progress(idem_operation)' => q{SELECT idem_progress(o, '1') FROM lease WHERE scope = '%s'},
	idem_forget => q{SELECT idem_forget('done', '%s')},
	idem_forget_failed => q{SELECT idem_forget_failed('%s', 'mended')},
	idem_call => q{SELECT idem_call('echo(jsonb)', 'new', scope => '%s')},
	idem_begin_batch => q{SELECT idem_begin_batch(ARRAY['new'], scope => '%s')},
	idem_complete_batch => q{SELECT idem_begin('new', scope => '%1$s')|SELECT idem_complete_batch(ARRAY['new'], scope => '%1$s')},
	idem_advance => q{SELECT idem_advance('stream', 1, '%s')},
	idem_lock => q{SELECT idem_lock(ARRAY['resource'])},
	idem_fingerprint => q{SELECT idem_fingerprint('1')},
	idem_step_key => q{SELECT idem_step_key('key', 'step')},
	idem_gc => 'SELECT idem_gc()',
	# rights are given, pg_cron and a key are not
	idem_schedule_gc => q{SELECT idem_schedule_gc()},
	idem_reseal => 'SELECT idem_reseal()',
	idem_claim_scope => q{SELECT idem_claim_scope('mine', 'other')},
	idem_unclaim_scope => q{SELECT idem_unclaim_scope('pay')},
	idem_set_policy => q{SELECT idem_set_policy('mine', max_attempts => 1)},
	idem_may_use_scope => q{SELECT idem_may_use_scope('pay')},
	idem_scope_changed => 'SELECT idem_scope_changed()',
	idem_stats => 'SELECT idem_stats()',
	idem_lost_stats => 'SELECT idem_lost_stats()',
	idem_failure_cause => q{SELECT idem_failure_cause('{}', false)},
	idem_stats_reset => 'SELECT idem_stats_reset()',
	idem_set_rights => q{SELECT idem_set_rights('other', 'GRANT %%s ON %%s TO %%s')},
	# the internal ones take tables of the store
	idem_check_owner => q{SELECT idem_check_owner('idempotency_store')},
	idem_check_store => q{SELECT idem_check_store('idempotency_store')},
	idem_lock_store => q{SELECT idem_lock_store('idempotency_store', 1)},
	idem_distribute_store => q{SELECT idem_distribute_store('idempotency_store')},
	idem_on_workers => q{SELECT idem_on_workers('SELECT 1')},
	idem_prepare_node => q{SELECT idem_prepare_node('bigint')},
	idem_require_coordinator => q{SELECT idem_require_coordinator()},
	idem_require_ended => q{SELECT idem_require_ended('s')},
	idem_require_read_committed => q{SELECT idem_require_read_committed()},
	idem_restore_node => q{SELECT idem_restore_node()},
	idem_undistribute_store => q{SELECT idem_undistribute_store()},
	idem_partition_store => q{SELECT idem_partition_store('1 hour')},
	idem_unpartition_store => q{SELECT idem_partition_store('1 hour')|SELECT idem_unpartition_store()},
	idem_grant => q{SELECT idem_grant('other')},
	idem_revoke => q{SELECT idem_revoke('payer')});

my $session = session($node);	# for more than a thousand statements

$session->query('\set VERBOSITY sqlstate');

# Errors that these raise after the check of rights are no refusal.
my %not_refused = (idem_schedule_gc => '55000', idem_reseal => '55000', idem_scope_changed => '39P01');

# The answer that a role gets; everything is rolled back. The session belongs to
# the role, except for the preparation in the same transaction.
sub answer ($role, $statement)
{
	my ($before, $after) = $statement =~ /^(?:(.*)\|)?(.*)$/s;
	my $said = complaint($session, join('; ', 'BEGIN', $before // (), "SET LOCAL SESSION AUTHORIZATION $role", $after, 'ROLLBACK;'));

	return $said =~ /ERROR:\s+(\w{5})/ ? $1 : $said || 'ok';
}

# A cell of the page: the answer, or that in a free scope and in the claimed one.
sub function_cell ($role, $name, $statement)
{
	my $names_scope = $statement =~ /%(?:1\$)?s/ && $statement !~ /%%s/;
	my @answers = map { answer($role, $_) } $names_scope ? map { sprintf $statement, $_ } qw(free pay) : sprintf $statement;

	for (@answers)
	{
		$_ = 'ok' if $_ eq ($not_refused{$name} // '');
	}
	return $answers[0] if $answers[0] eq ($answers[1] // $answers[0]);
	return "$answers[0], $answers[1] if claimed";
}

# By name, as the page has them: overloaded ones must not differ.
sub functions
{
	my %cells;

	for my $function (split /\n/, query(q{
		SELECT proname || CASE WHEN count(*) OVER (PARTITION BY proname) > 1 THEN '(' || proargtypes[0]::regtype || ')' ELSE '' END
		FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid}))
	{
		my $name = $function =~ s/\(.*//r;
		my $statement = delete $call{$function};
		my $cells = defined $statement ?
		  join(' | ', map { function_cell($_, $name, $statement) } @roles) : 'no call for it in this test';

		$cells{$name} = join ' BUT ALSO ', grep { defined } $cells{$name}, ($cells{$name} // '') eq $cells ? () : $cells;
	}
	return %cells;
}

# What a role may do with a relation, tried on no row.
sub relation_cell ($role, $relation, $kind, $column)
{
	my %statement = $kind eq 'S' ?
	  (read => "SELECT * FROM $relation", write => "SELECT nextval('$relation'), setval('$relation', 1)") : (
		read => "SELECT * FROM $relation LIMIT 0",
		insert => "INSERT INTO $relation ($column) SELECT NULL WHERE false",
		update => "UPDATE $relation SET $column = DEFAULT WHERE false",
		delete => "DELETE FROM $relation WHERE false",
		truncate => "TRUNCATE $relation",
		trigger => "CREATE TRIGGER t AFTER INSERT ON $relation EXECUTE FUNCTION suppress_redundant_updates_trigger()");
	my %answer = map { $_ => answer($role, $statement{$_}) } keys %statement;
	my $may = join ' ', grep { ($answer{$_} // '') eq 'ok' } qw(read write insert update delete truncate trigger);
	my %word = ('' => '42501', read => 'read', 'read write' => 'all', 'insert update delete' => 'change',
		'read insert update delete truncate trigger' => 'all');

	# a view cannot be changed by anybody
	delete @answer{ grep { $_ ne 'read' } keys %answer } if $kind eq 'v';
	return 'unexpected: ' . join ' ', %answer if grep { !/^(?:ok|42501)$/ } values %answer;
	return ($answer{read} eq 'ok' ? 'read' : $answer{read}) if $kind eq 'v';
	return $word{$may} // $may;
}

sub relations
{
	my %cells;

	for (split /\n/, query(q{
		SELECT relname, relkind, (SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum = 1)
		FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid WHERE relkind <> 'c'}))
	{
		my ($name, $kind, $column) = split /\|/;

		$cells{$name} = join ' | ', map { relation_cell($_, $name, $kind, $column) } @roles;
	}
	return %cells;
}

# The tables of the page: the cells by the name in the first column, where several
# may share a row.
sub rows_of_page ($heading)
{
	my ($section) = $page =~ /^\Q$heading\E\n(.*?)^##/ms;
	my %cells;

	for my $row (grep { /^\| `/ } split /\n/, $section // '')
	{
		my ($names, $cells) = $row =~ /^\| (.*?) \| (.*) \|$/;

		for my $name ($names =~ /`(\w+)`/g)
		{
			is($cells{$name}, undef, "$heading: $name is there once");
			$cells{$name} = $cells;
		}
	}
	return %cells;
}

sub compare ($heading, %found)
{
	my %said = rows_of_page($heading);

	cmp_ok(scalar(keys %found), '>', 5, "$heading: the catalog has some");
	is($found{$_}, $said{$_}, "$heading: $_ is as the page says") for sort keys %found;
	is(join(' ', grep { !exists $found{$_} } sort keys %said), '', "$heading: nothing that does not exist");
	return;
}

compare('### Functions', functions());
is(join(' ', sort keys %call), '', 'every call is for a function that exists');
compare('### Tables, views and the sequence', relations());
my @monitoring = map { @roles = ($_); +{ relations() } } 'monitor', 'statistician';
is_deeply($monitoring[1], $monitoring[0], 'pg_read_all_stats reads what pg_monitor reads');

# The control: the test notices a right that is granted.
query('GRANT SELECT (response_payload) ON idempotency_store TO nobody; GRANT EXECUTE ON FUNCTION idem_gc(int) TO nobody');
is(answer('nobody', 'SELECT response_payload FROM idempotency_store LIMIT 0'), 'ok', 'a grant of a column shows');
is(answer('nobody', 'SELECT idem_gc()'), 'ok', 'and one of a function');

# A role that logs in gets the same answers as after SET ROLE.
is(($node->psql('postgres', q{SELECT idem_begin('done', scope => 'pay')}, extra_params => [ '-U', 'app', '-v', 'VERBOSITY=sqlstate' ]))[2],
	'psql:<stdin>:1: ERROR:  ID403', 'app, logged in');
is($node->safe_psql('postgres', q{SELECT outcome FROM idem_begin('done', scope => 'pay')}, extra_params => [ '-U', 'payer' ]), 'COMPLETED', 'payer, logged in');

# A member of the role that has claimed a scope may use it if it has the privileges of that
# role: by inheritance, or after SET ROLE. Since 16 each membership says for itself whether
# it has the one and the other; before, the member says so for all of its own.
my $since_16 = $node->pg_version->major >= 16;
my @members = (
	# name, how it is made, does the member inherit?, may it SET ROLE?
	[ 'inherits', 'CREATE ROLE inherits IN ROLE payers', 1, 1 ],
	[ 'inherits_not', 'CREATE ROLE inherits_not NOINHERIT IN ROLE payers', 0, 1 ],
	$since_16 ? (
		[ 'only_inherits', 'CREATE ROLE only_inherits NOINHERIT; GRANT payers TO only_inherits WITH INHERIT TRUE, SET FALSE', 1, 0 ],
		[ 'only_sets', 'CREATE ROLE only_sets; GRANT payers TO only_sets WITH INHERIT FALSE, SET TRUE', 0, 1 ],
		[ 'neither', 'CREATE ROLE neither; GRANT payers TO neither WITH INHERIT FALSE, SET FALSE', 0, 0 ],
		[ 'only_admin', 'CREATE ROLE only_admin; GRANT payers TO only_admin WITH ADMIN TRUE, INHERIT FALSE, SET FALSE', 0, 0 ],
		[ 'through_another', 'CREATE ROLE between; GRANT payers TO between WITH INHERIT FALSE; CREATE ROLE through_another IN ROLE between', 0, 1 ]) : ());

for (@members)
{
	my ($role, $made, $inherits, $sets) = @$_;

	query("$made; SELECT idem_grant('$role'), idem_grant('payers')");
	for my $call (q{SELECT idem_lookup('done', 'pay')}, q{SELECT idem_begin('done', scope => 'pay')}, q{SELECT idem_call('echo(jsonb)', 'done', scope => 'pay')},
		q{SELECT idem_begin_batch('{new}', scope => 'pay')}, q{SELECT idem_advance('stream', 1, 'pay')})
	{
		is(answer($role, $call), $inherits ? 'ok' : 'ID403', "$role: $call");
		is(answer($role, "SET LOCAL ROLE payers; $call"), $sets ? 'ok' : '42501', "$role, after SET ROLE: $call");
	}
}

# Who has the privileges of the owner without SET ROLE makes no table that is the owner's.
if ($since_16)
{
	query('CREATE ROLE deputy; GRANT idem_owner TO deputy WITH INHERIT TRUE, SET FALSE; GRANT CREATE ON SCHEMA public TO deputy');
	is(answer('deputy', 'SELECT idem_gc()'), 'ok', 'a deputy of the owner collects');
	is(answer('deputy', q{SELECT idem_partition_store('1 hour')}), '42501', 'and makes no ring if he cannot SET ROLE');
	is(answer('idem_owner', q{SELECT idem_partition_store('1 hour')}), 'ok', 'as the owner does');
}

# MAINTAIN is no right on rows, but LOCK TABLE asks for no more.
if ($node->pg_version->major >= 17)
{
	query('CREATE ROLE caretaker IN ROLE pg_maintain');
	is(answer('caretaker', 'LOCK TABLE idempotency_store IN ACCESS EXCLUSIVE MODE'), 'ok', 'pg_maintain locks the store, and all operations wait');
	is(answer('caretaker', $_), '42501', "pg_maintain cannot: $_") for 'SELECT scope FROM idempotency_store', q{SELECT idem_lookup('done')}, 'TRUNCATE idempotency_store';
}

done_testing();
