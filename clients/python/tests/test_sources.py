"""The same flow over each kind of connection: psycopg's, asyncpg's, SQLAlchemy's and Django's."""

import asyncio
import contextlib
import threading
import traceback

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from django.db import connection, transaction

import kinds
from conftest import run_out
from pg_idempotency import (NOT_DONE, AsyncIdempotency, BadArgument, CommitRolledBack, Completion, Declined, FakeClock,
                            Idempotency, IdempotencyError, Json, KeyReused, LeaseLost, NotDone, NotReady, Response,
                            TooLarge, Unknown, Unstorable, drive, flow, sqlstate_of)
from pg_idempotency.django import DjangoSource
from pg_idempotency.errors import BadOption, is_unreachable, means_lost


@pytest.fixture(params=kinds.BLOCKING + kinds.ASYNC)
def case(request):
    """Runs a coroutine function of a client of one kind, and of what work does there."""
    def start(test, **options):
        async def body():
            async with kinds.client_of(request.param, **options) as idem:
                return await test(idem, kinds.On(request.param))
        return (asyncio.run if request.param in kinds.ASYNC else kinds.finish)(body())
    return start


def of(*some):
    """The test is for these kinds alone."""
    return pytest.mark.parametrize("case", some, indirect=True)


@pytest.fixture
def impatient(monkeypatch):
    """What a hanging database is waited for at the end of a lease is the lease."""
    monkeypatch.setattr("pg_idempotency.lease.PATIENCE", 0)


def plain(tx, operation):
    return "x"


@pytest.mark.parametrize("client, given", [
    (Idempotency, None), (Idempotency, "password=secret"), (AsyncIdempotency, "password=secret"),
    (Idempotency, psycopg_pool.AsyncConnectionPool("", open=False)),
    (AsyncIdempotency, psycopg_pool.ConnectionPool("", open=False)),
    (AsyncIdempotency, asyncpg.create_pool(loop=asyncio.new_event_loop()))])
def test_what_gives_no_connections_is_refused_and_not_quoted(client, given):
    with pytest.raises(TypeError, match=r"Idempotency needs a ((?!secret).)*$"):
        client(given)


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


@pytest.mark.parametrize("end", ["close", "reset", "rollback"])
@pytest.mark.parametrize("change", ["new", "modified", "deleted"])
@of("session+psycopg2", "session+psycopg")
def test_a_session_that_is_ended_unflushed_does_not_pass_as_success(case, key, effects, admin, end, change):
    admin.execute("INSERT INTO effect VALUES (%s, 1)", (key,))

    async def test(idem, on):
        async def work(tx, operation):
            if change == "new":
                await on.insert(tx, key + "2")
            else:
                effect = await kinds.awaited(tx.get(kinds.Effect, key))
                if change == "modified":
                    effect.value = 2
                else:
                    await kinds.awaited(tx.delete(effect))
            await kinds.awaited(getattr(tx, end)())
            await kinds.awaited(tx.close())     # once more, with no change left

        async def declined(tx, operation):
            await on.insert(tx, key + "2")
            await kinds.awaited(tx.close())
            raise Declined(402)

        async def flushed(tx, operation):
            await on.insert(tx, key)
            await kinds.awaited(tx.flush())
            await kinds.awaited(tx.close())

        async def taken_back(tx, operation):
            await on.insert(tx, key)
            await kinds.awaited(tx.flush())
            await kinds.awaited(tx.rollback())
        with pytest.raises(Exception) as raised:
            await idem.transaction(key + "t", None, taken_back)
        assert sqlstate_of(raised.value) == "ID404"
        with pytest.raises(CommitRolledBack, match="not flushed"):
            await idem.transaction(key, None, work)
        assert (await idem.transaction(key + "d", None, declined)).code == 402
        assert not (await idem.transaction(key, None, flushed)).replayed
    case(test)
    assert effects() == 2


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


@pytest.mark.parametrize("cut, replayed", [("lose", True), ("before", False)])
def test_a_lost_answer_to_commit(case, proxy, key, effects, cut, replayed):
    async def test(idem, on):
        async def work(tx, operation):
            if not proxy.hits:
                proxy.arm(cut)
            await on.insert(tx, key)
            return {"name": key}
        return await idem.transaction(key, {"a": 1}, work)
    result = case(test, host=proxy.directory)
    assert (result.outcome, result.replayed, result.payload) == ("COMPLETED", replayed, {"name": key})
    assert (proxy.hits, effects()) == (1, 1)


