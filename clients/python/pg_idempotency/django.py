"""Django's own connections, 3.2 or newer: the work and the ORM share the transaction.

BEGIN and COMMIT are Django's ``atomic``, so ``on_commit`` hooks run after a real
COMMIT, and only then: Django itself runs them after one that answered ROLLBACK.
"""

from __future__ import annotations

from typing import Any, Callable

from django.db import connections, transaction

from .errors import CommitRolledBack, NotOwned
from .framework import FrameworkSession, can_leave, has_left
from .sql import ROLLBACK_TO, Statement
from .steps import Answer


class DjangoSession(FrameworkSession):
    """The thread's connection to one database, for the time of a call."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.handle = connections[using]
        if not (self.handle.get_autocommit() or self.handle.in_atomic_block):
            raise RuntimeError("Django's autocommit is off: nobody would commit")
        self.opened = self.handle.connection

    def driver(self) -> Any:
        return self.handle.connection

    def begin(self) -> None:
        """Begins the outermost block; raises RuntimeError inside of another one, as nothing could be repeated."""
        block = transaction.atomic(using=self.using, durable=True)
        block.__enter__()
        self.block = block
        self.hooks = len(self.handle.run_on_commit)     # those of a TestCase around it

    def before(self, text: str) -> None:
        if text == ROLLBACK_TO:
            transaction.set_rollback(False, using=self.using)
            del self.handle.run_on_commit[self.hooks:]      # of the work, which is undone
        if self.block is None and self.handle.in_atomic_block:
            raise RuntimeError("a lease must begin and end outside of other transactions")
        if self.handle.needs_rollback:
            raise CommitRolledBack("the work caught an error of the database and went on")

    def guard(self) -> None:
        if can_leave(self.driver()):
            self.handle.execute_wrappers.append(self.refuse_left)

    def refuse_left(self, execute: Callable[..., Any], text: Any, values: Any, many: bool, context: Any) -> Any:
        """Runs a statement, or refuses one behind the end of its transaction."""
        if has_left(self.driver()):
            raise NotOwned()
        return execute(text, values, many, context)

    def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    def fetch(self, statement: Statement) -> Answer:
        return fetch(self.handle, statement)

    def close(self) -> None:
        """The thread keeps its connection."""
        self.handle.execute_wrappers[:] = [one for one in self.handle.execute_wrappers if one != self.refuse_left]

    def abandon(self, error: BaseException) -> bool:
        """Rolls back. Gives whether the connection was lost; a lost one is closed, so that Django opens another."""
        driver = self.driver()
        self.close()
        # After a COMMIT that got no answer Django has another connection already.
        lost = driver is None or bool(driver.closed) or driver is not self.opened
        if self.block is not None:
            block, self.block = self.block, None
            try:
                block.__exit__(type(error), error, error.__traceback__)
            except Exception:
                lost = True
        if lost:
            self.handle.close()
        return lost


class DjangoSource:
    """The thread's connection to the database ``using``. The work is given Django's connection."""

    def __init__(self, using: str = "default") -> None:
        self.using = using

    def open(self) -> DjangoSession:
        return DjangoSession(self.using)

    def recover(self) -> None:
        """Django has no pool."""

    def fetch(self, tx: Any, statement: Statement) -> Answer:
        return fetch(tx, statement)


def fetch(connection: Any, statement: Statement) -> Answer:
    """One statement by Django's cursor."""
    with connection.cursor() as cursor:
        cursor.execute(statement[0], statement[1] or None)
        return Answer("", cursor.fetchall() if cursor.description else [])
