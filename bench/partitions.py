"""A store with a ring of tables beside one that is one table.

Both have the same rows, which expire evenly over the next day, and the runs on both
alternate. The period is what docs/operating.md advises for a small store: the retention.
"""

import contextlib
import time

import collection
import report
import server

NAME = 'partitions'
PERIOD = '1 day'
SIZES = {'full': (100, 1_000_000), 'quick': (100, 50_000)}

STEPS = 100                 # visits of collection until there are ranges
AT_LEAST = 0.95             # throughput over that of one table


def add_arguments(parser):
    group = parser.add_argument_group(NAME, 'the records expire within a day')
    group.add_argument('--rows', type=int, nargs='+', help='live records of the stores (default 100 and a million)')
    group.add_argument('--period', default=PERIOD, help=f'what a table of the ring covers (default {PERIOD})')


def measure(options, tell):
    """The entries of the table, and every raw figure."""
    seconds = options.seconds or (1 if options.quick else 5)
    entries, raw, period = [], [], options.period
    for rows in options.rows or SIZES['quick' if options.quick else 'full']:
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(store(kind, rows, period, tell)) for kind in ('one', 'parts')]
            runs = alternate(names, options.rounds, seconds, tell)
        one, parts = ([r['tps'] for r in runs if r['store'] == name] for name in names)
        entries.append(report.row(f'begin, complete on a partitioned store of {rows} live rows / on one table',
                                  [a / b for a, b in zip(parts, one)], AT_LEAST))
        raw += [{'workload': NAME, 'rows': rows, 'period': period, **r} for r in runs]
    return entries, raw


@contextlib.contextmanager
def store(kind, rows, period, tell):
    """A database with so many records that live."""
    tell(f'{NAME}: making {rows} live rows, {kind}')
    with collection.database(f'bench_{kind}_{rows}') as name:
        if kind == 'parts':
            make_ring(name, period)
            collection.fill_tables(name, rows, shares_of_ring(name, rows))
        else:
            collection.fill(name, rows, "random() * interval '1 day'")
        warm(name)
        yield name


def warm(name):
    """Reads the indexes, so that they are in shared_buffers, as those of a store in use.

    Whoever cannot keep them there reads a page for each look-up.
    """
    server.sql("""
        CREATE EXTENSION IF NOT EXISTS pg_prewarm;
        SELECT pg_prewarm(indexrelid) FROM pg_index
            WHERE indrelid IN (SELECT 'idempotency_store'::regclass
                UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idempotency_store'::regclass)""", name)


def shares_of_ring(name, rows):
    """What each table of the ring has of so many records that expire evenly over the next day."""
    ranges = server.sql("""
        SELECT name, extract(epoch FROM since - now()) / 86400, extract(epoch FROM until - now()) / 86400, since, until
        FROM idempotency_partitions,
            LATERAL (SELECT greatest(range_start, now()), least(range_end, now() + interval '1 day')) r (since, until)
        WHERE since < until ORDER BY since""", name)
    for one in ranges:
        table, first, last, since, until = one.split('|')
        yield (table, round(float(first) * rows), round(float(last) * rows),
               f"timestamptz '{since}' + random() * (timestamptz '{until}' - timestamptz '{since}')")


def make_ring(name, period):
    """Tables with ranges; collection gives one after the other."""
    server.sql(f"SELECT idem_partition_store('{period}')", name)
    for _ in range(STEPS):
        server.sql('SELECT idem_gc()', name)
        if server.sql('SELECT every(range_start IS NOT NULL) FROM idempotency_partitions', name) == ['t']:
            return
        time.sleep(0.1)
    raise server.BenchError(f'{STEPS} visits of collection made no ring')


def alternate(names, rounds, seconds, tell):
    """Begin and complete, forwards and backwards; each transaction must have left a row."""
    before = {name: collection.state(name) for name in names}
    done = {name: collection.load(name, collection.CLIENTS, 1)['transactions'] for name in names}
    runs = []
    for number, name in server.turns(names, rounds, NAME, tell):
        run = collection.load(name, collection.CLIENTS, seconds)
        done[name] += run['transactions']
        runs.append({'round': number, 'store': name, **run})
    for name in names:
        collection.check(name, before[name], done[name])
    return runs