@pytest.mark.parametrize("begins", [False, True])
def test_a_lost_answer_to_the_commit_of_no_operation(case, proxy, key, effects, begins):
    """Where it has begun none, nothing would tell its repeat that it has taken effect."""
    runs = []

    async def test(idem, on):
        async def work(tx):
            if not proxy.hits:
                proxy.arm("lose")
            runs.append([one.outcome for one in await idem.begin_many(tx, [key])] if begins else None)
            if runs[-1] != ["COMPLETED"]:
                await on.insert(tx, key)
            if runs[-1] == ["ACQUIRED"]:
                await idem.complete_many(tx, [key])
        if begins:
            return await idem.run(work)
        with pytest.raises(Exception) as caught:
            await idem.run(work)
        assert is_unreachable(caught.value) or means_lost(sqlstate_of(caught.value))
    case(test, host=proxy.directory)
    assert (runs, proxy.hits, effects()) == ([["ACQUIRED"], ["COMPLETED"]] if begins else [None], 1, 1)


def test_a_lost_answer_to_the_commit_of_replays(case, proxy, key, effects):
    """Where all that it began had ended before, nothing tells of it, either."""
    async def test(idem, on):
        async def done(tx, operation):
            pass

        async def work(tx):
            proxy.arm("lose")
            await idem.begin_many(tx, [key])
            await on.insert(tx, key)
        await idem.transaction(key, None, done)
        with pytest.raises(Exception) as caught:
            await idem.run(work)
        assert is_unreachable(caught.value) or means_lost(sqlstate_of(caught.value))
    case(test, host=proxy.directory)
    assert (proxy.hits, effects()) == (1, 1)


def test_the_session_of_a_lost_connection_is_waited_for(case, proxy, key, admin, effects):
    """It waits for a lock when its connection ends, so it does not notice that, and still has the key."""
    ended = []

    async def test(idem, on):
        async def work(tx, operation):
            await on.run(tx, "SELECT pg_advisory_xact_lock(1)")
            await on.insert(tx, key)
        ended.append(await idem.transaction(key, None, work))

    def until_wait(count):
        while thread.is_alive() and admin.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (count,):
            thread.join(0.01)
    admin.execute("SELECT pg_advisory_lock(1)")
    thread = threading.Thread(target=lambda: case(test, host=proxy.directory))
    thread.start()
    until_wait(1)
    proxy.cut()
    until_wait(2)
    admin.execute("SELECT pg_advisory_unlock(1)")
    thread.join()
    assert [(result.outcome, result.replayed) for result in ended] == [("COMPLETED", False)]
    assert effects() == 1


@of("psycopg", "async psycopg")
def test_connections_come_back_as_they_were(case, key):
    async def test(idem, on):
        async def breaks(tx, operation):
            raise KeyError("the work's own")
        pool = getattr(idem, "idem", idem).driver.source.pool

        async def state():
            lent = pool.connection()
            if on.kind == "psycopg":
                with lent as connection:
                    return connection.autocommit, connection.prepare_threshold, connection.info.backend_pid
            async with lent as connection:
                return connection.autocommit, connection.prepare_threshold, connection.info.backend_pid
        before = await state()
        await idem.transaction(key, None, plain)
        with pytest.raises(KeyError):
            await idem.transaction(key + "x", None, breaks)
        assert await state() == before
    case(test, size=1)


@of("psycopg", "async psycopg")
def test_a_connection_in_a_transaction_is_refused(case, key, monkeypatch):
    """What its user has written would commit with the operation."""
    async def test(idem, on):
        pool = getattr(idem, "idem", idem).driver.source.pool
        used = await kinds.awaited(pool.getconn())
        await on.insert(used, key)
        with monkeypatch.context() as patch, pytest.raises(psycopg.ProgrammingError, match="not free: .* is INTRANS"):
            patch.setattr(pool, "connection", lambda: contextlib.nullcontext(used))
            await idem.transaction(key, None, plain)
        await kinds.awaited(used.rollback())
        await kinds.awaited(pool.putconn(used))
    case(test, size=1)


@pytest.mark.parametrize("prepare, prepared", [(False, 0), (True, 1)])
@of("psycopg", "async psycopg")
def test_statements_are_prepared_only_when_asked_for(case, key, prepare, prepared):
    async def test(idem, on):
        async def work(tx, operation):
            for _ in range(8):
                await kinds.awaited(tx.execute("SELECT %s::int", (1,)))
            found = await kinds.awaited(tx.execute("SELECT count(*) FROM pg_prepared_statements"))
            return (await kinds.awaited(found.fetchone()))[0]
        return (await idem.transaction(key, None, work)).payload
    assert case(test, size=1, prepare=prepare) == prepared


