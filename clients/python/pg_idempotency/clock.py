"""Time, in one place: what the package sleeps and repeats goes through a Clock.

FakeClock is for tests: its time moves when the test says so, and nothing waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Awaitable, Callable, Iterator, List, Optional

Stop = Callable[[], Any]


class Clock:
    """The machine's clock. Times and durations are seconds."""

    def now(self) -> float:
        """A time that only grows."""
        return time.monotonic()

    def sleep(self, duration: float) -> None:
        """Returns after that many seconds."""
        time.sleep(duration)

    async def sleep_async(self, duration: float) -> None:
        """Returns after that many seconds, for asyncio."""
        await asyncio.sleep(duration)

    def every(self, period: float, call: Callable[[], Any]) -> Stop:
        """Calls ``call`` each ``period`` seconds in a thread, until the function that is returned is called: that waits for
        a call under way.
        """
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(period):
                call()

        thread = threading.Thread(target=repeat, name="idempotency-heartbeat", daemon=True)
        thread.start()

        def stop() -> None:
            ended.set()
            thread.join()

        return stop

    def after(self, delay: float, call: Callable[[], Any]) -> Stop:
        """Calls ``call`` once in a thread after that many seconds, unless the function that is returned is called."""
        timer = threading.Timer(delay, call)
        timer.daemon = True
        timer.start()
        return timer.cancel

    def after_async(self, delay: float, call: Callable[[], Awaitable[Any]]) -> Stop:
        """The same in a task of the running loop, which begins with the call. Stopping it cancels a call that is under way,
        and gives its task, for whoever wants to wait for its end.
        """
        task: Optional[asyncio.Future[Any]] = None

        def begin() -> None:
            nonlocal task
            task = asyncio.ensure_future(call())

        timer = asyncio.get_running_loop().call_later(delay, begin)

        def stop() -> Optional[asyncio.Future[Any]]:
            timer.cancel()
            if task is not None:
                task.cancel()
            return task

        return stop


class Timer:
    """One call of a FakeClock; ``period`` is None for one that comes once."""

    def __init__(self, period: Optional[float], due: float, call: Callable[[], Any]) -> None:
        self.period = period
        self.due = due
        self.call = call


class FakeClock(Clock):
    """A clock for tests. ``advance`` moves it; ``sleep`` moves it, too, and returns at once.

    ``now``: its first time, in seconds. ``slept``: the duration of each sleep so far, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.time = now
        self.slept: List[float] = []
        self.timers: List[Timer] = []

    def now(self) -> float:
        return self.time

    def sleep(self, duration: float) -> None:
        self.slept.append(duration)
        self.time += duration

    async def sleep_async(self, duration: float) -> None:
        self.sleep(duration)

    def every(self, period: float, call: Callable[[], Any]) -> Stop:
        return self.add(Timer(period, self.time + period, call))

    def after(self, delay: float, call: Callable[[], Any]) -> Stop:
        return self.add(Timer(None, self.time + delay, call))

    def after_async(self, delay: float, call: Callable[[], Awaitable[Any]]) -> Stop:
        return self.after(delay, call)

    def add(self, timer: Timer) -> Stop:
        """The timer is on until the function that is returned is called."""
        self.timers.append(timer)

        def stop() -> None:
            if timer in self.timers:
                self.timers.remove(timer)

        return stop

    def advance(self, duration: float) -> None:
        """Moves the time on by that many seconds, and makes each call that falls due, in order."""
        for timer in self.due(duration):
            timer.call()

    async def advance_async(self, duration: float) -> None:
        """The same for calls that are awaited."""
        for timer in self.due(duration):
            await timer.call()

    def due(self, duration: float) -> Iterator[Timer]:
        """Each timer that falls due within that many seconds, with the time moved to it; then the time is at their end."""
        end = self.time + duration
        while due := [timer for timer in self.timers if timer.due <= end]:
            timer = min(due, key=lambda one: one.due)
            self.time = timer.due
            if timer.period is None:
                self.timers.remove(timer)
            else:
                timer.due += timer.period
            yield timer
        self.time = end
