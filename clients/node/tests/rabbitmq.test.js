// A real RabbitMQ, and consumers that are killed: each effect once, each dead letter once.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import amqp from 'amqplib'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'
import { idempotencyFor, newKey, poolFor } from './support.js'

const AMQP = process.env.DEMO_AMQP

async function connect(t) {
  const connection = await amqp.connect(AMQP)
  t.after(() => connection.close())
  return connection
}

test('consumers killed before COMMIT and before ack', { timeout: 200_000 }, async (t) => {
  const connection = await connect(t)
  const pool = poolFor(t)
  const queue = `kill-${newKey()}`
  const declared = await RabbitConsumer.start(connection, { queue, delays: [20, 100], deliveryLimit: 1000, handle: () => new Promise(() => {}) })
  const channel = await connection.createConfirmChannel()
  const names = Array.from({ length: 90 }, (_, i) => `${queue} ${i}${i % 10 === 3 ? ' bad' : ''}${i % 10 === 7 ? ' late' : ''}`)
  await declared.stop()
  // A third of the messages comes twice.
  for (const [i, name] of names.entries()) {
    for (let copy = 0; copy < (i % 3 === 0 ? 2 : 1); copy++) {
      channel.sendToQueue(queue, Buffer.from(JSON.stringify({ name })), { messageId: name, persistent: true })
    }
  }
  await channel.waitForConfirms()
  const good = names.filter((name) => !name.includes('bad'))
  let kills = 0
  const points = ['before COMMIT', 'before ack']
  const empty = async () => (await channel.checkQueue(queue)).messageCount === 0
  while (!(await empty()) && kills < 20) {
    const consumer = spawn(process.execPath, ['tests/rabbit-consumer.js'], { env: { ...process.env, AMQP, QUEUE: queue, DIE: points[kills % 2] }, stdio: 'inherit' })
    const ended = once(consumer, 'close')
    const [, signal] = await Promise.race([ended, untilDone(pool, queue, good, ended)])
    if (signal === 'SIGKILL') kills++
    else { consumer.kill(); await ended; break }
  }
  const last = spawn(process.execPath, ['tests/rabbit-consumer.js'], { env: { ...process.env, AMQP, QUEUE: queue, DIE: '' }, stdio: 'inherit' })
  t.after(() => last.kill())
  await untilDone(pool, queue, good, once(last, 'close'))
  await settled(channel, queue, names.length - good.length)
  const { rows } = await pool.query('SELECT name, count(*)::int AS count FROM effect WHERE name LIKE $1 GROUP BY name', [`${queue}%`])
  assert.deepEqual(new Set(rows.map(({ name }) => name)), new Set(good))
  assert.ok(rows.every(({ count }) => count === 1))
  assert.ok(kills >= 10, `${kills} consumers were killed`)
  const dead = []
  for (let message = await channel.get(`${queue}.dead`); message; message = await channel.get(`${queue}.dead`)) {
    channel.ack(message)
    dead.push(message.properties.messageId)
  }
  // A message that was sent twice is two messages: each becomes a dead letter.
  const sentTwice = names.filter((name, i) => name.includes('bad') && i % 3 === 0)
  assert.deepEqual(dead.sort(), [...names.filter((name) => name.includes('bad')), ...sentTwice].sort())
})

// Until all effects are there, or the consumer has ended.
async function untilDone(pool, queue, good, ended) {
  let end
  ended.then((result) => { end = result })
  for (;;) {
    const { rows } = await pool.query('SELECT count(*)::int AS count FROM effect WHERE name LIKE $1', [`${queue}%`])
    if (end) return end
    if (rows[0].count >= good.length) return [null, null]
    await sleep(20)
  }
}

// Until nothing is left to deliver and the dead letters are there.
async function settled(channel, queue, dead) {
  for (let tries = 0; tries < 500; tries++) {
    const counts = await Promise.all([queue, `${queue}.again.20`, `${queue}.again.100`, `${queue}.dead`].map((name) =>
      channel.checkQueue(name).then(({ messageCount }) => messageCount)))
    if (counts[0] + counts[1] + counts[2] === 0 && counts[3] >= dead) {
      // What is delivered and not settled is not counted: it is, once nobody holds it.
      await sleep(300)
      return
    }
    await sleep(20)
  }
  assert.fail('messages are left')
}

test('again after a while, and a dead letter after too many errors', async (t) => {
  const connection = await connect(t)
  const { idempotency } = idempotencyFor(t)
  const queue = `again-${newKey()}`
  const errors = []
  const seen = []
  const consumer = await RabbitConsumer.start(connection, {
    queue, delays: [10, 50], tries: 3, onError: (error) => errors.push(error.message),
    handle: async ({ content }) => {
      const what = content.toString()
      seen.push(what)
      if (what === 'broken') throw new Error('broken')
      if (what === 'again' && seen.filter((name) => name === what).length === 1) return { action: 'again', after: 30 }
      return idempotency.transaction(newKey(), null, () => 1)
    },
  })
  const channel = await connection.createConfirmChannel()
  for (const what of ['broken', 'again', 'good']) channel.sendToQueue(queue, Buffer.from(what))
  for (let tries = 0; tries < 500 && !((await channel.checkQueue(`${queue}.dead`)).messageCount === 1 && seen.length === 6); tries++) await sleep(20)
  const dead = await channel.get(`${queue}.dead`, { noAck: true })
  assert.equal(dead.content.toString(), 'broken')
  assert.deepEqual(errors, ['broken', 'broken', 'broken'])
  assert.deepEqual(seen.sort(), ['again', 'again', 'broken', 'broken', 'broken', 'good'])
  await consumer.stop()
  assert.equal((await channel.checkQueue(queue)).messageCount, 0)
})
