// lease(): work outside of the database, its heartbeat, and what is known when it fails.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import {
  BadArgument, Completion, Declined, FakeClock, KeyReused, LeaseLost, NotDone, NotOwned, Reconciled, TooLarge, Unknown, Unstorable,
} from 'pg-idempotency'
import { ServiceMistake } from '../src/errors.js'
import { deferred, effect, effects, expire, idempotencyFor, newKey, stored } from './support.js'
import { Proxy } from './proxy.js'

test('work runs once, and response and writes commit together', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  const run = () => idempotency.lease(key, { a: 1 }, async (operation, signal) => {
    assert.equal(typeof operation.fence, 'bigint')
    assert.deepEqual([operation.attempt, operation.takenOver, signal.aborted], [1, false, false])
    return new Completion({ code: 201, payload: 'charged' }, (tx) => effect(tx, key))
  })
  const [first, second] = [await run(), await run()]
  assert.deepEqual([first.outcome, first.replayed, first.code, first.payload], ['COMPLETED', false, 201, 'charged'])
  assert.deepEqual({ ...second, replayed: false, record: null }, first)
  assert.equal(await effects(pool, key), 1)
  await assert.rejects(idempotency.lease(key, { a: 2 }, () => 1), KeyReused)
})

test('the third beat finds out that the lease is over', async (t) => {
  const clock = new FakeClock()
  const { idempotency, pool } = idempotencyFor(t, { clock })
  const connect = pool.connect.bind(pool)
  const lost = []
  await assert.rejects(idempotency.lease(newKey(), null, async (operation, signal) => {
    pool.connect = () => Promise.reject(new Error('down'))
    for (const ms of [3334, 3334, 3332]) {
      // Also where the last beat could reach the database.
      if (ms === 3332) pool.connect = connect
      await clock.advance(ms)
      lost.push(signal.aborted)
    }
  }, { lease: 10_000 }), LeaseLost)
  assert.deepEqual([lost, clock.pending], [[false, false, true], 0])
})

test('a network that hangs: the work is told when the lease is over, and the call has an end', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { pool, idempotency } = idempotencyFor(t, {}, { ...proxy.options, max: 2, connectionTimeoutMillis: 2000 })
  const told = deferred()
  const lease = idempotency.lease(newKey(), null, async (operation, signal) => {
    await proxy.order('hang')
    signal.addEventListener('abort', () => told.resolve())
    return new Promise(() => {})
  }, { lease: '1 s' })
  await assert.rejects(lease, LeaseLost)
  await told.promise
  assert.equal(pool.totalCount, 0, 'a connection that hangs is ended')
  // The same while the end is sent.
  const other = await Proxy.forTest(t)
  const { idempotency: ending } = idempotencyFor(t, {}, { ...other.options, max: 2, connectionTimeoutMillis: 2000 })
  await assert.rejects(ending.lease(newKey(), null, async () => { await other.order('hang'); return 1 }, { lease: '1 s' }), { name: 'LeaseLost' })
})

test('a heartbeat that gets no connection in time: the lease is lost', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, {}, { max: 1 })
  let taken
  await assert.rejects(idempotency.lease(newKey(), null, async () => {
    taken = await pool.connect()
    return new Promise(() => {})
  }, { lease: '1 s' }), LeaseLost)
  taken.release()
})

test('a lease that is longer than any timer of Node', async (t) => {
  const { idempotency, pool } = idempotencyFor(t, { lease: '100 days' })
  const connect = pool.connect.bind(pool)
  let connections = 0
  pool.connect = () => { connections++; return sleep(20).then(connect) }
  const { outcome } = await idempotency.lease(newKey(), null, () => sleep(50))
  assert.deepEqual([outcome, connections], ['COMPLETED', 2])
})

