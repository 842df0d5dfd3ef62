"""The relay: sends what is in a service's outbox, with the broker's confirmation.

It may die anywhere. If it dies between the confirmation and its note of it, the
message goes out twice; the key of the message makes that one effect.
The relay owns the routes: it sends nothing before the queues are there.
"""

import json
import os
import pathlib
import select

import pika
import psycopg

EXCHANGE = "shop"
BATCH = 100
PAUSE = 5    # seconds; a notification comes earlier


def main():
    """Runs until the database or the broker is gone; whoever supervises it starts it again."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    channel.confirm_delivery()
    bind_routes(channel)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        news = []    # a notification may come with any answer
        database.add_notify_handler(news.append)
        database.execute("LISTEN outbox")
        print("ready", flush=True)
        while True:
            news.clear()
            if not send_batch(database, channel) and not news:
                select.select([database.fileno()], [], [], PAUSE)
                database.execute("SELECT")
            connection.process_data_events(0)


def bind_routes(channel):
    """Raises pika's error if a queue is not there yet."""
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    routes = json.loads(pathlib.Path(__file__).parent.with_name("routes.json").read_text())
    for queue, types in routes[os.environ["MODE"]].items():
        for message in types:
            channel.queue_bind(queue, EXCHANGE, message)


def send_batch(database, channel):
    """Sends the oldest messages; gives how many."""
    rows = database.execute(
        "SELECT key, type, body::text FROM outbox WHERE sent_at IS NULL ORDER BY written_at LIMIT %s", (BATCH,)).fetchall()
    for key, message, body in rows:
        # returns when the queues have it; raises if there is none
        channel.basic_publish(EXCHANGE, message, body.encode(), pika.BasicProperties(
            message_id=key, type=message, content_type="application/json", delivery_mode=2), mandatory=True)
    if rows:
        database.execute("UPDATE outbox SET sent_at = clock_timestamp(), sent = sent + 1 WHERE key = ANY(%s)",
                         ([key for key, _, _ in rows],))
    return len(rows)


if __name__ == "__main__":
    main()
