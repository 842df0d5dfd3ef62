"""What the two services in Python share: they consume a queue, and each message is an operation.

The action's writes, the message that tells of it, and the record of the operation
commit together. If a message comes again, nothing happens again; only what was told then
is told again, for whoever has not heard it.
"""

import json
import os

import pika
import psycopg_pool

from pg_idempotency import Idempotency
from pg_idempotency.rabbitmq import Consumer


class Service:
    """``actions``: for each type of message a function of (tx, order), which gives the type of its answer."""

    def __init__(self, name, actions):
        self.name = name
        self.actions = actions
        self.pool = psycopg_pool.ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2, timeout=5, open=True)
        self.idempotency = Idempotency(self.pool, scope=name)

    def run(self):
        """Consumes until the broker is gone, which ends the process: whoever supervises it starts it again."""
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        consumer = Consumer(connection.channel(), self.name, self.handle, idempotency=self.idempotency,
                            tries=10_000, delays=[1])
        consumer.declare()
        print("ready", flush=True)
        consumer.consume()

    def handle(self, key, body, properties):
        """One message, which may come any number of times."""
        order = json.loads(body)
        action = self.actions[properties.type]

        def work(tx, operation):
            answer = action(tx, order)
            say(tx, order, answer)
            return {"answer": answer}

        result = self.idempotency.transaction(key, order, work)
        if result.replayed and result.outcome == "COMPLETED":
            print("duplicate", key, flush=True)
            with self.pool.connection() as tx:
                say(tx, order, result.payload["answer"])
        return result


def say(tx, order, message):
    """Writes a message into the outbox."""
    tx.execute("SELECT say(%s, %s, %s::jsonb)", (order["order"], message, json.dumps(order)))