test('a policy makes the lease shorter: the first beats come in time', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, { scope: 'short' })
  await pool.query("SELECT idem_set_policy('short', max_lease => '6 seconds')")
  const key = newKey()
  const { payload } = await idempotency.lease(key, null, async (operation, signal) => {
    const [seen, over] = [new Set(), new Set()]
    while (seen.size < 3 && !signal.aborted) {
      const { rows: [{ until, is_over: isOver }] } = await pool.query(`SELECT lease_expires_at::text AS until, lease_expires_at <= clock_timestamp() AS is_over
        FROM idempotency_store WHERE idempotency_key = $1`, [key])
      seen.add(until)
      if (isOver) over.add(until)
      await sleep(20)
    }
    return [signal.aborted, ...over]
  })
  await pool.query("DELETE FROM idempotency_scope WHERE pattern = 'short'")
  assert.deepEqual(payload, [false])
})

test('the heartbeat extends the lease at each third of it', async (t) => {
  const clock = new FakeClock()
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { clock, lease: '90 s', hooks: { leaseLost: (event) => lost.push(event) } })
  const connect = pool.connect.bind(pool)
  const end = deferred()
  let underWay
  const key = newKey()
  const left = async () => (await pool.query(
    'SELECT lease_expires_at FROM idempotency_store WHERE idempotency_key = $1', [key])).rows[0].lease_expires_at
  const result = await idempotency.lease(key, null, async (operation) => {
    const before = await left()
    await clock.advance(operation.leaseLeft / 3 - 1000)
    assert.deepEqual(await left(), before)
    await clock.advance(1001)
    assert.ok(await left() > before)
    const after = await left()
    await clock.advance(10 * operation.leaseLeft)
    assert.ok(await left() > after)
    pool.connect = () => end.promise.then(connect)
    underWay = clock.advance(operation.leaseLeft / 3 + 1)
    pool.connect = connect
    return 'long'
  })
  assert.equal(result.payload, 'long')
  end.resolve()
  await underWay
  assert.deepEqual([clock.pending, lost], [0, []])
})

test('a lease waits without a connection: the owner ends over a pool of one', async (t) => {
  const clock = new FakeClock()
  const { idempotency } = idempotencyFor(t, { clock }, { max: 1 })
  for (const wait of [3_600_000, '1 hour']) {
    const key = newKey()
    const begun = deferred()
    const finish = deferred()
    const owner = idempotency.lease(key, null, () => { begun.resolve(); return finish.promise })
    await begun.promise
    const waiter = idempotency.lease(key, null, () => assert.fail('ran'), { wait })
    // The heartbeat of the owner, and the pause of the one that waits.
    await clock.whenPending(2)
    finish.resolve('first')
    assert.equal((await owner).replayed, false)
    await clock.advance(1000)
    const { payload, replayed } = await waiter
    assert.deepEqual([payload, replayed], ['first', true])
  }
})

test('a lease waits no longer than it was told', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, () => { throw new TypeError('socket hang up') }), TypeError)
  for (const [base, pauses] of [[0, [10, 20, 40, 80, 160, 320, 640, 1000, 730]], [300, [300, 600, 1000, 1000, 100]]]) {
    const slept = []
    const clock = new FakeClock({ auto: true })
    const sleepOf = clock.sleep.bind(clock)
    clock.sleep = (ms) => { slept.push(ms); return sleepOf(ms) }
    const { idempotency: waiting } = idempotencyFor(t, { clock, retry: { base } })
    assert.equal((await waiting.lease(key, null, () => assert.fail('ran'), { wait: 3000 })).outcome, 'IN_PROGRESS')
    assert.deepEqual(slept, pauses)
    await assert.rejects(waiting.lease(key, null, () => assert.fail('ran'), { wait: 'soon' }), { code: 'ID400' })
  }
})

