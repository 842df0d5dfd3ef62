"""What is measured: workloads, their variants, and the comparisons to hold.

A variant is a pgbench script, scripts/<workload>/<variant>.sql, or that of another
variant (`script`). `writes` says by how much one run of the script moves each
counter; all others must stand still. A variant that is `managed` has the functions
without C, which come first in its search_path. While a variant `with_trigger` runs, the store
has a trigger that never fires, so that all statements on it go through SQL.
"""

from dataclasses import dataclass, field

STORE = 'SELECT count(*) FROM idempotency_store'
HAND_STORE = 'SELECT (SELECT count(*) FROM hand_store) + (SELECT count(*) FROM hand_store_indexed)'
MANAGED_STORE = 'SELECT count(*) FROM managed.idempotency_store'
PAYMENTS = 'SELECT count(*) FROM payments'
MONEY = 'SELECT sum(balance) + (SELECT coalesce(sum(amount), 0) FROM payments) FROM accounts'
STREAM = 'SELECT coalesce(sum(seq), 0) FROM idempotency_stream'
HAND_STREAM = 'SELECT coalesce(sum(seq), 0) FROM hand_stream'
COUNTERS = (STORE, HAND_STORE, MANAGED_STORE, PAYMENTS, MONEY, STREAM, HAND_STREAM)


@dataclass(frozen=True)
class Variant:
    name: str
    writes: dict = field(default_factory=dict)
    operations: int = 1     # in one run of the script
    needs: str = ''         # a feature of the server, without which the variant is left out
    script: str = ''        # the variant whose script it runs; '': its own
    with_trigger: bool = False
    managed: bool = False


@dataclass(frozen=True)
class Workload:
    name: str
    clients: int
    variants: tuple
    read_only: bool = False


@dataclass(frozen=True)
class Comparison:
    title: str
    workload: str
    of: str
    to: str
    at_least: float = None   # None: told, but held to nothing
    measure: str = 'throughput'  # or 'cpu': server time of `to` over that of `of` (peers only)


@dataclass(frozen=True)
class Cost:
    """An exact figure per operation, counted in one session over `floor`."""
    title: str
    workload: str
    of: str
    to: str
    floor: str
    at_most: float
    measure: str


PAID = {PAYMENTS: 1}
PAID_AND_STORED = {PAYMENTS: 1, STORE: 1}
PAID_WITHOUT_C = {PAYMENTS: 1, MANAGED_STORE: 1}
PAID_BY_HAND = {PAYMENTS: 1, HAND_STORE: 1}

WORKLOADS = (
    Workload('txn', 8, (
        Variant('extension', PAID_AND_STORED),
        Variant('plain', PAID_BY_HAND),
        Variant('hand', PAID_BY_HAND),
        Variant('do-select', PAID_BY_HAND, needs='PostgreSQL 19'),
        Variant('extension-hash', PAID_AND_STORED),
        Variant('extension-trigger', PAID_AND_STORED, script='extension', with_trigger=True),
        Variant('managed', PAID_WITHOUT_C, script='extension', managed=True),
        Variant('managed-hash', PAID_WITHOUT_C, script='extension-hash', managed=True),
        Variant('bare', PAID))),
    Workload('replay', 8, (
        Variant('extension'),
        Variant('select'),
        Variant('extension-hash'),
        Variant('managed', script='extension', managed=True),
        Variant('managed-hash', script='extension-hash', managed=True)), read_only=True),
    Workload('call', 8, (
        Variant('extension', PAID_AND_STORED, needs='idem_call'),
        Variant('bare', PAID),
        Variant('extension-raise', PAID_AND_STORED, needs='idem_call'),
        Variant('extension-trigger', PAID_AND_STORED, needs='idem_call', script='extension', with_trigger=True),
        Variant('hand', PAID_BY_HAND),
        Variant('hand-hashing', PAID_BY_HAND),
        Variant('hand-complete', PAID_BY_HAND),
        Variant('insert', PAID_BY_HAND))),
    Workload('batch', 1, (
        Variant('batch', {STORE: 500}, operations=500, needs='idem_begin_batch'),
        Variant('single', {STORE: 1}),
        Variant('upsert', {HAND_STORE: 500}, operations=500))),
    Workload('hot', 64, (
        Variant('one-key'),
        Variant('own-key')), read_only=True),
    Workload('advance', 8, (
        Variant('extension', {STREAM: 1}, needs='idem_advance'),
        Variant('hand', {HAND_STREAM: 1}))),
)

