"""
What arguments are made of: for each argument of each function what callers
give it, and what nobody should.  Every request and response that is valid
carries the marker, which no message may ever show.
"""
import json
from dataclasses import dataclass

from hypothesis import strategies as st

MARKER = 'PayloadMarker4711'
KEYS = ['a', 'b', 'c']
SCOPES = ['', 's']


@dataclass(frozen=True)
class Repeat:
    """A long text that is short to print."""
    unit: str
    count: int

    def __str__(self):
        return self.unit * self.count


@dataclass(frozen=True)
class Nested:
    """JSON of that depth."""
    opening: str
    depth: int
    closing: str

    def __str__(self):
        return self.opening * self.depth + '0' + self.closing * self.depth


@dataclass(frozen=True)
class Fence:
    """The newest fence that this program was given, plus so much."""
    plus: int = 0


@dataclass(frozen=True)
class Begun:
    """The newest operation that this program was answered, whatever its outcome."""


@dataclass(frozen=True)
class Operation:
    """A value of idem_operation made by hand."""
    fields: tuple


@dataclass(frozen=True)
class Raw:
    """Bytes sent as they are for a text."""
    data: bytes


ODD_TEXTS = ['', ' ', '\t\n', 'x', Repeat('x', 254), Repeat('x', 255), Repeat('x', 256),
    Repeat('é', 255), Repeat('é', 256), Repeat('\U0001f600', 255), Repeat('\U0001f600', 256),
    '\u00e9', 'e\u0301', '\u212b', '\u202eabc', "o'brien", '"q"', 'back\\slash', '%s%n%d', '$1', '--',
    "'; DROP TABLE x; --", '\x01\x1f\x7f', '\ufeff', '\uffff', '{a,b}', '(,)', 'NULL', 'null',
    Repeat('long ', 20000), Repeat('x', 1 << 20),
    Raw(b'nul\0byte'), Raw(b'\xff\xfe'), Raw(b'\xc3'), Raw(b'\xed\xa0\x80')]

ODD_JSON = ['null', 'true', '0', '-0', '1', '1.0', '1.00', '1e0', '10E-1', '1e400', '1e-400', '1e131071',
    '1e131072', '1e-16383', '1e-16384', '0.1', '123456789012345678901234567890.10', '""', '"\\u00e9"', '"e\\u0301"',
    '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud83d"', '[]', '{}', '[[]]', '[null]', '{"a":1,"a":2}', '{"a":1.0,"b":2}',
    '{"b":2,"a":1}', '{"":""}', '[1,"1",true,null,{}]', ' {"a" : [ ] } ', 'nonsense', '{', '', "{'a':1}", '1 2',
    Nested('[', 10, ']'), Nested('[', 1000, ']'), Nested('[', 100000, ']'),
    Nested('{"a":', 500, '}'), Nested('[{"b":', 100, '}]')]

ODD_INTERVALS = ['0', '00:00', '-1 second', '1 microsecond', '-1 microsecond', '1 month', '-1 month', '1 mon -30 days',
    '1 mon -31 days', '178000000 years', '-178000000 years', '2147483647 days', '2147483647 months',
    '36500 days', '36501 days', '106751991 days', '106751992 days', '-106751992 days', '9223372036854775807 microseconds', '292277 years', '1 hour',
    '1.5 milliseconds', 'infinity', '-infinity', 'P1Y', '1 year 2 mons -3 days 04:05:06.7', 'yesterday', '']

ODD_INTS = [0, 1, -1, 2, 1000, 65536, 2147483647, -2147483648, 2147483648]
ODD_BIGINTS = [0, 1, -1, 9223372036854775807, -9223372036854775808, 9223372036854775808, 4294967296]

TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=20) | st.none()
INTERVALS = st.sampled_from(ODD_INTERVALS) | st.none()
INTS = st.sampled_from(ODD_INTS) | st.integers(-2**31, 2**31 - 1) | st.none()
BIGINTS = st.sampled_from(ODD_BIGINTS) | st.integers(-2**63, 2**63 - 1) | st.none()
BOOLS = st.sampled_from(['true', 'false', None])


def marked(value):
    return json.dumps({'marker': MARKER, 'value': value})


# what jsonb takes: what it does not take its own error quotes
JSON_TEXTS = st.text(st.characters(blacklist_categories=['Cs'], blacklist_characters='\0'), max_size=8)
SMALL_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2**70, 2**70) | JSON_TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_TEXTS, inner, max_size=3),
    max_leaves=6).map(marked)
