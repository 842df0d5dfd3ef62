"""What is delivered to whom, and which fault comes when: decided by the seed.

The same seed always gives the same operations and the same order
of faults. Only the interleaving is left to the operating system.
"""

import hashlib
import random
from dataclasses import dataclass

CLIENTS = 8
ACCOUNTS = 40
BALANCE = 1_000_000

# How often which kind of operation is met.
WAYS = {"bound": 40, "leased": 25, "called": 20, "batched": 15}

# The faults that the controller knows, and how often each is in one deck. Those
# that take the server away for seconds come once.
DECK = {
    "cancel": 3,
    "terminate": 3,
    "cut": 4,
    "pause": 3,
    "kill backend": 1,
    "stop fast": 1,
    "stop immediate": 1,
    "kill postmaster": 1,
    "promote": 1,
    "clock forward": 1,
    "clock backward": 1,
    "disk full": 1,
    "locks": 1,
    "connections": 1,
    "trigger": 2,
    "partition": 4,
}


@dataclass(frozen=True)
class Operation:
    """One operation and its deliveries: copies has the client of each."""

    number: int
    way: str
    copies: tuple
    keys: tuple
    source: int
    target: int
    amount: int
    declined: bool
    recycled: bool
    forgotten: bool
    isolation: str
    thinks: tuple

    def request(self, key):
        """What the client asks for, the same in every delivery."""
        return {"key": key, "source": self.source, "target": self.target,
                "amount": self.amount, "declined": self.declined}


def operation(seed, number):
    rng = random.Random(f"{seed}/operation/{number}")
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    deliveries = rng.choices((1, 2, 3, 4), (2, 4, 2, 2))[0]
    size = rng.randint(2, 6) if way == "batched" else 1
    source, target = rng.sample(range(ACCOUNTS), 2)
    return Operation(
        number=number,
        way=way,
        copies=tuple(rng.randrange(CLIENTS) for _ in range(deliveries)),
        keys=tuple(f"{way}-{number}" + (f"-{i}" if size > 1 else "") for i in range(size)),
        source=source,
        target=target,
        amount=rng.randint(1, 500),
        declined=way != "batched" and rng.random() < 0.06,
        recycled=way in ("bound", "called") and rng.random() < 0.4,
        forgotten=way == "bound" and rng.random() < 0.05,
        isolation="REPEATABLE READ" if rng.random() < 0.15 else "READ COMMITTED",
        thinks=tuple(rng.choice((0, 0, 0.001, 0.004, 0.012)) for _ in range(3)),
    )


def faults(seed, wanted):
    """Pauses and names of faults, deck after deck, without end."""
    rng = random.Random(f"{seed}/faults")
    while True:
        deck = [name for name, times in DECK.items() if name in wanted for _ in range(times)]
        rng.shuffle(deck)
        for name in deck:
            yield rng.uniform(0.1, 1.0), name


def fingerprint(seed, wanted):
    """Tells whether two runs had the same schedule."""
    digest = hashlib.sha256()
    for number in range(2000):
        digest.update(repr(operation(seed, number)).encode())
    for step, _ in zip(faults(seed, wanted), range(500)):
        digest.update(repr(step).encode())
    return digest.hexdigest()[:12]
