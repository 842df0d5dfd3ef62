# Every example of the documentation does what the documentation says.
use strict;
use warnings;

use File::Find;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use Examples;
use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $node = new_node('docs', conf => 'max_prepared_transactions = 10');
my @files;

# Each in a database where nothing has been created, and without what the one
# before has left in the cluster.
sub try_examples
{
	my ($markdown) = @_;
	my @problems;

	$node->safe_psql('postgres', 'CREATE DATABASE example TEMPLATE template0');
	@problems = problems_of($node, 'example', $markdown);
	$node->safe_psql('postgres', 'DROP DATABASE example WITH (FORCE)');
	for my $role (split /\n/, $node->safe_psql('postgres',
			q{SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384}))
	{
		$node->safe_psql('postgres', "DROP ROLE $role");
	}
	return @problems;
}

# The runner itself: it must not be content with what is wrong.
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

is(join("\n", try_examples($sample)), '', 'the runner: a sample');
for my $case (@wrong)
{
	is(scalar(my @problems = try_examples("```sql\n$case->[1]\n```")), 1, "the runner: $case->[0]");
}

find(sub { push @files, $File::Find::name if /\.md$/ }, "$root/docs") if -d "$root/docs";
for my $file (grep { -e $_ } "$root/README.md", "$root/CONTRIBUTING.md", sort @files)
{
	my $name = $file =~ s/^\Q$root\E\///r;

	is(join("\n", map { "$name:$_" } try_examples(slurp_file($file))), '', $name);
}

done_testing();
