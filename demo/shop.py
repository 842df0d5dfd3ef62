#!/usr/bin/env -S --block-signal=INT /usr/bin/python3
"""A shop's payments, delivered 3 to 5 times each, with and without idempotency.

    shop.py NAME <FILE    start it with demo/run, which brings a server; messages call the file so

The same deliveries go to four kinds of consumer, one after the other. Each run
has a database for the shop and one for the card gateway.
The exit code is 0 when every payment took effect exactly once with idempotency
and some did not without; 1 when not, or when a run did not get to its end; 2
for a file that cannot be used.
"""

import interrupts

import os
import sys
from dataclasses import dataclass

import psycopg

import report
from audit import Findings, audit, breaches, missed
from broker import Broker, RunFailed, Tally
from consumer import Protected
from gateway import connect
from messages import InputError, open_and_read, printable
from plan import Plan, make_plan
from without import ByHand, Naive, Unique

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = (Protected, Naive, Unique, ByHand)
CONSUMERS = 8   # at once


@dataclass(frozen=True)
class Databases:
    """The two databases of a run."""

    shop: str
    gateway: str


@dataclass
class Run:
    """The result of a run: the answers of its consumers, and the audit."""

    kind: type
    plan: Plan
    tally: Tally
    findings: Findings


def prepare(plan, databases, kind):
    """Makes and fills the databases of a run; fails if they exist."""
    with connect(os.environ.get("PGDATABASE", "postgres")) as server:
        for name in (databases.shop, databases.gateway):
            server.execute(f"CREATE DATABASE {name}")
    with connect(databases.shop) as shop, connect(databases.gateway) as gateway:
        if kind is Protected:
            shop.execute("CREATE EXTENSION idempotency")
        run_script(shop, "shop.sql")
        if kind.script:
            run_script(shop, kind.script)
        run_script(gateway, "gateway.sql")
        fill_shop(shop, plan)
        fill_gateway(gateway, plan)


def run_script(connection, name):
    with open(os.path.join(HERE, name), encoding="utf-8") as script:
        connection.execute(script.read())


def fill_shop(shop, plan):
    """The accounts of the messages, and the right result of each for the audit."""
    cursor = shop.cursor()
    with cursor.copy("COPY account (id, payment_limit) FROM STDIN") as copy:
        for account in sorted({delivery.message.account for delivery in plan.deliveries}):
            copy.write_row((account, plan.limit))
    with cursor.copy("COPY message FROM STDIN") as copy:
        for m in plan.messages:
            copy.write_row((m.id, m.account, m.amount, m.method, plan.is_accepted(m)))


def fill_gateway(gateway, plan):
    """The charges that will fail."""
    with gateway.cursor().copy("COPY outage (reference, kind) FROM STDIN") as copy:
        for message_id, outage in plan.outages.items():
            copy.write_row((message_id, outage.removeprefix("gateway ")))


def perform(console, plan, kind):
    """One run from empty databases to the audit."""
    databases = Databases(f"shop_{kind.name}", f"gateway_{kind.name}")
    prepare(plan, databases, kind)
    with report.progress(console, kind.title, len(plan.deliveries)) as watch:
        tally = Broker(plan, kind, databases, CONSUMERS, watch).run()
    return Run(kind, plan, tally, audit(databases, kind is Protected))


def judge(protected, *others):
    """Everything that went wrong, as sentences."""
    problems = breaches(protected.plan, protected.findings, protected.tally)
    problems += missed(protected.plan, protected.findings, protected.tally)
    if protected.tally.takeovers < protected.plan.least_takeovers():
        problems.append(f"takeovers: {protected.tally.takeovers}, expected {protected.plan.least_takeovers()} or more")
    for run in others:
        problems += [f"{run.kind.title}: {what}" for what in missed(run.plan, run.findings, run.tally)]
        if run.kind is Naive and not run.findings.figures.twice:
            problems.append("without idempotency nobody was charged twice, so this run shows nothing")
    return problems


def main():
    name = sys.argv[1]
    file = open_and_read("-", name)
    console = report.make_console()
    console.print(
        f"{report.count(len(file.messages))} payments from {printable(name)}, each"
        f" delivered 3 to 5 times in random order to {CONSUMERS} consumers."
        " Some of these are killed at work, and the card gateway is flaky.", markup=False)
    runs = [perform(console, make_plan(file), kind) for kind in KINDS]
    problems = judge(*runs)
    report.print_table(console, runs)
    report.print_money(console, runs)
    report.print_verdict(console, problems, *runs)
    return 1 if problems else 0


def stop(message, code):
    """Ends the demo with one line on standard error."""
    print(f"demo: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    try:
        interrupts.listen()
        sys.exit(main())
    except InputError as problem:
        stop(problem, 2)
    except RunFailed as problem:
        stop(problem, 1)
    except psycopg.Error as problem:
        stop(f"database: {str(problem).strip()}", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop("nobody reads the output", 1)
    except KeyboardInterrupt:
        stop("interrupted", 130)
