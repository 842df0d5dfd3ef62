"""The same flow over each kind of connection: psycopg's, asyncpg's, SQLAlchemy's and Django's."""

import asyncio
import contextlib
import traceback

import asyncpg
import psycopg2
import psycopg_pool
import pytest

import kinds
from kinds import of, plain
from pg_idempotency import (AsyncIdempotency, BadArgument, CommitRolledBack, Completion, Declined, FakeClock,
                            Idempotency, IdempotencyError, KeyReused, NotDone, NotReady, Response, sqlstate_of)


@pytest.mark.parametrize("client, given", [
    (Idempotency, None), (Idempotency, "password=secret"), (AsyncIdempotency, "password=secret"),
    (Idempotency, psycopg_pool.AsyncConnectionPool("", open=False)),
    (AsyncIdempotency, psycopg_pool.ConnectionPool("", open=False)),
    (AsyncIdempotency, asyncpg.create_pool(loop=asyncio.new_event_loop()))])
def test_what_gives_no_connections_is_refused_and_not_quoted(client, given):
    with pytest.raises(TypeError, match=r"Idempotency needs a ((?!secret).)*$"):
        client(given)


def test_what_is_no_pool_of_psycopg_is_refused(admin, key):
    with pytest.raises(TypeError, match="needs a pool"):
        Idempotency(admin)
    with pytest.raises(TypeError, match="no connection of psycopg 3"):
        Idempotency(lambda: psycopg2.connect("")).transaction(key, None, plain)


def test_runs_once_and_replays(case, key, effects):
    given = []

    async def test(idem, on):
        async def work(tx, operation):
            given.append(tx)
            await on.insert(tx, key)
            return Response(201, {"X-A": "b", "n": 1}, {"p": None}, b"")

        async def serializable(tx, operation):
            await on.run(tx, "DO $$ BEGIN ASSERT current_setting('transaction_isolation') = 'serializable'; END $$")
        answers = [await idem.transaction(key, {"a": 1}, work) for _ in range(2)]
        with pytest.raises(KeyReused):
            await idem.transaction(key, {"a": 2}, work)
        for end in (ord("x"), ord("y")):
            with pytest.raises(KeyReused) if end == ord("y") else contextlib.nullcontext():
                await idem.transaction(key + "s", None, serializable, isolation="SERIALIZABLE", retention=60,
                                       max_lost_attempts=5, request_hash=b"x" * 31 + bytes([end]))
        assert await idem.expires_at(key + "s") is not None
        if on.kind.startswith("session"):
            assert not given[0].in_transaction()    # it is closed
        return [(one.outcome, one.code, one.headers, one.payload, one.body, one.replayed, one.attempt) for one in answers]
    assert case(test) == [
        ("COMPLETED", 201, {"X-A": "b", "n": 1}, {"p": None}, b"", replayed, 1) for replayed in (False, True)]
    assert effects() == 1


def test_text_that_the_database_cannot_hold_is_a_bad_argument(case, key):
    """Not the driver's own error: a message with it would come again and again."""
    async def test(idem, on):
        for name, request, scope in ((key + "\0", None, ""), (key + "\ud800", None, ""), (key, None, "s\0"),
                                     (key, None, "s\udfff"), (key, "é\ud800", "")):
            with pytest.raises(BadArgument):
                await idem.transaction(name, request, plain, scope=scope)
    case(test)


def test_no_error_quotes_a_request_or_a_response(case, key):
    """The driver's errors do, and a traceback shows what an error comes from."""
    unreadable, good, other = {"card": "4111\0"}, {"card": "4111 1"}, {"card": "4111 2"}

    async def test(idem, on):
        async def answers(tx, operation):
            return unreadable
        for request, work, state in ((unreadable, plain, "22P05"), (None, answers, "22P05"), (good, plain, "ID422")):
            with pytest.raises(IdempotencyError) as caught:
                await idem.transaction(key, request, work)
                await idem.transaction(key, other, plain)
            assert sqlstate_of(caught.value) == state
            assert "4111" not in "".join(traceback.format_exception(None, caught.value, None))

        async def begins(tx):
            await idem.begin_many(tx, [key], [unreadable])

        async def ends(tx):
            await idem.begin_many(tx, [key + "2"])
            await idem.complete_many(tx, [key + "2"], [unreadable])
        for work, error in ((begins, BadArgument), (ends, IdempotencyError)):
            with pytest.raises(error) as caught:
                await idem.run(work)
            assert "4111" not in "".join(traceback.format_exception(None, caught.value, None))
    case(test)


