"""The same flow over asyncpg, and over SQLAlchemy's async engines."""

import asyncio
import contextlib
import json

import asyncpg
import pytest
import sqlalchemy
import test_sources
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from conftest import QUICK
from pg_idempotency import (AsyncIdempotency, CommitRolledBack, Completion, Declined, FakeClock, KeyReused, LeaseLost, NotDone,
                            NotReady, sqlstate_of)
from pg_idempotency.asyncpg import AsyncpgSource
from pg_idempotency.sqlalchemy import AsyncSQLAlchemySource

KINDS = ["asyncpg", "connection+asyncpg", "session+asyncpg", "session+psycopg"]


@contextlib.asynccontextmanager
async def client_of(kind, host=None, size=2, timeout=20, **settings):
    """An AsyncIdempotency, and how its connections run a statement. ``timeout``: seconds that a connection may take."""
    settings = {"retry": QUICK, **settings}
    if kind == "asyncpg":
        async def as_json(connection):
            # of the user's: the package's own statements must not care
            await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with asyncpg.create_pool(host=host, min_size=1, max_size=size, init=as_json) as pool:
            yield AsyncIdempotency(AsyncpgSource(pool, timeout=timeout), **settings), lambda tx, sql: tx.execute(sql)
        return
    style, driver = kind.split("+")
    engine = create_async_engine(f"postgresql+{driver}://" + (f"?host={host}" if host else ""), pool_size=size,
                                 connect_args={"timeout" if driver == "asyncpg" else "connect_timeout": timeout})
    source = AsyncSQLAlchemySource(engine, async_sessionmaker() if style == "session" else None)
    try:
        yield AsyncIdempotency(source, **settings), lambda tx, sql: tx.execute(sqlalchemy.text(sql))
    finally:
        await engine.dispose()


@pytest.fixture(params=KINDS)
def case(request):
    """Runs a coroutine function of a client and of how a statement is run."""
    def start(test, **options):
        async def body():
            async with client_of(request.param, **options) as (idem, do):
                return await test(idem, do)
        return asyncio.run(body())
    start.kind = request.param
    return start


def insert(key):
    return f"INSERT INTO effect VALUES ('{key}', 1)"


def test_runs_once_and_replays(case, key, effects):
    async def test(idem, do):
        async def work(tx, operation):
            await do(tx, insert(key))
            return {"name": key}
        first = await idem.transaction(key, {"a": 1}, work, request_hash=None)
        again = await idem.transaction(key, {"a": 1}, work)
        with pytest.raises(KeyReused):
            await idem.transaction(key, {"a": 2}, work)
        await idem.transaction(key + "s", None, lambda tx, operation: "x", isolation="SERIALIZABLE", retention=60,
                               max_lost_attempts=5, request_hash=b"x" * 32)
        return first.replayed, again.replayed, again.payload, (await idem.expires_at(key + "s")) is not None
    assert case(test) == (False, True, {"name": key}, True)
    assert effects() == 1


def test_what_rolls_back_leaves_nothing(case, key, effects):
    async def test(idem, do):
        async def declines(tx, operation):
            await do(tx, insert(key))
            raise Declined(402, {"no": 1}, headers={"a": "b"}, body=b"\0\xff")

        async def breaks(tx, operation):
            await do(tx, insert(key))
            raise KeyError("own")

        async def catches(tx, *operation):
            await do(tx, insert(key))
            with pytest.raises(Exception):
                await do(tx, "SELECT 1/0")
        assert (await idem.transaction(key, None, declines)).code == 402
        replay = await idem.transaction(key, None, declines)
        assert (replay.replayed, replay.payload, replay.headers, replay.body) == (True, {"no": 1}, {"a": "b"}, b"\0\xff")
        with pytest.raises(KeyError):
            await idem.transaction(key + "2", None, breaks)
        with pytest.raises(CommitRolledBack):
            await idem.transaction(key + "3", None, catches)

        async def refuses(tx, operation):
            await catches(tx)
            raise NotDone()
        for again in range(2):
            with pytest.raises(NotDone):    # and it is no lost attempt
                await idem.transaction(key + "5", None, refuses, max_lost_attempts=1)
        with pytest.raises(CommitRolledBack):
            await idem.run(catches)
        # no connection is left in use, and none in a transaction
        assert (await idem.transaction(key + "4", None, lambda tx, operation: "x")).payload == "x"
    case(test, size=1)
    assert effects() == 0


def test_a_session_that_is_ended_unflushed_does_not_pass_as_success(key, effects):
    async def test():
        async with client_of("session+psycopg") as (idem, do):
            async def work(tx, operation):
                tx.add(test_sources.Effect(name=key, value=1))
                await tx.close()
            with pytest.raises(CommitRolledBack, match="not flushed"):
                await idem.transaction(key, None, work)
    asyncio.run(test())


