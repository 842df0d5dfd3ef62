"""The plan of a run: deliveries and faults, decided before anything runs.

The same file always gives the same plan. Only the interleaving of the consumers
is left to the operating system.
"""

import json
import math
import random
from dataclasses import dataclass, field

from messages import Message

SEED = 1        # of the shuffle and of the faults
TAMPERED = 12
KILLS = 12

# Where a consumer dies or falls asleep, once for each chosen message, and how
# many messages are chosen for it. "die" is SIGKILL; "sleep" lasts until another
# consumer has handled the same message, and then the sleeper goes on.
WALLET_FAULTS = {"die before commit": 8, "die after commit": 8}
CARD_FAULTS = {
    "die after charge": 8,
    "sleep before charge": 3,
    "sleep after charge": 3,
    "die after commit": 4,
    "gateway unavailable": 15,
    "gateway answer lost": 15,
}
OUTAGES = ("gateway unavailable", "gateway answer lost")


@dataclass
class Delivery:
    """One delivery of a message; fault is the point at which its consumer fails."""

    message: Message
    tampered: bool = False
    fault: str | None = None

    @property
    def text(self):
        """The message as JSON: the request of idem_begin."""
        return json.dumps(self.message.body)


@dataclass
class Plan:
    """All deliveries in order; faults and outages by message id; and the numbers
    of deliveries after which the broker kills a working consumer."""

    limit: int
    messages: list
    deliveries: list
    faults: dict
    outages: dict
    kills: list = field(default_factory=list)

    def is_accepted(self, message):
        """Whether the payment must take effect; if not it is declined."""
        return message.amount <= self.limit

    def tampered_deliveries(self):
        """How many deliveries have to be refused."""
        return sum(1 for delivery in self.deliveries if delivery.tampered)

    def least_takeovers(self):
        """How many leases must run out: one at each fault under a lease."""
        return sum(1 for fault in self.faults.values() if fault.endswith("charge"))


def make_plan(file):
    """A Plan for this MessageFile. The largest twentieth of the payments is declined."""
    rng = random.Random(SEED)
    limit = percentile([message.amount for message in file.messages], 0.95)
    plan = Plan(limit, file.messages, [], {}, {})
    plan_faults(plan, rng)
    plan_deliveries(plan, file, rng)
    plan_kills(plan, rng)
    return plan


def percentile(numbers, share):
    """The smallest of the numbers that this share of them does not exceed."""
    return sorted(numbers)[math.ceil(share * len(numbers)) - 1]


def plan_faults(plan, rng):
    """At most one fault or outage for a message, and only for accepted ones."""
    for method, wanted in (("wallet", WALLET_FAULTS), ("card", CARD_FAULTS)):
        pool = [m.id for m in plan.messages if m.method == method and plan.is_accepted(m)]
        rng.shuffle(pool)
        for fault, message_id in zip(in_turn(wanted), pool):
            target = plan.outages if fault in OUTAGES else plan.faults
            target[message_id] = fault


def in_turn(wanted):
    """Each fault once, then each again, until its number is reached: a small
    file gets every kind of fault before it gets one twice."""
    for turn in range(max(wanted.values())):
        yield from (fault for fault, count in wanted.items() if turn < count)


def plan_deliveries(plan, file, rng):
    """Every message 3 to 5 times, tampered ones once, all of them shuffled."""
    for message in plan.messages:
        copies = rng.randint(3, 5) + file.more_copies.get(message.id, 0)
        plan.deliveries += [Delivery(message) for _ in range(copies)]
    accepted = [m for m in plan.messages if plan.is_accepted(m)]
    tampered = [tamper(m) for m in rng.sample(accepted, min(TAMPERED, math.ceil(len(accepted) / 10)))]
    plan.deliveries += [Delivery(m, tampered=True) for m in tampered + file.conflicts]
    rng.shuffle(plan.deliveries)
    place_faults(plan)


def tamper(message):
    """The same id with another amount, and still within the limit."""
    amount = message.amount - 1 if message.amount > 1 else 2
    return Message({**message.body, "amount": amount})


def place_faults(plan):
    """The first delivery of a message with a fault carries it."""
    waiting = dict(plan.faults)
    for delivery in plan.deliveries:
        if not delivery.tampered:
            delivery.fault = waiting.pop(delivery.message.id, None)


def plan_kills(plan, rng):
    """Kills at random moments of the run; none in a very short run."""
    total = len(plan.deliveries)
    moments = range(total // 20, total * 9 // 10)
    plan.kills = sorted(rng.sample(moments, min(KILLS, total // 50)))