JSON = st.sampled_from(ODD_JSON) | SMALL_JSON | st.none()
LARGE_JSON = st.sampled_from([Repeat(MARKER, n) for n in (10, 1000, 60000, 70000)]).map(lambda r: f'"{r}"')
REQUESTS = st.sampled_from([marked(1), marked(2), f'"{MARKER}"'])

HASHES = st.sampled_from([b'', b'\0' * 31, b'\0' * 33, b'\0' * 32, b'\xff' * 32, (MARKER.encode() * 2)[:32],
    MARKER.encode() * 1000, b'x'])
BODIES = st.sampled_from([b'', b'\0', MARKER.encode(), MARKER.encode() * 60000, b'\xff\xfe']) | st.binary(max_size=30)


def array(elements, odd):
    """Mostly a few likely elements; sometimes NULLs, odd ones, other shapes."""
    lists = st.lists(elements, max_size=4)
    return lists, st.lists(odd, max_size=3) | st.sampled_from([None, '{}', '{{a,b},{c,d}}', '{{{a}}}', '[5:6]={a,b}',
        '{NULL}', '{a,NULL}', '{a,a,a}', '{', '{a,{b}}', Nested('{', 7, '}')])


KEY_ARRAYS = array(st.sampled_from(KEYS), st.sampled_from(ODD_TEXTS) | st.none())
HASH_ARRAYS = array(st.sampled_from([b'\0' * 32, b'\xff' * 32, None]), HASHES | st.none())
JSON_ARRAYS = array(st.sampled_from([marked(1), marked(2), None]), st.sampled_from(ODD_JSON) | st.none())

HANDLERS = ['fuzz.returns(jsonb)', 'fuzz.raises(jsonb)', 'fuzz.transient(jsonb)', 'fuzz.mistaken(jsonb)', 'fuzz.nothing(jsonb)',
    'fuzz.echo(jsonb)', 'fuzz.strict(jsonb)', 'fuzz.large(jsonb)', 'fuzz.begins(jsonb)', 'fuzz.ends(jsonb)',
    'fuzz.nests(jsonb)', 'fuzz.commits(jsonb)', 'fuzz.internal(jsonb)', 'fuzz.resets(jsonb)']
ODD_HANDLERS = ['0', '-', '1', '4294967295', 'fuzz.two(jsonb,jsonb)', 'fuzz.many(jsonb)', 'fuzz.other(text)',
    'fuzz.procedure(jsonb)', 'fuzz.total(jsonb)', 'fuzz.secret(jsonb)', 'fuzz.nonesuch(jsonb)', 'fuzz.returns',
    'pg_catalog.jsonb_pretty(jsonb)', 'pg_catalog.jsonb_strip_nulls(jsonb)', 'fuzz.trigger()', '', '"', 'a.b.c.d(jsonb)',
    'fuzz.rank(jsonb)', 'pg_catalog.jsonb_agg(anyelement)']

OUTCOMES = ['ACQUIRED', 'ACQUIRED', 'ACQUIRED', 'IN_PROGRESS', 'COMPLETED', 'FAILED', None, 'NONESUCH']


@st.composite
def operations(draw):
    """An idem_operation as a caller could forge it."""
    if draw(st.integers(0, 9)) == 0:
        return None
    fields = [draw(st.sampled_from(OUTCOMES)),
        draw(st.sampled_from(SCOPES + [None, Repeat('x', 256)])),
        draw(st.sampled_from(KEYS + KEYS + [None, '', Repeat('x', 256)])),
        draw(st.sampled_from(['1', '-1', None])), 'f', None,
        draw(st.sampled_from([None, None, Fence(), Fence(1), 0, -1, 2**63 - 1]))]
    rest = draw(st.sampled_from([(None,) * 9,
        ('infinity', '1 day', '5', '{}', marked(3), '\\x00', '-infinity', 'infinity', '2000-01-01')]))
    return Operation(tuple(fields) + rest)


def likely(*values):
    return st.sampled_from(values)


LEASE = likely('1 hour', '1 microsecond', '1 hour')
RETENTION = likely('1 hour', '1 microsecond', '1 day')
WAIT = likely('0', '0', '1 millisecond', '3 milliseconds', '10 seconds')
PAYLOAD = (likely(marked('done'), f'"{MARKER}"', 'null'), JSON | LARGE_JSON)
BODY = (likely(MARKER.encode(), b'\0\xff'), BODIES)
FENCE = (likely(Fence()), st.sampled_from([Fence(1), Fence(-1), None]) | BIGINTS)
TEXT_KEY = (likely('a', 'a', *KEYS), TEXTS)
TEXT_SCOPE = (likely('', '', '', 's'), TEXTS)
END = {'key': TEXT_KEY, 'scope': TEXT_SCOPE, 'code': (likely(200), INTS), 'headers': PAYLOAD, 'body': BODY,
    'fence': FENCE, 'retention': (RETENTION, INTERVALS), 'operation': (st.just(Begun()), operations())}
