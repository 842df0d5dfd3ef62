"""Connections of asyncpg, from a pool.

BEGIN and COMMIT are asyncpg's own transaction, so ``tx.transaction()`` in the work is a
savepoint, as always. asyncpg sends one statement at a time.
"""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional, Sequence

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from .errors import NotOwned
from .framework import has_left
from .sql import BEGIN, COMMIT, Statement, numbered
from .steps import Answer


# What asyncpg raises; before Python 3.11 its timeouts were no OSError. A connection that has ended may get InternalClientError.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError)


# How the methods begin that send a statement of the work.
SENDING = ("execute", "fetch", "prepare", "cursor", "copy")


class WorkConnection(PoolConnectionProxy):  # type: ignore[misc]
    """The connection as the work sees it: a statement behind the end of its transaction is refused."""

    __slots__ = ("connection",)     # an attribute that the work sets is an error, as on a connection of asyncpg's pool

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __getattribute__(self, name: str) -> Any:
        connection = object.__getattribute__(self, "connection")
        if name.startswith(SENDING) and has_left(connection):
            raise NotOwned()
        return getattr(connection, name)


class AsyncpgSession:
    """A connection that one call has for itself. ``block`` is asyncpg's transaction, if one is open."""

    block: Any = None

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.connection: Any = None
        self.handle: Any = None

    async def open(self) -> "AsyncpgSession":
        try:
            self.connection = await self.manager.__aenter__()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise       # of the pool: all connections are in use
            raise asyncpg.ConnectionFailureError("the database cannot be reached") from error
        self.handle = WorkConnection(self.connection)
        return self

    async def round_trip(self, statements: Sequence[Statement]) -> List[Answer]:
        try:
            return [await self.run(one) for one in statements]
        except asyncpg.InternalClientError as error:
            raise asyncpg.ConnectionDoesNotExistError("the connection has ended") from error

    async def run(self, statement: Statement) -> Answer:
        """One statement, or the step of asyncpg that sends it."""
        text = statement[0]
        if text.startswith(BEGIN):
            level = text[len(BEGIN + " ISOLATION LEVEL "):].lower().replace(" ", "_")
            block = self.connection.transaction(isolation=level or None)
            await block.start()
            self.block = block
        elif text == COMMIT:
            block, self.block = self.block, None
            await block.commit()
        elif statement[1]:
            return await fetch(self.connection, statement)
        else:
            await self.connection.execute(text)
        return Answer(text, [])

    async def close(self) -> None:
        """Gives the connection back. Its transaction has ended, so it matters to nobody whether the connection has, too."""
        await self.give_back()

    async def give_back(self) -> bool:
        """Gives whether the pool could reset the connection; else the pool has ended it."""
        try:
            await self.manager.__aexit__(None, None, None)
        except FAILURES:
            return False
        return True

    def cut(self) -> None:
        if not self.is_lost():
            self.connection.terminate()

    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        try:
            return bool(self.connection.is_closed())
        except asyncpg.InterfaceError:
            return True     # the pool has taken it back by itself

    async def abandon(self, error: BaseException) -> bool:
        try:
            if self.block is not None and not self.is_lost():
                await self.block.rollback()
        except FAILURES:
            self.cut()
        lost = self.is_lost()
        return not await self.give_back() or lost


class AsyncpgSource:
    """Connections of a pool of asyncpg. ``timeout``: for how many seconds a call waits for one; None: without end."""

    def __init__(self, pool: Any, *, timeout: Optional[float] = 5) -> None:
        self.pool = pool
        self.timeout = timeout

    async def open(self) -> AsyncpgSession:
        return await AsyncpgSession(self.pool.acquire(timeout=self.timeout)).open()

    async def recover(self) -> None:
        """After a restart of the server all idle connections are dead: the pool opens others."""
        await self.pool.expire_connections()

    async def fetch(self, tx: Any, statement: Statement) -> Answer:
        return await fetch(tx, statement)


async def fetch(connection: Any, statement: Statement) -> Answer:
    """One statement with its rows."""
    rows = await connection.fetch(numbered(statement[0]), *statement[1])
    return Answer("", [tuple(row) for row in rows])
