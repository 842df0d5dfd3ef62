#!/usr/bin/python3
"""Each check of a run can fail: made-up evidence, in which one thing is wrong.

Prints a line for each and ends with "N passed, N failed".
"""

from collections import defaultdict

import checks
from findings import spoil
from verdict import Verdict

ANSWER = ("COMPLETED", '{"receipt": "r"}', "00", 201)


def sound():
    """Two operations, the second one leased and taken over once."""
    events = defaultdict(list)
    for key in ("a", "b"):
        for _ in range(2):
            events["answered"].append(dict(zip(("key", "outcome", "payload", "body", "code"), (key, *ANSWER))))
    events["owned"] += [{"key": "a", "since": 1, "until": 2}, {"key": "a", "since": 3, "until": 4}]
    events["lease"] += [
        {"key": "b", "fence": 1, "asked": 1, "answered": 2, "attempt": 1, "taken_over": False},
        {"key": "b", "fence": 2, "asked": 3, "answered": 4, "attempt": 2, "taken_over": True}]
    events["ended"].append({"key": "b", "fence": 2, "asked": 5})
    return checks.Evidence(
        events=events,
        charges=[{"event": "charged", "key": "b"}, {"event": "refused", "key": "b"}],
        effects=[("a", 0, 1, 5, "r"), ("b", 1, 0, 7, "r")],
        records={"a": (*ANSWER, None), "b": (*ANSWER, 2)},
        balances={0: 102, 1: 98})


def twice(evidence):
    """An effect twice; what it moved is right."""
    evidence.effects.append(evidence.effects[0])
    evidence.balances.update({0: 97, 1: 103})


def lost(evidence):
    """An effect that was acknowledged, and its record, are gone."""
    evidence.effects.pop(0)
    evidence.records.pop("a")
    evidence.balances.update({0: 107, 1: 93})


def failed(evidence):
    """A client got a failure, and there is an effect."""
    evidence.events["answered"] = [{**line, "outcome": "FAILED"} for line in evidence.events["answered"]]


def stale(evidence):
    """The old owner ended it, and asked after the new one had its answer."""
    evidence.events["ended"].append({"key": "b", "fence": 1, "asked": 5})


def backwards(evidence):
    """A smaller fence was given later."""
    evidence.events["lease"].append(
        {"key": "b", "fence": 0, "asked": 6, "answered": 7, "attempt": 3, "taken_over": True})


WRONG = {
    "I1 effects twice": (twice,),
    "I1 charged twice": (lambda e: e.charges.append({"event": "charged", "key": "b"}),),
    "I1 owners at once": (lambda e: e.events["owned"].append({"key": "a", "since": 1.5, "until": 9}),),
    "I2 effects lost": (lost,),
    "I2 effects of the failed": (failed,),
    "I2 different answers": (lambda e: e.events["answered"][0].update(body="01"),),
    "I2 answers lost": (lambda e: e.records.pop("a"), lambda e: e.records.update(a=("FAILED", *ANSWER[1:], None))),
    "I2 answers of other effects": (lambda e: e.effects.__setitem__(0, ("a", 0, 1, 5, "other")),),
    "I3 record without effect": (lambda e: e.records.update(c=(*ANSWER, None)),),
    "I3 effect without record": (lambda e: e.records.pop("a"),),
    "I3 balances": (lambda e: e.balances.update({0: 101}),),
    "I4 fences out of order": (stale, backwards),
    "I4 fences given twice": (lambda e: e.events["lease"][0].update(fence=2),),
    "I4 takeovers not reported": (lambda e: e.events["lease"][1].update(taken_over=False),),
    "unexpected errors": (
        lambda e: e.events["unexpected"].append({"sqlstate": "XX000", "message": ""}),
        lambda e: e.events["error"].append(
            {"sqlstate": "40001", "isolation": "READ COMMITTED", "way": "bound", "message": ""})),
}


def check(findings, evidence):
    checks.check(findings, evidence, 100)


def main():
    """The sound evidence, and every way to be wrong."""
    with Verdict() as verdict:
        failed, names = spoil(sound(), lambda evidence: None, check)
        for name in names:
            seen = [name in spoil(sound(), wrong, check)[0] for wrong in WRONG.get(name, ())]
            verdict.check(name not in failed and seen and all(seen), name)


if __name__ == "__main__":
    main()
