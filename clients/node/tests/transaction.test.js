// transaction(): what commits together, what is replayed, and what is repeated.
import assert from 'node:assert/strict'
import net from 'node:net'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout } from 'node:timers/promises'
import { inspect, promisify } from 'node:util'
import { runInNewContext } from 'node:vm'
import pg from 'pg'
import * as all from 'pg-idempotency'
import { BadArgument, CommitRolledBack, Completion, Declined, FakeClock, Idempotency, KeyReused, NotDone, NotOwned, settle } from 'pg-idempotency'
import { ConnectionLost, ServiceMistake } from '../src/errors.js'
import { abandoning, inTransaction } from '../src/transaction.js'
import { deferred, effect, effects, idempotencyFor, newKey, poolFor, portOf, stored } from './support.js'
import { Proxy } from './proxy.js'

test('work runs once, and a repeat gets the same answer', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  const run = () => idempotency.transaction(key, { amount: 7 }, async (tx, operation) => {
    assert.equal(operation.attempt, 1)
    await effect(tx, key)
    return { code: 201, headers: { Location: '/7' }, payload: { id: 7, at: new Date(0) }, body: Buffer.from([0, 255, 92]) }
  })
  const first = await run()
  const second = await run()
  assert.equal(first.outcome, 'COMPLETED')
  assert.equal(first.replayed, false)
  assert.equal(second.replayed, true)
  assert.deepEqual({ ...second, replayed: false, record: null }, first)
  assert.deepEqual(first.payload, { id: 7, at: '1970-01-01T00:00:00.000Z' })
  assert.deepEqual([...second.body], [0, 255, 92])
  assert.equal(await effects(pool, key), 1)
})

test('an error keeps its name where a minifier has renamed its class', () => {
  const classes = Object.entries(all).filter(([, value]) => value.prototype instanceof Error)
  assert.ok(classes.length >= 15, String(classes.length))
  for (const [name, Class] of classes) {
    const own = Object.getOwnPropertyDescriptor(Class, 'name')
    Object.defineProperty(Class, 'name', { ...own, value: 'n' })
    const error = new Class('why', {})
    Object.defineProperty(Class, 'name', own)
    assert.deepEqual([error.name, JSON.parse(JSON.stringify(error)).name], [name, name])
  }
  class Mine extends all.KeyReused {}
  assert.equal(String(new Mine('why')), 'Mine: why')
})

test('a plain value is the payload, and nothing is no payload', async (t) => {
  const { idempotency } = idempotencyFor(t)
  let times = 0
  for (const [value, payload] of [[undefined, undefined], [null, null], [5, 5], [{ code: 5 }, { code: 5 }], [[1], [1]], [{ toJSON: () => ++times }, 1],
    [{ payload: 1, more: 2 }, { payload: 1, more: 2 }], [{ payload: { payload: 1 } }, { payload: 1 }]]) {
    const key = newKey()
    const first = await idempotency.transaction(key, null, () => value)
    const second = await idempotency.transaction(key, null, () => assert.fail('ran again'))
    assert.deepEqual([first.payload, { ...second, replayed: false, record: null }], [payload, first])
  }
})

