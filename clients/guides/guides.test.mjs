// The JavaScript of the guides, called with gateways and messages of all kinds.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import amqp from 'amqplib'
import { Kafka, logLevel } from 'kafkajs'
import pg from 'pg'
import { Idempotency } from 'pg-idempotency'
import { checkout } from './commerce/checkout.mjs'
import { payByCard } from './gateway/card.mjs'
import { consume } from './queue/consumer.mjs'
import { consume as consumeKafka } from './queue/kafka.mjs'

const admin = new pg.Pool({ max: 1 })
const pool = new pg.Pool({ max: 1 })
after(() => Promise.all([admin.end(), pool.end()]))

const value = async (sql, parameters) => Object.values((await admin.query(sql, parameters)).rows[0])[0]

test('docs/clients.md: the program prints what the page says', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, ['clients/pay.mjs'])
  assert.equal(stdout, await readFile('clients/pay.out', 'utf8'))
})

// A gateway that charges once for each key, and fails as it is told.
class Gateway {
  charges = new Map()
  calls = 0
  failure = null

  async charge({ key }) {
    this.calls++
    // no connection is held meanwhile: the only one of the pool is free
    await pool.query('SELECT 1')
    if (this.failure?.declined || this.failure?.refused) throw this.failure
    if (!this.charges.has(key)) this.charges.set(key, `ch_${key}`)
    if (this.failure) throw this.failure
    return this.charges.get(key)
  }

  async find(key) {
    return this.charges.get(key)
  }
}

const idempotency = new Idempotency(pool, { scope: 'card-payments/tenant-1' })
const paid = (order) => value('SELECT count(*)::int FROM card_payment WHERE id = $1', [order])
const endLease = (order) => admin.query(
  "UPDATE idempotency_store SET lease_expires_at = now() - interval '1 second' WHERE idempotency_key = $1", [order])

test('gateway: charged once, and replayed', async () => {
  const gateway = new Gateway()
  const first = await payByCard(idempotency, gateway, 'charged', 30)
  assert.deepEqual([first.code, first.payload, first.replayed], [201, { charge: 'ch_charged' }, false])
  const second = await payByCard(idempotency, gateway, 'charged', 30)
  assert.deepEqual([second.code, second.payload, second.replayed], [201, { charge: 'ch_charged' }, true])
  assert.deepEqual([gateway.calls, await paid('charged')], [1, 1])
})

test('gateway: a declined card is stored and replayed', async () => {
  const gateway = Object.assign(new Gateway(), { failure: Object.assign(new Error('declined'), { declined: true }) })
  for (const replayed of [false, true]) {
    const result = await payByCard(idempotency, gateway, 'declined', 30)
    assert.deepEqual([result.outcome, result.code, result.replayed], ['FAILED', 402, replayed])
  }
  assert.deepEqual([gateway.calls, await paid('declined')], [1, 0])
})

test('gateway: a call that was refused is free at once', async () => {
  const gateway = Object.assign(new Gateway(), { failure: Object.assign(new Error('refused'), { refused: true }) })
  await assert.rejects(payByCard(idempotency, gateway, 'refused', 30))
  gateway.failure = null
  assert.equal((await payByCard(idempotency, gateway, 'refused', 30)).code, 201)
  assert.equal(await paid('refused'), 1)
})

test('gateway: after a timeout the next attempt reconciles, and does not charge again', async () => {
  const gateway = Object.assign(new Gateway(), { failure: new Error('timeout') })
  await assert.rejects(payByCard(idempotency, gateway, 'timeout', 30), /timeout/)
  assert.equal((await payByCard(idempotency, gateway, 'timeout', 30)).outcome, 'IN_PROGRESS')
  await endLease('timeout')
  const result = await payByCard(idempotency, gateway, 'timeout', 30)
  assert.deepEqual([result.code, result.payload], [201, { charge: 'ch_timeout' }])
  assert.deepEqual([gateway.calls, await paid('timeout')], [1, 1])
})

