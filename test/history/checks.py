"""Compares the clients' answers, the lists and the store with the promises.

test/kit/findings.py says what it takes from the order of lines.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

import anomalies
from clients import digest
from findings import by_event, clients_stuck, fences_given_twice, fences_out_of_order, locks_left, overlaps
from plan import number_of, origin

RECORDS = """SELECT idempotency_key, status::text, response_payload::text,
    encode(response_body, 'hex'), response_code
    FROM idempotency_store WHERE scope = 'history'
    AND NOT coalesce(response_payload ? 'placeholder', false)"""

# A run in which these never came proves nothing.
EVENTS = ("answered", "done", "reader", "owned", "lease", "ended", "prepared", "reconnected",
          "rolled back", "refused", "mistake", "repetition")


@dataclass
class Evidence:
    """The ledger by event, the lists, the records by key, and the plan."""

    events: dict
    lists: dict
    records: dict
    plan: object        # of a number: the operation


def gather(connection, ledger, plan):
    return Evidence(
        events=by_event(ledger),
        lists=dict(connection.execute("SELECT id, elements FROM list").fetchall()),
        records={row[0]: row[1:] for row in connection.execute(RECORDS).fetchall()},
        plan=plan)


def check(findings, evidence):
    runs = effects(evidence)
    check_effects(findings, evidence, runs)
    check_answers(findings, evidence, runs)
    check_fences(findings, evidence.events)
    findings.add("owners at once", overlaps(evidence.events["owned"]))
    findings.add("ends repeated", [line["key"] for line in evidence.events["repeated"]])
    findings.add("unfinished commits", [line["key"] for line in evidence.events["committed"]])
    findings.add("other requests answered", (
        f"{line['key']}: {line['outcome']}" for line in evidence.events["mistake"]
        if line["outcome"] != "ID422"))
    findings.add("unexpected errors", (
        f"{line['sqlstate']} {line['key']} {line['level']}: {line['message']}"
        for line in evidence.events["unexpected"]))
    findings.add("replays without their effects", blind_replays(evidence, runs))
    for name, wrong in anomalies.find(*transactions(evidence)).items():
        findings.add(name, wrong)


def effects(evidence):
    """Of each operation: its executions, and what each has appended where."""
    runs = defaultdict(lambda: defaultdict(list))
    for name, elements in evidence.lists.items():
        for value in elements:
            number, run, _ = origin(value)
            runs[number][run].append((name, value))
    return runs


def check_effects(findings, evidence, runs):
    """At most once, whole, and exactly where there is a record of that."""
    planned = {number: evidence.plan(number) for number in runs}
    completed = {}
    for key, record in evidence.records.items():
        if record[0] == "COMPLETED":
            completed[number_of(key)] = json.loads(record[1])["run"]
    findings.add("operations twice", (
        planned[number].key for number, found in runs.items() if len(found) > 1))
    findings.add("operations torn", (
        planned[number].key for number, found in runs.items() for run, left in found.items()
        if sorted(left) != sorted(planned[number].appends(run))))
    findings.add("effects without record", (
        planned[number].key for number in runs if number not in completed))
    findings.add("effects of the failed", (
        planned[number].key for number in runs
        if planned[number].declined or planned[number].way == "forgotten"))
    findings.add("records without effect", (
        evidence.plan(number).key for number, run in completed.items()
        if evidence.plan(number).appends(run) and number not in runs))
    findings.add("records of other executions", (
        planned[number].key for number, run in completed.items()
        if number in runs and run not in runs[number]))


def check_answers(findings, evidence, runs):
    """No answer ever changes, byte for byte."""
    answered = defaultdict(set)
    for line in evidence.events["answered"]:
        answered[line["key"]].add((line["outcome"], line["answer"]))
    findings.add("different answers", (key for key, answers in answered.items() if len(answers) > 1))
    findings.add("answers lost", (
        key for key, answers in answered.items()
        if key not in evidence.records
        or (evidence.records[key][0], digest(*evidence.records[key])) not in answers))
    findings.add("acknowledged effects lost", (
        key for key, answers in answered.items()
        if any(outcome == "COMPLETED" for outcome, _ in answers) and number_of(key) not in runs
        and evidence.plan(number_of(key)).appends(0)))
    findings.add("executed twice", (
        key for key, times in Counter(line["key"] for line in evidence.events["done"]).items()
        if times > 1))


def check_fences(findings, events):
    """They only grow, none is given twice, and a stale one is refused."""
    findings.add("fences out of order", fences_out_of_order(events))
    findings.add("fences given twice", fences_given_twice(events))
    findings.add("takeovers not reported", (
        line["key"] for line in events["lease"] if line["attempt"] == 1 and line["taken_over"]))


def blind_replays(evidence, runs):
    """A client that gets an answer about an operation sees, in the same transaction, its effect."""
    for line in evidence.events["reader"]:
        seen = {value for _, elements in line["reads"] for value in elements}
        for left in runs.get(number_of(line["key"]), {}).values():
            missing = [value for _, value in left if value not in seen]
            if missing:
                yield f"{line['key']} {line['level']}: {missing}"


def transactions(evidence):
    """What is to be held against the isolation levels: executions that have a record, and
    those that got an answer about one and looked. And the lists, and which answer was about whom."""
    done = {(line["key"], line["answer"]): line for line in evidence.events["done"]}
    found, numbers, follows = [], {}, []
    for key, record in evidence.records.items():
        if record[0] != "COMPLETED":
            continue
        planned = evidence.plan(number_of(key))
        answer = json.loads(record[1])
        numbers[key] = len(found)
        line = done.get((key, digest(*record)), {})
        found.append(anomalies.Transaction(
            key, planned.level, steps_of(planned, answer), line.get("asked"), line.get("answered")))
    for line in evidence.events["reader"]:
        if line["key"] in numbers:
            follows.append((numbers[line["key"]], len(found)))
        found.append(anomalies.Transaction(
            f"reader of {line['key']}", line["level"],
            [("read", name, elements) for name, elements in line["reads"]], line["asked"]))
    return found, evidence.lists, follows


def steps_of(planned, answer):
    """What an execution did, and saw."""
    appends = iter(planned.appends(answer["run"]))
    reads = iter(answer["reads"])
    return [("append", *next(appends)) if kind == "append" else ("read", name, next(reads))
            for kind, name in planned.steps]


def count_errors(events):
    """How often clients got which SQLSTATE."""
    return Counter(line["sqlstate"] for line in events["error"])


def check_drained(findings, connection, events, processes):
    """On the server, when all clients have gone."""
    findings.add("locks left", locks_left(connection))
    findings.add("clients stuck", clients_stuck(events, processes))
    findings.add("leases left", (key for (key,) in connection.execute(
        "SELECT idempotency_key FROM idempotency_store WHERE status = 'PENDING'").fetchall()))
    findings.add("prepared transactions left", (
        name for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()))
