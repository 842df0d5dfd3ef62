"""Connections of psycopg 3, from a pool or made anew, sync and async.

The package sends BEGIN itself, past psycopg, which sends none of its own in a transaction. The two settings that are
changed are kept by psycopg, not by the server, and are put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any, AsyncContextManager, AsyncIterator, Awaitable, Callable, ContextManager, List, Optional, Sequence

import psycopg
from psycopg import generators, waiting
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .drive import to_its_end
from .fork import owner_of, refuse_inherited
from .framework import cut
from .pipeline import Prepared, round_trip
from .sql import BEGIN, ROLLBACK, Statement, plain
from .steps import Answer


def with_isolation(connection: Any, statements: Sequence[Statement]) -> Sequence[Statement]:
    """A plain BEGIN, which is the first, gets the isolation level that the connection has in psycopg."""
    level = connection.isolation_level
    if statements[0][0] != BEGIN or level is None:
        return statements
    return [(f"{BEGIN} ISOLATION LEVEL {level.name.replace('_', ' ')}", ()), *statements[1:]]


def refuse_transaction(connection: Any) -> None:
    """What is open on the connection already would commit, or go, with the operation."""
    if not hasattr(connection, "pgconn"):
        raise TypeError("this is no connection of psycopg 3")
    status = connection.pgconn.transaction_status
    if status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
        raise psycopg.ProgrammingError(f"the connection is not free: its transaction status is {TransactionStatus(status).name}")


def is_idle(connection: Any) -> bool:
    return bool(connection.pgconn.transaction_status == TransactionStatus.IDLE)


def commits_by_itself(connection: Any) -> bool:
    """Whether what comes behind a ``rollback()`` of the work would stay, and be there once more after the retry."""
    return bool(connection.autocommit) and is_idle(connection)


def may_prepare(asked: Optional[bool], prepared: Prepared) -> bool:
    """Whether psycopg may prepare statements of the work: as the user says, or where no pooler is in between."""
    return bool(prepared.direct) if asked is None else asked


CANCEL_LIMIT = 5.0      # seconds, where the network hangs


def cancel_request(connection: Any) -> Any:
    """A request to end the statement of a connection, which holds when that is closed. None where libpq is older than
    17: its request holds the interpreter's lock while it waits, so a network that hangs would stop the whole program.
    """
    try:
        return connection.pgconn.cancel_conn()
    except (AttributeError, psycopg.NotSupportedError):
        return None


async def end_statement(request: Any) -> None:
    """Sends such a request. Raises psycopg.Error where the server cannot be reached."""
    if request is not None:
        request.start()
        await waiting.wait_conn_async(generators.cancel(request), interval=0.1, timeout=CANCEL_LIMIT)


class PsycopgSession:
    """A connection that one call has for itself."""

    def __init__(self, manager: ContextManager[Any], prepare: Optional[bool]) -> None:
        self.manager = manager
        self.handle = manager.__enter__()
        try:
            refuse_transaction(self.handle)
            self.threshold = self.handle.prepare_threshold
            self.autocommit = commits_by_itself(self.handle)
            self.prepared = Prepared.on(self.handle)
            if self.autocommit:
                self.handle.autocommit = False
            if not may_prepare(prepare, self.prepared):
                self.handle.prepare_threshold = None
        except BaseException as error:
            manager.__exit__(type(error), error, error.__traceback__)
            raise

    def round_trip(self, statements: Sequence[Statement]) -> List[Answer]:
        statements = with_isolation(self.handle, statements)
        with self.handle.lock:
            answers: List[Answer] = self.handle.wait(round_trip(self.handle, self.prepared, statements))
        return answers

    def close(self) -> None:
        self.handle.prepare_threshold = self.threshold
        if self.autocommit and is_idle(self.handle):
            self.handle.autocommit = True
        self.manager.__exit__(None, None, None)

    def cut(self) -> None:
        cut(lambda: self.handle)

    def abandon(self, error: BaseException) -> bool:
        lost = bool(self.handle.broken)
        try:
            status = self.handle.info.transaction_status
            if status == TransactionStatus.ACTIVE:
                if hasattr(self.handle, "cancel_safe"):
                    self.handle.cancel_safe(timeout=CANCEL_LIMIT)
                else:
                    self.handle.cancel()
                self.handle.close()
            elif status != TransactionStatus.IDLE and not lost:
                self.round_trip([plain(ROLLBACK)])
        except psycopg.Error:
            self.handle.close()
            lost = True
        try:
            self.close()
        except psycopg.Error:
            lost = True
        return lost


class PsycopgSource:
    """Connections of a pool: an object whose ``connection()`` is a context manager."""

    def __init__(self, pool: Any, prepare: Optional[bool] = None) -> None:
        self.pool = pool
        self.prepare = prepare
        owner_of(pool)

    def open(self) -> PsycopgSession:
        refuse_inherited(self.pool)
        return PsycopgSession(self.pool.connection(), self.prepare)

    def recover(self) -> None:
        """After a restart of the server all idle connections are dead: let the pool look at them."""
        check = getattr(self.pool, "check", None)
        if check is not None:
            check()

    def fetch(self, tx: Any, statement: Statement) -> Answer:
        """One statement in a transaction of the user, by a cursor that neither the pool's nor the user's settings change."""
        cursor = psycopg.Cursor(tx, row_factory=tuple_row)
        return Answer("", cursor.execute(*statement, prepare=False).fetchall())


class Connecting:
    """A pool that is none: a connection for each call, by a function that makes one."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.connect = connect

    def connection(self) -> Any:
        connection = self.connect()
        return closing_later(connection) if inspect.isawaitable(connection) else contextlib.closing(connection)


