# Every example of the documentation gives the result that the documentation shows.
use File::Find;
use FindBin;

use Calls;
use Examples;
use Idempotency;

my $root = "$FindBin::RealBin/../..";
my $node = new_node('docs', conf => "max_prepared_transactions = 10\nwal_level = logical\n");
my @files;

# Tries each page in a new database, and drops the roles that the page before
# has left in the cluster.
sub try_examples ($markdown, $before = '')
{
	return try_in($before, [ '', $markdown ]);
}

# Pages, [name, text] each, one after the other in one database.
sub try_pages
{
	return try_in('', @_);
}

# The same in a database in which the statements of $before have run.
sub try_in ($before, @pages)
{
	my @problems;

	query('CREATE DATABASE example TEMPLATE template0');
	$node->safe_psql('example', $before) if $before ne '';
	@problems = problems_of_pages($node, 'example', @pages);
	query('DROP DATABASE example WITH (FORCE)');
	for my $role (split /\n/, query(q{SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384}))
	{
		query("DROP ROLE $role");
	}
	return @problems;
}

# The runner itself: it must find each kind of mistake.
my $sample = <<'MARKDOWN';
```sh
this is not run
```

1. A list:

   ```sql
   CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql AS $$ SELECT 1; SELECT a; $$; -- a comment
   CREATE FUNCTION g() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END;
   SELECT f(2), 'it''s; -- no comment', $x$;$x$; -- => 2|it's; -- no comment|;
   SELECT i FROM generate_series(1, 2) i;
   -- => 1
   -- => 2
   SELECT g() AS got \gset
   SELECT :got;
   -- => 2
   ```

```sql
BEGIN;
SELECT 1 / 0;
-- ERROR: 22012
SELECT 1;
-- ERROR: 25P02
ROLLBACK;
SELECT '', NULL, 'x' /* more ; */ ;
-- => ||x
```
MARKDOWN
my @wrong = (
	[ 'a wrong value', "SELECT 1;\n-- => 2" ],
	[ 'another number of rows', "SELECT 1;\n-- => 1\n-- => 2" ],
	[ 'a row too many', "SELECT i FROM generate_series(1, 2) i;\n-- => 1" ],
	[ 'an error', 'SELECT 1 / 0;' ],
	[ 'another error', "SELECT 1 / 0;\n-- ERROR: 42601" ],
	[ 'no error', "SELECT 1;\n-- ERROR: 22012" ],
	[ 'an error where a value is announced', "SELECT 1 / 0;\n-- => 1" ],
	[ 'no statement', '-- => 1' ],
	[ 'an SQLSTATE that is none', "SELECT 1;\n-- ERROR: division by zero" ],
	[ 'an error of psql', "SELECT 1 WHERE false \\gset" ],
	[ 'no end', 'SELECT 1' ]);

# The extension in a schema of its own, which the session does not find, and as
# docs/security.md advises it for a whole database.
my $own_schema = 'CREATE SCHEMA idem; CREATE EXTENSION idempotency SCHEMA idem;';
my $found_schema = qq{$own_schema ALTER DATABASE example SET search_path = "\$user", public, idem;};
my %finds_schema = map { $_ => 1 } qw(docs/operating.md docs/security.md);

is(join("\n", try_examples($sample)), '', 'the runner: a sample');
is(scalar(my @unfound = try_examples("```sql\nSELECT idem_gc();\n```", $own_schema)), 1, 'the runner: a schema that is not found');
is(join("\n", try_examples("```sql\nSELECT idem_gc();\n```", $found_schema)), '', 'the runner: a schema that is found');
is_deeply([ sort map { /^([^:]+):\d+:/ } try_pages(map { [ $_->[0], "```sql\n$_->[1]\n```" ] } @wrong) ],
	[ sort map { $_->[0] } @wrong ], 'the runner finds each mistake, and nothing else');

find(sub { push @files, $File::Find::name if /\.md$/ }, "$root/docs") if -d "$root/docs";
# Each page alone. That it works in public, too, is seen below, where only the first page makes the extension.
for my $file (grep { -e $_ } "$root/README.md", "$root/CONTRIBUTING.md", sort @files)
{
	my $name = $file =~ s/^\Q$root\E\///r;
	my ($first) = slurp_file($file) =~ /^[ ]*```sql\n(.*?)^[ ]*```/ms or next;

	like($first, qr/\A(?:CREATE SCHEMA .*\n)?CREATE EXTENSION IF NOT EXISTS idempotency\b/, "$name: begins with the extension");
	is(join("\n", map { "$name:$_" } try_examples(slurp_file($file), $finds_schema{$name} ? $own_schema : $found_schema)), '',
		"$name: in a schema of its own");
}

# A reader has one database, and goes from page to page.  First the runner: what
# collides with an earlier page is found, and reported with its page.
my @pages = ([ 'a', "```sql\nCREATE TABLE t ();\n```" ], [ 'b', "\n```sql\nSELECT 1;\nCREATE TABLE t ();\n```" ]);
is_deeply([ map { /^(\w:\d+):/ } try_pages(@pages) ], ['b:4'], 'all pages: a collision is found');

