"""Kafka: consumes a topic, one operation for each message, by kafka-python.

The offset of a message is committed after the COMMIT of its operation. Kafka has no
"again after n seconds": the partition pauses for so long, and then goes on with the same
message, so the order within the partition stays as it was, and what comes after the
message waits with it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from kafka.structs import OffsetAndMetadata

from .client import Idempotency
from .consumer import DELAYS, Decision, Policy
from .hooks import logger
from .model import Result
from .settle import AGAIN, DEAD_LETTER, Settlement

ORIGIN = "x-idempotency-message"


class Consumer:
    """Consumes ``topic`` by a ``kafka.KafkaConsumer`` of your own, one message at a time.

    ``consumer``: with a ``group_id`` and ``enable_auto_commit=False``; ``consume`` subscribes it. Let it have no
    deserializers: one that fails stops the partition. ``producer``: a ``kafka.KafkaProducer`` with ``acks="all"``,
    for dead letters, without serializers, or with the inverse ones. ``handle(message)``: runs the operation of a
    ConsumerRecord and gives its Result, or a Settlement; None: acknowledge. ``idempotency``: remembers which message
    of an operation became its dead letter. ``tries``: after so many errors of ``handle`` a message is a dead letter;
    they are counted by the consumer that has the partition, and begin anew when it dies or the partition moves.
    ``delays``: seconds after the first error, the second, and so on; growing. ``dead_topic``:
    ``<topic>.<group>.dead``. ``poll``: seconds to wait for messages.
    """

    def __init__(self, consumer: Any, producer: Any, topic: str,
                 handle: Callable[[Any], Optional[Union[Result, Settlement]]], *, idempotency: Idempotency,
                 tries: int = 20, delays: Sequence[float] = DELAYS, dead_topic: Optional[str] = None,
                 poll: float = 0.5) -> None:
        group = consumer.config["group_id"]
        if group is None or consumer.config["enable_auto_commit"]:
            raise ValueError("the KafkaConsumer needs a group_id, and enable_auto_commit=False")
        self.consumer = consumer
        self.producer = producer
        self.topic = topic
        self.handle = handle
        self.policy = Policy(idempotency, f"{topic}.{group}", tries, delays)
        self.clock = idempotency.settings.clock
        self.dead_topic = dead_topic or f"{topic}.{group}.dead"
        self.poll = poll
        self.tries: Dict[Tuple[int, int], int] = {}
        self.pauses: Dict[Any, float] = {}
        self.stopping = False

    def consume(self) -> None:
        """Consumes until ``stop`` is called; then close the KafkaConsumer. Raises kafka-python's errors."""
        self.consumer.unsubscribe()     # or, after an error, poll would go on behind messages that are not settled
        self.consumer.subscribe([self.topic])
        while not self.stopping:
            self.resume()
            for partition, messages in self.consumer.poll(timeout_ms=int(self.poll * 1000)).items():
                self.settle_all(partition, messages)

    def stop(self) -> None:
        """Lets ``consume`` return after the messages under way: from a handler, a thread or a signal."""
        self.stopping = True

    def resume(self) -> None:
        """Lets those partitions go on whose pause is over. A rebalance has ended the pauses of the others."""
        now = self.clock.now()
        for partition in [each for each, until in self.pauses.items() if until <= now]:
            del self.pauses[partition]
            if partition in self.consumer.paused():
                self.consumer.resume(partition)

    def settle_all(self, partition: Any, messages: Sequence[Any]) -> None:
        """Settles messages of a partition in order, until one has to wait, and commits what is done."""
        done = None
        for message in messages:
            after = self.settle(partition, message)
            if after is not None:
                self.pause(partition, message.offset, after)
                break
            done = message.offset
            if self.stopping:
                break
        if done is not None:
            self.commit(partition, done)

    def settle(self, partition: Any, message: Any) -> Optional[float]:
        """Runs one message's operation. Gives the seconds to wait before it comes again, or None when it is done."""
        place = (message.partition, message.offset)
        decision: Decision = self.policy.decide_by_position(
            lambda: self.handle(message), f"{message.partition}/{message.offset}", self.tries.get(place, 0))
        settlement = decision.settlement
        if settlement.action == AGAIN:
            self.tries[place] = decision.tries
            return settlement.after
        if settlement.action == DEAD_LETTER:
            logger.warning("a message of %s becomes a dead letter: %s", self.topic, settlement.reason)
            try:
                self.bury(message)
            except Exception as error:
                logger.error("%s did not take a message", self.dead_topic, exc_info=error)
                return self.policy.delays[0]
            # At once, as a second dead letter cannot be prevented.
            self.commit(partition, message.offset)
        self.tries.pop(place, None)
        return None

    def bury(self, message: Any) -> None:
        """Sends a dead letter, and returns when the brokers have it."""
        origin = f"{message.topic}/{message.partition}/{message.offset}"
        # One that was sent again has that of its first message. kafka-python cannot write a header without a value.
        headers = [*((name, value or b"") for name, value in message.headers if name != ORIGIN), (ORIGIN, origin.encode())]
        self.producer.send(self.dead_topic, key=message.key, value=message.value, timestamp_ms=message.timestamp,
                           headers=headers).get(timeout=30)

    def pause(self, partition: Any, offset: int, after: float) -> None:
        """Lets a partition wait, and go on with the message of that offset."""
        if partition in self.consumer.assignment():
            self.consumer.pause(partition)
            self.consumer.seek(partition, offset)
            self.pauses[partition] = self.clock.now() + after

    def commit(self, partition: Any, offset: int) -> None:
        """Commits the offset. If the partition is somebody else's now, the messages come again there."""
        try:
            self.consumer.commit({partition: next_offset(offset)})
        except Exception as error:
            if type(error).__name__ != "CommitFailedError":
                raise
            logger.warning("offsets of %s were not committed: the group has changed", self.topic)


def next_offset(offset: int) -> Any:
    """The offset to commit after a message. Newer versions of kafka-python also want the epoch of the leader: -1, unknown."""
    return OffsetAndMetadata(*(offset + 1, "", -1)[:len(OffsetAndMetadata._fields)])
