"""What others notice while a living store becomes partitioned, and one table again.

A steady load goes on all the time. Each of its transactions must have left a row.
"""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import collection
import report
import server

NAME = 'conversion'
TIMES = 3                   # there and back
P99_AT_MOST = 100           # ms
SLICE = 20                  # seconds of load at a time
STEPS = 20                  # visits of collection until there are partitions; 3 are expected


def measure(name, rows, period, tell):
    """The entries, and the raw figures, for a store that is one table."""
    before = collection.state(name)
    idle = collection.limited_load(name, SLICE)
    busy, seconds, done = [], [], len(idle)
    for number in range(TIMES):
        tell(f'{NAME}: {number + 1} of {TIMES}')
        with load(name) as slices:
            started = time.time()
            took = there_and_back(name, period)
            ended = time.time() + 0.5       # of those that waited
        done += sum(map(len, slices))
        busy.append([t for one in slices for t in one if started <= t.ended <= ended])
        seconds.append(took)
    collection.check(name, before, done)
    longest = [max(t.ms for t in one) for one in busy]
    title = f'while a store of {rows} rows is partitioned and one table again'
    return [
        report.row(f'p99 latency in ms {title}', [collection.p99([one], 'ms') for one in busy], P99_AT_MOST, at_most=True),
        report.row('… idle p99', [collection.p99([idle], 'ms')], None),
        report.row('… longest transaction in ms', longest, None),
        report.row('… longest idle one', [max(t.ms for t in idle)], None),
        *(report.row(f'… seconds for {what}', [took[what] for took in seconds], None) for what in seconds[0]),
    ], [{'workload': NAME, 'rows': rows, 'seconds': seconds, 'longest_ms': longest,
         'idle': collection.summary([idle]), 'busy': collection.summary(busy)}]


def there_and_back(name, period):
    """Seconds of each part."""
    return {
        'idem_partition_store': timed(lambda: server.sql(f"SELECT idem_partition_store('{period}')", name)),
        'the first partitions': timed(lambda: make_partitions(name)),
        'idem_unpartition_store': timed(lambda: make_one_table(name)),
    }


def make_partitions(name):
    for _ in range(STEPS):
        server.sql('SELECT idem_gc()', name)
        if partitions(name) > 1:
            return
    raise server.BenchError(f'{STEPS} visits of collection made no partition')


def make_one_table(name):
    server.sql('SELECT idem_unpartition_store()', name)
    if partitions(name) > 0:
        raise server.BenchError('the store has partitions still')


def partitions(name):
    return int(server.sql('SELECT count(*) FROM idempotency_partitions', name)[0])


def timed(work):
    started = time.monotonic()
    work()
    return time.monotonic() - started


@contextlib.contextmanager
def load(name):
    """A list that gets the slices of a load, which goes on meanwhile."""
    over, slices = threading.Event(), []

    def loading():
        while not over.is_set():
            slices.append(collection.limited_load(name, SLICE))
    with ThreadPoolExecutor() as pool:
        loader = pool.submit(loading)
        time.sleep(2)
        try:
            yield slices
        finally:
            over.set()
        loader.result()
