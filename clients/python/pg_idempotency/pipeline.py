"""Several statements in one round trip and one packet, by psycopg's layer of libpq.

psycopg's own pipeline sends each statement by itself, and waits for the socket in between. Parsing and planning costs
more than running ``idem_begin``, so statements are prepared where that is allowed: see ``Prepared``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence, Set, Tuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

from .sql import BEGIN, Statement, numbered
from .steps import Answer

LOADERS: Dict[int, Callable[[str], Any]] = {
    16: lambda text: text == "t", 20: int, 21: int, 23: int, 26: int, 700: float, 701: float,
}
WHO: Statement = ("SELECT pg_backend_pid()", ())
GONE, THERE = "26000", "42P05"

Waiting = Generator[Any, Any, Any]
Command = Tuple[Optional[bytes], Callable[[], Any]]


@lru_cache(maxsize=256)
def named(text: str, encoding: str) -> Tuple[bytes, bytes]:
    """A statement with the server's placeholders, and the name that it is prepared under."""
    sql = numbered(text)
    return sql.encode(encoding), b"pg_idempotency_" + hashlib.sha256(sql.encode()).hexdigest()[:32].encode()


def as_text(value: Any, encoding: str) -> Optional[bytes]:
    """An argument as the server reads it; the statements have the casts. Raises DataError for NUL, where libpq would stop."""
    if value is None:
        return None
    text = str(value)
    if "\0" in text:
        raise psycopg.DataError("PostgreSQL's texts cannot contain NUL")
    return text.encode(encoding)


class Prepared:
    """Which statements a connection has prepared.

    Only a connection of the server's own has any: behind a pooler in transaction mode a prepared statement would be on
    some other connection of the server. The process that the connection was told of at its start is then not the one
    that answers ``pg_backend_pid()``, as a pooler makes up a number of its own.
    """

    known: "WeakKeyDictionary[Any, Prepared]" = WeakKeyDictionary()

    def __init__(self) -> None:
        self.direct: Optional[bool] = None
        self.names: Set[bytes] = set()

    @classmethod
    def on(cls, connection: Any) -> "Prepared":
        """What is known of this connection."""
        known = cls.known.get(connection)
        if known is None:
            known = cls.known[connection] = cls()
        return known


def round_trip(connection: Any, prepared: Prepared, statements: Sequence[Statement]) -> Waiting:
    """For ``connection.wait``: all statements in one round trip. Result: their answers. Raises the first error."""
    pgconn, encoding = connection.pgconn, connection.info.encoding
    asks = prepared.direct is None and statements[0][0].startswith(BEGIN)
    every = [*statements, WHO] if asks else statements
    commands = [command for one in every for command in commands_of(pgconn, prepared, one, encoding)]
    results = yield from communicate(pgconn, [send for _, send in commands])
    # What was prepared stays so, whatever comes after it.
    prepared.names.update(name for (name, _), result in zip(commands, results)
                          if name and result.status == ExecStatus.COMMAND_OK)
    try:
        raise_first(results)
    except psycopg.Error as error:
        if error.sqlstate not in (GONE, THERE):
            raise
        # Somebody has thrown our statements away, as DISCARD ALL does, or the exception of a signal came when one was
        # prepared and not yet noted: begin again, without any.
        prepared.direct = False
        raise psycopg.errors.ConnectionFailure("the prepared statements of the session are others than is known") from error
    if pgconn.status == ConnStatus.BAD:
        raise psycopg.OperationalError("the connection is lost")
    answers = [answer(result, encoding) for (name, _), result in zip(commands, results) if name is None]
    if asks:
        prepared.direct = answers.pop().rows[0][0] == pgconn.backend_pid
    return answers


def commands_of(pgconn: Any, prepared: Prepared, statement: Statement, encoding: str) -> List[Command]:
    """What sends a statement; before it, with its name, what prepares it, if need be."""
    text, name = named(statement[0], encoding)
    values = [as_text(value, encoding) for value in statement[1]]
    if not (prepared.direct and values):
        return [(None, partial(pgconn.send_query_params, text, values))]
    run: Command = (None, partial(pgconn.send_query_prepared, name, values))
    return [run] if name in prepared.names else [(name, partial(pgconn.send_prepare, name, text)), run]


def communicate(pgconn: Any, commands: Sequence[Callable[[], Any]]) -> Waiting:
    """Sends the commands and reads their results. Whoever gives up meanwhile has to close the connection."""
    pgconn.enter_pipeline_mode()
    for send in commands:
        send()
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results = yield from receive(pgconn)
    if pgconn.status == ConnStatus.OK:
        pgconn.exit_pipeline_mode()
    return results


def receive(pgconn: Any) -> Waiting:
    """The results of a pipeline, up to its end, or to that of the connection.

    Behind a stream of the user's, libpq gives the row of the first statement by itself, and an empty result after it.
    """
    results: List[Any] = []
    more = False
    while True:
        try:
            while pgconn.is_busy():
                yield Wait.R
                pgconn.consume_input()
        except psycopg.OperationalError:
            raise_first(results)
            raise
        result = pgconn.get_result()
        if result is None and pgconn.status == ConnStatus.BAD:
            return results
        if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
            return results
        if result is not None and not (more and result.status == ExecStatus.TUPLES_OK):
            results.append(result)
        more = result is not None       # None ends a statement


def raise_first(results: Sequence[Any]) -> None:
    """Raises the first error, if there is one."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)


def answer(result: Any, encoding: str) -> Answer:
    """Tag and rows of a result."""
    rows: List[Sequence[Any]] = []
    for row in range(result.ntuples):
        values = [result.get_value(row, column) for column in range(result.nfields)]
        rows.append([None if value is None else LOADERS.get(result.ftype(column), str)(value.decode(encoding))
                     for column, value in enumerate(values)])
    return Answer((result.command_status or b"").decode(), rows)
