// Batches of messages, plain functions, and what a broker is told.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import postgres from 'postgres'
import { BadArgument, ConnectionLost, Declined, Idempotency, InProgress, NotEnded, NotOwned, settle } from 'pg-idempotency'
import { postgresSource } from 'pg-idempotency/postgres'
import { Proxy } from './proxy.js'
import { effect, effects, idempotencyFor, newKey } from './support.js'

test('a batch begins and completes many, in the order of the keys', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const prefix = newKey()
  const keys = ['a', 'b"\\', 'a', '{,}'].map((name) => `${prefix}${name}`)
  const run = (requests) => idempotency.batch(async (batch) => {
    const operations = await batch.beginMany(keys, requests)
    const mine = operations.filter(({ outcome }) => outcome === 'ACQUIRED')
    for (const { key } of mine) await effect(batch.tx, key)
    const count = await batch.completeMany(mine.map(({ key }) => key), mine.map(({ key }) => ({ key })))
    return { outcomes: operations.map(({ outcome }) => outcome), count, operations }
  })
  const first = await run([1, { t: '"quoted\\"' }, 1, null])
  assert.deepEqual(first.outcomes, ['ACQUIRED', 'ACQUIRED', 'IN_PROGRESS', 'ACQUIRED'])
  assert.equal(first.count, 3)
  const second = await run([2, { t: '"quoted\\"' }, 1, 'unchecked'])
  assert.deepEqual(second.outcomes, ['MISMATCH', 'COMPLETED', 'COMPLETED', 'COMPLETED'])
  assert.deepEqual(second.operations[1].payload, { key: keys[1] })
  for (const key of keys) assert.equal(await effects(pool, key), 1)
})

test('a batch compares requests by their hashes, and none where there is none', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const keys = [newKey(), newKey()]
  const outcomes = (...bytes) => idempotency.batch(async (batch) => {
    const operations = await batch.beginMany(keys, undefined,
      { requestHashes: bytes.map((byte) => byte && Buffer.alloc(32, byte)) })
    const mine = operations.filter(({ outcome }) => outcome === 'ACQUIRED')
    await batch.completeMany(mine.map(({ key }) => key))
    return operations.map(({ outcome }) => outcome)
  })
  assert.deepEqual(await outcomes(1, null), ['ACQUIRED', 'ACQUIRED'])
  assert.deepEqual(await outcomes(2, 2), ['MISMATCH', 'COMPLETED'])
})

test('a batch that forgets one is refused at COMMIT, and is repeated after 40001', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const keys = [newKey(), newKey()]
  await assert.rejects(idempotency.batch(async (batch) => {
    await batch.beginMany(keys)
    await effect(batch.tx, keys[0])
    await batch.completeMany([keys[0]])
  }), NotEnded)
  assert.equal(await effects(pool, keys[0]), 0)
  let calls = 0
  await idempotency.batch(async (batch) => {
    await batch.beginMany(keys)
    if (++calls === 1) await batch.tx.query("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
    await batch.completeMany(keys)
  })
  assert.equal(calls, 2)
  await assert.rejects(idempotency.batch((batch) => batch.beginMany(keys, [1])), BadArgument)
  await assert.rejects(idempotency.batch((batch) => batch.beginMany(['a'], ['a\0'])), BadArgument)
})

test('a COMMIT whose answer is lost is repeated only where the batch has begun something that tells of it', async (t) => {
  const { order, options } = await Proxy.forTest(t)
  const { pool, idempotency } = idempotencyFor(t, {}, options)
  const key = newKey()
  const outcomes = []
  for (const [begins, expected] of [[true, 1], [false, 2]]) {
    await order('arm', 'lose')
    const running = idempotency.batch(async (batch) => {
      const [{ outcome }] = begins ? await batch.beginMany([key]) : [{ outcome: 'ACQUIRED' }]
      outcomes.push(outcome)
      if (outcome === 'ACQUIRED') await effect(batch.tx, key)
      if (begins && outcome === 'ACQUIRED') await batch.completeMany([key])
    })
    await (begins ? running : assert.rejects(running, ConnectionLost))
    assert.equal(await effects(pool, key), expected)
  }
  assert.deepEqual(outcomes, ['ACQUIRED', 'COMPLETED', 'ACQUIRED'])
})

test('a batch that has acquired nothing has nothing that tells of it', async (t) => {
  const { order, options } = await Proxy.forTest(t)
  const { pool, idempotency } = idempotencyFor(t, {}, options)
  const key = newKey()
  await idempotency.transaction(key, null, () => 1)
  await order('arm', 'lose')
  await assert.rejects(idempotency.batch(async (batch) => {
    await batch.beginMany([key])
    await effect(batch.tx, key)
  }), ConnectionLost)
  assert.equal(await effects(pool, key), 1)
})

test('a batch that has acquired nothing is repeated after a conflict at COMMIT, and after a loss before it', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  // This test runs twice at a time: behind pgbouncer, too.
  await pool.query(`CREATE SCHEMA "${key}" CREATE SEQUENCE tries CREATE TABLE conflicting (name text);
    CREATE FUNCTION "${key}".conflict() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN IF nextval('"${key}".tries') = 1 THEN RAISE SQLSTATE '40001'; END IF; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON "${key}".conflicting DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION "${key}".conflict()`)
  let calls = 0
  await idempotency.batch(async ({ tx }) => {
    await effect(tx, key)
    await tx.query(++calls === 2 ? 'SELECT pg_terminate_backend(pg_backend_pid())' : `INSERT INTO "${key}".conflicting VALUES (NULL)`)
  })
  assert.deepEqual([calls, await effects(pool, key)], [3, 1])
})

