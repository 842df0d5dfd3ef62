// Idempotency by hand, for the orders service: a lock in Redis around a table. The HTTP entry is a middleware that keeps the
// answer of any handler. A message is an insert in the transaction of its work.
import { createHash, randomUUID } from 'node:crypto'
import { createClient } from 'redis'

const TTL = 10_000    // milliseconds, after which the lock of a process that died is free
const RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

const redis = createClient({ url: process.env.REDIS_URL, disableOfflineQueue: true, socket: { reconnectStrategy: 200 } })
redis.on('error', () => {})
redis.connect().catch(() => {})

class Busy extends Error {}

// The token makes sure that only the owner releases the lock.
async function locked(name, work) {
  const token = randomUUID()
  if (await redis.set(name, token, { NX: true, PX: TTL }) !== 'OK') throw new Busy(`${name} is locked`)
  try {
    return await work()
  } finally {
    await redis.eval(RELEASE, { keys: [name], arguments: [token] }).catch(() => {})
  }
}

async function inTransaction(pool, work) {
  const tx = await pool.connect()
  try {
    await tx.query('BEGIN')
    const result = await work(tx)
    await tx.query('COMMIT')
    tx.release()
    return result
  } catch (error) {
    tx.release(error)
    throw error
  }
}

export class Idempotency {
  constructor(pool, { scope, hooks = {} }) {
    Object.assign(this, { pool, scope, hooks })
    pool.on('connect', (client) => client.on('error', () => {})).on('error', () => {})
  }

  transaction(id, request, work) {
    return locked(`lock:${this.scope}:${id}`, () => inTransaction(this.pool, async (tx) => {
      const { rowCount } = await tx.query('INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING', [id])
      if (rowCount === 0) this.hooks.replayed?.({ key: id })
      else await work(tx)
      return { outcome: 'COMPLETED', replayed: rowCount === 0 }
    }))
  }
}

export function expressIdempotency({ pool, hooks }, { principal }) {
  const transaction = (handler) => async (req, res, next) => {
    const header = req.get('Idempotency-Key')
    if (!header) return res.status(400).json({ reason: 'Idempotency-Key is needed' })
    const key = `${principal(req)}:${req.path}:${header}`
    try {
      await locked(`lock:http:${key}`, () => once(pool, hooks, key, handler, req, res))
    } catch (error) {
      if (!(error instanceof Busy)) return next(error)
      res.status(409).set('Retry-After', '1').json({ reason: 'the request is being processed' })
    }
  }
  const problemErrors = () => (error, req, res, next) =>
    res.headersSent ? next(error) : res.status(error.status ?? 500).json({ reason: 'error' })
  return { transaction, problemErrors }
}

async function once(pool, hooks, key, handler, req, res) {
  const hash = createHash('sha256').update(JSON.stringify(req.body)).digest('hex')
  const { rows: [known] } = await pool.query('SELECT request_hash, code, body FROM idempotency_keys WHERE key = $1', [key])
  if (known) {
    hooks.replayed?.({ key })
    return known.request_hash === hash ? res.status(known.code).json(known.body)
      : res.status(422).json({ reason: 'the key was used with another request' })
  }
  const body = await answerOf(res, (kept) => inTransaction(pool, (tx) => handler(req, kept, { tx })))
  await pool.query('INSERT INTO idempotency_keys (key, request_hash, code, body) VALUES ($1, $2, $3, $4)',
    [key, hash, res.statusCode, JSON.stringify(body)])
  return res.json(body)
}

// What the handler answers, before it is sent.
async function answerOf(res, handle) {
  const send = res.json
  let body
  res.json = (given) => { body = given }
  try {
    await handle(res)
  } finally {
    res.json = send
  }
  return body
}
