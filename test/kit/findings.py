"""What a run of many clients is held against, where several harnesses do the same.

Nothing here trusts the order of lines of different clients: a client may have been
stopped between an answer and its line. Two things count as out of order only where one
was asked for after the other had been answered.
"""

import os
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

LOCKS_LEFT = """SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid BETWEEN 7648 AND 7650"""


def locks_left(connection):
    """When all clients have gone. The collector's lock comes and goes, so a lock that
    is gone within five seconds is none."""
    for _ in range(50):
        left, = connection.execute(LOCKS_LEFT).fetchone()
        if not left:
            return []
        time.sleep(0.1)
    return [left]


@dataclass
class Findings:
    """Examples of what is wrong, by check; a check without any has passed."""

    checks: dict = field(default_factory=dict)

    def add(self, name, wrong):
        """One check: its name, and what contradicts it."""
        self.checks[name] = list(wrong)

    def failed(self):
        return [name for name, wrong in self.checks.items() if wrong]

    def report(self):
        """All of them, with some of the examples."""
        for name, wrong in self.checks.items():
            print(f"{name + ':':<36} {len(wrong)}")
            for example in wrong[:5]:
                print(f"    {example}")


def by_event(ledger):
    events = defaultdict(list)
    for line in ledger:
        events[line["event"]].append(line)
    return events


def overlaps(owned):
    """Keys that two sessions were in possession of at one time."""
    stretches = defaultdict(list)
    for line in owned:
        stretches[line["key"]].append((line["since"], line["until"]))
    for key, times in stretches.items():
        times.sort()
        if any(later[0] < earlier[1] for earlier, later in zip(times, times[1:])):
            yield key


def fences_out_of_order(events):
    """Fences that were given, or accepted, after a client had got a greater one of that key."""
    leases = defaultdict(list)
    for line in events["lease"]:
        leases[line["key"]].append((line["answered"], line["fence"]))
    for event in ("lease", "ended"):
        for line in events[event]:
            if any(answered < line["asked"] and fence > line["fence"]
                   for answered, fence in leases[line["key"]]):
                yield f"{line['key']}: {event} {line['fence']}"


def fences_given_twice(events):
    """Fences that two attempts got."""
    return (fence for fence, times in Counter(line["fence"] for line in events["lease"]).items()
            if times > 1)


def clients_stuck(events, clients):
    """Operations that did not come to an end, and clients that did not end by themselves."""
    return [f"{line['way']}-{line['number']}" for line in events["stuck"]] + [
        f"client {index} ended with {client.exitcode}" for index, client in enumerate(clients) if client.exitcode != 0]


def weigh(guard, violations, failed, passed):
    """How many passed and failed. Without a guard a run is as it should be if one of the guard's
    checks has failed."""
    if not guard:
        return passed, len(failed)
    seen = any(name in failed for name in violations[guard])
    print(f"what comes of \"{guard}\" was " + ("noticed" if seen else "NOT noticed"))
    return int(seen), int(not seen)


def spoil(evidence, wrong, check):
    """The names of the checks that find something in evidence with one thing wrong, and of all checks."""
    findings = Findings()
    wrong(evidence)
    check(findings, evidence)
    return findings.failed(), list(findings.checks)


def keep_evidence(name, seed, files):
    """After a failure these files stay."""
    kept = tempfile.mkdtemp(prefix=f"idempotency-{name}.", dir="/tmp")
    for path in files:
        if os.path.exists(path):
            with open(path, "rb") as file, open(os.path.join(kept, os.path.basename(path)), "wb") as copy:
                copy.write(file.read())
    os.chmod(kept, 0o755)
    print(f"seed {seed}, logs: {kept}")
