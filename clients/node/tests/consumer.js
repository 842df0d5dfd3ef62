#!/usr/bin/env node
// A consumer that dies: BROKER says of what, QUEUE of which queue, DIE at which point it kills itself. SIGTERM stops
// it. The kills of all languages are in clients/brokers; each language has such a program.
import pg from 'pg'
import { Declined, Idempotency } from 'pg-idempotency'
import { openStage } from './stages.js'

const { BROKER, QUEUE, DIE } = process.env
const at = (point) => { if (point === DIE) die() }
const die = () => process.kill(process.pid, 'SIGKILL')

const pool = new pg.Pool({ max: 4 })
const idempotency = new Idempotency(pool, { scope: QUEUE })
const stage = await openStage(BROKER, QUEUE)
stage.watch(at)
const consumer = await stage.start({
  idempotency,
  handle: async (message) => {
    const key = stage.key(message)
    const result = await idempotency.transaction(key, null, async (tx, { attempt }) => {
      await tx.query('INSERT INTO effect VALUES ($1, 1)', [key])
      at('work')
      if (key.includes('poison')) die()
      if (key.includes('bad')) throw new Declined(422, 'never')
      if (key.includes('late') && attempt === 1) throw new Declined(503, null, { retryAfter: 30 })
      return key
    }, { maxLostAttempts: key.includes('poison') ? 3 : 0 })
    at('commit')
    return result
  },
})
process.once('SIGTERM', async () => {
  await consumer.stop()
  await stage.close()
  await pool.end()
})