test('a batch whose work ends its transaction is NotOwned, as its effects may be gone', async (t) => {
  const sql = postgres({ max: 1, onnotice: () => {} })
  t.after(() => sql.end())
  const { pool, idempotency } = idempotencyFor(t)
  const clients = [[idempotency, (tx, text) => tx.query(text)],
    [new Idempotency(postgresSource(sql)), (tx, text) => tx.unsafe(text)]]
  for (const ending of [['ROLLBACK'], ['ROLLBACK', 'BEGIN']]) {
    for (const [client, run] of clients) {
      const key = newKey()
      await assert.rejects(client.batch(async (batch) => {
        await batch.beginMany([key])
        await run(batch.tx, `INSERT INTO effect VALUES ('${key}', 1)`)
        await batch.completeMany([key])
        for (const text of ending) await run(batch.tx, text)
      }), NotOwned)
      assert.equal(await effects(pool, key), 0)
    }
  }
})

test('a batch that is over begins and completes nothing on a connection that is somebody else\'s', async (t) => {
  const { idempotency } = idempotencyFor(t, {}, { max: 1 })
  const refused = { code: '25P01' }
  let late
  await idempotency.batch(async (batch) => { late = batch })
  await idempotency.batch(async (batch) => { late = batch; throw new Error('planned') }).catch(() => {})
  const { outcome } = await idempotency.transaction(newKey(), null, async () => {
    await assert.rejects(late.beginMany([newKey()]), refused)
    await assert.rejects(late.completeMany([newKey()]), refused)
  })
  assert.equal(outcome, 'COMPLETED')
})

test('a plain function runs once for its key', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const pay = idempotency.idempotent(async function pay({ tx, operation }, order, amount) {
    await effect(tx, order)
    if (amount > 1000) throw new Declined(402, { reason: 'declined' }, { headers: { 'X-A': 'b' }, body: 'no', retryAfter: 60_000 })
    return { order, amount, attempt: operation.attempt }
  }, { key: (order) => order, scope: 'functions' })
  const order = newKey()
  assert.deepEqual(await pay(order, 5), { order, amount: 5, attempt: 1 })
  assert.deepEqual(await pay(order, 5), { order, amount: 5, attempt: 1 })
  await assert.rejects(pay(order, 6), { code: 'ID422' })
  assert.equal(await effects(pool, order), 1)
  const large = newKey()
  for (let i = 0; i < 2; i++) {
    await assert.rejects(pay(large, 2000), (error) => {
      const { code, headers, body } = error.response
      assert.deepEqual([code, headers, String(body), error.retryAfter > 0], [402, { 'X-A': 'b' }, 'no', true])
      return error instanceof Declined
    })
  }
})

test('functions do not share operations, and each needs a name', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const options = { key: (order) => order }
  const charge = idempotency.idempotent(function charge() { return 'charged' }, options)
  const ship = idempotency.idempotent(function ship() { return 'shipped' }, options)
  const again = idempotency.idempotent(() => 'never', { ...options, name: 'ship' })
  const order = newKey()
  assert.deepEqual([await charge(order), await ship(order), await again(order)], ['charged', 'shipped', 'shipped'])
  assert.throws(() => idempotency.idempotent(() => 1, options), BadArgument)
  for (const name of ['', null]) assert.throws(() => idempotency.idempotent(() => 1, { ...options, name }), BadArgument)
  // as a minifier renames it, and other functions
  for (const run of [function uz() {}, function uz() {}.bind(null).bind(null), { default: () => {} }.default]) {
    assert.throws(() => idempotency.idempotent(run, options), { code: 'ID400', message: /"(bound )*(uz|default)".*"name"/ })
  }
  assert.throws(() => idempotency.idempotent((() => {}).bind(null), options), BadArgument)
  assert.equal(await idempotency.idempotent(function u() { return 'sent' }, { ...options, name: 'u' })(order), 'sent')
  assert.equal(await idempotency.idempotent(function pay() { return 'paid' }, options)(order), 'paid')
})

test('the scopes of functions are those of the packages for other languages', async (t) => {
  const functions = JSON.parse(readFileSync(new URL('../../conformance/functions.json', import.meta.url), 'utf8'))
  assert(functions.length > 3)
  for (const { service, own, name, scope } of functions) {
    const { idempotency } = idempotencyFor(t, { scope: service })
    const run = idempotency.idempotent(({ operation }) => operation.scope,
      { key: String, name, ...(own !== null && { scope: own }) })
    assert.equal(await run(newKey()), scope)
  }
})

test('a leased function, and the call of one that is in progress', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const send = idempotency.idempotent(async ({ signal, operation }, mail) => {
    assert.equal(signal.aborted, false)
    await assert.rejects(send(mail), (error) => error instanceof InProgress && error.retryAfter > 0)
    return String(operation.fence)
  }, { key: (mail) => mail, name: 'send', style: 'lease', request: () => null })
  const mail = newKey()
  assert.equal(await send(mail), await send(mail))
})

test('settle says what becomes of a message', () => {
  assert.deepEqual(settle({ outcome: 'COMPLETED', retryAfter: null }), { action: 'ack' })
  assert.deepEqual(settle({ outcome: 'IN_PROGRESS', retryAfter: 1500.5 }), { action: 'again', after: 1501 })
  assert.deepEqual(settle({ outcome: 'IN_PROGRESS', retryAfter: null }), { action: 'again', after: 1000 })
  assert.deepEqual(settle({ outcome: 'FAILED', retryAfter: 0 }), { action: 'again', after: 1 })
  for (const none of [{}, { retryAfter: null }]) {
    assert.deepEqual(settle({ outcome: 'FAILED', ...none }), { action: 'deadLetter', reason: 'failed' })
  }
})
