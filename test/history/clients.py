"""The clients: processes that deliver operations until they know the end of each.

They do what the documentation tells clients to do: retry the whole transaction, look at
the command tag, begin again after a lost connection. What they did, and the answers, go
into the ledger. An answer that they have never had is nowhere: what became of such an
operation is for the lists and the store to say.
"""

import hashlib
import json
import secrets
import time

import client
import psycopg
from client import GivenUp
from ledger import now
from plan import READ_COMMITTED, element, operation
from psycopg.types.json import Jsonb

LEASE = "400 milliseconds"
LEASE_SECONDS = 0.4
WAITS = ("0", "0", "30 milliseconds", "300 milliseconds")

ANSWER = """outcome, replayed, attempt, taken_over, fence, response_code AS code,
    response_payload::text AS payload, encode(response_body, 'hex') AS body"""
BEGIN = f"""SELECT {ANSWER} FROM idem_begin(key => %s, request => %s, scope => 'history',
    lease => %s::interval, wait => %s::interval)"""
CALL = f"""SELECT {ANSWER} FROM idem_call('execute(jsonb)', key => %s, request => %s,
    scope => 'history', wait => %s::interval)"""
COMPLETE = """SELECT idem_complete(key => %s, response => %s, scope => 'history', code => 201,
    body => %s, fence => %s::bigint)"""
FAIL = """SELECT idem_fail(key => %s, error => %s, scope => 'history', code => 402,
    body => %s, fence => %s::bigint)"""
EXTEND = "SELECT idem_extend(key => %s, lease => %s::interval, scope => 'history', fence => %s::bigint)"
RELEASE = "SELECT idem_release(key => %s, scope => 'history', fence => %s::bigint)"
# A record that has expired when the operation itself comes, or has not quite.
PLACEHOLDER = """SELECT idem_complete(key => %s, response => '{"placeholder": true}',
    scope => 'history', retention => '15 milliseconds')"""
READ = "SELECT elements FROM list WHERE id = %s"
APPEND = "SELECT append(%s, %s)"

# What a storm may make of a statement. Everything else is a mistake of somebody's.
TRANSIENT = ("40001", "40P01", "53", "55P03", "57", "08", "ID409")


def digest(outcome, payload, body, code):
    """Stands for the bytes of an answer."""
    return hashlib.sha256(repr((outcome, payload, body, code)).encode()).hexdigest()[:20]