class Hidden {
  #own
  constructor(own) { this.#own = own }
  get own() { return this.#own }
}
// JSON.stringify makes null, {} or the least of them: two requests would be the same one.
const LOSSY = [NaN, -Infinity, new Date(NaN), Promise.resolve(1), { then() {} }, new Map([[1, 2]]), new Set([1]), /a/, new URLSearchParams('a=1'),
  new Hidden(1), new DataView(new ArrayBuffer(1)), Object.assign(new Map([[1, 2]]), { a: 1 }), Object.assign(new Set([1]), { a: 1 })]

test('a value that is not JSON is refused, at any depth, and nothing is stored', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const lossy = LOSSY.flatMap((value) => [value, { a: [value] }, { toJSON: () => [value] }])
  for (const request of lossy) {
    await assert.rejects(idempotency.transaction(newKey(), request, () => assert.fail('ran')), (error) =>
      error instanceof BadArgument && !(error instanceof ServiceMistake))
  }
  for (const value of [1n, () => 1, { payload: 1n }, { code: 1.5, payload: 1 }, { body: 5 }, ...lossy.map((payload) => ({ payload }))]) {
    const key = newKey()
    await assert.rejects(idempotency.transaction(key, null, async (tx) => { await effect(tx, key); return value }), ServiceMistake)
    assert.equal(await effects(pool, key), 0)
    assert.equal(await stored(pool, key), undefined)
  }
  await assert.rejects(idempotency.transaction(newKey(), 1n, () => assert.fail('ran')), ({ cause }) => cause instanceof TypeError)
  class Order {
    get [Symbol.toStringTag]() { return 'Order' }
    items = [new Uint8Array(0), Buffer.from('a'), new Date(0), undefined]
    total = () => 1
  }
  const { payload } = await idempotency.transaction(newKey(), null, () => ({ payload: [new Order(), {}, [], Object.create(null), runInNewContext('({})')] }))
  assert.deepEqual(payload, [{ items: [{}, { type: 'Buffer', data: [97] }, '1970-01-01T00:00:00.000Z', null] }, {}, [], {}, {}])
})

test('another request under the key is KeyReused, the members\' order does not matter', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  await idempotency.transaction(key, { a: 1, b: 2 }, () => 1)
  for (const request of [{ b: 2, a: 1 }, null]) assert.equal((await idempotency.transaction(key, request, () => 2)).payload, 1)
  await assert.rejects(idempotency.transaction(key, { a: 2 }, () => 2), (error) =>
    error instanceof KeyReused && error.code === 'ID422')
})

test('a request by its hash', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  const call = (byte) => idempotency.transaction(key, undefined, () => 1, { requestHash: Buffer.alloc(32, byte) })
  await call(1)
  assert.equal((await call(1)).replayed, true)
  await assert.rejects(call(2), KeyReused)
})

test('scopes are apart, and a schema can be named', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await idempotency.transaction(key, 1, () => 'a', { scope: 'one' })
  assert.equal((await idempotency.transaction(key, 2, () => 'b', { scope: 'two' })).payload, 'b')
  const named = new Idempotency(pool, { schema: 'public' })
  assert.equal((await named.transaction(key, 1, () => 'c', { scope: 'one' })).payload, 'a')
  const elsewhere = new Idempotency(pool, { schema: 'no"where' })
  await assert.rejects(elsewhere.transaction(key, 1, () => 1), { code: '3F000' })
})

test('a Completion is refused, as nobody would run its writes', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  for (const given of [new Completion(1, () => assert.fail('ran')), { payload: [new Completion(1, () => {})] }]) {
    await assert.rejects(idempotency.transaction(key, null, async (tx) => { await effect(tx, key); return given }),
      { name: 'BadArgument', message: 'a Completion is what the work of a lease returns, or reconcile' })
  }
  assert.deepEqual([await effects(pool, key), await stored(pool, key)], [0, undefined])
})

test('Declined undoes the writes and stores the failure', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  const run = () => idempotency.transaction(key, null, async (tx) => {
    await effect(tx, key)
    await tx.query('SELECT 1/0').catch(() => {})
    throw new Declined(402, { reason: 'no funds' }, { headers: { 'X-A': 'b' }, body: 'no' })
  })
  const [first, second] = [await run(), await run()]
  assert.equal(first.outcome, 'FAILED')
  assert.deepEqual({ ...second, replayed: false, record: null }, first)
  assert.deepEqual([second.code, second.payload, second.body.toString()], [402, { reason: 'no funds' }, 'no'])
  assert.equal(await effects(pool, key), 0)
})

