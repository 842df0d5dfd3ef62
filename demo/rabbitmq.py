"""The same consumers, fed by RabbitMQ.

The parent publishes, and still decides about planned faults. RabbitMQ decides
which consumer gets a message, and delivers it again if that consumer was killed.
A consumer acknowledges after it has answered. So if a consumer is killed in
between, its message was handled and comes again.
"""

import json
import os
import signal

import pika

from broker import Broker, is_sleep
from consumer import WAKE_UP
from gateway import Gateway, connect
from messages import Message
from plan import Delivery

# A message to deliver again waits this long in a queue for retries.
RETRY_MILLISECONDS = 250
# How many messages are in the queues at a time: a message that waits for another
# one's fault is published after that fault, and must not be the last.
WINDOW = 4


def open_channel(queue):
    """A connection and a channel on which the queue is declared, with its queue
    for retries."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"] + "?heartbeat=0"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    channel.queue_declare(queue, durable=True)
    channel.queue_declare(f"{queue}.retry", durable=True, arguments={
        "x-message-ttl": RETRY_MILLISECONDS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    return connection, channel


class RabbitBroker(Broker):
    """Broker's plan and counts, with RabbitMQ between it and the consumers."""

    def __init__(self, plan, kind, databases, consumers, watch):
        super().__init__(plan, kind, databases, consumers, watch)
        self.target = run_amqp_consumer
        self.out = {}
        self.connection, self.channel = open_channel(kind.name)

    def run(self):
        try:
            return super().run()
        finally:
            self.connection.close()

    def hand_out(self):
        """Keeps some messages in the queue."""
        self.connection.process_data_events(0)
        self.take_back_in()
        while len(self.out) < WINDOW * self.consumers:
            delivery = self.next_delivery()
            if delivery is None:
                return
            self.out[delivery.number] = delivery
            self.channel.basic_publish("", self.kind.name, delivery.text, pika.BasicProperties(
                headers={"number": delivery.number, "tampered": delivery.tampered}, delivery_mode=2))

    def too_many_sleepers(self, delivery):
        """As in Broker, where "at work" is "in the queue or at work" here."""
        sleepers = sum(1 for other in self.out.values() if is_sleep(other))
        return is_sleep(delivery) and sleepers >= max(1, self.consumers // 3)

    def heard(self, worker, kind, content):
        if kind == "took":
            number, again = content
            worker.delivery = self.plan.deliveries[number]
            self.tally.deliveries += 1
            self.tally.redelivered += again
            try:
                worker.pipe.send(worker.delivery.fault)
            except OSError:
                pass  # it is dead; listen() will see the end of its pipe
        else:
            super().heard(worker, kind, content)

    def requeue(self, delivery):
        """RabbitMQ does."""

    def come_again(self, delivery, seconds):
        """The consumer has put it into the queue for retries."""

    def acknowledge(self, delivery):
        if self.out.pop(delivery.number, None) is not None:
            self.tally.acknowledged += 1


def run_amqp_consumer(kind, databases, pipe, close_first):
    """A consumer process: answers what RabbitMQ delivers until the parent closes
    the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for inherited in close_first:
        inherited.close()
    try:
        consume(kind(connect(databases.shop), Gateway(databases.gateway), pipe), kind.name, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:  # the parent stops the run and shows it
        pipe.send(("broken", f"{type(error).__name__}: {error}"))


def consume(consumer, queue, pipe):
    _, channel = open_channel(queue)
    for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
        if method is None:
            drop_wake_ups(pipe)
            continue
        number, tampered = properties.headers["number"], properties.headers["tampered"]
        pipe.send(("took", (number, method.redelivered)))
        answer = consumer.handle(Delivery(Message(json.loads(body)), tampered, next_fault(pipe), number))
        if answer.again is not None:
            channel.basic_publish("", f"{queue}.retry", body, properties)
        pipe.send(("answer", answer))
        channel.basic_ack(method.delivery_tag)


def drop_wake_ups(pipe):
    """No consumer sleeps at this point. Raises EOFError when the parent is done."""
    while pipe.poll():
        pipe.recv()


def next_fault(pipe):
    """The parent's fault for the delivery that was just taken."""
    while (fault := pipe.recv()) == WAKE_UP:
        pass
    return fault
