"""Holds the invariants I1 to I6 against what the ledger, the gateway and the database say.

Nothing here trusts the order of lines of different clients: a client may have been
stopped between an answer and its line. Two things count as out of order only where one
was asked for after the other had been told.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

LOCKS_LEFT = """SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid BETWEEN 7648 AND 7650"""
RECORDS = """SELECT idempotency_key, status::text, response_payload::text,
    encode(response_body, 'hex'), response_code, fence
    FROM idempotency_store WHERE scope = 'bank'
    AND NOT coalesce(response_payload ? 'placeholder', false)"""


@dataclass
class Evidence:
    """The ledger by event, the gateway's file, and the database's rows."""

    events: dict
    charges: list
    effects: list
    records: dict
    balances: dict


@dataclass
class Findings:
    """Examples of what is wrong, by check; a check without any has passed."""

    checks: dict = field(default_factory=dict)

    def add(self, name, wrong):
        """One check: its name, and what contradicts it."""
        self.checks[name] = list(wrong)

    def failed(self):
        """Names of the checks that found something."""
        return [name for name, wrong in self.checks.items() if wrong]


def gather(connection, ledger, charges):
    """All that is known at the end."""
    events = defaultdict(list)
    for line in ledger:
        events[line["event"]].append(line)
    return Evidence(
        events=events,
        charges=charges,
        effects=connection.execute(
            "SELECT key, source, target, amount, receipt FROM effect").fetchall(),
        records={row[0]: row[1:] for row in connection.execute(RECORDS).fetchall()},
        balances=dict(connection.execute("SELECT id, balance FROM account").fetchall()),
    )


def check(findings, evidence, opening_balance):
    """The checks that need no server."""
    effects = Counter(row[0] for row in evidence.effects)
    charged = Counter(line["key"] for line in evidence.charges if line["event"] == "charged")
    findings.add("I1 effects twice", (key for key, times in effects.items() if times > 1))
    findings.add("I1 charged twice", (key for key, times in charged.items() if times > 1))
    findings.add("I1 owners at once", overlaps(evidence.events["owned"]))
    check_answers(findings, evidence, effects)
    findings.add("I3 record without effect",
                 (key for key, record in evidence.records.items()
                  if record[0] == "COMPLETED" and not effects[key]))
    findings.add("I3 effect without record",
                 (key for key in effects
                  if evidence.records.get(key, ("none",))[0] != "COMPLETED"))
    findings.add("I3 balances", wrong_balances(evidence, opening_balance))
    findings.add("I4 fences out of order", out_of_order(evidence.events))
    findings.add("I4 fences given twice", given_twice(evidence.events["lease"]))
    findings.add("I4 takeovers not told", (
        line["key"] for line in evidence.events["lease"]
        if line["taken_over"] != (line["attempt"] > 1)))
    findings.add("unexpected errors", unexpected(evidence.events))


def check_answers(findings, evidence, effects):
    """I2: whatever a client was told stays, byte for byte."""
    told = defaultdict(set)
    for line in evidence.events["told"]:
        told[line["key"]].add((line["outcome"], line["payload"], line["body"], line["code"]))
    findings.add("I2 effects lost", (
        key for key, answers in told.items()
        if any(answer[0] == "COMPLETED" for answer in answers) and not effects[key]))
    findings.add("I2 effects of the failed", (
        key for key, answers in told.items()
        if any(answer[0] == "FAILED" for answer in answers) and effects[key]))
    findings.add("I2 different answers", (key for key, answers in told.items() if len(answers) > 1))
    findings.add("I2 answers lost", (
        key for key, answers in told.items()
        if evidence.records.get(key, (None,))[:4] not in answers))
    receipts = {row[0]: row[4] for row in evidence.effects}
    findings.add("I2 answers of other effects", (
        key for key, record in evidence.records.items()
        if record[0] == "COMPLETED" and key in receipts
        and record[1] != f'{{"receipt": "{receipts[key]}"}}'))


def overlaps(owned):
    """Keys that two sessions were in possession of at one time."""
    stretches = defaultdict(list)
    for line in owned:
        stretches[line["key"]].append((line["since"], line["until"]))
    for key, times in stretches.items():
        times.sort()
        if any(later[0] < earlier[1] for earlier, later in zip(times, times[1:])):
            yield key


def wrong_balances(evidence, opening_balance):
    """Accounts that do not hold what their effects add up to."""
    expected = Counter({account: opening_balance for account in evidence.balances})
    for _, source, target, amount, _ in evidence.effects:
        expected[source] -= amount
        expected[target] += amount
    return (account for account, balance in evidence.balances.items()
            if balance != expected[account])


def out_of_order(events):
    """Fences that were given, or accepted, after a greater one of that key was told."""
    leases = defaultdict(list)
    for line in events["lease"]:
        leases[line["key"]].append((line["told"], line["fence"]))
    for event in ("lease", "ended"):
        for line in events[event]:
            if any(told < line["asked"] and fence > line["fence"]
                   for told, fence in leases[line["key"]]):
                yield f"{line['key']}: {event} {line['fence']}"


def given_twice(leases):
    """Fences that two attempts got."""
    return (fence for fence, times in Counter(line["fence"] for line in leases).items()
            if times > 1)


def unexpected(events):
    """Errors that no fault explains. At READ COMMITTED only a writer that takes no lock
    makes 40001, and there is none here."""
    for line in events["unexpected"]:
        yield f"{line['sqlstate']} {line['message']}"
    for line in events["error"]:
        if line["sqlstate"] == "40001" and line["isolation"] != "REPEATABLE READ":
            yield f"40001 {line['way']}: {line['message']}"


def count_errors(events):
    """How often which SQLSTATE was told; a connection that is refused comes without."""
    errors = Counter(line["sqlstate"] for line in events["error"])
    errors["no connections"] = sum(
        1 for line in events["error"]
        if re.search("too many clients|connection slots are reserved", line["message"]))
    return errors


def check_drained(findings, pair, events, processes):
    """I5 and I6, on the servers, when all clients have gone."""
    with pair.primary.connect() as connection:
        left = connection.execute(LOCKS_LEFT).fetchone()[0]
        pending = connection.execute(
            "SELECT idempotency_key FROM idempotency_store"
            " WHERE status = 'PENDING' AND scope = 'bank'").fetchall()
        findings.add("I5 locks left", [left] if left else [])
        findings.add("I6 clients stuck", [line["keys"] for line in events["stuck"]] +
                     [f"client {index} ended with {process.exitcode}"
                      for index, process in enumerate(processes) if process.exitcode != 0])
        findings.add("I6 leases left", (key for (key,) in pending))
        findings.add("I6 rows left", rows_left(pair, connection))
    findings.add("amcheck", amcheck(pair))
    findings.add("servers' logs", log_trouble(pair))


def rows_left(pair, connection):
    """When everything has expired, a sweep removes everything."""
    pair.clock.shift(60 * 86400)
    for _ in range(50):
        connection.execute("SELECT idem_gc(1000000), pg_sleep(0.1)")
        (left,) = connection.execute("SELECT count(*) FROM idempotency_store").fetchone()
        if left == 0:
            return []
    return [f"{left} rows"]


def amcheck(pair):
    """Heaps, and indexes against their heaps; of the standby as well."""
    pair.wait_for_standby()
    return (f"pg_amcheck of {node.name}" for node in pair.nodes
            if not node.run("pg_amcheck", "-h", node.socket, "-p", "5432", "-U", "postgres",
                            "-d", "bank", "--heapallindexed", check=False))


def log_trouble(pair):
    """Crashes that no fault explains."""
    for node in pair.nodes:
        for pattern in ("TRAP:", "terminated by signal 11", "you don't own a lock",
                        "invalid page", "could not read block", "could not open relation"):
            times = node.count_in_log(pattern)
            if times:
                yield f"{node.name}: {times} times \"{pattern}\""
