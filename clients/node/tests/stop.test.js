// Consumers whose broker is gone, hangs or refuses: stop() ends, and nothing goes on after it. The brokers are made
// up here, so that no test waits.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FakeClock, Forbidden, Unknown, Unstorable, ownsDeadLetter } from 'pg-idempotency'
import { NatsConsumer } from 'pg-idempotency/nats'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'
import { RedisConsumer } from 'pg-idempotency/redis'
import { decide } from '../src/consumer.js'
import { deferred, idempotencyFor, newKey } from './support.js'

const never = new Promise(() => {})

/** A client of redis. `answer(command)` gives what Redis answers. */
function fakeRedis(answer) {
  const redis = { commands: [], signals: [], reader: { isOpen: false } }
  const sendCommand = async (command, options) => {
    if (command[1]?.includes('DELCONSUMER')) return null
    redis.commands.push(command)
    redis.signals.push(options?.abortSignal)
    return answer(command)
  }
  redis.client = { sendCommand, duplicate: () => redis.reader }
  Object.assign(redis.reader, {
    sendCommand, on() {}, connect: async () => { redis.reader.isOpen = true }, destroy: () => {
      assert.ok(redis.reader.isOpen)
      redis.reader.isOpen = false
    },
  })
  return redis
}

function redisConsumer(t, redis, options) {
  const clock = new FakeClock()
  const { idempotency } = idempotencyFor(t, { clock })
  const started = RedisConsumer.start(redis.client, { idempotency, stream: 's', group: 'g', handle: async () => {}, ...options })
  return { clock, started }
}

const isTake = ([command, script]) => command === 'EVAL' && script.includes('XCLAIM')

test('redis: a start that fails leaves no connection', async (t) => {
  const refused = fakeRedis(() => { throw new Error('WRONGTYPE planned') })
  await assert.rejects(redisConsumer(t, refused).started, /WRONGTYPE/)
  assert.equal(refused.reader.isOpen, false)
  const closed = fakeRedis(() => never)
  closed.reader.connect = async () => { throw new Error('planned') }
  await assert.rejects(redisConsumer(t, closed).started, /planned/)
  const silent = fakeRedis(() => never)
  silent.reader.connect = () => { silent.reader.isOpen = true; return never }
  const { clock, started } = redisConsumer(t, silent)
  await clock.advance(30_000)
  await assert.rejects(started, /did not answer in time/)
  assert.equal(silent.reader.isOpen, false)
})

for (const [idle, patience] of [[30_000, 30_000], [1000, 5000]]) {
  test(`redis: a server that hangs does not keep a stop; idle ${idle}`, { timeout: 10_000 }, async (t) => {
    const redis = fakeRedis(([command]) => command === 'XGROUP' ? 'OK' : never)
    const errors = []
    const { clock, started } = redisConsumer(t, redis, { idle, onError: (error) => errors.push(error.message) })
    const consumer = await started
    let isStopped = false
    const stopped = consumer.stop().then(() => { isStopped = true })
    await clock.advance(patience - 1)
    await new Promise(setImmediate)
    assert.equal(isStopped, false)
    await clock.advance(1)
    await stopped
    await consumer.stop()
    assert.deepEqual(errors, ['Redis did not answer in time'])
    assert.deepEqual([redis.commands.length, redis.signals.at(-1).aborted], [2, true])
    assert.deepEqual([redis.reader.isOpen, clock.pending], [false, 0])
  })
}

