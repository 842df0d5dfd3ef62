"""What is prepared on a connection of the server's own, and that nothing is behind a pooler."""

import asyncio

import psycopg
import psycopg_pool
import pytest

from conftest import QUICK, insert
from pg_idempotency import BadArgument, Idempotency
from pg_idempotency.pipeline import Prepared, as_text

OURS = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pg_idempotency%'"


@pytest.fixture
def one():
    """A pool of one connection."""
    with psycopg_pool.ConnectionPool("", min_size=1, max_size=1) as pool:
        yield pool


@pytest.fixture
def idem(one):
    return Idempotency(one, retry=QUICK)


def prepared(tx, *_):
    """How many statements of the package this connection has."""
    return tx.execute(OURS, prepare=False).fetchone()[0]


def test_begin_and_complete_are_prepared(one, idem, key):
    counts = [idem.transaction(f"{key}-{n}", None, prepared).payload for n in range(3)]
    with one.connection() as connection:
        counts.append(prepared(connection))
    assert counts == [0, 2, 2, 2]


def test_nothing_is_prepared_behind_pgbouncer(pgbouncer, key):
    with psycopg_pool.ConnectionPool(pgbouncer, min_size=1, max_size=1) as pool:
        idem = Idempotency(pool, retry=QUICK)
        assert [idem.transaction(f"{key}-{n}", None, prepared).payload for n in range(4)] == [0] * 4


def test_a_statement_that_failed_when_it_was_new(idem, key):
    idem.transaction(key, None, insert(key))
    for _ in range(2):
        with pytest.raises(BadArgument):
            idem.transaction("x" * 256, None, insert(key))
    assert idem.transaction(key + "again", None, insert(key)).outcome == "COMPLETED"


def test_statements_that_somebody_threw_away(one, idem, key, effects):
    runs = []

    def work(tx, operation):
        runs.append(insert(key)(tx, operation))
        if len(runs) == 1:
            # past psycopg, which would forget its own as well
            tx.pgconn.exec_(b"DEALLOCATE ALL")
    for n in range(3):
        idem.transaction(f"{key}-{n}", None, prepared)
    with one.connection() as connection:
        connection.autocommit = True
        connection.pgconn.exec_(b"DISCARD ALL")
        connection.autocommit = False
    assert idem.transaction(key + "discarded", None, insert(key)).outcome == "COMPLETED"
    with psycopg_pool.ConnectionPool("", min_size=1, max_size=1) as pool:
        other = Idempotency(pool, retry=QUICK)
        for n in range(3):
            other.transaction(f"{key}-other-{n}", None, prepared)
        assert other.transaction(key + "within", None, work).outcome == "COMPLETED"
    assert (len(runs), effects()) == (2, 2)


def test_a_statement_that_was_prepared_and_not_noted(one, idem, key, effects):
    """The exception of a signal, such as Celery's soft time limit, may come between the two."""
    for n in range(2):
        idem.transaction(f"{key}-{n}", None, prepared)
    with one.connection() as connection:
        Prepared.on(connection).names.clear()
    for n in range(2):
        assert idem.transaction(f"{key}-again-{n}", None, insert(key)).outcome == "COMPLETED"
    assert effects() == 2


def test_a_text_of_any_encoding(key):
    def connect():
        return psycopg.connect("", client_encoding="latin1")
    idem = Idempotency(connect, retry=QUICK)
    for _ in range(2):
        assert idem.transaction(key + "é", {"name": "é"}, lambda tx, operation: "ä").payload == "ä"


def test_nul_in_a_key_is_refused(idem, key):
    """It does not become the key that ends before it."""
    with pytest.raises(psycopg.DataError):
        as_text(key + "\0x", "utf-8")
    with pytest.raises(BadArgument):
        idem.transaction(key + "\0x", None, insert(key))
    assert not idem.transaction(key, None, insert(key)).replayed


def test_a_begin_that_is_cancelled(run, key, admin):
    """The connection is not used again: its answers are still to come."""
    async def work(tx, operation):
        return 1

    async def body(idem):
        with psycopg.connect("") as owner:
            owner.execute("LOCK TABLE idempotency_store")
            task = asyncio.ensure_future(idem.transaction(key, None, work))
            while admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()[0] == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            owner.rollback()
        # the server may not have noticed yet that nobody waits for the first begin
        return await idem.transaction(key, None, work, wait=60)
    assert run(body, size=1).outcome == "COMPLETED"