test('nothing begins after the lease', async (t) => {
  // The answer to the begin came too late; then reconcile lost the lease.
  const clock = new FakeClock()
  const late = [30_000, 0]
  const { pool, idempotency } = idempotencyFor(t, { clock, hooks: { acquired: () => { clock.advance(late.shift()) } } })
  const key = newKey()
  const begun = []
  for (const reconciles of [0, 1]) {
    await assert.rejects(idempotency.lease(key, null, () => begun.push('work'), {
      reconcile: async () => {
        begun.push('reconcile')
        await pool.query('UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = $1', [key])
        await clock.advance(11_000)
        return Reconciled.notDone
      },
    }), LeaseLost)
    assert.equal(begun.length, reconciles)
    await expire(pool, key)
  }
})

test('a lost lease aborts the work, and its result is not stored', async (t) => {
  const clock = new FakeClock()
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { clock, hooks: { leaseLost: (event) => lost.push(event) } })
  const key = newKey()
  let reason
  const leased = idempotency.lease(key, null, async (operation, signal) => {
    await pool.query('SELECT idem_release($1, scope => $2, fence => $3)', [key, 'tests', String(operation.fence)])
    await clock.advance(11_000)
    assert.equal(signal.aborted, true)
    reason = signal.reason
    return 'too late'
  })
  await assert.rejects(leased, LeaseLost)
  assert.ok(reason instanceof LeaseLost)
  assert.equal(await stored(pool, key), undefined)
  assert.deepEqual(lost.map(({ event }) => event), ['leaseLost'])
})

test('a lease lasts from when it was asked for', async (t) => {
  let late = 0
  const clock = new FakeClock()
  const now = clock.now.bind(clock)
  clock.now = () => now() + late
  const { pool, idempotency } = idempotencyFor(t, { clock })
  const connect = pool.connect.bind(pool)
  const lost = []
  await assert.rejects(idempotency.lease(newKey(), null, async (operation, signal) => {
    // The answer to its only beat takes five seconds.
    pool.connect = () => {
      late = 5000
      pool.connect = () => Promise.reject(new Error('down'))
      return connect()
    }
    for (const ms of [10_000, 24_000, 2000]) {
      await clock.advance(ms)
      lost.push(signal.aborted)
    }
  }, { lease: 30_000 }), Error)
  assert.deepEqual(lost, [false, false, true])
})

test('a heartbeat that fails once is tried again', async (t) => {
  const clock = new FakeClock()
  const proxy = await Proxy.forTest(t)
  const { idempotency } = idempotencyFor(t, { clock }, proxy.options)
  const result = await idempotency.lease(newKey(), null, async (operation, signal) => {
    await proxy.order('refuse')
    await clock.advance(11_000)
    await proxy.order('admit')
    await clock.advance(60_000)
    return signal.aborted
  })
  assert.equal(result.payload, false)
})

test('a note of progress goes to the next owner, and to nobody who lost the lease', async (t) => {
  const events = []
  const note = ({ event }) => events.push(event)
  const { pool, idempotency } = idempotencyFor(t, { hooks: { acquired: note, takenOver: note } })
  const key = newKey()
  let first
  await assert.rejects(idempotency.lease(key, null, async (operation) => {
    first = operation
    assert.deepEqual([operation.takenOver, operation.payload], [false, undefined])
    await idempotency.progress(operation, { charged: 'ch_0' })
    await idempotency.progress(operation, { charged: 'ch_1' })
    throw new TypeError('socket hang up')
  }), TypeError)
  await expire(pool, key)
  const seen = []
  const result = await idempotency.lease(key, null, async (operation) => {
    seen.push(operation.payload)
    assert.deepEqual([operation.takenOver, operation.attempt], [true, 2])
    await assert.rejects(idempotency.progress(first, 'late'), LeaseLost)
    await assert.rejects(idempotency.progress(operation, undefined), ServiceMistake)
    await assert.rejects(idempotency.progress(operation, 'x'.repeat(2_000_000)), { name: 'TooLarge' })
    await idempotency.progress(operation, null)
    return 'sent'
  }, { reconcile: (operation) => { seen.push(operation.payload); return Reconciled.notDone } })
  assert.deepEqual([seen, result.takenOver], [[{ charged: 'ch_1' }, { charged: 'ch_1' }], true])
  assert.deepEqual(events, ['acquired', 'acquired', 'takenOver'])
  assert.deepEqual([result.payload, (await idempotency.lease(key, null, () => assert.fail('ran'))).payload], ['sent', 'sent'])
})

