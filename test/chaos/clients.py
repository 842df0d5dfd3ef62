"""The clients: processes that deliver operations until they know the end of each.

They do what the documentation tells clients to do: retry the whole transaction, look at
the command tag, begin again after a lost connection, ask the gateway before they charge
in a taken-over attempt. The answers go into the ledger.
"""

import secrets
import time
import uuid
from dataclasses import dataclass

import client
import psycopg
from client import GivenUp
from gateway import Gateway
from ledger import now
from plan import operation
from psycopg.types.json import Jsonb

LEASE = "1500 milliseconds"
LEASE_SECONDS = 1.5

BEGIN = """SELECT outcome, attempt, taken_over, fence, response_code AS code,
    response_payload::text AS payload, encode(response_body, 'hex') AS body
    FROM idem_begin(%s, scope => 'bank', request => %s, lease => %s::interval)"""
BEGIN_BATCH = """SELECT idempotency_key AS key, outcome, response_code AS code,
    response_payload::text AS payload, encode(response_body, 'hex') AS body
    FROM idem_begin_batch(%s, %s, scope => 'bank')"""
CALL = """SELECT outcome, response_code AS code, response_payload::text AS payload,
    encode(response_body, 'hex') AS body
    FROM idem_call('pay(jsonb)', %s, %s, scope => 'bank', retention => '30 days',
        wait => '100 milliseconds')"""
COMPLETE = """SELECT idem_complete(%s, %s, scope => 'bank', code => 201, body => %s,
    fence => %s, retention => '30 days')"""
FAIL = """SELECT idem_fail(%s, %s, scope => 'bank', code => 402, body => %s,
    fence => %s, retention => '30 days')"""
# A record that has expired when the operation itself comes, or has not quite.
PLACEHOLDER = """SELECT idem_complete(%s, '{"placeholder": true}', scope => 'bank',
    retention => '15 milliseconds')"""

# What a fault may make of a statement. Everything else is a mistake of somebody's.
TRANSIENT = ("40001", "40P01", "53", "57", "58", "08", "ID409")
# What an end by fence says when somebody has the operation's lock for longer than
# idempotency.end_wait. DDL on partitions and an operation can meet in a deadlock, and a
# server whose clock was set on finds it only after as much time: its timers are faked, too.
LOCK_NOT_FREE = "55P03"


@dataclass
class Shared(client.Shared):
    """What the clients share with the controller."""

    leased: object          # of each client: it owns a lease now


