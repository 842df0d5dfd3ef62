#!/usr/bin/python3
"""Each check of a run can fail: hand-made histories, in which one thing is wrong.

The first ones are transactions over lists, one history for each anomaly that has a name,
and what looks like one and is allowed. The others are the ledger, lists and records of two
operations. Prints a line for each and ends with "N passed, N failed".
"""

from collections import defaultdict

import anomalies
import checks
from findings import spoil
from plan import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE, Operation, element
from verdict import Verdict

# ---- transactions over lists: steps are "a1" (append 1 to list x) or "r12" (read 1 and 2)


def transaction(name, level, *steps, asked=None, answered=None):
    """A step begins with the name of its list."""
    made = []
    for step in steps:
        name_of_list, kind, values = step[0], step[1], step[2:]
        made.append(("append", name_of_list, int(values)) if kind == "a" else
                    ("read", name_of_list, [int(value) for value in values]))
    return anomalies.Transaction(name, level, made, asked, answered)


def history(level, *transactions, follows=(), **lists):
    """The anomalies of a history, whose transactions are all of that level."""
    found = anomalies.find(
        [transaction(str(number), level, *steps) if isinstance(steps, tuple) else steps
         for number, steps in enumerate(transactions)],
        {name: [int(value) for value in values] for name, values in lists.items()}, follows)
    return {name.split()[0] if name[0] == "G" else name for name, wrong in found.items() if wrong}


ANY = (READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE)

# Name, levels, transactions, lists, what is found. "?": where there is a snapshot.
HISTORIES = (
    ("one after the other", ANY, (("xa1", "yr"), ("xr1", "xa2"), ("xr12", "ya3", "yr3")), {"x": "12", "y": "3"}, set()),
    ("an element twice", ANY, (("xa1",),), {"x": "11"}, {"appended twice"}),
    ("a write that was rolled back is read", ANY, (("xr9",), ("xa1",)), {"x": "1"}, {"G1a"}),
    ("a write is read that another one of its transaction follows", ANY,
     (("xa1", "xa2"), ("xr1",)), {"x": "12"}, {"G1b", "G-single?"}),
    ("a list in two orders", ANY, (("xa1",), ("xa2",), ("xr21",)), {"x": "12"}, {"incompatible order"}),
    ("an element got lost after it was read", ANY, (("xa1",), ("xa2",), ("xr13",), ("xa3",)), {"x": "12"}, {"G1a"}),
    ("own write not seen", ANY, (("xa1", "xr"),), {"x": "1"}, {"internal inconsistency"}),
    ("own write seen before it is made", ANY, (("xr1", "xa1"),), {"x": "1"}, {"internal inconsistency"}),
    ("writes of two lists in two orders", ANY, (("xa1", "ya4"), ("xa2", "ya3")), {"x": "12", "y": "34"}, {"G0"}),
    ("each reads what the other writes", ANY, (("xa1", "yr2"), ("ya2", "xr1")), {"x": "1", "y": "2"}, {"G1c"}),
    ("a list before, another one after", (REPEATABLE_READ,), (("xr", "yr2"), ("xa1", "ya2")), {"x": "1", "y": "2"}, {"G-single"}),
    ("the same, where every statement looks anew", (READ_COMMITTED,), (("xr", "yr2"), ("xa1", "ya2")), {"x": "1", "y": "2"}, set()),
    ("the same, serializable", (SERIALIZABLE,), (("xr", "yr2"), ("xa1", "ya2")), {"x": "1", "y": "2"}, {"G-single", "G2"}),
    ("a lost update", (REPEATABLE_READ,), (("xr", "xa2"), ("xr", "xa1")), {"x": "12"}, {"G-single"}),
    ("write skew", (READ_COMMITTED, REPEATABLE_READ), (("xr", "ya2"), ("yr", "xa1")), {"x": "1", "y": "2"}, set()),
    ("write skew, serializable", (SERIALIZABLE,), (("xr", "ya2"), ("yr", "xa1")), {"x": "1", "y": "2"}, {"G2"}),
    ("a long way round", (REPEATABLE_READ,), (("xr", "zr3"), ("xa1", "ya2"), ("yr2", "za3")),
     {"x": "1", "y": "2", "z": "3"}, {"G-single"}),
)


def check_histories():
    """Each of the histories, at each of its levels."""
    for name, levels, transactions, lists, wanted in HISTORIES:
        for level in levels:
            found = history(level, *transactions, **lists)
            possible = {what.rstrip("?") for what in wanted}
            needed = {what for what in wanted if not what.endswith("?")}
            yield f"{name} ({level.lower()})", needed <= found <= possible | ({"G2"} if level == SERIALIZABLE else set())
    stale = history(None, transaction("writer", READ_COMMITTED, "xa1", asked=1, answered=2),
                    transaction("reader", READ_COMMITTED, "xr", asked=3), x="1")
    yield "who asks after the acknowledgement does not see it", stale == {"stale read"}
    early = history(None, transaction("writer", READ_COMMITTED, "xa1", asked=1, answered=4),
                    transaction("reader", READ_COMMITTED, "xr", asked=3), x="1")
    yield "who asks before it need not", early == set()
    follows = history(REPEATABLE_READ, ("xa1",), ("xr",), x="1", follows=[(0, 1)])
    yield "an answer about an operation whose effect is not seen", follows == {"G-single"}
    mixed = history(None, transaction("0", READ_COMMITTED, "xr", "yr2"), transaction("1", SERIALIZABLE, "xa1", "ya2"),
                    x="1", y="2")
    yield "only who read at read committed is torn", mixed == set()


# ---- operations