test('the hook takenOver is told where a transaction or a batch goes on after a lease', async (t) => {
  const events = []
  const note = ({ event }) => events.push(event)
  const { pool, idempotency } = idempotencyFor(t, { hooks: { acquired: note, takenOver: note } })
  const keys = [newKey(), newKey()]
  for (const key of keys) {
    await assert.rejects(idempotency.lease(key, null, () => { throw new TypeError('socket hang up') }), TypeError)
    await expire(pool, key)
  }
  events.length = 0
  await idempotency.transaction(keys[0], null, () => 1)
  await idempotency.batch(async (batch) => {
    await batch.beginMany([keys[1]])
    await batch.completeMany([keys[1]])
  })
  assert.deepEqual(events, ['acquired', 'takenOver', 'acquired', 'takenOver'])
})

test('a note whose answer is lost is stored once more', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { pool } = idempotencyFor(t)
  const { idempotency } = idempotencyFor(t, {}, proxy.options)
  const key = newKey()
  await idempotency.lease(key, null, async (operation) => {
    await proxy.order('arm', 'lose', 'idem_progress')
    await idempotency.progress(operation, 7)
    assert.equal((await pool.query('SELECT response_payload AS note FROM idempotency_store WHERE idempotency_key = $1', [key])).rows[0].note, 7)
  })
  assert.equal((await proxy.order('state')).hits, 1)
  assert.equal((await proxy.order('texts')).filter((text) => text.includes('idem_progress')).length, 2)
})

test('writes that fail: nothing is written, and the lease stays', async (t) => {
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: (event) => lost.push(event) } })
  const key = newKey()
  const run = (error) => idempotency.lease(key, null, () => new Completion(1, async (tx) => {
    await effect(tx, key)
    throw error
  }))
  await assert.rejects(run(new TypeError('crash')), TypeError)
  assert.deepEqual(await stored(pool, key), { status: 'PENDING', code: null, attempt: 1 })
  const declined = newKey()
  const decline = (work) => idempotency.lease(declined, null, work)
  const failed = await decline(() => new Completion(1, async (tx) => { await effect(tx, key); throw new Declined(402, 'no') }))
  const again = await decline(() => assert.fail('ran'))
  assert.deepEqual({ ...again, replayed: false, record: null }, failed)
  await expire(pool, key)
  await assert.rejects(run(new NotDone()), NotDone)
  assert.equal(await effects(pool, key), 0)
  const result = await idempotency.lease(key, null, ({ takenOver }) => takenOver)
  assert.equal(result.payload, true, 'the first attempt has to be reconciled all the same')
  assert.equal(lost.length, 0)
})

test('writes that end their transaction are NotOwned, and no answer that is not stored', async (t) => {
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: (event) => lost.push(event) } })
  for (const ending of ['ROLLBACK', 'ROLLBACK; BEGIN']) {
    const key = newKey()
    const work = () => new Completion(1, async (tx) => {
      await tx.query(ending)
      await effect(tx, key)
    })
    await assert.rejects(idempotency.lease(key, null, work), NotOwned)
    assert.equal((await stored(pool, key)).status, 'PENDING')
  }
  const { payload } = await idempotency.lease(newKey(), null, () => new Completion(1, (tx) => tx.query('COMMIT')))
  assert.equal(payload, 1)
  assert.equal(lost.length, 0)
})

