"""The errors of the package, and what a driver's error means.

An error of the extension is known by its SQLSTATE alone, never by its message or
by the driver's class: some drivers put a SQLSTATE that they do not know into a
general class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Type

if TYPE_CHECKING:
    from .model import Duration

RETRY_STATES = frozenset({"40001", "40P01"})
LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
IN_FAILED_TRANSACTION = "25P02"
OUT_OF_TRANSACTION = frozenset({"25P01", "3B001"})


class IdempotencyError(Exception):
    """Base of what this package raises. ``sqlstate`` is None where the server sent none."""

    sqlstate: Optional[str] = None


class KeyReused(IdempotencyError):
    """ID422: the key was used before with a different request. Do not repeat it."""

    sqlstate = "ID422"


class Forbidden(IdempotencyError):
    """ID403: the role may not use this scope."""

    sqlstate = "ID403"


class BadArgument(IdempotencyError):
    """ID400: a key, scope, hash or duration is not valid. Do not repeat it."""

    sqlstate = "ID400"


class BadOption(BadArgument):
    """An option of the service's own is not valid: no fault of a client, nor of a message."""


def asked(retry_after: Optional[Duration]) -> Optional[float]:
    """``retry_after`` in seconds; one that has passed is 0. Raises BadOption for what is no duration."""
    from .model import seconds    # it needs these errors
    return None if retry_after is None else seconds("retry_after", retry_after, past=True)


class LeaseLost(IdempotencyError):
    """ID409: the fence is no longer current. Stop: another attempt owns the operation."""

    sqlstate = "ID409"


class InProgress(IdempotencyError):
    """Another call runs the operation. ``retry_after``: seconds (or a timedelta) after which another try makes sense, or None."""

    def __init__(self, retry_after: Optional[Duration] = None) -> None:
        super().__init__("another call runs the operation")
        self.retry_after = asked(retry_after)


class TooLarge(IdempotencyError):
    """ID413: the response is larger than the database allows. Nothing was committed."""

    sqlstate = "ID413"


class NotReady(IdempotencyError):
    """The database lacks the extension, or the role lacks its rights; the message says what to do. See ``sqlstate``."""


class CommitRolledBack(IdempotencyError):
    """COMMIT answered ROLLBACK, or would have: the work caught an error of the database and went on.
    Nothing was committed."""


class NotOwned(IdempotencyError):
    """The work, or the writes of a Completion, ended their transaction: what they wrote may be rolled back."""

    sqlstate = "ID404"

    def __init__(self) -> None:
        super().__init__("the work, or its writes, ended their transaction")


class Unknown(IdempotencyError):
    """Reconciliation could not tell whether an earlier attempt took effect. Nobody owns the operation now.

    ``retry_after``: seconds (or a timedelta) after which another try makes sense, or None.
    """

    def __init__(self, message: str = "the outcome of an earlier attempt is unknown",
                 retry_after: Optional[Duration] = None) -> None:
        super().__init__(message)
        self.retry_after = asked(retry_after)


class Unstorable(IdempotencyError):
    """The work of a lease was done, and its answer could not be stored: the operation has ended without one, and no attempt
    repeats it. The call that did the work gets the error of its answer; this one is for the calls after it."""

    def __init__(self) -> None:
        super().__init__("the work was done, and its answer could not be stored")


class NotDone(Exception):
    """Raise it from leased work: nothing has happened outside. The operation is released at once. In a transaction it rolls
    back, and is no lost attempt.

    ``retry_after``: seconds (or a timedelta) after which another try makes sense, or None.
    """

    def __init__(self, message: str = "nothing was done", retry_after: Optional[Duration] = None) -> None:
        super().__init__(message)
        self.retry_after = asked(retry_after)


class Declined(Exception):
    """Raise it from work: roll the work back, and store this failure as the answer.

    ``code``: status code, an int. ``payload``: a JSON value, or None. ``headers``: a mapping, or None.
    ``retry_after``: seconds (or a timedelta) after which the operation may be tried again; below 0: now; None: never.
    ``body``: bytes to store beside or in place of the payload. ``retention``: seconds (or a timedelta) to keep the record.
    """

    def __init__(self, code: Optional[int] = None, payload: Any = None, *,
                 headers: Optional[Mapping[str, Any]] = None, retry_after: Optional[Duration] = None,
                 body: Optional[bytes] = None, retention: Optional[Duration] = None) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.payload = payload
        self.headers = headers
        self.retry_after = retry_after
        self.body = body
        self.retention = retention


