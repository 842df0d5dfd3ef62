"""
Short scenes that see every documented outcome.  Each runs once by itself: a run
never depends on chance to see one of them.  They are parts of programs like all
others, too: what goes on before and after is drawn.
"""
from calls import Call
from values import MARKER, Fence

INSERT, UPDATE, DELETE = 'INSERT', 'UPDATE {s}.idempotency_store SET updated_at', 'DELETE FROM {s}.idempotency_store'
REPEATABLE = 'BEGIN ISOLATION LEVEL REPEATABLE READ'
PAYLOAD, OTHER = f'"{MARKER}"', f'"another {MARKER}"'


def scenes(functions, main, peer, by_hand, with_kinds):
    """Lists of steps; main and peer make one, by_hand finds the owner's statements."""
    def call(name, **given):
        signature = next(f for f in functions.found if f.name == name and given.keys() <= {a.name for a in f.arguments})
        arguments = {argument.name: argument for argument in signature.arguments}
        return Call(signature, tuple((arguments[argument], value) for argument, value in given.items()), 'select')

    def hand(beginning):
        return next(sql for sql in by_hand if sql.startswith(beginning))

    keys = ['a']
    acquire = [call('idem_begin', key='a'), call('idem_begin', key='a', lease='1 hour'), call('idem_begin_batch', keys=keys)]
    ends = [call('idem_complete', key='a', response=PAYLOAD), call('idem_fail', key='a', error=PAYLOAD),
        call('idem_complete_batch', keys=keys, responses=[PAYLOAD]), call('idem_release', key='a')]
    extend = call('idem_extend', key='a', lease='1 hour')
    fenced = [call('idem_complete', key='a', fence=Fence()), call('idem_fail', key='a', fence=Fence()),
        call('idem_release', key='a', fence=Fence()), call('idem_extend', key='a', lease='1 hour', fence=Fence()),
        call('idem_progress', key='a', progress=PAYLOAD, fence=Fence())]
    others = [call('idem_begin', key='a', lease='1 hour'), call('idem_begin_batch', keys=keys), call('idem_lock', resources=keys),
        call('idem_call', handler='fuzz.returns(jsonb)', key='a'), call('idem_advance', stream='a', seq=3), call('idem_gc'),
        call('idem_lookup', key='a'), call('idem_lost_attempts', key='a'), call('idem_forget', key='a')]
    administration = [call(name, **given) for name, given in (
        ('idem_gc', {}), ('idem_grant', {'role': 'fuzz_target'}), ('idem_revoke', {'role': 'fuzz_target'}),
        ('idem_schedule_gc', {}), ('idem_reseal', {}), ('idem_claim_scope', {'pattern': 's', 'role': 'fuzz_app'}),
        ('idem_unclaim_scope', {'pattern': 's'}), ('idem_set_policy', {'pattern': 's'}), ('idem_stats_reset', {}))]
    lease = call('idem_begin', key='a', lease='1 hour')
    found = []

    # another writer stores the key; somebody deletes the record
    for begin in acquire:
        for end in ends:
            found.append([main('begin', 'BEGIN'), main('call', begin), peer('by hand', hand(INSERT)), main('call', end)])
            found.append([main('begin', 'BEGIN'), main('call', begin), main('by hand', hand(DELETE)), main('call', end)])
            found.append([main('begin', 'BEGIN'), main('call', begin),
                main('set', ('idempotency.max_response_size', '0')), main('call', end)])
    # what the snapshot saw is changed
    for last in fenced + others:
        for change in ([peer('by hand', hand(UPDATE))], [peer('call', call('idem_advance', stream='a', seq=2))],
                [peer('call', call('idem_gc'))]):
            found.append([peer('call', lease), main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), *change, main('call', last)])
    claim = call('idem_claim_scope', pattern='s', role='fuzz_target')
    for last in (claim, call('idem_unclaim_scope', pattern='s'), call('idem_set_policy', pattern='s')):
        found.append([peer('call', claim), main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), peer('call', claim), main('call', last)])
    # a role without rights, or in a scope that is another's
    for last in fenced + others + administration:
        found.append([main('set', ('ROLE', 'fuzz_stranger')), main('call', last)])
        found.append([main('set', ('ROLE', 'fuzz_app')), main('call', last)])
    for last in ends + fenced + others + [extend, call('idem_may_use_scope')]:
        if any(argument.name == 'scope' for argument in last.signature.arguments):
            scope = next(argument for argument in last.signature.arguments if argument.name == 'scope')
            scoped = Call(last.signature, last.values + ((scope, 's'),), 'select')
            found.append([main('call', lease), main('call', claim), main('set', ('ROLE', 'fuzz_app')), main('call', scoped)])
    # somebody else has it; there is no room for more
    for last in others:
        found.append([peer('begin', 'BEGIN'), peer('call', call('idem_lock', resources=keys)),
            peer('call', call('idem_begin', key='a')), main('call', last)])
        found.append([main('begin', 'BEGIN'), main('call', call('idem_lock', resources=['b', 'c'])),
            main('set', ('idempotency.max_operations_per_transaction', '1')), main('call', last)])
    for last in fenced:
        found.append([peer('call', lease), main('begin', 'BEGIN'), main('call', call('idem_lock', resources=['b', 'c'])),
            main('set', ('idempotency.max_operations_per_transaction', '1')), main('call', last)])
    # another end of the same attempt has not committed
    for last in fenced:
        found.append([peer('call', lease), peer('begin', 'BEGIN'), peer('call', fenced[0]), main('call', last)])
    # a lease that has run out; responses that are not sealed
    found.append([peer('call', lease), peer('by hand', hand("UPDATE {s}.idempotency_store SET lease")), main('begin', 'BEGIN'), main('call', acquire[2])])
    found.append([main('call', lease), main('by hand', hand('UPDATE {s}.idempotency_store SET expires')), main('call', fenced[4])])
    unsealed = [peer('by hand', hand(INSERT)), peer('by hand', hand('UPDATE {s}.idempotency_store SET response'))]
    found.append([*unsealed, main('call', call('idem_reseal'))])
    found.append([*unsealed, main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), peer('by hand', hand(UPDATE)),
        main('call', call('idem_reseal'))])
    found.append([peer('by hand', hand(INSERT)), peer('by hand', hand('UPDATE {s}.idempotency_store SET expires')), main('call', call('idem_gc'))])
    found.append([main('call', claim), main('call', call('idem_unclaim_scope', pattern='s'))])
    # failures that are forgotten together
    failed = [peer('call', lease), peer('call', fenced[1])]
    forget = call('idem_forget_failed', scope='', reason='mended')
    found += [[*failed, main('call', forget)], [main('call', forget)], [main('set', ('ROLE', 'fuzz_stranger')), main('call', forget)],
        [main('begin', 'BEGIN READ ONLY'), main('call', forget)],
        [main('call', claim), main('set', ('ROLE', 'fuzz_app')), main('call', call('idem_forget_failed', scope='s', reason='mended'))],
        [*failed, main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), peer('by hand', hand(UPDATE)), main('call', forget)],
        [*failed, main('begin', 'BEGIN'), main('call', call('idem_lock', resources=['b', 'c'])),
            main('set', ('idempotency.max_operations_per_transaction', '1')), main('call', forget)]]
    # one call is enough
    for name, given in (('idem_fingerprint', {'request': None}), ('idem_grant', {'role': None}), ('idem_revoke', {'role': None}),
            ('idem_grant', {'role': '4294967295'}), ('idem_revoke', {'role': '0'}), ('idem_schedule_gc', {'schedule': ''}),
            ('idem_reseal', {'max_rows': 0}), ('idem_unclaim_scope', {'pattern': '*a'}), ('idem_set_policy', {'pattern': None}),
            ('idem_claim_scope', {'pattern': None, 'role': 'fuzz_app'}), ('idem_gc', {'max_rows': -1}), ('idem_step_key', {'key': '', 'step': 'a'}),
            ('idem_claim_scope', {'pattern': 'a', 'role': '0'}), ('idem_call', {'handler': 'fuzz.nonesuch(jsonb)', 'key': 'a'}),
            ('idem_call', {'handler': 'fuzz.returns', 'key': 'a'}),
            ('idem_call', {'handler': 'fuzz.secret(jsonb)', 'key': 'a'}), ('idem_lookup', {'key': ''}),
            ('idem_forget', {'key': ''}), ('idem_forget_failed', {'scope': '', 'reason': ''}), ('idem_advance', {'stream': '', 'seq': 1}),
            ('idem_advance', {'stream': 'a', 'seq': 0}), ('idem_begin', {'key': ''}), ('idem_begin', {'key': 'a', 'request': '{'}),
            ('idem_begin', {'key': 'a'}), ('idem_begin_batch', {'keys': ['']}), ('idem_begin_batch', {'keys': []}),
            ('idem_call', {'handler': 'fuzz.raises(jsonb)', 'key': 'a'}), ('idem_call', {'handler': 'fuzz.returns(jsonb)', 'key': ''}),
            ('idem_complete', {'key': 'a'}), ('idem_complete_batch', {'keys': ['']}), ('idem_complete_batch', {'keys': ['a']}),
            ('idem_complete_batch', {'keys': []}), ('idem_fail', {'key': 'a'}), ('idem_release', {'key': 'a'}),
            ('idem_extend', {'key': 'a', 'lease': '1 hour'}), ('idem_extend', {'key': 'a', 'lease': '1 hour', 'fence': 1}),
            ('idem_progress', {'key': 'a', 'progress': PAYLOAD}), ('idem_progress', {'key': 'a', 'progress': PAYLOAD, 'fence': 1}),
            ('idem_fingerprint', {'request': PAYLOAD}), ('idem_step_key', {'key': 'a', 'step': 'a'}), ('idem_lock', {'resources': ['']}),
            ('idem_lost_attempts', {'key': ''}), ('idem_lost_stats', {}), ('idem_stats', {}), ('idem_stats_reset', {}),
            ('idem_grant', {'role': 'fuzz_target'}), ('idem_revoke', {'role': 'fuzz_target'}), ('idem_schedule_gc', {}),
            ('idem_set_policy', {'pattern': 's'}), ('idem_set_rights', {'role': 'fuzz_target', 'command': 'GRANT %s ON %s TO %s'}),
            ('idem_unclaim_scope', {'pattern': 's'})):
        found.append([main('call', call(name, **given))])
    found.append([main('set', ('ROLE', 'fuzz_app')), main('call', call('idem_call', handler='fuzz.secret(jsonb)', key='a'))])
    found.append([main('call', call('idem_reseal'))])
    found += everyday(call, hand, main)
    if with_kinds:
        found += kinds_of_store(call, hand, main, peer)
    return found


