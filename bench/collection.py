"""Collection: its cost under a steady load, its speed with a backlog, and the
cost of a large store.

Each part has databases of its own, and the background worker is sent to the one
that is measured, or to none. What was acknowledged must be in the store or
counted as collected after each part: otherwise the run fails.
"""

import contextlib
import glob
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import report
import server

NAME = 'collection'
SCRIPT = 'collection/begin-complete'

CLIENTS = 8
FILLERS = 2
STEADY_AT_LEAST = 0.95      # throughput with the worker over without
STEADY_SIZE_AT_MOST = 1.5   # store at the end over after the first retention

BACKLOG_SECONDS = 180
BACKLOG_P99_AT_MOST = 2.0   # over the idle one
BACKLOG_PATIENCE = 3        # times the target, then the backlog is stuck
LOAD = {'clients': 4, 'rate': 200}      # leaves the processors to the worker

LARGE_AT_LEAST = 0.85       # throughput on the large store over the empty one

SETTINGS = {'gc_enabled': 'idempotency.gc_enabled', 'gc_databases': 'idempotency.gc_databases',
            'gc_interval': 'idempotency.gc_interval', 'autovacuum_naptime': 'autovacuum_naptime',
            'full_page_writes': 'full_page_writes'}


@dataclass(frozen=True)
class Plan:
    retention: int      # seconds
    steady: int         # seconds, after the first retention
    interval: int       # seconds between the collector's rounds meanwhile
    naptime: int        # seconds between autovacuum's visits meanwhile
    backlog: int        # rows
    slice: int          # seconds of rate-limited load at a time
    live: int           # rows
    rounds: int         # of runs on the large store and the empty one
    seconds: int        # length of those


FULL = Plan(retention=30, steady=180, interval=5, naptime=2, backlog=5_000_000, slice=10, live=10_000_000, rounds=7, seconds=5)
QUICK = Plan(retention=5, steady=10, interval=2, naptime=2, backlog=200_000, slice=3, live=200_000, rounds=3, seconds=2)


def measure(options, tell):
    """The entries of the table, and every raw figure."""
    chosen, entries, raw = QUICK if options.quick else FULL, [], []
    try:
        for part in (steady, backlog, large):
            part_entries, part_raw = part(chosen, tell)
            entries += part_entries
            raw += [{'workload': NAME, 'part': part.__name__, **r} for r in part_raw]
    finally:
        configure(**dict.fromkeys(SETTINGS))
    return entries, raw


# ---- steady load ----

def steady(chosen, tell):
    """The same load with the worker and without, each from an empty store."""
    runs = []
    with database('bench_steady') as name:
        server.sql(f"ALTER DATABASE {name} SET idempotency.retention = '{chosen.retention}s'")
        configure(gc_interval=chosen.interval, autovacuum_naptime=chosen.naptime)
        for worker in (True, False):
            tell(f'{NAME}: steady load {"with" if worker else "without"} the worker')
            runs.append({'worker': worker, **steady_run(name, chosen, worker)})
    configure(gc_interval=None, autovacuum_naptime=None)
    collected, without = runs
    return [
        report.row('steady load with the worker / without collection', [collected['tps'] / without['tps']], STEADY_AT_LEAST),
        report.row('… size of the store at the end / after the first retention',
                   [collected['size'] / collected['first_size']], STEADY_SIZE_AT_MOST, at_most=True),
        report.row('… the same without collection', [without['size'] / without['first_size']], None)], runs


def steady_run(name, chosen, worker):
    server.sql('TRUNCATE idempotency_store; CHECKPOINT', name)
    before = state(name)
    send_worker_to(name if worker else None)
    warm_up = load(name, CLIENTS, chosen.retention)
    first_size = size(name)
    result = load(name, CLIENTS, chosen.steady)
    last_size = size(name)
    send_worker_to(None)
    collected = check(name, before, warm_up['transactions'] + result['transactions'])
    if worker and not collected:
        raise server.BenchError('the worker collected nothing under steady load')
    return {**result, 'first_size': first_size, 'size': last_size, 'collected': collected}


# ---- backlog ----

@dataclass(frozen=True)
class Transaction:
    ended: float
    ms: float
    ms_with_lag: float      # since it should have begun

    @staticmethod
    def of(client, number, microseconds, script, seconds, fraction, lag):
        """From the columns of pgbench's log; its time counts from the schedule."""
        return Transaction(seconds + fraction / 1e6, (microseconds - lag) / 1000, microseconds / 1000)


