"""What a consumer tells its broker about a message: done, again later, or put aside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Union

from .errors import BadArgument, BadOption, Forbidden, InProgress, KeyReused, NotDone, TooLarge, Unknown, Unstorable
from .model import COMPLETED, IN_PROGRESS, Result

ACK = "ack"
AGAIN = "again"
DEAD_LETTER = "dead letter"


@dataclass(frozen=True)
class Settlement:
    """``action`` is ACK, AGAIN or DEAD_LETTER; ``after``: seconds, for AGAIN. ``reason`` has no payload."""

    action: str
    after: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        if self.action not in (ACK, AGAIN, DEAD_LETTER):
            raise ValueError(f"no such action: {self.action}")
        if not math.isfinite(self.after):
            raise ValueError("no broker waits without end")


def settle(outcome: Union[Result, BaseException]) -> Settlement:
    """What to do with the message of an operation that gave a Result, or raised an error.

    A stored failure that is final is a dead letter: see ``owns_dead_letter`` where the message may have copies.
    """
    if isinstance(outcome, Result):
        if outcome.outcome == COMPLETED:
            return Settlement(ACK)
        if outcome.outcome == IN_PROGRESS:
            return Settlement(AGAIN, 1.0 if outcome.retry_after is None else outcome.retry_after, "in progress")
        if outcome.retry_after is not None:
            return Settlement(AGAIN, outcome.retry_after, "failed for now")
        return Settlement(DEAD_LETTER, reason=f"failed with {outcome.code}")
    if is_final(outcome):
        return Settlement(DEAD_LETTER, reason=str(outcome))
    if isinstance(outcome, (InProgress, NotDone, Unknown)) and outcome.retry_after is not None:
        return Settlement(AGAIN, outcome.retry_after, type(outcome).__name__)
    return Settlement(AGAIN, 1.0, type(outcome).__name__)


def is_final(error: BaseException) -> bool:
    """Whether the message can never succeed. An option can be mended: its message waits for that."""
    return isinstance(error, (KeyReused, BadArgument, Forbidden, TooLarge, Unstorable)) and not isinstance(error, BadOption)