def everyday(call, hand, main):
    """What most drawn programs see, too."""
    begin, batch, lease = call('idem_begin', key='a'), call('idem_begin_batch', keys=['a']), call('idem_begin', key='a', lease='1 hour')
    handler = {'handler': 'fuzz.returns(jsonb)', 'key': 'a'}
    too_large = main('set', ('idempotency.max_response_size', '0'))
    found = [[main(wait, name)] for wait in ('deadlock', 'blocked') for name in ('idem_advance', 'idem_begin', 'idem_lock')]
    # the operation has ended, its lease has run out, its request was another
    for end in ('idem_complete', 'idem_fail'):
        found.append([main('begin', 'BEGIN'), main('call', begin), main('call', call(end, key='a')), main('call', begin), main('call', batch)])
    found.append([main('call', lease), main('by hand', hand('UPDATE {s}.idempotency_store SET lease')), main('call', lease)])
    for name, given in (('idem_begin', {'key': 'a', 'request': OTHER}), ('idem_begin_batch', {'keys': ['a'], 'requests': [OTHER]}),
            ('idem_call', handler | {'request': OTHER})):
        found.append([main('call', call('idem_begin', key='a', request=PAYLOAD, lease='1 hour')), main('call', call(name, **given))])
    # a response or a note that is too large; a record that is forgotten; an old event
    found.append([too_large, main('call', call('idem_call', **handler))])
    found.append([too_large, main('call', lease), main('call', call('idem_progress', key='a', progress=PAYLOAD, fence=Fence()))])
    found.append([main('by hand', hand(INSERT)), main('call', call('idem_forget', key='a'))])
    found.append([main('call', call('idem_advance', stream='a', seq=seq)) for seq in (2, 1)])
    return found


