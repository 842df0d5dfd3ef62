"""
The protocol as a model: what two sessions must be answered, what the store
must hold, and who must hold which lock, for every order of steps that
hypothesis thinks of.  READ COMMITTED; time passes where the owner says so.
It also says how many attempts were lost with their transaction.
"""
import copy
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from calls import split_composite
from session import Session

KEYS = ('k', 'l')
SESSIONS = st.integers(0, 1)
KEY = st.sampled_from(KEYS)
REQUEST = st.sampled_from([None, None, 1, 2])
FENCE = st.sampled_from([None, None, None, 'current', 'current', 'current', 'stale', 'future'])
FRESH = -1  # a fence that no client has seen
MUST_SEE = ('ACQUIRED', 'ACQUIRED taken over', 'IN_PROGRESS', 'COMPLETED', 'FAILED', 'MISMATCH', 'ID400', 'ID404', 'ID409', 'ID422', 'ID428',
    '55P03', 'lost', 'attempts lost', 'true', 'false', 'null', 'void', 'ROLLBACK TO', 'RELEASE')

# rules and their arguments: steps that see all of these, so that no run leaves it to chance
DIRECTED = (
    # the request was another; the lease runs out
    ('begin', 0, 'k', 1, True), ('begin', 1, 'k', 1, True), ('begin', 1, 'k', 2, True), ('begin_batch', 1, ['k'], 2),
    ('time_passes', 'k'), ('begin', 1, 'k', 1, True), ('complete', 0, 'k', 'stale', 1),
    # an end that has not committed
    ('begin_transaction', 1), ('complete', 1, 'k', 'current', 1), ('complete', 0, 'k', 'current', 2),
    ('end_transaction', 1, True),
    ('begin', 0, 'k', None, False), ('release', 0, 'k', 'current'), ('forget', 0, 'k'), ('lookup', 0, 'k'),
    # no lease: it cannot be extended, and its attempt is lost
    ('whole_transaction', 0, 'k', False, None), ('begin', 0, 'k', None, False), ('begin', 0, 'l', None, False),
    ('complete', 0, 'l', None, 1),
    ('begin_transaction', 0), ('begin', 0, 'l', None, False), ('extend', 0, 'l', None),
    ('limit_changes', 1), ('begin', 0, 'l', None, False),
    ('begin_transaction', 0), ('savepoint', 0, 'SAVEPOINT'), ('savepoint', 0, 'ROLLBACK TO'), ('savepoint', 0, 'RELEASE'),
    ('end_transaction', 0, True))


@dataclass(frozen=True)
class Record:
    """A row of the store."""
    status: str
    attempt: int
    fence: int = None
    request: int = None
    payload: str = None
    leased: bool = False  # the lease runs
    due: bool = False  # FAILED: may be tried again
    retryable: bool = False


@dataclass(frozen=True)
class KeyState:
    """The state of a key in a transaction."""
    pending: bool = False
    level: int = 0
    attempt: int = 0
    fence: int = None
    request: int = None
    wrote: bool = False
    record: Record = None  # what it wrote
    kept: bool = False  # the lock, by what was given up before
    locked: bool = False
    forgets: bool = False  # COMMIT forgets its lost attempts


class Expected(Exception):
    """The statement must fail with this SQLSTATE."""


class Client:
    """A session, and what the model knows of its transaction."""

    def __init__(self, database):
        self.session = Session(database, '-c lock_timeout=15ms -c statement_timeout=20s')
        self.forget()

    def forget(self):
        self.open = False
        self.key_states = {}
        self.savepoints = []
        self.begun = set()  # whatever a savepoint took back
        self.released = False  # also if a savepoint takes that back
        self.excused = False  # the error was not the operation's fault

    def level(self):
        return 1 + len(self.savepoints)

    def note_begin(self, key):
        self.begun.add(key)
        self.released = self.excused = False

    def note_release(self, key):
        """After a savepoint the operation may come back, and it still is the one that was begun."""
        if self.begun == {key}:
            self.released = True
            if not self.savepoints:
                self.begun.clear()

    def set_savepoint(self):
        self.savepoints.append(copy.copy(self.key_states))
        self.excused = False

    def back_to_savepoint(self):
        self.key_states = copy.copy(self.savepoints[-1])
        self.excused = False

    def holds(self, key):
        return self.key_states.get(key, KeyState()).locked