@pytest.mark.parametrize("statements, refusal", [(0, None), (1, None), (5, None), (1, Declined(402)), (1, NotDone())])
@of("psycopg", "async psycopg")
def test_two_round_trips_more_than_the_work(case, proxy, key, statements, refusal):
    counts = []

    async def test(idem, on):
        for name in (key + "warm", key, key):
            async def work(tx, operation):
                for _ in range(statements):
                    await on.insert(tx, key)
                if refusal:
                    raise refusal
            proxy.reset()
            with contextlib.suppress(NotDone):
                await idem.transaction(name, {"a": 1}, work)
            counts.append((proxy.trips, proxy.flushes))
    case(test, host=proxy.directory, size=1)
    replay = statements + 2 if isinstance(refusal, NotDone) else 2
    assert counts[1:] == [(statements + 2, 0), (replay, 0)]


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


def test_leases(case, key, effects, lease_end):
    clock = FakeClock()

    async def test(idem, on):
        def work(operation, signal):
            return Completion("ok", lambda tx: on.insert(tx, key))
        first, again = [await idem.lease(key, None, work) for _ in range(2)]
        assert [(one.payload, one.replayed) for one in (first, again)] == [("ok", False), ("ok", True)]

        async def slow(operation, signal):
            ends = [lease_end(operation.key)]
            for _ in range(3):
                await on.advance(clock, 10)
                ends.append(lease_end(operation.key))
            assert len(clock.timers) == 2       # the next beat, and the end of the lease
            return ends == sorted(set(ends))
        assert (await idem.lease(key + "2", None, slow, lease=30)).payload is True
        assert clock.timers == []
    case(test, clock=clock)
    assert effects() == 1


@pytest.mark.parametrize("cut, replayed", [("lose", True), ("before", False)])
def test_a_lost_answer_at_the_end_of_a_lease(case, proxy, key, effects, cut, replayed):
    """The end was committed and nobody was told: the repeat gets ID409, and then the replay."""
    async def test(idem, on):
        def work(operation, signal):
            proxy.arm(cut)
            return Completion({"charge": 1}, lambda tx: on.insert(tx, key))
        return await idem.lease(key, None, work)
    result = case(test, host=proxy.directory)
    assert (result.outcome, result.payload, result.replayed) == ("COMPLETED", {"charge": 1}, replayed)
    assert (proxy.hits, effects()) == (1, 1)