def kinds_of_store(call, hand, main, peer):
    """The store changes its kind, also in between; runs in the kind that the database has."""
    found = []
    lease = call('idem_begin', key='a', lease='1 hour')
    kinds = [call('idem_partition_store', period='4 hours'), call('idem_partition_store', period='1 day'), call('idem_unpartition_store'),
        call('idem_gc')]
    for kind in kinds:
        found.append([main('call', kind), main('call', lease), peer('call', kinds[2]),
            main('call', call('idem_complete', key='a', fence=Fence())), peer('call', kinds[0])])
        found.append([main('begin', 'BEGIN'), main('call', call('idem_begin', key='a')), peer('call', kind),
            main('call', call('idem_complete', key='a', response=PAYLOAD)), main('verb', 'COMMIT')])
        found.append([main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), peer('call', kind), main('call', lease)])
        found.append([main('begin', REPEATABLE), main('call', call('idem_lookup', key='a')), peer('call', lease), main('call', kind)])
        found.append([peer('by hand', hand(INSERT)), main('begin', 'BEGIN'), main('call', kind), main('verb', 'ROLLBACK')])
        found.append([main('set', ('ROLE', 'fuzz_app')), main('call', kind)])
        found.append([main('begin', 'BEGIN'), main('call', kinds[0]), peer('call', kind)])
    for period in (None, '0', '-1 day', '2 years', 'infinity'):
        found.append([main('call', call('idem_partition_store', period=period))])
    return found
