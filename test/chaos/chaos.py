#!/usr/bin/python3
"""Runs clients, a bank, a gateway and faults for some minutes, and checks what is left.

Called by test/chaos/run on a throw-away installation. Prints a report and, last, one
line: N passed, N failed. Exits with 1 on a failure.
"""

import argparse
import multiprocessing
import os
import secrets
import tempfile
import threading
import time

import checks
import fault_proxy
import faults
import gateway
import ledger
import plan
import psycopg
from client import PATIENCE
from clients import Client, Shared
from findings import Findings, keep_evidence, weigh
from report import figures, print_report
from servers import Clock, Pair
from verdict import Verdict

here = os.path.dirname(os.path.abspath(__file__))
processes = multiprocessing.get_context("fork")

# Guards of test/mutation/guards, and the checks of which one must see that it is gone.
VIOLATIONS = {
    "lock not taken": ("I1 owners at once",),
    "no fence is compared": ("I1 effects twice", "I4 fences out of order"),
    "the same fence ends an operation twice": ("I1 effects twice",),
    "commit is not refused": ("I3 effect without record",),
    "the sweep does not look at what it deletes": ("I1 effects twice", "I2 answers lost", "I3 effect without record"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", default=os.environ.get("CHAOS_SEED") or str(secrets.randbelow(10**9)))
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("CHAOS_MINUTES") or 5))
    parser.add_argument("--faults", default=",".join(plan.DECK),
                        help="names, separated by commas")
    parser.add_argument("--without-guard", choices=VIOLATIONS,
                        help="the server is built without this guard: must be noticed")
    parser.add_argument("--schedule", action="store_true",
                        help="only print what identifies the schedule")
    parser.add_argument("--list-guards", action="store_true",
                        help="only print the guards that --without-guard knows")
    options = parser.parse_args()
    options.wanted = [name for name in options.faults.split(",") if name]
    unknown = set(options.wanted) - set(plan.DECK)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    return options


class Run:
    """One run: everything is made under one directory, and ends with it."""

    def __init__(self, options, base):
        self.options = options
        self.base = base
        self.unavailable = {}
        self.others = []
        self.clients = []
        self.shared = Shared(processes.RawValue("i", 0),
                             processes.RawArray("q", plan.CLIENTS),
                             processes.RawArray("i", plan.CLIENTS))
        self.proxy = None
        self.ledger = ledger.Ledger(os.path.join(base, "ledger"))
        disks = self.find_disks()
        self.pair = Pair(base, disks, Clock(os.path.join(base, "clock")))
        options.target = self.pair.target
        options.gateway = os.path.join(base, "gateway.sock")
        options.proxy = os.path.join(base, "proxy")

    def find_disks(self):
        """Small disks for the WAL, which test/chaos/run has made if it could."""
        disks = os.environ.get("CHAOS_DISKS", "").split(":")
        if len(disks) == 2:
            return disks
        if "disk full" in self.options.wanted:
            self.options.wanted.remove("disk full")
            self.unavailable["disk full"] = os.environ.get("CHAOS_NO_DISKS", "no small disk was given")
        return (None, None)

    def start(self):
        """Servers, gateway, proxy, and last the clients."""
        self.pair.create(os.path.join(here, "bank.sql"))
        with self.pair.primary.connect() as connection:
            connection.execute("INSERT INTO account SELECT i, %s FROM generate_series(0, %s) i",
                               (plan.BALANCE, plan.ACCOUNTS - 1))
        os.mkdir(self.options.proxy)
        self.launch(gateway.serve, self.options.gateway, os.path.join(self.base, "charges"))
        self.proxy = fault_proxy.Program(os.path.join(self.options.proxy, ".s.PGSQL.5432"), f"@{self.pair.target}")
        while not os.path.exists(self.options.gateway):
            time.sleep(0.05)
        for index in range(plan.CLIENTS):
            client = processes.Process(target=Client(index, self.options, self.shared, self.ledger).run)
            client.start()
            self.clients.append(client)

    def launch(self, function, *given):
        process = processes.Process(target=function, args=given, daemon=True)
        process.start()
        self.others.append(process)

    def sweep(self):
        """Collects all the time: a thread of the controller's process."""
        while not self.shared.stopping.value:
            try:
                with self.pair.primary.connect() as connection:
                    while not self.shared.stopping.value:
                        connection.execute("SELECT idem_gc()")
                        time.sleep(0.015)
            except psycopg.Error:
                time.sleep(0.2)

    def strike(self):
        """Faults until the time is up, and then the end of all operations."""
        controller = faults.Controller(self.options, self.pair, self.clients, self.shared, self.proxy)
        sweeper = threading.Thread(target=self.sweep, daemon=True)
        sweeper.start()
        end = time.monotonic() + self.options.minutes * 60
        for pause, name in plan.faults(self.options.seed, self.options.wanted):
            time.sleep(max(0, min(pause, end - time.monotonic())))
            if time.monotonic() >= end:
                break
            controller.strike(name)
        self.shared.stopping.value = 1
        for client in self.clients:
            client.join(PATIENCE + 60)
        sweeper.join(30)
        return controller

    def judge(self, controller):
        """Prints the report; returns how many checks passed and failed."""
        findings = Findings()
        with self.pair.primary.connect() as connection:
            evidence = checks.gather(connection, ledger.read(self.ledger.path),
                                     ledger.read(os.path.join(self.base, "charges")))
        checks.check(findings, evidence, plan.BALANCE)
        checks.check_drained(findings, self.pair, evidence.events, self.clients)
        errors = checks.count_errors(evidence.events)
        lost = errors["ID409"] + len(evidence.events["stale"])
        controller.count_hits(errors, lost)
        findings.add("faults that never hit",
                     [name for name in self.options.wanted if not controller.hits[name]])
        findings.add("events that never came", missing_events(evidence))
        schedule = plan.fingerprint(self.options.seed, self.options.wanted)
        print_report(figures(self.options, schedule, evidence, lost), controller,
                     self.unavailable, findings)
        failed = findings.failed()
        return weigh(self.options.without_guard, VIOLATIONS, failed, len(findings.checks) - len(failed))

    def stop(self):
        for process in self.clients + self.others:
            if process.is_alive():
                process.kill()
        if self.proxy:
            self.proxy.process.kill()
        self.pair.stop()


def missing_events(evidence):
    """A run in which these never came proves nothing."""
    return [event for event in ("delivery", "answered", "owned", "lease", "ended", "refused")
            if not evidence.events[event]]


def main():
    options = arguments()
    if options.schedule:
        print(plan.fingerprint(options.seed, options.wanted))
        return
    if options.list_guards:
        print("\n".join(VIOLATIONS))
        return
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    with Verdict() as verdict, tempfile.TemporaryDirectory(prefix="chaos.", dir="/tmp") as base:
        run = Run(options, base)
        try:
            run.start()
            verdict.count(*run.judge(run.strike()))
        finally:
            run.stop()
            if verdict.failed or not verdict.passed:
                keep_evidence("chaos", options.seed, (
                    os.path.join(base, name) for name in ("ledger", "charges", "one.log", "two.log")))


if __name__ == "__main__":
    main()