test('Declined with retryAfter may be tried again after it', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  const decline = (retryAfter) => idempotency.transaction(key, null, () => { throw new Declined(429, null, { retryAfter }) })
  assert.equal((await decline(60_000)).retryAfter, 60_000)
  const replay = await decline(60_000)
  assert.equal(replay.replayed, true)
  assert.ok(replay.retryAfter > 50_000 && replay.retryAfter <= 60_000)
  const other = newKey()
  const now = (work) => idempotency.transaction(other, null, work)
  await now(() => { throw new Declined(429, null, { retryAfter: 0 }) })
  assert.deepEqual(await now((tx, { attempt }) => attempt).then(({ payload }) => payload), 2)
  // what a text means the first answer says, too, and a consumer brings the message again
  const work = () => { throw new Declined(429, null, { retryAfter: '1 minute' }) }
  for (const style of ['transaction', 'lease']) {
    const first = await idempotency[style](newKey(), null, work)
    assert.deepEqual([first.retryAfter, settle(first)], [60_000, { action: 'again', after: 60_000 }])
  }
})

test('while one runs, the others are in progress, or wait', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  const [begun, go] = [deferred(), deferred()]
  const owner = idempotency.transaction(key, null, async () => { begun.resolve(); await go.promise; return 'done' })
  await begun.promise
  const other = await idempotency.transaction(key, null, () => assert.fail('ran twice'))
  assert.deepEqual([other.outcome, other.retryAfter, other.attempt], ['IN_PROGRESS', null, null])
  const waiter = idempotency.transaction(key, null, () => assert.fail('ran twice'), { wait: '1 minute' })
  go.resolve()
  assert.equal((await owner).replayed, false)
  assert.deepEqual((await waiter).payload, 'done')
})

test('who waits for another owner holds no connection', async (t) => {
  const [begun, finish] = [deferred(), deferred()]
  // Before the pool ends: also where an assertion fails.
  t.after(() => finish.resolve())
  const clock = new FakeClock()
  // A begin that waits on the server is given up. pgbouncer refuses statement_timeout.
  const { pool, idempotency } = idempotencyFor(t, { clock }, { max: 2, query_timeout: 20_000 })
  const key = newKey()
  const owner = idempotency.transaction(key, null, () => { begun.resolve(); return finish.promise })
  await begun.promise
  const waiter = idempotency.transaction(key, null, () => assert.fail('ran twice'), { wait: 3_600_000 })
  await Promise.race([clock.whenPending(1), waiter])
  assert.equal(pool.totalCount - pool.idleCount, 1)
  finish.resolve('first')
  await owner
  await clock.advance(1000)
  assert.equal((await waiter).payload, 'first')
})

test('a caught error of a statement is CommitRolledBack, not success', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.transaction(key, null, async (tx) => {
    await effect(tx, key)
    await tx.query('SELECT 1/0').catch(() => {})
    return 'believed'
  }), CommitRolledBack)
  assert.equal(await effects(pool, key), 0)
  assert.equal(await stored(pool, key), undefined)
})

test('a COMMIT that answers ROLLBACK is CommitRolledBack', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { idempotency } = idempotencyFor(t, {}, proxy.options)
  await proxy.order('arm', 'rollback')
  await assert.rejects(idempotency.transaction(newKey(), null, () => 1), CommitRolledBack)
  assert.equal((await proxy.order('state')).hits, 1)
})

test('40001 and 40P01 repeat the whole, up to the limit', async (t) => {
  const clock = new FakeClock({ auto: true })
  const retried = []
  const { pool, idempotency } = idempotencyFor(t, {
    clock, retry: { attempts: 4, base: 50, cap: 2000 }, hooks: { retried: (event) => retried.push(event) },
  })
  for (const state of ['40001', '40P01']) {
    const key = newKey()
    let calls = 0
    const result = await idempotency.transaction(key, null, async (tx) => {
      await effect(tx, key)
      if (++calls < 4) await tx.query(`DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '${state}'; END $$`)
      return calls
    })
    assert.equal(result.payload, 4)
    assert.equal(await effects(pool, key), 1)
    calls = -9
    await assert.rejects(idempotency.transaction(newKey(), null, async (tx) => {
      calls++
      await tx.query(`DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '${state}'; END $$`)
    }), { code: state })
    assert.equal(calls, -5)
  }
  assert.equal(retried.length, 12)
  assert.deepEqual([retried[0].code, retried[0].repeat, retried[0].scope], ['40001', 1, 'tests'])
})