ROLE = (likely('fuzz_target'), likely('public', 'nobody-there', '0', '-', '4294967295', '"', None, 'fuzz_app'))
PATTERN = (likely('s', 's', 's*', '*', 't*'), TEXTS | likely('', '**', 'a*b', Repeat('x', 254)))
CLAIMANT = (likely('fuzz_target', 'fuzz_app', 'fuzz_target'), ROLE[1])
COMMANDS = likely('GRANT %s ON %s TO %s', 'REVOKE %s ON %s FROM %s')


@dataclass(frozen=True)
class Function:
    """How a function is called, and what it must have answered at least once."""
    arguments: dict
    results: tuple


OPERATION_RESULTS = ('ACQUIRED', 'ACQUIRED taken over', 'IN_PROGRESS', 'COMPLETED', 'FAILED')

# Argument: (what callers give, what they should not).  A function or an
# argument that is missing here fails the run, and so does one too many.
FUNCTIONS = {
    'idem_advance': Function({'stream': TEXT_KEY, 'seq': (st.integers(1, 5), BIGINTS), 'scope': TEXT_SCOPE},
        ('true', 'false')),
    'idem_begin': Function({'key': TEXT_KEY, 'scope': TEXT_SCOPE, 'request': (REQUESTS, JSON),
        'request_hash': (likely(b'\0' * 32), HASHES), 'lease': (LEASE, INTERVALS), 'wait': (WAIT, INTERVALS),
        'max_attempts': (likely(0, 1, 2), INTS)}, OPERATION_RESULTS),
    'idem_begin_batch': Function({'keys': KEY_ARRAYS, 'scope': TEXT_SCOPE, 'requests': JSON_ARRAYS,
        'request_hashes': HASH_ARRAYS, 'max_attempts': (likely(0, 1, 2), INTS)},
        OPERATION_RESULTS + ('MISMATCH', 'no row')),
    'idem_call': Function({'handler': (st.sampled_from(HANDLERS), st.sampled_from(ODD_HANDLERS) | st.none()),
        'key': TEXT_KEY, 'request': (REQUESTS, JSON), 'scope': TEXT_SCOPE, 'wait': (WAIT, INTERVALS),
        'retention': (RETENTION, INTERVALS), 'record_failure': (likely('true', 'false'), BOOLS),
        'request_hash': (likely(b'\0' * 32), HASHES), 'max_attempts': (likely(0, 1, 2), INTS)},
        ('IN_PROGRESS', 'COMPLETED', 'FAILED')),
    'idem_claim_scope': Function({'pattern': PATTERN, 'role': CLAIMANT}, ('void',)),
    'idem_complete': Function(END | {'response': PAYLOAD}, ('void',)),
    'idem_complete_batch': Function({'keys': KEY_ARRAYS, 'responses': JSON_ARRAYS, 'scope': TEXT_SCOPE},
        ('zero', 'more')),
    'idem_extend': Function({'key': TEXT_KEY, 'lease': (LEASE, INTERVALS), 'scope': TEXT_SCOPE, 'fence': FENCE,
        'operation': END['operation']}, ('value',)),
    'idem_fail': Function(END | {'error': PAYLOAD, 'retryable': (likely('true', 'false'), BOOLS),
        'retry_after': (likely('0', '1 hour', '1 microsecond'), INTERVALS)}, ('void',)),
    'idem_fingerprint': Function({'request': (REQUESTS, JSON | LARGE_JSON)}, ('value', 'null')),
    'idem_forget': Function({'key': TEXT_KEY, 'scope': TEXT_SCOPE}, ('true', 'false')),
    'idem_forget_failed': Function({'scope': TEXT_SCOPE, 'reason': TEXT_KEY, 'cause': (likely(None, 'other', 'attempts exhausted'), TEXTS),
        'max_rows': (likely(1, 1000), INTS)}, ('zero', 'more')),
    'idem_gc': Function({'max_rows': (likely(1, 10000), INTS)}, ('zero', 'more')),
    'idem_grant': Function({'role': ROLE}, ('void',)),
    'idem_lock': Function({'resources': KEY_ARRAYS, 'wait': (WAIT, INTERVALS)}, ('true', 'false')),
    'idem_lookup': Function({'key': TEXT_KEY, 'scope': TEXT_SCOPE}, ('IN_PROGRESS', 'COMPLETED', 'FAILED', 'null')),
    'idem_lost_attempts': Function({'key': TEXT_KEY, 'scope': TEXT_SCOPE}, ('value',)),
    'idem_lost_stats': Function({}, ('value',)),
    'idem_may_use_scope': Function({'scope': TEXT_SCOPE}, ('true', 'false')),
    'idem_release': Function({'key': TEXT_KEY, 'scope': TEXT_SCOPE, 'fence': FENCE, 'operation': END['operation']}, ('true', 'false')),
    'idem_partition_store': Function({'period': (likely('4 hours', '1 day', '1 minute'), INTERVALS)}, ('void',)),
    'idem_progress': Function({'key': TEXT_KEY, 'progress': PAYLOAD, 'scope': TEXT_SCOPE, 'fence': FENCE,
        'lease': (LEASE, INTERVALS), 'operation': END['operation']}, ('value',)),
    'idem_reseal': Function({'max_rows': (likely(1, 1000), INTS)}, ('zero', 'more')),
    'idem_revoke': Function({'role': ROLE}, ('void',)),
    'idem_schedule_gc': Function({'schedule': (likely('* * * * *', ''), TEXTS)}, ()),
    'idem_set_policy': Function({'pattern': PATTERN, 'retention': (RETENTION, INTERVALS),
        'min_retention': (likely('1 microsecond', '1 hour'), INTERVALS), 'max_retention': (likely('1 day', '1 second'), INTERVALS),
        'max_attempts': (likely(0, 1, 2), INTS), 'attempts_limit': (likely(1, 3), INTS),
        'max_response_size': (likely(0, 64, 2**20), INTS), 'max_lease': (likely('1 hour', '1 second'), INTERVALS),
        'max_lost_attempts': (likely(0, 1, 2), INTS), 'too_large_response': PAYLOAD}, ('void',)),
    'idem_set_rights': Function({'role': ROLE, 'command': (COMMANDS, likely('', 'nonsense %s %s', '%', '%s', None))},
        ('void',)),
    'idem_stats': Function({}, ('value',)),
    'idem_stats_reset': Function({}, ('void',)),
    'idem_unclaim_scope': Function({'pattern': PATTERN}, ('true', 'false')),
    'idem_unpartition_store': Function({}, ('void',)),
    'idem_step_key': Function({'key': TEXT_KEY, 'step': TEXT_KEY}, ('value',)),
}

