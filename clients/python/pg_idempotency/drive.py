"""The two drivers: each does the steps of a flow, one by blocking, one by asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from typing import (Any, Awaitable, Callable, Concatenate, Coroutine, Dict, Generator, Iterator, List, Optional, ParamSpec,
                    Protocol, Sequence, Tuple, TypeVar, cast)

from .clock import Clock, Stop
from .errors import LeaseLost
from .sql import Statement
from .steps import Answer, Flow, Step


class Session(Protocol):
    """A connection that a call has for itself. ``handle`` is what the work is given.

    ``close``: gives the connection back as it came. ``abandon``: rolls back, and does the same; it gives whether the
    connection was lost, and raises nothing of the driver. ``cut``: ends the connection at once, from any thread.
    """

    handle: Any

    def round_trip(self, statements: Sequence[Statement]) -> Sequence[Answer]: ...
    def close(self) -> None: ...
    def abandon(self, error: BaseException) -> bool: ...
    def cut(self) -> None: ...


class Source(Protocol):
    """Where connections come from. ``fetch``: one statement in a transaction of the user."""

    def open(self) -> Session: ...
    def recover(self) -> None: ...
    def fetch(self, tx: Any, statement: Statement) -> Answer: ...


class AsyncSession(Protocol):
    """The same for asyncio."""

    handle: Any

    async def round_trip(self, statements: Sequence[Statement]) -> Sequence[Answer]: ...
    async def close(self) -> None: ...
    async def abandon(self, error: BaseException) -> bool: ...
    def cut(self) -> None: ...


class AsyncSource(Protocol):
    """The same for asyncio."""

    async def open(self) -> AsyncSession: ...
    async def recover(self) -> None: ...
    async def fetch(self, tx: Any, statement: Statement) -> Answer: ...


async def to_its_end(work: Awaitable[Any]) -> Any:
    """Awaits ``work`` to its end, however often we are cancelled meanwhile; then the cancellation goes on. Its cause is an
    error of ``work``.

    What gives a connection back must not be left half done: nobody else would do it.
    """
    task = asyncio.ensure_future(work)
    cancelled: Optional[asyncio.CancelledError] = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from None if task.cancelled() else task.exception()
    return task.result()


P = ParamSpec("P")
R = TypeVar("R")


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method that gives what its driver runs, for a class whose driver is an AsyncDriver."""
    @functools.wraps(method)
    async def call(self: Any, /, *given: P.args, **named: P.kwargs) -> R:
        result: R = await cast(Awaitable[R], method(self, *given, **named))
        return result

    return call


@contextlib.contextmanager
def cutting(session: Any, limit: float, after: Callable[[float, Callable[[], None]], Stop]) -> Iterator[None]:
    """Cuts the connection of a session whose server does not answer in so many seconds: LeaseLost."""
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        session.cut()

    stop = after(limit, cut)
    try:
        yield
    except Exception as error:
        if is_cut.is_set():
            raise LeaseLost("the database did not answer in time") from error
        raise
    finally:
        stop()


