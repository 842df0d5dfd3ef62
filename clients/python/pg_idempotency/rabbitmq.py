"""RabbitMQ: consumes a queue, one operation for each message, by pika's BlockingConnection.

"Again after n seconds" is a queue whose messages expire into the first one: RabbitMQ
has no such thing by itself. A dead letter is a reject, which moves the message by
the broker: a consumer that dies before it leaves the message where it was.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional

from .hooks import logger
from .model import Result
from .settle import AGAIN, DEAD_LETTER, Settlement, settle

TRIES = "x-idempotency-tries"
DELAYS = (1, 2, 5, 10, 30, 60, 300, 900, 3600)     # seconds; a queue for each that was needed


class Consumer:
    """Consumes ``queue`` of a channel of pika, which must be the consumer's own.

    ``handle(key, body, properties)``: runs the operation and gives its Result. ``key_of(properties, body)``: the
    operation's key, by default the message id; a message without one is a dead letter.
    ``tries``: how often a message is tried before it becomes a dead letter.
    Call ``declare`` before ``consume``.
    """

    def __init__(self, channel: Any, queue: str, handle: Callable[[str, bytes, Any], Result], *,
                 key_of: Optional[Callable[[Any, bytes], Optional[str]]] = None, tries: int = 20,
                 prefetch: int = 10) -> None:
        self.channel = channel
        self.queue = queue
        self.handle = handle
        self.key_of = key_of or message_id
        self.tries = tries
        self.prefetch = prefetch
        channel.confirm_delivery()

    def declare(self) -> None:
        """The queue and the queue of its dead letters, both of type quorum."""
        self.channel.queue_declare(f"{self.queue}.dead", durable=True, arguments={"x-queue-type": "quorum"})
        self.channel.queue_declare(self.queue, durable=True, arguments={
            "x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.queue}.dead",
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
        for delay in DELAYS:
            self.channel.queue_declare(self.retry_queue(delay), durable=True, arguments={
                "x-queue-type": "quorum", "x-message-ttl": delay * 1000, "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.queue, "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish"})

    def consume(self) -> None:
        """Consumes until the channel is told to stop. Raises pika's errors when the connection is lost."""
        self.channel.basic_qos(prefetch_count=self.prefetch)
        self.channel.basic_consume(self.queue, self.on_message)
        self.channel.start_consuming()

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Runs one message's operation, and settles the message."""
        settlement = self.run(method, properties, body)
        tries = int((properties.headers or {}).get(TRIES, 0)) + 1
        if settlement.action == AGAIN and tries >= self.tries:
            settlement = Settlement(DEAD_LETTER, reason="tries exhausted")
        if settlement.action == AGAIN:
            self.put_back(properties, body, settlement.after, tries)
        if settlement.action == DEAD_LETTER:
            logger.warning("a message of %s becomes a dead letter: %s", self.queue, settlement.reason)
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)

    def run(self, method: Any, properties: Any, body: bytes) -> Settlement:
        """What is to become of a message."""
        key = self.key_of(properties, body)
        if not key:
            return Settlement(DEAD_LETTER, reason="no key")
        again = TRIES in (properties.headers or {})
        try:
            return settle(self.handle(key, body, properties), bool(method.redelivered) or again)
        except Exception as error:
            logger.error("a message of %s was not handled", self.queue, exc_info=error)
            return settle(error)

    def put_back(self, properties: Any, body: bytes, after: float, tries: int) -> None:
        """Publishes the message to the queue from which it comes back; returns when the broker has it.

        A consumer that dies between this and its ack leaves the message twice, which the key makes harmless.
        """
        headers: Dict[str, Any] = dict(properties.headers or {})
        headers[TRIES] = tries
        properties.headers = headers
        properties.delivery_mode = 2
        properties.expiration = None
        self.channel.basic_publish("", self.retry_queue(delay_of(after)), body, properties, mandatory=True)

    def retry_queue(self, delay: int) -> str:
        """The name of the queue that holds messages for so many seconds."""
        return f"{self.queue}.retry.{delay}"


def message_id(properties: Any, body: bytes) -> Optional[str]:
    """The id that the sender gave the message."""
    given: Optional[str] = properties.message_id
    return given


def delay_of(after: float) -> int:
    """The shortest delay that is not shorter."""
    return next((delay for delay in DELAYS if delay >= math.ceil(after)), DELAYS[-1])
