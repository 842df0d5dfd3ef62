"""The server under test: SQL through psql, load through pgbench."""

import contextlib
import os
import re
import subprocess

import workloads

FOLDER = os.path.dirname(os.path.abspath(__file__))
ACCOUNTS = 50_000
RECORDS = 10_000
REQUEST = ('{"amount": "12.50", "currency": "EUR", "to": "DE02120300000000202051",'
           ' "reference": "invoice 4711"}')
RESPONSE = '{"payment": 123456, "state": "accepted"}'


class BenchError(Exception):
    """Something failed: no figure is reliable."""


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise BenchError(f'{" ".join(command[:1])} failed: {done.stderr.strip()}')
    return done.stdout


@contextlib.contextmanager
def of_version(version):
    """A server in a chroot that has this version; yields the environment that leads to it. It
    goes away when its input ends."""
    settings = ('shared_buffers = 1GB', 'max_wal_size = 4GB', 'checkpoint_timeout = 1h', 'max_connections = 200')
    root = os.path.dirname(FOLDER)
    command = [os.path.join(root, 'dev', 'chroot'), str(version), 'dev/throwaway-server',
               *(part for setting in settings for part in ('--conf', setting)),
               'sh', '-c', 'echo "server: $PGHOST $PGPORT"; cat >/dev/null']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        for line in held.stdout:
            if line.startswith('server: '):
                _, host, port = line.split()
                yield {'PGHOST': host, 'PGPORT': port, 'PGUSER': 'postgres', 'PGDATABASE': 'postgres'}
                return
    raise BenchError(f'no server of PostgreSQL {version}: dev/chroot says why')


def turns(members, rounds, title, tell):
    """The number of each round with each member in turn, forwards and backwards."""
    for number in range(rounds):
        tell(f'{title}: round {number + 1} of {rounds}')
        for member in members if number % 2 == 0 else reversed(members):
            yield number, member


def sql(text, database=None):
    """The output lines of some SQL."""
    where = ['-d', database] if database else []
    return run(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', *where], input=text).splitlines()


def create_schema():
    run(['psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v', f'records={RECORDS}',
         '-v', f'request={REQUEST}', '-f', os.path.join(FOLDER, 'schema.sql')])


def reset():
    """The same tables before every run. The checkpoint comes first: the pages
    are newer than it, so that no run pays for images of whole pages."""
    sql(f"""
        CHECKPOINT;
        CALL reset_tables({ACCOUNTS});
        VACUUM (ANALYZE) accounts, payments, idempotency_store, hand_store, hand_store_indexed,
            managed.idempotency_store, managed.idempotency_pending, idempotency_stream, hand_stream;
    """)


def version():
    return int(sql('SHOW server_version_num')[0]) // 10000


def features():
    """What a variant may need: SQL functions, and a version of PostgreSQL or a newer one."""
    functions = set(sql("SELECT proname FROM pg_proc WHERE proname LIKE 'idem\\_%'"))
    return functions | {f'PostgreSQL {number}' for number in range(15, version() + 1)}


def counters():
    return dict(zip(workloads.COUNTERS, map(int, sql(';'.join(workloads.COUNTERS)))))


def check(variant, transactions, before):
    """Checks that the tables have a row for each acknowledged transaction."""
    for counter, value in counters().items():
        expected = before[counter] + transactions * variant.writes.get(counter, 0)
        if value != expected:
            raise BenchError(f'{variant.name}: {counter} gave {value}, not {expected},'
                             f' after {transactions} transactions')


def pgbench(workload, variant, clients, *length):
    """Run a variant, and compare the tables with its counts."""
    before = counters()
    database = ['options=-csearch_path=managed,public'] if variant.managed else []
    with store_as_asked(variant):
        result = load(f'{workload.name}/{variant.script or variant.name}', clients, *length, *database)
    check(variant, result['transactions'], before)
    return result


@contextlib.contextmanager
def store_as_asked(variant):
    """The store with a trigger that never fires, if the variant asks for one."""
    if not variant.with_trigger:
        yield
        return
    sql("""
        CREATE TRIGGER never BEFORE INSERT ON idempotency_store
            FOR EACH ROW WHEN (false) EXECUTE FUNCTION suppress_redundant_updates_trigger();
    """)
    try:
        yield
    finally:
        sql('DROP TRIGGER never ON idempotency_store')


def load(script, clients, *arguments):
    """Run a script and read the report of pgbench."""
    output = run([
        'pgbench', '--no-vacuum', '--protocol=prepared',
        f'--client={clients}', f'--jobs={min(clients, 2)}', *variables(),
        '-f', os.path.join(FOLDER, 'scripts', f'{script}.sql'), *arguments])
    transactions = figure(r'actually processed: (\d+)', output)
    if transactions == 0 or figure(r'failed transactions: (\d+)', output) != 0:
        raise BenchError(f'{script}: transactions failed\n{output}')
    return {'transactions': int(transactions), 'tps': figure(r'tps = ([\d.]+)', output)}


def variables():
    """The parameters of the scripts, each a single value of its type."""
    values = {
        'accounts': ACCOUNTS, 'records': RECORDS, 'seq': 0,
        'request': REQUEST, 'response': RESPONSE, 'hash': request_hash(),
        'message': '7000000000000000000',
        'keys': '{' + ','.join(str(7 * 10**18 + i) for i in range(500)) + '}'}
    return [f'--define={name}={value}' for name, value in values.items()]


def request_hash(known=[]):
    """The fingerprint of the request, as an application would compute it."""
    if not known:
        known.extend(sql(f"SELECT idem_fingerprint('{REQUEST}')"))
    return known[0]


def figure(pattern, output):
    found = re.search(pattern, output)
    if not found:
        raise BenchError(f'pgbench did not say "{pattern}":\n{output}')
    return float(found.group(1))


def costs():
    """Counts so far: bytes of WAL, and dead row versions of the stores, whether
    or not they have been pruned since."""
    wal, dead = sql("""
        SELECT pg_current_wal_insert_lsn() - '0/0';
        SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables
            WHERE relname IN ('idempotency_store', 'idempotency_pending', 'hand_store');
    """)
    return {'wal': int(wal), 'dead': int(dead)}


def environment():
    """Machine, versions and the settings that are not the default."""
    settings = dict(line.split('=', 1) for line in sql(
        "SELECT name || '=' || current_setting(name) FROM pg_settings"
        " WHERE source NOT IN ('default', 'override', 'client')"
        " AND name !~ 'path|director|file|destdir|socket|locale|^lc_|TimeZone|libraries'"))
    return {'server': sql('SHOW server_version')[0],
            'extension': sql("SELECT extversion FROM pg_extension WHERE extname = 'idempotency'")[0],
            'pgbench': run(['pgbench', '--version']).strip(),
            'machine': machine(), 'settings': settings}


def machine():
    with open('/proc/cpuinfo') as lines:
        models = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    uname = os.uname()
    return {'processors': os.cpu_count(), 'model': models[0] if models else uname.machine,
            'kernel': f'{uname.sysname} {uname.release}', 'load_average': os.getloadavg()}
