"""Connections of SQLAlchemy, with any of its drivers of PostgreSQL: 1.4 or newer, and with asyncio 2.0 or newer."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

from sqlalchemy import event
from sqlalchemy.exc import OperationalError, StatementError

from .drive import to_its_end
from .errors import CommitRolledBack, IdempotencyError, NotOwned
from .fork import OWNERS, owner_of, refuse_inherited
from .framework import FrameworkSession, can_leave, cut, has_left
from .sql import ROLLBACK_TO, Statement, numbered
from .steps import Answer


class SQLAlchemySession(FrameworkSession):
    """A connection that one call has for itself, and a Session on it where the user has a factory."""

    def __init__(self, connection: Any, factory: Optional[Callable[..., Any]]) -> None:
        self.connection = connection
        self.session: Any = None
        self.has_dropped = False
        self.handle = connection
        if factory:
            try:
                self.handle = factory(bind=connection)
                self.keep(self.handle)
            except BaseException:
                connection.close()
                raise

    def keep(self, session: Any) -> None:
        """The work gets this Session. What it closes or takes back unflushed, such as by a framework's hook after its end,
        no COMMIT would have. Nor would it have what a close rolls back to a savepoint of the Session.
        """
        def noting(name: str, end: Callable[[], None]) -> Callable[[], None]:
            def noted() -> None:
                in_savepoint = name != "rollback" and self.connection.in_nested_transaction()
                self.has_dropped = self.has_dropped or in_savepoint or has_changes(session)
                end()
            return noted

        self.session = session
        for name in ("close", "reset", "rollback"):
            if hasattr(session, name):      # reset came with 2.0.22
                setattr(session, name, noting(name, getattr(session, name)))
        event.listen(session, "after_begin", self.refuse_other)

    def refuse_other(self, session: Any, transaction: Any, connection: Any) -> None:
        """A Session with engines of its own, such as Flask-SQLAlchemy's, would write where nobody commits."""
        if connection.connection is not self.connection.connection:
            self.has_dropped = True     # the Session asks but once
            raise IdempotencyError(
                "the Session uses another connection than the operation: its sessionmaker has binds, or a class that chooses "
                "engines, such as Flask-SQLAlchemy's. Give one without, such as sqlalchemy.orm.sessionmaker()")

    def driver(self) -> Any:
        return self.connection.connection.dbapi_connection

    def begin(self) -> None:
        self.block = self.connection.begin()

    def before(self, text: str) -> None:
        if text == ROLLBACK_TO and self.session is not None:
            self.session.expunge_all()
            self.has_dropped = False
        elif self.session is not None:
            if self.has_dropped:
                raise CommitRolledBack("the Session of the work was closed or rolled back with changes that were not flushed, "
                                       "or closed in a savepoint")
            self.session.flush()
        if self.block is None:
            self.connection = self.connection.execution_options(isolation_level="AUTOCOMMIT")

    def guard(self) -> None:
        if can_leave(self.connection.connection.driver_connection):
            event.listen(self.connection, "before_cursor_execute", refuse_left)

    def commit(self) -> None:
        self.block.commit()
        self.block = None

    def fetch(self, statement: Statement) -> Answer:
        return fetch(self.connection, statement)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.connection.close()

    def abandon(self, error: BaseException) -> bool:
        lost = bool(self.connection.invalidated)
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

    The Session is flushed before the operation ends, and closed afterwards. Do not commit or close it in the work:
    closed or rolled back with changes that were not flushed, it is CommitRolledBack.
    """

    def __init__(self, engine: Any, session: Optional[Callable[..., Any]] = None) -> None:
        self.engine = engine
        self.session = session
        note_connections(engine)

    def open(self) -> SQLAlchemySession:
        refuse_inherited(self.engine.pool)
        return SQLAlchemySession(self.engine.connect(), self.session)

    def recover(self) -> None:
        """SQLAlchemy does so by itself: a lost connection makes all older ones of the pool invalid."""

    def fetch(self, tx: Any, statement: Statement) -> Answer:
        """One statement in a transaction of the user, a Session or a Connection."""
        return fetch(tx if hasattr(tx, "exec_driver_sql") else tx.connection(), statement)


class AsyncSQLAlchemySession:
    """The same on an AsyncConnection: SQLAlchemy itself runs the steps of the blocking one in a greenlet."""

    def __init__(self, connection: Any, factory: Optional[Callable[..., Any]]) -> None:
        self.connection = connection
        self.session = factory(bind=connection) if factory else None
        self.handle = self.session if self.session is not None else connection
        self.inner = SQLAlchemySession(connection.sync_connection, None)
        if self.session is not None:
            self.inner.keep(self.session.sync_session)

    async def round_trip(self, statements: Sequence[Statement]) -> List[Answer]:
        answers: List[Answer] = await self.connection.run_sync(lambda connection: self.inner.round_trip(statements))
        return answers

    async def close(self) -> None:
        await self.connection.run_sync(lambda connection: self.inner.close())

    async def abandon(self, error: BaseException) -> bool:
        lost: bool = await self.connection.run_sync(lambda connection: self.inner.abandon(error))
        return lost

    def cut(self) -> None:
        driver = self.inner.driver().driver_connection
        if hasattr(driver, "terminate"):
            driver.terminate()      # asyncpg
        else:
            cut(lambda: driver)


class AsyncSQLAlchemySource:
    """Connections of an AsyncEngine of SQLAlchemy 2. ``session``: an async_sessionmaker; the work is then given an AsyncSession,
    else an AsyncConnection. Otherwise as SQLAlchemySource.
    """

    def __init__(self, engine: Any, session: Optional[Callable[..., Any]] = None) -> None:
        self.engine = engine
        self.session = session
        note_connections(engine.sync_engine)

    async def open(self) -> AsyncSQLAlchemySession:
        refuse_inherited(self.engine.pool)
        try:
            connection = await self.engine.connect().start()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            # asyncpg's dialect passes it on as it is; the others have this class for it
            raise OperationalError("connect", None, error) from error
        try:
            return AsyncSQLAlchemySession(connection, self.session)
        except BaseException:
            await to_its_end(connection.close())
            raise

    async def recover(self) -> None:
        """SQLAlchemy does so by itself."""

    async def fetch(self, tx: Any, statement: Statement) -> Answer:
        """One statement in a transaction of the user, an AsyncSession or an AsyncConnection."""
        connection = tx if hasattr(tx, "exec_driver_sql") else await tx.connection()
        answer: Answer = await connection.run_sync(lambda inner: fetch(inner, statement))
        return answer


def note_connections(engine: Any) -> None:
    """Has the guard against a fork know when the pool of an Engine has its first connection."""
    if engine.pool not in OWNERS:
        event.listen(engine, "connect", lambda *made: owner_of(engine.pool, connects=True))
    owner_of(engine.pool)


def refuse_left(connection: Any, *about: Any) -> None:
    """Refuses a statement behind the end of its transaction."""
    if has_left(connection.connection.driver_connection):
        raise NotOwned()


def has_changes(session: Any) -> bool:
    """Whether a flush would write something."""
    return bool(session.new or session.deleted) or any(session.is_modified(one) for one in session.dirty)


def fetch(connection: Any, statement: Statement) -> Answer:
    """One statement by the driver, with the driver's placeholders."""
    if statement[1] and connection.dialect.paramstyle == "numeric_dollar":
        statement = numbered(statement[0]), statement[1]
    try:
        result = connection.exec_driver_sql(*statement) if statement[1] else connection.exec_driver_sql(statement[0])
    except StatementError as error:
        error.hide_parameters = True    # its message would have the request or the response
        raise
    return Answer("", [tuple(row) for row in result] if result.returns_rows else [])
