// Statements that the work sends behind the end of its transaction.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import pg from 'pg'
import { NotOwned } from 'pg-idempotency'
import { sourceOf } from '../src/pg.js'
import { abandoning, inTransaction } from '../src/transaction.js'
import { effect, effects, idempotencyFor, newKey, poolFor } from './support.js'

// An error of the server and what it says of the transaction come in two packets, and may come apart.
function slowSocket(pause = 20) {
  const socket = new net.Socket()
  const { emit } = socket
  let late = false
  socket.emit = (name, data) => {
    if (name !== 'data') return emit.call(socket, name, data)
    const end = data[0] === 'E'.charCodeAt(0) ? 1 + data.readUInt32BE(1) : late ? 0 : data.length
    late = end < data.length || data[0] === 'E'.charCodeAt(0)
    if (end > 0) emit.call(socket, name, data.subarray(0, end))
    if (end < data.length) {
      late = false
      setTimeout(pause, null, { ref: false }).then(() => emit.call(socket, name, data.subarray(end)))
    }
    return true
  }
  return socket
}

// The server is shut down between the two: a second error comes in place of the second packet.
function dyingSocket() {
  const socket = new net.Socket()
  const { emit } = socket
  socket.emit = (name, data) => {
    if (name !== 'data' || data[0] !== 'E'.charCodeAt(0)) return emit.call(socket, name, data)
    const error = data.subarray(0, 1 + data.readUInt32BE(1))
    emit.call(socket, name, error)
    setTimeout(20).then(() => { emit.call(socket, name, error); socket.destroy() })
    return true
  }
  return socket
}

test('a connection that ends between an error and what the server says of the transaction', { timeout: 20_000 }, async (t) => {
  const { idempotency } = idempotencyFor(t, { retry: { attempts: 1 } }, { max: 1, stream: dyingSocket })
  await assert.rejects(idempotency.transaction(newKey(), null, (tx) => tx.query('SELECT 1/0')))
})

for (const pipeline of [false, true]) {
  const title = `a COMMIT that has failed, and a statement behind it${pipeline ? ', with pipeline' : ''}`
  test(title, { timeout: 20_000 }, async (t) => {
    const { pool, idempotency } = idempotencyFor(t, {}, { max: 1, stream: () => slowSocket(), pipeline })
    const key = newKey()
    const commits = [
      (tx) => tx.query('COMMIT').catch(() => {}),
      (tx) => new Promise((resolve) => { tx.query('COMMIT', resolve) }),
      (tx) => new Promise((resolve) => { tx.query('COMMIT', [], resolve) }),
    ]
    for (const commit of commits) {
      await assert.rejects(idempotency.transaction(key, null, async (tx) => {
        await commit(tx)
        await effect(tx, key)
      }), NotOwned)
    }
    assert.equal(await effects(pool, key), 0)
    await idempotency.transaction(key, null, async (tx) => {
      await tx.query('SAVEPOINT own')
      await assert.rejects(tx.query('SELECT 1/0'), { code: '22012' })
      await tx.query('ROLLBACK TO own')
      await effect(tx, key)
    })
    assert.equal(await effects(pool, key), 1)
    const ends = [
      (tx) => tx.query('SELECT pg_terminate_backend(pg_backend_pid())'),
      (tx) => new Promise((resolve, reject) => {
        tx.query('SELECT pg_sleep(0.1)', reject)
        tx.connection.stream.destroy()
      }),
    ]
    for (const end of ends) {
      let attempts = 0
      await idempotency.transaction(newKey(), null, (tx) => ++attempts === 1 ? end(tx) : 1)
      assert.equal(attempts, 2)
    }
  })
}

test('each form of a query that comes too late hears that it does', { timeout: 20_000 }, async (t) => {
  const { idempotency } = idempotencyFor(t)
  const heard = (send) => new Promise((resolve) => { send(resolve) })
  const forms = [
    (tx) => heard((callback) => tx.query('SELECT 1', callback)),
    (tx) => heard((callback) => tx.query('SELECT $1', [1], callback)),
    (tx) => heard((callback) => tx.query({ text: 'SELECT 1', callback })),
    (tx) => heard((callback) => tx.query(new pg.Query('SELECT 1', callback))),
    (tx) => heard((callback) => tx.query(new pg.Query('SELECT 1'), callback)),
    (tx) => heard((callback) => tx.query(new pg.Query('SELECT 1')).on('error', callback)),
    (tx) => tx.query('SELECT 1').catch((error) => error),
  ]
  let left
  for (const form of forms) {
    await assert.rejects(idempotency.transaction(newKey(), null, async (tx) => {
      await tx.query('ROLLBACK')
      left = tx
      assert.ok(await form(tx) instanceof NotOwned)
    }), NotOwned)
    assert.equal((await form(left)).code, '25P01')
  }
})

test('work that was given up hears of its error, though the server says nothing more', { timeout: 20_000 }, async (t) => {
  const pool = poolFor(t, { max: 1, stream: () => slowSocket(60_000) })
  let statement
  await assert.rejects(inTransaction({ source: sourceOf(pool) }, async ({ tx }) => {
    statement = assert.rejects(tx.query('SELECT 1/0'), { code: '22012' })
    await once(tx.connection, 'errorMessage')
    throw abandoning(new Error('too late'))
  }), /too late/)
  await statement
})