class Client(client.Client):
    """One process."""

    operation = staticmethod(operation)

    def __init__(self, *given):
        super().__init__(*given)
        self.gateway = None
        self.ways = {"bound": self.bound, "leased": self.leased,
                     "called": self.called, "batched": self.batched}

    def run(self):
        """With a connection of its own to the gateway."""
        self.gateway = Gateway(self.options.gateway)
        super().run()

    def prepare(self, planned):
        """What comes before the first delivery of some operations."""
        if planned.recycled:
            self.attempt(planned, self.leave_placeholder)
        if planned.forgotten:
            self.attempt(planned, self.forget)

    def note_error(self, error, planned):
        """Faults show as errors; any other error is a finding."""
        state = error.sqlstate
        known = state is None or state.startswith(TRANSIENT) or (
            state == LOCK_NOT_FREE and planned.way == "leased")
        self.ledger.write("error" if known else "unexpected", sqlstate=state, way=planned.way,
                          isolation=planned.isolation if planned.way == "bound" else None,
                          message=str(error)[:300])

    def address(self):
        """Of whoever is the primary now. Half of the clients are behind the proxy."""
        directory = self.options.proxy
        if self.index % 2:
            with open(self.options.target, encoding="utf-8") as file:
                directory = file.read()
        return {"host": directory, "port": 5432, "user": "teller", "dbname": "bank", "connect_timeout": 5}

    def note_answer(self, key, row):
        """Writes an answer down if it is an end, and says whether."""
        if row.outcome not in ("COMPLETED", "FAILED") or '"placeholder"' in (row.payload or ""):
            return False
        self.acknowledge(key, row.outcome, row.payload, row.body, row.code)
        return True

    def acknowledge(self, key, outcome, payload, body, code):
        """From here on the client counts on it."""
        self.ledger.write("answered", key=key, outcome=outcome, payload=payload, body=body, code=code)

    def end(self, planned, key, fence=None):
        """The effect and the end of an operation; returns what it then answers."""
        body = secrets.token_bytes(12)
        if planned.declined:
            payload = Jsonb({"declined": str(uuid.uuid4())})
            self.execute(FAIL, (key, payload, body, fence))
            outcome, code = "FAILED", 402
        else:
            payload = Jsonb({"receipt": str(uuid.uuid4())})
            self.execute("SELECT transfer(%s, %s)",
                         (Jsonb(planned.request(key)), payload.obj["receipt"]))
            self.execute(COMPLETE, (key, payload, body, fence))
            outcome, code = "COMPLETED", 201
        ((name, value),) = payload.obj.items()
        return outcome, f'{{"{name}": "{value}"}}', body.hex(), code

    def bound(self, planned):
        """Begin, effect and end in one transaction."""
        (key,) = planned.keys
        self.start(planned.isolation)
        row = self.execute(BEGIN, (key, Jsonb(planned.request(key)), None)).fetchone()
        if row.outcome != "ACQUIRED":
            self.commit()
            return self.note_answer(key, row)
        since = now()
        time.sleep(planned.thinks[0])
        self.own(key, since)
        answer = self.end(planned, key)
        time.sleep(planned.thinks[1])
        self.commit()
        self.acknowledge(key, *answer)
        return True

    def leased(self, planned):
        """Begin, then the gateway outside of any transaction, then the end."""
        (key,) = planned.keys
        asked = now()
        row = self.execute(BEGIN, (key, Jsonb(planned.request(key)), LEASE)).fetchone()
        if row.outcome != "ACQUIRED":
            return self.note_answer(key, row)
        self.ledger.write("lease", key=key, fence=row.fence, asked=asked, answered=now(),
                          attempt=row.attempt, taken_over=row.taken_over)
        self.shared.leased[self.index] = 1
        try:
            return self.charge_and_end(planned, key, row)
        finally:
            self.shared.leased[self.index] = 0

    def charge_and_end(self, planned, key, row):
        """What the owner of a lease does. After an error, and at times without one, it
        sends its transaction again: the effect must not be there twice."""
        if row.taken_over:
            self.gateway.ask(do="status", key=key)
        if not planned.declined and "refused" in self.gateway.ask(
                do="charge", key=key, fence=row.fence, amount=planned.amount):
            self.ledger.write("stale", key=key, fence=row.fence)
            raise GivenUp
        time.sleep(planned.thinks[2] * 2)
        asked = now()
        try:
            answer = self.end_leased(planned, key, row.fence)
        except psycopg.Error as error:
            self.note_error(error, planned)
            self.clear()
            answer = self.end_leased(planned, key, row.fence)
        self.ledger.write("ended", key=key, fence=row.fence, asked=asked)
        self.acknowledge(key, *answer)
        if self.rng.random() < 0.2:
            self.end_again(planned, key, row.fence)
        return True

    def end_leased(self, planned, key, fence):
        """Effect and end, in one transaction."""
        self.start()
        answer = self.end(planned, key, fence)
        self.commit()
        return answer

    def end_again(self, planned, key, fence):
        """What a program does that has lost the answer: that it succeeds is a finding."""
        try:
            self.end_leased(planned, key, fence)
        except psycopg.Error as error:
            self.note_error(error, planned)
            self.clear()
        else:
            self.ledger.write("unexpected", sqlstate=None, way=planned.way, isolation=None,
                              message="an attempt ended twice")

    def called(self, planned):
        """All of it in one call, which commits by itself."""
        (key,) = planned.keys
        row = self.execute(CALL, (key, Jsonb(planned.request(key))), prepare=False).fetchone()
        return self.note_answer(key, row)

    def batched(self, planned):
        """Several operations in one transaction."""
        keys = list(planned.keys)
        self.start()
        rows = self.execute(BEGIN_BATCH, (keys, [Jsonb(planned.request(key)) for key in keys])).fetchall()
        since = now()
        mine = [row.key for row in rows if row.outcome == "ACQUIRED"]
        receipts = [str(uuid.uuid4()) for _ in mine]
        time.sleep(planned.thinks[0])
        for key, receipt in zip(mine, receipts):
            self.own(key, since)
            self.execute("SELECT transfer(%s, %s)", (Jsonb(planned.request(key)), receipt))
        if mine:
            self.execute("SELECT idem_complete_batch(%s, %s, 'bank')",
                         (mine, [Jsonb({"receipt": receipt}) for receipt in receipts]))
        time.sleep(planned.thinks[1])
        self.commit()
        for key, receipt in zip(mine, receipts):
            self.acknowledge(key, "COMPLETED", f'{{"receipt": "{receipt}"}}', None, None)
        return all([row.key in mine or self.note_answer(row.key, row) for row in rows])

    def leave_placeholder(self, planned):
        """A record with an early expiry, so that the operation replaces one that the
        collector wants, too. It has no effect."""
        (key,) = planned.keys
        self.start()
        if self.execute(BEGIN, (key, None, None)).fetchone().outcome == "ACQUIRED":
            self.execute(PLACEHOLDER, (key,))
        self.commit()
        return True

    def forget(self, planned):
        """A client with a mistake in it: an effect, and no end. COMMIT must fail."""
        key = f"forgotten-{planned.number}"
        self.start()
        self.execute(BEGIN, (key, None, None))
        self.execute("SELECT transfer(%s, '')", (Jsonb(planned.request(key)),))
        try:
            self.commit()
        except psycopg.Error as error:
            if error.sqlstate != "ID428":
                raise
            self.ledger.write("refused", key=key)
            self.clear()
        return True
