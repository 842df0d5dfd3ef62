"""Consumers of Redis Streams and of Kafka: copies, retries, dead letters.

What happens when consumers die is in clients/brokers.
"""

import json
import os
import threading
import time
from types import SimpleNamespace

import psycopg
import pytest
import redis
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from pg_idempotency import BadArgument, Declined, Idempotency, InProgress
from pg_idempotency import kafka as on_kafka
from pg_idempotency import redis as on_redis
from pg_idempotency.settle import AGAIN, DEAD_LETTER, Settlement

BROKER = {"bootstrap_servers": os.environ["DEMO_KAFKA"], "api_version_auto_timeout_ms": 60000}


class RedisStage:
    """A stream of its own."""

    def __init__(self, queue):
        self.queue = queue
        self.client = redis.Redis.from_url(os.environ["DEMO_REDIS"])

    def send(self, keys):
        for key in keys:
            self.client.xadd(self.queue, {"key": key})

    def consumer(self, idem, handle, **options):
        made = on_redis.Consumer(self.client, self.queue, "test", lambda entry: handle(entry.fields[b"key"].decode()),
                                 idempotency=idem, delays=[0.02, 0.3], poll=0.02, **{"idle": 60, **options})
        for _ in range(2):      # a consumer that starts again finds its group
            made.declare()
        return made

    def settled(self):
        group = self.client.xinfo_groups(self.queue)[0]
        return group["pending"] == 0 and group["lag"] == 0

    def dead_letters(self):
        return [fields[b"key"].decode() for _, fields in self.client.xrange(f"{{{self.queue}}}.test.dead")]

    def close(self, consumer):
        pass


