"""The transaction as a flow: BEGIN and begin in one round trip, the work, end and COMMIT in one round trip.

So n statements of work take n + 2 round trips. Who repeats what is decided here,
and nowhere else.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Union

from . import hooks as hook
from . import sql, steps
from .clock import Clock
from .errors import (IN_FAILED_TRANSACTION, OUT_OF_TRANSACTION, RETRY_STATES, CommitRolledBack, Declined, KeyReused, LeaseLost,
                     NotDone, NotOwned, asked, is_unreachable, means_lost, quotes_data, sqlstate_of, translate, translate_begin)
from .model import (ACQUIRED, FAILED, IN_PROGRESS, MISMATCH, Call, Operation, Response, Result, as_response, as_stored,
                    is_null, operation_from_row, own_result, stored_result)
from .retry import Retry
from .steps import Answer, Flow

NO_CONNECTION = "53300"     # of a pool whose connections are all in use, as of a server
PATIENCE = 5.0      # seconds that a statement beside a transaction is waited for, at least


@dataclass(frozen=True)
class Settings:
    """What all calls of one client share. Durations are seconds."""

    scope: str = ""
    functions: sql.Functions = field(default_factory=sql.Functions)
    retention: Optional[float] = None
    lease: float = 30.0
    retry: Retry = field(default_factory=Retry)
    hooks: hook.Hooks = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def emit(self, name: str, about: Union[Call, Operation], **more: Any) -> None:
        """Calls a hook."""
        hook.emit(self.hooks, hook.Event(name, about.scope, about.key, **more))


class Again(Exception):
    """Inside of the package: the whole may be repeated. ``error`` is what happened."""

    def __init__(self, error: BaseException, lost: bool) -> None:
        self.error = error
        self.lost = lost


def retrying(settings: Settings, call: Call, once: Callable[[], Flow]) -> Flow:
    """Runs ``once`` until it ends without Again, as often as the settings allow; then raises the last error."""
    tries = 1
    while True:
        try:
            return (yield from once())
        except Again as again:
            if tries >= settings.retry.attempts:
                raise again.error from again.error.__cause__
            settings.emit("retried", call, tries=tries, sqlstate=sqlstate_of(again.error))
            lost = again.lost
        if lost:
            yield steps.recover()
        yield steps.sleep(settings.retry.delay(tries))
        tries += 1


def in_session(body: Callable[[Any], Flow]) -> Flow:
    """Runs ``body(session)`` with a connection of its own. After an error everything is rolled back."""
    try:
        session = yield steps.open_session()
    except Exception as error:
        if is_pool_timeout(error):
            setattr(error, "sqlstate", NO_CONNECTION)      # over HTTP it is a 503, and the same error of a handler is none
        elif is_unreachable(error):
            raise Again(error, True) from error
        raise
    try:
        result = yield from body(session)
    except BaseException as error:
        lost = yield steps.abandon(session, error)
        state = sqlstate_of(error)
        # NotDone is the work's own word, whatever its cause is: nothing is repeated.
        if not isinstance(error, Exception) or isinstance(error, NotDone):
            raise
        # An error of the work's own is the caller's, also where the connection went away with it.
        gone = means_lost(state) or (lost and is_unreachable(error))
        if gone or state in RETRY_STATES:
            raise Again(error, gone) from error
        raise
    yield steps.close(session)
    return result


def is_pool_timeout(error: BaseException) -> bool:
    """The pool has waited long enough already: repeating would only make the queue longer."""
    return type(error).__name__ in ("PoolTimeout", "TooManyRequests", "TimeoutError")


def raise_own(error: Exception, meaning: Callable[[BaseException], BaseException]) -> NoReturn:
    """Raises an error of a statement of the package's own as the package's."""
    translated = meaning(error)
    if translated is error:
        raise error
    raise translated from (None if quotes_data(error) else error)


def own_trip(session: Any, statements: Sequence[sql.Statement],
             meaning: Callable[[BaseException], BaseException] = translate, limit: Optional[float] = None) -> Flow:
    """A round trip of the package's own statements. Result: the answers.

    ``limit``: after so many seconds without an answer the connection is cut, and LeaseLost raised. None: never.
    """
    try:
        return (yield steps.round_trip(session, statements, limit))
    except Exception as error:
        raise_own(error, meaning)


def committing(session: Any, statements: List[sql.Statement], limit: Optional[float] = None) -> Flow:
    """The statements and COMMIT in one round trip. Raises CommitRolledBack when the server did not commit, and NotOwned where
    the savepoint of the transaction is gone: COMMIT would not say so."""
    try:
        answers: List[Answer] = yield from own_trip(session, [*statements, sql.plain(sql.COMMIT)], limit=limit)
    except Exception as error:
        state = sqlstate_of(error)
        if state == IN_FAILED_TRANSACTION:
            raise CommitRolledBack("the work caught an error of the database and went on") from error
        if state in OUT_OF_TRANSACTION:
            raise NotOwned() from error
        raise
    if answers[-1].tag != sql.COMMIT:
        raise CommitRolledBack(f"COMMIT answered {answers[-1].tag}")
    return answers


def one_statement(statement: sql.Statement, meaning: Callable[[BaseException], BaseException] = translate,
                  limit: Optional[float] = None) -> Flow:
    """A statement by itself, which commits with it. Result: its answer."""
    def body(session: Any) -> Flow:
        answers = yield from own_trip(session, [statement], meaning, limit)
        return answers[0]

    return (yield from in_session(body))


EVENTS = {ACQUIRED: "acquired", IN_PROGRESS: "in_progress", MISMATCH: "mismatch"}


def announce_begin(settings: Settings, operation: Operation) -> None:
    """Calls the hooks that fit what a begin was answered."""
    settings.emit(EVENTS.get(operation.outcome, "replayed"), operation, attempt=operation.attempt)
    if operation.taken_over:
        settings.emit("taken_over", operation, attempt=operation.attempt)


def announce_refusal(settings: Settings, call: Call, error: BaseException) -> None:
    """Calls the hook of a key that was used with another request."""
    if isinstance(error, KeyReused):
        settings.emit("mismatch", call, sqlstate=error.sqlstate)


def declined_result(operation: Operation, declined: Declined) -> Result:
    """The result of a call whose work was declined just now."""
    return Result(
        outcome=FAILED, code=declined.code, headers=declined.headers, payload=as_stored(declined.payload), body=declined.body,
        attempt=operation.attempt, retry_after=asked(declined.retry_after), taken_over=operation.taken_over,
        is_null=is_null(declined.payload))


def waiting(settings: Settings, call: Call, once: Callable[[Call], Flow]) -> Flow:
    """Runs ``once(call)``, whose result begins with an Operation, until nobody else has it, or the call's wait is over.

    Waits here, not on the server: there it would hold a connection, which the owner may need for its end, and one client
    could take them all.
    """
    until = settings.clock.now() + call.wait
    now = replace(call, wait=0.0)
    pause = max(settings.retry.base, 0.01)
    while True:
        result = yield from once(now)
        left = until - settings.clock.now()
        if result[0].outcome != IN_PROGRESS or left <= 0:
            return result
        yield steps.sleep(min(pause, left))
        pause = min(2 * pause, 1.0)


def transaction(settings: Settings, call: Call, work: Callable[..., Any]) -> Flow:
    """One operation in one transaction, repeated as a whole where that may help. Result: a Result."""
    operation, result = yield from waiting(settings, call, lambda now: one_transaction(settings, now, work))
    if result is None:
        announce_begin(settings, operation)
        result = stored_result(operation)
    return result


def one_transaction(settings: Settings, call: Call, work: Callable[..., Any]) -> Flow:
    """The same without waiting for another owner. Result: an Operation, and a Result where the work ran, else None."""
    lost = False

    def body(session: Any) -> Flow:
        # The server may not have noticed yet that our lost connection is gone: wait for it.
        now = replace(call, wait=call.wait + settings.retry.cap) if lost else call
        try:
            answers = yield from own_trip(session, [
                sql.begin_block(call.isolation), *sql.limit_lost(call.max_lost_attempts), settings.functions.begin(now),
                sql.plain(sql.SAVEPOINT)], translate_begin)
        except Exception as error:
            announce_refusal(settings, call, error)
            raise
        operation = operation_from_row(answers[-2].rows[0])
        if operation.outcome != ACQUIRED:
            # COMMIT, as idem_begin itself writes when the attempts are exhausted
            yield from committing(session, [])
            return operation, None
        announce_begin(settings, operation)
        return operation, (yield from run_work(settings, call, work, session, operation))

    def once() -> Flow:
        nonlocal lost
        try:
            return (yield from in_session(body))
        except Again as again:
            lost = lost or again.lost
            raise

    return (yield from retrying(settings, call, once))


def run_work(settings: Settings, call: Call, work: Callable[..., Any], session: Any, operation: Operation) -> Flow:
    """The work of an acquired operation, and its end. What cannot be read back is not stored."""
    try:
        response: Response = as_response((yield steps.call(work, session.handle, operation)))
    except Declined as declined:
        result = declined_result(operation, declined)
        yield from committing(session, [
            sql.plain(sql.ROLLBACK_TO), settings.functions.fail(call, operation, declined)])
        settings.emit("declined", call, attempt=operation.attempt)
        return result
    except NotDone:
        yield from take_back(settings, call, session, operation)
        raise
    result = own_result(operation, response)
    yield from committing(session, [settings.functions.complete(call, operation, response)])
    return result


def take_back(settings: Settings, call: Call, session: Any, operation: Operation) -> Flow:
    """Rolls back without a lost attempt: the server counts none after idem_release. Where that fails, the session rolls back."""
    with contextlib.suppress(Exception):
        yield steps.round_trip(session, [
            sql.plain(sql.ROLLBACK_TO), settings.functions.release(call, operation), sql.plain(sql.ROLLBACK)])


# Of the transaction of ``plain_transaction`` whose work runs: the operations that its ``begin_many`` acquired.
acquired: ContextVar[List[Operation]] = ContextVar("pg_idempotency_acquired")


def plain_transaction(settings: Settings, call: Call, work: Callable[..., Any]) -> Flow:
    """BEGIN, work, COMMIT without an operation of its own, repeated in the same way. Result: what work gave back.

    Where it has acquired no operations, nothing tells a repeat whether a COMMIT without an answer has taken effect: that is not
    repeated.
    """
    unknown = False

    def body(session: Any) -> Flow:
        nonlocal unknown
        unknown = False
        yield steps.round_trip(session, [sql.begin_block(call.isolation), sql.plain(sql.SAVEPOINT)])
        operations: List[Operation] = []
        token = acquired.set(operations)
        try:
            result = yield steps.call(work, session.handle)
        finally:
            acquired.reset(token)
        unknown = not operations
        yield from committing(session, [sql.plain(sql.RELEASE)])
        return result

    def once() -> Flow:
        try:
            return (yield from in_session(body))
        except Again as again:
            if unknown and again.lost:
                raise again.error from again.error.__cause__
            raise

    return (yield from retrying(settings, call, once))


def expiry(settings: Settings, call: Call) -> Flow:
    """Until when an answer is kept. Result: a datetime, or None where there is no record.

    A database that does not answer for PATIENCE seconds is not waited for: the driver's error of a connection that is cut.
    """
    try:
        answer = yield from retrying(settings, call, lambda: one_statement(settings.functions.expiry(call), limit=PATIENCE))
    except LeaseLost as late:
        raise late.__cause__ or late
    epoch = answer.rows[0][0]
    return None if epoch is None else datetime.fromtimestamp(epoch, timezone.utc)


def begin_many(settings: Settings, fetch: Callable[..., Any], tx: Any, statement: sql.Statement) -> Flow:
    """Begins operations in a transaction of the user. Result: an Operation for each."""
    rows = yield from in_transaction(fetch, tx, statement, translate_begin)
    operations = [operation_from_row(row) for row in rows]
    for operation in operations:
        announce_begin(settings, operation)
    acquired.get([]).extend(operation for operation in operations if operation.outcome == ACQUIRED)
    return operations


def complete_many(fetch: Callable[..., Any], tx: Any, statement: sql.Statement) -> Flow:
    """Completes operations in a transaction of the user. Result: how many."""
    rows = yield from in_transaction(fetch, tx, statement, translate)
    return int(rows[0][0])


def in_transaction(fetch: Callable[..., Any], tx: Any, statement: sql.Statement,
                   meaning: Callable[[BaseException], BaseException]) -> Flow:
    """A statement in a transaction of the user, by the ``fetch`` of its source. Result: its rows."""
    try:
        return (yield steps.call(fetch, tx, statement)).rows
    except Exception as error:
        raise_own(error, meaning)