@pytest.mark.parametrize("sql, lost", [
    ("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$", False),
    ("SELECT pg_terminate_backend(pg_backend_pid())", True)])
def test_what_may_help_is_repeated(case, key, effects, sql, lost):
    tries = []

    async def test(idem, do):
        async def work(tx, operation):
            tries.append(1)
            if len(tries) == 1:
                await do(tx, sql)
            await do(tx, insert(key))
        return (await idem.transaction(key, None, work)).outcome
    assert case(test) == "COMPLETED"
    assert (len(tries), effects()) == (2, 1)


def test_no_server_is_an_error_after_the_last_try(tmp_path):
    """asyncpg's pool connects when it is opened, so it is not asked here."""
    retried = []

    async def test():
        for kind in KINDS[1:]:
            async with client_of(kind, host=tmp_path, hooks={"retried": retried.append}) as (idem, _):
                with pytest.raises(Exception) as raised:
                    await idem.transaction("k", None, lambda tx, operation: 1)
                assert not isinstance(raised.value, NotReady)
    asyncio.run(test())
    assert len(retried) == 4 * len(KINDS[1:])


def test_leases(case, key, effects, admin):
    clock = FakeClock()

    def lease_end():
        return admin.execute("SELECT lease_expires_at FROM idempotency_store WHERE idempotency_key = %s",
                             (key + "2",)).fetchone()[0]

    async def test(idem, do):
        result = await idem.lease(key, None, lambda operation, signal: Completion("ok", lambda tx: do(tx, insert(key))))
        assert result.payload == "ok"
        assert (await idem.lease(key, None, lambda operation, signal: 1 / 0)).replayed

        async def slow(operation, signal):
            ends = [lease_end()]
            for _ in range(3):
                await clock.advance_async(10)
                ends.append(lease_end())
            return ends == sorted(set(ends))
        assert (await idem.lease(key + "2", None, slow, lease=30)).payload is True
    case(test, clock=clock)
    assert effects() == 1


def test_a_server_that_hangs_costs_the_lease_and_no_more(case, key, proxy):
    """The end gets no answer: the connection is cut after as long as a lease lasts."""
    async def test(idem, do):
        def work(operation, signal):
            proxy.hang()
            return "x"
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(idem.lease(key, None, work, lease=1), 60)
    case(test, host=proxy.directory, timeout=2)


def test_cancelled_again_and_again(case, key, effects, admin):
    """A call that is cancelled gives its only connection back, and its statement ends: SQLAlchemy may leave that of asyncpg
    to the server."""
    async def test(idem, do):
        async def work(tx, operation):
            await do(tx, insert(key))
            await do(tx, "SELECT pg_sleep(60)")
        task = asyncio.ensure_future(idem.transaction(key, None, work))
        while not admin.execute("SELECT 1 FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'").fetchone():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await idem.transaction(key + "2", None, lambda tx, operation: "x")).payload == "x"
        if case.kind.endswith("+asyncpg"):
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'")
        # the server may still be at its end for a moment
        return (await idem.transaction(key, None, lambda tx, operation: "x", wait=20)).payload
    assert case(test, size=1) == "x"
    assert effects() == 0


def test_many(case, key):
    async def test(idem, do):
        async def work(tx):
            keys = [key, key + '"\\2']
            operations = await idem.begin_many(tx, keys, [{"n": 1}, None], request_hashes=[None, b"x" * 32])
            new = [operation.key for operation in operations if operation.outcome == "ACQUIRED"]
            await idem.complete_many(tx, new, ["done", None][:len(new)])
            return [(operation.outcome, operation.payload) for operation in operations]
        return await idem.run(work), await idem.run(work)
    assert case(test) == ([("ACQUIRED", None)] * 2, [("COMPLETED", "done"), ("COMPLETED", None)])


def test_a_transaction_of_asyncpg_in_the_work_is_a_savepoint(key, effects):
    async def test():
        async with client_of("asyncpg") as (idem, do):
            async def work(tx, operation):
                await do(tx, insert(key))
                with pytest.raises(asyncpg.DivisionByZeroError):
                    async with tx.transaction():
                        await do(tx, "SELECT 1/0")
            return (await idem.transaction(key, None, work)).outcome
    assert asyncio.run(test()) == "COMPLETED"
    assert effects() == 1


def test_sqlstates_are_found(case, key):
    async def test(idem, do):
        with pytest.raises(Exception) as raised:
            await idem.transaction(key, None, lambda tx, operation: do(tx, "SELECT 1/0"))
        return sqlstate_of(raised.value)
    assert case(test) == "22012"
