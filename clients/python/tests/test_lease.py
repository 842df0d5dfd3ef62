"""Leases: heartbeat, fences, reconciliation, and what is left behind by each kind of error."""

import asyncio
import threading
from dataclasses import replace
from functools import partial

import psycopg
import psycopg_pool
import pytest

from conftest import QUICK, at_once, insert_async, run_out
from pg_idempotency import (NOT_DONE, AsyncIdempotency, BadArgument, Completion, Declined, Done, FakeClock, Idempotency, Json,
                            LeaseLost, NotDone, Operation, Response, Retry, TooLarge, Unknown, Unstorable, drive, idempotent,
                            sqlstate_of)
from pg_idempotency.clock import Clock
from pg_idempotency.drive import Heartbeat
from pg_idempotency.flow import Settings
from pg_idempotency.lease import Beat, patience
from pg_idempotency.model import Call


def writes(key):
    return lambda tx: tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))


def declines(*_):
    raise Declined(409)


def leave_unended(idem, key):
    """An attempt whose work raises: its lease stays."""
    with pytest.raises(ZeroDivisionError):
        idem.lease(key, None, lambda operation, signal: 1 / 0)


@pytest.mark.parametrize("base, pauses", [(0, [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 0.73]), (0.3, [0.3, 0.6, 1, 1, 0.1])])
def test_a_lease_waits_no_longer_than_it_was_told(idem, run, key, base, pauses):
    leave_unended(idem, key)
    clocks = [FakeClock(), FakeClock()]
    waiting = Idempotency(lambda: psycopg.connect(""), clock=clocks[0], retry=Retry(base=base))
    assert waiting.lease(key, None, lambda *_: "second", wait=3).outcome == "IN_PROGRESS"

    async def body(waiting):
        return (await waiting.lease(key, None, lambda *_: "second", wait=3)).outcome
    assert run(body, clock=clocks[1], retry=Retry(base=base)) == "IN_PROGRESS"
    assert [clock.slept for clock in clocks] == [pytest.approx(pauses)] * 2


class Firing(Clock):
    """A clock whose timers have begun to call when they are stopped."""

    def __init__(self):
        self.calls = {}

    def after(self, delay, call):
        self.calls[getattr(call, "__name__", "")] = call
        return lambda: None


def test_no_beat_begins_after_the_lease(pool, key, lease_end):
    clock = Firing()
    leave_unended(Idempotency(pool, clock=clock), key)
    before = lease_end(key)
    beat = clock.calls.pop("once")
    beat()
    assert lease_end(key) == before
    assert "once" not in clock.calls


def test_the_end_of_a_lease_stops_a_beat_that_is_armed_meanwhile():
    threads, stopped = [], []

    def after(delay, call):
        threads.append(threading.Thread(target=heartbeat.stop))
        threads[0].start()
        threads[0].join(0.2)    # a stop that does not wait for this beat has ended now
        return lambda: stopped.append(delay)
    heartbeat = Heartbeat(None, threading.Event(), after)
    heartbeat.arm("beat", 5, lambda: None)
    threads[0].join()
    heartbeat.lose()    # by a beat that was under way
    assert (stopped, heartbeat.signal.is_set()) == ([5], False)


class Hasty(Clock):
    """The first beat is due at once."""

    def after_async(self, delay, call):
        return super().after_async(0 if delay < 15 else delay, call)


