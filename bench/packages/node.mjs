// Payments by the package of Node.js, and by hand. See __init__.py.
import { createHash, randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import { Idempotency } from '../../clients/node/src/index.js'

// A service runs for days, and the compiler rests after the first thousands of operations. One client over a slow network
// would take half a minute for them.
const [WARM, MANY] = [8000, 8]

const pg = createRequire(new URL('../../clients/node/package.json', import.meta.url))('pg')
const { variant, clients, seconds, accounts, request, response } = JSON.parse(process.argv[2])
const pool = new pg.Pool({ max: MANY })
pool.on('error', () => {})
const idempotency = new Idempotency(pool, { scope: 'payments' })

const RETRIED = /^(40001|40P01|08...|57P0[123])$/

async function pay(tx) {
  const account = 1 + Math.floor(Math.random() * accounts)
  const amount = 1 + Math.floor(Math.random() * 100)
  await tx.query('UPDATE accounts SET balance = balance - $1 WHERE id = $2', [amount, account])
  await tx.query('INSERT INTO payments (account, amount) VALUES ($1, $2)', [account, amount])
  return response
}

function byPackage(key) {
  return idempotency.transaction(key, request, async (tx) => ({ code: 201, payload: await pay(tx) }))
}

class Declined extends Error {}

// What the package does, in the way that people write it: a statement at a time.
async function glue(tx, key) {
  const { rows: [operation] } = await tx.query(
    'SELECT outcome, response_code, response_payload FROM idem_begin($1, $2::jsonb, scope => $3)',
    [key, JSON.stringify(request), 'payments'])
  if (operation.outcome !== 'ACQUIRED') return operation
  await tx.query('SAVEPOINT work')
  try {
    await tx.query('SELECT idem_complete($1, $2::jsonb, scope => $3, code => $4)', [key, JSON.stringify(await pay(tx)), 'payments', 201])
  } catch (error) {
    if (!(error instanceof Declined)) throw error
    await tx.query('ROLLBACK TO SAVEPOINT work')
    await tx.query('SELECT idem_fail($1, $2::jsonb, scope => $3, code => $4)', [key, null, 'payments', 402])
  }
  return operation
}

// A table of one's own: lock or insert, later update.
async function hand(tx, key) {
  const hash = createHash('sha256').update(JSON.stringify(request)).digest()
  const { rows: [stored] } = await tx.query(
    "SELECT status, request_hash, response_payload FROM hand_store WHERE scope = '' AND idempotency_key = $1 FOR UPDATE", [key])
  if (stored) return stored.response_payload
  await tx.query("INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at) VALUES ($1, $2, 'PENDING', now() + interval '1 day')", [key, hash])
  const paid = await pay(tx)
  await tx.query("UPDATE hand_store SET status = 'COMPLETED', response_payload = $2::jsonb, updated_at = clock_timestamp() WHERE scope = '' AND idempotency_key = $1", [key, JSON.stringify(paid)])
  return paid
}

const inTransaction = (work) => async (key) => {
  for (let attempt = 1; ; attempt++) {
    const tx = await pool.connect()
    let failure
    try {
      await tx.query('BEGIN')
      const result = await work(tx, key)
      const { command } = await tx.query('COMMIT')
      if (command !== 'COMMIT') throw new Error('rolled back')
      return result
    } catch (error) {
      failure = error
      await tx.query('ROLLBACK').catch(() => {})
      if (!RETRIED.test(error.code) || attempt === 5) throw error
    } finally {
      tx.release(failure)
    }
    await sleep(Math.random() * 50 * 2 ** attempt)
  }
}

const deliver = { package: byPackage, glue: inTransaction(glue), hand: inTransaction(hand), bare: inTransaction(pay) }[variant]

// How many operations so many clients deliver until it is over.
async function until(isOver, clients) {
  let count = 0
  await Promise.all(Array.from({ length: clients }, async () => {
    while (!isOver(count)) {
      await deliver(randomUUID())
      count++
    }
  }))
  return count
}

const before = await until((count) => count >= WARM, MANY)
const began = performance.now()
const timed = await until(() => performance.now() >= began + seconds * 1000, clients)
const throughput = timed / (performance.now() - began) * 1000
await pool.end()
console.log(JSON.stringify({ transactions: before + timed, throughput }))
