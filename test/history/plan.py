"""What the clients do: decided by the seed.

The same seed always gives the same operations. Each belongs to a block, whose operations
share a few lists, so that lists stay short and meet often. Blocks of one isolation level
alternate with blocks of all of them: a level promises most where everybody keeps to it.
"""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

READ_COMMITTED = "READ COMMITTED"
REPEATABLE_READ = "REPEATABLE READ"
SERIALIZABLE = "SERIALIZABLE"
LEVELS = (READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE)

# How often which kind of operation is met. "prepared" is transaction-bound, and ends by
# two-phase commit; "forgotten" has an effect and no end, and must be refused.
WAYS = {"bound": 35, "called": 27, "leased": 28, "prepared": 5, "forgotten": 5}

BLOCK = 120         # operations
LISTS = 6           # of a block
CLIENTS = 8
STEPS_BITS = 3      # of an element: which step of its operation
RUN_BITS = 24       # of an element: which execution


@dataclass(frozen=True)
class Operation:
    """One operation and its deliveries: copies has the client of each. A step is
    ("append", list) or ("read", list)."""

    number: int
    way: str
    level: str
    steps: tuple
    copies: tuple
    declined: bool
    recycled: bool
    shadowed: bool
    thinks: tuple

    @property
    def key(self):
        return f"{self.way}-{self.number}"

    def request(self):
        """What the client asks for, the same in every delivery."""
        return {"number": self.number, "steps": self.steps, "declined": self.declined,
                "pause": self.thinks[1]}

    def appends(self, run):
        """What an execution leaves: the elements, with their lists."""
        return [(name, element(self.number, run, index))
                for index, (kind, name) in enumerate(self.steps) if kind == "append"]


def element(number, run, index):
    """What a step appends. It is unique, and says where it comes from."""
    return ((number << RUN_BITS | run) << STEPS_BITS) | index


def origin(value):
    """The operation, execution and step that an element comes from."""
    run = value >> STEPS_BITS
    return (run >> RUN_BITS, run & ((1 << RUN_BITS) - 1), value & ((1 << STEPS_BITS) - 1))


def number_of(key):
    """The operation that a key belongs to."""
    return int(key.rsplit("-", 1)[1])


def level_of_block(seed, block):
    """The isolation level of its operations, or None for all of them."""
    rng = random.Random(f"{seed}/block/{block}")
    return rng.choices((*LEVELS, None), (2, 2, 3, 3))[0]


@lru_cache(maxsize=4096)
def operation(seed, number):
    rng = random.Random(f"{seed}/operation/{number}")
    block = number // BLOCK
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    deliveries = 1 if way == "forgotten" else rng.choices((1, 2, 3, 4), (2, 5, 2, 1))[0]
    return Operation(
        number=number,
        way=way,
        level=level_of_block(seed, block) or rng.choice(LEVELS),
        steps=steps(rng, block, way),
        copies=tuple(rng.randrange(CLIENTS) for _ in range(deliveries)),
        declined=way != "forgotten" and rng.random() < 0.05,
        recycled=way in ("bound", "called") and rng.random() < 0.15,
        shadowed=way == "bound" and rng.random() < 0.1,
        thinks=tuple(rng.choice((0, 0, 0, 0.001, 0.003, 0.008)) for _ in range(3)),
    )


def steps(rng, block, way):
    """One to five steps; who forgets its end has an effect, a few others only read."""
    chosen = []
    share = 0 if way != "forgotten" and rng.random() < 0.1 else 0.5
    for _ in range(rng.randint(1, 5)):
        name = block * LISTS + min(rng.randrange(LISTS), rng.randrange(LISTS))
        chosen.append(("append" if rng.random() < share else "read", name))
    if share and all(kind == "read" for kind, _ in chosen):
        chosen[-1] = ("append", chosen[-1][1])
    return tuple(chosen)


def fingerprint(seed):
    """Tells whether two runs had the same operations."""
    digest = hashlib.sha256()
    for number in range(2000):
        digest.update(repr(operation(seed, number)).encode())
    return digest.hexdigest()[:12]