def pool_of(source: Any, enter: str, other: str) -> Any:
    """What a user gave, as a pool. The error does not quote it: a connection string has a password."""
    if hasattr(source, other) and not hasattr(source, enter):
        raise TypeError("Idempotency needs a blocking pool, and AsyncIdempotency one of asyncio")
    if callable(getattr(source, "connection", None)):
        return source
    if callable(source):
        return Connecting(source)
    raise TypeError("an Idempotency needs a pool of psycopg_pool, a function that connects, or a source of pg_idempotency")


@contextlib.asynccontextmanager
async def closing_later(pending: Awaitable[Any]) -> AsyncIterator[Any]:
    """Closes the connection that still has to come."""
    connection = await pending
    try:
        yield connection
    finally:
        await connection.close()


class AsyncPsycopgSession:
    """A connection that one call has for itself."""

    def __init__(self, manager: AsyncContextManager[Any], prepare: Optional[bool]) -> None:
        self.manager = manager
        self.prepare = prepare
        self.handle: Any = None
        self.threshold: Optional[int] = None

    async def open(self) -> "AsyncPsycopgSession":
        self.handle = await self.manager.__aenter__()
        try:
            refuse_transaction(self.handle)
            self.threshold = self.handle.prepare_threshold
            self.autocommit = commits_by_itself(self.handle)
            if self.autocommit:
                await self.handle.set_autocommit(False)
            self.request = cancel_request(self.handle)
            self.prepared = Prepared.on(self.handle)
            if not may_prepare(self.prepare, self.prepared):
                self.handle.prepare_threshold = None
        except BaseException as error:
            await to_its_end(self.manager.__aexit__(type(error), error, error.__traceback__))
            raise
        return self

    async def round_trip(self, statements: Sequence[Statement]) -> List[Answer]:
        statements = with_isolation(self.handle, statements)
        async with self.handle.lock:
            answers: List[Answer] = await self.handle.wait(round_trip(self.handle, self.prepared, statements))
        return answers

    async def close(self) -> None:
        self.handle.prepare_threshold = self.threshold
        if self.autocommit and is_idle(self.handle):
            await self.handle.set_autocommit(True)
        await self.manager.__aexit__(None, None, None)

    def cut(self) -> None:
        cut(lambda: self.handle)

    async def abandon(self, error: BaseException) -> bool:
        lost = bool(self.handle.broken)
        try:
            status = self.handle.info.transaction_status
            if status == TransactionStatus.ACTIVE:
                await end_statement(self.request)
                await self.handle.close()
            elif self.handle.closed and isinstance(error, asyncio.CancelledError):
                # psycopg closes it where a second cancellation interrupts its own request: the statement would go on,
                # and hold the operation
                await end_statement(self.request)
            elif status != TransactionStatus.IDLE and not lost:
                await self.round_trip([plain(ROLLBACK)])
        except psycopg.Error:
            await self.handle.close()
            lost = True
        try:
            await self.close()
        except psycopg.Error:
            lost = True
        return lost


class AsyncPsycopgSource:
    """Connections of an async pool: an object whose ``connection()`` is an async context manager."""

    def __init__(self, pool: Any, prepare: Optional[bool] = None) -> None:
        self.pool = pool
        self.prepare = prepare
        owner_of(pool)

    async def open(self) -> AsyncPsycopgSession:
        refuse_inherited(self.pool)
        return await AsyncPsycopgSession(self.pool.connection(), self.prepare).open()

    async def recover(self) -> None:
        """After a restart of the server all idle connections are dead: let the pool look at them."""
        check = getattr(self.pool, "check", None)
        if check is not None:
            await check()

    async def fetch(self, tx: Any, statement: Statement) -> Answer:
        cursor = psycopg.AsyncCursor(tx, row_factory=tuple_row)
        return Answer("", await (await cursor.execute(*statement, prepare=False)).fetchall())