def backlog(chosen, tell):
    """How long the removal of expired rows takes, and the latency of transactions meanwhile."""
    with database('bench_backlog') as name:
        tell(f'{NAME}: making {chosen.backlog} expired rows')
        before = fill(name, chosen.backlog, "interval '-1 hour'")
        tell(f'{NAME}: idle latency')
        warm_up = limited_load(name, chosen.slice)
        idle = [limited_load(name, chosen.slice) for _ in range(3)]
        tell(f'{NAME}: removing {chosen.backlog} expired rows')
        seconds, until, busy = catch_up(name, chosen, before['collected'] + chosen.backlog)
        if check(name, before, sum(map(len, [warm_up, *idle, *busy]))) != chosen.backlog:
            raise server.BenchError('the worker removed something else than the backlog')
    busy = [[t for t in one if t.ended <= until] for one in busy]
    limit = f'{LOAD["rate"]} tps on {LOAD["clients"]} clients'
    return [
        report.row(f'seconds until {chosen.backlog} expired rows are gone', [seconds], BACKLOG_SECONDS, at_most=True),
        report.row(f'… p99 latency meanwhile / idle, {limit}',
                   [p99(busy, 'ms') / p99(idle, 'ms')], BACKLOG_P99_AT_MOST, at_most=True),
        report.row('… the same, with the time that transactions began late',
                   [p99(busy, 'ms_with_lag') / p99(idle, 'ms_with_lag')], None)
    ], [{'rows': chosen.backlog, 'seconds': seconds, **LOAD, 'idle': summary(idle), 'busy': summary(busy),
         'idle_slices': summaries(idle), 'busy_slices': summaries(busy)}]


def catch_up(name, chosen, goal):
    """Starts the worker: how long it took, when it was done, and the load's slices meanwhile."""
    slices = []
    with ThreadPoolExecutor() as pool:
        send_worker_to(name)
        gone = pool.submit(wait_until_collected, name, goal)
        while not gone.done():
            slices.append(limited_load(name, chosen.slice))
        seconds, until = gone.result()
    send_worker_to(None)
    return seconds, until, slices


def wait_until_collected(name, goal):
    """Reads the counters in shared memory, which does not touch the store."""
    started = time.time()
    while time.time() - started < BACKLOG_SECONDS * BACKLOG_PATIENCE:
        if state(name, counters_only=True)['collected'] >= goal:
            now = time.time()
            return now - started, now
        time.sleep(0.5)
    raise server.BenchError('the worker did not remove the backlog')


def limited_load(name, seconds):
    """Each transaction of a load that comes at a steady rate, however slow the server is."""
    with tempfile.TemporaryDirectory() as folder:
        load(name, LOAD['clients'], seconds, f'--rate={LOAD["rate"]}', '--log', f'--log-prefix={folder}/log')
        lines = [line.split() for path in glob.glob(f'{folder}/log*') for line in open(path)]
    return [Transaction.of(*map(int, fields)) for fields in lines]


def p99(slices, measure):
    return summary(slices)[measure]['p99']


def summary(slices):
    return {measure: {f'p{p}': quantile([getattr(t, measure) for one in slices for t in one], p)
                      for p in (50, 95, 99)} for measure in ('ms', 'ms_with_lag')}


def quantile(values, percent):
    return statistics.quantiles(values, n=100, method='inclusive')[percent - 1]


def summaries(slices):
    """A slice with few transactions, as the last one, has no reliable figures."""
    return [{'transactions': len(one), **summary([one])} for one in slices if len(one) >= 100]


# ---- a large store ----

