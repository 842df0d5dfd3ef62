"""The plumbing of a client process of chaos and history: its way through the plan, its
connection, and the repetition of what did not come to an end.

What an operation does, and which errors may come of what, each harness says for itself.
"""

import os
import random
import signal
import time
from dataclasses import dataclass

import psycopg
from ledger import now
from psycopg.rows import namedtuple_row

PATIENCE = 120      # seconds that clients may need to come to an end


@dataclass
class Shared:
    """What the clients share with the controller, without locks: a stopped client
    would never give one back."""

    stopping: object
    progress: object        # of each client: the operation it is at


class GivenUp(Exception):
    """The operation is not over, and has to be begun again."""


class Client:
    """One process. A harness gives it `operation`, which is its plan, `note_error`, which
    judges an error, and `ways`: what it does for each kind of operation."""

    def __init__(self, index, options, shared, ledger):
        self.index = index
        self.options = options
        self.shared = shared
        self.ledger = ledger
        self.connection = None
        self.deadline = None
        self.rng = random.Random(f"{options.seed}/client/{index}")

    def run(self):
        """The body of the process: delivers until it is told to stop, and then what it has begun."""
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        number = 0
        while not self.shared.stopping.value:
            planned = self.operation(self.options.seed, number)
            self.shared.progress[self.index] = number
            if self.index in planned.copies:
                self.meet_others(planned)
                if planned.copies[0] == self.index:
                    self.prepare(planned)
            for client in planned.copies:
                if client == self.index:
                    self.deliver(planned)
            number += 1
        self.shared.progress[self.index] = 1 << 40
        self.ledger.write("finished", client=self.index, operations=number)

    def meet_others(self, planned):
        """Lets the deliveries of one operation come at once, unless somebody is far."""
        patience = now() + 0.05
        while now() < patience and any(
                self.shared.progress[client] < planned.number for client in planned.copies):
            time.sleep(0.001)

    def deliver(self, planned):
        """Tries until the end of the operation is known."""
        self.ledger.write("delivery", number=planned.number)
        while not self.attempt(planned, self.ways[planned.way]):
            self.check_patience(planned)
            time.sleep(self.rng.uniform(0.001, 0.02))

    def check_patience(self, planned):
        """When nothing is disturbed any more, everything has to come to an end."""
        if self.shared.stopping.value:
            self.deadline = self.deadline or now() + PATIENCE
            if now() > self.deadline:
                self.ledger.write("stuck", number=planned.number, way=planned.way)
                raise SystemExit(1)

    def attempt(self, planned, way):
        """True when the way has got to the end; errors are counted and judged."""
        try:
            return way(planned)
        except psycopg.Error as error:
            self.note_error(error, planned)
        except GivenUp:
            pass
        self.clear()
        return False

    def clear(self):
        """Leaves a connection that can be used, or none."""
        if self.connection is None:
            return
        try:
            if not self.connection.closed:
                self.connection.execute("ROLLBACK", prepare=False)
        except psycopg.Error:
            self.connection.close()
        if self.connection.closed:
            self.connection = None

    def execute(self, statement, arguments=None, **options):
        """Runs a statement, on a new connection if need be."""
        if self.connection is None:
            self.connection = psycopg.connect(
                **self.address(), autocommit=True, row_factory=namedtuple_row,
                application_name=f"client {self.index}", options="-c client_min_messages=error")
        return self.connection.execute(statement, arguments, **options)

    def start(self, level="READ COMMITTED"):
        self.execute(f"BEGIN ISOLATION LEVEL {level}", prepare=False)

    def commit(self, command="COMMIT"):
        """Only the tag says that it was one."""
        if self.execute(command, prepare=False).statusmessage == "ROLLBACK":
            raise GivenUp

    def own(self, key, since):
        """The session was in possession from then until now, and is not dead: the
        statement that shows it comes after."""
        until = now()
        self.execute("SELECT 1", prepare=False)
        self.ledger.write("owned", key=key, since=since, until=until)
