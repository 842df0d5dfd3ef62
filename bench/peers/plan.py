"""What is compared: the peers, their workloads, and the comparisons to hold.

A peer's code is the .mjs file beside this one that bears its name; README of what
each does: docs/performance.md.
"""

from dataclasses import dataclass

from workloads import Comparison


@dataclass(frozen=True)
class Peer:
    name: str
    title: str


@dataclass(frozen=True)
class Workload:
    name: str
    peers: tuple
    clients: int = 8
    gateway: int = 0        # milliseconds outside the database
    count: int = 500        # operations of a run that is counted, not timed


PEERS = (
    Peer('bare', '1 bare transaction'),
    Peer('client-rc', '2 SELECT FOR UPDATE, INSERT, UPDATE'),
    Peer('redis-lock', '3 Redis lock around 2'),
    Peer('redis-barrier', '3 Redis Lua barrier before 1'),
    Peer('redis-state', '3 Redis state record, two locks'),
    Peer('ext-call', 'idem_call'),
    Peer('ext-txn', 'idem_begin, idem_complete'),
    Peer('ext-lease', 'idem_begin with a lease'),
)

EXTENSION = ('ext-call', 'ext-txn', 'ext-lease')
LEASED = ('client-rc', 'redis-lock', 'redis-barrier', 'redis-state', 'ext-lease')

WORKLOADS = (
    Workload('fresh', tuple(p.name for p in PEERS)),
    Workload('gateway 20 ms', LEASED, clients=64, gateway=20, count=50),
)

COMPARISONS = (
    Comparison('idem_call / Redis lock around SELECT FOR UPDATE, INSERT, UPDATE', 'fresh', 'ext-call', 'redis-lock', 2.5),
    Comparison('idem_call / Redis Lua barrier', 'fresh', 'ext-call', 'redis-barrier', 1.5),
    Comparison('leased begin, complete / Redis state record', 'fresh', 'ext-lease', 'redis-state', 1.3),
    Comparison('… with a gateway call of 20 ms, 64 clients', 'gateway 20 ms', 'ext-lease', 'redis-state', 1.3),
    Comparison('begin, complete / SELECT FOR UPDATE, INSERT, UPDATE', 'fresh', 'ext-txn', 'client-rc'),
)
# A client in Node spends more than the server: its throughput hides what the
# server saves, the server's own time does not.
COMPARISONS += tuple(
    Comparison(f'{c.title}, server time', c.workload, c.of, c.to, measure='cpu')
    for c in COMPARISONS if c.workload == 'fresh')

# In two minutes there is only time for comparisons with a target, and for the first workload.
QUICK_PEERS = ('redis-lock', 'redis-barrier', 'redis-state', 'ext-call', 'ext-lease')
