"""What consumers decide, and a consumer of a real RabbitMQ. What happens when consumers die is in clients/brokers."""

import math
import os
import time
from datetime import timedelta

import pika
import psycopg
import pytest
from pika.exceptions import ConsumerCancelled

from pg_idempotency import (BadArgument, Declined, FakeClock, Idempotency, InProgress, KeyReused, NotDone, Result, Retry,
                            Settlement, Unknown, Unstorable, owns_dead_letter, settle)
from pg_idempotency.consumer import TRIES, Policy
from pg_idempotency.http.problem import problem_of
from pg_idempotency.rabbitmq import NAME, Consumer
from pg_idempotency.settle import ACK, AGAIN, DEAD_LETTER


@pytest.fixture
def broker(key):
    """A connection, its channel, and the name of a queue of the test's own."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"] + "?heartbeat=0"))
    yield connection, connection.channel(), f"test-{key}"
    connection.close()


def result(outcome, replayed=False, retry_after=None):
    return Result(outcome, code=402, replayed=replayed, retry_after=retry_after)


@pytest.mark.parametrize("outcome, action, after", [
    (result("COMPLETED"), ACK, 0), (result("COMPLETED", True), ACK, 0),
    (result("IN_PROGRESS"), AGAIN, 1), (result("IN_PROGRESS", retry_after=7), AGAIN, 7),
    (result("FAILED"), DEAD_LETTER, 0), (result("FAILED", retry_after=3), AGAIN, 3),
    (result("FAILED", True), DEAD_LETTER, 0),
    (KeyReused("x"), DEAD_LETTER, 0), (Unstorable(), DEAD_LETTER, 0), (NotDone("x", 9), AGAIN, 9), (OSError(), AGAIN, 1),
    *((error(retry_after=timedelta(minutes=1)), AGAIN, 60) for error in (NotDone, Unknown, InProgress))])
def test_settle(outcome, action, after):
    settlement = settle(outcome)
    assert isinstance(settlement, Settlement)
    assert (settlement.action, settlement.after) == (action, after)


def test_the_delay_is_the_first_that_is_long_enough(idem):
    policy = Policy(idem, "q", 20, (1, 2, 10))
    assert [policy.delay(after) for after in (0, 0.2, 1, 1.1, 7, 61)] == [1, 1, 1, 2, 10, 10]


def test_errors_wait_longer_each_time_and_are_bounded(idem):
    policy = Policy(idem, "q", 4, (1, 2))
    decisions = [policy.decide(lambda: throw(error), tries) for error, tries in [
        (OSError(), 0), (OSError(), 1), (OSError(), 2), (Unknown("?", 7), 2), (NotDone("?", 7), 2), (OSError(), 3),
        (KeyReused("x"), 0)]]
    assert [(d.settlement.action, d.settlement.after, d.tries) for d in decisions] == [
        (AGAIN, 1, 1), (AGAIN, 2, 2), (AGAIN, 2, 3), (AGAIN, 7, 3), (AGAIN, 7, 3), (DEAD_LETTER, 0, 4), (DEAD_LETTER, 0, 0)]
    for wrong in (("q", 0, (1,)), ("q", 1, ()), ("q", 1, (2, 1)), ("q" * 251, 1, (1,))):
        with pytest.raises(ValueError):
            Policy(idem, *wrong)
    Policy(idem, "q" * 250, 1, (1,))


def throw(error):
    raise error


@pytest.mark.parametrize("retry_after, after", [(None, 1), (7, 7)])
def test_what_another_worker_runs_uses_up_no_try(idem, retry_after, after):
    """Neither as a result nor as the error of a function that runs once."""
    def function():
        raise InProgress(retry_after)
    for handle in (function, lambda: result("IN_PROGRESS", retry_after=retry_after)):
        decision = Policy(idem, "q", 1, (3,)).decide(handle, 0)
        assert (decision.settlement.action, decision.settlement.after, decision.tries) == (AGAIN, after, 0)
        assert decision.in_progress


def test_an_error_of_the_owner_is_none_of_the_message(idem):
    """Such as the right to its scope: there is time to give it, before each copy is a dead letter."""
    decision = Policy(idem, "q", 3, (1, 2)).decide_failure(Result("FAILED", record="r\0"), "m1", 0)
    assert (decision.settlement.action, decision.settlement.after, decision.tries) == (AGAIN, 1, 1)


def test_what_a_handler_gives_is_no_verdict_by_accident(idem):
    policy = Policy(idem, "q", 3, (1, 2))
    for given in (True, "ack", {"action": "ack"}):
        decisions = [policy.decide(lambda: given, tries) for tries in range(3)]
        assert [(each.settlement.action, each.tries) for each in decisions] == [(AGAIN, 1), (AGAIN, 2), (DEAD_LETTER, 3)]
    for wrong in (("done",), (AGAIN, math.inf)):
        assert policy.decide(lambda: Settlement(*wrong), 0).settlement.reason == "ValueError"


@pytest.mark.parametrize("options", [
    {"wait": "soon"}, {"wait": -1}, {"retention": math.nan}, {"retention": 0}, {"retention": timedelta(days=36501)},
    {"max_attempts": -1}, {"max_attempts": 1.5}, {"max_attempts": 2**31}, {"max_lost_attempts": -1}])
def test_a_wrong_option_is_no_fault_of_a_message(idem, key, options):
    with pytest.raises(BadArgument) as caught:
        idem.transaction(key, None, decline, **options)
    decision = Policy(idem, "q", 3, (2,)).decide(lambda: throw(caught.value), 0)
    assert (decision.settlement.action, decision.tries, settle(caught.value).action) == (AGAIN, 1, AGAIN)
    assert problem_of(caught.value).status == 500


def test_a_dead_letter_that_cannot_be_settled_now_comes_again(pool, idem, key):
    """Nobody else knows of it: it must not be taken for a copy."""
    idem.transaction(key, None, decline)

    def asked_meanwhile(tx, operation):
        policy = Policy(Idempotency(pool, clock=FakeClock()), "busy", 3, (1, 2))
        decision = policy.decide_by_position(lambda: idem.transaction(key, None, decline), "m1", 0)
        return [decision.settlement.action, decision.tries]
    record = idem.transaction(key, None, decline).record
    assert idem.transaction(record, None, asked_meanwhile, scope="busy.dead").payload == [AGAIN, 0]


def test_one_message_owns_the_dead_letter(idem, key):
    failure = idem.transaction(key, None, decline)
    with pytest.raises(ValueError):
        owns_dead_letter(idem, "q", failure, "m1")
    failure = idem.transaction(key, None, decline)
    assert [owns_dead_letter(idem, "q", failure, name) for name in ("m1", "m2", "m1")] == [True, False, True]
    assert owns_dead_letter(idem, "another queue", failure, "m2")
    # what settles it has failed for good, as its attempts were lost too often: each copy is a dead letter
    idem.transaction(failure.record, None, decline, scope="lost.dead")
    assert [owns_dead_letter(idem, "lost", failure, name) for name in ("m1", "m2")] == [True, True]


def decline(tx, operation):
    """Work that is refused."""
    raise Declined(402)


def test_copies_leave_one_dead_letter(idem, key, broker):
    connection, channel, queue = broker
    handled = set()

    def handle(name, body, properties):
        handled.add(name)
        if name == "last":
            connection.add_callback_threadsafe(channel.stop_consuming)
            return None
        return idem.transaction(f"{key} {name}", None, decline)
    consumer = Consumer(channel, queue, handle, idempotency=idem, tries=1)
    consumer.declare()
    for name in ("bad", "bad", None, b"\xff"):
        channel.basic_publish("", queue, b"body", pika.BasicProperties(message_id=name, headers={NAME: b"no text"}))
    while dead_letters(channel, queue) < 3:
        channel.basic_publish("", queue, b"", pika.BasicProperties(message_id="last"))
        consumer.consume()
    names = [taken[1].message_id for taken in iter(lambda: take(channel, f"{queue}.dead"), None)]
    assert sorted(names, key=str) == [None, b"\xff", "bad"] and handled == {"bad", "last"}


def test_a_copy_goes_to_no_queue_of_cc_once_more_and_comes_back(idem, broker):
    """The broker drops what dies in a queue a second time, and was rejected nowhere in between."""
    connection, channel, queue = broker
    other = channel.queue_declare("", exclusive=True).method.queue
    seen = []

    def handle(name, body, properties):
        seen.append(name)
        if len(seen) == 3:
            connection.add_callback_threadsafe(channel.stop_consuming)
            return None
        return Settlement(AGAIN, 0.01)
    consumer = Consumer(channel, queue, handle, idempotency=idem, delays=[0.01])
    consumer.declare()
    death = {"count": 1, "reason": "delivery_limit", "queue": queue, "exchange": "", "routing-keys": [queue]}
    channel.basic_publish("", queue, b"", pika.BasicProperties(
        message_id="one", headers={"CC": [other], "x-death": [death]}))
    consumer.consume()
    assert channel.queue_declare(other, passive=True).method.message_count == 1


def test_a_message_that_may_own_the_dead_letter_has_no_copy(idem, key, broker):
    """A copy with its name would own the dead letter, too, if the consumer died before it acknowledged the message."""
    connection, channel, queue = broker
    published = []
    publish = channel.basic_publish

    def publishing(exchange, to, body, properties, **named):
        published.append((to, properties.expiration))
        publish(exchange, to, body, properties, **named)
    channel.basic_publish = publishing
    asked = []

    def fails_twice():
        asked.append(time.monotonic())
        if len(asked) == 3:
            connection.call_later(0.2, channel.stop_consuming)
        return psycopg.connect("" if len(asked) > 2 else "host=/nowhere")
    consumer = Consumer(channel, queue, lambda name, body, properties: idem.transaction(key, None, decline),
                        idempotency=Idempotency(fails_twice, retry=Retry(attempts=1)), tries=3, delays=[0.05, 0.2])
    consumer.declare()
    publish("", queue, b"body", pika.BasicProperties(message_id="m", expiration="60000"))
    consumer.consume()
    assert published == [(queue, None)] and asked[1] - asked[0] >= 0.05 and asked[2] - asked[1] >= 0.2
    wait_for_dead_letter(connection, channel, queue)


def dead_letters(channel, queue):
    return channel.queue_declare(f"{queue}.dead", passive=True).method.message_count


def test_a_failure_without_a_record_is_bounded(idem, broker):
    """As of a client that keeps nothing: its tries go on where the message gets a name."""
    connection, channel, queue = broker
    seen = []

    def handle(name, body, properties):
        seen.append(name)
        if len(seen) == 3:
            connection.call_later(0.2, channel.stop_consuming)
        return result("FAILED")
    consumer = Consumer(channel, queue, handle, idempotency=idem, tries=2)
    consumer.declare()
    channel.basic_publish("", queue, b"body", pika.BasicProperties(message_id="m"))
    consumer.consume()
    assert seen == ["m"] * 3
    wait_for_dead_letter(connection, channel, queue)


def test_a_message_that_pauses_goes_back_with_its_channel(idem, key, broker):
    connection, channel, queue = broker
    asked = []

    def fails():
        asked.append(key)
        connection.add_callback_threadsafe(channel.stop_consuming)
        return psycopg.connect("host=/nowhere")
    consumer = Consumer(channel, queue, lambda name, body, properties: idem.transaction(key, None, decline),
                        idempotency=Idempotency(fails, retry=Retry(attempts=1)), delays=[0.05])
    consumer.declare()
    channel.basic_publish("", queue, b"body", pika.BasicProperties(message_id="m"))
    consumer.consume()
    channel.close()
    connection.sleep(0.1)
    assert asked == [key] and take(connection.channel(), queue)[2] == b"body"


def test_a_consumer_that_the_broker_has_ended(idem, broker):
    """It has not been told to stop."""
    connection, channel, queue = broker

    def handle(name, body, properties):
        with pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"])) as another:
            another.channel().queue_delete(queue)
    consumer = Consumer(channel, queue, handle, idempotency=idem)
    consumer.declare()
    channel.basic_publish("", queue, b"", pika.BasicProperties(message_id="one"))
    with pytest.raises(ConsumerCancelled):
        consumer.consume()


def wait_for_dead_letter(connection, channel, queue):
    """The broker moves it when it has the time."""
    deadline = time.monotonic() + 60
    while dead_letters(channel, queue) == 0:
        assert time.monotonic() < deadline
        connection.sleep(0.05)


def take(channel, queue):
    """The next message of a queue, or None."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    return None if method is None else (method, properties, body)


