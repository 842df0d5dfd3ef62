// The same on connections of postgres.js.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import postgres from 'postgres'
import { CommitRolledBack, Completion, Declined, Idempotency, KeyReused } from 'pg-idempotency'
import { postgresSource } from 'pg-idempotency/postgres'
import { countingSocket, effects, newKey, poolFor } from './support.js'
import { Proxy } from './proxy.js'

function setUp(t, options = {}) {
  const sql = postgres({ host: process.env.PGHOST, port: Number(process.env.PGPORT), max: 3, onnotice: () => {}, ...options })
  t.after(() => sql.end({ timeout: 1 }))
  return new Idempotency(postgresSource(sql), { scope: 'postgres.js', retry: { base: 1, cap: 20 } })
}

const insert = (tx, name) => tx`INSERT INTO effect VALUES (${name}, 1)`

test('postgres.js: once, replayed, declined, refused', async (t) => {
  const idempotency = setUp(t)
  const pool = poolFor(t)
  const key = newKey()
  const run = (request) => idempotency.transaction(key, request, async (tx) => {
    await insert(tx, key)
    return { code: 201, payload: { a: 1 }, body: Buffer.from([0, 1]) }
  })
  const [first, second] = [await run(1), await run(1)]
  assert.deepEqual({ ...second, replayed: false, record: null }, first)
  await assert.rejects(run(2), KeyReused)
  assert.equal(await effects(pool, key), 1)
  const failed = newKey()
  const decline = () => idempotency.transaction(failed, 1, async (tx) => {
    await insert(tx, failed)
    throw new Declined(402, 'no')
  })
  await decline()
  assert.deepEqual((await decline()).code, 402)
  assert.equal(await effects(pool, failed), 0)
})

test('postgres.js: a caught error is CommitRolledBack, and a late statement is refused', async (t) => {
  const idempotency = setUp(t)
  const pool = poolFor(t)
  const key = newKey()
  let late
  await assert.rejects(idempotency.transaction(key, null, async (tx) => {
    late = tx
    await insert(tx, key)
    await tx`SELECT 1/0`.catch(() => {})
  }), CommitRolledBack)
  for (const send of [() => insert(late, key), () => late.unsafe('SELECT 1'), () => late.file('none.sql'), () => late.notify('channel', '')]) {
    assert.throws(send, { code: '25P01' })
  }
  assert.equal(await effects(pool, key), 0)
})

test('postgres.js: a lease with writes', async (t) => {
  const idempotency = setUp(t)
  const pool = poolFor(t)
  const key = newKey()
  const run = () => idempotency.lease(key, null, () => new Completion('charged', (tx) => insert(tx, key)))
  assert.equal((await run()).replayed, false)
  assert.equal((await run()).payload, 'charged')
  assert.equal(await effects(pool, key), 1)
})

test('postgres.js: a connection lost at COMMIT ends with the replay', async (t) => {
  const proxy = await Proxy.forTest(t)
  const idempotency = setUp(t, { ...proxy.options, max: 1 })
  const pool = poolFor(t)
  const key = newKey()
  const result = await idempotency.transaction(key, null, async (tx) => {
    await insert(tx, key)
    await proxy.order('arm', 'lose')
    return 'once'
  })
  assert.deepEqual([result.replayed, result.payload], [true, 'once'])
  assert.equal(await effects(pool, key), 1)
})

test('postgres.js: n + 2 round trips once a connection knows the statements', async (t) => {
  const count = { trips: 0 }
  const idempotency = setUp(t, { max: 1, socket: () => countingSocket(count).connect(`${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}`) })
  const run = () => idempotency.transaction(newKey(), 1, (tx) => insert(tx, 'trips'), { maxLostAttempts: 5 })
  await run()
  count.trips = 0
  await run()
  assert.equal(count.trips, 3)
})
