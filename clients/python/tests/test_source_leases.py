"""Leases over each kind of connection."""

import contextlib

import pytest

from conftest import run_out
from kinds import of
from pg_idempotency import (NOT_DONE, Completion, FakeClock, IdempotencyError, Json, LeaseLost, Response, TooLarge,
                            Unknown, Unstorable)
from pg_idempotency.errors import BadOption


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
