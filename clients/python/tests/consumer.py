"""A consumer that dies: BROKER says of what, QUEUE of which queue, DIE at which point it kills itself. SIGTERM stops it.

The kills of all languages are in clients/brokers; each language has such a program.
"""

import os
import signal

import psycopg

from pg_idempotency import Declined, Idempotency

QUEUE = os.environ["QUEUE"]
DIE = os.environ["DIE"]


def at(point):
    """Kills this process at the chosen point."""
    if point == DIE:
        die()


def die():
    """The end of this process, wherever it is."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(target, name, call):
    """Calls ``call`` before each call of a method."""
    method = getattr(target, name)

    def watched(*given, **named):
        call(*given)
        return method(*given, **named)
    setattr(target, name, watched)


idem = Idempotency(lambda: psycopg.connect(""), scope=QUEUE)


def handle(key):
    """Leaves one effect; "bad" is declined, "late" the first time."""
    def work(tx, operation):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        at("work")
        if "poison" in key:
            die()
        if "bad" in key:
            raise Declined(422, "never")
        if "late" in key and operation.attempt == 1:
            raise Declined(503, retry_after=0.03)
        return key
    result = idem.transaction(key, None, work, max_lost_attempts=3 if "poison" in key else 0)
    at("commit")
    return result


def rabbitmq():
    """Watches the channel."""
    import pika
    from pg_idempotency.rabbitmq import Consumer
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"] + "?heartbeat=0"))
    channel = connection.channel()
    copied = []
    before(channel, "basic_publish", lambda *given: copied.append(given))
    before(channel, "basic_ack", lambda *given: (at("ack"), copied and at("copy")))
    before(channel, "basic_reject", lambda *given: at("bury"))
    consumer = Consumer(channel, QUEUE, lambda key, body, properties: handle(key), idempotency=idem, delays=[0.02, 0.1],
                        delivery_limit=1000, prefetch=4)
    consumer.declare()
    signal.signal(signal.SIGTERM, lambda *_: connection.add_callback_threadsafe(channel.stop_consuming))
    consumer.consume()
    connection.close()


def redis():
    """Watches the scripts."""
    import redis as client
    from pg_idempotency.redis import END, PAUSE, Consumer
    connection = client.Redis.from_url(os.environ["DEMO_REDIS"])

    def watch(*given):
        if given[1] in (END, PAUSE):
            at("ack")
            if given[-1] == "bury":
                at("bury")
    before(connection, "execute_command", watch)
    consumer = Consumer(connection, QUEUE, "test", lambda entry: handle(entry.fields[b"key"].decode()), idempotency=idem,
                        delays=[0.02, 0.1], delivery_limit=1000, idle=0.3, poll=0.02)
    consumer.declare()
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.consume()


def kafka():
    """Watches the commits."""
    from kafka import KafkaConsumer, KafkaProducer
    from pg_idempotency.kafka import Consumer
    broker = os.environ["DEMO_KAFKA"]
    source = KafkaConsumer(bootstrap_servers=broker, group_id=QUEUE, enable_auto_commit=False, auto_offset_reset="earliest",
                           session_timeout_ms=4000, heartbeat_interval_ms=200,
                           # a group waits so long for a member that died while it joined
                           max_poll_interval_ms=10000)
    producer = KafkaProducer(bootstrap_servers=broker, acks="all")
    buried = []
    before(producer, "send", lambda *given: buried.append(given))
    before(source, "commit", lambda *given: (at("ack"), buried and at("bury")))
    consumer = Consumer(source, producer, QUEUE,
                        lambda message: handle(message.key.decode()) if message.key != b"first" else None, idempotency=idem,
                        delays=[0.02, 0.1], poll=0.05)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.consume()
    source.close()


{"rabbitmq": rabbitmq, "redis": redis, "kafka": kafka}[os.environ["BROKER"]]()
