// A serialization failure as it happens. Apart from the others: a pooler takes no setting at the start.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { effect, idempotencyFor, newKey, poolFor } from './support.js'

test('a real serialization failure is repeated', async (t) => {
  const { idempotency } = idempotencyFor(t, {}, { options: '-c default_transaction_isolation=serializable' })
  const direct = poolFor(t)
  const key = newKey()
  await effect(direct, key, 0)
  let calls = 0
  await idempotency.transaction(newKey(), null, async (tx) => {
    await tx.query('SELECT value FROM effect WHERE name = $1', [key])
    if (++calls === 1) await direct.query('UPDATE effect SET value = 5 WHERE name = $1', [key])
    await tx.query('UPDATE effect SET value = value + 1 WHERE name = $1', [key])
  })
  assert.equal(calls, 2)
  const { rows } = await direct.query('SELECT value FROM effect WHERE name = $1', [key])
  assert.equal(rows[0].value, 6)
})
