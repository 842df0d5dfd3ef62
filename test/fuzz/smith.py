"""
sqlsmith: random queries over everything that a database has, the extension's
tables, views and functions among it.
"""
import os
import re
import subprocess
from pathlib import Path

from session import Session

DATABASE = 'fuzz_smith'
# It cannot make the arguments of all
FEWEST_FUNCTIONS = 4
LOCATION = re.compile(r'LOCATION:  (?:\w+, )?(\w+\.c):\d+')
ERROR = re.compile(r'(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): (.*)')

SHOWN = """
CREATE SCHEMA shown;
GRANT USAGE ON SCHEMA shown TO PUBLIC;
CREATE VIEW shown.pg_proc AS SELECT p.* FROM pg_catalog.pg_proc p
WHERE pronamespace = '{s}'::regnamespace OR oid::int8 % 20 = 0 AND pronamespace = 'pg_catalog'::regnamespace
    AND provolatile = 'i' AND prokind = 'f'
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.oid = ANY (array_append(proargtypes::oid[], prorettype)) AND typtype = 'p');
CREATE VIEW shown.pg_operator AS SELECT o.* FROM pg_catalog.pg_operator o
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.oid IN (oprleft, oprright, oprresult) AND typtype = 'p');
GRANT SELECT ON ALL TABLES IN SCHEMA shown TO PUBLIC;
ALTER ROLE fuzz_smith SET search_path = shown, pg_catalog"""


def prepare():
    schema = 'idem'  # sqlsmith quotes no names
    session = Session('postgres')
    session.script('CREATE ROLE fuzz_smith LOGIN')
    session.script(f'CREATE DATABASE {DATABASE} OWNER fuzz_smith')
    session.close()
    session = Session(DATABASE)
    session.script(f'CREATE SCHEMA {schema}; CREATE EXTENSION idempotency SCHEMA {schema}; CREATE EXTENSION pgcrypto;'
        f' GRANT USAGE ON SCHEMA {schema} TO fuzz_smith; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO fuzz_smith;'
        f' GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO fuzz_smith; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO fuzz_smith;'
        f" ALTER ROLE fuzz_smith SET statement_timeout = '1s'")
    # It chooses from what the catalogs have, and would hardly ever choose ours
    # from thousands: of all others it is shown a few, and none that it cannot call.
    session.script(SHOWN.format(s=schema))
    # something to find
    session.script('SET track_functions = none')
    session.script(f"BEGIN; SELECT {schema}.idem_complete_batch(ARRAY(SELECT idempotency_key FROM {schema}.idem_begin_batch("
        "ARRAY(SELECT 'key ' || n FROM generate_series(1, 50) n)))); COMMIT;"
        f" SELECT {schema}.idem_begin('leased ' || n, lease => '1 hour') FROM generate_series(1, 5) n")
    session.close()


def run(task):
    """
    So many queries; returns how often each of our functions came to an end,
    with those that only failed, and what sqlsmith itself ended with.
    """
    queries, seed, environment = task
    os.environ.update(environment)
    target = f'host={os.environ["PGHOST"]} port={os.environ["PGPORT"]} dbname={DATABASE} user=fuzz_smith'
    ended = subprocess.run(['sqlsmith', f'--target={target}', f'--seed={seed % 2**31}', f'--max-queries={queries}', '--exclude-catalog'],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=1200,
        cwd=os.environ['IDEM_WORK'])
    session = Session(DATABASE)
    session.script('SELECT pg_sleep(2)')  # the statistics arrive late
    calls = {row[0].decode(): int(row[1]) for row in session.script('SELECT funcname, sum(calls) FROM pg_stat_user_functions'
        " WHERE funcname LIKE 'idem%' GROUP BY 1")}
    session.close()
    return {'status': ended.returncode, 'output': ended.stdout.decode('utf-8', 'replace')[-2000:], 'calls': calls}


def internal_errors(log, sources):
    """Errors of class XX that the server logged from one of our own source files."""
    found, error = [], None
    for line in log:
        if (match := ERROR.search(line)):
            error = match.group(0)
        elif (match := LOCATION.search(line)) and error is not None:
            if ':  XX' in error and match.group(1) in sources:
                found.append(f'{error.strip()} ({match.group(1)})')
            error = None
    return found


def sources(tree):
    return {path.name for path in Path(tree, 'src').glob('*.c')}
