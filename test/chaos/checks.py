"""Holds the invariants I1 to I6 against what the ledger, the gateway and the database say.

test/kit/findings.py says what it takes from the order of lines.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from findings import by_event, clients_stuck, fences_given_twice, fences_out_of_order, locks_left, overlaps

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


def gather(connection, ledger, charges):
    return Evidence(
        events=by_event(ledger),
        charges=charges,
        effects=connection.execute(
            "SELECT key, source, target, amount, receipt FROM effect").fetchall(),
        records={row[0]: row[1:] for row in connection.execute(RECORDS).fetchall()},
        balances=dict(connection.execute("SELECT id, balance FROM account").fetchall()),
    )


def check(findings, evidence, opening_balance):
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
    findings.add("I4 fences out of order", fences_out_of_order(evidence.events))
    findings.add("I4 fences given twice", fences_given_twice(evidence.events))
    findings.add("I4 takeovers not reported", (
        line["key"] for line in evidence.events["lease"]
        if line["taken_over"] != (line["attempt"] > 1)))
    findings.add("unexpected errors", unexpected(evidence.events))


def check_answers(findings, evidence, effects):
    """I2: no answer ever changes, byte for byte."""
    answered = defaultdict(set)
    for line in evidence.events["answered"]:
        answered[line["key"]].add((line["outcome"], line["payload"], line["body"], line["code"]))
    findings.add("I2 effects lost", (
        key for key, answers in answered.items()
        if any(answer[0] == "COMPLETED" for answer in answers) and not effects[key]))
    findings.add("I2 effects of the failed", (
        key for key, answers in answered.items()
        if any(answer[0] == "FAILED" for answer in answers) and effects[key]))
    findings.add("I2 different answers", (key for key, answers in answered.items() if len(answers) > 1))
    findings.add("I2 answers lost", (
        key for key, answers in answered.items()
        if evidence.records.get(key, (None,))[:4] not in answers))
    receipts = {row[0]: row[4] for row in evidence.effects}
    findings.add("I2 answers of other effects", (
        key for key, record in evidence.records.items()
        if record[0] == "COMPLETED" and key in receipts
        and record[1] != f'{{"receipt": "{receipts[key]}"}}'))


def wrong_balances(evidence, opening_balance):
    """Accounts that do not hold what their effects add up to."""
    expected = Counter({account: opening_balance for account in evidence.balances})
    for _, source, target, amount, _ in evidence.effects:
        expected[source] -= amount
        expected[target] += amount
    return (account for account, balance in evidence.balances.items()
            if balance != expected[account])


def unexpected(events):
    """Errors that no fault explains. At READ COMMITTED only a writer that takes no lock
    makes 40001, and there is none here."""
    for line in events["unexpected"]:
        yield f"{line['sqlstate']} {line['message']}"
    for line in events["error"]:
        if line["sqlstate"] == "40001" and line["isolation"] != "REPEATABLE READ":
            yield f"40001 {line['way']}: {line['message']}"


def count_errors(events):
    """How often clients got which SQLSTATE; a connection that is refused comes without."""
    errors = Counter(line["sqlstate"] for line in events["error"])
    errors["no connections"] = sum(
        1 for line in events["error"]
        if re.search("too many clients|connection slots are reserved", line["message"]))
    return errors


def check_drained(findings, pair, events, processes):
    """I5 and I6, on the servers, when all clients have gone."""
    with pair.primary.connect() as connection:
        pending = connection.execute(
            "SELECT idempotency_key FROM idempotency_store"
            " WHERE status = 'PENDING' AND scope = 'bank'").fetchall()
        findings.add("I5 locks left", locks_left(connection))
        findings.add("I6 clients stuck", clients_stuck(events, processes))
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