for (const [what, answer, expected] of [
  ['done: its response is stored, and the work does not run', () => Reconciled.done({ code: 201, payload: 'known' }), 'known'],
  ['not done: the work runs', () => Reconciled.notDone, 'worked'],
]) {
  test(`reconcile says ${what}`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    const key = newKey()
    await abandoned(pool, idempotency, key)
    const run = () => idempotency.lease(key, null, () => 'worked', { reconcile: answer })
    assert.equal((await run()).payload, expected)
    assert.equal((await run()).replayed, true)
    const first = await idempotency.lease(newKey(), null, () => 'first', { reconcile: () => assert.fail('nobody was before') })
    assert.equal(first.payload, 'first')
  })
}

for (const [what, reconcile, retryAfter = null] of [
  ['unknown', () => Reconciled.unknown({ retryAfter: 7000 }), 7000],
  ['unknown for a time that is over', () => Reconciled.unknown({ retryAfter: -5 }), 0],
  ['nothing that is known', () => undefined],
  ['an error', () => { throw new TypeError('gateway is down') }],
  ...[Infinity, NaN, '5 s'].map((retryAfter) => [`unknown for ${retryAfter}`, () => Reconciled.unknown({ retryAfter })]),
]) {
  test(`reconcile says ${what}: Unknown, and nobody owns the operation`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    const key = newKey()
    await abandoned(pool, idempotency, key)
    await assert.rejects(idempotency.lease(key, null, () => assert.fail('ran'), { reconcile }), (error) =>
      error instanceof Unknown && error.name === 'Unknown' && error.retryAfter === retryAfter)
    const { rows: [{ over }] } = await pool.query(
      "SELECT status = 'PENDING' AND lease_expires_at <= clock_timestamp() AS over FROM idempotency_store WHERE idempotency_key = $1", [key])
    assert.equal(over, true)
    let asked = 0
    await idempotency.lease(key, null, () => 1, { reconcile: () => { asked++; return Reconciled.notDone } })
    assert.equal(asked, 1, 'the next begin reconciles')
  })
}

test('work that does not know, as of another operation, leaves the lease: the next attempt reconciles', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const doubt = () => { throw new Unknown('the gateway did not answer') }
  for (const work of [doubt, () => new Completion(1, doubt)]) {
    const key = newKey()
    await assert.rejects(idempotency.lease(key, null, work), Unknown)
    const { rows: [row] } = await pool.query('SELECT status FROM idempotency_store WHERE idempotency_key = $1', [key])
    assert.equal(row?.status, 'PENDING')
  }
})

for (const [what, hits] of [['comes at once', 0], ['is lost once', 1]]) {
  test(`a lease that another attempt has ended has its answer: the end ${what}`, async (t) => {
    const proxy = await Proxy.forTest(t)
    const { pool, idempotency: other } = idempotencyFor(t)
    const events = []
    const hooks = { leaseLost: ({ event }) => events.push(event), replayed: ({ event }) => events.push(event) }
    const { idempotency } = idempotencyFor(t, { hooks }, proxy.options)
    const key = newKey()
    const { payload, replayed } = await idempotency.lease(key, null, async () => {
      await expire(pool, key)
      await other.lease(key, null, () => 'theirs')
      if (hits > 0) await proxy.order('arm', 'before', 'idem_complete')
      return new Completion('ours', (tx) => effect(tx, key))
    })
    assert.deepEqual([payload, replayed, events], ['theirs', true, ['leaseLost', 'replayed']])
    assert.deepEqual([(await proxy.order('state')).hits, await effects(pool, key)], [hits, 0])
    assert.equal((await other.lease(key, null, () => 1)).payload, 'theirs')
  })
}

