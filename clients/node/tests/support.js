// What the tests share: pools on the private server, and the effects that operations leave.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import pg from 'pg'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import net from 'node:net'
import { Idempotency } from 'pg-idempotency'

/** Pool on the server of the environment, ended with the test `t`. */
export function poolFor(t, options = {}) {
  const pool = new pg.Pool({ max: 5, ...options })
  t.after(() => pool.end())
  return pool
}

// Pauses are short. A begin after a lost connection waits until the server has noticed the loss, for as long as `cap`.
export function idempotencyFor(t, options = {}, poolOptions = {}) {
  const pool = poolFor(t, poolOptions)
  return { pool, idempotency: new Idempotency(pool, { scope: 'tests', retry: { base: 1, cap: 60_000 }, ...options }) }
}

export const newKey = () => randomUUID()

/** Statement of work: leaves one effect. */
export const effect = (tx, name, value = 1) => tx.query('INSERT INTO effect VALUES ($1, $2)', [name, value])

/** How often the effect was left. */
export async function effects(pool, name) {
  const { rows } = await pool.query('SELECT count(*)::int AS count FROM effect WHERE name = $1', [name])
  return rows[0].count
}

/** The stored status of a key, or undefined. */
export async function stored(pool, key, scope = 'tests') {
  const { rows } = await pool.query(
    'SELECT status::text, response_code AS code, attempt FROM idempotency_store WHERE scope = $1 AND idempotency_key = $2',
    [scope, key])
  return rows[0]
}

/** The lease of a key is over as if its time had passed. */
export async function expire(pool, key) {
  const { rowCount } = await pool.query(
    "UPDATE idempotency_store SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE idempotency_key = $1", [key])
  assert.equal(rowCount, 1)
}

/** The work of a lease has failed, and the lease is over. */
export async function abandoned(pool, idempotency, key) {
  await assert.rejects(idempotency.lease(key, null, () => { throw new TypeError('lost') }), TypeError)
  await expire(pool, key)
}

/** The port of a server that begins to listen, and ends with the test `t`. */
export async function portOf(t, server) {
  if (!server.listening) await once(server, 'listening')
  t.after(() => { server.closeAllConnections(); server.close() })
  return server.address().port
}

/** A socket for a driver that counts round trips: something was sent, and then it is answered. */
export function countingSocket(count) {
  const socket = new net.Socket()
  let asked = false
  // connect() sets the method anew
  socket.once('connect', () => {
    const { write } = socket
    socket.write = (...chunk) => { asked = true; return write.apply(socket, chunk) }
    socket.on('data', () => {
      if (asked) count.trips++
      asked = false
    })
  })
  return socket
}

/** A promise and its two ends. */
export function deferred() {
  let resolve, reject
  const promise = new Promise((a, b) => { resolve = a; reject = b })
  return { promise, resolve, reject }
}

/** Sends a request, and gives the answer once it is there. */
export function send(port, { method, path, headers, body }) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', method, path, agent: false,
      headers: headers['transfer-encoding'] ? headers : { ...headers, 'content-length': Buffer.byteLength(body) } }, (answer) => {
      const chunks = []
      answer.on('data', (chunk) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () => {
        const bytes = Buffer.concat(chunks)
        resolve({ status: answer.statusCode, reason: answer.statusMessage, headers: answer.headers, bytes, body: bytes.toString() })
      })
    })
    request.on('error', reject)
    request.end(body)
  })
}