test('a connection lost at COMMIT, which the server got, ends with the replay', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { pool, idempotency } = idempotencyFor(t, {}, proxy.options)
  const direct = poolFor(t)
  const key = newKey()
  await proxy.order('arm', 'lose')
  let calls = 0
  const result = await idempotency.transaction(key, { a: 1 }, async (tx) => {
    calls++
    await effect(tx, key)
    return { code: 201, payload: 'stored' }
  })
  assert.equal((await proxy.order('state')).hits, 1)
  assert.equal((await proxy.order('texts')).filter((text) => /^COMMIT/i.test(text)).length, 2)
  assert.deepEqual([result.outcome, result.replayed, result.code, result.payload], ['COMPLETED', true, 201, 'stored'])
  assert.equal(calls, 1)
  assert.equal(await effects(direct, key), 1)
  assert.equal(pool.totalCount, 1)
})

for (const [what, end] of [
  ['is lost before COMMIT', (tx, proxy) => proxy.order('cut')],
  ['an operator ends', (tx) => tx.query('SELECT pg_terminate_backend(pg_backend_pid())')],
  ['takes too long', (tx) => tx.query("DO $$ BEGIN RAISE SQLSTATE '25P04'; END $$")],
  ['is idle for too long', (tx) => tx.query("SET LOCAL idle_in_transaction_session_timeout = 1").then(() => setTimeout(100))
    .then(() => tx.query('SELECT 1'))],
  ['is told that it is', (tx) => tx.query("DO $$ BEGIN RAISE SQLSTATE '25P03'; END $$")],
]) {
  test(`a session that ${what} is repeated from the start`, async (t) => {
    const proxy = await Proxy.forTest(t)
    const { idempotency } = idempotencyFor(t, {}, proxy.options)
    const key = newKey()
    let calls = 0
    const result = await idempotency.transaction(key, null, async (tx) => {
      await effect(tx, key)
      if (++calls === 1) await end(tx, proxy)
      return calls
    })
    assert.deepEqual([result.payload, result.replayed], [2, false])
    assert.equal(await effects(poolFor(t), key), 1)
  })
}

// The pool has taken its own listener off by then, and who awaits the client has not come yet.
test('a session that ends with the packet in which it is ready is repeated, and ends no process', async (t) => {
  const message = (kind, body) => {
    const head = Buffer.alloc(5)
    head.write(kind)
    head.writeInt32BE(body.length + 4, 1)
    return Buffer.concat([head, Buffer.from(body)])
  }
  let connections = 0
  const server = net.createServer((socket) => {
    socket.on('error', () => {})
    if (++connections > 1) return socket.pipe(net.connect(`${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}`)).pipe(socket)
    socket.once('data', () => socket.end(Buffer.concat([
      message('R', '\0\0\0\0'), message('Z', 'I'), message('E', 'SFATAL\0C57P01\0Mended\0\0')])))
  }).listen()
  server.closeAllConnections = () => {}
  const { idempotency, pool } = idempotencyFor(t, {}, { host: '127.0.0.1', port: await portOf(t, server), ssl: false })
  const key = newKey()
  assert.equal((await idempotency.transaction(key, null, (tx) => effect(tx, key).then(() => 'done'))).payload, 'done')
  assert.equal(await effects(pool, key), 1)
})

test('the session of a lost connection is waited for', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { idempotency } = idempotencyFor(t, {}, proxy.options)
  const pool = poolFor(t)
  const key = newKey()
  const waits = async (count) => {
    const waiting = 'SELECT count(*)::int AS count FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())'
    while ((await pool.query(waiting)).rows[0].count !== count) await turn()
  }
  const holder = await pool.connect()
  await holder.query('SELECT pg_advisory_lock(1)')
  const run = idempotency.transaction(key, null, async (tx) => {
    // While it waits, the session does not notice that its connection has ended, and so it still has the key.
    await tx.query('SELECT pg_advisory_xact_lock(1)')
    await effect(tx, key)
  })
  await Promise.race([run, waits(1)])
  await proxy.order('cut')
  await Promise.race([run, waits(2)])
  holder.release(true)
  assert.equal((await run).outcome, 'COMPLETED')
  assert.equal(await effects(pool, key), 1)
})

