"""The lease as a flow: begin and commit, work without a connection, end together with the writes.

No connection is held while the work calls somebody outside.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Tuple

from . import sql, steps
from .errors import (BadOption, Declined, LeaseLost, NotDone, NotOwned, Unknown, Unstorable, is_of_answer, is_unreachable,
                     translate_begin)
from .flow import (PATIENCE, Settings, announce_begin, announce_refusal, committing, declined_result, in_session,
                   is_pool_timeout, one_statement, own_trip, retrying, waiting)
from .model import (ACQUIRED, COMPLETED, FAILED, NOT_DONE, WITHOUT_ANSWER, Call, Completion, Done, Operation, Response,
                    Result, as_response, operation_from_row, own_result, stored_result)
from .steps import Flow


class Refused(Exception):
    """Inside of the package: a response cannot be stored. ``error`` is what was wrong with it. ``lost``: so was the lease."""

    def __init__(self, error: Exception, *, lost: bool = False) -> None:
        self.error = error
        self.lost = lost


def lease(settings: Settings, call: Call, work: Callable[..., Any]) -> Flow:
    """One leased operation from begin to end. Result: a Result."""
    operation, begun = yield from waiting(settings, call, lambda now: begin_now(settings, now))
    announce_begin(settings, operation)
    if operation.outcome != ACQUIRED:
        return known(operation)
    heartbeat = yield steps.start_heartbeat(Beat(settings, call, operation, begun))
    try:
        return (yield from owned(settings, call, operation, heartbeat, work))
    except Exception as error:
        refused = error if isinstance(error, Refused) else None
        # Work that heeds the signal raises what it likes.
        if not (isinstance(error, (LeaseLost, NotOwned)) or heartbeat.signal.is_set() or refused and refused.lost):
            raise_refused(refused)
            raise
        try:
            ended = yield from stored_end(settings, call, operation)
        except Exception:
            ended = None    # the database says nothing now
        if not isinstance(error, NotOwned) and (ended is None or ended.attempt != operation.attempt):
            settings.emit("lease_lost", call, attempt=operation.attempt)
        if ended is None or refused and ended.attempt == operation.attempt:
            raise_refused(refused)
            raise
        announce_begin(settings, ended)
        return known(ended)
    finally:
        yield steps.stop_heartbeat(heartbeat)


def raise_refused(refused: Optional[Refused]) -> None:
    """Raises what was wrong with a response."""
    if refused is not None:
        raise refused.error from refused.error.__cause__


def known(operation: Operation) -> Result:
    """The stored answer. Raises Unstorable where there is none."""
    if operation.unstorable:
        raise Unstorable()
    return stored_result(operation)


def patience(call: Call) -> float:
    """For how many seconds an answer of the database is waited for at the end of a lease."""
    return max(call.lease or 0.0, PATIENCE)


def begin_now(settings: Settings, call: Call) -> Flow:
    """One begin in a transaction of its own, repeated where that may help. Result: an Operation, and when its begin was sent."""
    def once() -> Flow:
        begun = settings.clock.now()
        answer = yield from one_statement(settings.functions.begin(call), translate_begin)
        return operation_from_row(answer.rows[0]), begun

    try:
        return (yield from retrying(settings, call, once))
    except Exception as error:
        announce_refusal(settings, call, error)
        raise


class Beat:
    """Extends a lease. It is lost when the database says so, or at ``deadline`` by our own clock: it has as many seconds
    as the server said, from when it was asked. ``period``: after how many the next beat is due.
    """

    def __init__(self, settings: Settings, call: Call, operation: Operation, begun: float) -> None:
        self.settings = settings
        self.call = call
        self.operation = operation
        self.lasts(begun, operation.lease_left)

    def lasts(self, since: float, left: Optional[float]) -> None:
        """What the server answered to a statement that was sent at ``since``."""
        self.deadline = since + (left or 0.0)
        # in whole milliseconds: the third beat must not come just before the end
        self.period = math.ceil((left or 0.0) * 1000 / 3) / 1000

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.settings.clock.now()

    def flow(self) -> Flow:
        """One beat. Result: whether the lease is still ours."""
        sent = self.settings.clock.now()
        try:
            answer = yield from one_statement(
                self.settings.functions.extend(self.call, self.operation), limit=self.left())
        except LeaseLost:
            return False
        except Exception:
            # The connection, most likely: the next beat tries again while there is time.
            return True
        self.lasts(sent, answer.rows[0][0])
        return True


def owned(settings: Settings, call: Call, operation: Operation, heartbeat: Any, work: Callable[..., Any]) -> Flow:
    """Reconciles, works and ends an operation that this call owns. Raises Refused."""
    try:
        done = yield from reconciled(settings, call, operation, heartbeat)
        if done is not None:
            return (yield from complete(settings, call, operation, heartbeat, done.response))
        value = yield steps.call_guarded(heartbeat, work, operation, heartbeat.signal)
        try:
            return (yield from complete(settings, call, operation, heartbeat, value))
        except Refused as refused:
            return (yield from complete_without(settings, call, operation, heartbeat, value, refused.error))
    except Declined as declined:
        try:
            return (yield from decline(settings, call, operation, heartbeat, declined))
        except Refused as refused:
            none = Response(retention=declined.retention)
            return (yield from complete_without(settings, call, operation, heartbeat, none, refused.error))
    except NotDone:
        yield from release(settings, call, operation)
        raise


def complete(settings: Settings, call: Call, operation: Operation, heartbeat: Any, value: Any) -> Flow:
    """Ends an operation with what its work, or ``reconcile``, gave back. Raises Refused."""
    given, writes = (value.response, [value.writes]) if isinstance(value, Completion) else (value, [])
    response = as_response(given)
    return (yield from end(settings, call, heartbeat, writes, lambda: (
        settings.functions.complete(call, operation, response), own_result(operation, response))))


def decline(settings: Settings, call: Call, operation: Operation, heartbeat: Any, declined: Declined) -> Flow:
    """Ends an operation whose work has declined. Raises Refused: who declines has done the work, too."""
    result = yield from end(settings, call, heartbeat, [], lambda: (
        settings.functions.fail(call, operation, declined), declined_result(operation, declined)))
    settings.emit("declined", call, attempt=operation.attempt)
    return result


def complete_without(settings: Settings, call: Call, operation: Operation, heartbeat: Any, value: Any, error: Exception) -> Flow:
    """Ends work that was done, with its writes, so that no attempt repeats it. Raises Refused with what was wrong with its
    answer, and what the writes raise to end it otherwise."""
    given = as_response(value.response if isinstance(value, Completion) else value)
    response = Response(WITHOUT_ANSWER, retention=None if isinstance(error, BadOption) else given.retention)
    lost = False
    try:
        yield from complete(settings, call, operation, heartbeat,
                            Completion(response, value.writes) if isinstance(value, Completion) else response)
    except (Declined, NotDone):
        raise
    except Exception as failure:
        lost = isinstance(failure, LeaseLost)
    raise Refused(error, lost=lost)


def reconciled(settings: Settings, call: Call, operation: Operation, heartbeat: Any) -> Flow:
    """What became of an earlier attempt: Done, or None when the work is to run. Raises Unknown, also for what ``reconcile``
    raises: that does not say what became of it."""
    if not operation.taken_over or call.reconcile is None:
        return None
    try:
        answer = yield steps.call_guarded(heartbeat, call.reconcile, operation)
        if isinstance(answer, Done):
            return answer
        if answer == NOT_DONE:
            return None
        raise Unknown()
    except Exception as error:
        if isinstance(error, LeaseLost) and heartbeat.signal.is_set():
            raise
        # This attempt did nothing: the next begin need not wait for the lease. The database
        # remembers that an earlier one has no end. An Unknown of the work is none of these.
        yield from release(settings, call, operation)
        if isinstance(error, Unknown):
            raise
        raise Unknown() from error


def end(settings: Settings, call: Call, heartbeat: Any, writes: List[Callable[[Any], Any]],
        make: Callable[[], Tuple[sql.Statement, Result]]) -> Flow:
    """The writes and the end in one transaction, repeated where that may help. A repeat never ends it twice. ``make``: gives
    the statement that ends it, and the result, so that what cannot be read back is not stored.

    A database that answers nothing for as long as a lease lasts is not waited for: LeaseLost. So is one that cannot be
    reached when the lease is over. Refused, where it does not take the end.
    """
    limit = patience(call)
    try:
        ending, result = make()
    except Exception as error:
        raise Refused(error) from error

    def body(session: Any) -> Flow:
        try:
            # The end comes first: a stale fence is refused before anything is written.
            trip = [sql.plain(sql.BEGIN), ending, sql.plain(sql.SAVEPOINT)] if writes else [ending]
            yield from own_trip(session, trip, limit=limit)
        except Exception as error:
            if is_of_answer(error):
                raise Refused(error) from error
            raise
        for write in writes:
            yield steps.call(write, session.handle)
            yield from committing(session, [sql.plain(sql.RELEASE)], limit)

    try:
        yield from retrying(settings, call, lambda: in_session(body))
    except Exception as error:
        if heartbeat.signal.is_set() and (is_unreachable(error) or is_pool_timeout(error)):
            raise LeaseLost("the lease was lost, and the database cannot be reached") from error
        raise
    return result


def progress(settings: Settings, call: Call, operation: Operation, note: Any) -> Flow:
    """A note of how far the attempt came. Its repeat after a lost answer does no harm."""
    yield from retrying(settings, call, lambda: one_statement(
        settings.functions.progress(operation, note), limit=patience(call)))


def release(settings: Settings, call: Call, operation: Operation) -> Flow:
    """Gives the operation back. Where that fails the lease runs out by itself, and the first error counts."""
    try:
        yield from one_statement(settings.functions.release(call, operation), limit=patience(call))
    except Exception:
        return


def stored_end(settings: Settings, call: Call, ours: Operation) -> Flow:
    """The stored end of an operation whose lease was lost: ours, if only its answer was lost. None: no end yet, or the
    key was used anew since, maybe for another request.
    """
    answer = yield from retrying(
        settings, call, lambda: one_statement(settings.functions.lookup(call), limit=patience(call)))
    if answer.rows[0][0] not in (COMPLETED, FAILED):
        return None
    operation = operation_from_row(answer.rows[0])
    return operation if operation.created == ours.created else None