# They make and drop tables, so scenes of directed.py alone call them.
RARE = {'idem_partition_store', 'idem_unpartition_store'}

# Internal, or for a cluster only: sql/failures.sql, sql/partitions.sql and test/citus/.
LEFT_OUT = {'idem_check_owner', 'idem_check_store', 'idem_distribute_store', 'idem_failure_cause', 'idem_lock_store', 'idem_on_workers',
    'idem_prepare_node', 'idem_require_coordinator', 'idem_require_ended', 'idem_require_read_committed', 'idem_restore_node', 'idem_undistribute_store'}

# (function, SQLSTATE) that its page documents and that cannot be had here, and why.
OUT_OF_REACH = {
    ('idem_begin', '2200H'): 'no row has the last fence that there is: sql/fence.sql',
    ('idem_release', '2200H'): 'no row has the last fence that there is: sql/fence.sql',
    ('idem_forget', '2200H'): 'no row has the last fence that there is: sql/fence.sql',
    ('idem_forget_failed', '2200H'): 'no row has the last fence that there is: sql/fence.sql',
    ('idem_advance', '0A000'): 'there is no Citus here: test/citus/',
    ('idem_forget_failed', '0A000'): 'there is no Citus here: test/citus/',
    ('idem_lock', '0A000'): 'there is no Citus here: test/citus/',
    ('idem_partition_store', '0A000'): 'there is no Citus here: test/citus/',
    ('idem_unpartition_store', '0A000'): 'shares its page with idem_partition_store',
    ('idem_unpartition_store', 'ID400'): 'shares its page with idem_partition_store, and takes no period',
    ('idem_unpartition_store', '55000'): 'shares its page with idem_partition_store, which found nothing to refuse',
    ('idem_unclaim_scope', '42704'): 'shares its page with idem_claim_scope, and takes no role',
    ('idem_reseal', '58P01'): 'the key file stays as it is: test/t/035_sealing.pl',
    ('idem_reseal', 'F0000'): 'the key file stays as it is: test/t/035_sealing.pl',
}