for (const prefetch of [1, 2]) {
  test(`redis: ${prefetch} at a time; what is under way is settled, or comes again, before a stop ends`, { timeout: 10_000 }, async (t) => {
    const [entered, go] = [deferred(), deferred()]
    const order = []
    const entries = [['1-0', ['name', 'value'], 1, 0]]
    const redis = fakeRedis((command) => {
      if (isTake(command)) return entries.splice(0)
      return command[0] === 'EVAL' ? never : new Promise(setImmediate)
    })
    const { clock, started } = redisConsumer(t, redis, {
      prefetch, onError: (error) => order.push(error.message), handle: async () => { entered.resolve(); await go.promise },
    })
    const consumer = await started
    await entered.promise
    await new Promise(setImmediate)
    assert.equal(redis.commands.filter(isTake).length > 1, prefetch > 1)
    const stopped = consumer.stop().then(() => order.push('stopped'))
    go.resolve()
    // The acknowledgement waits for its answer.
    while (!redis.commands.some((command) => command[0] === 'EVAL' && !isTake(command))) await new Promise(setImmediate)
    await clock.advance(30_000)
    await stopped
    assert.deepEqual(order, ['Redis did not answer in time', 'stopped'])
    assert.equal(clock.pending, 0)
  })
}

test('redis: an entry that was delivered too often is a dead letter, and is not handled', { timeout: 10_000 }, async (t) => {
  const ended = deferred()
  const entries = [['1-0', [], 101, 0]]
  const redis = fakeRedis((command) => {
    if (isTake(command)) return entries.splice(0)
    if (command[0] === 'EVAL') ended.resolve(command.slice(-2))
    return command[0] === 'EVAL' ? 1 : new Promise(setImmediate)
  })
  const consumer = await redisConsumer(t, redis, { handle: () => assert.fail('handled') }).started
  assert.deepEqual(await ended.promise, ['1-0', 'bury'])
  await consumer.stop()
})

test('the pause after an error, and an owner of a dead letter who is being found', async () => {
  const planned = new Error('planned')
  for (const [error, tries, after] of [
    [planned, 0, 20], [planned, 1, 100], [planned, 7, 100],
    [new Unknown('', { retryAfter: 50 }), 0, 50], [new Unknown('', { retryAfter: 50 }), 1, 100], [new Unknown(''), 0, 20],
  ]) {
    const options = { delays: [20, 100], tries: 20, onError() {}, handle: async () => { throw error } }
    assert.deepEqual(await decide(options, {}, tries), { action: 'again', after, tries: tries + 1 })
  }
  // Its record stays, so no other try has another end.
  const hopeless = { delays: [20], tries: 20, onError() {}, handle: async () => { throw new Unstorable() } }
  assert.equal((await decide(hopeless, {}, 0)).action, 'bury')
  const asked = { transaction: async () => ({ outcome: 'IN_PROGRESS', retryAfter: 7 }) }
  await assert.rejects(ownsDeadLetter(asked, 'q', { record: 'r' }, 'm'), { name: 'InProgress', retryAfter: 7 })
})

/** A connection of amqplib, with one channel. */
function fakeRabbit(methods) {
  const rabbit = { closed: 0, declared: {} }
  const channel = {
    on: (event, listener) => { rabbit.fail = listener }, prefetch: async (count) => { rabbit.prefetch = count }, ack() {}, cancel: async () => {},
    assertQueue: async (queue, options) => { rabbit.declared[queue] = options },
    consume: async (queue, deliver) => { rabbit.deliver = deliver; return { consumerTag: 'tag' } },
    close: async () => { rabbit.closed++ }, ...methods,
  }
  rabbit.connection = { createConfirmChannel: async () => channel }
  return rabbit
}

test('rabbitmq: a start that fails leaves no channel', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const rabbit = fakeRabbit({ assertQueue: async () => { throw new TypeError('planned') } })
  await assert.rejects(RabbitConsumer.start(rabbit.connection, { idempotency, queue: 'q', handle: async () => {} }), /planned/)
  assert.equal(rabbit.closed, 1)
})

