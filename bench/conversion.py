"""What others notice while a living store gets a ring of tables, and while the ring goes.

A steady load goes on all the time. Each of its transactions must have left a row.
The server's log says how long somebody waited for a lock: latency shows the disk as well.
"""

import contextlib
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import collection
import partitions
import report
import server

NAME = 'conversion'
TIMES = 3                   # there and back
WAIT_P99_AT_MOST = 100      # ms, of those that waited
SLICE = 20                  # seconds of load at a time


def measure(name, rows, period, tell):
    """The entries, and the raw figures, for a store that is one table."""
    before = collection.state(name)
    idle = collection.limited_load(name, SLICE)
    busy, waits, seconds, done = [], [], [], len(idle)
    for number in range(TIMES):
        tell(f'{NAME}: {number + 1} of {TIMES}')
        with load(name) as slices, waits_for_locks() as waited:
            started = time.time()
            took = there_and_back(name, period)
            ended = time.time() + 0.5       # of those that waited
        done += sum(map(len, slices))
        busy.append([t for one in slices for t in one if started <= t.ended <= ended])
        waits.append(sorted(waited))
        seconds.append(took)
    collection.check(name, before, done)
    longest = [max(t.ms for t in one) for one in busy]
    title = f'while a store of {rows} rows gets a ring of tables and the ring goes'
    return [
        report.row(f'p99 of the waits for a lock in ms {title}',
                   [collection.quantile([0, 0, *one], 99) for one in waits], WAIT_P99_AT_MOST, at_most=True),
        report.row('… longest wait', [max([0, *one]) for one in waits], None),
        report.row('… waits of a millisecond or longer', [len(one) for one in waits], None),
        report.row('… p99 latency in ms', [collection.p99([one], 'ms') for one in busy], None),
        report.row('… idle p99', [collection.p99([idle], 'ms')], None),
        report.row('… longest transaction in ms', longest, None),
        report.row('… longest idle one', [max(t.ms for t in idle)], None),
        *(report.row(f'… seconds for {what}', [took[what] for took in seconds], None) for what in seconds[0]),
    ], [{'workload': NAME, 'rows': rows, 'seconds': seconds, 'longest_ms': longest, 'waits_ms': waits,
         'idle': collection.summary([idle]), 'busy': collection.summary(busy)}]


def there_and_back(name, period):
    """Seconds of each part."""
    return {
        'idem_partition_store': timed(lambda: server.sql(f"SELECT idem_partition_store('{period}')", name)),
        'the ranges': timed(lambda: partitions.make_ring(name, period)),
        'idem_unpartition_store': timed(lambda: server.sql('SELECT idem_unpartition_store()', name)),
        'the empty tables to go': timed(lambda: server.sql('SELECT idem_gc()', name)),
    }


def timed(work):
    started = time.monotonic()
    work()
    return time.monotonic() - started


@contextlib.contextmanager
def waits_for_locks():
    """A list that gets the milliseconds of each wait for a lock, of any session, from one millisecond on."""
    collection.configure(log_lock_waits='on', deadlock_timeout="'1ms'")
    waits = []
    with open(os.environ['IDEM_LOG']) as log:
        log.seek(0, os.SEEK_END)
        yield waits
        waits += map(float, re.findall(r'acquired \w+ on .* after ([\d.]+) ms', log.read()))
    collection.configure(log_lock_waits=None, deadlock_timeout=None)


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
