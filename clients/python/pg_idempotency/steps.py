"""What a flow asks its driver to do.

A flow is a generator: it yields steps and is sent their results, or thrown their
errors. It decides, and does no I/O. The drivers in ``drive.py`` do the I/O, one by
blocking and one by asyncio. So there is one copy of every decision.
"""

from __future__ import annotations

from typing import Any, Callable, Generator, NamedTuple, Optional, Sequence, Tuple

from .sql import Statement


class Step(NamedTuple):
    """``name`` is a method of both drivers."""

    name: str
    arguments: Tuple[Any, ...]


Flow = Generator[Step, Any, Any]


class Answer(NamedTuple):
    """What one statement of a round trip was answered: its command tag, and its rows."""

    tag: str
    rows: Sequence[Sequence[Any]]


def open_session() -> Step:
    """Takes a connection. Result: a session."""
    return Step("open", ())


def round_trip(session: Any, statements: Sequence[Statement], limit: Optional[float] = None) -> Step:
    """Runs the statements in one round trip where the connection can. Result: an Answer for each.

    ``limit``: after so many seconds the connection is cut, and LeaseLost raised. None: never.
    """
    return Step("round_trip", (session, statements, limit))


def close(session: Any) -> Step:
    """Gives back a connection that is in no transaction."""
    return Step("close", (session,))


def abandon(session: Any, error: BaseException) -> Step:
    """Rolls back and gives the connection back. Result: whether the connection was lost."""
    return Step("abandon", (session, error))


def call(function: Callable[..., Any], *arguments: Any) -> Step:
    """Calls a user's function. Result: what it gave back."""
    return Step("call", (function, arguments))


def call_guarded(heartbeat: Any, function: Callable[..., Any], *arguments: Any) -> Step:
    """The same, and cancels it when the heartbeat loses the lease, where that is possible."""
    return Step("call_guarded", (heartbeat, function, arguments))


def sleep(duration: float) -> Step:
    """Waits that many seconds."""
    return Step("sleep", (duration,))


def recover() -> Step:
    """Removes dead connections from the pool, where the pool can do so."""
    return Step("recover", ())


def start_heartbeat(beat: Any) -> Step:
    """Runs ``beat.flow`` each ``beat.period`` seconds until it answers False, or until ``beat.deadline``, also where a
    beat hangs. Result: a Heartbeat.
    """
    return Step("start_heartbeat", (beat,))


def stop_heartbeat(heartbeat: Any) -> Step:
    """Ends it."""
    return Step("stop_heartbeat", (heartbeat,))