def test_what_rolls_back_leaves_nothing(case, key, effects):
    async def test(idem, on):
        async def declines(tx, operation):
            await on.insert(tx, key)
            raise Declined(402, {"no": 1}, headers={"a": "b"}, body=b"\0\xff")

        async def declines_spoiled(tx, operation):
            await catches(tx)
            raise Declined(409)

        async def breaks(tx, operation):
            await on.insert(tx, key)
            raise KeyError("the work's own")

        async def catches(tx, *operation):
            await on.insert(tx, key)
            with pytest.raises(Exception):
                await on.run(tx, "SELECT 1/0")

        async def refuses(tx, operation):
            await on.insert(tx, key)
            raise NotDone()

        async def refuses_spoiled(tx, operation):
            await catches(tx)
            raise NotDone()
        first, again = [await idem.transaction(key, None, declines) for _ in range(2)]
        for one in (first, again):
            assert (one.outcome, one.code, one.payload, one.headers, one.body, one.retry_after) == (
                "FAILED", 402, {"no": 1}, {"a": "b"}, b"\0\xff", None)
        assert (first.replayed, again.replayed) == (False, True)
        assert (await idem.transaction(key + "s", None, declines_spoiled)).code == 409
        with pytest.raises(KeyError, match="the work's own"):
            await idem.transaction(key + "e", None, breaks)
        with pytest.raises(CommitRolledBack):
            await idem.transaction(key + "e", None, catches)
        with pytest.raises(CommitRolledBack):
            await idem.run(catches)
        for refused in (refuses, refuses_spoiled):
            with pytest.raises(NotDone):
                await idem.transaction(key + "n", None, refused)
        assert (await idem.transaction(key + "n", None, plain, max_lost_attempts=1)).payload == "x"
        # no connection is left in use, and none in a transaction
        assert (await idem.transaction(key + "e", None, plain)).attempt == 1
    case(test, size=1)
    assert effects() == 0


@pytest.mark.parametrize("sql", ["DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$",
                                 "DO $$ BEGIN RAISE SQLSTATE '25P04'; END $$",
                                 "SET LOCAL idle_in_transaction_session_timeout = 1",
                                 "SELECT pg_terminate_backend(pg_backend_pid())"])
def test_what_may_help_is_repeated(case, key, effects, sql):
    tries = []

    async def test(idem, on):
        async def work(tx, operation):
            tries.append(operation.attempt)
            if len(tries) == 1:
                await on.run(tx, sql)
                await on.pause()
            await on.insert(tx, key)
        return (await idem.transaction(key, None, work)).outcome
    assert case(test) == "COMPLETED"
    assert (tries, effects()) == ([1, 1], 1)


@of("psycopg", "async psycopg", "session+psycopg", "django")
def test_a_session_that_was_idle_for_too_long_is_replaced(case, key, effects, admin):
    async def test(idem, on):
        async def idles(tx):
            await on.run(tx, "SET idle_session_timeout = 1")
            await on.run(tx, f"SET application_name = '{key}'")

        async def work(tx, operation):
            await on.insert(tx, key)

        def leased(operation, signal):
            return Completion(1, lambda tx: on.insert(tx, key))
        for style, work in (("transaction", work), ("lease", leased)):
            await idem.run(idles)
            while admin.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", (key,)).fetchone():
                await on.pause()
            assert (await getattr(idem, style)(key + style, None, work)).outcome == "COMPLETED"
    case(test, size=1)
    assert effects() == 2


