"""
A program: calls and what goes on around them, in two sessions that take
turns.  The first does most of the work, the second gets in its way.  Nothing
is expected of an answer but that it is documented and gives nothing away; what
must be answered is model.py's affair.
"""
from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st

import calls as c
from calls import Memory, Statement
from directed import scenes
from session import Session
from values import MARKER, RARE

BEGINS = ['BEGIN', 'BEGIN', 'BEGIN', 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'BEGIN ISOLATION LEVEL SERIALIZABLE',
    'BEGIN READ ONLY', 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE']
VERBS = ['COMMIT', 'COMMIT', 'COMMIT', 'COMMIT', 'COMMIT AND CHAIN', 'ROLLBACK', 'ROLLBACK AND CHAIN', 'SAVEPOINT s', 'SAVEPOINT s', 'ROLLBACK TO s',
    'RELEASE s', 'PREPARE', 'SET TRANSACTION READ ONLY']
SETTINGS = [('ROLE', 'fuzz_app'), ('ROLE', 'fuzz_app'), ('ROLE', 'fuzz_stranger'), ('ROLE', 'none'),
    ('idempotency.retention', "'1s'"), ('idempotency.retention', '2147483647'), ('idempotency.max_attempts', '1'),
    ('idempotency.max_attempts', '2'), ('idempotency.max_response_size', '0'), ('idempotency.max_response_size', "'64B'"),
    ('idempotency.max_response_size', "'2MB'"), ('idempotency.max_operations_per_transaction', '1'),
    ('idempotency.max_operations_per_transaction', '3'), ('lock_timeout', '0'), ('lock_timeout', "'2ms'"),
    ('search_path', "''"), ('search_path', 'pg_temp, fuzz'), ('IntervalStyle', 'iso_8601'), ('DateStyle', "'SQL, DMY'"),
    ('TimeZone', "'Asia/Kathmandu'"), ('bytea_output', 'escape'), ('synchronous_commit', 'off'), ('enable_indexscan', 'off'),
    ('enable_tidscan', 'off'), ('row_security', 'off'), ('plan_cache_mode', 'force_generic_plan'), ('work_mem', '64'),
    ('transform_null_equals', 'on'), ('session_replication_role', 'replica'), ('force_parallel_mode', 'on'),
    ('debug_parallel_query', 'on'), ('default_transaction_isolation', 'serializable')]
# What the owner may do to the tables by hand.  {s} is the schema.
BY_HAND = [
    'DELETE FROM {s}.idempotency_store',
    "UPDATE {s}.idempotency_store SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE status = 'PENDING'",
    "UPDATE {s}.idempotency_store SET expires_at = clock_timestamp() - interval '1 second', lease_expires_at = NULL",
    "UPDATE {s}.idempotency_store SET retry_at = clock_timestamp() - interval '1 second' WHERE retry_at IS NOT NULL",
    'UPDATE {s}.idempotency_store SET attempt = 2147483647 WHERE sealed IS NULL',
    "UPDATE {s}.idempotency_store SET updated_at = updated_at + interval '1 second'",
    "INSERT INTO {s}.idempotency_store (expires_at, status, scope, idempotency_key)"
    " SELECT clock_timestamp() + interval '1 hour', 'COMPLETED', s, k FROM unnest('{{\"\",s}}'::text[]) s, unnest('{{a,b,c}}'::text[]) k"
    ' ON CONFLICT DO NOTHING',
    'DELETE FROM {s}.idempotency_stream',
    "UPDATE {s}.idempotency_store SET response_payload = '1' WHERE status <> 'PENDING' AND seal_key IS NULL",
    'ALTER TABLE {s}.idempotency_store SET UNLOGGED',
    'CREATE TEMP VIEW seen AS SELECT {s}.idem_fingerprint(to_jsonb(1))',
    "CREATE MATERIALIZED VIEW fuzz.restricted AS SELECT {s}.idem_begin('a')",
]
# those that change what another transaction may have seen or begun
CHANGES = BY_HAND[:1] + BY_HAND[5:7]
ONLY_IN_TRANSACTION = ('ALTER', 'CREATE')
BLOCKING = {
    'idem_begin': "SELECT {s}.idem_begin('{key}', wait => '10 seconds')",
    'idem_lock': "SELECT {s}.idem_lock(ARRAY['{key}'], '10 seconds')",
    'idem_advance': "SELECT {s}.idem_advance('{key}', 1000000)",
}
OWN_WARNING = 'is short for a retention of'  # idem_partition_store
HANDLER_CODES = {'HX001', '53HX1', 'XXHX1', '42HX1', '2D000'}
AT_COMMIT = {'ID428', '40001'}
# What our own steps around the calls may meet.
AROUND = {'25001', '25006', '25P01', '25P02', '3B001', '40001', '40P01', '42501', '42704', '55P03', '57014', '0A000', '55006', '25000',
    '22023', '42P07', '55000'}
BY_HAND_TOO = {'23505',  # two rows of one name, in a store with a ring of tables
               '42809'}  # SET UNLOGGED of a partitioned store, from 18 on
BASE_OPTIONS = '-c statement_timeout=250ms -c lock_timeout=8ms -c deadlock_timeout=5ms'


class Violation(AssertionError):
    """The extension did what it must not."""


@dataclass(frozen=True)
class Step:
    """What one session does next."""
    kind: str
    peer: bool
    what: object

    def __repr__(self):
        return f'{"peer" if self.peer else "main"} {self.what!r}' if self.kind == 'call' else \
            f'{"peer" if self.peer else "main"} {self.kind} {self.what}'


ENDS = ('idem_complete', 'idem_fail', 'idem_release', 'idem_extend', 'idem_progress', 'idem_complete_batch')
BY_KEY = ENDS + ('idem_begin', 'idem_begin_batch', 'idem_call', 'idem_lookup', 'idem_advance', 'idem_lock', 'idem_gc')
SNAPSHOTS = ('BEGIN ISOLATION LEVEL REPEATABLE READ', 'BEGIN ISOLATION LEVEL SERIALIZABLE')
PERCENT = st.integers(0, 99)
QUARTER = st.integers(0, 3)
STRATEGIES = {name: st.sampled_from(values) for name, values in {
    'begin': BEGINS, 'verb': VERBS, 'set': SETTINGS, 'by hand': BY_HAND, 'blocking': sorted(BLOCKING),
    'waiting': ['deadlock', 'blocked'], 'key': ['a', 'a', 'b'], 'snapshot': SNAPSHOTS,
    'change': CHANGES, 'role': [('ROLE', 'fuzz_app'), ('ROLE', 'fuzz_stranger')]}.items()}


def main(kind, what):
    return Step(kind, False, what)


def peer(kind, what):
    return Step(kind, True, what)


@st.composite
def anything(draw, functions):
    """One step of any kind."""
    kind = draw(PERCENT)
    second = draw(QUARTER) == 3
    if kind < 64:
        return [Step('call', second, draw(c.calls(functions.all)))]
    for limit, name in ((73, 'begin'), (86, 'verb'), (92, 'set'), (99, 'by hand')):
        if kind < limit:
            return [Step(name, second, draw(STRATEGIES[name]))]
    return [main(draw(STRATEGIES['waiting']), draw(STRATEGIES['blocking']))]


@st.composite
def life(draw, functions):
    """Begin, something in between, end: of one key, most likely in a transaction."""
    second = draw(QUARTER) == 3
    key = draw(STRATEGIES['key'])
    steps = [Step('begin', second, draw(STRATEGIES['begin']))] if draw(QUARTER) else []
    steps.append(Step('call', second, draw(c.calls(functions.named('idem_begin', 'idem_begin_batch'), key))))
    if draw(QUARTER) > 1:
        steps += draw(anything(functions))
    steps.append(Step('call', second, draw(c.calls(functions.named(*ENDS), key))))
    if draw(QUARTER) > 1:
        steps.append(Step('verb', second, 'COMMIT'))
    return steps


@st.composite
def conflict(draw, functions):
    """What a transaction has seen or begun, the other session changes."""
    begun = draw(c.calls(functions.named('idem_begin', 'idem_begin_batch'), 'a'))
    steps = [peer('call', begun)] if draw(QUARTER) else []
    steps += [main('begin', draw(STRATEGIES['snapshot']) if draw(QUARTER) else 'BEGIN'),
        main('call', draw(c.calls(functions.named('idem_lookup', 'idem_begin', 'idem_begin_batch'), 'a')))]
    if draw(QUARTER) < 2:
        steps.append(Step('by hand', draw(QUARTER) > 0, draw(STRATEGIES['change'])))
    else:
        steps.append(peer('call', draw(c.calls(functions.named(*BY_KEY), 'a'))))
    return steps + [main('call', draw(c.calls(functions.named(*BY_KEY), 'a')))]


@st.composite
def somebody(draw, functions):
    """A role that has not all rights, perhaps in a scope that is another's."""
    steps = [main('call', draw(c.calls(functions.named('idem_claim_scope', 'idem_set_policy'))))] if draw(QUARTER) < 2 else []
    scoped = c.calls(functions.named(*BY_KEY, 'idem_may_use_scope'), 'a', 's')
    return steps + [main('set', draw(STRATEGIES['role'])), main('call', draw(scoped if draw(QUARTER) < 2 else c.calls(functions.all)))]


BLOCKS = [anything] * 9 + [life] * 6 + [conflict] * 2 + [somebody]
DIRECTED = 3  # so many more


def each_scene(functions, with_kinds=True):
    """The directed programs; with_kinds: also those that change the kind of the store."""
    return scenes(functions, main, peer, BY_HAND, with_kinds)


def programs(functions, with_kinds):
    directed = st.sampled_from(each_scene(functions, with_kinds))
    blocks = [maker(functions) for maker in BLOCKS] + [directed] * DIRECTED
    block = st.integers(0, len(blocks) - 1).flatmap(blocks.__getitem__)
    return st.lists(block, min_size=1, max_size=16).map(lambda steps: [step for block in steps for step in block])


class Runner:
    """Runs programs in one database, counts, and complains with a Violation."""

    def __init__(self, database, schema, documentation, standby=False):
        self.database = database
        self.schema = schema
        self.documentation = documentation
        self.standby = standby
        self.counts = Counter()  # (function, SQLSTATE or result)
        self.calls = Counter()
        self.programs = 0
        self.main = self.peer = self.admin = None
        self.connect()
        self.kind = self.kind_of_store()
        self.kind_changed = False

    def connect(self):
        self.main, self.peer = Session(self.database, BASE_OPTIONS), Session(self.database, BASE_OPTIONS)
        self.admin = Session(self.database)

    def run(self, program):
        if self.broken():
            self.connect()
        self.clear()
        self.memory = Memory()
        try:
            for step in program:
                self.step(step)
                self.check_notices()
            self.end()
        finally:
            self.programs += 1
            if not self.standby and self.programs % 200 == 0 and not self.broken():
                self.admin.script(f'VACUUM {self.schema}.idempotency_store, {self.schema}.idempotency_stream')

    def kind_of_store(self):
        """Has it a ring of tables?"""
        return self.admin.value(f'SELECT count(*) > 0 FROM {self.schema}.idempotency_partitions')

    def restore_kind(self):
        """Every program finds the kind of store that its database has."""
        change = "idem_partition_store('4 hours')" if self.kind == 't' else 'idem_unpartition_store()'
        self.admin.script(f'SELECT {self.schema}.{change}')
        self.kind_changed = False

    def broken(self):
        return any(session.connection.status != 0 for session in (self.main, self.peer, self.admin))

    def clear(self):
        """Every program starts from the same state, so that it can be shrunk."""
        for session in (self.main, self.peer):
            if session.in_transaction:
                session.script('ROLLBACK')
            session.script('RESET ROLE; RESET ALL')
            session.to_undo = False
            session.take_notices()
        if self.kind_changed and not self.standby:
            self.restore_kind()
        if not self.standby:
            self.admin.script(f'DELETE FROM {self.schema}.idempotency_scope; DELETE FROM {self.schema}.idempotency_store; DELETE FROM {self.schema}.idempotency_stream')

    def end(self):
        for session in (self.main, self.peer):
            if session.in_transaction:
                session.script('ROLLBACK')
        self.check_notices()
        locks = self.admin.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            ' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())')
        if locks != '0':
            raise Violation(f'{locks} advisory locks are left when no transaction is open')

    def step(self, step):
        session = self.peer if step.peer else self.main
        if session.in_error and step.kind != 'verb':
            session.script('ROLLBACK')
        if self.standby and step.kind in ('by hand', 'deadlock', 'blocked'):
            return
        if step.kind == 'call':
            self.call(session, step.what)
        elif step.kind == 'begin':
            self.begin(session, step.what)
        elif step.kind == 'verb':
            self.verb(session, step.what)
        elif step.kind == 'set':
            self.set(session, *step.what)
        elif step.kind == 'by hand':
            self.by_hand(session, step.what)
        elif step.kind == 'deadlock':
            self.deadlock(step.what)
        else:
            self.blocked(step.what)

    def begin(self, session, sql):
        if session.in_transaction:
            session.script('ROLLBACK')
        session.to_undo = False
        self.around(session, sql)

    def call(self, session, call):
        statement = Statement(call, self.schema, self.memory)
        result = session.run(statement.sql, statement.parameters)
        self.judge(session, call, statement, result)

    def judge(self, session, call, statement, result):
        name = call.signature.name
        self.calls[name] += 1
        self.kind_changed = self.kind_changed or name in RARE
        if result.sqlstate is None:
            for word in c.classify(call, result.rows):
                self.counts[name, word] += 1
            self.remember(call, result.rows)
            return
        if self.is_serializable_standby(result) or \
                result.sqlstate not in self.documentation.specific(name) and self.is_input(session, statement, result.sqlstate):
            return
        self.check_error(name, call.signature.internal, result)
        self.counts[name, result.sqlstate] += 1

    def check_error(self, name, internal, result):
        allowed = self.documentation.allowed(name)
        if name == 'idem_call':
            allowed = allowed | HANDLER_CODES | self.documentation.allowed('idem_complete')
        if internal and not result.sqlstate.startswith('XX'):
            allowed = allowed | {result.sqlstate}
        if result.sqlstate not in allowed:
            raise Violation(f'{name} raised {result.sqlstate}, which is not documented: {result.texts}')
        self.check_texts(result.texts)

    def is_serializable_standby(self, result):
        """PostgreSQL refuses every statement of such a transaction."""
        return self.standby and result.sqlstate == '0A000' and 'hot standby' in result.message

    def is_input(self, session, statement, sqlstate):
        """Does PostgreSQL refuse these arguments without any function, read as in that session?"""
        for setting in ('DateStyle', 'IntervalStyle', 'TimeZone'):
            self.admin.script(f"SET {setting} = '{session.reported(setting)}'")
        return self.admin.run(statement.input, statement.parameters).sqlstate == sqlstate

    def remember(self, call, rows):
        if not call.signature.result.endswith('idem_operation'):
            return
        for fields in c.operation_rows(call, rows):
            if fields is None:
                continue
            if fields[6] is not None:
                self.memory.fence = int(fields[6])
            if call.form == 'select':
                self.memory.begun = rows[0][0]

    def around(self, session, sql, allowed=AROUND):
        result = session.run(sql)
        if result.sqlstate is not None:
            if result.sqlstate not in allowed:
                raise Violation(f'{sql} raised {result.sqlstate}: {result.texts}')
            self.check_texts(result.texts)
        return result

    def verb(self, session, verb):
        if not session.in_transaction:
            return
        if session.in_error and verb != 'ROLLBACK TO s' or session.to_undo and verb.startswith(('COMMIT', 'PREPARE')):
            verb = 'ROLLBACK'
        if verb == 'PREPARE':
            self.prepare(session)
            return
        self.around(session, verb, AROUND | AT_COMMIT)
        session.to_undo = session.to_undo and session.in_transaction and verb != 'ROLLBACK AND CHAIN'

    def prepare(self, session):
        """Two-phase commit, at once; a standby refuses the first phase."""
        self.around(session, 'RESET ROLE')
        if self.around(session, f"PREPARE TRANSACTION '{self.database}'", AROUND | AT_COMMIT).sqlstate is None:
            self.around(session, f"COMMIT PREPARED '{self.database}'", set())

    def set(self, session, name, value):
        local = 'LOCAL ' if session.in_transaction else ''
        self.around(session, f'SET {local}{name} = {value}' if name != 'ROLE' else f'SET {local}ROLE {value}')

    def by_hand(self, session, sql):
        if sql.startswith(ONLY_IN_TRANSACTION) and not session.in_transaction:
            return
        self.around(session, sql.format(s=self.schema), AROUND | BY_HAND_TOO)
        session.to_undo = session.to_undo or sql.startswith(ONLY_IN_TRANSACTION)

    def prepare_blocking(self, *timeouts):
        for session in (self.main, self.peer):
            if session.in_transaction:
                session.script('ROLLBACK')
            session.script('RESET ROLE; BEGIN')
            for timeout in timeouts:
                session.script(f'SET LOCAL {timeout}')

    def blocking(self, session, name, key):
        self.calls[name] += 1
        return session.run(BLOCKING[name].format(s=self.schema, key=key))

    def count_blocking(self, name, result):
        if result.sqlstate is not None:
            self.check_error(name, False, result)
            self.counts[name, result.sqlstate] += 1

    def deadlock(self, name):
        """Each of two transactions wants what the other has."""
        self.prepare_blocking("lock_timeout = 0", "statement_timeout = '5s'")
        self.count_blocking(name, self.blocking(self.main, name, 'left'))
        self.count_blocking(name, self.blocking(self.peer, name, 'right'))
        self.main.send(BLOCKING[name].format(s=self.schema, key='right'))
        theirs = self.blocking(self.peer, name, 'left')
        if theirs.sqlstate is not None:
            self.peer.script('ROLLBACK')
        mine = self.main.collect()
        self.calls[name] += 1
        for result in (mine, theirs):
            self.count_blocking(name, result)
        if '40P01' not in (mine.sqlstate, theirs.sqlstate):
            raise Violation(f'deadlock of {name} was not found: {mine}, {theirs}')
        self.end()

    def blocked(self, name):
        """A wait that one of the two timeouts ends."""
        for timeouts, sqlstate in ((("lock_timeout = '5ms'",), '55P03'), (("lock_timeout = 0", "statement_timeout = '8ms'"), '57014')):
            self.prepare_blocking(*timeouts[:1], "statement_timeout = '20s'")
            self.count_blocking(name, self.blocking(self.peer, name, 'left'))
            for timeout in timeouts[1:]:
                self.main.script(f'SET LOCAL {timeout}')
            result = self.blocking(self.main, name, 'left')
            self.count_blocking(name, result)
            if result.sqlstate != sqlstate:
                raise Violation(f'a wait of {name} ended with {result.sqlstate}, not {sqlstate}: {result.texts}')
            self.end()

    def check_texts(self, texts):
        for text in texts:
            if MARKER.lower() in text.lower():
                raise Violation(f'a payload leaked: {texts}')

    def check_notices(self):
        for session in (self.main, self.peer):
            for severity, texts in session.take_notices():
                self.check_texts(texts)
                if severity not in ('NOTICE', 'INFO', 'DEBUG', 'LOG') and not any(OWN_WARNING in text for text in texts):
                    raise Violation(f'{severity}: {texts}')
