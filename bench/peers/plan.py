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
    redis: bool = False
    server: int = 0         # the version of PostgreSQL that its SQL needs


@dataclass(frozen=True)
class Workload:
    name: str
    kind: str               # of driver/run.mjs
    peers: tuple
    clients: int = 8
    gateway: int = 0        # milliseconds outside the database
    count: int = 500        # operations of a run that is counted, not timed


PEERS = (
    Peer('bare', '1 bare transaction'),
    Peer('bare-call', '1 bare function, one call'),
    Peer('insert', '1 … and a plain INSERT of the record'),
    Peer('select-insert', '1 … and a SELECT by key before'),
    Peer('select', '1 SELECT by key alone'),
    Peer('plpgsql', '2 PL/pgSQL: ON CONFLICT, UPDATE'),
    Peer('plpgsql-catch', '2 … that stores failures'),
    Peer('client-rc', '3 SELECT FOR UPDATE, INSERT, UPDATE'),
    Peer('do-select', '3 INSERT ON CONFLICT DO SELECT, UPDATE', server=19),
    Peer('redis-lock', '4 Redis lock around 3', redis=True),
    Peer('redis-barrier', '4 Redis Lua barrier before 1', redis=True),
    Peer('redis-state', '4 Redis state record, two locks', redis=True),
    Peer('ext-call', 'idem_call'),
    Peer('ext-call-raise', 'idem_call, failures raised'),
    Peer('ext-txn', 'idem_begin, idem_complete'),
    Peer('ext-lease', 'idem_begin with a lease'),
)

EXTENSION = ('ext-call', 'ext-call-raise', 'ext-txn', 'ext-lease')
WRITERS = tuple(p.name for p in PEERS if p.name != 'select')
PROTECTED = tuple(name for name in WRITERS if name not in ('bare', 'bare-call'))
LEASED = ('client-rc', 'redis-lock', 'redis-barrier', 'redis-state', 'ext-lease')

WORKLOADS = (
    Workload('fresh', 'fresh', WRITERS),
    Workload('replay', 'replay', ('select', *PROTECTED)),
    Workload('gateway 20 ms', 'fresh', LEASED, clients=64, gateway=20, count=50),
)

COMPARISONS = (
    Comparison('idem_call / Redis lock around SELECT FOR UPDATE, INSERT, UPDATE', 'fresh', 'ext-call', 'redis-lock', 2.5),
    Comparison('idem_call / Redis Lua barrier', 'fresh', 'ext-call', 'redis-barrier', 1.5),
    Comparison('leased begin, complete / Redis state record', 'fresh', 'ext-lease', 'redis-state', 1.3),
    Comparison('… with a gateway call of 20 ms, 64 clients', 'gateway 20 ms', 'ext-lease', 'redis-state', 1.3),
    Comparison('idem_call, failures raised / PL/pgSQL', 'fresh', 'ext-call-raise', 'plpgsql'),
    Comparison('idem_call, failures raised / bare function', 'fresh', 'ext-call-raise', 'bare-call'),
    Comparison('idem_call / PL/pgSQL that stores failures', 'fresh', 'ext-call', 'plpgsql-catch'),
    Comparison('begin, complete / SELECT FOR UPDATE, INSERT, UPDATE', 'fresh', 'ext-txn', 'client-rc'),
    Comparison('begin, complete / INSERT ON CONFLICT DO SELECT, UPDATE', 'fresh', 'ext-txn', 'do-select'),
    Comparison('begin, complete / SELECT by key, plain INSERT', 'fresh', 'ext-txn', 'select-insert'),
    Comparison('replay by idem_call / SELECT by key', 'replay', 'ext-call', 'select'),
    Comparison('replay by idem_begin / INSERT ON CONFLICT DO SELECT', 'replay', 'ext-txn', 'do-select'),
)
# A client in Node spends more than the server: its throughput hides what the
# server saves, the server's own time does not.
COMPARISONS += tuple(
    Comparison(f'{c.title}, server time', c.workload, c.of, c.to, measure='cpu')
    for c in COMPARISONS if c.workload in ('fresh', 'replay'))

# In two minutes there is only time for comparisons with a target, and for the first workload.
QUICK_PEERS = ('redis-lock', 'redis-barrier', 'redis-state', 'ext-call', 'ext-lease')
