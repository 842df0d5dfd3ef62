// A consumer that dies: killed at the point that DIE names, at its third message. Run by rabbitmq.test.js.
import amqp from 'amqplib'
import pg from 'pg'
import { Declined, Idempotency } from 'pg-idempotency'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'

const { QUEUE: queue, DIE: die, AMQP: address } = process.env
const pool = new pg.Pool({ max: 4 })
const idempotency = new Idempotency(pool, { scope: queue })
let seen = 0
const killAt = (point) => { if (die === point && seen >= 3) process.kill(process.pid, 'SIGKILL') }

const connection = await amqp.connect(address)
await RabbitConsumer.start(connection, {
  queue, prefetch: 4, delays: [20, 100], deliveryLimit: 1000, onError: () => {},
  handle: async (message) => {
    seen++
    const key = message.properties.messageId
    const result = await idempotency.transaction(key, JSON.parse(message.content.toString()), async (tx) => {
      await tx.query('INSERT INTO effect VALUES ($1, 1)', [key])
      killAt('before COMMIT')
      if (key.includes('bad')) throw new Declined(422, 'never')
      if (key.includes('late') && !message.properties.headers?.['x-idempotency-tries']) throw new Error('not now')
    })
    killAt('before ack')
    return result
  },
})
