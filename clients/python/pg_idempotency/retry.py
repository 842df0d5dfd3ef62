"""How often, and after how long, a transaction or a request is repeated."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Optional


@dataclass(frozen=True)
class Retry:
    """``attempts``: tries in all. ``base``, ``cap``: seconds. ``draw``: a number from 0 to 1, drawn each time.

    The n-th wait lasts between 0 and min(cap, base * 2^(n-1)) seconds ("full jitter").
    The begin of a transaction after a lost connection waits up to ``cap`` for the session of that connection to end.
    """

    attempts: int = 5
    base: float = 0.05
    cap: float = 2.0
    draw: object = field(default=random.random, compare=False)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < 0:
            raise ValueError("attempts must be at least 1, base and cap at least 0")

    def delay(self, tries: int) -> float:
        """Seconds to wait after that many tries."""
        draw = self.draw
        assert callable(draw)
        return float(draw()) * min(self.cap, self.base * 2.0 ** min(tries - 1, 1000))    # of 1024 on it is no float


LONGEST = 36_500 * 86_400.0    # what the server takes


def seconds_until(value: str) -> Optional[float]:
    """Seconds of a Retry-After header, which is a number or a date. None where it is neither."""
    if value.strip().isdecimal():
        return min(float(value), LONGEST)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # "-0000" is a time without a zone for Python, and UTC for all others
    left = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp() - time.time()
    return min(max(0.0, left), LONGEST)
