// What the package prepares on a connection that is the server's own; pgbouncer.test.js sees that it prepares nothing
// behind a pooler.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { effect, effects, idempotencyFor, newKey } from './support.js'

const ours = (connection) => connection.query("SELECT name FROM pg_prepared_statements WHERE name LIKE 'pg_idempotency%'")
  .then(({ rows }) => rows.length)

async function onConnection(pool, use) {
  const client = await pool.connect()
  try {
    return await use(client)
  } finally {
    client.release()
  }
}

test('begin and complete are prepared from the second transaction on', async (t) => {
  const { idempotency, pool } = idempotencyFor(t, {}, { max: 1 })
  const listeners = () => onConnection(pool, (client) => client.eventNames().map((name) => [name, client.listenerCount(name)]))
  const before = await listeners()
  const counts = []
  for (let i = 0; i < 3; i++) {
    await idempotency.transaction(newKey(), null, async (tx) => { counts.push(await ours(tx)) })
  }
  assert.deepEqual(counts, [0, 2, 2])
  assert.equal(await onConnection(pool, ours), 2)
  assert.deepEqual(await listeners(), before)
})

test('a statement that failed when it was new is prepared again, and one that is prepared may fail', async (t) => {
  const { idempotency, pool } = idempotencyFor(t, {}, { max: 1 })
  const refused = () => assert.rejects(idempotency.transaction('x'.repeat(256), null, () => 1), { code: 'ID400' })
  // The complete is new, and is not even prepared.
  await assert.rejects(idempotency.transaction(newKey(), null, (tx) => tx.query('SELECT 1/0').catch(() => {})),
    { name: 'CommitRolledBack' })
  // The first time the begin is new, and is refused.
  for (let i = 0; i < 2; i++) await refused()
  let runs = 0
  assert.equal((await idempotency.transaction(newKey(), null, () => ++runs)).payload, 1)
  await refused()
  assert.equal(await onConnection(pool, ours), 2)
})

test('statements that somebody threw away are not missed', async (t) => {
  const { idempotency, pool } = idempotencyFor(t, {}, { max: 1 })
  const prepare = () => idempotency.transaction(newKey(), null, () => 1)
  for (let i = 0; i < 3; i++) await prepare()
  await onConnection(pool, (client) => client.query('DISCARD ALL'))
  const key = newKey()
  assert.equal((await idempotency.transaction(key, null, (tx) => effect(tx, key))).outcome, 'COMPLETED')
  for (let i = 0; i < 3; i++) await prepare()
  const within = newKey()
  let runs = 0
  const result = await idempotency.transaction(within, null, async (tx) => {
    await effect(tx, within)
    if (++runs === 1) await tx.query('DEALLOCATE ALL')
  })
  assert.equal(result.outcome, 'COMPLETED')
  assert.deepEqual([runs, await effects(pool, key), await effects(pool, within)], [2, 1, 1])
})