test('rabbitmq: what the queues are made with; a channel that fails, and a consumer that the broker ends, are told', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const told = []
  const rabbit = fakeRabbit({ cancel: async (tag) => told.push(tag), close: async () => told.push('closed') })
  const consumer = await RabbitConsumer.start(rabbit.connection, {
    idempotency, queue: 'q', deliveryLimit: 7, prefetch: 3, delays: [5], handle: async () => {}, onError: ({ message: error }, message) => told.push(error, message) })
  const moves = (queue) => ({
    'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue, 'x-dead-letter-strategy': 'at-least-once',
    'x-overflow': 'reject-publish' })
  assert.deepEqual([rabbit.declared, rabbit.prefetch], [{
    q: { durable: true, arguments: { 'x-delivery-limit': 7, ...moves('q.dead') } },
    'q.dead': { durable: true, arguments: { 'x-queue-type': 'quorum' } },
    'q.again.5': { durable: true, arguments: { 'x-message-ttl': 5, ...moves('q') } },
  }, 3])
  rabbit.fail(new Error('failed'))
  rabbit.deliver(null)
  await consumer.stop()
  assert.deepEqual(told, ['failed', undefined, 'the broker has ended the consumer', undefined, 'tag', 'closed'])
})

test('rabbitmq: a stop waits for what is under way, though the connection is gone; a second one is the first', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const closed = () => { throw new Error('Channel closed') }
  let closes = 0
  const rabbit = fakeRabbit({ cancel: closed, ack: closed, close: () => { closes++; closed() } })
  const go = deferred()
  const order = []
  const consumer = await RabbitConsumer.start(rabbit.connection, {
    idempotency, queue: 'q', onError: (error) => order.push(error.message), handle: () => go.promise,
  })
  rabbit.deliver({ properties: {} })
  const stopped = consumer.stop().then(() => order.push('stopped'))
  await new Promise(setImmediate)
  go.resolve()
  await Promise.all([stopped, consumer.stop()])
  await consumer.stop()
  assert.deepEqual([order, closes], [['Channel closed', 'stopped'], 1])
})

test('an onError that fails, and tries that are no number: the message is settled', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const settled = deferred()
  const rabbit = fakeRabbit({ nack: (message, all, requeue) => settled.resolve(requeue) })
  const fail = () => { throw new Error('planned') }
  await RabbitConsumer.start(rabbit.connection, { idempotency, queue: 'q', tries: 1, onError: fail, handle: fail })
  rabbit.deliver({ properties: { headers: { 'x-idempotency-tries': 'many' } } })
  assert.equal(await settled.promise, false)
})

// A number without end would end the connection, and a table has no number.
for (const tries of ['1e999', Infinity, 1.5, { toString: 'own', valueOf: 'own' }]) {
  test(`rabbitmq: tries of a sender that are none: ${JSON.stringify(tries)}`, async (t) => {
    const { idempotency } = idempotencyFor(t)
    const sent = deferred()
    const rabbit = fakeRabbit({ once() {}, off() {}, sendToQueue: (queue, content, { headers }) => sent.resolve(headers) })
    await RabbitConsumer.start(rabbit.connection, {
      idempotency, queue: 'q', onError: sent.reject, handle: async () => ({ action: 'again', after: 1 }) })
    rabbit.deliver({ properties: { headers: { 'x-idempotency-tries': tries } } })
    assert.equal((await sent.promise)['x-idempotency-tries'], 0)
  })
}

test('what handle returns is no verdict by accident, and a pause is none without a time', async (t) => {
  const { idempotency } = idempotencyFor(t)
  for (const [given, settled, told] of [
    [{ action: 'deadLetter', reason: 'planned' }, 'dead', false], [undefined, 'ack', false],
    [null, 'ack', false], [false, 'dead', true], [0, 'dead', true], [{ outcome: 'done', retryAfter: null }, 'dead', true],
    [7, 'dead', true], [{ rows: [] }, 'dead', true], [{ action: 'bury' }, 'dead', true], [{ action: 'again' }, 'dead', true],
  ]) {
    const done = deferred()
    let errors = 0
    const rabbit = fakeRabbit({ ack: () => done.resolve('ack'), nack: (message, all, requeue) => done.resolve(requeue ? 'back' : 'dead') })
    await RabbitConsumer.start(rabbit.connection, { idempotency, queue: 'q', tries: 1, onError: () => { errors++ }, handle: async () => given })
    rabbit.deliver({ properties: { headers: { 'x-idempotency-tries': -5 } } })
    assert.deepEqual([await done.promise, errors > 0], [settled, told])
  }
})

