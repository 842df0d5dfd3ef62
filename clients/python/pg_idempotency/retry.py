"""How often, and after how long, a transaction is repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


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
        return float(draw()) * min(self.cap, self.base * 2.0 ** (tries - 1))
