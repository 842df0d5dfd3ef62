// The same on connections of postgres.js.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import postgres from 'postgres'
import { CommitRolledBack, Completion, Declined, Idempotency, KeyReused, NotOwned } from 'pg-idempotency'
import { postgresSource } from 'pg-idempotency/postgres'
import { countingSocket, deferred, effects, newKey, poolFor } from './support.js'
import { abandoning } from '../src/transaction.js'
import { Proxy } from './proxy.js'

function connect(t, options) {
  const sql = postgres({ host: process.env.PGHOST, port: Number(process.env.PGPORT), max: 3, onnotice: () => {}, ...options })
  t.after(() => sql.end({ timeout: 1 }))
  return sql
}

function setUp(t, options = {}, sql = connect(t, options), more = {}) {
  return new Idempotency(postgresSource(sql), { scope: 'postgres.js', retry: { base: 1, cap: 60_000 }, ...more })
}

const connectedSocket = (socket = new net.Socket()) => socket.connect(`${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}`)

const insert = (tx, name) => tx`INSERT INTO effect VALUES (${name}, 1)`

function fileWith(text) {
  const file = path.join(process.env.IDEM_WORK, `${newKey()}.sql`)
  writeFileSync(file, text)
  return file
}

test('what is not of postgres.js is refused, also what has reserve, such as SQL of Bun', () => {
  const bun = Object.assign(() => {}, { reserve: async () => bun, options: { adapter: 'postgres', max: 6 } })
  for (const given of [undefined, null, 'postgres://x:secret@y', {}, bun]) {
    assert.throws(() => postgresSource(/** @type {any} */ (given)),
      { name: 'TypeError', message: 'postgresSource needs what postgres(…) of postgres.js gave' })
  }
})

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
  let late, unsent
  await assert.rejects(idempotency.transaction(key, null, async (tx) => {
    late = tx
    unsent = insert(tx, key)
    assert.throws(() => tx.release(), { code: '2D000' })
    await insert(tx, key)
    await tx`SELECT 1/0`.catch(() => {})
  }), CommitRolledBack)
  for (const send of [() => insert(late, key), () => late.unsafe('SELECT 1'), () => late.file('none.sql'), () => late.notify('channel', '')]) {
    assert.throws(send, { code: '25P01' })
  }
  await assert.rejects(unsent, { code: '25P01' })
  assert.equal(await effects(pool, key), 0)
})

test('postgres.js: a statement behind a ROLLBACK or a COMMIT of the work does not commit by itself', async (t) => {
  const idempotency = setUp(t, { max: 1 })
  const pool = poolFor(t)
  const key = newKey()
  const file = fileWith('-- undo\nROLLBACK'), writes = fileWith(`INSERT INTO effect VALUES ('${key}', 1)`)
  const styles = [
    (work) => idempotency.transaction(key, null, work),
    (work) => idempotency.lease(newKey(), null, () => new Completion(1, work)),
    (work) => idempotency.batch(({ tx }) => work(tx)),
  ]
  const goOn = [
    async (tx) => { await tx`ROLLBACK`; await insert(tx, key) },
    async (tx) => { await tx.unsafe('ROLLBACK; SELECT 1 AS total'); await insert(tx, key) },
    async (tx) => { await tx.unsafe('\n abort;').simple(); await tx.unsafe(`INSERT INTO effect VALUES ('${key}', 1)`) },
    (tx) => Promise.all([tx`End`, insert(tx, key)]),
    async (tx) => { const late = insert(tx, key); await tx`COMMIT`.catch(() => tx`ROLLBACK`).catch(() => {}); await late },
    async (tx) => { await tx.file(file); await insert(tx, key) },
    (tx) => Promise.all([tx.file(writes), tx`ROLLBACK`]),
    ...['/* a * b **/COMMIT', '/* a /* b */ / c */COMMIT', '-- x\rCOMMIT', '-- x\n; ROLLBACK', "ROLLBACK; SELECT 'to'",
      'ROLLBACK -- to\n', "PREPARE TRANSACTION 'x'"].map((end) =>
      async (tx) => { await tx.unsafe(end).simple().catch(() => {}); await insert(tx, key) }),
  ]
  for (const style of styles) for (const work of goOn) await style(work).catch(() => {})
  assert.equal(await effects(pool, key), 0)
  for (const style of styles) await assert.rejects(style(goOn[0]), NotOwned)
  let ends
  await assert.rejects(idempotency.transaction(newKey(), null, async (tx) => {
    const end = tx`ROLLBACK`
    ends = await Promise.allSettled([end, end])
  }), NotOwned)
  assert.deepEqual(ends.map(({ status }) => status), ['fulfilled', 'fulfilled'])
  await idempotency.transaction(key, null, async (tx) => {
    await tx`SAVEPOINT own`
    await assert.rejects(tx`SELECT 1/0`, { code: '22012' })
    await tx`ROLLBACK TO own`
    await tx`SAVEPOINT own`
    await tx.unsafe('rollback transaction\nto savepoint own')
    await tx.unsafe('SAVEPOINT own; ROLLBACK/* x */WORK --\nTO own').simple()
    await tx.unsafe('/* a /* b */ COMMIT */ SELECT 1')
    await insert(tx, key)
  })
  assert.equal(await effects(pool, key), 1)
})

