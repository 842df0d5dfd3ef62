// lease(): work outside of the database, and what is known when it fails.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { Completion, Declined, FakeClock, KeyReused, LeaseLost, NotDone, NotOwned, Reconciled, Unknown } from 'pg-idempotency'
import { ServiceMistake } from '../src/errors.js'
import { abandoned, deferred, effect, effects, expire, idempotencyFor, newKey, stored } from './support.js'
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
  for (const [ending, goesOn] of [['ROLLBACK', false], ['ROLLBACK', true], ['ROLLBACK; BEGIN', true]]) {
    const key = newKey()
    const work = () => new Completion(1, async (tx) => {
      await tx.query(ending)
      if (goesOn) await effect(tx, key)
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