// A redelivery of a message whose name is no text would be taken for a copy. One that failed anew has no stored failure yet.
for (const [what, name, record, tries, expected] of [
  ['a name that is no text', { no: 'text' }, newKey(), 0, 0], ['a failure that is no replay', 'one', null, 18, 19], ['the last of these', 'one', null, 19, false],
]) {
  test(`rabbitmq: ${what}: another name, or a dead letter`, async (t) => {
    const { idempotency } = idempotencyFor(t)
    const settled = deferred()
    const rabbit = fakeRabbit({
      nack: (message, all, requeue) => settled.resolve(requeue), once() {}, off() {},
      sendToQueue: (queue, content, { headers }) => settled.resolve(headers),
    })
    await RabbitConsumer.start(rabbit.connection, {
      idempotency, queue: newKey(), handle: async () => ({ outcome: 'FAILED', retryAfter: null, record }) })
    rabbit.deliver({ properties: { headers: { 'x-idempotency-name': name, 'x-idempotency-tries': tries } } })
    const headers = await settled.promise
    assert.equal(headers?.['x-idempotency-tries'] ?? headers, expected)
    if (headers) assert.match(headers['x-idempotency-name'], /^[0-9a-f-]{36}$/)
  })
}

// Such as the right to its scope: there is time to give it, before each copy is a dead letter.
test('rabbitmq: an error of the owner is none of the message', async () => {
  const idempotency = { clock: new FakeClock({ auto: true }), transaction: async () => { throw new Forbidden('planned') } }
  const [acked, tries] = [deferred(), []]
  const rabbit = fakeRabbit({ ack: acked.resolve })
  const handle = async ({ properties: { headers } }) => {
    return tries.push(headers['x-idempotency-tries']) > 1 ? { action: 'ack' } : { outcome: 'FAILED', retryAfter: null, record: newKey() }
  }
  await RabbitConsumer.start(rabbit.connection, { idempotency, queue: 'q', handle, onError: () => {} })
  rabbit.deliver({ properties: { headers: { 'x-idempotency-name': 'one' } } })
  await acked.promise
  assert.deepEqual(tries, [undefined, 1])
})

// What the broker returns has no other sign of which copy it was.
test('rabbitmq: one copy at a time; a message whose copy the broker refuses goes back', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const [events, confirms, copies] = [[], [], []]
  const rabbit = fakeRabbit({
    once() {}, off() {}, sendToQueue: (queue, content, options, confirm) => {
      events.push(`copy ${content}`)
      copies.push(options)
      confirms.push(confirm)
    },
    ack: ({ content }) => events.push(`ack ${content}`), nack: ({ content }, all, requeue) => events.push(`nack ${content} ${requeue}`),
  })
  await RabbitConsumer.start(rabbit.connection, {
    idempotency, queue: 'q', handle: async () => ({ action: 'again', after: 1 }), onError: ({ message }) => events.push(message) })
  const properties = { headers: { own: '1', CC: 'other', 'x-death': [] }, type: 'own', expiration: '5', userId: 'sender' }
  for (const content of [1, 2]) rabbit.deliver({ content, properties })
  for (const refusal of [new Error('refused'), null]) {
    await new Promise(setImmediate)
    confirms.shift()(refusal)
  }
  await new Promise(setImmediate)
  assert.deepEqual(events, ['copy 1', 'refused', 'nack 1 true', 'copy 2', 'ack 2'])
  assert.deepEqual(copies[0], {
    type: 'own', headers: { own: '1', 'x-idempotency-tries': 0, CC: undefined, 'x-death': undefined }, persistent: true, mandatory: true,
    expiration: undefined, userId: undefined,
  })
})