test('postgres.js: a file that is read when the work has ended is not sent', async (t) => {
  const idempotency = setUp(t, { max: 1 })
  const pool = poolFor(t)
  const key = newKey()
  const file = fileWith(`INSERT INTO effect VALUES ('${key}', $1)`)
  for (const args of [[1], ['none']]) {
    let late
    await idempotency.transaction(newKey(), null, async (tx) => {
      late = tx.file(file, args)
      late.catch(() => {})
    })
    await assert.rejects(late, { code: '25P01' })
    await idempotency.transaction(newKey(), null, (tx) => insert(tx, newKey()))
  }
  assert.equal(await effects(pool, key), 0)
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

const ends = (tx) => tx`SELECT pg_terminate_backend(pg_backend_pid())`
for (const [what, end] of [
  ['in a statement', ({ tx }) => ends(tx)],
  ['in a statement, and the work goes on', ({ tx }) => ends(tx).catch(() => tx`SELECT 1`.catch(() => {}))],
  ['between two statements', async ({ tx, pool, closed }) => {
    const [{ pid }] = await tx`SELECT pg_backend_pid() AS pid`
    await pool.query('SELECT pg_terminate_backend($1)', [pid])
    await closed
  }],
  ['by an error of its socket', ({ tx, socket }) => {
    setTimeout(() => socket.destroy(Object.assign(new Error('planned'), { code: 'EHOSTUNREACH', syscall: 'read' })), 10)
    return tx`SELECT pg_sleep(0.1)`
  }],
]) {
  test(`postgres.js: the session ends ${what}: repeated from the start`, { timeout: 20_000 }, async (t) => {
    const pool = poolFor(t)
    const closed = deferred()
    let socket
    const idempotency = setUp(t, { onclose: closed.resolve, socket: () => (socket = connectedSocket()) })
    const key = newKey()
    let calls = 0
    const { payload } = await idempotency.transaction(key, null, async (tx) => {
      await insert(tx, key)
      if (++calls === 1) await end({ tx, pool, socket, closed: closed.promise })
      return calls
    })
    assert.deepEqual([payload, await effects(pool, key)], [2, 1])
  })
}

test('postgres.js: sessions that the server ends cost no place in the pool', { timeout: 20_000 }, async (t) => {
  const idempotency = setUp(t, { max: 2 })
  for (const round of [1, 2, 3]) {
    const results = await Promise.all([1, 2, 3, 4, 5].map(() => {
      let calls = 0
      return idempotency.transaction(newKey(), null, async (tx) => {
        if (++calls === 1) await ends(tx)
        return round
      })
    }))
    assert.deepEqual(results.map(({ payload }) => payload), Array(5).fill(round))
  }
})

test('postgres.js: who waits in another source of the pool gets the place of a session that the server has ended', { timeout: 20_000 }, async (t) => {
  const sql = connect(t, { max: 1 })
  const first = await postgresSource(sql).acquire()
  const waiting = postgresSource(sql).acquire()
  await assert.rejects(first.send([{ text: 'SELECT pg_terminate_backend(pg_backend_pid())' }]), { name: 'ConnectionLost' })
  first.close(true)
  const second = await waiting
  second.close(false)
})

test('postgres.js: one place at most goes where the server ends statements of the program\'s own', { timeout: 20_000 }, async (t) => {
  const sql = connect(t, { max: 2 })
  const idempotency = setUp(t, {}, sql)
  await Promise.all([1, 2].map(() => assert.rejects(ends(sql))))
  for (const turns of [1, 2]) assert.equal((await idempotency.transaction(newKey(), null, () => turns)).payload, turns)
})

test('postgres.js: all places are there at once after the server has ended their sessions', { timeout: 20_000 }, async (t) => {
  const sql = connect(t, { max: 2 })
  const idempotency = setUp(t, {}, sql, { retry: { attempts: 1 } })
  const { acquire } = postgresSource(sql)
  const both = deferred()
  let begun = 0
  const work = async (tx) => {
    if (++begun === 2) both.resolve()
    await both.promise
    await ends(tx)
  }
  await Promise.all([1, 2].map(() => assert.rejects(idempotency.transaction(newKey(), null, work), { name: 'ConnectionLost' })))
  await turn()
  for (const connection of await Promise.all([acquire(), acquire()])) connection.close(false)
})

test('postgres.js: no place is lost where the server could not be reached meanwhile', { timeout: 20_000 }, async (t) => {
  const sql = connect(t, { max: 1, backoff: 0 })
  const { path } = sql.options
  let repeats = 0
  const idempotency = setUp(t, {}, sql, { hooks: { retried() { if (++repeats === 2) sql.options.path = path } } })
  let runs = 0
  const { payload } = await idempotency.transaction(newKey(), null, async (tx) => {
    if (++runs === 1) {
      sql.options.path = '/nowhere'
      await ends(tx)
    }
    return runs
  })
  assert.deepEqual([payload, repeats], [2, 2])
})

test('postgres.js: who waits behind a statement of the program\'s own, whose connection ends, gets one', { timeout: 20_000 }, async (t) => {
  let socket
  const sql = connect(t, { max: 1, socket: () => (socket = connectedSocket()) })
  const { acquire } = postgresSource(sql)
  await sql`SELECT 1`
  const ending = assert.rejects(sql`SELECT pg_sleep(600)`)
  await turn()
  const waiting = acquire()
  await turn()
  socket.destroy()
  await ending
  const connection = await waiting
  connection.close(false)
})

test('postgres.js: a connection that comes when its call has failed goes back', { timeout: 20_000 }, async (t) => {
  const held = deferred()
  let sockets = 0
  const sql = connect(t, { max: 2, backoff: 0, socket: async () => { if (++sockets === 2) await held.promise; return connectedSocket() } })
  const { acquire } = postgresSource(sql)
  const first = await acquire()
  const failing = assert.rejects(acquire(), { code: '57P01' })
  await assert.rejects(first.send([{ text: 'SELECT pg_terminate_backend(pg_backend_pid())' }]), { name: 'ConnectionLost' })
  await failing
  held.resolve()
  first.close(true)
  for (const connection of await Promise.all([acquire(), acquire()])) connection.close(false)
})

test('postgres.js: a connection goes back once, and to one', { timeout: 20_000 }, async (t) => {
  const sockets = []
  const sql = connect(t, { max: 2, socket: () => sockets[sockets.push(connectedSocket()) - 1] })
  const { acquire } = postgresSource(sql)
  const isPending = async (promise) => await Promise.race([promise, sleep(50)]) === undefined
  const [first, second] = [await acquire(), await acquire()]
  // One of these is forgotten by postgres.js when a connection ends.
  const waiting = [acquire(), acquire()]
  const sent = first.send([{ text: 'SELECT pg_sleep($1::text::int)', values: ['1'] }])
  await turn()
  sockets[0].destroy()
  await assert.rejects(sent, { name: 'ConnectionLost' })
  first.close(true)
  second.close(false)
  second.close(false)
  const [third, fourth] = await Promise.all(waiting)
  // A cancellation under way would end a statement of whoever is next.
  const [query, cancelled] = [third.tx`SELECT pg_sleep(0.01)`, deferred()]
  query.canceller = () => cancelled.promise
  const asleep = query.then()
  await turn()
  third.cancel()
  third.close(true)
  await asleep
  const fifth = acquire()
  assert.ok(await isPending(fifth))
  cancelled.resolve()
  await fifth
  const sixth = acquire()
  assert.ok(await isPending(sixth))
  // One that has ended goes nowhere.
  await fourth.send([{ text: 'BEGIN' }])
  sockets[1].destroy()
  await once(sockets[1], 'close')
  fourth.close(false)
  await (await sixth).send([{ text: 'ROLLBACK' }])
})

for (const isReachable of [true, false]) {
  const end = isReachable ? 'is ended' : 'that cannot be ended does no harm'
  test(`postgres.js: a statement that nobody waits for any more ${end}, and its connection is used again`, async (t) => {
    const sql = connect(t, { max: 1 })
    const idempotency = setUp(t, {}, sql)
    const { path } = sql.options
    const pool = poolFor(t)
    const key = newKey()
    for (let turns = 0; turns < 2; turns++) {
      let pid, statement
      await assert.rejects(idempotency.transaction(key, null, async (tx) => {
        [{ pid }] = await tx`SELECT ${tx`pg_backend_pid()`} AS ${tx('pid')}`
        for await (const rows of insert(tx, key).cursor()) assert.equal(rows.length, 0)
        statement = tx`SELECT pg_sleep(600)`.catch((error) => error)
        while ((await pool.query("SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", [pid])).rowCount === 0) await turn()
        if (!isReachable) sql.options.path = '/nowhere'
        throw abandoning(new Error('too late'))
      }), /too late/)
      if (!isReachable) await pool.query('SELECT pg_cancel_backend($1)', [pid])
      assert.equal((await statement).code, '57014')
      sql.options.path = path
      const next = await idempotency.transaction(newKey(), null, async (tx) => (await tx`SELECT pg_backend_pid() AS pid`)[0].pid)
      assert.equal(next.payload, pid)
    }
    assert.equal(await effects(pool, key), 0)
  })
}

test('postgres.js: what cannot be reached, and a parser of the user\'s for text', async (t) => {
  const run = (options, work = () => 1, idempotency = setUp(t, options)) => idempotency.transaction(newKey(), null, work)
  const own = Object.assign(new Error('the work'), { code: 'ECONNRESET' })
  await assert.rejects(run({}, () => { throw own }), (error) => error === own)
  const one = setUp(t, { max: 1 })
  await assert.rejects(run({}, (tx) => tx.file('none.sql'), one), { code: 'ENOENT' })
  assert.equal((await run({}, undefined, one)).payload, 1)
  await assert.rejects(run({ database: 'nowhere' }), { code: '3D000' })
  await assert.rejects(run({ host: '127.0.0.1', port: 1, backoff: 0 }), { name: 'ConnectionLost', code: '08006' })
  await assert.rejects(run({ types: { text: { to: 25, from: [25], parse: Number, serialize: String } } }), { code: '42804' })
})

test('postgres.js: n + 2 round trips once a connection knows the statements', async (t) => {
  const count = { trips: 0 }
  const idempotency = setUp(t, { max: 1, socket: () => connectedSocket(countingSocket(count)) })
  const run = () => idempotency.transaction(newKey(), 1, (tx) => insert(tx, 'trips'), { maxLostAttempts: 5 })
  await run()
  count.trips = 0
  await run()
  assert.equal(count.trips, 3)
})

test('postgres.js: statements that somebody threw away are not missed', async (t) => {
  const sql = connect(t, { max: 1 })
  const idempotency = setUp(t, {}, sql)
  const pool = poolFor(t)
  const discard = (tx) => tx.unsafe('DEALLOCATE ALL')
  for (const isWithin of [false, true]) {
    const key = newKey()
    await idempotency.transaction(newKey(), null, (tx) => insert(tx, 'known'))
    if (!isWithin) await discard(sql)
    let runs = 0
    await idempotency.transaction(key, null, async (tx) => {
      await insert(tx, key)
      if (isWithin && ++runs === 1) await discard(tx)
    })
    assert.equal(await effects(pool, key), 1)
  }
})