def others():
    """The tasks of this loop but the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("under_way", [True, False])
def test_no_task_of_a_heartbeat_outlives_its_lease_async(key, admin, under_way):
    idem = AsyncIdempotency(lambda: psycopg.AsyncConnection.connect(""), clock=Hasty() if under_way else Clock())

    async def work(operation, signal):
        # the beat waits for this lock
        admin.execute("BEGIN")
        admin.execute("SELECT FROM idempotency_store WHERE idempotency_key = %s FOR UPDATE", (key,))
        while under_way and not admin.execute(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid())").fetchone()[0]:
            await asyncio.sleep(0.01)
        raise KeyError("work")

    async def body():
        with pytest.raises(KeyError):
            await idem.lease(key, None, work, lease=30)
        assert not others()
    try:
        asyncio.run(body())
    finally:
        admin.execute("ROLLBACK")


def test_a_beat_that_does_not_end_is_not_waited_for_longer_than_its_limit_async(monkeypatch):
    monkeypatch.setattr(drive, "BEAT_LIMIT", 0.01)

    async def body():
        never = asyncio.get_running_loop().create_future()
        heartbeat = Heartbeat(None, asyncio.Event(), lambda delay, call: lambda: never)
        heartbeat.arm("beat", 1, None)
        await drive.AsyncDriver(None, Clock()).stop_heartbeat(heartbeat)
        assert not never.done()
    asyncio.run(body())


@pytest.mark.parametrize("failure", [None, ZeroDivisionError(), NotDone()])
def test_the_heartbeat_loses_the_lease(pool, key, admin, effects, failure):
    """Another one takes the operation over and completes it while the work still runs, which may heed that and raise."""
    clock = FakeClock()
    events = []
    idem = Idempotency(pool, clock=clock, hooks={"lease_lost": events.append, "taken_over": events.append})
    other = Idempotency(pool, hooks={"taken_over": events.append})

    def work(operation, signal):
        run_out(admin, key)
        other.lease(key, None, lambda operation, signal: Completion("theirs", writes(key)))
        assert not signal.is_set()
        clock.advance(10)
        assert signal.is_set()
        if failure is not None:
            raise failure
        return Completion("ours", writes(key))
    result = idem.lease(key, None, work, lease=30)
    assert (result.payload, result.replayed, effects()) == ("theirs", True, 1)
    assert [event.name for event in events] == ["taken_over", "lease_lost"]


def test_how_long_a_beat_and_an_answer_may_take():
    calls = [Call("k", None, "", lease=lease) for lease in (1, 30)]
    assert [patience(call) for call in calls] == [5, 30]
    beats = [Beat(Settings(), call, Operation("ACQUIRED", "", "k", 1, lease_left=call.lease), 0.0) for call in calls]
    assert [beat.period for beat in beats] == [0.334, 10]


def test_the_third_beat_finds_out_that_the_lease_is_over(key):
    """By our own clock, while the server does not answer."""
    clock = FakeClock()
    down = []

    def connect():
        return psycopg.connect("host=/nowhere" if down else "")

    def work(operation, signal):
        down.append(True)
        lost = []
        for _ in range(3):
            clock.advance(3.334)
            lost.append(signal.is_set())
        down.clear()
        assert lost == [False, False, True]
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        Idempotency(connect, clock=clock, retry=QUICK).lease(key, None, work, lease=10)


def test_no_timer_keeps_a_process_that_ends():
    before = threading.enumerate()
    stops = [Clock().after(60, print), Clock().every(60, print)]
    assert [thread.daemon for thread in threading.enumerate() if thread not in before] == [True, True]
    for stop in stops:
        stop()


def test_a_timer_that_is_stopped_calls_nothing_async():
    called = []

    async def body():
        Clock().after_async(0, drive.later(lambda: called.append(1)))()
        await asyncio.sleep(0.05)
    asyncio.run(body())
    assert called == []


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("error,tries", [
    (psycopg.OperationalError, 2), (psycopg_pool.PoolTimeout, 1), (psycopg_pool.TooManyRequests, 1), (TimeoutError, 1),
    (ValueError, 1)])
def test_an_end_for_which_there_is_no_connection(key, error, tries, is_lost):
    """A pool that is full is asked once. Where the lease is over, that it is lost is what the caller has to know."""
    clock = FakeClock()
    opened = []

    def connect():
        opened.append(1)
        if len(opened) > 1:
            raise error
        return psycopg.connect("")

    def work(operation, signal):
        clock.advance(11 if is_lost else 0)
        assert signal.is_set() == is_lost
        opened[:] = [1]
    with pytest.raises(LeaseLost if is_lost and error is not ValueError else error):
        Idempotency(connect, clock=clock, retry=Retry(attempts=2)).lease(key, None, work, lease=10)
    if not is_lost:
        assert len(opened) == 1 + tries


def cycle():
    """A list that JSON cannot have."""
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize("answer, error", [
    (print, TypeError), (cycle(), ValueError), ({"rate": float("nan")}, ValueError), (b"bytes", TypeError),
    ({1: 1, "1": 2}, ValueError),
    (Response(body=7), TypeError), (Response(code="x", payload=1), TypeError), (Response(payload=1, retention=-1), BadArgument),
    (Response(payload=1, headers={"a": object()}), TypeError), ("a\0b", "22P05"), (Response(code=2**40, payload=1), "22003"),
    ("\ud800", UnicodeEncodeError), ("x" * 2_000_000, TooLarge), (Json("9" * 5000), ValueError)])
@pytest.mark.parametrize("with_writes", [False, True])
def test_work_whose_answer_cannot_be_stored_is_done_and_not_repeated(idem, key, admin, effects, answer, error, with_writes):
    runs = []

    def work(operation, signal):
        runs.append(operation)
        return Completion(answer, writes(key)) if with_writes else answer
    with pytest.raises(Exception) as raised:
        idem.lease(key, None, work)
    assert sqlstate_of(raised.value) == error if isinstance(error, str) else isinstance(raised.value, error)
    assert admin.execute("SELECT status::text, response_code FROM idempotency_store WHERE idempotency_key = %s",
                         (key,)).fetchall() == [("COMPLETED", 500)]
    for _ in range(2):
        with pytest.raises(Unstorable, match="^the work was done, and its answer could not be stored$"):
            idem.lease(key, None, work, reconcile=declines)
    assert (len(runs), effects()) == (1, int(with_writes))


@pytest.mark.parametrize("wrong, error", [
    ({"payload": print}, TypeError), ({"payload": cycle()}, ValueError), ({"payload": "a\0b"}, "22P05"),
    ({"payload": "\ud800"}, UnicodeEncodeError), ({"payload": "x" * 2_000_000}, TooLarge), ({"code": 2**40}, "22003"),
    ({"payload": Json("9" * 5000)}, ValueError),
    ({"code": "x"}, TypeError), ({"headers": {"a": object()}}, TypeError), ({"body": 7}, TypeError),
    ({"retention": -1}, BadArgument)])
def test_work_that_declines_with_what_cannot_be_stored_is_done_and_not_repeated(idem, key, admin, effects, wrong, error):
    def decline(tx, operation=None):
        if operation:
            tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        raise Declined(**{"code": 402, **wrong})

    def declining(answer):
        return lambda *_: Completion(answer, lambda tx: decline(tx, "writes"))
    for number, work in enumerate((decline, declining("good"), declining(object()))):
        own, runs = f"{key}-{number}", []
        with pytest.raises(Exception) as raised:
            idem.lease(own, None, lambda operation, signal: runs.append(1) or work(None))
        if number < 2:
            assert sqlstate_of(raised.value) == error if isinstance(error, str) else isinstance(raised.value, error)
        assert admin.execute("SELECT status::text, response_code FROM idempotency_store WHERE idempotency_key = %s",
                             (own,)).fetchall() == [("COMPLETED", 500)]
        with pytest.raises(Unstorable):
            idem.lease(own, None, lambda *_: runs.append(1))
        assert runs == [1]
    with pytest.raises(Exception) as raised:
        idem.transaction(key, None, decline)
    assert sqlstate_of(raised.value) == error if isinstance(error, str) else isinstance(raised.value, error)
    assert idem.transaction(key, None, lambda *_: "free").payload == "free"
    assert effects() == 0


@pytest.mark.parametrize("ends", [Response, partial(Declined, 402)])
def test_what_cannot_be_stored_is_kept_away_for_as_long_as_it_asked_for(idem, key, admin, ends):
    def work(operation, signal):
        end = ends(payload="x" * 2_000_000, retention=90 * 86400)
        if isinstance(end, Declined):
            raise end
        return end
    with pytest.raises(TooLarge):
        idem.lease(key, None, work)
    assert admin.execute("SELECT round(extract(epoch FROM expires_at - now()) / 86400) FROM idempotency_store"
                         " WHERE idempotency_key = %s", (key,)).fetchone()[0] == 90


def test_a_refusal_that_does_not_reach_the_database_leaves_the_lease(proxy, key, admin):
    idem = Idempotency(lambda: psycopg.connect(f"host={proxy.directory}"), retry=Retry(attempts=1))

    def work(operation, signal):
        proxy.arm("before", "idem_fail")
        raise Declined(402)
    with pytest.raises(psycopg.OperationalError):
        idem.lease(key, None, work)
    run_out(admin, key)


def test_a_function_whose_result_cannot_be_stored_is_done(idem, key):
    runs = []

    @idempotent(idem, key=lambda name: name, lease=30)
    def once(operation, signal, name):
        runs.append(name)
        return object()
    for error in (TypeError, Unstorable):
        with pytest.raises(error):
            once(key)
    assert runs == [key]


@pytest.mark.parametrize("answer", [Response(500, payload=1), Response(500, payload=Json("null")), Response(500, body=b""),
                                    Response(500, headers={}), Response(501)])
def test_an_answer_with_the_code_500_is_one(idem, key, answer):
    first = idem.lease(key, None, lambda *_: answer)
    assert replace(idem.lease(key, None, declines), replayed=False, record=None) == first


def test_what_reconcile_has_found_and_cannot_be_stored_is_asked_for_again(idem, key, admin):
    leave_unended(idem, key)
    for found, error in ((object(), TypeError), ("x" * 2_000_000, TooLarge)):
        run_out(admin, key)
        with pytest.raises(error):
            idem.lease(key, None, declines, reconcile=lambda operation: Done(found))
    run_out(admin, key)
    assert idem.lease(key, None, declines, reconcile=lambda operation: Done("found")).payload == "found"


def test_an_answer_that_cannot_be_stored_and_an_end_whose_answer_is_lost(proxy, key, admin):
    events = []
    idem = Idempotency(lambda: psycopg.connect(f"host={proxy.directory}"), retry=QUICK, hooks={"lease_lost": events.append})

    def work(operation, signal):
        proxy.arm("lose", "idem_complete")
        return object()
    with pytest.raises(TypeError):
        idem.lease(key, None, work)
    assert (proxy.hits, events) == (1, [])
    with pytest.raises(Unstorable):
        idem.lease(key, None, declines)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_an_answer_that_cannot_be_stored_of_a_lease_that_is_lost(idem, key, admin, effects, ends, is_told):
    """The stored one is the answer, and the error where there is none."""
    def work(operation, signal):
        run_out(admin, key)
        if ends:
            idem.lease(key, None, lambda *_: "theirs")
        else:
            leave_unended(idem, key)
        if is_told:
            signal.set()
        return Completion(object(), writes(key))
    if ends:
        assert idem.lease(key, None, work).payload == "theirs"
    else:
        with pytest.raises(TypeError):
            idem.lease(key, None, work)
    assert effects() == 0


def test_an_answer_that_cannot_be_stored_of_a_lease_that_ran_out(idem, key, admin):
    def work(operation, signal):
        run_out(admin, key)
        signal.set()
        return object()
    for error in (TypeError, Unstorable):
        with pytest.raises(error):
            idem.lease(key, None, work)


def test_writes_that_decline_or_fail_as_an_answer_may(idem, key, admin):
    calls = []

    def fail(tx):
        calls.append(tx)
        tx.execute("SELECT 'x'::int")
    assert idem.lease(key + "d", None, lambda *_: Completion(object(), declines)).code == 409
    for number, (answer, error) in enumerate((("good", "22P02"), (object(), None))):
        with pytest.raises(Exception) as raised:
            idem.lease(key + str(number), None, lambda *_: Completion(answer, fail))
        assert sqlstate_of(raised.value) == error
        run_out(admin, key + str(number))
    assert len(calls) == 2


def test_a_lost_lease_without_an_end_is_an_error(pool, key, admin, effects):
    clock = FakeClock()
    idem = Idempotency(pool, clock=clock)

    def work(operation, signal):
        run_out(admin, key)
        leave_unended(Idempotency(pool), key)
        return Completion("ours", writes(key))
    with pytest.raises(LeaseLost):
        idem.lease(key, None, work, lease=30)
    assert effects() == 0


def test_a_lost_lease_gets_no_answer_of_another_operation_with_its_key(pool, key, admin):
    idem = Idempotency(pool)

    def work(operation, signal):
        admin.execute("DELETE FROM idempotency_store WHERE idempotency_key = %s", (key,))
        idem.lease(key, "another", lambda *given: "theirs", lease=30)
        return "ours"
    with pytest.raises(LeaseLost):
        idem.lease(key, "mine", work, lease=30)


def test_a_lost_lease_cancels_a_task(run, key, admin, effects):
    clock = FakeClock()

    async def body(idem):
        cancelled = []

        async def work(operation, signal):
            run_out(admin, key)
            await idem.lease(key, None, lambda operation, signal: "theirs")
            try:
                asyncio.ensure_future(clock.advance_async(10))
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(signal.is_set())
                raise
        return await idem.lease(key, None, work, lease=30), cancelled
    result, cancelled = run(body, clock=clock)
    assert (result.payload, result.replayed, cancelled) == ("theirs", True, [True])


def test_a_task_that_lost_its_lease_may_raise_what_it_likes(run, key, admin):
    clock = FakeClock()

    async def body(idem):
        async def work(operation, signal):
            admin.execute("UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = %s", (key,))
            asyncio.ensure_future(clock.advance_async(10))
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            await idem.lease(key, None, work, lease=30)
    run(body, clock=clock)


def test_work_that_is_cancelled_by_itself_has_lost_no_lease(run, key):
    async def body(idem):
        async def work(operation, signal):
            raise asyncio.CancelledError
        with pytest.raises(asyncio.CancelledError):
            await idem.lease(key, None, work)
    run(body)


def test_a_lease_lasts_from_when_it_was_asked_for(key):
    """The answer to its only beat takes five seconds."""
    clock, takes = FakeClock(), [0, 5]

    def connect():
        if not takes:
            raise psycopg.OperationalError("no route")
        clock.time += takes.pop(0)
        return psycopg.connect("")

    def work(operation, signal):
        lost = []
        for duration in (10, 29, 2):
            clock.advance(duration)
            lost.append(signal.is_set())
        takes.extend([0] * 5)
        return lost
    assert Idempotency(connect, clock=clock).lease(key, None, work, lease=30).payload == [False, False, True]


def test_not_done_counts_also_where_the_release_fails(key):
    down = []

    def connect():
        return psycopg.connect("host=/nowhere" if down else "")

    def work(operation, signal):
        down.append(True)
        raise NotDone("the gateway refused the connection")
    with pytest.raises(NotDone):
        Idempotency(connect).lease(key, None, work)


def test_a_lost_answer_to_a_failure(proxy, key):
    def work(operation, signal):
        proxy.arm("lose", "idem_fail")
        raise Declined(402)
    lost = []
    idem = Idempotency(
        lambda: psycopg.connect(f"host={proxy.directory} port=5432"), retry=QUICK, hooks={"lease_lost": lost.append})
    result = idem.lease(key, None, work)
    assert (result.outcome, result.code, result.replayed, proxy.hits, lost) == ("FAILED", 402, True, 1, [])


def test_reconcile_knows_that_it_was_done(idem, key, admin, effects):
    leave_unended(idem, key)
    run_out(admin, key)
    asked = []

    def reconcile(operation):
        asked.append(operation.attempt)
        return Done(Completion(Response(201, payload="found"), writes(key)))
    result = idem.lease(key, None, lambda operation, signal: 1 / 0, reconcile=reconcile)
    assert (result.code, result.payload, asked, effects()) == (201, "found", [2], 1)


@pytest.mark.parametrize("error", [Declined(409), NotDone(), LeaseLost(), OSError()],
                         ids=lambda error: type(error).__name__)
def test_what_reconcile_raises_is_not_the_answer(idem, key, admin, error):
    leave_unended(idem, key)
    run_out(admin, key)

    def reconcile(operation):
        raise error
    with pytest.raises(Unknown) as raised:
        idem.lease(key, None, lambda operation, signal: 1 / 0, reconcile=reconcile)
    assert raised.value.__cause__ is error
    declined = idem.lease(key, None, declines, reconcile=lambda operation: NOT_DONE)
    assert (declined.outcome, declined.code, declined.taken_over) == ("FAILED", 409, True)


def test_the_last_attempt_of_a_lease(idem, key, admin):
    leave_unended(idem, key)
    run_out(admin, key)
    assert idem.lease(key, None, lambda operation, signal: 1 / 0, max_attempts=1).outcome == "FAILED"


def test_a_lost_answer_at_begin_waits_for_the_lease(proxy, key):
    idem = Idempotency(lambda: psycopg.connect(f"host={proxy.directory} port=5432"), retry=QUICK)
    proxy.arm("lose", "idem_begin")
    result = idem.lease(key, None, lambda operation, signal: 1 / 0)
    assert (result.outcome, proxy.hits) == ("IN_PROGRESS", 1)
    assert 25 < result.retry_after <= 30


@pytest.mark.parametrize("error, status", [(KeyError("own"), ("PENDING",)), (Unknown(), ("PENDING",)), (NotDone(), None)])
@pytest.mark.parametrize("in_writes", [False, True])
def test_an_error_of_the_work_or_its_writes(idem, key, effects, admin, error, status, in_writes):
    """Nothing is written, and the lease stays, also for an Unknown of another operation: the next attempt has to reconcile.
    NotDone releases."""
    def write(tx):
        writes(key)(tx)
        raise error

    def work(operation, signal):
        if in_writes:
            return Completion(1, write)
        raise error
    with pytest.raises(type(error)) as raised:
        idem.lease(key, None, work)
    stored = admin.execute("SELECT status::text FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()
    assert (raised.value, effects(), stored) == (error, 0, status)


@pytest.mark.parametrize("times, swallows", [(1, True), (2, False)])
def test_a_cancelled_caller_cancels_the_work(run, key, times, swallows):
    """However often it is cancelled, and whatever the work makes of it."""
    async def body(idem):
        begun, seen = asyncio.Event(), []

        async def work(operation, signal):
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
                seen.append("cancelled")
                if not swallows:
                    raise
        task = asyncio.ensure_future(idem.lease(key, None, work))
        await begun.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(seen), (await idem.lease(key, None, insert_async(key))).outcome
    assert run(body) == (["cancelled"], "IN_PROGRESS")


def test_leases_behind_pgbouncer(pgbouncer, key):
    with psycopg_pool.ConnectionPool(pgbouncer, min_size=4, max_size=4) as pool:
        barrier = threading.Barrier(8)

        def work(operation, signal):
            barrier.wait(20)
            return Completion(1, writes(key))
        results = at_once(8, lambda n: Idempotency(pool).lease(f"{key}-{n}", {"n": n}, work))
    assert [result.outcome for result in results] == ["COMPLETED"] * 8