class KafkaStage:
    """A topic of its own: the broker makes it when somebody asks for it."""

    def __init__(self, queue):
        self.queue = queue
        self.dead = f"{queue}.{queue}.dead"
        self.producer = KafkaProducer(acks="all", **BROKER)
        for topic in (self.queue, self.dead):
            self.producer.send(topic, key=b"first", value=b"").get(timeout=60)

    def send(self, keys):
        for key in keys:
            self.producer.send(self.queue, key=key.encode(), value=b"").get(timeout=60)

    def consumer(self, idem, handle, **options):
        source = KafkaConsumer(group_id=self.queue, enable_auto_commit=False, auto_offset_reset="earliest",
                               session_timeout_ms=30000, heartbeat_interval_ms=200, **BROKER)
        return on_kafka.Consumer(
            source, self.producer, self.queue,
            lambda message: None if message.key == b"first" else handle(message.key.decode()),
            idempotency=idem, delays=[0.02, 0.3], poll=0.05, **options)

    def settled(self):
        source = KafkaConsumer(group_id=self.queue, enable_auto_commit=False, **BROKER)
        ends = source.end_offsets([TopicPartition(self.queue, n) for n in source.partitions_for_topic(self.queue)])
        done = {partition: source.committed(partition) or 0 for partition in ends}
        source.close(autocommit=False)
        return done == ends

    def dead_letters(self):
        source = KafkaConsumer(**BROKER)
        partitions = [TopicPartition(self.dead, n) for n in source.partitions_for_topic(self.dead)]
        source.assign(partitions)
        source.seek_to_beginning()
        ends, found, deadline = source.end_offsets(partitions), {}, time.monotonic() + 60
        while any(source.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline
            for messages in source.poll(1000).values():
                found |= {dict(message.headers)[on_kafka.ORIGIN]: message.key.decode()
                          for message in messages if message.key != b"first"}
        source.close()
        return list(found.values())

    def close(self, consumer):
        consumer.consumer.close(autocommit=False)


@pytest.fixture(params=[RedisStage, KafkaStage], ids=["redis", "kafka"])
def stage(request, key):
    return request.param(f"{key}-{time.time_ns()}")


@pytest.fixture
def idem(stage):
    return Idempotency(lambda: psycopg.connect(""), scope=stage.queue)


def consume_until(stage, consumer, holds):
    """Consumes in a thread until the condition holds and all is settled."""
    thread = threading.Thread(target=consumer.consume)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while not (holds() and stage.settled()):
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        consumer.stop()
        thread.join(20)
        stage.close(consumer)


def test_copies_and_failures(stage, idem, admin):
    seen = []

    def handle(name):
        def work(tx, operation):
            tx.execute("INSERT INTO effect VALUES (%s, 1)", (stage.queue + name,))
            if name.startswith("bad"):
                raise Declined(402)
            if name == "late" and operation.attempt == 1:
                raise Declined(503, retry_after=0.05)
        seen.append(name)
        return idem.transaction(name, None, work)

    stage.send(["good", "bad", "late", "good", "bad", "bad2", "bad"])
    consume_until(stage, stage.consumer(idem, handle, tries=1), lambda: len(set(seen)) == 4)    # no copy uses one up
    assert sorted(stage.dead_letters()) == ["bad", "bad2"]
    effects = admin.execute("SELECT name, count(*) FROM effect WHERE starts_with(name, %s) GROUP BY name", (stage.queue,))
    assert dict(effects.fetchall()) == {stage.queue + "good": 1, stage.queue + "late": 1}


def test_errors_come_again_later_and_are_bounded(stage, idem):
    times = []

    def handle(name):
        if name == "broken":
            times.append(time.monotonic())
            raise RuntimeError("planned")
        if name == "argument":
            raise BadArgument("planned")

    stage.send(["broken", "argument", "nothing"])
    options = {"idle": 0.05} if isinstance(stage, RedisStage) else {}     # an entry may pause for longer
    consume_until(stage, stage.consumer(idem, handle, tries=3, **options), lambda: len(times) == 3)
    assert sorted(stage.dead_letters()) == ["argument", "broken"]
    assert times[1] - times[0] >= 0.02 and times[2] - times[1] >= 0.3


def test_what_another_worker_runs_uses_up_no_try(stage, idem):
    seen = []

    def handle(name):
        seen.append(name)
        times = seen.count(name)
        if times == 4:
            raise RuntimeError("planned")
        if times < 4:
            raise InProgress(0.01)
    stage.send(["one"])
    limit = {"delivery_limit": 2} if isinstance(stage, RedisStage) else {}
    consume_until(stage, stage.consumer(idem, handle, tries=2, **limit), lambda: len(seen) == 5)
    assert stage.dead_letters() == []


def test_an_entry_that_kills_its_consumers(key):
    """Redis counts deliveries: an entry that is never settled becomes a dead letter in the end."""
    stage = RedisStage(f"{key}-{time.time_ns()}")
    idem = Idempotency(lambda: psycopg.connect(""), scope=stage.queue)
    consumer = stage.consumer(idem, lambda name: pytest.fail("handled"), delivery_limit=1, idle=0.3)
    stage.send(["deadly"])
    assert [entry.fields for entry in consumer.next()] == [{b"key": b"deadly"}]
    consume_until(stage, consumer, lambda: True)
    assert stage.dead_letters() == ["deadly"]


def test_an_entry_that_two_consumers_have_is_settled_once(key):
    stage = RedisStage(f"{key}-{time.time_ns()}")
    consumer = stage.consumer(Idempotency(lambda: psycopg.connect("")), None)
    stage.send(["twice"])
    [entry] = consumer.next()
    for _ in range(2):
        consumer.run(on_redis.END, "test", entry.id, "bury")
    consumer.run(on_redis.PAUSE, "test", entry.id, 1000, 1, "other", 1)
    assert (stage.dead_letters(), stage.client.exists(*consumer.keys[1:3])) == (["twice"], 0)


def test_an_entry_whose_dead_letter_cannot_be_added_is_not_acknowledged(key):
    stage = RedisStage(key)
    stage.client.set(f"{{{key}}}.test.dead", "no stream")
    stage.send(["one"])
    consumer = stage.consumer(Idempotency(lambda: psycopg.connect("")), lambda name: Settlement(DEAD_LETTER))
    with pytest.raises(redis.ResponseError):
        consumer.settle(consumer.next()[0])
    assert not stage.settled()


def test_a_dead_letter_of_more_fields_than_a_script_passes_on(key):
    stage = RedisStage(f"{key}-{time.time_ns()}")
    stage.client.xadd(stage.queue, {f"field {n}": "value" for n in range(4500)})
    consumer = on_redis.Consumer(stage.client, stage.queue, "test", lambda entry: Settlement(DEAD_LETTER),
                                 idempotency=Idempotency(lambda: psycopg.connect("")))
    consumer.declare()
    consume_until(stage, consumer, lambda: True)
    [(_, fields)] = stage.client.xrange(consumer.keys[3])
    assert json.loads(fields[b"x-idempotency-fields"])[-2:] == ["field 4499", "value"]


def test_a_consumer_that_is_gone_leaves_its_name_only_with_entries(key):
    stage = RedisStage(f"{key}-{time.time_ns()}")
    first, second = (stage.consumer(Idempotency(lambda: psycopg.connect("")), None) for _ in range(2))
    stage.send(["one", "two"])
    first.next()
    second.run(on_redis.END, "test", second.next()[0].id, "ack")
    second.declare()
    assert [each["name"].decode() for each in stage.client.xinfo_consumers(stage.queue, "test")] == [first.name]


def test_nothing_is_left_of_an_entry_that_is_deleted_while_it_pauses(key):
    stage = RedisStage(f"{key}-{time.time_ns()}")
    consumer = stage.consumer(Idempotency(lambda: psycopg.connect("")), lambda name: Settlement(AGAIN))
    stage.send(["one"])
    [entry] = consumer.next()
    consumer.run(on_redis.PAUSE, "test", entry.id, 0, 1, "other", 1)
    stage.client.xdel(stage.queue, entry.id)
    assert consumer.next() == [] and stage.client.exists(*consumer.keys[1:3]) == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decodes", [False, True])
def test_whatever_the_client_speaks_and_decodes(key, protocol, decodes):
    """An entry that it cannot decode is a dead letter in the end, and no other waits for it."""
    stage = RedisStage(f"{key}-{time.time_ns()}")
    client = redis.Redis.from_url(os.environ["DEMO_REDIS"], protocol=protocol, decode_responses=decodes)
    seen = []
    consumer = on_redis.Consumer(client, stage.queue, "test", seen.append, idempotency=Idempotency(lambda: psycopg.connect("")),
                                 tries=2, delays=[0.02], poll=0.02)
    consumer.declare()
    stage.send([b"\xff", b"one"])
    consume_until(stage, consumer, lambda: True)
    fields = [{"key": "one"}] if decodes else [{b"key": b"\xff"}, {b"key": b"one"}]
    assert [(entry.fields, entry.deliveries) for entry in seen] == [(each, 1) for each in fields]
    assert stage.client.xlen(consumer.keys[3]) == (1 if decodes else 0)


@pytest.mark.parametrize("stream, prefix", [("s", "{s}"), ("{a}s", "{a}s"), ("a{b", "{a{b}")])
def test_the_keys_of_all_languages_are_the_same(stream, prefix):
    consumer = on_redis.Consumer(None, stream, "g", None, idempotency=Idempotency(lambda: psycopg.connect("")))
    assert consumer.keys[3] == f"{prefix}.g.dead"


@pytest.mark.parametrize("option", ["idle", "poll"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_redis_that_is_asked_without_end_or_pause_is_refused(option, value):
    """BLOCK 0 is for ever: an entry whose pause is over would wait for a new one."""
    with pytest.raises(ValueError, match=option):
        on_redis.Consumer(None, "s", "g", None, idempotency=Idempotency(lambda: psycopg.connect("")), **{option: value})


class Claiming:
    """A client of Redis whose claims take longer than the handler."""

    def __init__(self):
        self.entered, self.handled, self.ended = threading.Event(), threading.Event(), []

    def execute_command(self, command, *arguments, **options):
        if command == "XCLAIM":
            self.entered.set()
            self.handled.wait()
            time.sleep(0.02)    # an end that does not wait for the claim comes now
        self.ended.append(command)

    def get_encoder(self):
        return redis.connection.Encoder("utf-8", "strict", False)


def test_a_claim_under_way_ends_before_its_entry():
    client = Claiming()

    def handle(entry):
        client.entered.wait()
        client.handled.set()
    consumer = on_redis.Consumer(client, "s", "g", handle, idempotency=Idempotency(lambda: psycopg.connect("")), idle=0.003)
    consumer.settle(on_redis.Entry("1-0", {}, 1, 0))
    assert client.ended[-1] == "EVAL"
    assert set(client.ended[:-1]) == {"XCLAIM"}


def test_an_entry_is_claimed_anew_without_an_error(key, caplog):
    stage = RedisStage(f"{key}-{time.time_ns()}")
    stage.send(["one"])
    consumer = stage.consumer(Idempotency(lambda: psycopg.connect("")), lambda key: time.sleep(0.5), idle=0.3)
    consume_until(stage, consumer, stage.settled)
    assert caplog.messages == []


def test_a_dead_letter_that_is_sent_again_has_one_origin():
    sent = []

    class Producer:
        def send(self, topic, **message):
            sent.append(message["headers"])
            return self

        def get(self, timeout):
            pass

    class Source:
        config = {"group_id": "g", "enable_auto_commit": False}
    consumer = on_kafka.Consumer(Source, Producer(), "t", None, idempotency=Idempotency(lambda: psycopg.connect("")))
    consumer.bury(SimpleNamespace(topic="t", partition=0, offset=7, key=None, value=None, timestamp=0,
                                  headers=[(on_kafka.ORIGIN, b"t/0/3"), ("own", b"1"), ("none", None)]))
    assert sent == [[("own", b"1"), ("none", b""), (on_kafka.ORIGIN, b"t/0/7")]]


def test_what_an_error_of_kafka_has_left_comes_when_it_consumes_again(key):
    stage = KafkaStage(f"{key}-{time.time_ns()}")
    stage.send(["one", "two", "three"])
    seen = []

    def handle(name):
        seen.append(name)
        return Settlement(DEAD_LETTER) if len(seen) == 1 else None
    consumer = stage.consumer(Idempotency(lambda: psycopg.connect("")), handle)
    commit = consumer.consumer.commit
    consumer.consumer.commit = lambda offsets: 1 / 0
    with pytest.raises(ZeroDivisionError):
        consumer.consume()
    consumer.consumer.commit = commit
    consume_until(stage, consumer, lambda: set(seen) == {"one", "two", "three"})


def test_kafka_needs_commits_of_its_own(key):
    idem = Idempotency(lambda: psycopg.connect(""))
    for options in ({"group_id": "g"}, {"enable_auto_commit": False, "group_id": None}):
        source = KafkaConsumer(**options, **BROKER)
        with pytest.raises(ValueError):
            on_kafka.Consumer(source, None, "t", lambda message: None, idempotency=idem)
        source.close(autocommit=False)
