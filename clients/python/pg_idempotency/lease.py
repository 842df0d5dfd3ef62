"""The lease as a flow: begin and commit, work without a connection, end together with the writes.

No connection is held while the work calls somebody outside.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, List

from . import sql, steps
from .errors import Declined, LeaseLost, NotDone, Unknown, translate_begin
from .flow import (Settings, announce_begin, announce_refusal, committing, declined_result, in_session,
                   one_statement, own_trip, retrying)
from .model import (ACQUIRED, COMPLETED, FAILED, IN_PROGRESS, NOT_DONE, Call, Completion, Done, Operation, Result,
                    as_response, operation_from_row, own_result, stored_result)
from .steps import Flow


def lease(settings: Settings, call: Call, work: Callable[..., Any]) -> Flow:
    """One leased operation from begin to end. Result: a Result."""
    operation: Operation = yield from begin(settings, call)
    if operation.outcome != ACQUIRED:
        return stored_result(operation)
    assert call.lease is not None
    heartbeat = yield steps.start_heartbeat(third(call.lease), Beat(settings, call, operation).flow)
    try:
        return (yield from owned(settings, call, operation, heartbeat, work))
    except LeaseLost as lost:
        settings.emit("lease_lost", call, attempt=operation.attempt)
        ended = yield from ended_result(settings, call)
        if ended is None:
            raise lost
        return ended
    finally:
        yield steps.stop_heartbeat(heartbeat)


def third(lease: float) -> float:
    """A third of a lease in seconds, rounded up to whole milliseconds: the third beat must not come just before the end."""
    return math.ceil(lease * 1000 / 3) / 1000


def begin(settings: Settings, call: Call) -> Flow:
    """The begin in a transaction of its own. Result: an Operation.

    Waits here for another owner: a begin that waits on the server holds a connection, which the owner may need
    for its end.
    """
    until = settings.clock.now() + call.wait
    pause = max(settings.retry.base, 0.01)
    while True:
        operation: Operation = yield from begin_now(settings, replace(call, wait=0.0))
        left = until - settings.clock.now()
        if operation.outcome != IN_PROGRESS or left <= 0:
            announce_begin(settings, call, operation)
            return operation
        yield steps.sleep(min(pause, left))
        pause = min(2 * pause, 1.0)


def begin_now(settings: Settings, call: Call) -> Flow:
    """One begin, repeated where that may help. Result: an Operation."""
    try:
        answer = yield from retrying(
            settings, call, lambda: one_statement(settings.functions.begin(call), translate_begin))
    except Exception as error:
        announce_refusal(settings, call, error)
        raise
    return operation_from_row(answer.rows[0])


class Beat:
    """Extends a lease. It is lost when the database says so, or when it must have run out by our own clock."""

    def __init__(self, settings: Settings, call: Call, operation: Operation) -> None:
        assert call.lease is not None
        self.settings = settings
        self.call = call
        self.operation = operation
        self.duration = call.lease
        self.deadline = settings.clock.now() + self.duration

    def flow(self) -> Flow:
        """One beat. Result: whether the lease is still ours."""
        sent = self.settings.clock.now()
        try:
            yield from one_statement(self.settings.functions.extend(self.call, self.operation))
        except LeaseLost:
            return False
        except Exception:
            # The connection, most likely: the next beat tries again while there is time.
            return self.settings.clock.now() < self.deadline
        self.deadline = sent + self.duration
        return True


def owned(settings: Settings, call: Call, operation: Operation, heartbeat: Any, work: Callable[..., Any]) -> Flow:
    """Reconciles, works and ends an operation that this call owns."""
    writes: List[Callable[[Any], Any]] = []
    try:
        done = yield from reconciled(call, operation, heartbeat)
        if done is None:
            value = yield steps.call_guarded(heartbeat, work, operation, heartbeat.signal)
        else:
            value = done.response
        if isinstance(value, Completion):
            writes.append(value.writes)
            value = value.response
        response = as_response(value)
        yield from end(settings, call, writes, settings.functions.complete(call, operation, response))
        return own_result(operation, response)
    except Declined as declined:
        yield from end(settings, call, [], settings.functions.fail(call, operation, declined))
        settings.emit("declined", call, attempt=operation.attempt)
        return declined_result(operation, declined)
    except (NotDone, Unknown):
        # Nothing happened, or nobody knows: the next begin need not wait for the lease. If an
        # earlier attempt has no end, the database remembers that.
        yield from release(settings, call, operation)
        raise


def reconciled(call: Call, operation: Operation, heartbeat: Any) -> Flow:
    """What became of an earlier attempt: Done, or None when the work is to run. Raises Unknown."""
    if not operation.taken_over or call.reconcile is None:
        return None
    answer = yield steps.call_guarded(heartbeat, call.reconcile, operation)
    if isinstance(answer, Done):
        return answer
    if answer == NOT_DONE:
        return None
    raise Unknown()


def end(settings: Settings, call: Call, writes: List[Callable[[Any], Any]], ending: sql.Statement) -> Flow:
    """The writes and the end in one transaction, repeated where that may help. A repeat never ends it twice."""
    def body(session: Any) -> Flow:
        if not writes:
            yield from own_trip(session, [ending])
            return
        yield from own_trip(session, [sql.plain(sql.BEGIN)])
        for write in writes:
            yield steps.call(write, session.handle)
        yield from committing(session, [ending])

    yield from retrying(settings, call, lambda: in_session(body))


def release(settings: Settings, call: Call, operation: Operation) -> Flow:
    """Gives the operation back. Where that fails the lease runs out by itself, and the first error counts."""
    try:
        yield from one_statement(settings.functions.release(call, operation))
    except Exception:
        return


def ended_result(settings: Settings, call: Call) -> Flow:
    """The stored end of an operation whose lease was lost: ours, if only its answer was lost. None: no end yet."""
    answer = yield from retrying(
        settings, call, lambda: one_statement(settings.functions.lookup(call)))
    if answer.rows[0][0] not in (COMPLETED, FAILED):
        return None
    operation = operation_from_row(answer.rows[0])
    announce_begin(settings, call, operation)
    result: Result = stored_result(operation)
    return result
