#!/usr/bin/python3
"""Records what clients do to lists by idempotent operations, and checks it.

Called by test/history/run on a throw-away server. One database has a store as the
extension made it, the other one a trigger on the store, so that both ways to the store
are tested, and a third one a store with a ring of tables. Prints a report and,
last, one line: N passed, N failed. Exits with 1 on a failure.
"""

import argparse
import multiprocessing
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial

import checks
import ledger
import plan
import psycopg
from client import PATIENCE, Shared
from clients import Client
from findings import Findings, keep_evidence, weigh
from storms import DECK, DECK_BY_EXPIRY, Storms
from verdict import Verdict

here = os.path.dirname(os.path.abspath(__file__))
processes = multiprocessing.get_context("fork")
PATHS = ("direct", "trigger", "partitioned")

# Guards of test/mutation/guards, and the checks of which one must see that it is gone.
# Only what comes of a wait for the store needs a storm.
VIOLATIONS = {
    "lock not taken": ("owners at once",),
    "looked up with the statement's snapshot, not with a fresh one": ("unexpected errors",),
    "isolation is not checked": ("replays without their effects", "G-single read skew"),
    "no fence is compared": ("fences out of order", "ends repeated"),
    "invalidations that come with the lock of the store are lost": ("operations twice", "executed twice"),
    "commit is not refused": ("unfinished commits", "effects of the failed"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", default=os.environ.get("HISTORY_SEED") or str(secrets.randbelow(10**9)))
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("HISTORY_SECONDS") or 120),
                        help="of all paths together")
    parser.add_argument("--operations", type=int, default=0,
                        help="of each path: goes on until it has had so many, for five times as long at most")
    parser.add_argument("--storms", help="names, separated by commas")
    parser.add_argument("--without-guard", choices=VIOLATIONS,
                        help="the server is built without this guard: must be noticed")
    parser.add_argument("--plan", action="store_true", help="only print what identifies the plan")
    parser.add_argument("--list-guards", action="store_true",
                        help="only print the guards that --without-guard knows")
    options = parser.parse_args()
    if options.storms is None:
        options.storms = ",".join(DECK | DECK_BY_EXPIRY)
        if options.without_guard:
            options.storms = "swap" if "lock of the store" in options.without_guard else ""
    options.wanted = [name for name in options.storms.split(",") if name]
    unknown = set(options.wanted) - set(DECK) - set(DECK_BY_EXPIRY)
    if unknown:
        parser.error(f"no such storm: {', '.join(sorted(unknown))}")
    return options