test('so has one whose heartbeat finds out, whether its work heeds the signal or not', async (t) => {
  for (const end of [() => 'ours', () => new Promise(() => {}), (signal) => { throw signal.reason }]) {
    const clock = new FakeClock()
    const lost = []
    const { pool, idempotency } = idempotencyFor(t, { clock, hooks: { leaseLost: ({ event }) => lost.push(event) } })
    const { idempotency: other } = idempotencyFor(t)
    const key = newKey()
    const { payload, replayed } = await idempotency.lease(key, null, async (operation, signal) => {
      await expire(pool, key)
      await other.lease(key, null, () => { throw new Declined(402, 'theirs') })
      await clock.advance(11_000)
      assert.equal(signal.aborted, true)
      return end(signal)
    })
    assert.deepEqual([payload, replayed, lost], ['theirs', true, ['leaseLost']])
  }
})

async function days(pool, key) {
  const { rows: [{ days }] } = await pool.query(
    'SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM idempotency_store WHERE idempotency_key = $1', [key])
  return days
}

const cycle = {}
cycle.self = cycle
const LARGE = 'x'.repeat(2_000_000)

for (const [what, answer, error] of [
  ['a function', () => {}, BadArgument], ['a cycle', cycle, BadArgument], ['NaN', { rate: NaN }, BadArgument], ['a bigint', 1n, BadArgument],
  ['bytes that are none', { body: 7 }, BadArgument], ['a code that is none', { code: 'x', payload: 1 }, BadArgument],
  ['a retention that is none', { payload: 1, retention: -1 }, BadArgument], ['a retention of the past', { payload: 1, retention: '-1 s' }, BadArgument],
  ['a header that is none', { payload: 1, headers: { a: 1n } }, BadArgument],
  ['a member that throws', { get payload() { throw new RangeError('broken') } }, RangeError], ['NUL', 'a\0b', { code: '22P05' }], ['half a character', '\ud800', { code: '22P02' }], ['a code of more than an int', { code: 2 ** 40, payload: 1 }, { code: '22003' }],
  ['more than is stored', LARGE, TooLarge],
]) {
  test(`work whose answer cannot be stored is done, and not repeated: ${what}`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    for (const writes of [false, true]) {
      const key = newKey()
      let runs = 0
      const run = () => idempotency.lease(key, null, () => {
        runs++
        return writes ? new Completion(answer, (tx) => effect(tx, key)) : answer
      }, { reconcile: () => assert.fail('asked') })
      await assert.rejects(run(), error)
      assert.deepEqual(await stored(pool, key), { status: 'COMPLETED', code: 500, attempt: 1 })
      for (const call of [run, run]) await assert.rejects(call(), { name: 'Unstorable', message: 'the work was done, and its answer could not be stored' })
      assert.deepEqual([runs, await effects(pool, key)], [1, writes ? 1 : 0])
    }
  })
}

for (const [what, payload, options, error] of [
  ['a cycle', cycle, {}, BadArgument], ['a bigint', 1n, {}, BadArgument], ['NUL', 'a\0b', {}, { code: '22P05' }],
  ['half a character', '\ud800', {}, { code: '22P02' }], ['more than is stored', LARGE, {}, TooLarge],
  ['a header that is none', 1, { headers: { a: 1n } }, BadArgument], ['a retention that is none', 1, { retention: '-1 s' }, BadArgument],
  ['a time that is none', 1, { retryAfter: NaN }, BadArgument], ['a text that is no time', 1, { retryAfter: 'soon' }, BadArgument],
]) {
  test(`work that declines with what cannot be stored is done, and not repeated: ${what}`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    const decline = () => { throw new Declined(402, payload, options) }
    const declining = async (tx) => { await effect(tx, what); decline() }
    const answering = (answer) => () => new Completion(answer, declining)
    for (const [work, wrong] of [[decline, error], [answering('good'), error], [answering(() => {}), BadArgument]]) {
      const key = newKey()
      let runs = 0
      const run = () => idempotency.lease(key, null, () => { runs++; return work() })
      await assert.rejects(run(), wrong)
      assert.deepEqual(await stored(pool, key), { status: 'COMPLETED', code: 500, attempt: 1 })
      await assert.rejects(run(), { name: 'Unstorable' })
      assert.deepEqual([runs, await effects(pool, what)], [1, 0])
    }
    const key = newKey()
    const inTransaction = idempotency.transaction(key, null, async (tx) => { await effect(tx, what); decline() })
    await assert.rejects(inTransaction, error)
    assert.deepEqual([await stored(pool, key), await effects(pool, what)], [undefined, 0])
  })
}

