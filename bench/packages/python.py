"""Payments by the package of Python, and by hand. See __init__.py."""

import hashlib
import json
import os
import random
import re
import sys
import threading
import time
import uuid

import psycopg
from psycopg_pool import ConnectionPool

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../clients/python'))
from pg_idempotency import Idempotency, Response  # noqa: E402

ORDER = json.loads(sys.argv[1])
RETRIED = re.compile(r'40001|40P01|08...|57P0[123]')
pool = ConnectionPool('', min_size=ORDER['clients'], max_size=ORDER['clients'], open=True)
idempotency = Idempotency(pool, scope='payments')


def pay(tx):
    """The business."""
    account, amount = random.randint(1, ORDER['accounts']), random.randint(1, 100)
    tx.execute('UPDATE accounts SET balance = balance - %s WHERE id = %s', (amount, account))
    tx.execute('INSERT INTO payments (account, amount) VALUES (%s, %s)', (account, amount))
    return ORDER['response']


def by_package(key):
    return idempotency.transaction(key, ORDER['request'], lambda tx, operation: Response(201, payload=pay(tx)))


class Declined(Exception):
    pass


def glue(tx, key):
    """What the package does, in the way that people write it: a statement at a time."""
    operation = tx.execute(
        'SELECT outcome, response_code, response_payload FROM idem_begin(%s, %s::jsonb, scope => %s)',
        (key, json.dumps(ORDER['request']), 'payments')).fetchone()
    if operation[0] != 'ACQUIRED':
        return
    tx.execute('SAVEPOINT work')
    try:
        tx.execute('SELECT idem_complete(%s, %s::jsonb, scope => %s, code => %s)', (key, json.dumps(pay(tx)), 'payments', 201))
    except Declined:
        tx.execute('ROLLBACK TO SAVEPOINT work')
        tx.execute('SELECT idem_fail(%s, %s::jsonb, scope => %s, code => %s)', (key, None, 'payments', 402))


def hand(tx, key):
    """A table of one's own: lock or insert, later update."""
    digest = hashlib.sha256(json.dumps(ORDER['request']).encode()).digest()
    stored = tx.execute("SELECT status, request_hash, response_payload FROM hand_store"
                        " WHERE scope = '' AND idempotency_key = %s FOR UPDATE", (key,)).fetchone()
    if stored:
        return
    tx.execute("INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)"
               " VALUES (%s, %s, 'PENDING', now() + interval '1 day')", (key, digest))
    tx.execute("UPDATE hand_store SET status = 'COMPLETED', response_payload = %s::jsonb, updated_at = clock_timestamp()"
               " WHERE scope = '' AND idempotency_key = %s", (json.dumps(pay(tx)), key))


def bare(tx, key):
    pay(tx)


def in_transaction(work):
    """Begins and commits, and repeats what may be repeated."""
    def deliver(key):
        for attempt in range(1, 6):
            try:
                with pool.connection() as tx:
                    work(tx, key)
                    if tx.execute('COMMIT').statusmessage != 'COMMIT':
                        raise RuntimeError('rolled back')
                    return
            except psycopg.Error as error:
                if attempt == 5 or not RETRIED.fullmatch(error.sqlstate or ''):
                    raise
                time.sleep(random.random() * 0.05 * 2 ** attempt)
    return deliver


def client(deliver, end, counts):
    """Delivers operations until a time."""
    count = 0
    while time.monotonic() < end:
        deliver(str(uuid.uuid4()))
        count += 1
    counts.append(count)


def until(deliver, end):
    """How many operations end until a time."""
    counts = []
    threads = [threading.Thread(target=client, args=(deliver, end, counts)) for _ in range(ORDER['clients'])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < len(threads):
        sys.exit('a client has failed')
    return sum(counts)


def main():
    deliver = {'package': by_package, 'glue': in_transaction(glue), 'hand': in_transaction(hand),
               'bare': in_transaction(bare)}[ORDER['variant']]
    pool.wait()
    before = until(deliver, time.monotonic() + ORDER['warmup'])
    began = time.monotonic()
    timed = until(deliver, began + ORDER['seconds'])
    throughput = timed / (time.monotonic() - began)
    pool.close()
    print(json.dumps({'transactions': before + timed, 'throughput': throughput}))


main()