@of(*[kind for kind in kinds.BLOCKING + kinds.ASYNC if "psycopg" not in kind or "+" in kind])
def test_no_server_is_an_error_after_the_last_try(case, tmp_path):
    """Pools that are opened before are not asked here."""
    retried = []

    async def test(idem, on):
        with pytest.raises(Exception) as raised:
            await idem.transaction("k", None, plain)
        assert not isinstance(raised.value, NotReady)
    case(test, host=str(tmp_path), hooks={"retried": retried.append})
    assert len(retried) == 4


@of("psycopg", "async psycopg", "asyncpg")
def test_a_pool_in_use_is_waited_for_once(case, key):
    retried = []

    async def test(idem, on):
        async def work(tx, operation):
            with pytest.raises(Exception, match=None if on.kind == "asyncpg" else "couldn't get a connection"):
                await idem.transaction(key + "2", None, plain)
        await idem.transaction(key, None, work)
    case(test, size=1, timeout=0.5, hooks={"retried": retried.append})
    assert retried == []


@of(*kinds.ASYNC[1:])
def test_cancelled_again_and_again(case, key, effects, admin):
    """A call that is cancelled gives its only connection back, and its statement ends: SQLAlchemy may leave that of asyncpg
    to the server."""
    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            await on.run(tx, "SELECT pg_sleep(60)")
        task = asyncio.ensure_future(idem.transaction(key, None, work))
        while not admin.execute("SELECT 1 FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'").fetchone():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await idem.transaction(key + "2", None, plain)).payload == "x"
        if on.kind.endswith("+asyncpg"):
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'")
        # the server may still be at its end for a moment
        return (await idem.transaction(key, None, plain, wait=20)).payload
    assert case(test, size=1) == "x"
    assert effects() == 0


def test_many(case, key, effects):
    keys = [key + "0", key + "1", key + '"\\2', key + "0"]
    requests = [{"n": 0}, {"n": 'quote " and \\'}, None, {"n": 0}]
    hashes = [None, None, b"x" * 32, None]

    async def test(idem, on):
        async def work(tx):
            operations = await idem.begin_many(tx, keys, requests, request_hashes=hashes)
            ours = [operation.key for operation in operations if operation.outcome == "ACQUIRED"]
            for _ in ours:
                await on.run(tx, f"INSERT INTO effect VALUES ('{key}', 1)")
            assert await idem.complete_many(tx, ours, [{"done": one} for one in ours]) == len(ours)
            return [(operation.outcome, operation.payload) for operation in operations]
        assert await idem.run(work) == [("ACQUIRED", None)] * 3 + [("IN_PROGRESS", None)]
        done = [("COMPLETED", {"done": one}) for one in keys]
        assert await idem.run(work) == done
        requests[1] = {"n": "another"}
        assert await idem.run(work) == [done[0], ("MISMATCH", None), *done[2:]]
        return (await idem.transaction(keys[1], None, plain)).payload
    assert case(test) == {"done": keys[1]}
    assert effects() == 3


@pytest.mark.parametrize("ending", [["ROLLBACK"], ["ROLLBACK", "BEGIN"]], ids=len)
def test_many_whose_work_ends_its_transaction_are_no_success(case, key, effects, ending):
    async def test(idem, on):
        async def work(tx):
            await idem.begin_many(tx, [key])
            await on.run(tx, f"INSERT INTO effect VALUES ('{key}', 1)")
            await idem.complete_many(tx, [key])
            for statement in ending:
                await on.run(tx, statement)
        with pytest.raises(Exception) as raised:
            await idem.run(work)
        assert sqlstate_of(raised.value) == "ID404"
    case(test)
    assert effects() == 0


def test_other_errors_of_the_database_are_not_repeated(case, key):
    tries, clock = [], FakeClock()

    async def test(idem, on):
        async def work(tx, operation):
            tries.append(1)
            await on.run(tx, "SELECT 1/0")
        with pytest.raises(Exception) as raised:
            await idem.transaction(key, None, work)
        return sqlstate_of(raised.value)
    assert (case(test, clock=clock), len(tries)) == ("22012", 1)
    assert clock.timers == []       # of the rollback
