# The versions of the extension's SQL objects: which scripts there are, which are
# frozen, and whether an update leads to the same catalog as a new installation.
package Versions;

use v5.36;

use Digest::SHA;
use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(scripts default_version frozen checksum objects interface interface_of_library);

# The versions that have a script of their own, without update scripts.
sub scripts ($tree)
{
	return sort map { m{--([^-/]+)\.sql$} ? $1 : () } glob("$tree/idempotency--*.sql");
}

sub default_version ($tree)
{
	my ($version) = slurp_file("$tree/idempotency.control") =~ /^default_version = '([^']+)'/m;

	return $version;
}

# Frozen scripts and their SHA-256, as sha256sum writes them.
sub frozen ($tree)
{
	return map { /^([0-9a-f]{64})  (\S+)$/ ? ($2 => $1) : die "not a checksum: $_" }
	  split /\n/, slurp_file("$tree/test/frozen.sha256");
}

sub checksum
{
	return Digest::SHA->new(256)->addfile($_[0], 'b')->hexdigest;
}

# All that the extension owns in a database, a line each: definitions, owners,
# grants, settings, comments, and what depends on what. No OID is in it.
my $objects = <<'SQL';
WITH member AS (
	SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS name
	FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
	WHERE e.extname = 'idempotency' AND d.deptype = 'e'),
relation AS (SELECT c.*, m.name FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass),
line (text) AS (
	SELECT name FROM member
	UNION ALL
	SELECT format('%s: comment %s', name, obj_description(objid, classid::regclass::name)) FROM member
	UNION ALL
	SELECT format('%s: %s, owner %s, rights %s, strict %s, volatile %s, parallel %s, cost %s', pg_get_functiondef(p.oid), m.name,
		p.proowner::regrole, p.proacl, p.proisstrict, p.provolatile, p.proparallel, p.procost)
	FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	UNION ALL
	SELECT format('%s: kind %s, owner %s, rights %s, options %s, persistence %s, row security %s', name, relkind,
		relowner::regrole, relacl, reloptions, relpersistence, relrowsecurity) FROM relation
	UNION ALL
	SELECT format('%s, column %s %s: %s %s, not null %s, default %s, storage %s, collation %s, rights %s, comment %s', r.name, a.attnum,
		a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated, a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attstorage,
		a.attcollation::regcollation, a.attacl, col_description(r.oid, a.attnum))
	FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
	UNION ALL
	SELECT format('%s, index %s', r.name, pg_get_indexdef(i.indexrelid)) FROM relation r JOIN pg_index i ON i.indrelid = r.oid
	UNION ALL
	SELECT format('%s, constraint %s %s', r.name, c.conname, pg_get_constraintdef(c.oid)) FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
	UNION ALL
	SELECT format('%s, trigger %s, enabled %s', r.name, pg_get_triggerdef(t.oid), t.tgenabled)
	FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
	UNION ALL
	SELECT format('%s, view %s', r.name, pg_get_viewdef(r.oid)) FROM relation r WHERE relkind = 'v'
	UNION ALL
	SELECT format('%s, sequence %s', r.name, (s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle))
	FROM relation r JOIN pg_sequence s ON s.seqrelid = r.oid
	UNION ALL
	SELECT format('%s: owner %s, rights %s, labels %s', m.name, t.typowner::regrole, t.typacl,
		(SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid))
	FROM member m JOIN pg_type t ON t.oid = m.objid AND m.classid = 'pg_type'::regclass
	UNION ALL
	SELECT format('initial rights of %s: %s', m.name, i.initprivs)
	FROM member m JOIN pg_init_privs i ON i.objoid = m.objid AND i.classoid = m.classid
	UNION ALL
	SELECT format('dumped: %s', (SELECT string_agg(format('%s %s', c.oid::regclass, condition), ', ' ORDER BY c.oid::regclass::text)
		FROM unnest(e.extconfig, e.extcondition) AS x (oid, condition) JOIN pg_class c USING (oid)))
	FROM pg_extension e WHERE e.extname = 'idempotency'
	UNION ALL
	SELECT format('%s depends on %s (%s)', m.name, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
	FROM member m JOIN pg_depend d ON d.classid = m.classid AND d.objid = m.objid WHERE d.deptype <> 'e')
SELECT string_agg(text, E'\n' ORDER BY text COLLATE "C") FROM line
SQL

# What the page docs/reference/interface.md calls public, a line each. An attribute more
# changes a composite type; a label or a column more, at the end, does not change an enum
# or a view.
my $interface = <<'SQL';
WITH member AS (
	SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
	WHERE e.extname = 'idempotency' AND d.deptype = 'e'),
line (text) AS (
	SELECT format('function %s(%s) returns %s, %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
		CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END)
	FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
	WHERE obj_description(p.oid, 'pg_proc') NOT LIKE 'internal%' AND p.prorettype <> 'trigger'::regtype
	UNION ALL
	SELECT format('%s %s, column %s: %s %s', CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END, c.relname,
		CASE c.relkind WHEN 'v' THEN a.attnum::text ELSE '' END, a.attname, format_type(a.atttypid, a.atttypmod))
	FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	WHERE c.relkind = 'v' OR c.relname IN ('idempotency_store', 'idempotency_forgotten')
	UNION ALL
	SELECT format('enum %s, label %s: %s', t.typname, row_number() OVER (PARTITION BY t.oid ORDER BY l.enumsortorder), l.enumlabel)
	FROM member m JOIN pg_type t ON t.oid = m.objid AND m.classid = 'pg_type'::regclass JOIN pg_enum l ON l.enumtypid = t.oid
	UNION ALL
	SELECT format('type %s: %s', t.typname, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum))
	FROM member m JOIN pg_type t ON t.oid = m.objid AND m.classid = 'pg_type'::regclass
	JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c' JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	GROUP BY t.oid, t.typname)
SELECT text FROM line ORDER BY text COLLATE "C"
SQL

sub interface ($node, $database)
{
	return split /\n/, $node->safe_psql($database, $interface);
}

# The same of the library, whose versions have no scripts: settings and SQLSTATEs.
sub interface_of_library ($node, $tree)
{
	my @settings = split /\n/, $node->safe_psql('postgres', <<'SQL');
LOAD 'idempotency';
SELECT format('setting %s: %s in %s, %s, default %s', name, vartype, coalesce(unit, 'no unit'), context, coalesce(quote_literal(boot_val), 'none'))
FROM pg_settings WHERE name LIKE 'idempotency.%' ORDER BY name COLLATE "C"
SQL
	my @states = map { s/[', ]//gr } slurp_file("$tree/src/base/idempotency.h") =~ /MAKE_SQLSTATE\(([^)]*)\)/g;

	return (@settings, map { "SQLSTATE $_" } sort @states);
}

sub objects ($node, $database)
{
	return $node->safe_psql($database, $objects);
}

1;