test('a wait that only the server can read is read again after a lost answer', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { idempotency } = idempotencyFor(t, {}, proxy.options)
  await proxy.order('arm', 'lose', '::interval')
  assert.equal((await idempotency.transaction(newKey(), null, () => 1, { wait: '1 s' })).payload, 1)
  assert.equal((await proxy.order('state')).hits, 1)
})

test('a server that cannot be reached: bounded repeats, then the error', { timeout: 10_000 }, async (t) => {
  const clock = new FakeClock({ auto: true })
  const retry = { attempts: undefined, base: undefined }
  const { idempotency } = idempotencyFor(t, { clock, retry }, { host: '127.0.0.1', port: 1 })
  await assert.rejects(idempotency.transaction(newKey(), null, () => 1), { name: 'ConnectionLost', code: '08006' })
})

test('a full pool is an error at once, and no connection is lost by it', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, {}, { max: 1, connectionTimeoutMillis: 3000 })
  const client = await pool.connect()
  await assert.rejects(idempotency.transaction(newKey(), null, () => 1), { code: '53300' })
  client.release()
  assert.equal((await idempotency.transaction(newKey(), null, () => 1)).payload, 1)
  const ended = new pg.Pool()
  await ended.end()
  await assert.rejects(new Idempotency(ended).transaction(newKey(), null, () => 1), { code: '53300' })
})

test('a statement that work did not wait for cannot run outside of the transaction', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, {}, { max: 1 })
  const key = newKey()
  const styles = [
    (work) => idempotency.transaction(newKey(), null, work),
    (work) => idempotency.lease(newKey(), null, () => new Completion(1, work)),
    (work) => idempotency.batch(({ tx }) => work(tx)),
  ]
  const ends = [() => 1, () => { throw new Declined(402) }, () => { throw new NotDone() }, () => { throw new TypeError('planned') }]
  const processes = new Set()
  let late
  for (const style of styles) {
    for (const end of ends) {
      const statements = []
      await style((tx) => {
        late = tx
        processes.add(tx.processID)
        // The first comes while the end is sent.
        statements.push(assert.rejects(turn().then(() => effect(tx, key)), { code: '25P01' }))
        return end()
      }).catch(() => {})
      await Promise.all([...statements, assert.rejects(effect(late, key), { code: '25P01' })])
    }
  }
  await assert.rejects(promisify(late.query)('SELECT 1'), { code: '25P01' })
  assert.throws(() => late.release(), { code: '2D000' })
  assert.deepEqual([processes.size, await effects(pool, key)], [1, 0])
})

test('a statement behind a ROLLBACK or a COMMIT of the work does not commit by itself', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  const styles = [
    (work) => idempotency.transaction(key, null, work),
    (work) => idempotency.lease(newKey(), null, () => new Completion(1, work)),
    (work) => idempotency.batch(({ tx }) => work(tx)),
  ]
  for (const style of styles) {
    await assert.rejects(style(async (tx) => {
      await effect(tx, key)
      await tx.query('ROLLBACK')
      await effect(tx, key)
    }), NotOwned)
  }
  await assert.rejects(idempotency.transaction(key, null, async (tx) => {
    await tx.query('COMMIT').catch(() => tx.query('ROLLBACK'))    // as ORMs do it
    await effect(tx, key)
  }), NotOwned)
  assert.equal(await effects(pool, key), 0)
  assert.equal(await stored(pool, key), undefined)
})

test('a connection goes back after an error of the server, and is ended where that is not certain', async () => {
  for (const [code, statement, transaction] of [['22012', false, true], ['57P01', true, true], [undefined, true, true]]) {
    const broken = []
    const connection = {
      send: async () => { throw Object.assign(new Error('planned'), { code }) },
      named: (error) => error, endWork() {}, cancel() {}, close: (given) => broken.push(given),
    }
    const idempotency = new Idempotency({ acquire: async () => connection }, { retry: { attempts: 1 } })
    await assert.rejects(idempotency.expiresAt('key'), /planned/)
    await assert.rejects(idempotency.transaction('key', null, () => 1), /planned/)
    assert.deepEqual(broken, [statement, transaction], code)
  }
})