def later(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """A function that blocks no longer than it takes, for who awaits it."""
    async def called() -> None:
        call()

    return called


def advance(flow: Flow, value: Any, error: Optional[BaseException]) -> Step:
    """Hands the result of the last step to the flow. Gives the next step; StopIteration has the flow's result."""
    return flow.send(value) if error is None else flow.throw(error)


BEAT_LIMIT = 10.0   # seconds for a cancelled beat to end, where its database does not answer
ROLLBACK_LIMIT = 10.0   # the same for a rollback under asyncio: a task that is cancelled waits for it


class Heartbeat:
    """The heartbeat of one lease. ``signal`` is set when the lease is lost."""

    def __init__(self, beat: Any, signal: Any, after: Callable[[float, Callable[[], Any]], Stop]) -> None:
        self.beat = beat
        self.signal = signal
        self.after = after
        self.stops: Dict[str, Stop] = {}
        self.lock = threading.RLock()    # of stops and ended: beats and the end are calls of several threads
        self.ended = False
        self.ending: List[asyncio.Future[Any]] = []     # beats that were under way at the end
        self.task: Optional[asyncio.Future[Any]] = None

    def arm(self, name: str, delay: float, call: Callable[[], Any]) -> None:
        """Calls ``call`` after so many seconds, unless it is stopped before."""
        with self.lock:
            if not self.ended:
                self.stops[name] = self.after(delay, call)

    def start(self, once: Callable[[], Any], watch: Callable[[], Any]) -> None:
        """Arms the first beat and ``watch``, or loses a lease that was over before its begin was answered."""
        self.watching = watch
        self.arm("beat", self.beat.period, once)
        self.watch()

    def watch(self) -> None:
        """Loses a lease that has run out by our own clock: a beat may hang, or wait for a connection."""
        if self.beat.left() <= 0:
            self.lose()
        self.arm("watch", self.beat.left(), self.watching)

    def lose(self) -> None:
        """The lease is lost: tell the work, and cancel it where it is a task."""
        if self.ended:
            return
        self.signal.set()
        if self.task is not None:
            self.task.cancel()
        self.stop()

    def check(self) -> None:
        """Raises LeaseLost, if it is lost: nothing may begin any more."""
        if self.signal.is_set():
            raise LeaseLost("the lease was lost")

    def stop(self) -> None:
        """Ends it: no beat begins afterwards. Nothing comes of one that is under way, unless the server has it already."""
        with self.lock:
            self.ended = True
            stopped = [stop() for stop in self.stops.values()]
        self.ending = [task for task in stopped if task is not None]


class Driver:
    """Does each step by blocking."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self.source = source
        self.clock = clock

    def run(self, flow: Flow) -> Any:
        """Runs a flow to its end. Gives its result, or raises its error."""
        value, error = None, None
        while True:
            try:
                step = advance(flow, value, error)
                value, error = getattr(self, step.name)(*step.arguments), None
            except BaseException as raised:
                if inspect.getgeneratorstate(flow) == inspect.GEN_CLOSED:
                    if isinstance(raised, StopIteration):
                        return raised.value
                    raise
                # of the step, or the exception of a signal between two steps: the flow gives its connection back
                value, error = None, raised

    def open(self) -> Session:
        return self.source.open()

    def round_trip(self, session: Session, statements: Sequence[Statement], limit: Optional[float]) -> Sequence[Answer]:
        if limit is None:
            return session.round_trip(statements)
        with cutting(session, limit, self.clock.after):
            return session.round_trip(statements)

    def close(self, session: Session) -> None:
        session.close()

    def abandon(self, session: Session, error: BaseException) -> bool:
        return session.abandon(error)

    def recover(self) -> None:
        self.source.recover()

    def sleep(self, duration: float) -> None:
        self.clock.sleep(duration)

    def call(self, function: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
        return function(*arguments)

    def call_guarded(self, heartbeat: Heartbeat, function: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
        heartbeat.check()
        return function(*arguments)

    def start_heartbeat(self, beat: Any) -> Heartbeat:
        heartbeat = Heartbeat(beat, threading.Event(), self.clock.after)

        def once() -> None:
            if heartbeat.ended:
                return    # the thread had begun when the lease ended
            if not self.run(beat.flow()):
                heartbeat.lose()
            heartbeat.arm("beat", beat.period, once)

        heartbeat.start(once, heartbeat.watch)
        return heartbeat

    def stop_heartbeat(self, heartbeat: Heartbeat) -> None:
        heartbeat.stop()


class AsyncDriver:
    """Does each step by asyncio."""

    def __init__(self, source: AsyncSource, clock: Clock) -> None:
        self.source = source
        self.clock = clock

    async def run(self, flow: Generator[Step, Any, Any]) -> Any:
        value, error = None, None
        while True:
            try:
                step = advance(flow, value, error)
            except StopIteration as end:
                return end.value
            try:
                value, error = await getattr(self, step.name)(*step.arguments), None
            except BaseException as raised:
                value, error = None, raised

    async def open(self) -> AsyncSession:
        return await self.source.open()

    async def round_trip(self, session: AsyncSession, statements: Sequence[Statement],
                   limit: Optional[float]) -> Sequence[Answer]:
        if limit is None:
            return await session.round_trip(statements)
        with cutting(session, limit, lambda delay, call: self.clock.after_async(delay, later(call))):
            return await session.round_trip(statements)

    async def close(self, session: AsyncSession) -> None:
        await to_its_end(session.close())

    async def abandon(self, session: AsyncSession, error: BaseException) -> bool:
        stop = self.clock.after_async(ROLLBACK_LIMIT, later(session.cut))
        try:
            lost: bool = await to_its_end(session.abandon(error))
        finally:
            stop()
        return lost

    async def recover(self) -> None:
        await self.source.recover()

    async def sleep(self, duration: float) -> None:
        await self.clock.sleep_async(duration)

    async def call(self, function: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result

    async def call_guarded(self, heartbeat: Heartbeat, function: Callable[..., Any],
                           arguments: Tuple[Any, ...]) -> Any:
        heartbeat.check()
        task = asyncio.ensure_future(self.call(function, arguments))
        heartbeat.task = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # The caller is cancelled: so is the work, and its clean-up is waited for.
            task.cancel()
            await to_its_end(asyncio.wait([task]))
            raise
        if task.cancelled() and heartbeat.signal.is_set():
            raise LeaseLost("the lease was lost")
        return task.result()

    async def start_heartbeat(self, beat: Any) -> Heartbeat:
        heartbeat = Heartbeat(beat, asyncio.Event(), self.clock.after_async)

        async def once() -> None:
            if not await self.run(beat.flow()):
                heartbeat.lose()
            heartbeat.arm("beat", beat.period, once)

        heartbeat.start(once, later(heartbeat.watch))
        return heartbeat

    async def stop_heartbeat(self, heartbeat: Heartbeat) -> None:
        heartbeat.stop()
        if heartbeat.ending:
            # A beat that is cancelled gives its connection back.
            await to_its_end(asyncio.wait(heartbeat.ending, timeout=BEAT_LIMIT))
