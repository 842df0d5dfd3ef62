"""What SQLAlchemy and Django have in common: the framework begins and commits, and sends one statement at a time.

So its events, hooks and pools work as always. The drivers below them do not show
the tag of COMMIT. But a statement of the package comes before it, and a transaction
that has failed refuses that.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from typing import Any, Callable, List, Sequence

from .sql import BEGIN, COMMIT, ROLLBACK, SAVEPOINT, Statement
from .steps import Answer


def cut(driver: Callable[[], Any]) -> None:
    """Shuts the socket of a driver's connection: who waits for its server, in whatever thread, gets an error."""
    try:
        with socket.socket(fileno=os.dup(driver().fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    except Exception:
        return      # it has ended already


def can_leave(driver: Any) -> bool:
    """Whether it sends what comes behind an end of the work's as it is. Other drivers begin another transaction."""
    return hasattr(driver, "is_in_transaction") or hasattr(driver, "get_transaction_status")


def has_left(driver: Any) -> bool:
    """Whether the work has ended its transaction by a statement, and what comes behind it would commit by itself, and again
    with each attempt. The server told of its state with its last answer.
    """
    if hasattr(driver, "is_in_transaction"):
        return not driver.is_in_transaction()   # asyncpg
    return hasattr(driver, "get_transaction_status") and driver.get_transaction_status() == 0      # psycopg2: idle


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
        if text == COMMIT:
            self.commit()
            return Answer(COMMIT, [])
        answer = self.fetch(statement)
        if text == SAVEPOINT:
            self.guard()
        return answer

    def run_begin(self, mode: str) -> Answer:
        """Begins; an isolation level counts for this transaction alone."""
        self.begin()
        if mode:
            self.fetch((f"SET TRANSACTION{mode}", ()))
        return Answer(BEGIN, [])

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
    def guard(self) -> None:
        """Has statements refused that come when the transaction ``has_left``: now comes the work."""

    @abstractmethod
    def commit(self) -> None:
        """Commits the block."""

    @abstractmethod
    def fetch(self, statement: Statement) -> Answer:
        """Sends one statement."""