test('commerce: headers, codes and lifetime are those of the protocol', async (t) => {
  const [shop, other] = [new pg.Pool({ options: '-c idempotency.retention=1h' }), new pg.Client()]
  const servers = [checkout(shop), checkout(shop, { conflict: 409 })].map((app) => app.listen(0, '127.0.0.1'))
  await Promise.all([...servers.map((server) => once(server, 'listening')), other.connect()])
  t.after(async () => {
    for (const server of servers) {
      server.closeAllConnections()
      server.close()
    }
    await Promise.all([shop.end(), other.end()])
  })
  const post = async (key, { items = [1], token = 'token-of-ada', server = servers[0] } = {}) => {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/checkout_sessions`, {
      method: 'POST', body: JSON.stringify({ items }),
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', ...(key && { 'Idempotency-Key': key }) },
    })
    const { type, code, id } = await answer.json()
    const [replayed, echo] = ['Idempotent-Replayed', 'Idempotency-Key'].map((name) => answer.headers.get(name))
    assert.equal(echo, key ?? null)
    assert.match(answer.headers.get('Content-Type'), /^application\/json\b/)
    return { status: answer.status, is: id ?? `${type} ${code}`, replayed, again: answer.headers.get('Retry-After') }
  }
  const refused = (status, is, again = null) => ({ status, is, replayed: null, again })
  assert.deepEqual(await post(), refused(400, 'invalid_request idempotency_key_required'))
  assert.deepEqual(await post('no key'), refused(400, 'invalid_request invalid'))
  assert.deepEqual(await post('cart', { token: 'nobody' }), refused(401, 'invalid_request invalid'))
  const first = await post('cart')
  assert.deepEqual([first.status, first.replayed], [201, null])
  assert.deepEqual(await post('cart'), { ...first, replayed: 'true' })
  assert.deepEqual(await post('cart', { items: [2] }), refused(422, 'invalid_request idempotency_conflict'))
  assert.deepEqual(await post('cart', { items: [2], server: servers[1] }), refused(409, 'invalid_request idempotency_conflict'))
  assert.notEqual((await post('cart', { token: 'token-of-bob' })).is, first.is)
  const scope = 'shop POST /checkout_sessions ada'
  assert.equal(await value("SELECT expires_at - updated_at = '24 hours' FROM idempotency_store WHERE (scope, idempotency_key) = ($1, 'cart')", [scope]), true)
  await other.query('BEGIN')
  await other.query("SELECT idem_begin('busy', scope => $1)", [scope])
  for (const server of servers) {
    assert.deepEqual(await post('busy', { server }), refused(409, 'invalid_request idempotency_in_flight', '1'))
  }
  await other.query('ROLLBACK')
  assert.equal((await post('busy')).status, 201)
  assert.equal(await value('SELECT count(*)::int FROM checkout_session'), 3)
})

test('queue: each message once, and each bad one a dead letter', async () => {
  const connection = await amqp.connect(process.env.DEMO_AMQP)
  const consumer = await consume(pool, connection)
  const channel = await connection.createConfirmChannel()
  const send = (messageId, content) => channel.sendToQueue('deposits', Buffer.from(content), { messageId })
  send('m-1', '{"account": "alice", "amount": 10}')
  send('m-1', '{"account": "alice", "amount": 10}')
  send('m-2', '{"account": "nobody", "amount": 10}')
  send('m-3', 'no JSON')
  send('m-1', '{"account": "alice", "amount": 99}')
  await channel.waitForConfirms()
  const dead = await deadLetters(channel, 3)
  assert.deepEqual(dead.sort(), ['m-1 {"account": "alice", "amount": 99}', 'm-2 {"account": "nobody", "amount": 10}', 'm-3 no JSON'])
  await untilEmpty(channel)
  await consumer.stop()
  assert.equal(Number(await value("SELECT balance FROM wallet WHERE id = 'alice'")), 110)
  await connection.close()
})

test('queue: Kafka goes on after a poison message', async () => {
  const kafka = new Kafka({ brokers: [process.env.DEMO_KAFKA], logLevel: logLevel.NOTHING })
  const [topics, producer] = [kafka.admin(), kafka.producer()]
  await topics.connect()
  await producer.connect()
  await topics.createTopics({ topics: [{ topic: 'deposits' }, { topic: 'deposits.wallets.dead', numPartitions: 1 }] })
  const before = Number(await value("SELECT balance FROM wallet WHERE id = 'alice'"))
  const messages = [10, -500, 20].map((amount) => JSON.stringify({ id: `k${amount}`, account: 'alice', amount }))
  await producer.send({ topic: 'deposits', messages: messages.map((each) => ({ key: 'alice', value: each })) })
  const consumer = await consumeKafka(pool, kafka)
  const last = "SELECT count(*) FROM idem_lookup('k20', 'deposits') WHERE outcome = 'COMPLETED'"
  while (await value(last) === '0') await new Promise((resolve) => setTimeout(resolve, 50))
  await consumer.stop()
  const { stdout } = await promisify(execFile)('kcat', ['-b', process.env.DEMO_KAFKA, '-C', '-t', 'deposits.wallets.dead', '-e', '-q'])
  assert.deepEqual(stdout.trim().split('\n'), [messages[1]])
  assert.deepEqual(await value("SELECT response_payload FROM idem_lookup('k-500', 'deposits')"), { reason: 'attempts lost', lost_attempts: 3 })
  assert.equal(Number(await value("SELECT balance FROM wallet WHERE id = 'alice'")), before + 30)
  await producer.disconnect()
  await topics.disconnect()
})

// The messages of the queue of dead letters, when there are so many.
async function deadLetters(channel, count) {
  const found = []
  await new Promise((resolve) => {
    channel.consume('deposits.dead', ({ properties, content }) => {
      found.push(`${properties.messageId} ${content}`)
      if (found.length === count) resolve()
    }, { noAck: true })
  })
  return found
}

// A copy that met the other one in progress comes back after a second.
async function untilEmpty(channel) {
  const queues = ['deposits', 'deposits.again.1000']
  for (;;) {
    const counts = await Promise.all(queues.map(async (queue) => (await channel.checkQueue(queue)).messageCount))
    if (counts.every((messages) => messages === 0)) return
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