def meant(state, fence):
    """The fence of an end: without one, that of what its transaction has begun."""
    if fence is None and not state.pending:
        raise Expected('ID404')
    return state.fence if fence is None else fence


def mismatch(stored, given):
    return stored is not None and given is not None and stored != given


class Model(RuleBasedStateMachine):
    """Set up by make(): database, schema, counts."""
    database = schema = counts = clients = admin = None

    def __init__(self):
        super().__init__()
        if Model.clients is None or any(s.connection.status for s in [Model.admin] + [c.session for c in Model.clients]):
            Model.clients = [Client(self.database), Client(self.database)]
            Model.admin = Session(self.database)
        for client in self.clients:
            if client.session.in_transaction:
                client.session.script('ROLLBACK')
            client.forget()
        self.admin.script(f'DELETE FROM {self.schema}.idempotency_scope; DELETE FROM {self.schema}.idempotency_store')
        self.committed = {}
        self.fences = {key: 0 for key in KEYS}  # the newest of each key
        self.newest = 0
        self.lost = {key: 0 for key in KEYS}
        self.limit = 0  # of lost attempts
        self.gives_up = False  # ROLLBACK, also after an error in a savepoint
        for session in [self.admin] + [client.session for client in self.clients]:
            session.script(f"SET idempotency.max_lost_attempts = 0; SELECT {self.schema}.idem_forget(k) FROM unnest('{{{','.join(KEYS)}}}'::text[]) k")

    # what the model says

    def other_holds(self, client, key):
        return any(other is not client and other.holds(key) for other in self.clients)

    def visible(self, client, key):
        state = client.key_states.get(key)
        return state.record if state is not None and state.wrote else self.committed.get(key)

    def say_begin(self, client, key, request, leased):
        """The answer (outcome, attempt, payload), and the state that it leaves."""
        state = client.key_states.get(key, KeyState())
        if state.pending:
            if mismatch(state.request, request):
                raise Expected('ID422')
            return ('IN_PROGRESS', state.attempt, None), None
        record = self.visible(client, key)
        if record is not None:
            if mismatch(record.request, request):
                raise Expected('ID422')
            if record.status == 'COMPLETED' or record.status == 'FAILED' and not record.due:
                if not state.wrote:
                    self.lost[key] = 0
                return (record.status, record.attempt, record.payload), None
            if record.leased:
                return ('IN_PROGRESS', record.attempt, None), None
        if self.other_holds(client, key):
            return ('IN_PROGRESS', None, None), None
        if 0 < self.limit <= self.lost[key]:
            return self.say_lost(client, key, record or Record('PENDING', 1, request=request))
        client.note_begin(key)
        taken_over = record is not None and record.status == 'PENDING'
        attempt = record.attempt + 1 if record else 1
        request = request if request is not None or record is None else record.request
        note = record.payload if taken_over else None
        return ('ACQUIRED taken over' if taken_over else 'ACQUIRED', attempt, note), replace(state, pending=True,
            level=client.level(), attempt=attempt, fence=None, request=request,
            wrote=state.wrote or leased, locked=True,
            record=Record('PENDING', attempt, None, request, note, leased=True) if leased else state.record)

    def say_lost(self, client, key, record):
        """One more lost attempt would be too many."""
        self.counts['attempts lost'] += 1
        payload = '{"reason": "attempts lost", "lost_attempts": %d}' % self.lost[key]
        record = Record('FAILED', record.attempt, None, record.request, payload)
        return ('FAILED', record.attempt, payload), KeyState(level=client.level(), wrote=True, record=record, locked=True, forgets=True)

    def say_begin_in_batch(self, client, key, request):
        try:
            return self.say_begin(client, key, request, False)
        except Expected as error:
            if str(error) != 'ID422':
                raise
            return ('MISMATCH', None, None), None

    def say_end(self, client, key, fence, status, payload, due, retryable):
        """The state that a complete or a fail leaves."""
        state = client.key_states.get(key, KeyState())
        fence = meant(state, fence)
        if fence is None:
            record = Record(status, state.attempt, None, state.request, payload, False, due, retryable)
        else:
            before = self.fenced(client, key, fence, 'ID409')
            if before.status != 'PENDING':
                raise Expected('ID409')
            record = replace(before, status=status, payload=payload, leased=False, due=due, retryable=retryable)
        return KeyState(level=client.level(), wrote=True, record=record, locked=True, forgets=True)

    def fenced(self, client, key, fence, otherwise):
        """The record that has this fence."""
        state = client.key_states.get(key, KeyState())
        if state.pending and state.fence != fence:
            raise Expected(otherwise)
        if self.other_holds(client, key):
            raise Expected('55P03')
        record = self.visible(client, key)
        if record is None or record.fence != fence:
            raise Expected(otherwise)
        return record

    def say_release(self, client, key, fence):
        state = client.key_states.get(key, KeyState())
        fence = meant(state, fence)
        if fence is None:
            client.note_release(key)
            kept = state.kept or state.level != client.level()
            return KeyState(level=client.level(), wrote=state.wrote, record=state.record, kept=kept, locked=kept or state.wrote,
                forgets=state.forgets or self.lost[key] > 0)
        record = self.fenced(client, key, fence, 'false')
        if record.status != 'PENDING':
            raise Expected('false')
        # the next begin reports that there was an earlier attempt
        left = replace(record, attempt=record.attempt - 1, fence=FRESH, leased=False) if record.attempt > 1 else None
        client.note_release(key)
        return KeyState(level=client.level(), wrote=True, record=left, locked=True, forgets=True)

    def say_forget(self, client, key):
        state = client.key_states.get(key, KeyState())
        record = self.visible(client, key)
        ended = state.wrote and record is not None and record.status != 'PENDING'
        if state.pending or ended or self.other_holds(client, key):
            raise Expected('ID409')
        if record is None:
            self.lost[key] = 0
            raise Expected('false')
        if record.leased:
            raise Expected('ID409')
        return KeyState(level=client.level(), wrote=True, kept=state.kept, locked=True, forgets=True)

    def say_extend(self, client, key, fence, note=None, extends=True):
        """An extension, or a note of progress, or both."""
        state = client.key_states.get(key, KeyState())
        fence = meant(state, fence)
        if fence is None:
            raise Expected('ID400')
        record = self.fenced(client, key, fence, 'ID409')
        if record.status != 'PENDING':
            raise Expected('ID409')
        return replace(state, wrote=True, record=replace(record, leased=record.leased or extends, payload=note or record.payload), locked=True)

    # what the server says

    def run(self, client, sql):
        result = client.session.run(sql.format(s=self.schema))
        notices = client.session.take_notices()
        assert not notices, f'{sql}: {notices}'
        return result

    def check(self, client, sql, expected, say=None):
        """Run it; it must fail as expected, or not at all."""
        result = self.run(client, sql)
        assert result.sqlstate == expected, f'{sql}: {result.sqlstate} {result.texts}, the model says {expected}'
        self.counts[expected or say or 'void'] += 1
        if expected is not None:
            self.after_error(client, expected)
        return result.rows

    def after_error(self, client, sqlstate):
        client.excused = sqlstate == '55P03'
        if client.savepoints and not self.gives_up:
            client.session.script('ROLLBACK TO s')
            client.back_to_savepoint()
            self.counts['ROLLBACK TO'] += 1
        else:
            if client.open:
                client.session.script('ROLLBACK')
            self.roll_back(client)

    def roll_back(self, client):
        """An attempt is lost if it is the only one, and the rollback may be its fault."""
        if len(client.begun) == 1 and not client.released and not client.excused:
            self.lost[client.begun.pop()] += 1
            self.counts['lost'] += 1
        client.forget()

    def done(self, client, changes):
        """The statement has changed where the transaction stands."""
        client.key_states.update(changes)
        if not client.open:
            self.publish(client)

    def publish(self, client):
        for key, state in client.key_states.items():
            if state.wrote:
                self.committed[key] = state.record
            if state.forgets:
                self.lost[key] = 0
        client.forget()

    def fence(self, key, kind):
        return {None: None, 'current': self.fences[key] or 1, 'stale': max(self.fences[key] - 1, 1),
            'future': self.newest + 1000000}[kind]

    def attempt(self, client, sql, say, *arguments):
        try:
            state = say(client, *arguments)
        except Expected as error:
            if str(error) == 'false':
                rows = self.check(client, sql, None, 'false')
                assert rows[0][0] == b'f', sql
            else:
                self.check(client, sql, str(error))
            return
        says_true = 'release' in sql or 'forget' in sql
        rows = self.check(client, sql, None, 'true' if says_true else None)
        assert not says_true or rows[0][0] == b't', sql
        if state.record is not None and state.record.fence == FRESH:
            state = replace(state, record=replace(state.record, fence=self.drawn(client)))
        self.done(client, {arguments[0]: state})

    def drawn(self, client):
        """The fence that this session has drawn last."""
        fence = int(client.session.script(f"SELECT currval('{self.schema}.idempotency_fence')")[0][0])
        assert fence > self.newest, f'fence {fence} after {self.newest}'
        self.newest = fence
        return fence

    def check_answer(self, sql, fields, answer, leased):
        outcome = fields[0].decode() + (' taken over' if fields[0] == b'ACQUIRED' and fields[4] == b't' else '')
        given = (outcome, int(fields[3]) if fields[3] else None, fields[11].decode() if fields[11] else None)
        assert given == answer, f'{sql}: {given}, the model says {answer}'
        self.counts[outcome] += 1
        assert (fields[6] is not None) == (leased and outcome.startswith('ACQUIRED')) or outcome in ('COMPLETED', 'FAILED'), \
            f'{sql}: fence {fields[6]}'
        return int(fields[6]) if outcome.startswith('ACQUIRED') and fields[6] else None

    # rules

    @rule(who=SESSIONS)
    def begin_transaction(self, who):
        client = self.clients[who]
        if not client.open:
            client.session.script('BEGIN')
            client.open = True

    @rule(who=SESSIONS)
    def begin_transaction_oftener(self, who):
        self.begin_transaction(who)

    @rule(who=SESSIONS, commit=st.booleans())
    def end_transaction(self, who, commit):
        client = self.clients[who]
        if not client.open:
            return
        if not commit:
            client.session.script('ROLLBACK')
            self.roll_back(client)
            return
        unfinished = any(s.pending and s.fence is None for s in client.key_states.values())
        result = self.run(client, 'COMMIT')
        assert result.sqlstate == ('ID428' if unfinished else None), f'COMMIT: {result}'
        self.counts[result.sqlstate or 'COMMIT'] += 1
        self.roll_back(client) if unfinished else self.publish(client)

    @rule(who=SESSIONS, what=st.sampled_from(['SAVEPOINT', 'SAVEPOINT', 'ROLLBACK TO', 'RELEASE']))
    def savepoint(self, who, what):
        client = self.clients[who]
        if not client.open or what != 'SAVEPOINT' and not client.savepoints or what == 'SAVEPOINT' and len(client.savepoints) > 2:
            return
        client.session.script(f'{what} s')
        self.counts[what] += 1
        if what == 'SAVEPOINT':
            client.set_savepoint()
        elif what == 'ROLLBACK TO':
            client.back_to_savepoint()
        else:
            client.savepoints.pop()
            client.key_states = {key: replace(state, level=min(state.level, client.level()))
                for key, state in client.key_states.items()}

    @rule(who=SESSIONS, key=KEY, request=REQUEST, leased=st.booleans())
    def begin(self, who, key, request, leased):
        client = self.clients[who]
        sql = f"SELECT {{s}}.idem_begin('{key}'" + (f", request => '{request}'" if request else '') \
            + (", lease => '1 hour'" if leased else '') + ')'
        try:
            answer, state = self.say_begin(client, key, request, leased)
        except Expected as error:
            self.check(client, sql, str(error))
            return
        if state is not None and state.pending and not leased and not client.open:
            self.check(client, sql, 'ID428')
            return
        fields = split_composite(self.check(client, sql, None, 'begin')[0][0])
        fence = self.check_answer(sql, fields, answer, leased)
        if fence is not None:
            assert fence > self.newest, f'{sql}: fence {fence} after {self.newest}'
            self.newest = self.fences[key] = fence
            state = replace(state, fence=fence, record=replace(state.record, fence=fence))
        self.done(client, {} if state is None else {key: state})

    @rule(who=SESSIONS, key=KEY, leased=st.booleans(), retry=st.sampled_from([None, 'now', 'later', 'complete', 'complete']))
    def whole_transaction(self, who, key, leased, retry):
        """What callers do most: begin, end, commit."""
        self.begin_transaction(who)
        self.begin(who, key, None, leased)
        if retry == 'complete':
            self.complete(who, key, None, 7)
        else:
            self.fail(who, key, None, 8, retry)
        self.end_transaction(who, True)

    @rule(who=SESSIONS, key=KEY)
    def lease_that_runs_out(self, who, key):
        """A worker that is never heard of again."""
        self.begin(who, key, None, True)
        self.progress(who, key, 'current', 5, False)
        self.end_transaction(who, True)
        self.time_passes(key)
        self.begin(1 - who, key, None, True)

    @rule(who=SESSIONS, key=KEY, leased=st.booleans(), end=st.sampled_from([None, 'complete', 'release', 'extend']),
        what=st.sampled_from(['ROLLBACK TO', 'RELEASE']), before=st.booleans())
    def in_a_savepoint(self, who, key, leased, end, what, before):
        """Begin in it or before it, end in it, and take that back or not."""
        self.begin_transaction(who)
        if before:
            self.begin(who, key, None, leased)
        self.savepoint(who, 'SAVEPOINT')
        if not before:
            self.begin(who, key, None, leased)
        if end == 'complete':
            self.complete(who, key, None, 6)
        elif end == 'release':
            self.release(who, key, None)
        elif end == 'extend':
            self.extend(who, key, None)
        self.savepoint(who, what)

    @rule(who=SESSIONS, keys=st.lists(KEY, max_size=3), request=REQUEST)
    def begin_batch(self, who, keys, request):
        client = self.clients[who]
        array = '{{' + ','.join(keys) + '}}'
        values = '{{' + ','.join([str(request)] * len(keys)) + '}}'
        sql = f"SELECT b FROM {{s}}.idem_begin_batch('{array}'" + (f", requests => '{values}'" if request else '') + ') b'
        before, answers = copy.copy(client.key_states), []
        try:
            for key in keys:
                answer, state = self.say_begin_in_batch(client, key, request)
                answers.append(answer)
                if state is not None:
                    client.key_states[key] = state
        except Expected as error:
            client.key_states = before
            self.check(client, sql, str(error))
            return
        if not client.open and any(state.pending for state in client.key_states.values()):
            self.check(client, sql, 'ID428')
            return
        rows = self.check(client, sql, None, 'batch')
        assert len(rows) == len(keys), sql
        for row, answer in zip(rows, answers):
            self.check_answer(sql, split_composite(row[0]), answer, False)
        self.done(client, {})

    @rule(who=SESSIONS, key=KEY, fence=FENCE, number=st.integers(0, 9))
    def complete(self, who, key, fence, number):
        fence = self.fence(key, fence)
        sql = f"SELECT {{s}}.idem_complete('{key}', '{number}'" + (f', fence => {fence}' if fence else '') + ')'
        self.attempt(self.clients[who], sql, self.say_end, key, fence, 'COMPLETED', str(number), False, False)

    @rule(who=SESSIONS, key=KEY, fence=FENCE, number=st.integers(0, 9), retry=st.sampled_from([None, 'now', 'later']))
    def fail(self, who, key, fence, number, retry):
        fence = self.fence(key, fence)
        sql = f"SELECT {{s}}.idem_fail('{key}', '{number}'" + (f', fence => {fence}' if fence else '') \
            + (', retryable => true' if retry else '') + (", retry_after => '1 hour'" if retry == 'later' else '') + ')'
        self.attempt(self.clients[who], sql, self.say_end, key, fence, 'FAILED', str(number), retry == 'now', retry is not None)

    @rule(who=SESSIONS, keys=st.lists(KEY, min_size=1, max_size=2))
    def complete_batch(self, who, keys):
        client = self.clients[who]
        sql = f"SELECT {{s}}.idem_complete_batch('{{{{{','.join(keys)}}}}}')"
        before = copy.copy(client.key_states)
        try:
            for key in keys:
                client.key_states[key] = self.say_end(client, key, None, 'COMPLETED', None, False, False)
        except Expected as error:
            client.key_states = before
            self.check(client, sql, str(error))
            return
        rows = self.check(client, sql, None, 'batch completed')
        assert int(rows[0][0]) == len(keys), sql

    @rule(who=SESSIONS, key=KEY, fence=FENCE)
    def release(self, who, key, fence):
        fence = self.fence(key, fence)
        sql = f"SELECT {{s}}.idem_release('{key}'" + (f', fence => {fence}' if fence else '') + ')'
        self.attempt(self.clients[who], sql, self.say_release, key, fence)

    @rule(who=SESSIONS, key=KEY)
    def forget(self, who, key):
        self.attempt(self.clients[who], f"SELECT {{s}}.idem_forget('{key}')", self.say_forget, key)

    @rule(who=SESSIONS, key=KEY, fence=FENCE)
    def extend(self, who, key, fence):
        fence = self.fence(key, fence)
        sql = f"SELECT {{s}}.idem_extend('{key}', '1 hour'" + (f', fence => {fence}' if fence else '') + ')'
        self.attempt(self.clients[who], sql, self.say_extend, key, fence)

    @rule(who=SESSIONS, key=KEY, fence=FENCE, number=st.integers(0, 9), extends=st.booleans())
    def progress(self, who, key, fence, number, extends):
        fence = self.fence(key, fence)
        sql = f"SELECT {{s}}.idem_progress('{key}', '{number}'" + (f', fence => {fence}' if fence else '') \
            + (", lease => '1 hour'" if extends else '') + ')'
        self.attempt(self.clients[who], sql, self.say_extend, key, fence, str(number), extends)

    @rule(who=SESSIONS, key=KEY)
    def lookup(self, who, key):
        client = self.clients[who]
        rows = self.check(client, f"SELECT {{s}}.idem_lookup('{key}')", None, 'lookup')
        fields = split_composite(rows[0][0]) if rows[0][0] else None
        given = fields and (fields[0].decode(), int(fields[3]), fields[11].decode() if fields[11] else None)
        state, record = client.key_states.get(key, KeyState()), self.visible(client, key)
        if state.pending:
            expected = ('IN_PROGRESS', state.attempt, record.payload if record is not None and record.status == 'PENDING' else None)
        elif record is None:
            expected = None
        else:
            expected = ('IN_PROGRESS' if record.status == 'PENDING' else record.status, record.attempt, record.payload)
        assert given == expected, f'lookup of {key}: {given}, the model says {expected}'
        self.counts['null' if given is None else 'known'] += 1

    @rule(key=KEY)
    def time_passes(self, key):
        """The lease of a key runs out, or its failure may be tried again."""
        record = self.committed.get(key)
        if record is None or any(client.holds(key) for client in self.clients):
            return
        past = "clock_timestamp() - interval '1 minute'"
        self.admin.script(f"UPDATE {self.schema}.idempotency_store SET lease_expires_at = CASE WHEN status = 'PENDING' THEN {past} END,"
            f" retry_at = CASE WHEN retry_at IS NOT NULL THEN {past} END WHERE idempotency_key = '{key}'")
        self.committed[key] = replace(record, leased=False, due=record.retryable)
        self.counts['time passes'] += 1

    @rule(who=SESSIONS, key=KEY, times=st.integers(1, 3), end=st.sampled_from(['begin', 'complete', 'ID428', 'ID404', '55P03', 'other']))
    def poison(self, who, key, times, end):
        """A message whose transaction always rolls back."""
        other = 'l' if key == 'k' else 'k'
        if end == '55P03':
            self.begin_transaction(1 - who)
            self.begin(1 - who, other, None, True)
        for _ in range(times):
            self.begin_transaction(who)
            self.begin(who, key, None, False)
            if end == 'complete':
                self.complete(who, key, None, 3)
            elif end in ('ID404', '55P03'):
                self.complete(who, other, 'current' if end == '55P03' else None, 3)
            elif end == 'other':
                self.begin(who, other, None, False)
            self.end_transaction(who, end == 'ID428')

    @rule(limit=st.sampled_from([0, 1, 3]))
    def limit_changes(self, limit):
        if not any(client.open for client in self.clients):
            self.limit = limit
            for client in self.clients:
                client.session.script(f'SET idempotency.max_lost_attempts = {limit}')

    @rule(gives_up=st.booleans())
    def after_errors(self, gives_up):
        self.gives_up = gives_up

    @rule(who=SESSIONS)
    def collect(self, who):
        """Nothing has expired, so nothing goes."""
        client = self.clients[who]
        if not client.open:
            assert self.check(client, 'SELECT {s}.idem_gc()', None, 'collect')[0][0] == b'0'

    # what must hold after each step

    @invariant()
    def store_is_as_the_model_says(self):
        rows = self.admin.script(f'SELECT idempotency_key, status, attempt, fence, request_hash IS NULL,'
            f' lease_expires_at > clock_timestamp() FROM {self.schema}.idempotency_store')
        stored = {row[0].decode(): (row[1].decode(), int(row[2]), int(row[3]) if row[3] else None, row[4] == b't', row[5] == b't')
            for row in rows}
        said = {key: (r.status, r.attempt, r.fence, r.request is None, r.leased) for key, r in self.committed.items() if r}
        assert stored == said, f'the store holds {stored}, the model says {said}'

    @invariant()
    def locks_are_as_the_model_says(self):
        rows = self.admin.script("SELECT pid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 7648"
            ' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY pid')
        held = {int(row[0]): int(row[1]) for row in rows}
        said = {client.session.pid: count for client in self.clients if (count := sum(map(client.holds, KEYS)))}
        assert held == said, f'locks held by pid: {held}, the model says {said}: {[c.key_states for c in self.clients]}'

    @invariant()
    def lost_attempts_are_as_the_model_says(self):
        counted = ', '.join(f"{self.schema}.idem_lost_attempts('{key}')" for key in KEYS)
        given = dict(zip(KEYS, map(int, self.admin.script(f'SELECT {counted}')[0])))
        assert given == self.lost, f'lost attempts: {given}, the model says {self.lost}'


def play_directed():
    """DIRECTED, each step checked as hypothesis does; returns what was seen."""
    player = Model()
    for name, *arguments in DIRECTED:
        getattr(player, name)(*arguments)
        player.store_is_as_the_model_says()
        player.locks_are_as_the_model_says()
        player.lost_attempts_are_as_the_model_says()
    return Counter(Model.counts)


def make(database, schema):
    """The model against that database; returns what it will have counted."""
    Model.database, Model.schema, Model.counts, Model.clients = database, schema, Counter(), None
    return Model.counts
