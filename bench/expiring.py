"""What it costs that tables of a large store expire: time, WAL, dead rows, and the latency of others."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import collection
import report
import server

NAME = 'expiring'

WAL_AT_MOST = 10            # MB
P99_AT_MOST = 1.2           # over the idle one


def measure(name, rows, tell):
    """Two tables that are over are emptied on an idle server, one under load."""
    for days in (3, 5):
        tell(f'{NAME}: making {rows} expired rows')
        make_over(name, rows, days)
    server.sql('VACUUM (ANALYZE); CHECKPOINT', name)
    collection.warm(name)
    idle = [collection.limited_load(name, 10) for _ in range(3)]
    dead, wal, started = dead_rows(name), server.costs_of_wal(), time.monotonic()
    tell(f'{NAME}: emptying a table')
    for _ in range(2):      # one a call
        server.sql('SELECT idem_gc()', name)
    seconds, wal, dead = time.monotonic() - started, server.costs_of_wal() - wal, dead_rows(name) - dead
    make_over(name, rows, 7)
    bytes_over = bytes_that_are_over(name)
    server.sql('CHECKPOINT', name)
    collection.warm(name)
    tell(f'{NAME}: emptying a table under load')
    busy = load_while(lambda: server.sql('SELECT idem_gc()', name), name)
    left = int(server.sql("SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE '%over'", name)[0])
    if left > 0:
        raise server.BenchError(f'{left} expired rows are left')
    tell(f'{NAME}: removing a file under load')
    removing = load_while(file_to_remove(name, bytes_over), name)
    figures = {'expired': 2 * rows, 'seconds': seconds, 'wal_mb': wal / 2**20, 'dead': dead,
               'idle': collection.summary(idle), 'busy': collection.summary([busy]),
               'removing': collection.summary([removing]), 'removed_bytes': bytes_over}
    return [
        report.row(f'MB of WAL when {2 * rows} rows expire', [wal / 2**20], WAL_AT_MOST, at_most=True),
        report.row('… seconds', [seconds], None),
        report.row('… dead rows', [dead], 0, at_most=True),
        report.row('… p99 latency meanwhile / idle', [collection.p99([busy], 'ms') / collection.p99(idle, 'ms')],
                   P99_AT_MOST, at_most=True),
        report.row('… the same while a mere file of that size is removed',
                   [collection.p99([removing], 'ms') / collection.p99(idle, 'ms')], None)], {'expiry': figures}


def make_over(name, rows, days):
    """A table of the ring with records that have expired: an empty one, else that whose time comes first."""
    (table, *_) = server.sql("""
        SELECT name FROM idempotency_partitions WHERE state <> 'over'
        ORDER BY pg_relation_size(name::regclass) > 0, range_start LIMIT 1""", name)
    server.sql(f"""
        TRUNCATE {table};
        INSERT INTO {table} (idempotency_key, request_hash, status, response_payload, expires_at)
            SELECT md5(i::text) || 'over', '{server.request_hash()}', 'COMPLETED', '{server.RESPONSE}',
                now() - interval '{days} days' + interval '1 hour' FROM generate_series(1, {rows}) i;
        UPDATE idempotency_ring SET range_start = now() - interval '{days} days', range_end = now() - interval '{days - 1} days'
            WHERE name = '{table}'""", name)


def bytes_that_are_over(name):
    return int(server.sql("SELECT sum(bytes) FROM idempotency_partitions WHERE state = 'over'", name)[0])


def file_to_remove(name, size):
    """Makes a file beside those of the server; returns what removes it.

    The disk has to do this much, whoever asks for it: no store can do better.
    """
    folder = server.sql('SHOW data_directory', name)[0]
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        for _ in range(size // 2**20):
            file.write(os.urandom(2**20))
        os.fsync(file.fileno())
    return lambda: os.unlink(file.name)


def load_while(run, name):
    """The transactions of a load that ended while something ran, or within five seconds."""
    with ThreadPoolExecutor() as pool:
        slices = pool.submit(collection.limited_load, name, 20)
        time.sleep(2)
        started = time.time()
        run()
        ended = max(time.time(), started + 5)
        return [t for t in slices.result() if started <= t.ended <= ended]


def dead_rows(name):
    """Row versions that vacuum has to remove, of all parts of the store."""
    return int(server.sql("""
        SELECT pg_stat_force_next_flush();
        SELECT coalesce(sum(n_tup_del + n_tup_upd), 0) FROM pg_stat_user_tables
            WHERE relname LIKE 'idempotency_store%'""", name)[-1])