test('nothing is repeated where the database was dropped', async () => {
  for (const [code, expected] of [['57P05', 2], ['57P04', 1]]) {
    let calls = 0
    const acquire = async () => { calls++; throw Object.assign(new Error('planned'), { code }) }
    await assert.rejects(new Idempotency({ acquire }, { retry: { attempts: 2, base: 1 } }).expiresAt('key'), /planned/)
    assert.equal(calls, expected, code)
  }
})

test('what work gets has the members of its client', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const { payload } = await idempotency.transaction(newKey(), null, (tx) => [tx.escapeIdentifier('a"b'), typeof tx.processID])
  assert.deepEqual(payload, ['"a""b"', 'number'])
})

test('two keys that would be stored as the same text are refused, and so are two scopes', async (t) => {
  const { idempotency } = idempotencyFor(t)
  await assert.rejects(idempotency.transaction('\ud800', null, () => 1), BadArgument)
  await assert.rejects(idempotency.lease(newKey(), null, () => 1, { scope: '\ud801' }), BadArgument)
  // Such keys of a batch, too: '[object Object]' would be one key for two.
  for (const keys of [['\ud801'], [{}], [7], [undefined], [null], 'keys', undefined]) {
    await assert.rejects(idempotency.batch((batch) => batch.beginMany(keys)), BadArgument)
    await assert.rejects(idempotency.batch((batch) => batch.completeMany(keys)), BadArgument)
  }
  await assert.rejects(idempotency.batch((batch) => batch.beginMany([newKey()]), { scope: 7 }), BadArgument)
})

test('a pool of another kind is refused, and none of its connections is lost', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  new Idempotency(pool)
  assert.equal(pool.listenerCount('error'), 1)
  const connect = pool.connect.bind(pool)
  pool.connect = async () => Object.create(await connect(), { connection: { value: undefined } })
  await assert.rejects(idempotency.transaction(newKey(), null, () => 1), /pg-native cannot be used/)
  assert.equal(pool.totalCount - pool.idleCount, 0)
})

test('retention, max_attempts and bad arguments', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await idempotency.transaction(key, null, () => 1, { retention: '2 days' })
  const { rows: [{ days }] } = await pool.query(
    'SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM idempotency_store WHERE idempotency_key = $1', [key])
  assert.equal(days, 2)
  const once = newKey()
  const decline = () => idempotency.transaction(once, null, () => { throw new Declined(503, null, { retryAfter: 0 }) }, { maxAttempts: 1 })
  await decline()
  assert.deepEqual((await decline()).payload, { reason: 'attempts exhausted', attempts: 1 })
  await assert.rejects(idempotency.transaction('', null, () => 1), BadArgument)
  for (const unreadable of ['a\0', '\ud800']) {
    await assert.rejects(idempotency.transaction(key, unreadable, () => 1), BadArgument)
    await assert.rejects(idempotency.lease(key, unreadable, () => 1), BadArgument)
  }
  await assert.rejects(idempotency.transaction(undefined, null, () => 1), BadArgument)
})

test('no error quotes what the server cannot read', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const unreadable = { card: '4111\0' }
  for (const style of ['transaction', 'lease']) {
    for (const [request, response] of [[unreadable, 1], [null, unreadable]]) {
      const error = await idempotency[style](newKey(), request, () => ({ payload: response })).catch((error) => error)
      assert.ok(error instanceof all.IdempotencyError)
      assert.ok(!inspect(error).includes('4111'), inspect(error))
    }
  }
})

