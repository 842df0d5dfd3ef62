// What the conformance programs share: the payments service, without a framework. A program is started with PORT and
// DATABASE_URL in its environment, and listens on the loopback interface.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Idempotency, NotDone } from 'pg-idempotency'

export const port = Number(process.env.PORT)
export const host = '127.0.0.1'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 10 })
// Under attack by tests, a connection of the pool may end at any time.
pool.on('error', () => {})

export const idempotency = new Idempotency(pool, { lease: '5 s' })

/** Options of all the frameworks; `tenant` reads the header X-Tenant of a request. */
export const optionsWith = (tenant) => ({ principal: tenant, headers: ['X-Payment'], describedBy: 'https://example.com/docs/idempotency' })

/** The table may belong to somebody else, who has made it. */
export async function prepare() {
  await pool.query('CREATE TABLE IF NOT EXISTS payment (account text, amount int, kind text)').catch((error) => {
    if (error.code !== '42501') throw error
  })
}

/**
 * Takes a payment inside the transaction `tx`.
 * @returns {Promise<{status: number, headers: Record<string, string>, body: object}>}
 */
export async function pay(tx, request) {
  await pause(request)
  const refusal = refused(request)
  if (refusal) return refusal
  await insert(tx, request, 'payment')
  return accepted(request)
}

/**
 * Takes a charge under a lease: the answer, and the writes that commit with it. All that it does is in those writes, so
 * when they fail nothing has happened.
 */
export async function charge(request) {
  await pause(request)
  const refusal = refused(request)
  if (refusal) return { answer: refusal }
  const writes = async (tx) => {
    try {
      await insert(tx, request, 'charge')
    } catch (error) {
      throw new NotDone({ cause: error })
    }
  }
  return { answer: accepted(request), writes }
}

async function pause(request) {
  if (Number.isInteger(request?.slow) && request.slow > 0) await sleep(request.slow)
}

function refused(request) {
  if (request?.crash) return undefined
  // PostgreSQL has no text with a NUL.
  if (typeof request?.account !== 'string' || request.account.includes('\0') || !Number.isInteger(request.amount)) {
    return { status: 400, headers: {}, body: { reason: 'account and amount are needed' } }
  }
  return request.amount > 1000 ? { status: 402, headers: {}, body: { reason: 'declined' } } : undefined
}

async function insert(tx, { account = 'crash', amount = 0, crash }, kind) {
  await tx.query('INSERT INTO payment (account, amount, kind) VALUES ($1, $2, $3)', [account, amount, kind])
  if (crash) throw new Error('crashed after the INSERT')
}

function accepted({ account, amount }) {
  const id = randomUUID()
  return { status: 201, headers: { 'X-Payment': id }, body: { id, account, amount } }
}