test('what is declined and cannot be stored is kept away for as long as it asked for', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, () => { throw new Declined(402, LARGE, { retention: '90 days' }) }), TooLarge)
  assert.equal(await days(pool, key), 90)
})

test('a refusal that does not reach the database leaves the lease', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { pool, idempotency } = idempotencyFor(t, { retry: { attempts: 1 } }, proxy.options)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, async () => {
    await proxy.order('arm', 'before', 'idem_fail')
    throw new Declined(402)
  }), { name: 'ConnectionLost' })
  assert.deepEqual(await stored(pool, key), { status: 'PENDING', code: null, attempt: 1 })
})

test('a function whose result cannot be stored: the same', async (t) => {
  const { idempotency } = idempotencyFor(t)
  let runs = 0
  const once = idempotency.idempotent(() => { runs++; return () => {} }, { name: 'unstorable', key: (key) => key, style: 'lease' })
  const key = newKey()
  await assert.rejects(once(key), BadArgument)
  await assert.rejects(once(key), Unstorable)
  assert.equal(runs, 1)
})

test('an answer that cannot be stored is kept away for as long as it asked for', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, () => ({ payload: LARGE, retention: '90 days' })), TooLarge)
  assert.equal(await days(pool, key), 90)
})

test('an answer with the code 500 is one', async (t) => {
  const { idempotency } = idempotencyFor(t)
  for (const answer of [{ code: 500, payload: 1 }, { code: 500, payload: null }, { code: 500, body: '' }, { code: 500, payload: undefined, headers: {} }, { code: 501, payload: undefined }]) {
    const key = newKey()
    const first = await idempotency.lease(key, null, () => answer)
    assert.deepEqual({ ...await idempotency.lease(key, null, () => assert.fail('ran')), replayed: false, record: null }, first)
  }
})

test('what reconcile has found and cannot be stored is asked for again: the work does not run', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await abandoned(pool, idempotency, key)
  for (const [found, error] of [[() => {}, BadArgument], [LARGE, TooLarge]]) {
    await assert.rejects(idempotency.lease(key, null, () => assert.fail('ran'), { reconcile: () => Reconciled.done(found) }), error)
    await expire(pool, key)
  }
  const { payload } = await idempotency.lease(key, null, () => assert.fail('ran'), { reconcile: () => Reconciled.done('found') })
  assert.equal(payload, 'found')
})

test('an answer that cannot be stored, and an end whose answer is lost', async (t) => {
  const proxy = await Proxy.forTest(t)
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: (event) => lost.push(event) } }, proxy.options)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, async () => {
    await proxy.order('arm', 'lose', 'idem_complete')
    return () => {}
  }), BadArgument)
  assert.deepEqual([(await proxy.order('state')).hits, lost, (await stored(pool, key)).code], [1, [], 500])
})

test('an answer that cannot be stored, of a lease that is lost: the stored one is the answer, and the error where there is none', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  for (const isEnded of [true, false]) {
    const key = newKey()
    const theirs = () => { if (!isEnded) throw new TypeError('lost'); return 'theirs' }
    const ended = idempotency.lease(key, null, async () => {
      await expire(pool, key)
      await idempotency.lease(key, null, theirs).catch(() => {})
      return new Completion(() => {}, (tx) => effect(tx, key))
    })
    if (isEnded) assert.equal((await ended).payload, 'theirs')
    else await assert.rejects(ended, BadArgument)
    assert.equal(await effects(pool, key), 0)
  }
})