my $contents = slurp_file("$root/docs/README.md");
my @order = map { s{^\.\./}{} ? $_ : "docs/$_" } pages_in_order($contents);
is_deeply([ sort @order, 'docs/README.md' ],
	[ sort 'README.md', map { s/^\Q$root\E\///r } @files ], 'docs/README.md names every page');
cmp_ok(scalar(() = slurp_file("$root/README.md") =~ /\n/g), '<=', 300, 'README has 300 lines at most');
is(join("\n", grep { slurp_file("$root/$_") =~ /^SELECT.*\bfence => \d/m } @order), '', 'no fence is written as a number');
is(join("\n", try_pages(map { [ $_, slurp_file("$root/$_") ] } @order)), '', 'all pages in one database');

# README has the figures of the recorded demo, and the versions that were tested.
sub figures ($text, @titles)
{
	# bytes, so a class of characters would not do
	my $border = qr/\s*(?:\||│)\s*/;
	my %row = map { my (undef, $title, @cells) = split $border; ($title => "@cells[0 .. 3]") } grep { /(?:$border.*){6}/ } split /\n/, $text;

	return map { $row{$_} // "no row $_" } @titles;
}

my $demo = join "\n", map { s/<[^>]*>//gr =~ s/\xc2\xa0/ /gr } split /\n/, slurp_file("$root/docs/images/demo.svg");
my $readme = slurp_file("$root/README.md");

is_deeply([ figures("| a | 1 | 2 | 3 | 4 |\n │ b  │ 5 │ 6 │ 7 │ 8 │", 'a', 'b', 'c') ], [ '1 2 3 4', '5 6 7 8', 'no row c' ], 'figures: a sample');
is_deeply(
	[ figures($readme =~ s/\*\*//gr, 'payments made; 950 is right', 'payments made or charged more than once', 'money taken by mistake',
			'duplicates that got no answer', 'declined payments that were tried again', 'requests with an old id and another amount that were accepted') ],
	[ figures($demo, 'payments made', 'made twice or more', 'money taken by mistake', 'duplicates not answered', 'declined, tried again', 'other amount accepted') ],
	'README has the figures of docs/images/demo.svg');
like($demo, qr{\b4,058/4,058\b}, 'and its number of deliveries');
is(join(' ', grep { $readme !~ /\b$_\b/ } slurp_file("$root/docs/support.md") =~ /^\| (\d\d)\b/mg), '', 'README names the tested versions');

my @members = split /\n/, query(q{SELECT relname FROM pg_class c JOIN pg_depend ON objid = c.oid AND classid = 'pg_class'::regclass
	WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency') AND deptype = 'e' AND relkind IN ('r', 'v', 'S')});
my $types = slurp_file("$root/docs/reference/types.md");

cmp_ok(scalar(@members), '>', 10, 'the extension has tables, views and a sequence');
is(join(' ', grep { $types !~ /\b$_\b/ } @members), '', 'docs/reference/types.md names each of them');

# What shows something says it in words, too.  First the check itself.
sub without_words ($markdown)
{
	my @diagrams = $markdown =~ /^```mermaid\n(.*?)^```/msg;

	return ((grep { length $_ < 20 } $markdown =~ /!\[([^\]]*)\]\(/g), grep { !/^\s*accTitle: \w.*\n\s*accDescr: \w/m } @diagrams);
}

is(scalar(my @silent = without_words("![](a)\n![A picture with enough words](b)\n```mermaid\nflowchart TD\n```\n")), 2, 'words: a sample');
is(join(' ', grep { without_words(slurp_file("$root/$_")) } @order), '', 'each picture and diagram has its words');

# Each row of these tables names tests that exist, or says why there is none.  First the check itself.
sub problems_of_rows ($page)
{
	my @rows = $page =~ s/^\|.*\n\|---.*\n//mgr =~ /^\|.*\|$/mg;
	my @problems = @rows ? () : ('no rows');

	for my $row (@rows)
	{
		my ($last) = $row =~ /\| ([^|]*) \|$/;
		my @tests = $last =~ /`([^`]+)`/g;

		push @problems, "no test: $row" if !@tests && $last !~ /^no test: ./;
		push @problems, map { "no such file: $_" } grep { !-f "$root/$_" } @tests;
	}
	return @problems;
}

my $promises = "| promise | test |\n|---|---|\n| a | `test/t/010_docs.pl` |\n| b | no test: why |\n";

is_deeply([ problems_of_rows($promises) ], [], 'rows with tests: a sample');
is(scalar(my @none = problems_of_rows("$promises| b | none |\n| c | `test/t/none.pl` |\n")), 2, 'rows with tests: none, and one that does not exist');
is_deeply([ problems_of_rows("# Failures\n") ], ['no rows'], 'rows with tests: nothing');
my ($promised) = slurp_file("$root/docs/security.md") =~ /^## Each promise and its test\n(.*?)(?=^## |\z)/ms;
is(join("\n", problems_of_rows($promised // '')), '', 'docs/security.md: each promise has a test');
is(join("\n", problems_of_rows(slurp_file("$root/docs/failures.md"))), '', 'docs/failures.md: each failure has a test');

# The house: who calls whom, as the page says and as the sources are.  First the
# check itself.
my $calling = calls_of({
	'a.c' => "void\na_do(void)\n{\n\tb_do();\n\tc_do();\n\tx->a_size = b_size;\n}\n",
	'b.c' => "int\t\t\tb_size = 1;\n\nvoid\nb_do(void)\n{\n}\n\nstatic void\na_do(void)\n{\n}\n",
	'c.c' => "static int a_size = 2;\n\nvoid\nc_big(void)\n{\n}\n",
	'c.h' => "extern void c_big(void);\nstatic inline void\nc_do(void)\n{\n}\n" });

is_deeply($calling, { a => { b => 1, c => 1 }, b => {}, c => {} }, 'calls: a sample');
is_deeply(calls_of_folders({ a => { b => 1, c => 1 }, b => {}, c => {}, module => { a => 1 } }, { a => 'up', b => 'up', c => 'down' }),
	{ up => { down => 1 }, down => {} }, 'folders: a sample');

my $page = "| `a.c` | x |\n| `b.c` | x |\n\nCalls: down, ground.\n";

for my $case (
	[ 0, 'a page', $page ],
	[ 1, 'no row', $page =~ s/^\| `b.*\n//mr ],
	[ 1, 'a row of no file', "$page| `d.c` | x |\n" ],
	[ 1, 'a folder that is not called', $page =~ s/ground/ground, up/r ],
	[ 1, 'a folder that is called, too', $page =~ s/, ground//r ],
	[ 1, 'no line of calls', $page =~ s/Calls.*//r ])
{
	is(scalar(my @problems = page_problems('up', $case->[2], [ 'a.c', 'b.c' ], { down => 1, ground => 1 })), $case->[0],
		"folders: $case->[1]");
}

my $order = "| [`up`](up/README.md) | x |\n| [`down`](down/README.md) | x |\n";

for my $case (
	[ 0, 'an order', $order ],
	[ 1, 'a folder without a row', $order =~ s/^\| \[`down.*\n//mr ],
	[ 1, 'a row of no folder', "$order| [`gone`](gone/README.md) | x |\n" ],
	[ 1, 'a call upward', join '', reverse $order =~ /(.*\n)/g ])
{
	is(scalar(my @problems = order_problems($case->[2], { up => { down => 1 }, down => {} })), $case->[0], "order: $case->[1]");
}
is_deeply([ cycle_of({ a => { b => 1 }, b => { c => 1 }, c => { b => 1 }, d => {} }) ], [ 'a', 'b', 'c' ], 'calls: a circle, and who calls into it');

my $calls = calls_of(read_sources("$root/src"));
cmp_ok(scalar(map { keys %$_ } values %$calls), '>', 50, 'calls: the sources have some');

my $folders = folders_of("$root/src");
my $called = calls_of_folders($calls, $folders);

cmp_ok(scalar(keys %$called), '>', 9, 'folders: the sources have some');
for my $folder (sort keys %$called)
{
	# each source, and the headers of no source
	my @files = map { m{([^/]+)$} } glob("$root/src/$folder/*.c"), grep { !-e s/h$/c/r } glob("$root/src/$folder/*.h");

	is(join("\n", page_problems($folder, slurp_file("$root/src/$folder/README.md"), \@files, $called->{$folder})), '',
		"src/$folder/README.md: its files, and what they call");
}
is(join("\n", order_problems(slurp_file("$root/src/README.md"), $called)), '', 'src/README.md: each folder calls those below it only');
is(join(' ', cycle_of($calls)), '', 'no files of src/ call each other in a circle');

# In a profile and in a stack, one name is one function.  First the check itself.
is_deeply([ ambiguous_names({ 'a.c' => "static bool\nlook(void)\n", 'b.c' => "static int\nlook(int a)\n\nvoid\nput(void)\n" }) ],
	['look: a.c b.c'], 'names: two functions with one');
is(join("\n", ambiguous_names(read_sources("$root/src"))), '', 'no two functions of src/ have one name');

# The model names the functions that its steps stand for.  First the check itself.
sub missing_functions ($model, $sources)
{
	my @named = ($model =~ /\w\.c, ([a-z_]+)/g, $model =~ m{^/\* ([a-z_]+) \*/$}mg);

	return ('none is named') if !@named;
	return grep { my $name = $_; !grep { /^$name\(/m } values %$sources } @named;
}

my $model = join '', map { slurp_file($_) } glob("$root/test/model/*.pml");
is_deeply([ missing_functions("/* a.c, a_do: x */\n/* b */\n", { 'a.c' => "void\na_do(void)\n" }) ], ['b'], 'model: a function that is gone');
is(join(' ', missing_functions($model, read_sources("$root/src"))), '', 'the model names functions that exist');
is(join(' ', missing_functions(slurp_file("$root/docs/architecture.md"), read_sources("$root/src"))), '', 'docs/architecture.md names functions that exist');

done_testing();
