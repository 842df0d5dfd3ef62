// Orders: the shop's HTTP entry, and the saga of each order.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { serve } from '@hono/node-server'
import amqp from 'amqplib'
import pg from 'pg'
import { Idempotency } from 'pg-idempotency'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'
import { shop } from './shop.js'

const { DATABASE_URL, AMQP_URL, MODE, PORT } = process.env
const saga = await import(`./${MODE}.js`)
const catalog = JSON.parse(readFileSync(new URL('catalog.json', import.meta.url), 'utf8'))
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 10, connectionTimeoutMillis: 3000 })
const idempotency = new Idempotency(pool, { scope: 'orders', hooks: { replayed: ({ key }) => console.log('duplicate', key) } })

// Orders are taken while the broker is away: the outbox keeps what there is to tell.
async function consume() {
  const connection = await amqp.connect(AMQP_URL)
  const closed = once(connection, 'close')
  connection.on('error', () => {})
  await RabbitConsumer.start(connection, {
    idempotency, queue: 'orders', tries: 10_000, delays: [1000],
    onError: (error, message) => {
      console.error(error.message)
      // The broker has ended the consumer.
      if (!message) connection.close().catch(() => {})
    },
    handle: ({ properties: { messageId, type }, content }) => {
      const document = JSON.parse(content)
      return idempotency.transaction(messageId, document, (tx) => saga.hear(tx, document, type))
    },
  })
  console.log('ready')
  await closed
}

// What waits for something that comes back is done again and again.
async function forever(name, work, pause) {
  for (;;) {
    try {
      await work()
    } catch (error) {
      console.error(name, error.message)
    }
    await sleep(pause)
  }
}

forever('consumer:', consume, 500)
forever('clock:', () => saga.tick(pool, idempotency), 1000)
const { fetch } = shop({ pool, idempotency, saga, catalog, connectionString: DATABASE_URL })
serve({ fetch, port: Number(PORT), hostname: '127.0.0.1' })
