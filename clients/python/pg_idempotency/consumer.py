"""What the consumers of all brokers decide in the same way.

Also: which message of an operation becomes its dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

from .client import Idempotency
from .errors import InProgress, NotDone, Unknown
from .hooks import logger
from .model import FAILED, IN_PROGRESS, Result
from .settle import ACK, AGAIN, DEAD_LETTER, Settlement, is_final, settle

TRIES = "x-idempotency-tries"
DELAYS = (1.0, 10.0, 60.0)
LONGEST_SCOPE = 255


@dataclass(frozen=True)
class Decision:
    """``settlement`` of a message; ``tries``: how many errors it has had; ``failure``: its operation failed for good.

    A dead letter without ``failure`` is this very message. ``in_progress``: another worker runs the operation, so this
    delivery counts neither as a try nor as a delivery.
    """

    settlement: Settlement
    tries: int
    failure: Optional[Result] = None
    in_progress: bool = False


class Policy:
    """``tries``: after so many errors of ``handle`` a message is a dead letter.

    ``delays``: seconds after the first error, the second, and so on; growing.
    """

    def __init__(self, idempotency: Idempotency, queue: str, tries: int, delays: Sequence[float]) -> None:
        if tries < 1 or not delays or sorted(delays) != list(delays):
            raise ValueError("tries are at least 1, and delays grow")
        if len(dead_scope(queue)) > LONGEST_SCOPE:
            raise ValueError("the name of the consumer is too long")    # the server would refuse each question for an owner
        self.idempotency = idempotency
        self.queue = queue
        self.tries = tries
        self.delays = tuple(delays)

    def decide(self, handle: Callable[[], Optional[Union[Result, Settlement]]], tries: int) -> Decision:
        """Calls ``handle`` and says what becomes of the message. ``tries``: errors that it has had before."""
        try:
            given = handle()
            if given is not None and not isinstance(given, (Result, Settlement)):
                raise TypeError("a handler gives a Result, a Settlement or None")
        except Exception as error:
            decision = self.after_error(error, tries)
            return Decision(settle(error), tries) if is_final(error) else decision
        if given is None:
            return Decision(Settlement(ACK), tries)
        if isinstance(given, Settlement):
            return Decision(given, tries)
        settlement = settle(given)
        return Decision(settlement, tries, given if settlement.action == DEAD_LETTER else None, given.outcome == IN_PROGRESS)

    def after_error(self, error: Exception, tries: int) -> Decision:
        """What becomes of a message whose handling raised an error.

        InProgress, as of a function of ``idempotent``, is the result that it stands for.
        """
        if isinstance(error, InProgress):
            return Decision(settle(error), tries, in_progress=True)
        logger.error("a message of %s was not handled", self.queue, exc_info=error)
        if tries + 1 >= self.tries:
            return Decision(Settlement(DEAD_LETTER, reason="tries exhausted"), tries + 1)
        pause = self.delays[min(tries, len(self.delays) - 1)]
        asked = error.retry_after if isinstance(error, (NotDone, Unknown)) else None
        return Decision(Settlement(AGAIN, max(pause, asked or 0.0), type(error).__name__), tries + 1)

    def decide_by_position(self, handle: Callable[[], Optional[Union[Result, Settlement]]], name: str,
                           tries: int) -> Decision:
        """The same for a broker that numbers its messages. ``name``: the message's number, also in a redelivery.

        The message that owns the dead letter of a failure becomes it, the others are acknowledged.
        """
        decision = self.decide(handle, tries)
        if decision.failure is not None and decision.failure.record is None:
            # A failure that this call has stored: the replay names its record.
            decision = self.decide(handle, tries)
        return decision if decision.failure is None else self.decide_failure(decision.failure, name, tries)

    def decide_failure(self, failure: Result, name: str, tries: int) -> Decision:
        """What becomes of a message whose operation has failed for good. ``failure``: a replay."""
        try:
            owns = owns_dead_letter(self.idempotency, self.queue, failure, name)
        except Exception as error:
            return self.after_error(error, tries)
        return Decision(settle(failure) if owns else Settlement(ACK, reason="a copy of a dead letter"), tries)

    def delay(self, after: float) -> float:
        """The shortest of the delays that is not shorter, or the last."""
        return next((delay for delay in self.delays if delay >= after), self.delays[-1])


def dead_scope(queue: str) -> str:
    """The scope in which messages of a queue own their dead letters."""
    return f"{queue}.dead"


def owns_dead_letter(idempotency: Idempotency, queue: str, failure: Result, message: str) -> bool:
    """Whether a message is the one that becomes the dead letter of an operation that failed.

    Copies of a message, and redeliveries, all get the same stored failure, but one message of the queue owns its
    dead letter: the first that asks. It gets True each time; the others get False, and are acknowledged. So a crash
    before the dead letter was sent loses nothing. The answer is kept in the scope ``queue.dead``, as long as records.

    ``failure``: a replay; if this call ran the operation, call again first. ``message``: names the message, so that
    redeliveries have the same name and other messages another: a position in a log, or a random identifier that the
    consumer added. Raises what ``transaction`` raises, and InProgress while another consumer asks.
    """
    if failure.record is None:
        raise ValueError("the failure is no replay")
    answer = idempotency.transaction(
        failure.record, None, lambda tx, operation: message, scope=dead_scope(queue), wait=5)
    if answer.outcome == IN_PROGRESS:
        raise InProgress(answer.retry_after)
    # FAILED: its attempts were lost too often. Nobody owns it, and two dead letters are better than none.
    owner: Any = answer.payload
    return answer.outcome == FAILED or bool(owner == message)
