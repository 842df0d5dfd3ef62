"""Plays the same scenario with the program of each recipe, and counts the effects in the
database.

    play.py DIRECTORY...      each has "run", which starts the program

A program reads lines "KEY ACCOUNT AMOUNT" and answers each with a line: the status, "new"
or "replay", and the answer as JSON, or "error" and what it knows of the error. It finds
the server by PGHOST and PGPORT, which lead it through our proxy.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time

import psycopg
from fault_proxy import Proxy, Session, connect_to, listen_at
from pooler import pooler, socket_in
from verdict import Verdict

SCOPE = "payments/tenant-1"
PATIENCE = 120      # seconds for one answer; some programs start a virtual machine
RETRIES = 5
OPEN = ("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL")


class Program:
    """The program of a recipe."""

    def __init__(self, directory, proxy):
        environment = dict(os.environ, PGHOST="127.0.0.1", PGPORT=str(proxy.listener.getsockname()[1]),
                           PGSSLMODE="disable", PGGSSENCMODE="disable")
        self.process = subprocess.Popen(
            ["./run"], cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pay(self, key, account, amount):
        """The program's answer: (status, new or replay, JSON), or ("error", what, None)."""
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.start()
        self.process.stdin.write(f"{key} {account} {amount}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        timer.cancel()
        if line == "":
            raise RuntimeError(f"{key} {account} {amount}: the program has ended")
        status, what, rest = (line.rstrip("\n") + "  ").split(" ", 2)
        return (status, what, json.loads(rest)) if status != "error" else (status, what, None)

    def end(self):
        """Its status after the end of its input."""
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()


class Pooled(Session):
    """A connection to a pooler, which ends before its session on the server: the client hears of it when that has, too."""

    def end(self):
        """With the connection that was lost before COMMIT."""
        if self.deaf:
            with psycopg.connect("", autocommit=True) as eyes:
                deadline = time.monotonic() + 60
                while eyes.execute(OPEN).fetchone()[0] and time.monotonic() < deadline:
                    time.sleep(0.01)
        super().end()


class Stage:
    """One recipe's database, and what is checked of it. ``path``: what the program connects to."""

    def __init__(self, directory, path, proxy, verdict):
        self.name = f"{os.path.basename(directory)} {path}"
        self.proxy, self.verdict = proxy, verdict
        self.database = psycopg.connect("", autocommit=True)
        self.database.execute("TRUNCATE account, payment, trouble, idempotency_store")
        self.log_before = os.path.getsize(os.environ["IDEM_LOG"])
        self.program = Program(directory, proxy)

    def scalar(self, query, *arguments):
        return self.database.execute(query, arguments).fetchone()[0]

    def check(self, what, got, expected):
        self.verdict.check(got == expected, f"{self.name}: {what}", f"    expected {expected}, got {got}")

    def account(self, name, sqlstate=None, times=1):
        """An account with 100, and what happens to payments from it."""
        self.database.execute("INSERT INTO account VALUES (%s, 100)", (name,))
        self.database.execute("SELECT setval('tries', 1, false)")
        if sqlstate:
            self.database.execute("INSERT INTO trouble VALUES (%s, %s, %s)", (name, sqlstate, times))

    def balance(self, name):
        return self.scalar("SELECT balance FROM account WHERE id = %s", name)

    def effects(self, key):
        """How often a payment was made."""
        return self.scalar("SELECT count(*) FROM payment WHERE key = %s", key)

    def tries(self):
        """How often a payment was tried since the last account was made."""
        return self.scalar("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries")

    def expect_new(self, what, key, account):
        """A payment of 30 takes effect, once, and is replayed."""
        self.check(what, self.program.pay(key, account, 30), ("201", "new", {"balance": 70}))
        self.expect_paid(what, key, account)

    def expect_paid(self, what, key, account):
        """The payment of 30 is there, once, and its answer is replayed."""
        self.check(f"{what}: replayed", self.program.pay(key, account, 30), ("201", "replay", {"balance": 70}))
        self.check(f"{what}: one effect", (self.effects(key), self.balance(account)), (1, 70))


def play_answers(stage):
    """Done, done before, declined, declined before, another request."""
    stage.account("alice")
    stage.expect_new("the first call takes effect", "first", "alice")
    declined = {"reason": "not enough money"}
    stage.check("a declined payment", stage.program.pay("declined", "alice", 500), ("402", "new", declined))
    stage.check("a declined payment is replayed", stage.program.pay("declined", "alice", 500), ("402", "replay", declined))
    stage.check("a declined payment leaves no effect", (stage.effects("declined"), stage.balance("alice")), (0, 70))
    stage.check("a declined payment is stored",
                stage.scalar("SELECT status::text FROM idempotency_store WHERE idempotency_key = 'declined'"), "FAILED")
    stage.check("another request with the same key", stage.program.pay("first", "alice", 31)[:2], ("error", "ID422"))


def play_in_progress(stage):
    """Somebody else owns the operation."""
    stage.account("owned")
    with psycopg.connect("") as owner:
        owner.execute("SELECT idem_begin(%s, scope => %s)", ("owned", SCOPE))
        stage.check("in progress", stage.program.pay("owned", "owned", 30)[0], "409")
        owner.rollback()
    stage.expect_new("after the owner has gone", "owned", "owned")


def play_retries(stage):
    """Errors that go away, and one that does not."""
    for sqlstate in ("40001", "40P01", "57P01"):
        stage.account(sqlstate, sqlstate)
        stage.expect_new(f"{sqlstate} is retried", sqlstate, sqlstate)
        stage.check(f"{sqlstate} is retried once", stage.tries(), 2)
    stage.account("hopeless", "40001", 1000)
    stage.check("40001 each time", stage.program.pay("hopeless", "hopeless", 30)[:2], ("error", "40001"))
    stage.check("retries are bounded", (stage.tries(), stage.effects("hopeless")), (RETRIES, 0))
    stage.account("constraint", "23514")
    stage.check("another error", stage.program.pay("constraint", "constraint", 30)[:2], ("error", "23514"))
    stage.check("another error is not retried", (stage.tries(), stage.effects("constraint")), (1, 0))
    stage.expect_new("after another error", "constraint", "constraint")


def play_lost_connections(stage):
    """Before COMMIT, at COMMIT, and while nothing is done."""
    stage.account("cut")
    stage.proxy.reset()
    stage.proxy.arm("before")
    stage.expect_new("the connection ends before COMMIT", "cut", "cut")
    stage.check("the connection ended before COMMIT", stage.proxy.hits, 1)
    stage.account("lost")
    stage.proxy.reset()
    stage.proxy.arm("lose")
    answer = stage.program.pay("lost", "lost", 30)
    stage.check("the answer to COMMIT is lost", (answer[0], answer[2]), ("201", {"balance": 70}))
    stage.check("the answer to COMMIT was lost", stage.proxy.hits, 1)
    stage.expect_paid("the answer to COMMIT is lost", "lost", "lost")
    stage.account("idle")
    stage.database.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
    stage.expect_new("the connection was ended between two calls", "idle", "idle")


def play_rollback(stage):
    """A COMMIT that answers ROLLBACK is no success."""
    stage.account("undone")
    stage.proxy.reset()
    stage.proxy.arm("rollback")
    stage.check("COMMIT answers ROLLBACK", stage.program.pay("undone", "undone", 30)[0], "error")
    stage.check("COMMIT answered ROLLBACK", (stage.proxy.hits, stage.effects("undone")), (1, 0))
    stage.expect_new("after a COMMIT that answered ROLLBACK", "undone", "undone")


def play_lost_attempts(stage):
    """A begin that ends the operation by itself stores no code, and is committed: see idem_lost_attempts."""
    stage.database.execute("SELECT idem_set_policy(%s, max_lost_attempts => 1)", (SCOPE,))
    with psycopg.connect("") as poisoned:
        poisoned.execute("SELECT idem_begin(%s, scope => %s)", ("poison", SCOPE))
        poisoned.rollback()
    stage.account("poison")
    try:
        answer = stage.program.pay("poison", "poison", 30)
    finally:
        stage.database.execute("SELECT idem_set_policy(%s)", (SCOPE,))
    stage.check("attempts that were lost", answer, ("422", "replay", {"reason": "attempts lost", "lost_attempts": 1}))
    stage.check("that end is committed",
                stage.scalar("SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'poison' AND status = 'FAILED'"), 1)


def play_log(stage):
    """The server logs each statement, without its parameters: docs/security.md, "Logs"."""
    with open(os.environ["IDEM_LOG"], encoding="utf-8", errors="replace") as log:
        log.seek(stage.log_before)
        lines = log.read()
    for function in ("begin", "complete", "fail"):
        stage.check(f"idem_{function} is called", f"idem_{function}(" in lines, True)
        stage.check(f"the values of idem_{function} are parameters", re.search(rf"idem_{function}\(\s*'", lines), None)


def play_end(stage):
    """Nothing is left open, and the program ends."""
    stage.check("no transaction is left open", stage.scalar(OPEN), 0)
    stage.check("the program ends", stage.program.end(), 0)


SCENES = (play_answers, play_in_progress, play_retries, play_lost_connections, play_rollback, play_lost_attempts, play_log,
          play_end)


def play(directory, path, proxy, verdict):
    stage = Stage(directory, path, proxy, verdict)
    try:
        for scene in SCENES:
            scene(stage)
    except (RuntimeError, ValueError, psycopg.Error) as error:
        verdict.check(False, f"{stage.name}: plays to its end", f"    {error}")
    finally:
        stage.program.process.kill()


def main():
    """Each recipe twice: with the server, and with a pgbouncer before it."""
    with Verdict() as verdict, pooler(1) as bouncer:
        proxies = {"directly": Proxy(listen_at("-"), lambda: connect_to(socket_in(os.environ["PGHOST"]))),
                   "behind pgbouncer": Proxy(listen_at("-"), lambda: connect_to(socket_in(bouncer)), Pooled)}
        for directory in sys.argv[1:]:
            for path, proxy in proxies.items():
                play(directory, path, proxy, verdict)


if __name__ == "__main__":
    main()
