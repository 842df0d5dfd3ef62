// The heartbeat of a lease, and how the work is told that the lease is lost.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { FakeClock, LeaseLost, Reconciled } from 'pg-idempotency'
import { deferred, expire, idempotencyFor, newKey, stored } from './support.js'
import { Proxy } from './proxy.js'

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
  await assert.rejects(ending.lease(newKey(), null, async () => { await other.order('hang'); return 1 }, { lease: '1 s' }),
    { name: 'LeaseLost' })
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
