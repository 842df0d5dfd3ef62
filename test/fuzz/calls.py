"""
One call of one function: its signature from the catalog, its arguments drawn,
its statement, and what the answer is counted as.
"""
import re
from dataclasses import dataclass

from hypothesis import strategies as st

from session import BINARY, TEXT
from values import FUNCTIONS, LEFT_OUT, RARE, Begun, Fence, Operation, Raw

TEXT_OID, BYTEA_OID = 25, 17

# How often a function is called, where that is not once.
WEIGHT = {'idem_begin': 8, 'idem_complete': 4, 'idem_fail': 4, 'idem_begin_batch': 4, 'idem_complete_batch': 3,
    'idem_release': 3, 'idem_extend': 3, 'idem_progress': 3, 'idem_call': 4, 'idem_lookup': 2, 'idem_lock': 2, 'idem_advance': 2, 'idem_gc': 2}

FORMS = {
    'select': 'SELECT {call}',
    'from': 'SELECT * FROM {call}',
    'twice': 'SELECT {call} FROM pg_catalog.generate_series(1, 2)',
    'lateral': 'SELECT f.* FROM (VALUES (1)) v, LATERAL {call} f',
    'where': 'SELECT 1 WHERE ({call}) IS NULL',
}
SETTLED = ('select', 'from', 'lateral')  # forms whose rows say what was answered


@dataclass(frozen=True)
class Argument:
    name: str
    type: str
    optional: bool


@dataclass(frozen=True)
class Signature:
    """A function as the catalog has it."""
    name: str
    arguments: tuple
    result: str
    is_set: bool
    internal: bool

    def __str__(self):
        return f'{self.name}({", ".join(a.type for a in self.arguments)})'


@dataclass(frozen=True)
class Call:
    """A function with the arguments that were drawn; what is left out is the default."""
    signature: Signature
    values: tuple  # of (Argument, value)
    form: str

    def __repr__(self):
        given = ', '.join(f'{argument.name} => {shown(value)}' for argument, value in self.values)
        return f'{self.form}: {self.signature.name}({given})'


def shown(value):
    text = repr(value)
    return text if len(text) < 200 else text[:190] + '…'


SIGNATURES = r"""
SELECT p.proname, p.pronargs, p.pronargdefaults, array_to_json(p.proargnames),
    (SELECT json_agg(t.oid::regtype::text ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY u(o, n) JOIN pg_type t ON t.oid = u.o),
    CASE WHEN p.prorettype = 'trigger'::regtype THEN 'trigger' ELSE p.prorettype::regtype::text END,
    p.proretset, coalesce(obj_description(p.oid, 'pg_proc'), '') LIKE 'internal%'
FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE e.extname = 'idempotency' ORDER BY p.oid::regprocedure::text"""


def signatures(session):
    """Every function of the extension that can be called in a query."""
    import json
    found = []
    for name, count, defaults, names, types, result, is_set, internal in session.script(SIGNATURES):
        names = json.loads(names) if names else []
        types = json.loads(types) if types else []
        first_optional = int(count) - int(defaults)
        found.append(Signature(name.decode(), tuple(
            Argument(names[i], types[i], i >= first_optional) for i in range(int(count))),
            result.decode(), is_set == b't', internal == b't'))
    return [signature for signature in found
            if signature.result not in ('trigger', 'event_trigger') and signature.name not in LEFT_OUT]


def without_generator(found):
    """Complaints about functions and arguments that nobody generates, or that are gone."""
    complaints = []
    have = {}
    for signature in found:
        have.setdefault(signature.name, set()).update(a.name for a in signature.arguments)
    for name, arguments in have.items():
        known = set(FUNCTIONS[name].arguments) if name in FUNCTIONS else None
        if known is None:
            complaints.append(f'test/fuzz/values.py has no generator for {name}')
        elif known != arguments:
            complaints.append(f'test/fuzz/values.py: arguments of {name}: {sorted(known ^ arguments)}')
    complaints += [f'test/fuzz/values.py: {name} is no function of the extension' for name in FUNCTIONS.keys() - have.keys()]
    return complaints


class Functions:
    """The functions to choose from: strategies that are made once."""

    def __init__(self, found):
        self.found = found
        self.all = st.sampled_from([f for f in found if f.name not in RARE for _ in range(WEIGHT.get(f.name, 1))])
        self.cache = {}

    def named(self, *names):
        if names not in self.cache:
            self.cache[names] = st.sampled_from([f for f in self.found if f.name in names])
        return self.cache[names]


CHANCE = st.integers(0, 59)
TENTH = st.integers(0, 9)
FORM = st.sampled_from(['select'] * 9 + ['from'] * 3 + ['lateral', 'twice', 'where'])
FORM_OF_SET = st.sampled_from(['select'] * 9 + ['from'] * 3 + ['lateral', 'twice'])


