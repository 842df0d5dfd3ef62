// What cannot be tested behind a pooler, as the other tests of the core are: settings at the start, other databases and roles.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Idempotency } from 'pg-idempotency'
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

test('what is missing is named', async (t) => {
  const pool = poolFor(t)
  await pool.query('DROP ROLE IF EXISTS nobody_yet')
  await pool.query('CREATE ROLE nobody_yet LOGIN')
  const run = (options, poolOptions) => new Idempotency(poolFor(t, poolOptions), options).transaction(newKey(), null, () => 1)
  await assert.rejects(run({}, { database: 'template1' }), { name: 'NotReady', code: '42883', message: /CREATE EXTENSION idempotency.*idem_grant/ })
  await assert.rejects(run({}, { database: 'nowhere' }), { code: '3D000' })
  await assert.rejects(run({ schema: 'elsewhere' }), { name: 'NotReady', code: '3F000', message: /"schema"/ })
  await assert.rejects(run({}, { user: 'nobody_yet' }), { name: 'NotReady', code: '42501', message: /idem_grant/ })
})