class Run:
    """One path: a database, its clients and its storms."""

    def __init__(self, options, path, base):
        self.options = options
        self.path = path
        options.database = f"history_{path}"
        self.ledger = ledger.Ledger(os.path.join(base, path))
        self.shared = Shared(processes.RawValue("i", 0), processes.RawArray("q", plan.CLIENTS))
        self.clients = []
        self.storms = Storms(options, self.connect, path)

    def connect(self, **options):
        return psycopg.connect(dbname=self.options.database, autocommit=True, **options)

    def create(self):
        """The database, with the trigger before the extension."""
        with psycopg.connect(dbname="postgres", autocommit=True) as connection:
            for role in ("client LOGIN", "auditor"):
                try:
                    connection.execute(f"CREATE ROLE {role}")
                except psycopg.errors.DuplicateObject:
                    pass
            connection.execute(f"CREATE DATABASE {self.options.database} TEMPLATE template0")
        with self.connect() as connection:
            if self.path == "trigger":
                connection.execute(read_text(os.path.join(here, "..", "kit", "with-trigger.sql")))
            connection.execute(read_text(os.path.join(here, "setup.sql")))
        if self.path == "partitioned":
            self.partition()

    def partition(self):
        """No record expires before the end, but those that are to be replaced."""
        retention = round(10 * self.seconds()) + 120
        with self.connect() as connection:
            connection.execute(
                f"ALTER DATABASE {self.options.database} SET idempotency.retention = '{retention}s'")
        with self.connect() as connection:
            connection.execute("SELECT idem_partition_store(%s::interval)", (f"{retention // 24} s",))

    def seconds(self):
        """How long this path shall last."""
        return self.options.seconds / len(PATHS)

    def go(self):
        """Clients and storms, until all operations have come to an end."""
        self.create()
        for index in range(plan.CLIENTS):
            client = processes.Process(target=Client(index, self.options, self.shared, self.ledger).run)
            client.start()
            self.clients.append(client)
        seconds = self.seconds()
        start = time.monotonic()
        self.storms.rage(lambda: self.is_enough(time.monotonic() - start, seconds))
        self.shared.stopping.value = 1
        for client in self.clients:
            client.join(PATIENCE + 30)
        self.storms.settle()

    def is_enough(self, passed, seconds):
        """A busy machine takes longer for as much."""
        return passed > seconds and (
            passed > 5 * seconds or min(self.shared.progress) >= self.options.operations)

    def judge(self):
        findings = Findings()
        planned = partial(plan.operation, self.options.seed)
        with self.connect() as connection:
            evidence = checks.gather(connection, ledger.read(self.ledger.path), planned)
            checks.check_drained(findings, connection, evidence.events, self.clients)
            if self.path == "trigger":
                (fired,) = connection.execute("SELECT is_called FROM with_trigger.fired").fetchone()
                findings.add("trigger that never fired", [] if fired else [self.path])
        self.storms.count_hits(checks.count_errors(evidence.events))
        findings.add("storms that never struck", (
            name for name in self.storms.wanted if not self.storms.hits[name]))
        findings.add("storms that failed", self.storms.failures)
        checks.check(findings, evidence)
        findings.add("amcheck", amcheck(self.options.database))
        return findings, evidence

    def stop(self):
        for process in self.clients:
            if process.is_alive():
                process.kill()


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def amcheck(database):
    """Heaps, and indexes against their heaps."""
    done = subprocess.run(["pg_amcheck", "-d", database, "--heapallindexed"], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return [] if done.returncode == 0 else [done.stdout[-600:]]


def log_trouble():
    """What the server itself complains of."""
    pattern = "TRAP:|PANIC:|terminated by signal|you don't own a lock|invalid page|could not read block|could not open relation"
    with open(os.environ["IDEM_LOG"], encoding="utf-8", errors="replace") as log:
        return [line.rstrip() for line in log if re.search(pattern, line)]


def print_report(run, findings, evidence):
    events = evidence.events
    ways = Counter(key.split("-")[0] for key in evidence.records)
    deliveries = Counter(line["number"] for line in events["delivery"])
    print(f"path:                        {run.path}")
    for name, value in (
            ("operations", len(deliveries)),
            ("records", ", ".join(f"{way} {times}" for way, times in sorted(ways.items()))),
            ("duplicates delivered", sum(deliveries.values()) - len(deliveries)),
            ("answers", len(events["answered"])),
            ("elements appended", sum(len(elements) for elements in evidence.lists.values())),
            ("replays that looked", len(events["reader"])),
            ("leases, taken over", f"{len(events['lease'])}, {sum(line['taken_over'] for line in events['lease'])}"),
            ("prepared, rolled back", f"{len(events['prepared'])}, {len(events['rolled back'])}"),
            ("from another session", len(events["reconnected"])),
            ("unfinished commits refused", len(events["refused"])),
            ("repeated ends refused", len(events["repetition"])),
            ("other requests refused", len(events["mistake"])),
            ("errors", ", ".join(f"{state} {times}" for state, times in
                                 checks.count_errors(events).most_common()))):
        print(f"{name + ':':<28} {value}")
    print("storms:                      struck     hit")
    for name in run.storms.wanted:
        print(f"  {name:<26} {run.storms.tries[name]:>6} {run.storms.hits[name]:>7}")
    findings.report()


def go_all_paths(options, base):
    """Path after path; the names of the checks that failed, and how many passed."""
    failed, passed, missing = [], 0, set(checks.EVENTS)
    for path in PATHS:
        run = Run(options, path, base)
        try:
            run.go()
            findings, evidence = run.judge()
        finally:
            run.stop()
        print_report(run, findings, evidence)
        sys.stdout.flush()
        failed += findings.failed()
        passed += len(findings.checks) - len(findings.failed())
        missing -= {name for name in missing if evidence.events[name]}
    for name, wrong in (("server's log", log_trouble()), ("events that never came", sorted(missing))):
        print("\n".join([f"{name + ':':<36} {len(wrong)}", *wrong[:10]]))
        failed += [name] if wrong else []
        passed += not wrong
    return failed, passed


def main():
    options = arguments()
    if options.plan:
        print(plan.fingerprint(options.seed))
        return
    if options.list_guards:
        print("\n".join(VIOLATIONS))
        return
    print(f"seed {options.seed}, {options.seconds:g} seconds", flush=True)
    with Verdict() as verdict, tempfile.TemporaryDirectory(prefix="history.", dir="/tmp") as base:
        start = time.monotonic()
        try:
            wrong, good = go_all_paths(options, base)
            print(f"checks that found something:  {', '.join(wrong) or 'none'}")
            print(f"{time.monotonic() - start:.0f} seconds")
            verdict.count(*weigh(options.without_guard, VIOLATIONS, wrong, good))
        finally:
            if verdict.failed or not verdict.passed:
                keep_evidence("history", options.seed, [
                    *(os.path.join(base, name) for name in os.listdir(base)), os.environ["IDEM_LOG"]])


if __name__ == "__main__":
    main()