FIRST = Operation(1, "bound", REPEATABLE_READ, (("append", 0), ("read", 1), ("append", 1)), (0, 1), False, False, False, (0, 0, 0))
SECOND = Operation(2, "leased", READ_COMMITTED, (("read", 0), ("append", 0)), (0, 1), False, False, False, (0, 0, 0))
THIRD = Operation(3, "forgotten", READ_COMMITTED, (("append", 0),), (0,), False, False, False, (0, 0, 0))
FOURTH = Operation(4, "called", SERIALIZABLE, (("append", 0),), (0, 1), True, False, False, (0, 0, 0))
PLAN = {operation.number: operation for operation in (FIRST, SECOND, THIRD, FOURTH)}
ELEMENTS = [element(1, 7, 0), element(2, 8, 1)]


def sound():
    """Four operations: the second is leased and was taken over once, the third refused,
    the fourth failed."""
    lists = {0: list(ELEMENTS), 1: [element(1, 7, 2)]}
    records = {"bound-1": ("COMPLETED", '{"run": 7, "reads": [[]]}', "00", 201),
               "leased-2": ("COMPLETED", f'{{"run": 8, "reads": [[{ELEMENTS[0]}]]}}', "01", 201),
               "called-4": ("FAILED", '{"message": "declined"}', None, None)}
    events = defaultdict(list)
    for key, record in records.items():
        for _ in range(2):
            events["answered"].append({"key": key, "outcome": record[0], "answer": checks.digest(*record)})
        events["done"].append({"key": key, "answer": checks.digest(*record), "asked": 1, "answered": 9})
    events["owned"] += [{"key": "bound-1", "since": 1, "until": 2}, {"key": "bound-1", "since": 3, "until": 4}]
    events["lease"] += [
        {"key": "leased-2", "fence": 1, "asked": 1, "answered": 2, "attempt": 1, "taken_over": False},
        {"key": "leased-2", "fence": 2, "asked": 3, "answered": 4, "attempt": 2, "taken_over": True}]
    events["ended"].append({"key": "leased-2", "fence": 2, "asked": 5})
    events["refused"].append({"key": "forgotten-3"})
    events["mistake"].append({"key": "bound-1", "outcome": "ID422"})
    events["reader"].append({"key": "bound-1", "client": 1, "level": REPEATABLE_READ, "asked": 10,
                             "reads": [[0, list(ELEMENTS)], [1, [element(1, 7, 2)]]]})
    return checks.Evidence(events=events, lists=lists, records=records, plan=PLAN.get)


def twice(evidence):
    """Another execution of the first, whole."""
    for name in (0, 1):
        evidence.lists[name].append(element(1, 9, 2 * name))


def lost(evidence):
    """An effect that was acknowledged, and its record, are gone."""
    evidence.lists[1].clear()
    evidence.lists[0].remove(ELEMENTS[0])
    evidence.records.pop("bound-1")


def without_effect(evidence):
    """Only the effect is gone."""
    evidence.lists[0].remove(ELEMENTS[1])


def blind(evidence):
    """Told of it, and one of its appends is not there."""
    evidence.events["reader"][0]["reads"][1][1].clear()


WRONG = {
    "operations twice": (twice,),
    "operations torn": (lambda e: e.lists[1].clear(), lambda e: e.lists[0].append(ELEMENTS[0])),
    "effects without record": (lambda e: e.records.pop("bound-1"),),
    "effects of the failed": (
        lambda e: e.lists[0].append(element(4, 1, 0)), lambda e: e.lists[0].append(element(3, 1, 0))),
    "records without effect": (without_effect,),
    "records of other executions": (
        lambda e: e.records.update({"bound-1": ("COMPLETED", '{"run": 6, "reads": [[]]}', "00", 201)}),),
    "different answers": (lambda e: e.events["answered"][0].update(answer="other"),),
    "answers lost": (lambda e: e.records.pop("called-4"),
                     lambda e: e.records.update({"called-4": ("FAILED", "{}", None, None)})),
    "acknowledged effects lost": (lost,),
    "executed twice": (lambda e: e.events["done"].append(e.events["done"][0]),),
    "fences out of order": (
        lambda e: e.events["ended"].append({"key": "leased-2", "fence": 1, "asked": 5}),
        lambda e: e.events["lease"].append(
            {"key": "leased-2", "fence": 0, "asked": 6, "answered": 7, "attempt": 3, "taken_over": True})),
    "fences given twice": (lambda e: e.events["lease"][0].update(fence=2),),
    "takeovers not reported": (lambda e: e.events["lease"][0].update(taken_over=True),),
    "owners at once": (lambda e: e.events["owned"][0].update(until=3.5),),
    "ends repeated": (lambda e: e.events["repeated"].append({"key": "leased-2"}),),
    "unfinished commits": (lambda e: e.events["committed"].append({"key": "forgotten-3"}),),
    "other requests answered": (lambda e: e.events["mistake"][0].update(outcome="COMPLETED"),),
    "unexpected errors": (lambda e: e.events["unexpected"].append(
        {"sqlstate": "40001", "key": "bound-1", "level": READ_COMMITTED, "message": ""}),),
    "replays without their effects": (blind,),
}


def check_operations():
    """The sound evidence, and every way to be wrong."""
    failed, names = spoil(sound(), lambda evidence: None, checks.check)
    yield f"sound evidence {failed or ''}", not failed
    graphs = set(anomalies.find([], {}))
    for name in names:
        if name not in graphs:
            seen = [name in spoil(sound(), wrong, checks.check)[0] for wrong in WRONG.get(name, ())]
            yield name, seen and all(seen)


def main():
    with Verdict() as verdict:
        for name, good in (*check_histories(), *check_operations()):
            verdict.check(good, name)


if __name__ == "__main__":
    main()