test('an operation whose attempts are lost too often fails for good', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, {}, { max: 1 })
  const key = newKey()
  const limit = { maxLostAttempts: 2 }
  const breaks = () => idempotency.transaction(key, null, async (tx) => { await tx.query('SELECT 1/0') }, limit)
  for (const attempt of [1, 2]) await assert.rejects(breaks(), { code: '22012' }, `attempt ${attempt}`)
  const { outcome, payload, replayed } = await breaks()
  assert.deepEqual([outcome, payload, replayed], ['FAILED', { reason: 'attempts lost', lost_attempts: 2 }, true])
  const again = await idempotency.transaction(key, null, () => 1)
  assert.deepEqual([again.outcome, again.payload], ['FAILED', payload])
  assert.deepEqual((await pool.query('SHOW idempotency.max_lost_attempts')).rows, [{ 'idempotency.max_lost_attempts': '0' }])
})

test('NotDone is thrown again, and its rollback is no lost attempt', async (t) => {
  const { pool, idempotency } = idempotencyFor(t, {}, { max: 1 })
  const key = newKey()
  const notDone = new NotDone({ cause: Object.assign(new Error('not now'), { code: '40001' }) })
  let runs = 0
  const refused = (name, spoil, thrown = notDone) => assert.rejects(idempotency.transaction(name, null, async (tx) => {
    runs++
    await effect(tx, name)
    await tx.query(spoil).catch(() => {})
    throw thrown
  }, { maxLostAttempts: 1 }), (error) => error === thrown, spoil)
  await refused(key, 'SELECT 1')
  await refused(key, 'SELECT 1/0')
  await refused(key, 'ROLLBACK')
  assert.equal((await idempotency.transaction(key, null, () => 1)).outcome, 'COMPLETED')
  for (const thrown of [notDone, new NotDone()]) await refused(newKey(), 'SELECT pg_terminate_backend(pg_backend_pid())', thrown)
  assert.deepEqual([runs, await effects(pool, key)], [5, 0])
})

test('hooks see what happens, never a payload, and cannot disturb', async (t) => {
  const events = []
  const failures = [() => { throw new Error('a hook that fails') }, () => { throw null }, () => Promise.reject(new Error('later'))]
  const note = (event) => failures[(events.push(event) - 1) % 3]()
  const names = ['acquired', 'replayed', 'inProgress', 'mismatch', 'declined']
  const { idempotency } = idempotencyFor(t, { hooks: Object.fromEntries(names.map((name) => [name, note])) })
  const warned = new Promise((resolve) => process.once('warning', resolve))
  const key = newKey()
  await idempotency.transaction(key, 'secret', async () => {
    await idempotency.transaction(key, 'secret', () => 1)
    return 'secret'
  })
  await idempotency.transaction(key, 'secret', () => 1)
  await idempotency.transaction(key, 'other secret', () => 1).catch(() => {})
  await idempotency.transaction('', 'secret', () => 1).catch(() => {})
  await idempotency.transaction(newKey(), 'secret', () => { throw new Declined(402, 'secret') })
  assert.deepEqual(events.map(({ event }) => event), ['acquired', 'inProgress', 'replayed', 'mismatch', 'acquired', 'declined'])
  assert.deepEqual(events[0], { event: 'acquired', scope: 'tests', key, attempt: 1 })
  assert.ok(!JSON.stringify(events).includes('secret'))
  assert.match((await warned).message, /the hook acquired failed/)
})

test('a rollback waits for no statement that is abandoned, and asks no connection that is lost', async () => {
  const after = async (error, send = async () => []) => {
    const calls = []
    const connection = {
      endWork() {}, named: (given) => given,
      cancel() { calls.push('cancel') },
      send(statements) { calls.push(statements[0].text); return send() },
      close(broken) { calls.push(broken ? 'end' : 'give back') },
    }
    const settings = /** @type {any} */ ({ source: { acquire: async () => connection } })
    await assert.rejects(inTransaction(settings, async () => { throw error }), error)
    return calls
  }
  assert.deepEqual(await after(new Error('the work')), ['ROLLBACK', 'give back'])
  assert.deepEqual(await after(new Error('the work'), async () => { throw new Error('no answer') }), ['ROLLBACK', 'end'])
  assert.deepEqual(await after(abandoning(new Error('too late'))), ['cancel', 'end'])
  assert.deepEqual(await after(new ConnectionLost('gone')), ['cancel', 'end'])
})