test('writes that decline, and writes that fail as an answer may, beside an answer that cannot be stored', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const lease = (key, answer, writes) => idempotency.lease(key, null, () => new Completion(answer, writes))
  const { outcome, payload } = await lease(newKey(), () => {}, () => { throw new Declined(402, 'no') })
  assert.deepEqual([outcome, payload], ['FAILED', 'no'])
  for (const [answer, error] of [['good', { code: '22P02' }], [LARGE, TooLarge]]) {
    const key = newKey()
    let calls = 0
    const fail = async (tx) => { calls++; await tx.query("SELECT 'x'::int") }
    await assert.rejects(lease(key, answer, fail), error)
    assert.deepEqual([await stored(pool, key), calls], [{ status: 'PENDING', code: null, attempt: 1 }, 1])
  }
})

test('a lease that another attempt owns is LeaseLost', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, async () => {
    await expire(pool, key)
    await assert.rejects(idempotency.lease(key, null, () => { throw new TypeError('lost') }), TypeError)
    return new Completion('ours', (tx) => effect(tx, key))
  }), LeaseLost)
  assert.equal(await effects(pool, key), 0)
})

test('a lost lease gets no answer of another operation with its key', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, 'mine', async () => {
    await pool.query('DELETE FROM idempotency_store WHERE idempotency_key = $1', [key])
    await idempotency.lease(key, 'another', () => 'theirs')
    return 'ours'
  }), LeaseLost)
})

test('an end that is stored, and whose answer is lost, is replayed', async (t) => {
  const proxy = await Proxy.forTest(t)
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: (event) => lost.push(event) } }, proxy.options)
  const connect = pool.connect.bind(pool)
  let connects = 0
  const result = await idempotency.lease(newKey(), null, async () => {
    await proxy.order('arm', 'lose', 'idem_complete')
    // The end, its repeat, and the look for the end: that is repeated, too.
    pool.connect = () => ++connects === 3 ? Promise.reject(new Error('down')) : connect()
    return { code: 201, payload: 'ours' }
  })
  assert.deepEqual([result.replayed, result.code, result.payload, lost.length], [true, 201, 'ours', 0])
  assert.equal((await proxy.order('state')).hits, 1)
})

test('NotDone counts also where the release fails', async (t) => {
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: ({ event }) => lost.push(event) } })
  await assert.rejects(idempotency.lease(newKey(), null, () => {
    pool.connect = () => Promise.reject(new Error('down'))
    throw new NotDone()
  }), NotDone)
  assert.deepEqual(lost, ['leaseLost'])
})

for (const [lease, patience] of [['2 s', 5000], ['90 s', 90_000]]) {
  test(`the end of a lease of ${lease} is waited for ${patience} ms, and a connection that comes later goes back`, async (t) => {
    const clock = new FakeClock()
    const { pool, idempotency } = idempotencyFor(t, { clock }, { max: 1 })
    let taken
    const refused = assert.rejects(idempotency.lease(newKey(), null, async () => { taken = await pool.connect() }, { lease }), LeaseLost)
    // The end is sent, and then the question what became of it.
    for (const sent of [1, 2]) {
      while (pool.waitingCount < sent) await turn()
      await clock.advance(patience - 1000)
      await turn()
      assert.equal(pool.waitingCount, sent)
      await clock.advance(1000)
    }
    await refused
    taken.release()
    while (pool.waitingCount > 0) await turn()
    assert.equal(pool.idleCount, 1)
  })
}

test('writes are repeated after 40001', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  let calls = 0
  await idempotency.lease(key, null, () => new Completion(1, async (tx) => {
    await effect(tx, key)
    if (++calls < 3) await tx.query("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
  }))
  assert.equal(calls, 3)
  assert.equal(await effects(pool, key), 1)
})

async function abandoned(pool, idempotency, key) {
  await assert.rejects(idempotency.lease(key, null, () => { throw new TypeError('lost') }), TypeError)
  await expire(pool, key)
}
