#!/usr/bin/env python3
"""Makes managed/idempotency.sql a trusted language extension ("make tle").

    packaging/tle.py [--to DIRECTORY] [FROM...]

It writes into dist/tle, or that directory:

    idempotency.control, idempotency--VERSION.sql   the extension, as files: database.dev takes these
    idempotency--FROM--VERSION.sql                  for each FROM: an update from that version
    install.sql                                     the same for pg_tle, which has no files: run it with psql
    update--FROM--VERSION.sql                       for each FROM: for who has run the script itself with psql

An extension's script must not end the transaction, and says what a dump has to contain.
The schema is named in the control file. An update makes the functions and views anew, and
idempotency_forgotten where it is missing. It gives rights to the roles of PostgreSQL for monitoring
alone. A version that changes a table or a type, or drops a function, needs statements of its
own beside that.
"""
import argparse
import pathlib
import re
import sys

HOME = pathlib.Path(__file__).resolve().parent.parent
COMMENT = 'exactly-once business transactions, without C'
SCHEMA = 'idempotency'
# The secret is not dumped: CREATE EXTENSION makes a new one, as in the extension with C.
DUMPED = ''.join(f"SELECT pg_extension_config_dump('{name}', '');\n"
                 for name in ('idempotency_store', 'idempotency_fence', 'idempotency_forgotten'))
UPDATED = re.compile(r'CREATE (FUNCTION|VIEW|TABLE idempotency_forgotten)|COMMENT ON (FUNCTION|VIEW|TABLE idempotency_forgotten)|'
                     r'ALTER TABLE idempotency_store ALTER |GRANT |DO |SELECT (pg_catalog\.)?set_config|SET LOCAL')
# What CREATE OR REPLACE cannot change of version 1.0. It left values of responses in the statistics,
# where only superusers may delete: a change of the type removes them, also one to the same
# type, which leaves the rows alone.
SINCE_1_0 = """DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_stats WHERE schemaname = current_schema() AND tablename = 'idempotency_store'
        AND attname IN ('response_headers', 'response_payload', 'response_body')) THEN
        ALTER TABLE idempotency_store ALTER response_headers TYPE jsonb,
            ALTER response_payload TYPE jsonb, ALTER response_body TYPE bytea;
    END IF;
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'idempotency_pending'::regclass AND attname = 'judged') THEN
        ALTER TABLE idempotency_pending RENAME judged TO expected;
        DROP FUNCTION idem_put(idempotency_store, timestamptz), idem_check_size(jsonb, jsonb, bytea),
            idem_end(text, text, bigint, idempotency_status, int, jsonb, jsonb, bytea, interval, interval),
            idem_lost_race(), idem_prolong(text, text, bigint, interval);
    END IF;
END
$$;
"""


def statements(script):
    """The statements, each with the comment before it. A semicolon ends one outside of dollar quotes."""
    lines, tag = [], None
    for line in script.splitlines(keepends=True):
        lines.append(line)
        if tag is None and line.startswith('--'):
            continue
        for found in re.findall(r'\$[a-z]*\$', line):
            if tag is None:
                tag = found
            elif tag == found:
                tag = None
        if tag is None and line.rstrip().endswith(';'):
            yield ''.join(lines)
            lines = []
    if tag is not None or ''.join(lines).strip():
        sys.exit('tle: the last statement of managed/idempotency.sql has no end')


def code_of(statement):
    return re.sub(r'\A(\s*--.*\n|\s*\n)*', '', statement)


def once(text, old, new):
    if text.count(old) != 1:
        sys.exit(f'tle: managed/idempotency.sql has "{old}" {text.count(old)} times, not once')
    return text.replace(old, new)


def without_transaction(script):
    kept = [s for s in statements(script) if code_of(s).strip() not in ('BEGIN;', 'COMMIT;')]
    if len(kept) != len(list(statements(script))) - 2:
        sys.exit('tle: managed/idempotency.sql is not one transaction')
    return kept


def update_of(kept):
    script = ''.join(s for s in kept if UPDATED.match(code_of(s)))
    script = re.sub(r"^(\tEXECUTE format\(')?CREATE (FUNCTION|VIEW) ", r'\1CREATE OR REPLACE \2 ', script, flags=re.M)
    script = once(script, 'CREATE TABLE ', 'CREATE TABLE IF NOT EXISTS ')
    script = once(script, 'ALTER TABLE idempotency_store ALTER ', SINCE_1_0 + 'ALTER TABLE idempotency_store ALTER ')
    # what roles have been granted stays
    return once(script, 'WHERE a.grantee <> m.owner', 'WHERE a.grantee = 0')


def quoted(script):
    if '$tle$' in script:
        sys.exit('tle: managed/idempotency.sql has the tag $tle$')
    return f'$tle${script}$tle$'


# Only pg_tle 1.5 and newer can keep the name of the schema.
INSTALL = """DO $install$
DECLARE
    script text := {script};
BEGIN
    IF EXISTS (SELECT FROM pgtle.available_extensions() WHERE name = 'idempotency') THEN
        PERFORM pgtle.install_extension_version_sql('idempotency', '{version}', script);
        PERFORM pgtle.set_default_version('idempotency', '{version}');
    ELSIF to_regprocedure('pgtle.install_extension(text,text,text,text,text[],text)') IS NULL THEN
        PERFORM pgtle.install_extension('idempotency', '{version}', '{comment}', script);
        RAISE NOTICE 'This pg_tle keeps no schema: give CREATE EXTENSION idempotency one.';
    ELSE
        EXECUTE 'SELECT pgtle.install_extension($1, $2, $3, $4, NULL, $5)'
            USING 'idempotency', '{version}', '{comment}', script, '{schema}';
    END IF;
END
$install$;
"""


def install_of(version, script, updates):
    text = INSTALL.format(script=quoted(script), version=version, comment=COMMENT, schema=SCHEMA)
    for before, update in updates.items():
        text += f"SELECT pgtle.install_update_path('idempotency', '{before}', '{version}', {quoted(update)});\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--to', type=pathlib.Path, default=HOME / 'dist' / 'tle', metavar='DIRECTORY')
    parser.add_argument('before', nargs='*', metavar='FROM')
    arguments = parser.parse_args()
    version = re.search(r"^default_version = '(.*)'$", (HOME / 'idempotency.control').read_text(), re.M)[1]
    kept = without_transaction((HOME / 'managed' / 'idempotency.sql').read_text())
    script = ''.join(kept) + '\n' + DUMPED
    update = update_of(kept)
    updates = {before: update + '\n' + DUMPED for before in arguments.before}
    files = {
        'idempotency.control': f"comment = '{COMMENT}'\ndefault_version = '{version}'\nrelocatable = false\n"
                               f"superuser = false\ntrusted = false\nschema = '{SCHEMA}'\n",
        f'idempotency--{version}.sql': script,
        'install.sql': install_of(version, script, updates),
        **{f'idempotency--{before}--{version}.sql': text for before, text in updates.items()},
        **{f'update--{before}--{version}.sql': f'BEGIN;\n{update}COMMIT;\n' for before in updates},
    }
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (arguments.to / name).write_text(text)
        print(arguments.to / name)


main()