@pytest.mark.parametrize("ending, status", [("ROLLBACK", "PENDING"), ("ROLLBACK; BEGIN", "PENDING"), ("COMMIT", "COMPLETED")])
def test_no_answer_of_writes_that_end_their_transaction_but_one_that_is_stored(case, key, admin, ending, status):
    events = []

    async def test(idem, on):
        async def write(tx):
            for sql in ending.split("; "):
                await on.run(tx, sql)
            await on.run(tx, "SELECT 1")
        return (await idem.lease(key, None, lambda operation, signal: Completion("ok", write))).payload
    refused = pytest.raises(IdempotencyError, match="ended their transaction")
    with refused if status == "PENDING" else contextlib.nullcontext():
        assert case(test, hooks={"lease_lost": events.append}) == "ok"
    assert events == []
    assert admin.execute("SELECT status::text FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone() == (status,)


@pytest.mark.parametrize("answer", ["a\0b", "\ud800", Json("\0"), Response(code=2**40), "x" * 2_000_000])
def test_work_whose_answer_cannot_be_stored_is_done(case, key, answer):
    async def test(idem, on):
        def work(operation, signal):
            runs.append(operation)
            return answer
        with pytest.raises(Exception) as first:
            await idem.lease(key, None, work)
        with pytest.raises(Unstorable):
            await idem.lease(key, None, work)
        return first.type
    runs = []
    assert case(test) not in (Unstorable, LeaseLost)
    assert len(runs) == 1


@of("psycopg", "async psycopg")
def test_a_note_goes_to_the_next_owner(case, admin, key):
    async def test(idem, on):
        async def dies(operation, signal):
            seen.append(operation)
            await idem.progress(operation, {"charged": "ch_0"})
            await idem.progress(operation, {"charged": "ch_1"})
            raise ZeroDivisionError

        async def goes_on(operation, signal):
            seen.append(operation)
            for owner, note, error in ((seen[0], "late", LeaseLost), (operation, None, BadOption),
                                       (operation, Json("9" * 5000), ValueError),
                                       (operation, "x" * 2_000_000, TooLarge)):
                with pytest.raises(error):
                    await idem.progress(owner, note)
            await idem.progress(operation, "sent")
            return "done"
        with pytest.raises(ZeroDivisionError):
            await idem.lease(key, None, dies)
        run_out(admin, key)
        first = await idem.lease(key, None, goes_on, reconcile=lambda operation: seen.append(operation) or NOT_DONE)
        return [first.payload, (await idem.lease(key, None, goes_on)).payload]
    seen = []
    assert case(test) == ["done", "done"]
    assert [(each.taken_over, each.payload) for each in seen] == [(False, None)] + 2 * [(True, {"charged": "ch_1"})]


@of("psycopg", "async psycopg")
def test_a_policy_makes_the_lease_shorter(case, admin, key):
    """Asked for are 30 seconds. Only the end that the server has set counts, so the first beats come in time."""
    seen, over = set(), []

    async def test(idem, on):
        async def work(operation, signal):
            while len(seen) < 3 and not signal.is_set():
                end, is_over = admin.execute(
                    "SELECT lease_expires_at, lease_expires_at <= clock_timestamp() FROM idempotency_store"
                    " WHERE idempotency_key = %s", (key,)).fetchone()
                seen.add(end)
                over.extend([end] * is_over)
                await on.pause()
            return signal.is_set()
        return await idem.lease(key, None, work, scope="short", lease=30)
    admin.execute("SELECT idem_set_policy('short', max_lease => '6 seconds')")
    try:
        assert case(test).payload is False
    finally:
        admin.execute("DELETE FROM idempotency_scope WHERE pattern = 'short'")
    assert over == []


@of("psycopg", "async psycopg")
def test_nothing_begins_after_the_lease(case, admin, key):
    """The answer to the begin came too late; then reconcile lost the lease, and failed."""
    clock, late = FakeClock(), [30, 0, 0]

    async def test(idem, on):
        async def reconcile(operation):
            admin.execute("UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = %s", (key,))
            await on.advance(clock, 10)
            return NOT_DONE if error is LeaseLost else 1 / 0
        for error in (LeaseLost, LeaseLost, Unknown):
            with pytest.raises(error):
                await idem.lease(key, None, lambda operation, signal: pytest.fail("begun"), lease=30, reconcile=reconcile)
            run_out(admin, key)
    case(test, clock=clock, hooks={"acquired": lambda event: clock.advance(late.pop(0))})


@of("psycopg", "async psycopg")
def test_a_network_that_hangs(case, proxy, key, impatient):
    """Nothing is answered, and no connection ends: the work is told when the lease is over, and the call has an end."""
    async def test(idem, on):
        async def work(operation, signal):
            proxy.hang()
            await on.until(signal)
        try:
            with pytest.raises(LeaseLost):
                await idem.lease(key, None, work, lease=1)
        finally:
            proxy.flow()
    case(test, host=proxy.directory, timeout=5)


def test_until_when_an_answer_is_kept_over_a_network_that_hangs(case, proxy, key, monkeypatch):
    monkeypatch.setattr(flow, "PATIENCE", 0.3)

    async def test(idem, on):
        assert await idem.expires_at(key) is None
        proxy.hang()
        try:
            with pytest.raises(Exception) as raised:
                await idem.expires_at(key)
            assert is_unreachable(raised.value)
        finally:
            proxy.flow()
    case(test, host=proxy.directory, timeout=5)


@of(*kinds.ASYNC)
def test_a_server_that_hangs_costs_the_lease_and_no_more(case, key, proxy, impatient):
    """The end gets no answer: the connection is cut after as long as a lease lasts."""
    async def test(idem, on):
        def work(operation, signal):
            proxy.hang()
            return "x"
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(idem.lease(key, None, work, lease=1), 60)
    case(test, host=proxy.directory, timeout=2)


@of(*kinds.ASYNC)
def test_a_rollback_over_a_network_that_hangs(case, key, proxy, monkeypatch):
    """The work's error comes out all the same, and the only connection is given back."""
    monkeypatch.setattr(drive, "ROLLBACK_LIMIT", 0.1)

    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            proxy.hang()
            raise KeyError("the work's own")
        with pytest.raises(KeyError, match="the work's own"):
            await idem.transaction(key, None, work)
        proxy.flow()
        assert (await idem.transaction(key + "2", None, plain)).payload == "x"
    case(test, host=proxy.directory, size=1, timeout=5)


@of("asyncpg")
def test_a_begin_over_a_network_that_hangs_is_cancelled(case, key, proxy):
    async def test(idem, on):
        await idem.transaction(key, None, plain)
        proxy.hang()
        task = asyncio.ensure_future(idem.transaction(key + "2", None, plain))
        await on.pause()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.flow()
    case(test, host=proxy.directory, size=1, timeout=1)


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


@of("connection+psycopg2", "connection+asyncpg")
def test_a_connection_that_could_not_roll_back_is_not_used_again(case, key):
    sessions = []

    async def test(idem, on):
        async def works(tx, operation):
            sessions.append((await kinds.awaited(tx.execute(sqlalchemy.text("SELECT pg_backend_pid()")))).scalar())

        async def breaks(tx, operation):
            def fails(connection):
                raise ValueError
            await works(tx, operation)
            sqlalchemy.event.listen(getattr(tx, "sync_connection", tx), "rollback", fails, once=True)
            raise KeyError("the work's own")
        with pytest.raises(KeyError, match="the work's own"):
            await idem.transaction(key, None, breaks)
        await idem.transaction(key, None, works, wait=20)
    case(test, size=1)
    assert len(set(sessions)) == 2


@of("asyncpg")
@pytest.mark.parametrize("error", [asyncpg.ConnectionDoesNotExistError, asyncpg.InternalClientError])
def test_a_connection_that_ends_behind_commit_fails_no_call(case, key, effects, monkeypatch, error):
    """The pool resets a connection that it gets back. asyncpg calls some lost connections an internal error."""
    async def reset(connection, **options):
        raise error("the connection has ended")
    monkeypatch.setattr(asyncpg.Connection, "reset", reset)

    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
        assert (await idem.transaction(key, None, work)).outcome == "COMPLETED"
    case(test)
    assert effects() == 1


@of("asyncpg")
def test_what_asyncpg_says_of_an_idle_connection_that_has_ended_is_repeated(case, key, monkeypatch):
    fetch, calls = asyncpg.Connection.fetch, []

    async def ended_once(connection, *arguments, **options):
        calls.append(connection)
        if len(calls) == 1:
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return await fetch(connection, *arguments, **options)
    monkeypatch.setattr(asyncpg.Connection, "fetch", ended_once)

    async def test(idem, on):
        assert (await idem.transaction(key, None, plain)).payload == "x"
    case(test)


@of("asyncpg")
def test_what_asyncpg_says_of_an_ended_connection_in_the_work_is_repeated(case, key):
    async def test(idem, on):
        async def work(tx, operation):
            calls.append(tx)
            if len(calls) == 1:
                tx.terminate()
                raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
            return "x"
        assert (await idem.transaction(key, None, work)).payload == "x"
    calls = []
    case(test)
    assert len(calls) == 2


@of("asyncpg")
def test_a_transaction_of_asyncpg_in_the_work_is_a_savepoint(case, key, effects):
    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with tx.transaction():
                    await on.run(tx, "SELECT 1/0")
        return (await idem.transaction(key, None, work)).outcome
    assert case(test) == "COMPLETED"
    assert effects() == 1


@of("django")
def test_hooks_of_django_run_after_a_real_commit_only(case, key):
    ran = []

    async def test(idem, on):
        async def work(tx, operation):
            transaction.on_commit(lambda: ran.append(operation.key))
            if operation.key != key:
                with pytest.raises(Exception):
                    await on.run(tx, "SELECT 1/0")
        await idem.transaction(key, None, work)
        with pytest.raises(CommitRolledBack):
            await idem.transaction(key + "2", None, work)
    case(test)
    assert ran == [key]


def test_django_inside_of_another_transaction_is_refused(key):
    idem = Idempotency(DjangoSource())
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.transaction(key, None, plain)
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.lease(key, None, plain)
    block = transaction.atomic()
    block._from_testcase = True
    with block:     # of a TestCase, which rolls back
        assert idem.transaction(key, None, plain).payload == "x"


def test_django_without_autocommit_is_refused(key):
    """What nobody commits would pass as success."""
    connection.set_autocommit(False)
    try:
        for style in ("transaction", "lease"):
            with pytest.raises(RuntimeError, match="autocommit"):
                getattr(Idempotency(DjangoSource()), style)(key, None, plain)
    finally:
        connection.close()      # which is with autocommit when it comes again
