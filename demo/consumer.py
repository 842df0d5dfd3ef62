"""The consumers: processes that take deliveries and make payments.

Protected does its work between idem_begin and idem_complete. The consumers
without the extension are in without.py; they have no other difference.
"""

import os
import signal
from dataclasses import dataclass

import psycopg

from gateway import Gateway, GatewayError, StaleFence, connect

LEASE = "1 second"
RETRY_AFTER = "200 milliseconds"
SOON = 0.02
LONGEST_SLEEP = 15
WAKE_UP = "wake up"


@dataclass
class Answer:
    """How a delivery ended. If again is None, the broker acknowledges it;
    otherwise the broker delivers it once more, again seconds later."""

    what: str
    payment: int | None = None
    again: float | None = None


def run_consumer(kind, databases, pipe, close_first):
    """A consumer process: answers deliveries until the broker closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for inherited in close_first:
        inherited.close()
    try:
        consumer = kind(connect(databases.shop), Gateway(databases.gateway), pipe)
        while True:
            delivery = pipe.recv()
            if delivery != WAKE_UP:
                pipe.send(("answer", consumer.handle(delivery)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:  # the broker stops the run and shows it
        pipe.send(("broken", f"{type(error).__name__}: {error}"))


class Consumer:
    """The code that all kinds of consumer share: booking a payment, and planned
    faults. A kind has a name for its databases, a title and a column heading,
    and a script that makes its objects in the shop's database."""

    name = title = heading = None
    script = None

    def __init__(self, shop, gateway, pipe):
        self.shop = shop
        self.gateway = gateway
        self.pipe = pipe
        self.delivery = None

    def handle(self, delivery):
        """Processes one delivery; returns an Answer."""
        self.delivery = delivery
        return self.pay_by_card() if delivery.message.method == "card" else self.pay_by_wallet()

    def is_declined(self):
        """Whether the account's limit forbids this payment, now and for ever."""
        message = self.delivery.message
        limit, = self.shop.execute("SELECT payment_limit FROM account WHERE id = %s",
                                   (message.account,)).fetchone()
        return message.amount > limit

    def book(self, charge=None):
        """Debits the account and records the payment; returns its number."""
        message = self.delivery.message
        self.shop.execute("UPDATE account SET spent = spent + %s WHERE id = %s",
                          (message.amount, message.account))
        payment, = self.shop.execute(
            "INSERT INTO payment (message_id, account, amount, gateway_charge)"
            " VALUES (%s, %s, %s, %s) RETURNING id",
            (message.id, message.account, message.amount, charge)).fetchone()
        return payment

    def pass_point(self, point):
        """Dies or sleeps here if that is this delivery's fault. The consumer
        reports the fault to the broker first."""
        if self.delivery.fault == f"die {point}":
            self.pipe.send(("fault", self.delivery.fault))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.delivery.fault == f"sleep {point}":
            self.pipe.send(("fault", self.delivery.fault))
            if self.pipe.poll(LONGEST_SLEEP):
                self.pipe.recv()


class Protected(Consumer):
    """The same consumer with idempotency: message id = key, message = request."""

    name = "protected"
    title = "with idempotency"
    heading = "with\nidempotency"

    def handle(self, delivery):
        try:
            return super().handle(delivery)
        except psycopg.Error as error:
            if error.diag.sqlstate == "ID422":
                return Answer("refused")
            if error.diag.sqlstate == "ID409":
                return Answer("fenced off", again=SOON)
            raise

    def pay_by_wallet(self):
        """One transaction: key, debit, payment and response commit together."""
        with self.shop.transaction():
            operation = self.begin()
            if operation.outcome != "ACQUIRED":
                return self.answer(operation)
            if self.is_declined():
                return self.decline(operation)
            payment = self.book()
            self.complete(operation, payment)
            self.pass_point("before commit")
        self.pass_point("after commit")
        return Answer("paid", payment)

    def pay_by_card(self):
        """A lease for the gateway call, which cannot be part of a transaction.
        The gateway and the end get its fence."""
        operation = self.begin(lease=LEASE)
        if operation.outcome != "ACQUIRED":
            return self.answer(operation)
        if operation.taken_over:
            self.pipe.send(("takeover", None))
        if self.is_declined():
            return self.decline(operation)
        try:
            charge = self.charge_once(operation)
        except GatewayError as error:
            self.fail(operation, str(error), retry_after=RETRY_AFTER)
            return Answer("gateway error", again=SOON)
        except StaleFence:
            return Answer("fenced off", again=SOON)
        self.pass_point("after charge")
        with self.shop.transaction():
            payment = self.book(charge)
            self.complete(operation, payment)
        self.pass_point("after commit")
        return Answer("paid", payment)

    def charge_once(self, operation):
        """The number of this payment's charge. An earlier attempt may have
        charged the card and died, so a later one asks the gateway first."""
        message = self.delivery.message
        charge = None
        if operation.attempt > 1:
            charge = self.gateway.find_charge(message.id, operation.fence)
        if charge is None:
            self.pass_point("before charge")
            charge = self.gateway.charge(message.id, message.amount, operation.fence)
        return charge

    def begin(self, lease=None):
        with self.shop.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            return cursor.execute(
                "SELECT * FROM idem_begin(%s, scope => 'payments', request => %s, lease => %s)",
                (self.delivery.message.id, self.delivery.text, lease)).fetchone()

    def complete(self, operation, payment):
        self.shop.execute(
            "SELECT idem_complete(key => %s, response => jsonb_build_object('payment', %s::bigint),"
            " scope => 'payments', code => 201, fence => %s)",
            (operation.idempotency_key, payment, operation.fence))

    def fail(self, operation, reason, retry_after=None):
        """A permanent failure, or a retryable one if retry_after is given."""
        self.shop.execute(
            "SELECT idem_fail(key => %s, error => jsonb_build_object('reason', %s::text),"
            " scope => 'payments', fence => %s, retryable => %s, retry_after => %s)",
            (operation.idempotency_key, reason, operation.fence, retry_after is not None, retry_after))

    def decline(self, operation):
        self.fail(operation, "over the limit")
        return Answer("declined")

    def answer(self, operation):
        """The answer to the broker if the operation was not acquired."""
        if operation.outcome == "COMPLETED":
            return Answer("replay", operation.response_payload["payment"])
        if operation.outcome == "FAILED" and operation.retry_after is None:
            return Answer("failure replayed")
        wait = operation.retry_after.total_seconds() if operation.retry_after else 0
        return Answer("in progress", again=max(wait, SOON))
