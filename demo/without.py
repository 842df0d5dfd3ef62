"""Consumers without the extension: the first version of a program, and two
versions that follow after the first double payment.

Each does the same work as Protected and gets the same deliveries. The comment
of each says what it loses, and why.
"""

from consumer import Answer, Consumer, SOON
from gateway import GatewayError


class Naive(Consumer):
    """Correct if every message came once."""

    name = "naive"
    title = "without"
    heading = "without"

    def pay_by_wallet(self):
        with self.shop.transaction():
            if self.is_declined():
                return Answer("declined")
            payment = self.book()
            self.pass_point("before commit")
        self.pass_point("after commit")
        return self.paid(payment)

    def pay_by_card(self):
        if answer := self.refuse_card():
            return answer
        self.pass_point("before charge")
        try:
            charge = self.gateway.charge(self.delivery.message.id, self.delivery.message.amount)
        except GatewayError:
            return Answer("gateway error", again=SOON)
        self.pass_point("after charge")
        with self.shop.transaction():
            payment = self.book(charge)
        self.pass_point("after commit")
        return self.paid(payment)

    def refuse_card(self):
        """The Answer where the card must not be charged, else None."""
        return Answer("declined") if self.is_declined() else None

    def paid(self, payment):
        return Answer("paid", payment)


class Unique(Naive):
    """A unique constraint on payment.message_id, and a look-up before the card is
    charged. No payment is booked twice. But the constraint is checked after the
    gateway has charged; a duplicate finds the payment, but not the first answer;
    a declined payment leaves no row; and another amount under the same id looks
    like a duplicate."""

    name = "unique"
    title = "UNIQUE constraint"
    heading = "UNIQUE\nconstraint"
    script = "unique.sql"

    def refuse_card(self):
        return super().refuse_card() or (Answer("duplicate") if self.is_paid() else None)

    def paid(self, payment):
        return super().paid(payment) if payment else Answer("duplicate")

    def is_paid(self):
        return self.shop.execute("SELECT FROM payment WHERE message_id = %s",
                                 (self.delivery.message.id,)).fetchone() is not None

    def book(self, charge=None):
        """The payment's number, or None if it was there already."""
        message = self.delivery.message
        row = self.shop.execute(
            "INSERT INTO payment (message_id, account, amount, gateway_charge) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (message_id) DO NOTHING RETURNING id",
            (message.id, message.account, message.amount, charge)).fetchone()
        if row is None:
            return None
        self.shop.execute("UPDATE account SET spent = spent + %s WHERE id = %s",
                          (message.amount, message.account))
        return row[0]


class ByHand(Consumer):
    """A table of keys and two PL/pgSQL functions, by_hand.sql. Answers are stored
    and replayed. But requests are not compared; a failure rolls its key back; and
    if an owner is slower than the time limit, it goes on at the same time as the
    next one, as it has no fence."""

    name = "by_hand"
    title = "table by hand"
    heading = "table\nby hand"
    script = "by_hand.sql"

    def pay_by_wallet(self):
        with self.shop.transaction():
            if answer := self.started_before():
                return answer
            if self.is_declined():
                return self.decline()
            payment = self.book()
            self.finish(payment)
            self.pass_point("before commit")
        self.pass_point("after commit")
        return Answer("paid", payment)

    def pay_by_card(self):
        if answer := self.started_before():
            return answer
        if self.is_declined():
            return self.decline()
        self.pass_point("before charge")
        try:
            charge = self.gateway.charge(self.delivery.message.id, self.delivery.message.amount)
        except GatewayError:
            self.forget()
            return Answer("gateway error", again=SOON)
        self.pass_point("after charge")
        with self.shop.transaction():
            payment = self.book(charge)
            self.finish(payment)
        self.pass_point("after commit")
        return Answer("paid", payment)

    def started_before(self):
        """The Answer where this message is done or under way, else None."""
        state, answer = self.shop.execute("SELECT * FROM start_once(%s)",
                                          (self.delivery.message.id,)).fetchone()
        if state == "done":
            return Answer("replay", answer["payment"])
        return Answer("in progress", again=SOON * 5) if state == "started" else None

    def finish(self, payment):
        self.shop.execute("SELECT finish(%s, jsonb_build_object('payment', %s::bigint))",
                          (self.delivery.message.id, payment))

    def forget(self):
        self.shop.execute("DELETE FROM handled WHERE key = %s", (self.delivery.message.id,))

    def decline(self):
        self.forget()
        return Answer("declined")
