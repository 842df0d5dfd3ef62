"""RabbitMQ: consumes a queue, one operation for each message, by pika's BlockingConnection.

"Again after n seconds" is a queue whose messages expire into the first one: RabbitMQ
has no such thing by itself. A dead letter is a reject, which moves the message by
the broker: a consumer that dies before it leaves the message where it was.

An operation that fails for good leaves one dead letter, however many copies its
message has. RabbitMQ does not number messages, so a message whose operation failed is
first put back under a random name: then a redelivery of it differs from a copy.
"""

from __future__ import annotations

import uuid
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from pika.exceptions import ConsumerCancelled

from .client import Idempotency
from .consumer import DELAYS, TRIES, Decision, Policy
from .hooks import logger
from .model import Result
from .settle import ACK, AGAIN, DEAD_LETTER, Settlement

NAME = "x-idempotency-name"


class Consumer:
    """Consumes ``queue`` of a channel of pika, which must be the consumer's own.

    ``handle(key, body, properties)``: runs the operation and gives its Result, or a Settlement; None: acknowledge.
    ``idempotency``: remembers which message of an operation became its dead letter. ``key_of(properties, body)``: the
    operation's key, by default the message id; a message without one is a dead letter. ``tries``: after so many errors of
    ``handle`` a message is a dead letter. ``delays``: seconds, growing; there is a queue for each. ``delivery_limit``:
    after so many consumers that died with a message, the broker makes it a dead letter. ``prefetch``: messages that
    the broker sends ahead. Call ``declare`` before ``consume``.
    """

    def __init__(self, channel: Any, queue: str,
                 handle: Callable[[str, bytes, Any], Optional[Union[Result, Settlement]]], *, idempotency: Idempotency,
                 key_of: Optional[Callable[[Any, bytes], Optional[str]]] = None, tries: int = 20,
                 delays: Sequence[float] = DELAYS, delivery_limit: int = 20, prefetch: int = 10) -> None:
        self.channel = channel
        self.queue = queue
        self.handle = handle
        self.key_of = key_of or message_id
        self.policy = Policy(idempotency, queue, tries, delays)
        self.delivery_limit = delivery_limit
        self.prefetch = prefetch
        channel.confirm_delivery()

    def declare(self) -> None:
        """The queue, the queue of its dead letters, and a queue for each delay, all of type quorum."""
        self.channel.queue_declare(f"{self.queue}.dead", durable=True, arguments={"x-queue-type": "quorum"})
        self.channel.queue_declare(self.queue, durable=True, arguments={
            "x-delivery-limit": self.delivery_limit, **moves_to(f"{self.queue}.dead")})
        for delay in self.policy.delays:
            self.channel.queue_declare(self.again_queue(delay), durable=True, arguments={
                "x-message-ttl": milliseconds(delay), **moves_to(self.queue)})

    def consume(self) -> None:
        """Consumes until the channel is told to stop.

        Raises pika's errors when the connection is lost, and ConsumerCancelled when the broker ends the consumer, as where
        its queue is deleted.
        """
        ended: List[Any] = []
        self.channel.add_on_cancel_callback(ended.append)
        self.channel.basic_qos(prefetch_count=self.prefetch)
        self.channel.basic_consume(self.queue, self.on_message)
        self.channel.start_consuming()
        if ended:
            raise ConsumerCancelled("the broker has ended the consumer")

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Runs one message's operation, and settles the message."""
        headers = properties.headers or {}
        tries = headers.get(TRIES)
        decision = self.decide(properties, body, max(tries, 0) if isinstance(tries, int) else 0)
        if decision.failure is not None:
            self.fail(method, properties, body, decision, decision.failure)
        else:
            self.settle(method, properties, body, decision)

    def decide(self, properties: Any, body: bytes, tries: int) -> Decision:
        """What is to become of a message."""
        def handled() -> Optional[Union[Result, Settlement]]:
            key = self.key_of(properties, body)
            return self.handle(key, body, properties) if key else Settlement(DEAD_LETTER, reason="no key")

        return self.policy.decide(handled, tries)

    def settle(self, method: Any, properties: Any, body: bytes, decision: Decision) -> None:
        """Does what was decided. "Again" is the queue from which the message comes back."""
        settlement = decision.settlement
        if settlement.action == ACK:
            self.channel.basic_ack(method.delivery_tag)
        elif settlement.action == AGAIN and name_of(properties):
            # A copy with the same name would own the dead letter as well. If we die meanwhile, the broker delivers it again.
            properties.headers[TRIES] = decision.tries
            self.channel.connection.call_later(
                self.policy.delay(settlement.after), lambda: self.retry(method, properties, body))
        elif settlement.action == AGAIN:
            queue = self.again_queue(self.policy.delay(settlement.after))
            self.replace(method, properties, body, queue, {TRIES: decision.tries})
        else:
            self.bury(method, settlement.reason)

    def fail(self, method: Any, properties: Any, body: bytes, decision: Decision, failure: Result) -> None:
        """Settles a message whose operation has failed for good."""
        name = name_of(properties)
        if name is None:
            self.rename(method, properties, body, decision.tries)
            return
        if failure.record is None:
            # The record went away meanwhile, and the operation failed anew.
            if decision.tries + 1 >= self.policy.tries:
                self.bury(method, decision.settlement.reason)
            else:
                self.rename(method, properties, body, decision.tries + 1)
            return
        self.settle(method, properties, body, self.policy.decide_failure(failure, name, decision.tries))

    def retry(self, method: Any, properties: Any, body: bytes) -> None:
        """Handles a message once more, unless the broker has it back."""
        if self.channel.is_open:
            self.on_message(self.channel, method, properties, body)

    def rename(self, method: Any, properties: Any, body: bytes, tries: int) -> None:
        """Puts a message back under a random name."""
        self.replace(method, properties, body, self.queue, {TRIES: tries, NAME: str(uuid.uuid4())})

    def bury(self, method: Any, reason: str) -> None:
        """Lets the broker move a message to the dead letters: a consumer that dies leaves neither two nor none."""
        logger.warning("a message of %s becomes a dead letter: %s", self.queue, reason)
        self.channel.basic_reject(method.delivery_tag, requeue=False)

    def replace(self, method: Any, properties: Any, body: bytes, queue: str, further: Dict[str, Any]) -> None:
        """Puts a copy of a message, with further headers, into a queue.

        The copy is safe before the message goes: a consumer that dies in between leaves it twice, which the key makes
        harmless. If the broker does not take the copy, the message goes back to where it was.
        """
        properties.headers = {**(properties.headers or {}), **further}
        properties.headers.pop("CC", None)      # the copy goes to none of these queues once more
        properties.headers.pop("x-death", None)     # the broker does not take the copy for one that goes in a circle
        properties.delivery_mode = 2
        properties.expiration = None
        properties.user_id = None
        try:
            self.channel.basic_publish("", queue, body, properties, mandatory=True)
        except Exception as error:
            logger.error("%s did not take a message", queue, exc_info=error)
            self.channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            self.channel.basic_ack(method.delivery_tag)

    def again_queue(self, delay: float) -> str:
        """The name of the queue that holds messages for so many seconds."""
        return f"{self.queue}.again.{milliseconds(delay)}"


def name_of(properties: Any) -> Optional[str]:
    """The name that ``rename`` gave a message."""
    name = (properties.headers or {}).get(NAME)
    return name if isinstance(name, str) else None


def moves_to(queue: str) -> Dict[str, Any]:
    """Arguments of a queue whose rejected and expired messages go there. Otherwise a message can be lost in between."""
    return {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def milliseconds(seconds: float) -> int:
    """As RabbitMQ counts."""
    return round(seconds * 1000)


def message_id(properties: Any, body: bytes) -> Optional[str]:
    """The id that the sender gave the message. pika gives bytes where it is no UTF-8."""
    return properties.message_id if isinstance(properties.message_id, str) else None