@pytest.mark.parametrize("of, tries", [("handle", "odd"), ("key_of", -5)])
def test_tries_are_bounded(idem, of, tries, broker):
    """What always fails: the message comes back, and is a dead letter in the end. It had a header that is no count."""
    connection, channel, queue = broker
    calls = []

    def fails(*given):
        calls.append(of)
        if len(calls) == 2:
            connection.call_later(0.2, channel.stop_consuming)
        raise RuntimeError("a mistake in the service")
    consumer = Consumer(channel, queue, idempotency=idem, tries=2, delays=[0.05, 0.2], **{"handle": None, of: fails})
    consumer.declare()
    channel.basic_publish("", queue, b"body", pika.BasicProperties(
        message_id="m", headers={"own": "1", TRIES: tries}, user_id="guest", delivery_mode=1))
    consumer.consume()
    wait_for_dead_letter(connection, channel, queue)
    _, properties, body = take(channel, f"{queue}.dead")
    assert (calls, body, properties.message_id, properties.headers["own"]) == ([of, of], b"body", "m", "1")
    assert (properties.user_id, properties.delivery_mode) == (None, 2)


def test_a_message_stays_where_it_is_when_the_queue_of_its_delay_is_missing(idem, broker):
    connection, channel, queue = broker

    def fails(*given):
        connection.add_callback_threadsafe(channel.stop_consuming)
        raise RuntimeError("a mistake in the handler")
    consumer = Consumer(channel, queue, fails, idempotency=idem, delays=[1])
    consumer.declare()
    channel.queue_delete(consumer.again_queue(1))
    channel.basic_publish("", queue, b"body", pika.BasicProperties(message_id="m"))
    consumer.consume()
    deadline = time.monotonic() + 20
    taken = take(channel, queue)
    while taken is None:    # it may be on its way back
        assert time.monotonic() < deadline
        connection.sleep(0.05)
        taken = take(channel, queue)
    assert taken[2] == b"body"