def large(chosen, tell):
    """Begin and complete with many live rows, with a tenth of them, and with none."""
    sizes = {f'bench_rows_{rows}': rows for rows in (0, chosen.live // 10, chosen.live)}
    runs, before = [], {}
    with contextlib.ExitStack() as stack:
        for name, rows in sizes.items():
            tell(f'{NAME}: making {rows} live rows')
            stack.enter_context(database(name))
            before[name] = fill(name, rows, "interval '1 day'") if rows else None
        warm_up = {name: load(name, CLIENTS, 1) for name in sizes}
        for number, name in server.turns(sizes, chosen.rounds, f'{NAME}, large store', tell):
            run = load(name, CLIENTS, chosen.seconds) if sizes[name] else run_on_empty(name, chosen.seconds)
            runs.append({'round': number, 'rows': sizes[name], **run})
        for name, rows in sizes.items():
            if rows:
                check(name, before[name], warm_up[name]['transactions']
                      + sum(r['transactions'] for r in runs if r['rows'] == rows))
    empty, *others = ([r['tps'] for r in runs if r['rows'] == rows] for rows in sizes.values())
    return [report.row(f'begin, complete on {rows} live rows / on an empty store',
                       [a / b for a, b in zip(of, empty)], LARGE_AT_LEAST)
            for rows, of in zip(list(sizes.values())[1:], others)], runs


def run_on_empty(name, seconds):
    server.sql('TRUNCATE idempotency_store', name)
    before = state(name)
    result = load(name, CLIENTS, seconds)
    check(name, before, result['transactions'])
    return result


# ---- databases, the worker, the store ----

@contextlib.contextmanager
def database(name):
    send_worker_to(None)
    server.sql(f'CREATE DATABASE {name}')
    server.sql('CREATE EXTENSION idempotency', name)
    yield name
    server.sql(f'DROP DATABASE {name}')


def send_worker_to(name):
    """Afterwards the worker visits only this database, or none."""
    configure(gc_enabled='on' if name else 'off', gc_databases=name)
    while not name and worker_is_there():
        time.sleep(0.1)


def configure(**values):
    """Settings by their short names; None is the default."""
    for name, value in values.items():
        server.sql(f'ALTER SYSTEM RESET {SETTINGS[name]}' if value is None else
                   f'ALTER SYSTEM SET {SETTINGS[name]} = {value}')
    server.sql('SELECT pg_reload_conf()')


def worker_is_there():
    """The worker reads settings between transactions; pg_stat_activity shows a new one a moment later."""
    time.sleep(0.2)
    return server.sql("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'idempotency collector'") != []


def fill(name, rows, expires_in):
    """Rows like those that the load makes, in the store itself."""
    return fill_tables(name, rows, [('idempotency_store', 0, rows, f'clock_timestamp() + {expires_in}')])


def fill_tables(name, rows, shares):
    """The same in tables of the store: (table, from this row, to that one, when it expires)."""
    configure(full_page_writes='off')   # random keys would write images of the whole index, time and again
    try:
        for table, first, last, expires_at in shares:
            with ThreadPoolExecutor(FILLERS) as pool:
                list(pool.map(lambda filler, table=table, first=first, last=last, expires_at=expires_at: server.sql(f"""
                    INSERT INTO {table} (idempotency_key, request_hash, status, response_payload, expires_at)
                        SELECT md5(i::text), '{server.request_hash()}', 'COMPLETED', '{server.RESPONSE}', {expires_at}
                        FROM generate_series({first} + {filler}, {last}, {FILLERS}) AS i""", name), range(1, FILLERS + 1)))
    finally:
        configure(full_page_writes=None)
    server.sql('VACUUM (ANALYZE); CHECKPOINT', name)
    made = state(name)
    if made['rows'] != rows:
        raise server.BenchError(f'{name} has {made["rows"]} rows, not {rows}')
    return made


def load(name, clients, seconds, *arguments):
    return server.load(SCRIPT, clients, f'--time={seconds}', *arguments, name)


def size(name):
    """Heap, index and TOAST, in bytes."""
    return int(server.sql("SELECT pg_total_relation_size('idempotency_store')", name)[0])


def state(name, counters_only=False):
    rows = 'NULL' if counters_only else '(SELECT count(*) FROM idempotency_store)'
    answer = server.sql(f"""
        SELECT coalesce({rows}, 0), coalesce(collected_rows, 0)
        FROM idempotency_stats WHERE datname = current_database()""", name)
    return dict(zip(('rows', 'collected'), map(int, answer[0].split('|'))))


def check(name, before, transactions):
    """Each transaction left a row, in the store or collected; how many were."""
    after = state(name)
    collected = after['collected'] - before['collected']
    if after['rows'] + collected != before['rows'] + transactions:
        raise server.BenchError(f'{name}: {after["rows"]} rows and {collected} collected,'
                                f' of {before["rows"]} rows and {transactions} transactions')
    return collected
