"""The two clients, for blocking code and for asyncio. Both only fill in defaults and start a flow."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, List, Optional, Sequence

from . import flow, hooks as hook, lease as leases
from .clock import Clock
from .drive import AsyncDriver, AsyncSource, Driver, Source, awaited
from .errors import BadArgument, BadOption
from .model import (Call, Duration, Operation, Result, check_count, check_hash, is_text, maybe_seconds, seconds, to_json)
from .retry import Retry
from .sql import Functions


class Base:
    """What both clients share: settings, and the arguments of a call. Does no I/O."""

    def __init__(self, *, scope: str = "", schema: Optional[str] = None, retention: Optional[Duration] = None,
                 lease: Duration = 30, retry: Optional[Retry] = None,
                 hooks: Optional[hook.Hooks] = None, clock: Optional[Clock] = None) -> None:
        retry = retry or Retry()
        seconds("retry.base", retry.base)
        seconds("retry.cap", retry.cap)
        self.settings = flow.Settings(
            scope=scope, functions=Functions(schema), retention=maybe_seconds("retention", retention, positive=True),
            lease=seconds("lease", lease, positive=True), retry=retry, hooks=hook.check(hooks or {}), clock=clock or Clock())

    @property
    def scope(self) -> str:
        """The name space of the keys of calls that give none; "" if there is none."""
        return self.settings.scope

    def arguments(self, key: str, request: Any = None, *, scope: Optional[str] = None, wait: Duration = 0,
                  retention: Optional[Duration] = None, lease: Optional[Duration] = None, **options: Any) -> Call:
        """One call with the defaults filled in. Raises BadOption for what is no duration or no number of attempts, BadArgument
        for text that the database cannot hold, and TypeError for a key or a scope that is no text: what a driver makes of an
        object may be another text each time."""
        if not all(text is None or isinstance(text, str) for text in (key, scope)):
            raise TypeError("a key and a scope are strings")
        asked = to_json(request)
        for text in (key, scope, asked):
            check_text(text)
        for name in ("max_attempts", "max_lost_attempts"):
            check_count(name, options.get(name))
        check_hash(options.get("request_hash"))
        if None not in (asked, options.get("request_hash")):
            raise BadOption("request_hash stands in place of a request")
        return Call(
            key=key and str.__str__(key), request=asked, scope=self.in_scope(scope),
            wait=seconds("wait", wait, endless=True), lease=maybe_seconds("lease", lease, positive=True),
            retention=self.settings.retention if retention is None else seconds("retention", retention, positive=True),
            **options)

    def in_scope(self, scope: Optional[str]) -> str:
        """The scope of a call. Of an enum str() would be its name. Raises TypeError for what is no text."""
        return str.__str__(self.settings.scope if scope is None else scope)

    def leased(self, operation: Operation) -> Call:
        """A call for an operation that is owned by its fence."""
        return self.arguments(operation.key, scope=operation.scope, lease=self.settings.lease)


class Idempotency(Base):
    """Operations that take effect once, for blocking code.

    ``source``: a psycopg_pool.ConnectionPool or any object whose ``connection()`` is a context manager; a function
    that gives a new psycopg connection; or a source of ``pg_idempotency.sqlalchemy`` or ``pg_idempotency.django``.
    ``scope``: name space of the keys. ``schema``: where the extension is installed; None: by the search_path.
    ``retention``: seconds (or a timedelta) to keep an answer; None: the database's setting.
    ``lease``: seconds that a lease lasts unless it is extended. ``retry``: how often and after how long a
    transaction is repeated. ``hooks``: functions of an ``Event`` by name (``hooks.NAMES``). ``clock``: a Clock.
    ``prepare``: let psycopg prepare statements of the work by name, which pgbouncer before 1.21 does not support. None:
    where no pooler is in between.
    """

    def __init__(self, source: Any, *, prepare: Optional[bool] = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.driver = Driver(sync_source(source, prepare), self.settings.clock)

    def transaction(self, key: str, request: Any, work: Callable[[Any, Operation], Any], *,
                    scope: Optional[str] = None, request_hash: Optional[bytes] = None, wait: Duration = 0,
                    max_attempts: Optional[int] = None, max_lost_attempts: Optional[int] = None,
                    retention: Optional[Duration] = None,
                    isolation: Optional[str] = None) -> Result:
        """Runs ``work(tx, operation)`` in the transaction that also stores its response, or gives the stored answer.

        ``key``: a string of 1 to 255 characters, which names the operation within ``scope``; None: the client's scope.
        ``request``: a JSON value, with which a repeat is compared; None: no check. ``request_hash``: 32 bytes in its
        place. ``wait``: seconds to wait for the present owner, without a connection, from 0 to 36,500 days, or infinite.
        ``max_attempts``: which attempt is the last. ``max_lost_attempts``: how many attempts may be lost with their
        transaction: the next one is FAILED, for good, and a consumer makes its message a dead letter; 0: no limit;
        None: as the server says. A policy of the scope comes first, and where the server does not preload the library
        nobody counts. Declined and NotDone of the work are no lost attempts. ``retention``: seconds to keep the answer.
        ``isolation``: "REPEATABLE READ" or "SERIALIZABLE", else ValueError; None: as the database says. ``work`` gives
        back a JSON value or a Response, and may run more than once: the whole is repeated on 40001, 40P01 and a lost
        connection.
        Raises KeyReused, BadArgument, Forbidden, TooLarge, NotReady, CommitRolledBack, the work's error, the driver's error;
        TypeError or ValueError for a key that is no string and a request that is no JSON.
        """
        call = self.arguments(
            key, request, scope=scope, request_hash=request_hash, wait=wait, max_attempts=max_attempts,
            max_lost_attempts=max_lost_attempts, retention=retention, isolation=isolation)
        result: Result = self.driver.run(flow.transaction(self.settings, call, work))
        return result

    def lease(self, key: str, request: Any, work: Callable[[Operation, Any], Any], *,
              lease: Optional[Duration] = None, reconcile: Optional[Callable[[Operation], Any]] = None,
              scope: Optional[str] = None, request_hash: Optional[bytes] = None, wait: Duration = 0,
              max_attempts: Optional[int] = None, retention: Optional[Duration] = None) -> Result:
        """Runs ``work(operation, signal)`` under a lease and without a connection, or gives the stored answer.

        ``lease``: seconds; a heartbeat extends it at a third of it. ``signal``: a threading.Event that is set when
        the lease is lost; stop then. ``work`` gives back a response, or a Completion, whose writes commit with it.
        It raises NotDone if nothing happened, and Declined for a failure that is to be stored. After any other error
        the lease runs out, and the next begin has ``taken_over``. ``reconcile(operation)`` is asked first then, and
        answers Done(response), NOT_DONE or UNKNOWN. ``key``, ``request``, ``scope``, ``request_hash``, ``wait``,
        ``max_attempts`` and ``retention``: see ``transaction``. A response that cannot be stored ends the operation without
        one, and so does such a Declined: this call raises its error, and calls after it Unstorable.
        Raises LeaseLost, Unknown, Unstorable, and what ``transaction`` raises.
        """
        call = self.arguments(
            key, request, scope=scope, request_hash=request_hash, wait=wait, max_attempts=max_attempts, retention=retention,
            lease=self.settings.lease if lease is None else lease, reconcile=reconcile)
        result: Result = self.driver.run(leases.lease(self.settings, call, work))
        return result

    def progress(self, operation: Operation, note: Any) -> None:
        """Leaves a note of how far the work of a lease came: a JSON value, not None. It is stored when this returns.

        ``operation``: what the work was given. ``note``: takes the place of the note before. If the lease runs out, the
        next owner gets it: ``taken_over`` is true, and ``payload`` is the note of the attempt before. Repeated as in
        ``transaction``.
        Raises LeaseLost where somebody else owns the operation, TooLarge, BadArgument.
        """
        done: None = self.driver.run(leases.progress(self.settings, self.leased(operation), operation, note))
        return done

    def run(self, work: Callable[[Any], Any], *, isolation: Optional[str] = None) -> Any:
        """Runs ``work(tx)`` in a transaction without an operation of its own, such as for a batch. Gives what work gives back.

        ``work`` may run more than once: the whole is repeated as in ``transaction``; but if it has acquired no operations by
        ``begin_many``, not after a COMMIT whose answer was lost: its writes might be made twice. ``isolation``: as there.
        Raises CommitRolledBack, the work's error, the driver's error, and an IdempotencyError of ID404 where the work has
        ended the transaction.
        """
        call = self.arguments("", isolation=isolation)
        return self.driver.run(flow.plain_transaction(self.settings, call, work))

    def expires_at(self, key: str, *, scope: Optional[str] = None) -> Optional[datetime]:
        """Until when the answer of a ``key`` is kept; None where there is none, or it is kept without end.

        ``scope``: None: the client's scope. Raises Forbidden and the driver's error, also where the database has not
        answered for five seconds.
        """
        until: Optional[datetime] = self.driver.run(flow.expiry(self.settings, self.arguments(key, scope=scope)))
        return until

    def begin_many(self, tx: Any, keys: Sequence[str], requests: Optional[Sequence[Any]] = None, *,
                   scope: Optional[str] = None, request_hashes: Optional[Sequence[Optional[bytes]]] = None,
                   max_attempts: Optional[int] = None) -> List[Operation]:
        """Begins an operation for each of ``keys``, in the transaction of the connection ``tx``. Does not wait.

        Gives an Operation for each key, in order. Its outcome may be MISMATCH: the key had another request.
        End each that is ACQUIRED, by ``complete_many``. ``requests`` has a JSON value or None for each key, or
        ``request_hashes`` 32 bytes or None. ``scope``: None: the client's. ``max_attempts``: which attempt is the last.
        Raises BadArgument, Forbidden, NotReady, TypeError where ``keys`` are no strings, the driver's error.
        """
        check_count("max_attempts", max_attempts)
        for one in request_hashes or ():
            check_hash(one)
        statement = self.settings.functions.begin_many(
            checked_keys(keys), requests, self.in_scope(scope), request_hashes, max_attempts)
        operations: List[Operation] = self.driver.run(flow.begin_many(self.settings, self.driver.source.fetch, tx, statement))
        return operations

    def complete_many(self, tx: Any, keys: Sequence[str], responses: Optional[Sequence[Any]] = None, *,
                      scope: Optional[str] = None) -> int:
        """Completes operations that ``begin_many`` acquired in this transaction of ``tx``. Gives how many.

        ``keys``, ``scope``: as there. ``responses`` has a JSON value or None for each key; None: none for any.
        Raises TooLarge, BadArgument, TypeError where ``keys`` are no strings, and the driver's error, with ID404 for an operation
        that this transaction has not begun.
        """
        statement = self.settings.functions.complete_many(checked_keys(keys), responses, self.in_scope(scope))
        count: int = self.driver.run(flow.complete_many(self.driver.source.fetch, tx, statement))
        return count


class AsyncIdempotency(Base):
    """The same for asyncio: ``source`` is a psycopg_pool.AsyncConnectionPool, an object whose ``connection()``
    is an async context manager, or a function that gives an AsyncConnection. Other arguments: see Idempotency.

    Its methods are those of Idempotency as coroutine functions, and so may be what they are given. ``signal`` of leased
    work is an asyncio.Event, and the work is cancelled when the lease is lost.
    """

    def __init__(self, source: Any, *, prepare: Optional[bool] = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.driver = AsyncDriver(async_source(source, prepare), self.settings.clock)

    transaction = awaited(Idempotency.transaction)
    lease = awaited(Idempotency.lease)
    progress = awaited(Idempotency.progress)
    run = awaited(Idempotency.run)
    expires_at = awaited(Idempotency.expires_at)
    begin_many = awaited(Idempotency.begin_many)
    complete_many = awaited(Idempotency.complete_many)


def check_text(text: Optional[str]) -> None:
    """Raises BadArgument for NUL and for half a surrogate pair, which drivers refuse before the server can."""
    if text is not None and ("\0" in text or not is_text(text)):
        raise BadArgument("a key, a scope and a request are text that PostgreSQL can hold")


def checked_keys(keys: Sequence[str]) -> List[str]:
    """The keys of many. Raises TypeError where one is no string, and for a string, of which each character would be a key;
    BadArgument for text that the database cannot hold."""
    given = list(keys)
    if isinstance(keys, str) or not all(isinstance(key, str) for key in given):
        raise TypeError("many keys are a list of strings")
    for key in given:
        check_text(key)
    return given


def sync_source(source: Any, prepare: Optional[bool]) -> Source:
    """Whatever a user gave, as a Source."""
    if hasattr(source, "open") and hasattr(source, "recover"):
        own: Source = source
        return own
    from .psycopg import PsycopgSource, pool_of
    return PsycopgSource(pool_of(source, "__enter__", "__aenter__"), prepare)


def async_source(source: Any, prepare: Optional[bool]) -> AsyncSource:
    """Whatever a user gave, as an AsyncSource."""
    if hasattr(source, "open") and hasattr(source, "recover"):
        own: AsyncSource = source
        return own
    from .psycopg import AsyncPsycopgSource, pool_of
    return AsyncPsycopgSource(pool_of(source, "__aenter__", "__enter__"), prepare)