@st.composite
def calls(draw, functions, key=None, scope=None):
    """A call of one of the functions; of that key and scope where they are given."""
    signature = draw(functions)
    generators = FUNCTIONS[signature.name].arguments
    given = {}
    for argument in signature.arguments:
        likely, odd = generators[argument.name]
        if key is not None and argument.name in ('key', 'stream', 'keys', 'resources'):
            given[argument] = key if argument.name in ('key', 'stream') else [key]
            continue
        if key is not None and argument.name == 'scope':
            if scope is not None:
                given[argument] = scope
            continue
        chance = draw(CHANCE)
        if not argument.optional or chance >= 38:
            given[argument] = draw(likely if chance < 57 else odd)
    without_contradictions(draw, signature, given)
    return Call(signature, tuple(given.items()), draw(FORM_OF_SET if signature.is_set else FORM))


def without_contradictions(draw, signature, given):
    """Pairs of arguments that fit together by chance only: mostly they shall."""
    arguments = {argument.name: argument for argument in signature.arguments}
    if draw(TENTH) == 9:
        return
    if arguments.get('retry_after') in given:
        given[arguments['retryable']] = 'true'
    if arguments.get('request') in given and signature.name != 'idem_call':
        given.pop(arguments.get('request_hash'), None)
    if arguments.get('requests') in given:
        given.pop(arguments.get('request_hashes'), None)


class Memory:
    """What a program has been answered so far."""

    def __init__(self):
        self.fence = 0
        self.begun = None


def bare(text):
    return str(text).encode('utf-8', 'surrogatepass').replace(b'\0', b'')


def array_literal(values):
    def element(value):
        if value is None:
            return b'NULL'
        if isinstance(value, bytes):
            value = '\\x' + value.hex()
        value = value.data if isinstance(value, Raw) else bare(value)
        return b'"' + value.replace(b'\0', b'').replace(b'\\', b'\\\\').replace(b'"', b'\\"') + b'"'
    return b'{' + b','.join(map(element, values)) + b'}'


class Statement:
    """The SQL of a call and its parameters."""

    def __init__(self, call, schema, memory):
        self.schema = schema
        self.memory = memory
        self.parameters = []
        expressions = [(argument.name, self.expression(argument.type, value)) for argument, value in call.values]
        self.call = '{}.{}({})'.format(schema, call.signature.name,
            ', '.join(f'"{name}" => {expression}' for name, expression in expressions))
        self.sql = FORMS[call.form].format(call=self.call)
        self.input = 'SELECT ' + ', '.join(expression for _, expression in expressions)

    def add(self, *parameter):
        self.parameters.append(parameter)
        return f'${len(self.parameters)}'

    def expression(self, type, value):
        if isinstance(value, Fence):
            value = self.memory.fence + value.plus
        if isinstance(value, Begun):
            value = self.memory.begun
        if isinstance(value, Operation):
            return self.operation(value)
        if isinstance(value, list):
            value = array_literal(value)
        if type == 'text' and value is not None:
            data = value.data if isinstance(value, Raw) else str(value).encode('utf-8', 'surrogatepass')
            return self.add(data, BINARY, TEXT_OID)
        if type == 'bytea' and value is not None:
            return self.add(value, BINARY, BYTEA_OID)
        if value is not None and not isinstance(value, bytes):
            value = bare(value)
        return f'{self.add(value, TEXT)}::{type}'

    def operation(self, operation):
        types = [f'{self.schema}.idem_outcome', 'text', 'text', 'int', 'bool', 'bool', 'bigint', 'timestamptz', 'interval',
            'int', 'jsonb', 'jsonb', 'bytea', 'timestamptz', 'timestamptz', 'timestamptz']
        fields = [self.expression(type, value if not type == 'bytea' or value is None else value.encode())
            for type, value in zip(types, operation.fields)]
        return f'ROW({", ".join(fields)})::{self.schema}.idem_operation'


FIELD = re.compile(rb'(?:"((?:[^"\\]|""|\\.)*)"|([^,()"]*))(?:,|\)$)', re.S)


def split_composite(text):
    """The fields of a composite value's text; None for NULL, quotes undone."""
    fields, place = [], 1
    while place < len(text):
        match = FIELD.match(text, place)
        if match is None:
            raise ValueError(f'not a composite value: {text[:100]!r}')
        quoted, plain = match.groups()
        if quoted is not None:
            fields.append(re.sub(rb'""|\\(.)', lambda m: m.group(1) or b'"', quoted, flags=re.S))
        else:
            fields.append(plain or None)
        place = match.end()
    return fields


def operation_rows(call, rows):
    """The operations in an answer, as lists of fields."""
    if call.form == 'select':
        return [split_composite(row[0]) if row[0] is not None else None for row in rows]
    if call.form in ('from', 'lateral'):
        return [row if any(value is not None for value in row) else None for row in rows]
    return []


def classify(call, rows):
    """What an answer is counted as: a set of words."""
    result = call.signature.result
    if call.form not in SETTLED:
        return set()
    if not rows:
        return {'no row'}
    if result.endswith('idem_operation'):
        return {operation_word(fields) for fields in operation_rows(call, rows)}
    value = rows[0][0]
    if result == 'void':
        return {'void'}
    if value is None:
        return {'null'}
    if result == 'boolean':
        return {'true' if value == b't' else 'false'}
    if result == 'bigint':
        return {'zero' if value == b'0' else 'more'}
    return {'value'}


def operation_word(fields):
    if fields is None:
        return 'null'
    outcome = fields[0].decode()
    return f'{outcome} taken over' if outcome == 'ACQUIRED' and fields[4] == b't' else outcome
