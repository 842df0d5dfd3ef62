"""Connections of SQLAlchemy, 1.4 or newer, with any DBAPI driver of PostgreSQL that is synchronous."""

from __future__ import annotations

from typing import Any, Callable, Optional

from .framework import FrameworkSession
from .sql import ROLLBACK_TO, Statement
from .steps import Answer


class SQLAlchemySession(FrameworkSession):
    """A connection that one call has for itself, and a Session on it where the user has a factory."""

    def __init__(self, connection: Any, factory: Optional[Callable[..., Any]]) -> None:
        self.connection = connection
        self.session = factory(bind=connection) if factory else None
        self.handle = self.session if self.session is not None else connection

    def driver(self) -> Any:
        return self.connection.connection.dbapi_connection

    def begin(self) -> None:
        self.block = self.connection.begin()

    def before(self, text: str) -> None:
        if text == ROLLBACK_TO and self.session is not None:
            self.session.expunge_all()
        elif self.session is not None:
            self.session.flush()
        if self.block is None:
            self.connection = self.connection.execution_options(isolation_level="AUTOCOMMIT")

    def commit(self) -> None:
        self.block.commit()
        self.block = None

    def fetch(self, statement: Statement) -> Answer:
        return fetch(self.connection, statement)

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