COMPARISONS = (
    Comparison('begin, business, complete / SELECT, business, INSERT', 'txn', 'extension', 'plain', 0.95),
    Comparison('… with a hash that the application brings', 'txn', 'extension-hash', 'plain'),
    Comparison('begin, business, complete / SELECT FOR UPDATE, INSERT, UPDATE', 'txn', 'extension', 'hand', 1.12),
    Comparison('… with a hash that the application brings', 'txn', 'extension-hash', 'hand'),
    Comparison('begin, business, complete / INSERT ON CONFLICT DO SELECT, UPDATE', 'txn', 'extension', 'do-select'),
    Comparison('begin, business, complete / the same with a trigger on the store', 'txn', 'extension', 'extension-trigger'),
    Comparison('begin, business, complete without C / with the extension', 'txn', 'managed', 'extension'),
    Comparison('… with a hash that the application brings', 'txn', 'managed-hash', 'extension-hash'),
    Comparison('begin, business, complete without C / SELECT, business, INSERT', 'txn', 'managed', 'plain'),
    Comparison('replay / SELECT by primary key', 'replay', 'extension', 'select', 0.90),
    Comparison('… with a hash that the application brings', 'replay', 'extension-hash', 'select'),
    Comparison('replay without C / with the extension', 'replay', 'managed', 'extension'),
    Comparison('… with a hash that the application brings', 'replay', 'managed-hash', 'extension-hash'),
    Comparison('idem_call / the bare function', 'call', 'extension', 'bare', 0.68),
    Comparison('idem_call / the same with a trigger on the store', 'call', 'extension', 'extension-trigger'),
    Comparison('idem_call, failures raised / the bare function', 'call', 'extension-raise', 'bare', 0.80),
    Comparison('idem_call, failures raised / INSERT ON CONFLICT, UPDATE', 'call', 'extension-raise', 'hand', 1.10),
    Comparison('… that hashes the request as well', 'call', 'extension-raise', 'hand-hashing'),
    Comparison('… that hashes the request, and has an index for its clean-up', 'call', 'extension-raise', 'hand-complete', 1.10),
    Comparison('nothing but the function and a plain INSERT / INSERT ON CONFLICT, UPDATE', 'call', 'insert', 'hand'),
    Comparison('batch of 500 / 500 single transactions', 'batch', 'batch', 'single', 8.0),
    Comparison('batch of 500 / one INSERT ON CONFLICT', 'batch', 'batch', 'upsert', 0.50),
    Comparison('64 clients on one hot key / on keys of their own', 'hot', 'one-key', 'own-key', 0.85),
    Comparison('idem_advance / hand-written upsert', 'advance', 'extension', 'hand', 0.90),
)

COSTS = (
    Cost('WAL bytes: begin, complete / SELECT, INSERT', 'txn', 'extension', 'plain', 'bare', 1.05, 'wal'),
    Cost('WAL bytes: begin, complete / SELECT FOR UPDATE, INSERT, UPDATE', 'txn', 'extension', 'hand', 'bare', None, 'wal'),
    Cost('WAL bytes: begin, complete without C / with the extension', 'txn', 'managed', 'extension', 'bare', None, 'wal'),
    Cost('dead tuples: begin, complete without C', 'txn', 'managed', '', 'bare', None, 'dead'),
    Cost('dead tuples: begin, complete', 'txn', 'extension', '', 'bare', 0, 'dead'),
    Cost('dead tuples: SELECT FOR UPDATE, INSERT, UPDATE', 'txn', 'hand', '', 'bare', None, 'dead'),
)
