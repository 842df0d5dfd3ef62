"""Runs the mock cluster of librdkafka, and prints its address. It ends when it is told to."""

import signal

from confluent_kafka import Producer

cluster = Producer({"test.mock.num.brokers": 1})
broker = next(iter(cluster.list_topics(timeout=20).brokers.values()))
print(f"{broker.host}:{broker.port}", flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
