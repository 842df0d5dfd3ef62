"""What each kind of connection does when the network loses an answer, or hangs."""

import asyncio
import contextlib
import threading

import pytest

import kinds
from kinds import of, plain
from pg_idempotency import Completion, Declined, LeaseLost, NotDone, drive, flow, sqlstate_of
from pg_idempotency.errors import is_unreachable, means_lost


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
