"""Connections of SQLAlchemy, 1.4 or newer, with any DBAPI driver of PostgreSQL that is synchronous.

BEGIN and COMMIT go through SQLAlchemy, so that its events and its pool work as
always. Such a driver does not show the tag of COMMIT, so the state of the
transaction is looked at before: only a failed one answers ROLLBACK.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

from .errors import CommitRolledBack
from .sql import BEGIN, COMMIT, ROLLBACK_TO, Statement
from .steps import Answer

IN_ERROR = 3    # PQTRANS_INERROR, in psycopg2's and psycopg's numbers


class SQLAlchemySession:
    """A connection that one call has for itself, and a Session on it where the user has a factory."""

    def __init__(self, connection: Any, factory: Optional[Callable[..., Any]]) -> None:
        self.connection = connection
        self.session = factory(bind=connection) if factory else None
        self.handle = self.session if self.session is not None else connection
        self.block: Any = None

    def trip(self, statements: Sequence[Statement]) -> List[Answer]:
        """Runs the statements one after the other."""
        return [self.run(one) for one in statements]

    def run(self, statement: Statement) -> Answer:
        """One statement, or the step of SQLAlchemy that sends it."""
        text = statement[0]
        if text.startswith(BEGIN):
            return self.begin(text)
        if text == COMMIT:
            return self.commit()
        if text == ROLLBACK_TO and self.session is not None:
            self.session.expunge_all()
        elif self.session is not None:
            self.session.flush()
        if self.block is None:
            self.connection = self.connection.execution_options(isolation_level="AUTOCOMMIT")
        return fetch(self.connection, statement)

    def begin(self, text: str) -> Answer:
        """Begins; an isolation level counts for this transaction alone."""
        level = text[len(BEGIN) + len(" ISOLATION LEVEL "):]
        self.block = self.connection.begin()
        if level:
            self.connection.exec_driver_sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        return Answer(BEGIN, [])

    def commit(self) -> Answer:
        """Commits, unless the transaction has failed."""
        if self.session is not None:
            self.session.flush()
        driver = self.connection.connection.dbapi_connection
        info = getattr(driver, "info", None)
        if getattr(info, "transaction_status", None) == IN_ERROR:
            raise CommitRolledBack("the work caught an error of the database and went on")
        self.block.commit()
        self.block = None
        return Answer(COMMIT, [])

    def close(self) -> None:
        """Gives the connection back."""
        if self.session is not None:
            self.session.close()
        self.connection.close()

    def abandon(self, error: BaseException) -> bool:
        """Rolls back and gives the connection back. Gives whether it was lost."""
        lost = bool(self.connection.invalidated) or bool(getattr(error, "connection_invalidated", False))
        try:
            # a Session that failed has taken its transaction back already
            if self.block is not None and self.block.is_active:
                self.block.rollback()
            self.close()
        except Exception:
            self.connection.invalidate()
            self.connection.close()
            lost = True
        return lost


class SQLAlchemySource:
    """Connections of an Engine. ``session``: a sessionmaker; the work is then given a Session, else a Connection.

    The Session is flushed before the operation ends, and closed afterwards. Do not commit it in the work.
    """

    def __init__(self, engine: Any, session: Optional[Callable[..., Any]] = None) -> None:
        self.engine = engine
        self.session = session

    def open(self) -> SQLAlchemySession:
        return SQLAlchemySession(self.engine.connect(), self.session)

    def recover(self) -> None:
        """SQLAlchemy does so by itself: a lost connection makes all older ones of the pool invalid."""

    def fetch(self, tx: Any, statement: Statement) -> Answer:
        """One statement in a transaction of the user, a Session or a Connection."""
        return fetch(tx if hasattr(tx, "exec_driver_sql") else tx.connection(), statement)


def fetch(connection: Any, statement: Statement) -> Answer:
    """One statement by the driver, with the driver's placeholders."""
    result = connection.exec_driver_sql(*statement) if statement[1] else connection.exec_driver_sql(statement[0])
    return Answer("", [tuple(row) for row in result] if result.returns_rows else [])