/** A NatsConsumer of a connection whose `fetch` gives messages. */
async function natsConsumer(t, { fetch, isClosed = () => true, settled = [], ...options }) {
  const clock = new FakeClock()
  const { idempotency } = idempotencyFor(t, { clock })
  const made = []
  const consumer = await NatsConsumer.start({
    isClosed,
    jetstream: () => ({
      consumers: { get: async () => ({ fetch }) }, publish: async () => settled.push('bury'),
      jetstreamManager: async () => ({ streams: { add: (given) => made.push(given) }, consumers: { add: (...given) => made.push(given) } }),
    }),
  }, { idempotency, stream: 's', durable: 'd', handle: async () => {}, ...options })
  return { clock, consumer, made }
}

for (const order of [['go', 'late'], ['late', 'go']]) {
  test('nats: a stop waits for what is under way, and gives back what was sent ahead', { timeout: 10_000 }, async (t) => {
    const [entered, closing, ends] = [deferred(), deferred(), { go: deferred(), late: deferred() }]
    const [handled, settled] = [[], []]
    const message = (seq, deliveryCount = 1) => ({
      seq, info: { deliveryCount }, working() {}, ack: () => settled.push(`ack ${seq}`), nak: () => settled.push(`nak ${seq}`),
    })
    async function* messages() {
      yield message(0, 101)
      yield message(1)
      await ends.late.promise
      yield message(2)
    }
    const { consumer } = await natsConsumer(t, {
      settled, prefetch: 2, fetch: async () => Object.assign(messages(), { close: async () => { closing.resolve() } }),
      handle: async ({ seq }) => { handled.push(seq); entered.resolve(); await ends.go.promise },
    })
    await entered.promise
    let isStopped = false
    const stopped = consumer.stop().then(() => { isStopped = true })
    await closing.promise
    for (const end of order) {
      await new Promise(setImmediate)
      assert.equal(isStopped, false)
      ends[end].resolve()
    }
    await stopped
    assert.deepEqual([handled, settled.sort()], [[1], ['ack 0', 'ack 1', 'bury', 'nak 2']])
  })
}

test('nats: what the server refuses is told, and tried again later; a connection that is closed for good is told once', async (t) => {
  const errors = []
  const refused = (what) => () => { throw new Error(what) }
  const [handling, go] = [deferred(), deferred()]
  const message = { seq: 1, info: { deliveryCount: 1 }, working: refused('working'), ack: refused('ack') }
  const fetches = [() => Object.assign([message], { close() {} })]
  let isOpen = true
  const { clock, consumer, made } = await natsConsumer(t, {
    ackWait: 30_000, filter: 's.a', deadWindow: 1000, isClosed: () => !isOpen, onError: ({ message }) => errors.push(message),
    fetch: async () => (fetches.shift() ?? refused('fetch'))(), handle: () => { handling.resolve(); return go.promise },
  })
  await handling.promise
  assert.deepEqual(made, [{ name: 's-d-dead', subjects: ['s-d-dead.>'], duplicate_window: 1e9 }, ['s', {
    durable_name: 'd', ack_policy: 'explicit', ack_wait: 3e10, max_deliver: -1, max_ack_pending: -1, filter_subject: 's.a' }]])
  // The pause after a fetch, and the next word to the server.
  await clock.whenPending(2)
  await clock.advance(900)
  assert.deepEqual(errors.splice(0), ['fetch'])
  isOpen = false
  await clock.advance(9100)
  go.resolve()
  while (clock.pending > 0) await new Promise(setImmediate)
  assert.deepEqual(errors.sort(), ['ack', 'fetch', 'working'])
  await consumer.stop()
})
