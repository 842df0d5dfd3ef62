"""A store that is partitioned by expiry beside one that is one table.

Both have the same rows, which expire evenly over the next day, so six or seven
partitions have some, and the runs on both alternate. The part `huge` asks for time
and disk, and says first how much: bench/run --only huge.
"""

import contextlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import collection
import conversion
import report
import server

NAME = 'partitions'
HUGE = 'huge'
PERIOD = '4 hours'
SIZES = {'full': (100, 1_000_000), 'quick': (100, 50_000)}

AT_LEAST = 0.95             # throughput over that of one table
HUGE_AT_LEAST = 1.0
HUGE_WAL_AT_MOST = 0.6      # of one table's, a transaction, after a checkpoint
GROWTH_AT_LEAST = 0.9       # throughput over that of a fiftieth of the rows
EXPIRY_WAL_AT_MOST = 10     # MB
EXPIRY_P99_AT_MOST = 1.2    # over the idle one

ROW_BYTES = 250             # heap and index, of a row of this benchmark
ROWS_A_SECOND = 100_000     # that are made
AFTER_CHECKPOINT = 250_000  # transactions: 800 a second, for PostgreSQL's checkpoint_timeout of 5 minutes


def add_arguments(parser):
    group = parser.add_argument_group(HUGE, 'a store of many millions of records, of both kinds: make bench-huge')
    group.add_argument('--rows', type=int, default=50_000_000, help='live records of each store (default 50 million)')
    group.add_argument('--period', default=PERIOD,
                       help=f'what a partition covers, also in {NAME}: the records expire within a day (default {PERIOD})')


# ---- both kinds, in make bench ----

def measure(options, tell):
    """The entries of the table, and every raw figure."""
    rounds, seconds = (options.rounds or (3 if options.quick else 7)), (options.seconds or (1 if options.quick else 5))
    entries, raw = [], []
    for rows in SIZES['quick' if options.quick else 'full']:
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(store(kind, rows, options.period, tell)) for kind in ('one', 'parts')]
            runs = alternate(names, rounds, seconds, tell)
        one, parts = ([r['tps'] for r in runs if r['store'] == name] for name in names)
        entries.append(report.row(f'begin, complete on a partitioned store of {rows} live rows / on one table',
                                  [a / b for a, b in zip(parts, one)], AT_LEAST))
        raw += [{'workload': NAME, 'rows': rows, **r} for r in runs]
    return entries, raw


@contextlib.contextmanager
def store(kind, rows, period, tell):
    """A database with so many records that live."""
    tell(f'{NAME}: making {rows} live rows, {kind}')
    with collection.database(f'bench_{kind}_{rows}') as name:
        if kind == 'parts':
            server.sql(f"SELECT idem_partition_store('{period}')", name)
        collection.fill(name, rows, "random() * interval '1 day'")
        yield name


def alternate(names, rounds, seconds, tell):
    """Begin and complete, forwards and backwards; each transaction must have left a row."""
    before = {name: collection.state(name) for name in names}
    done = {name: collection.load(name, collection.CLIENTS, 1)['transactions'] for name in names}
    runs = []
    for number in range(rounds):
        tell(f'{NAME}: round {number + 1} of {rounds}')
        for name in names if number % 2 == 0 else reversed(names):
            run = collection.load(name, collection.CLIENTS, seconds)
            done[name] += run['transactions']
            runs.append({'round': number, 'store': name, **run})
    for name in names:
        collection.check(name, before[name], done[name])
    return runs


# ---- a huge store ----

