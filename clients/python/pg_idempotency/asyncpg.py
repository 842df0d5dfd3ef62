"""Connections of asyncpg, from a pool.

BEGIN and COMMIT are asyncpg's own transaction, so ``tx.transaction()`` in the work is a
savepoint, as always. asyncpg sends one statement at a time.
"""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional, Sequence

import asyncpg

from .sql import BEGIN, COMMIT, Statement, numbered
from .steps import Answer


# What asyncpg raises; before Python 3.11 its timeouts were no OSError. A connection that has ended may get InternalClientError.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError)


class AsyncpgSession:
    """A connection that one call has for itself. ``block`` is asyncpg's transaction, if one is open."""

    block: Any = None

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.handle: Any = None

    async def open(self) -> "AsyncpgSession":
        try:
            self.handle = await self.manager.__aenter__()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise       # of the pool: all connections are in use
            raise asyncpg.ConnectionFailureError("the database cannot be reached") from error
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
            block = self.handle.transaction(isolation=level or None)
            await block.start()
            self.block = block
        elif text == COMMIT:
            block, self.block = self.block, None
            await block.commit()
        elif statement[1]:
            return await fetch(self.handle, statement)
        else:
            await self.handle.execute(text)
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
            self.handle.terminate()

    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        try:
            return bool(self.handle.is_closed())
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