class Client(client.Client):
    """One process."""

    operation = staticmethod(operation)

    def __init__(self, *given):
        super().__init__(*given)
        self.runs = self.index << 20
        self.ways = {"bound": self.bound, "prepared": self.bound, "leased": self.leased,
                     "called": self.called, "forgotten": self.forgotten}

    def prepare(self, planned):
        """What comes before the first delivery of some operations."""
        if planned.recycled:
            self.attempt(planned, self.leave_placeholder)

    def deliver(self, planned):
        """Sometimes somebody else uses its key for another request."""
        super().deliver(planned)
        if planned.way != "forgotten" and self.rng.random() < 0.03:
            self.attempt(planned, self.mistake)

    def note_error(self, error, planned):
        """Storms show as errors; any other error is a finding."""
        state = error.sqlstate
        known = state is None or state.startswith(TRANSIENT)
        if state == "40001" and planned.level == READ_COMMITTED:
            known = False
        if state == "ID409" and planned.way != "leased":
            known = False
        self.ledger.write("error" if known else "unexpected", sqlstate=state,
                          key=planned.key, level=planned.level, message=str(error)[:300])

    def address(self):
        return {"user": "client", "dbname": self.options.database}

    def begin(self, planned, lease=None):
        return self.execute(BEGIN, (planned.key, Jsonb(planned.request()), lease,
                                    self.rng.choice(WAITS))).fetchone()

    def note_answer(self, planned, row):
        """Writes an answer down if it is an end, and says whether."""
        if row.outcome not in ("COMPLETED", "FAILED") or "placeholder" in (row.payload or ""):
            return False
        self.ledger.write("answered", key=planned.key, outcome=row.outcome,
                          answer=digest(row.outcome, row.payload, row.body, row.code))
        return True

    def done(self, planned, answer, asked):
        """This client has executed it. From here on it counts on that."""
        self.ledger.write("done", key=planned.key, answer=digest(*answer), asked=asked, answered=now())
        self.ledger.write("answered", key=planned.key, outcome=answer[0], answer=digest(*answer))

    def answered(self, planned, row, asked):
        """The end of a transaction that was not let in. Its answer has to be what
        it can see."""
        reads = {}
        if row.outcome == "COMPLETED" and "placeholder" not in row.payload and self.rng.random() < 0.4:
            for name in sorted({name for _, name in planned.steps}):
                reads[name] = self.read(name)
        self.commit()
        if reads:
            self.ledger.write("reader", key=planned.key, client=self.index, level=planned.level,
                              asked=asked, reads=list(reads.items()))
        return self.note_answer(planned, row)

    def read(self, name):
        row = self.execute(READ, (name,)).fetchone()
        return row.elements if row else []

    def carry_out(self, planned):
        """The steps, statement by statement; returns the execution's number and its reads."""
        self.runs += 1
        reads = []
        for index, (kind, name) in enumerate(planned.steps):
            if kind == "append":
                self.execute(APPEND, (name, element(planned.number, self.runs, index)))
            else:
                reads.append(self.read(name))
            time.sleep(planned.thinks[1])
        return self.runs, reads

    def end(self, planned, fence=None):
        """The effect and the end of an operation; returns what it then answers."""
        body = secrets.token_bytes(6)
        if planned.declined:
            self.execute("SAVEPOINT effect", prepare=False)
            run, _ = self.carry_out(planned)
            self.execute("ROLLBACK TO effect", prepare=False)
            payload = {"declined": run}
            self.execute(FAIL, (planned.key, Jsonb(payload), body, fence))
            return "FAILED", json.dumps(payload), body.hex(), 402
        run, reads = self.carry_out(planned)
        payload = {"run": run, "reads": reads}
        self.oversleep(fence)
        self.execute(COMPLETE, (planned.key, Jsonb(payload), body, fence))
        return "COMPLETED", json.dumps(payload), body.hex(), 201

    def oversleep(self, fence):
        """An owner that does not notice that its lease is over."""
        if fence is not None and self.rng.random() < 0.02:
            time.sleep(LEASE_SECONDS + 0.1)

    def bound(self, planned):
        """Begin, effect and end in one transaction."""
        asked = now()
        self.start(planned.level)
        if planned.shadowed:
            self.roll_back_once(planned)
        row = self.begin(planned)
        if row.outcome != "ACQUIRED":
            return self.answered(planned, row, asked)
        since = now()
        time.sleep(planned.thinks[0])
        self.own(planned.key, since)
        answer = self.end(planned)
        time.sleep(planned.thinks[2])
        if planned.way == "prepared":
            self.commit_in_two_phases(planned)
        else:
            self.commit()
        self.done(planned, answer, asked)
        return True

    def roll_back_once(self, planned):
        """A first try in the same transaction, of which nothing may be left."""
        self.execute("SAVEPOINT try", prepare=False)
        if self.begin(planned).outcome == "ACQUIRED":
            self.carry_out(planned)
        self.execute("ROLLBACK TO try", prepare=False)

    def commit_in_two_phases(self, planned):
        """Prepares, and commits or not, sometimes from another session. What goes wrong in
        between the controller resolves."""
        name = f"{planned.key}/{self.index}/{self.runs}"
        self.commit(f"PREPARE TRANSACTION '{name}'")
        self.ledger.write("prepared", key=planned.key)
        time.sleep(planned.thinks[2])
        if self.rng.random() < 0.3:
            self.connection.close()
            self.connection = None
            self.ledger.write("reconnected", key=planned.key)
        try:
            if self.rng.random() < 0.25:
                self.execute(f"ROLLBACK PREPARED '{name}'", prepare=False)
                self.ledger.write("rolled back", key=planned.key)
                raise GivenUp
            self.execute(f"COMMIT PREPARED '{name}'", prepare=False)
        except (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState) as error:
            raise GivenUp from error    # the controller was faster

    def leased(self, planned):
        """Begin, some time outside of any transaction, then effect and end in one."""
        asked = now()
        row = self.begin(planned, LEASE)
        if row.outcome != "ACQUIRED":
            return self.note_answer(planned, row)
        self.ledger.write("lease", key=planned.key, fence=row.fence, asked=asked, answered=now(),
                          attempt=row.attempt, taken_over=row.taken_over)
        if self.rng.random() < 0.05:
            return False                    # an owner that has died
        if self.rng.random() < 0.05:
            self.execute(RELEASE, (planned.key, row.fence))
            return False
        if self.rng.random() < 0.1:
            self.execute(EXTEND, (planned.key, LEASE, row.fence))
        time.sleep(planned.thinks[0])
        self.oversleep(row.fence)
        return self.end_lease(planned, row.fence)

    def end_lease(self, planned, fence):
        """What the owner of a lease does in the end."""
        asked = now()
        self.start(planned.level)
        answer = self.end(planned, fence)
        self.commit()
        self.ledger.write("ended", key=planned.key, fence=fence, asked=asked)
        self.done(planned, answer, asked)
        if self.rng.random() < 0.1:
            self.repeat(planned, fence)
        return True

    def repeat(self, planned, fence):
        """Effect and end once more, as who has lost the answer might: it must not be let
        through. If it is, the lists show that."""
        self.start(planned.level)
        try:
            self.end(planned, fence)
            self.commit()
            self.ledger.write("repeated", key=planned.key)
        except psycopg.Error as error:
            self.ledger.write("repetition", key=planned.key, sqlstate=error.sqlstate)
            if error.sqlstate != "ID409":
                self.note_error(error, planned)
            self.clear()

    def called(self, planned):
        """All of it in one call, which commits by itself where it can."""
        asked = now()
        alone = planned.level == READ_COMMITTED and self.rng.random() < 0.5
        if not alone:
            self.start(planned.level)
        row = self.execute(CALL, (planned.key, Jsonb(planned.request()),
                                  self.rng.choice(WAITS))).fetchone()
        if row.replayed and not alone:
            return self.answered(planned, row, asked)
        if not alone:
            self.commit()
        if row.outcome == "IN_PROGRESS" or row.replayed:
            return self.note_answer(planned, row)
        self.done(planned, (row.outcome, row.payload, row.body, row.code), asked)
        return True

    def leave_placeholder(self, planned):
        """A record with an early expiry, so that the operation replaces one that the
        collector wants, too. It has no effect."""
        self.start(READ_COMMITTED)
        if self.execute(BEGIN, (planned.key, None, None, "0")).fetchone().outcome == "ACQUIRED":
            self.execute(PLACEHOLDER, (planned.key,))
        self.commit()
        return True

    def forgotten(self, planned):
        """A client with a mistake in it: an effect, and no end. COMMIT must fail."""
        self.start(planned.level)
        if self.begin(planned).outcome != "ACQUIRED":
            self.ledger.write("committed", key=planned.key)
        self.carry_out(planned)
        command = "COMMIT"
        if self.rng.random() < 0.2:
            command = f"PREPARE TRANSACTION '{planned.key}/{self.index}/{self.runs}'"
        try:
            self.commit(command)
            self.ledger.write("committed", key=planned.key)
        except psycopg.Error as error:
            if error.sqlstate != "ID428":
                raise
            self.ledger.write("refused", key=planned.key)
            self.clear()
        return True

    def mistake(self, planned):
        """The key of an operation that has ended, with another request: refused."""
        self.start(planned.level)
        try:
            outcome = self.execute(BEGIN, (planned.key, Jsonb({"other": True}), None, "0")).fetchone().outcome
        except psycopg.Error as error:
            if error.sqlstate != "ID422":
                raise
            outcome = "ID422"
        self.clear()
        self.ledger.write("mistake", key=planned.key, outcome=outcome)
        return True
