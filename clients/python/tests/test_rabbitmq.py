"""Consumers of a real RabbitMQ: killed before COMMIT, after it, and before the ack."""

import json
import os
import random
import signal
import time

import pika
import psycopg
import pytest

from pg_idempotency import Declined, Idempotency, KeyReused, NotDone, Response, Result, Settlement, settle
from pg_idempotency.rabbitmq import Consumer, delay_of
from pg_idempotency.settle import ACK, AGAIN, DEAD_LETTER

MESSAGES = 200
KILL = 9


def result(outcome, replayed=False, retry_after=None):
    return Result(outcome, code=402, replayed=replayed, retry_after=retry_after)


@pytest.mark.parametrize("outcome, redelivered, action, after", [
    (result("COMPLETED"), False, ACK, 0), (result("COMPLETED", True), True, ACK, 0),
    (result("IN_PROGRESS"), False, AGAIN, 1), (result("IN_PROGRESS", retry_after=7), False, AGAIN, 7),
    (result("FAILED"), False, DEAD_LETTER, 0), (result("FAILED", retry_after=3), False, AGAIN, 3),
    (result("FAILED", True), True, DEAD_LETTER, 0), (result("FAILED", True), False, ACK, 0),
    (KeyReused("x"), False, DEAD_LETTER, 0), (NotDone("x", 9), False, AGAIN, 9), (OSError(), True, AGAIN, 1)])
def test_settle(outcome, redelivered, action, after):
    settlement = settle(outcome, redelivered)
    assert isinstance(settlement, Settlement)
    assert (settlement.action, settlement.after) == (action, after)


def test_delays_are_never_shorter():
    assert [delay_of(after) for after in (0, 0.2, 1, 1.1, 7, 61, 1e9)] == [1, 1, 1, 2, 10, 300, 3600]


def connect():
    return pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"] + "?heartbeat=0"))


def kind_of(number):
    """Most messages succeed, some are declined for good, some only at first."""
    return {3: "declined", 7: "later"}.get(number % 10, "ok")


def handler(idem, dice):
    """Runs one message, and kills the process at one of three points."""
    def handle(key, body, properties):
        message = json.loads(body)

        def work(tx, operation):
            tx.execute("INSERT INTO effect VALUES (%s, %s)", (message["run"], message["number"]))
            if dice.random() < 0.08:
                os._exit(KILL)
            if message["kind"] == "declined":
                raise Declined(402, {"reason": "declined"})
            if message["kind"] == "later" and operation.attempt == 1:
                raise Declined(503, retry_after=0.2)
            return Response(200)
        outcome = idem.transaction(key, message, work)
        if dice.random() < 0.08:
            os._exit(KILL)
        return outcome
    return handle


def consume(queue, seed):
    """A consumer in a process of its own. Does not return."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        idem = Idempotency(lambda: psycopg.connect(""), scope=queue)
        Consumer(connect().channel(), queue, handler(idem, random.Random(seed)), prefetch=5).consume()
    finally:
        os._exit(1)


class Workers:
    """Four consumers; one that was killed is started again."""

    def __init__(self, queue):
        self.queue = queue
        self.kills = 0
        self.seed = 0
        self.running = [self.start() for _ in range(4)]

    def start(self):
        self.seed += 1
        process = os.fork()
        if process == 0:
            consume(self.queue, self.seed)
        return process

    def look(self):
        """Starts those again that were killed."""
        for process in list(self.running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                assert os.WEXITSTATUS(status) == KILL
                self.kills += 1
                self.running.remove(process)
                self.running.append(self.start())

    def stop(self):
        for process in self.running:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)


def test_effects_and_dead_letters_exactly_once(key, admin):
    queue = f"test-{key}"
    connection = connect()
    channel = connection.channel()
    Consumer(channel, queue, None).declare()
    numbers = [number for number in range(MESSAGES) for _ in range(1 + (number % 20 == 0))]
    for number in numbers:
        channel.basic_publish("", queue, json.dumps({"run": key, "number": number, "kind": kind_of(number)}),
                              pika.BasicProperties(message_id=f"m-{number}", delivery_mode=2), mandatory=True)
    channel.basic_publish("", queue, b"{}", pika.BasicProperties(delivery_mode=2), mandatory=True)
    declined = sum(kind_of(number) == "declined" for number in range(MESSAGES))
    workers = Workers(queue)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        workers.look()
        ended = admin.execute("SELECT count(*) FROM idempotency_store WHERE scope = %s AND (status = 'COMPLETED'"
                              " OR (status = 'FAILED' AND retry_at IS NULL))", (queue,)).fetchone()[0]
        if ended == MESSAGES and dead_letters(channel, queue) == declined + 1:
            break
        connection.process_data_events(0.05)
    workers.stop()
    effects = admin.execute("SELECT value FROM effect WHERE name = %s ORDER BY value", (key,)).fetchall()
    assert [row[0] for row in effects] == [n for n in range(MESSAGES) if kind_of(n) != "declined"]
    assert workers.kills >= 10
    ids = [taken[1].message_id for taken in iter(lambda: take(channel, f"{queue}.dead"), None)]
    assert sorted(map(str, ids)) == sorted(
        ["None"] + [f"m-{n}" for n in range(MESSAGES) if kind_of(n) == "declined"])
    connection.close()


def dead_letters(channel, queue):
    return channel.queue_declare(f"{queue}.dead", passive=True).method.message_count


def take(channel, queue):
    """The next message of a queue, or None."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    return None if method is None else (method, properties, body)


def test_tries_are_bounded(key):
    """A handler that always fails: the message comes back, and is a dead letter in the end."""
    queue = f"test-{key}"
    connection = connect()
    channel = connection.channel()
    calls = []

    def handle(name, body, properties):
        calls.append(name)
        if len(calls) == 2:
            connection.call_later(3, channel.stop_consuming)
        raise RuntimeError("a mistake in the handler")
    consumer = Consumer(channel, queue, handle, tries=2)
    consumer.declare()
    channel.basic_publish("", queue, b"body", pika.BasicProperties(message_id="m", headers={"own": "1"}))
    consumer.consume()
    method, properties, body = take(channel, f"{queue}.dead")
    assert (calls, body, properties.message_id, properties.headers["own"]) == (["m", "m"], b"body", "m", "1")
    connection.close()