def measure_huge(options, tell):
    """Throughput, WAL after a checkpoint, growth, what it costs that a partition expires, and the conversion."""
    rows = options.rows
    tell_needs(rows)
    with contextlib.ExitStack() as stack:
        small, one, parts = (stack.enter_context(store(kind, count, options.period, tell)) for kind, count in (
            ('parts', max(rows // 50, 1000)), ('one', rows), ('parts', rows)))
        for name in (small, one, parts):
            warm(name)
        runs = alternate([small, one, parts], options.rounds or 7, options.seconds or 5, tell)
        wal = {name: wal_of_load(name, tell) for name in (one, parts)}
        expiry, raw = expire(parts, rows // 6, tell)
        bytes_of_row = collection.size(one) / rows
        warm(one)
        converted, more = conversion.measure(one, rows, options.period, tell)
    tps = {name: [r['tps'] for r in runs if r['store'] == name] for name in (small, one, parts)}
    return [
        report.row(f'begin, complete on a partitioned store of {rows} live rows / on one table',
                   [a / b for a, b in zip(tps[parts], tps[one])], HUGE_AT_LEAST),
        report.row('… WAL of a transaction after a checkpoint', [wal[parts] / wal[one]], HUGE_WAL_AT_MOST, at_most=True),
        report.row(f'begin, complete on {rows} live rows / on {max(rows // 50, 1000)}, both partitioned',
                   [a / b for a, b in zip(tps[parts], tps[small])], GROWTH_AT_LEAST),
        *expiry, *converted,
    ], [*more, *({'workload': HUGE, 'rows': rows, **r} for r in runs),
        {'workload': HUGE, 'rows': rows, 'wal': wal, 'bytes_of_row': bytes_of_row, **raw}]


def tell_needs(rows):
    """What is needed, or an error if the disk has less."""
    needed = rows * ROW_BYTES * 2.5 + 6 * 2**30
    minutes = rows * 2.5 / ROWS_A_SECOND / 60 + 15
    free = shutil.disk_usage(server.sql('SHOW data_directory')[0]).free
    print(f'{rows} rows: {needed / 2**30:.0f} GB of disk, of which {free / 2**30:.0f} are free;'
          f' about {minutes:.0f} minutes', flush=True)
    if free < needed:
        raise server.BenchError('the disk is too small; --rows chooses a smaller store')


def wal_of_load(name, tell):
    """Bytes of WAL of a transaction, over as many as one checkpoint is for."""
    tell(f'{HUGE}: WAL of {name}')
    server.sql('CHECKPOINT')
    before = server.costs_of_wal()
    each = AFTER_CHECKPOINT // collection.CLIENTS
    done = server.load(collection.SCRIPT, collection.CLIENTS, f'--transactions={each}', name)
    return (server.costs_of_wal() - before) / done['transactions']


def warm(name):
    """Reads the indexes, so that they are in memory, as those of a store in use.

    Whoever cannot keep them there waits for the disk, and measures the disk.
    """
    server.sql("""
        CREATE EXTENSION IF NOT EXISTS pg_prewarm;
        SELECT pg_prewarm(indexrelid, 'read') FROM pg_index
            WHERE indrelid IN (SELECT relid FROM pg_partition_tree('idempotency_store'))""", name)


def expire(name, rows, tell):
    """Two partitions that are over: one is emptied on an idle server, one under load."""
    for days in (3, 5):
        tell(f'{HUGE}: making {rows} expired rows')
        make_over(name, rows, days)
    server.sql('VACUUM (ANALYZE) idempotency_store; CHECKPOINT', name)
    warm(name)
    idle = [collection.limited_load(name, 10) for _ in range(3)]
    dead, wal, started = dead_rows(name), server.costs_of_wal(), time.monotonic()
    tell(f'{HUGE}: emptying a partition')
    server.sql('SELECT idem_gc()', name)
    seconds, wal, dead = time.monotonic() - started, server.costs_of_wal() - wal, dead_rows(name) - dead
    make_over(name, rows, 7)
    server.sql('CHECKPOINT', name)
    warm(name)
    busy = load_while_emptying(name, tell)
    left = int(server.sql("SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE '%over'", name)[0])
    if left > 0:
        raise server.BenchError(f'{left} expired rows are left')
    figures = {'expired': 2 * rows, 'seconds': seconds, 'wal_mb': wal / 2**20, 'dead': dead,
               'idle': collection.summary(idle), 'busy': collection.summary([busy])}
    return [
        report.row(f'MB of WAL when {2 * rows} rows expire', [wal / 2**20], EXPIRY_WAL_AT_MOST, at_most=True),
        report.row('… seconds', [seconds], None),
        report.row('… dead rows', [dead], 0, at_most=True),
        report.row('… p99 latency meanwhile / idle', [collection.p99([busy], 'ms') / collection.p99(idle, 'ms')],
                   EXPIRY_P99_AT_MOST, at_most=True)], {'expiry': figures}


def make_over(name, rows, days):
    """A partition with records that have expired; a lock that is not free is tried for again."""
    ends = f"ARRAY[now() - interval '{days} days'], ARRAY[now() - interval '{days - 1} days']"
    while server.sql(f"SELECT idem_make_partitions('idempotency_store', 'idempotency_store_default', {ends})", name) != ['t']:
        time.sleep(0.1)
    server.sql(f"""
        INSERT INTO idempotency_store (idempotency_key, request_hash, status, response_payload, expires_at)
            SELECT md5(i::text) || 'over', '{server.request_hash()}', 'COMPLETED', '{server.RESPONSE}',
                now() - interval '{days} days' + interval '1 hour' FROM generate_series(1, {rows}) i""", name)


def load_while_emptying(name, tell):
    """The transactions of a load that ended while a collection ran."""
    tell(f'{HUGE}: emptying a partition under load')
    with ThreadPoolExecutor() as pool:
        slices = pool.submit(collection.limited_load, name, 20)
        time.sleep(2)
        started = time.time()
        server.sql('SELECT idem_gc()', name)
        ended = max(time.time(), started + 5)
        return [t for t in slices.result() if started <= t.ended <= ended]


def dead_rows(name):
    """Row versions that vacuum has to remove, of all parts of the store."""
    return int(server.sql("""
        SELECT pg_stat_force_next_flush();
        SELECT coalesce(sum(n_tup_del + n_tup_upd), 0) FROM pg_stat_user_tables
            WHERE relname LIKE 'idempotency_store%'""", name)[-1])
