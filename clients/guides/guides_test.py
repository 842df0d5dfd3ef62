"""The Python of the guides, called with gateways and messages of all kinds."""

import os
import sys
import types

import pika
import psycopg
import psycopg_pool
from pg_idempotency import Idempotency
from verdict import Verdict

sys.path[:0] = ["apiclient", "gateway", "outbox", "queue"]
import card  # noqa: E402
import consumer  # noqa: E402
import relay  # noqa: E402
import send  # noqa: E402


class Gateway:
    """Charges once for each key, and fails as it is told."""

    class Declined(Exception):
        """No money."""

    class Refused(Exception):
        """Nothing has happened."""

    def __init__(self, pool, failure=None):
        self.pool, self.failure = pool, failure
        self.charges, self.calls = {}, 0

    def charge(self, key, amount, fence, timeout):
        """The number of the charge."""
        self.calls += 1
        with self.pool.connection() as connection:    # the only one is free meanwhile
            connection.execute("SELECT 1")
        if isinstance(self.failure, (Gateway.Declined, Gateway.Refused)):
            raise self.failure
        number = self.charges.setdefault(key, f"ch_{key}")
        if self.failure:
            raise self.failure
        return number

    def find(self, key):
        """The charge of a key, or None."""
        return self.charges.get(key)


def play_gateway(verdict, admin, pool):
    """Charged, declined, refused, and not known."""
    idempotency = Idempotency(pool, scope="card-payments/tenant-2")

    def pay(gateway, order):
        try:
            result = card.pay_by_card(idempotency, gateway, order, 30)
            return result.code, result.payload, result.replayed
        except Exception as error:
            return type(error).__name__

    def paid(order):
        return admin.execute("SELECT count(*) FROM card_payment WHERE id = %s", (order,)).fetchone()[0]

    def check(what, got, expected):
        verdict.check(got == expected, f"gateway: {what}", f"    expected {expected}, got {got}")

    gateway = Gateway(pool)
    answer = {"charge": "ch_py-charged"}
    check("charged", pay(gateway, "py-charged"), (201, answer, False))
    check("replayed", pay(gateway, "py-charged"), (201, answer, True))
    check("charged once", (gateway.calls, paid("py-charged")), (1, 1))
    gateway = Gateway(pool, Gateway.Declined())
    check("declined", pay(gateway, "py-declined"), (402, {"reason": "declined"}, False))
    check("declined, replayed", pay(gateway, "py-declined"), (402, {"reason": "declined"}, True))
    check("declined once", (gateway.calls, paid("py-declined")), (1, 0))
    gateway = Gateway(pool, Gateway.Refused())
    check("refused", pay(gateway, "py-refused"), "NotDone")
    gateway.failure = None
    check("after it was refused", pay(gateway, "py-refused"), (201, {"charge": "ch_py-refused"}, False))
    gateway = Gateway(pool, TimeoutError())
    check("a timeout", pay(gateway, "py-timeout"), "TimeoutError")
    admin.execute("UPDATE idempotency_store SET lease_expires_at = now() - interval '1 second'"
                  " WHERE idempotency_key = 'py-timeout'")
    check("reconciled", pay(gateway, "py-timeout")[:2], (201, {"charge": "ch_py-timeout"}))
    check("charged once after a timeout", (gateway.calls, paid("py-timeout")), (1, 1))