BY_STATE: Dict[str, Type[IdempotencyError]] = {
    str(kind.sqlstate): kind for kind in (KeyReused, Forbidden, BadArgument, LeaseLost, TooLarge)}
# None of these names a key or a scope: they may end in an answer to a client.
MESSAGES = {
    "ID400": "a key, scope, hash or duration is not valid",
    "ID403": "the role may not use this scope",
    "ID409": "the lease was lost",
    "ID413": "the response is too large",
    "ID422": "the key was used before with a different request",
}


def causes(error: Optional[BaseException]) -> Iterator[BaseException]:
    """The error, and what it wraps: SQLAlchemy's ``orig``, everybody else's ``__cause__``."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        wrapped = getattr(error, "orig", None)
        error = wrapped if isinstance(wrapped, BaseException) else error.__cause__


def sqlstate_of(error: BaseException) -> Optional[str]:
    """The SQLSTATE of an error of any driver, or None."""
    for cause in causes(error):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def means_lost(state: Optional[str]) -> bool:
    """Whether this SQLSTATE says that the connection is gone."""
    return state is not None and (state.startswith("08") or state in LOST_STATES)


def is_unreachable(error: BaseException) -> bool:
    """Whether an error says that the database could not be reached. Drivers have no SQLSTATE for it."""
    state = sqlstate_of(error)
    if state is not None:
        return means_lost(state)
    # psycopg's pipeline has the general class for a connection that ends, and asyncpg may have that of its own mistakes
    unreachable = ("OperationalError", "InterfaceError", "InternalClientError")
    return any(kind.__name__ in unreachable or type(cause).__name__ == "DatabaseError"
               for cause in causes(error) for kind in type(cause).__mro__)


# What jsonb or text does not take: an escaped NUL, half a surrogate, a number too large, nesting too deep.
UNREADABLE_STATES = frozenset({"22P02", "22P05", "22021", "22003", "54001"})


NOT_READY = {
    "42883": "the functions of the extension were not found: run CREATE EXTENSION idempotency in this database, or name its"
             " schema by the option schema; a role without idem_grant does not find them in a schema of their own",
    "3F000": "the schema of the option schema does not exist: it is the one in which the extension idempotency was created",
    "42501": "the role may not use the extension: let its owner run SELECT idem_grant('the role')",
}


def translate_begin(error: BaseException) -> BaseException:
    """The same for a begin, where data that the database cannot read are the caller's argument, and nothing but the
    package's own functions can be missing or forbidden."""
    state = sqlstate_of(error)
    own: IdempotencyError
    if state in UNREADABLE_STATES:
        own = BadArgument("the database cannot read the key or the request")
    elif state in NOT_READY:
        own = NotReady(NOT_READY[state])
    else:
        return translate(error)
    own.sqlstate = state
    return own


def quotes_data(error: BaseException) -> bool:
    """Whether the server quotes the JSON that it cannot read. Drivers have that in their message."""
    return sqlstate_of(error) in UNREADABLE_STATES


def is_of_answer(error: BaseException) -> bool:
    """Whether the server or its driver does not take a response: data that it cannot read, and more than it holds."""
    state = sqlstate_of(error)
    if state is not None:
        return state[:2] in ("22", "54") or state in (BadArgument.sqlstate, TooLarge.sqlstate)
    return any(isinstance(cause, (TypeError, ValueError)) or type(cause).__name__ == "DataError" for cause in causes(error))


def translate(error: BaseException) -> BaseException:
    """The package's own error where the SQLSTATE has one, or where the driver's one quotes data; else the error itself."""
    state = sqlstate_of(error)
    if quotes_data(error) and not isinstance(error, IdempotencyError):
        quiet = IdempotencyError(str([*causes(error)][-1]).partition("\n")[0])
        quiet.sqlstate = state
        return quiet
    if state in BY_STATE and not isinstance(error, IdempotencyError):
        return BY_STATE[state](MESSAGES[state])
    return error
