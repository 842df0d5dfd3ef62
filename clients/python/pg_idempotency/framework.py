"""What SQLAlchemy and Django have in common: the framework begins and commits, and sends one statement at a time.

So its events, hooks and pools work as always. The drivers below them do not show
the tag of COMMIT. So the state of the transaction is looked at before: only a
failed one answers ROLLBACK.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from typing import Any, Callable, List, Sequence

from .errors import CommitRolledBack
from .sql import BEGIN, COMMIT, ROLLBACK, Statement
from .steps import Answer

IN_ERROR = 3    # PQTRANS_INERROR, in psycopg2's and psycopg's numbers


def cut(driver: Callable[[], Any]) -> None:
    """Shuts the socket of a driver's connection: who waits for its server, in whatever thread, gets an error."""
    try:
        with socket.socket(fileno=os.dup(driver().fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    except Exception:
        return      # it has ended already


class FrameworkSession(ABC):
    """A connection for the time of a call. ``block`` is the framework's transaction, if one is open."""

    handle: Any
    block: Any = None

    def round_trip(self, statements: Sequence[Statement]) -> List[Answer]:
        return [self.run(one) for one in statements]

    def run(self, statement: Statement) -> Answer:
        """One statement, or the step of the framework that sends it."""
        text = statement[0]
        if text.startswith(BEGIN):
            return self.run_begin(text[len(BEGIN):])
        if text == ROLLBACK:
            return Answer(ROLLBACK, [])     # the framework's own, by abandon
        self.before(text)
        return self.run_commit() if text == COMMIT else self.fetch(statement)

    def run_begin(self, mode: str) -> Answer:
        """Begins; an isolation level counts for this transaction alone."""
        self.begin()
        if mode:
            self.fetch((f"SET TRANSACTION{mode}", ()))
        return Answer(BEGIN, [])

    def run_commit(self) -> Answer:
        """Commits, unless the transaction has failed."""
        status = getattr(getattr(self.driver(), "info", None), "transaction_status", None)
        if status == IN_ERROR:
            raise CommitRolledBack("the work caught an error of the database and went on")
        if status is None:
            self.fetch(("SELECT 1", ()))    # asyncpg does not show it: a failed transaction answers 25P02
        self.commit()
        return Answer(COMMIT, [])

    def cut(self) -> None:
        cut(self.driver)

    @abstractmethod
    def driver(self) -> Any:
        """The driver's connection."""

    @abstractmethod
    def begin(self) -> None:
        """Opens the block."""

    @abstractmethod
    def before(self, text: str) -> None:
        """Prepares the framework for a statement that does not begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commits the block."""

    @abstractmethod
    def fetch(self, statement: Statement) -> Answer:
        """Sends one statement."""
