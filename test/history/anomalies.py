"""Holds transactions over lists against what their isolation levels promise.

In the manner of Elle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from
Experimental Observations", VLDB 2020): every element is appended once, so the final lists
say in which order their versions came, and a read says which version it saw. From that
follow the dependencies: ww (wrote the next version), wr (read that version) and rw (read
the version before). Which cycles of them may not be:

* ww alone (G0), ww and wr (G1c): at no level.
* with one rw (G-single): where the transaction that read had a snapshot, so not at READ
  COMMITTED. With two of them (write skew) REPEATABLE READ, which is snapshot isolation,
  lets it be.
* any at all (G2), among transactions that are all SERIALIZABLE.

PostgreSQL makes all that true of every single level, whatever the others do at theirs:
ww and wr go in the order of commits, and from a snapshot rw goes to what came after it.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import networkx
from plan import READ_COMMITTED, SERIALIZABLE


@dataclass
class Transaction:
    """A committed one. Steps are ("append", list, element) or ("read", list, elements).
    It was asked for and answered at these times, as far as anybody knows."""

    name: str
    level: str
    steps: list
    asked: float = None
    answered: float = None


@dataclass
class Graph:
    """Transactions by number, and their dependencies."""

    transactions: list
    ww: dict = field(default_factory=lambda: defaultdict(set))
    wr: dict = field(default_factory=lambda: defaultdict(set))
    rw: dict = field(default_factory=lambda: defaultdict(set))

    def add(self, kind, before, after):
        """A dependency; on itself nothing depends."""
        if before is not None and after is not None and before != after:
            getattr(self, kind)[before].add(after)

    def edges(self, *kinds):
        """The dependencies of these kinds, of all transactions."""
        made = networkx.DiGraph((before, after) for kind in kinds
                                for before, others in getattr(self, kind).items() for after in others)
        made.add_nodes_from(range(len(self.transactions)))
        return made

    def name_edge(self, before, after):
        for kind in ("ww", "wr", "rw"):
            if after in getattr(self, kind).get(before, ()):
                return f"-{kind}-> {self.transactions[after].name}"
        return "?"


def find(transactions, final, follows=()):
    """All that is wrong, by the name of the anomaly. "follows" has pairs of transactions
    (numbers) of which the second got an answer about the first."""
    wrong = {name: [] for name in (
        "appended twice", "G1a aborted read", "G1b intermediate read", "incompatible order",
        "internal inconsistency", "stale read", "G0 write cycle", "G1c cyclic information flow",
        "G-single read skew", "G2 anti-dependency cycle")}
    writers = {value: number for number, transaction in enumerate(transactions)
               for kind, _, value in transaction.steps if kind == "append"}
    check_lists(wrong, final)
    graph = Graph(transactions)
    link_writers(graph, writers, final)
    for before, after in follows:
        graph.add("wr", before, after)
    for number in range(len(transactions)):
        read_of(wrong, graph, number, writers, final)
    check_order_of_time(wrong, transactions, writers, final)
    check_cycles(wrong, graph)
    return wrong


def check_lists(wrong, final):
    """An element is in its list once."""
    seen = set()
    for name, elements in final.items():
        for value in elements:
            if value in seen:
                wrong["appended twice"].append(f"{value} in list {name}")
            seen.add(value)


def link_writers(graph, writers, final):
    """Each version of a list comes from the one before."""
    for elements in final.values():
        for before, after in zip(elements, elements[1:]):
            graph.add("ww", writers.get(before), writers.get(after))


def read_of(wrong, graph, number, writers, final):
    """The reads of a transaction: possible at all, and what they depend on."""
    transaction = graph.transactions[number]
    own = defaultdict(list)
    for kind, name, what in transaction.steps:
        if kind == "append":
            own[name].append(what)
            continue
        elements = final.get(name, [])
        if list(what) != elements[:len(what)]:
            missing = [value for value in what if value not in elements]
            wrong["G1a aborted read" if missing else "incompatible order"].append(
                f"{transaction.name} read {missing or what} of list {name}")
            continue
        if own[name] != [value for value in what if writers.get(value) == number]:
            wrong["internal inconsistency"].append(
                f"{transaction.name} read of list {name} what it has not written before")
            continue
        note_dependencies(wrong, graph, number, writers, elements, len(what), name)


def note_dependencies(wrong, graph, number, writers, elements, length, name):
    """One read, of the first elements of a list."""
    last = next((writers.get(value) for value in reversed(elements[:length])
                 if writers.get(value) != number), None)
    following = writers.get(elements[length]) if length < len(elements) else None
    graph.add("wr", last, number)
    graph.add("rw", number, following)
    if length and following is not None and following != number and \
            following == writers.get(elements[length - 1]):
        wrong["G1b intermediate read"].append(
            f"{graph.transactions[number].name} read list {name} amid "
            f"{graph.transactions[following].name}")


def check_order_of_time(wrong, transactions, writers, final):
    """Who asks after an append was acknowledged has to see it."""
    acknowledged = {}
    for name, elements in final.items():
        known, longest = [], 0
        for position, value in enumerate(elements):
            answered = transactions[writers[value]].answered if value in writers else None
            if answered is not None:
                known.append((answered, position + 1))
        known.sort()
        times, lengths = [], []
        for answered, length in known:
            longest = max(longest, length)
            times.append(answered)
            lengths.append(longest)
        acknowledged[name] = (times, lengths)
    for transaction in transactions:
        if transaction.asked is None:
            continue
        for kind, name, what in transaction.steps:
            times, lengths = acknowledged.get(name, ((), ()))
            at = bisect_right(times, transaction.asked)
            if kind == "read" and at and len(what) < lengths[at - 1]:
                wrong["stale read"].append(
                    f"{transaction.name} read {len(what)} of list {name}, {lengths[at - 1]} were acknowledged")


# ---- cycles ----

def check_cycles(wrong, graph):
    """From the worst to those that only some levels forbid."""
    wrong["G0 write cycle"] += cycles(graph, graph.edges("ww"))
    flow, dependencies = graph.edges("ww", "wr"), graph.edges("ww", "wr", "rw")
    cyclic = cycles(graph, flow)
    wrong["G1c cyclic information flow"] += [text for text in cyclic if "-wr->" in text]
    if not cyclic:
        check_single(wrong, graph, flow, dependencies)
    strict = dependencies.subgraph(
        number for number, transaction in enumerate(graph.transactions) if transaction.level == SERIALIZABLE)
    wrong["G2 anti-dependency cycle"] += cycles(graph, strict)


def check_single(wrong, graph, flow, dependencies):
    """What has no cycle of ww and wr has an order: from its end on, what each reaches."""
    # small numbers: each node's, among those that it has to do with at all
    bits = {node: bit for part in networkx.weakly_connected_components(dependencies) for bit, node in enumerate(part)}
    reach = {}
    for node in reversed(list(networkx.topological_sort(flow))):
        reached = 0
        for other in flow.successors(node):
            reached |= reach[other] | (1 << bits[other])
        reach[node] = reached
    for reader, others in graph.rw.items():
        if graph.transactions[reader].level == READ_COMMITTED:
            continue
        for other in others:
            if reach[other] >> bits[reader] & 1:
                path = networkx.shortest_path(flow, other, reader)
                wrong["G-single read skew"].append(in_words(graph, [reader, *path]))


def cycles(graph, edges):
    """A short one in words, of each component that has one."""
    found = []
    for group in networkx.strongly_connected_components(edges):
        if len(group) > 1:
            start, inside = min(group), edges.subgraph(group)
            ways = (networkx.shortest_path(inside, other, start) for other in inside.successors(start))
            found.append(in_words(graph, [start, *min(ways, key=len)]))
    return found


def in_words(graph, nodes):
    edges = [graph.name_edge(before, after) for before, after in zip(nodes, nodes[1:])]
    return " ".join([graph.transactions[nodes[0]].name, *edges])
