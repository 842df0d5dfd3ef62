"""A store of many millions of records: both kinds beside each other, and how one grows.

Each part asks for time and disk, and says first how much: make bench-huge. The period is
what docs/operating.md advises for a large store: half of the retention.
"""

import contextlib
import shutil

import collection
import conversion
import expiring
import partitions
import report
import server

NAME = 'huge'
GROWTH = 'growth'
ROWS = {NAME: 50_000_000, GROWTH: 100_000_000}
PERIOD = '12 hours'

AT_LEAST = 1.0              # throughput over that of one table
WAL_AT_MOST = 0.6           # of one table's, a transaction, after a checkpoint
GROWTH_AT_LEAST = 0.9       # throughput over that of a hundredth of the rows

MAX_WAL_SIZE = "'16GB'"     # as docs/operating.md advises: checkpoints come by time, not by WAL
ROUNDS = {NAME: 7, GROWTH: 30}      # of growth until each index page has been written once since a checkpoint
ROW_BYTES = 250             # heap and index, of a row of this benchmark
ROWS_A_SECOND = 100_000     # that are made
CHECKPOINTS_A_DAY = 48      # every half an hour, as docs/operating.md advises


def add_arguments(parser):
    group = parser.add_argument_group(
        'partitions', f'of {partitions.NAME}, {NAME} and {GROWTH}; the records expire within a day')
    group.add_argument('--rows', type=int, help='live records of a large store (default '
                       + ', '.join(f'{name} {rows // 10**6} million' for name, rows in ROWS.items()) + ')')
    group.add_argument('--period', help='what a table of the ring covers '
                       f'(default {PERIOD}; in {partitions.NAME} {partitions.PERIOD})')


def measure(options, tell):
    """Throughput, WAL after a checkpoint, what it costs that a table of the ring expires, and making the ring."""
    rows, period = options.rows or ROWS[NAME], options.period or PERIOD
    tell_needs(rows, stores=2.5)    # one has tables that expire, too
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(partitions.store(kind, rows, period, tell)) for kind in ('one', 'parts')]
        tps, runs = throughput(names, NAME, options, tell)
        one, parts = names
        age = into_period(parts, period)
        wal = {name: wal_of_load(name, rows, tell) for name in names}
        expiry, raw = expiring.measure(parts, rows // 6, tell)
        bytes_of_row = collection.size(one) / rows
        collection.warm(one)
        converted, more = conversion.measure(one, rows, period, tell)
    return [
        report.row(f'begin, complete on a store with a ring and {rows} live rows / on one table',
                   [a / b for a, b in zip(tps[parts], tps[one])], AT_LEAST),
        report.row(f'… WAL of a transaction after a checkpoint, {age} into a period',
                   [wal[parts] / wal[one]], WAL_AT_MOST, at_most=True),
        *expiry, *converted,
    ], [*more, *({'workload': NAME, 'rows': rows, **r} for r in runs),
        {'workload': NAME, 'rows': rows, 'period': period, 'wal': wal, 'bytes_of_row': bytes_of_row, **raw}]


def measure_growth(options, tell):
    """Throughput on a store with a ring and on one with a hundredth of its rows."""
    rows, period = options.rows or ROWS[GROWTH], options.period or PERIOD
    tell_needs(rows, stores=1.0)
    few = max(rows // 100, 1000)
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(partitions.store('parts', count, period, tell)) for count in (few, rows)]
        tps, runs = throughput(names, GROWTH, options, tell)
    small, large = names
    return [report.row(f'begin, complete on {rows} live rows / on {few}, both with a ring',
                       [a / b for a, b in zip(tps[large], tps[small])], GROWTH_AT_LEAST),
            ], [{'workload': GROWTH, 'rows': rows, 'period': period, **r} for r in runs]


def throughput(names, workload, options, tell):
    """Transactions a second of each round, by store, and the raw figures."""
    for name in names:
        collection.warm(name)
    collection.configure(max_wal_size=MAX_WAL_SIZE)
    runs = partitions.alternate(names, options.rounds or ROUNDS[workload], options.seconds or 5, tell)
    collection.configure(max_wal_size=None)
    return {name: [r['tps'] for r in runs if r['store'] == name] for name in names}, runs


def tell_needs(rows, stores):
    """What is needed, or an error if the disk has less."""
    needed = rows * ROW_BYTES * stores + 16 * 2**30
    minutes = rows * stores / ROWS_A_SECOND / 60 + 15
    free = shutil.disk_usage(server.sql('SHOW data_directory')[0]).free
    print(f'{rows} rows: {needed / 2**30:.0f} GB of disk, of which {free / 2**30:.0f} are free;'
          f' about {minutes:.0f} minutes', flush=True)
    if free < needed:
        raise server.BenchError('the disk is too small; --rows chooses a smaller store')


def into_period(name, period):
    """How old the table of the ring is that is being filled: its index grows, and with it the WAL."""
    return server.sql(f"""
        SELECT (to_timestamp(mod(extract(epoch FROM clock_timestamp() + interval '1 day'),
            extract(epoch FROM interval '{period}'))) AT TIME ZONE 'UTC')::time(0)""", name)[0]


def wal_of_load(name, rows, tell):
    """Bytes of WAL of a transaction, over as many as the store has between two checkpoints."""
    tell(f'{NAME}: WAL of {name}')
    server.sql('CHECKPOINT')
    before = server.costs_of_wal()
    each = rows // CHECKPOINTS_A_DAY // collection.CLIENTS
    done = server.load(collection.SCRIPT, collection.CLIENTS, f'--transactions={each}', name)
    return (server.costs_of_wal() - before) / done['transactions']