def play_queue(verdict, admin, pool):
    """A message that comes twice, one that fails, and one whose id was used before."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"]))
    channel = connection.channel()
    found = consumer.consumer(pool, channel)
    for key, body in (("m-1", '{"account": "alice", "amount": 10}'), ("m-1", '{"account": "alice", "amount": 10}'),
                      ("m-2", '{"account": "nobody", "amount": 10}'), ("m-1", '{"account": "alice", "amount": 99}')):
        channel.basic_publish("", "deposits", body, pika.BasicProperties(message_id=key), mandatory=True)
    dead = []

    def on_dead(_channel, _method, properties, body):
        dead.append((properties.message_id, body.decode()))
        if len(dead) == 2:
            channel.stop_consuming()

    channel.basic_consume("deposits.dead", on_dead, auto_ack=True)
    found.consume()
    verdict.check(sorted(dead) == [("m-1", '{"account": "alice", "amount": 99}'), ("m-2", '{"account": "nobody", "amount": 10}')],
                  "queue: dead letters", f"    {dead}")
    balance = admin.execute("SELECT balance FROM wallet WHERE id = 'alice'").fetchone()[0]
    verdict.check(balance == 110, "queue: each message took effect once", f"    {balance}")
    connection.close()


def play_api_client(verdict):
    """A lost answer, a request in progress, an overloaded service: always the same key, and no hurry."""
    answers = [ConnectionError(), (409, {"Retry-After": "7"}), (503, {}), (408, {}), (402, {"Retry-After": "20"}), (422, {})]
    keys, pauses = [], []

    def post(request, headers):
        keys.append(headers["Idempotency-Key"])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return types.SimpleNamespace(status=answer[0], headers=answer[1])

    send.time = types.SimpleNamespace(sleep=pauses.append)
    answer = send.send(post, {"amount": 30})
    verdict.check(answer.status == 422 and not answers, "API client: tries until there is an answer, and repeats no 422")
    verdict.check(len(keys) == 6 and len(set(keys)) == 1, "API client: one key", f"    {keys}")
    verdict.check([pause >= least for pause, least in zip(pauses, (1, 7, 4, 8, 20))] == [True] * 5, "API client: waits as told",
                  f"    {pauses}")


def play_outbox(verdict, admin):
    """What has ended comes once, in the order of commits, whatever else happens to the store."""
    page = open("outbox/page.md", encoding="utf-8").read()
    publication = page[page.index("CREATE PUBLICATION"):page.index("SELECT slot_name")]
    admin.execute("TRUNCATE idempotency_store")
    admin.execute("SELECT idem_partition_store('12 hours')")
    while admin.execute("SELECT idem_gc(), bool_or(range_start IS NULL) FROM idempotency_partitions").fetchone()[1]:
        pass
    admin.execute(publication)
    admin.execute("SELECT pg_create_logical_replication_slot('ended', 'pgoutput')")
    received = []

    def receive(operation):
        """As a consumer does: a duplicate has no effect."""
        if operation["idempotency_key"] == broken:
            raise ConnectionError
        with admin.transaction():
            if admin.execute("SELECT outcome FROM idem_begin(%s, scope => 'receiver')",
                             (operation["idempotency_key"],)).fetchone()[0] == "ACQUIRED":
                received.append((operation["idempotency_key"], operation["status"], operation["response_payload"]))
                admin.execute("SELECT idem_complete(%s, scope => 'receiver')", (operation["idempotency_key"],))

    def relay_all():
        count, more = 0, 1
        while more:
            more = relay.relay(admin, lambda o: o["scope"] == "outbox" and receive(o))
            count += more
        return count

    def end(connection, key):
        with connection.transaction():
            connection.execute("SELECT FROM idem_begin(%s, scope => 'outbox')", (key,))
            connection.execute("SELECT idem_complete(%s, to_jsonb(%s::text), scope => 'outbox')", (key, key))

    broken = None
    with psycopg.connect("") as later, psycopg.connect("") as never:
        later.execute("SELECT"), never.execute("SELECT")    # what follows is in their transaction
        end(later, "o-1")
        end(never, "o-2")
        end(admin, "o-3")
        later.commit()
        never.rollback()
    fence = admin.execute("SELECT fence FROM idem_begin('o-4', scope => 'outbox', lease => '1 hour')").fetchone()[0]
    admin.execute("SELECT idem_progress('o-4', '1', scope => 'outbox', fence => %s)", (fence,))
    end(admin, "o-5")
    end(admin, "o-6")
    admin.execute("SELECT idem_fail('o-4', '\"no\"', scope => 'outbox', fence => %s)", (fence,))
    expected = [(key, "COMPLETED", f'"{key}"') for key in ("o-3", "o-1", "o-5", "o-6")] + [("o-4", "FAILED", '"no"')]
    broken = "o-6"
    try:
        relay_all()
        verdict.check(False, "outbox: an error of the receiver is raised")
    except ConnectionError:
        verdict.check(received == expected[:3], "outbox: what came before an error", f"    {received}")
    broken = None
    relay_all()
    verdict.check(received == expected, "outbox: each once, in the order of commits", f"    {received}")
    admin.execute("TRUNCATE ONLY idempotency_store_p1")
    admin.execute("DELETE FROM idempotency_store")
    end(admin, "o-7")
    relay_all()
    expected.append(("o-7", "COMPLETED", '"o-7"'))
    verdict.check(received == expected, "outbox: TRUNCATE and DELETE are ignored", f"    {received}")
    verdict.check(relay_all() == 0, "outbox: the slot has moved")
    admin.execute("CREATE TABLE elsewhere AS SELECT 1")
    (now,) = admin.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    relay_all()
    (moved,) = admin.execute(
        "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'ended'", (now,)).fetchone()
    verdict.check(moved, "outbox: it moves also where nothing has ended")
    admin.execute("SELECT pg_drop_replication_slot('ended')")


def main():
    """All, with a pool of one connection."""
    with Verdict() as verdict:
        play_api_client(verdict)
        pool = psycopg_pool.ConnectionPool("", min_size=1, max_size=1, timeout=10, open=True)
        with psycopg.connect("", autocommit=True) as admin, pool:
            play_gateway(verdict, admin, pool)
            play_queue(verdict, admin, pool)
            play_outbox(verdict, admin)


if __name__ == "__main__":
    main()
