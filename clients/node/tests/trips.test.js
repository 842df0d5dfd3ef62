// Round trips, counted at the client's own socket: n statements of work cost n + 2.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Completion, Declined, KeyReused, NotDone } from 'pg-idempotency'
import { countingSocket, effect, idempotencyFor, newKey } from './support.js'
import { Proxy } from './proxy.js'

async function counted(t, poolOptions = {}) {
  const count = { trips: 0 }
  const { idempotency } = idempotencyFor(t, {}, { stream: () => countingSocket(count), max: 1, ...poolOptions })
  await idempotency.transaction(newKey(), null, () => 1)
  return {
    idempotency,
    trips: async (call) => {
      count.trips = 0
      await call()
      return count.trips
    },
  }
}

for (const pipeline of [false, true]) {
  test(`n + 2 round trips for n statements${pipeline ? ', on a client with the option pipeline' : ''}`, async (t) => {
    const { idempotency, trips } = await counted(t, { pipeline })
    for (const n of [0, 1, 3]) {
      const key = newKey()
      const run = () => idempotency.transaction(key, { n }, async (tx) => {
        for (let i = 0; i < n; i++) await effect(tx, key)
      })
      assert.equal(await trips(run), n + 2)
      assert.equal(await trips(run), 2, 'a replay')
      await assert.rejects(idempotency.transaction(key, 'another', () => 1), KeyReused)
    }
  })
}

test('declined, and not done: n + 2 as well', async (t) => {
  const proxy = await Proxy.forTest(t)
  const { idempotency, trips } = await counted(t, proxy.options)
  const ending = (error) => trips(() => idempotency.transaction(newKey(), null, async (tx) => {
    await effect(tx, 'trips')
    throw error
  }).catch(() => {}))
  await proxy.order('reset')
  assert.equal(await ending(new Declined(402)), 3)
  const statements = await proxy.order('texts')
  assert.deepEqual(statements.map((text) => text.match(/^\w+/)[0]),
    ['BEGIN', 'SELECT', 'SAVEPOINT', 'INSERT', 'ROLLBACK', 'SELECT', 'COMMIT'])
  assert.equal(await ending(new NotDone()), 3)
})

test('a lease: one to begin, one to end, and n + 2 with writes', async (t) => {
  const { idempotency, trips } = await counted(t)
  assert.equal(await trips(() => idempotency.lease(newKey(), null, () => 1)), 2)
  assert.equal(await trips(() => idempotency.lease(newKey(), null, () =>
    new Completion(1, (tx) => effect(tx, 'trips')))), 1 + 3)
})
