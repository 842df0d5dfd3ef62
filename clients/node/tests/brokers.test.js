// The consumers of all brokers, on real ones: copies, retries, dead letters. What happens when consumers die is in
// clients/brokers.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { headers } from '@nats-io/transport-node'
import { connect as connectByVersion2 } from 'nats'
import { createClient } from 'redis'
import { BadArgument, Declined, InProgress, ownsDeadLetter } from 'pg-idempotency'
import { ServiceMistake } from '../src/errors.js'
import { openStage, stages } from './stages.js'
import { effects, idempotencyFor, newKey } from './support.js'

/** A stage with its consumers, closed with the test. */
async function stageFor(t, broker) {
  const queue = `${broker}-${newKey()}`
  const { pool, idempotency } = idempotencyFor(t, { scope: queue })
  const stage = await openStage(broker, queue)
  t.after(() => stage.close())
  // nobody dies here: what is taken is not given to another one, however slow the machine is
  const kept = { idempotency, idle: 60_000, ackWait: 60_000 }
  await stage.prepare(kept)
  const dead = async (count) => {
    await until(async () => (await stage.deadLetters()).length >= count, 'dead letters')
    return (await stage.deadLetters()).sort()
  }
  return { stage, pool, idempotency, dead, start: (options) => stage.start({ ...kept, onError: () => {}, ...options }) }
}

async function until(holds, what) {
  const deadline = performance.now() + 60_000
  while (!await holds()) {
    if (performance.now() > deadline) assert.fail(`not in time: ${what}`)
    await sleep(25)
  }
}

for (const broker of Object.keys(stages)) {
  test(`${broker}: copies, a failure for now, failures for good`, { timeout: 120_000 }, async (t) => {
    const { stage, pool, idempotency, dead, start } = await stageFor(t, broker)
    const seen = []
    const handle = async (message) => {
      const key = stage.key(message)
      seen.push(key)
      return idempotency.transaction(key, null, async (tx, { attempt }) => {
        await tx.query('INSERT INTO effect VALUES ($1, 1)', [stage.queue + key])
        if (key.startsWith('bad')) throw new Declined(402)
        if (key === 'late' && attempt === 1) throw new Declined(503, null, { retryAfter: 50 })
      })
    }
    const sent = ['good', 'bad', 'late', 'good', 'bad', 'bad2', 'bad']
    await stage.send(sent)
    const consumers = [await start({ handle }), await start({ handle })]
    await until(async () => new Set(seen).size >= 4 && await stage.settled(), 'all is settled')
    for (const consumer of consumers) await consumer.stop()
    assert.deepEqual(await dead(2), ['bad', 'bad2'])
    for (const [key, count] of Object.entries({ good: 1, late: 1, bad: 0, bad2: 0 })) {
      assert.equal(await effects(pool, stage.queue + key), count, key)
    }
  })

  test(`${broker}: errors come again, each time later, and not for ever`, { timeout: 120_000 }, async (t) => {
    const { stage, dead, start } = await stageFor(t, broker)
    const [times, errors] = [[], []]
    const handle = async (message) => {
      const key = stage.key(message)
      if (key === 'broken') {
        times.push(performance.now())
        throw times.length === 1 ? new ServiceMistake('planned') : new Error('planned')
      }
      if (key === 'bad argument') throw new BadArgument('planned')
    }
    await stage.send(['broken', 'bad argument', 'nothing'])
    const consumer = await start({ handle, tries: 3, onError: (error) => errors.push(error.message) })
    await until(async () => times.length === 3 && await stage.settled(), 'all is settled')
    await consumer.stop()
    assert.deepEqual(await dead(2), ['bad argument', 'broken'])
    assert.deepEqual(errors, ['planned', 'planned', 'planned', 'planned'])
    assert.ok(times[1] - times[0] >= 20 && times[2] - times[1] >= 100, times.join())
  })

  test(`${broker}: what another worker runs uses up no try`, { timeout: 120_000 }, async (t) => {
    const { stage, start } = await stageFor(t, broker)
    const [sent, seen, errors] = [['result', 'function'], [], []]
    const handle = async (message) => {
      const key = stage.key(message)
      if (!sent.includes(key)) return undefined
      seen.push(key)
      const times = seen.filter((one) => one === key).length
      if (times === 4) throw new Error('planned')
      if (times > 4) return undefined
      if (key === 'function') throw new InProgress(1)
      return { outcome: 'IN_PROGRESS', retryAfter: 1 }
    }
    await stage.send(sent)
    // the queue of RabbitMQ has its limit already
    const limit = broker === 'rabbitmq' ? {} : { deliveryLimit: 2 }
    const consumer = await start({ handle, tries: 2, ...limit, onError: (error, message) => message && errors.push(error.message) })
    await until(async () => (seen.length >= 10 || errors.length > 2) && await stage.settled(), 'all is settled')
    await consumer.stop()
    assert.deepEqual([seen.length, errors, await stage.deadLetters()], [10, ['planned', 'planned'], []])
  })

  test(`${broker}: what is under way when the consumer stops is settled`, { timeout: 120_000 }, async (t) => {
    const { stage, start } = await stageFor(t, broker)
    let finish
    const begun = new Promise((resolve) => {
      finish = new Promise((go) => { stage.handle = async (message) => { if (stage.key(message) === 'one') { resolve(go); await finish } } })
    })
    await stage.send(['one'])
    const consumer = await start({ handle: stage.handle })
    const go = await begun
    const stopped = consumer.stop()
    go()
    await stopped
    const again = []
    const next = await start({ handle: async (message) => { again.push(stage.key(message)) } })
    await until(() => stage.settled(), 'all is settled')
    await next.stop()
    assert.ok(!again.includes('one'))
  })
}

test('rabbitmq: without its retry queue a message stays where it is', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'rabbitmq')
  const [errors, seen] = [[], []]
  await stage.send(['good'])
  const consumer = await start({
    onError: (error) => errors.push(error.message),
    handle: async (message) => {
      if (seen.push(stage.key(message)) > 1) return
      await stage.channel.deleteQueue(`${stage.queue}.again.20`)
      return { action: 'again', after: 1 }
    },
  })
  await until(() => seen.length === 2, 'a redelivery')
  await consumer.stop()
  assert.deepEqual(errors, [`there is no queue ${stage.queue}.again.20`])
})

test('rabbitmq: a copy goes to no queue of CC once more', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'rabbitmq')
  const other = `${stage.queue}.other`
  await stage.channel.assertQueue(other, { autoDelete: true })
  stage.channel.sendToQueue(stage.queue, Buffer.from('one'), { CC: other })
  let seen = 0
  const consumer = await start({ handle: async () => (++seen < 3 ? { action: 'again', after: 1 } : undefined) })
  await until(async () => seen === 3 && await stage.settled(), 'all is settled')
  await consumer.stop()
  assert.equal((await stage.channel.checkQueue(other)).messageCount, 1)
  await stage.channel.deleteQueue(other)
})

// A copy with its name would own the dead letter, too, if the consumer died before it acknowledged the message.
test('rabbitmq: a message that may own the dead letter has no copy', { timeout: 45_000 }, async (t) => {
  const { stage, idempotency, dead, start } = await stageFor(t, 'rabbitmq')
  const [errors, tries, copies] = [[], [], []]
  stage.watch((point) => copies.push(point))
  const handle = async (message) => {
    tries.push(message.properties.headers['x-idempotency-tries'])
    if ([2, 3].includes(tries.length)) throw new Error('planned')
    return idempotency.transaction(stage.key(message), null, () => { throw new Declined(402) })
  }
  const options = { handle, delays: [20, 60_000], onError: (error) => errors.push(error.message) }
  await stage.send(['bad'])
  const first = await start(options)
  await until(() => errors.length === 2, 'it waits for a minute')
  await first.stop()
  assert.deepEqual(tries, [undefined, 0, 1])
  const second = await start(options)
  assert.deepEqual([await dead(1), tries.length, errors], [['bad'], 4, ['planned', 'planned']])
  await second.stop()
  assert.deepEqual(copies, ['ack', 'copy', 'bury'])
})

// The broker drops what dies in a queue a second time, and was rejected nowhere in between.
test('rabbitmq: a dead letter of the broker that is sent again comes back after an error', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'rabbitmq')
  const death = { count: 1, reason: 'delivery_limit', queue: stage.queue, exchange: '', 'routing-keys': [stage.queue] }
  stage.channel.sendToQueue(stage.queue, Buffer.from('one'), { headers: { 'x-death': [death] } })
  let seen = 0
  const consumer = await start({ handle: async () => { if (++seen === 1) throw new Error('planned') } })
  await until(() => seen === 2, 'it comes back')
  await consumer.stop()
})

test('nats: a dead letter tells the server nothing', { timeout: 120_000 }, async (t) => {
  const { stage, dead, start } = await stageFor(t, 'nats')
  await stage.manager.streams.update(stage.queue, { allow_rollup_hdrs: true })
  const rollup = headers()
  rollup.set('Nats-Rollup', 'sub')
  rollup.set('Nats-Msg-Id', 'own')
  await stage.jetstream.publish(`${stage.queue}.sent`, 'one', { headers: rollup })
  const consumer = await start({ handle: async () => { throw new BadArgument('planned') } })
  assert.deepEqual(await dead(1), ['one'])
  await consumer.stop()
  const { header } = await stage.manager.streams.getMessage(`${stage.queue}-test-dead`, { seq: 1 })
  assert.equal(header.get('x-idempotency-msg-id'), 'own')
})

test('nats: no message comes again because others are handled', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'nats')
  const [seen, errors, counts] = [[], [], []]
  let running = 0
  await stage.send(['1', '2', '3', '4', '5', '6'])
  const handle = async (message) => {
    seen.push(stage.key(message))
    counts.push(++running)
    await sleep(900)
    running--
  }
  const consumer = await start({ handle, prefetch: 2, ackWait: 600, onError: (error) => errors.push(error) })
  await until(async () => seen.length >= 6 && await stage.settled(), 'all is settled')
  await consumer.stop()
  assert.deepEqual([seen.sort(), Math.max(...counts), errors], [['1', '2', '3', '4', '5', '6'], 2, []])
})

test('nats: a connection that is closed for good, and a consumer that is gone, are told', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'nats')
  const errors = []
  const consumer = await start({ handle: async () => {}, onError: (error) => errors.push(error.message) })
  await stage.manager.consumers.delete(stage.queue, 'test')
  await until(() => errors.length > 0, 'the consumer is gone')
  await stage.connection.close()
  await until(() => errors.at(-1).includes('closed'), 'the connection is closed')
  await consumer.stop()
})

test('nats: version 2 of the client', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'nats')
  await assert.rejects(start({ jetstream: undefined, handle: async () => {} }), { name: 'BadArgument', message: /jetstream/ })
  const { connection } = stage
  t.after(() => connection.close())
  stage.connection = await connectByVersion2({ servers: process.env.DEMO_NATS })
  await stage.send(['good', 'bad'])
  const handle = async (message) => { if (stage.key(message) === 'bad') throw new BadArgument('planned') }
  const consumer = await start({ jetstream: undefined, handle })
  await until(() => stage.settled(), 'both are settled')
  await consumer.stop()
  assert.deepEqual(await stage.deadLetters(), ['bad'])
})

// The second message of one number would be a copy for the stream of the dead letters.
test('nats: two consumers whose dead letters are in one stream', { timeout: 120_000 }, async (t) => {
  const { stage: { manager, jetstream, queue }, start } = await stageFor(t, 'nats')
  await manager.streams.add({ name: `${queue}-x`, subjects: [`${queue}-x.*`] })
  for (const [stream, durable] of [[queue, 'x-test'], [`${queue}-x`, 'test']]) {
    await jetstream.publish(`${stream}.sent`, 'one')
    const consumer = await start({ stream, durable, handle: async () => { throw new BadArgument('planned') } })
    await until(async () => (await manager.consumers.info(stream, durable)).ack_floor.stream_seq === 1, 'it is settled')
    await consumer.stop()
  }
  assert.equal((await manager.streams.info(`${queue}-x-test-dead`)).state.messages, 2)
})

test('kafka: a header of a dead letter may have any name', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'kafka')
  const names = ['__proto__', 'constructor', 'own']
  const headers = Object.fromEntries(names.map((name) => [name, ['1', '2']]))
  await stage.producer.send({ topic: stage.queue, messages: [{ key: 'one', value: '', headers }] })
  const consumer = await start({ handle: async ({ key }) => { if (key.toString() === 'one') throw new BadArgument('planned') } })
  await until(() => stage.settled(), 'all is settled')
  await consumer.stop()
  const [{ headers: written }] = await stage.deadMessages()
  assert.deepEqual(written.slice(0, -2), names.flatMap((name) => [name, '1', name, '2']))
})

test('redis: an entry whose dead letter cannot be added is not acknowledged', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  await stage.client.set(`{${stage.queue}}.test.dead`, 'no stream')
  await stage.send(['one'])
  const errors = []
  const consumer = await start({ handle: async () => { throw new BadArgument('planned') }, onError: (error) => errors.push(error) })
  await until(() => errors.length === 2, 'both errors')
  await consumer.stop()
  assert.equal(await stage.settled(), false)
})

test('redis: a dead letter of more fields than a script passes on', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  const fields = Array.from({ length: 4500 }, (_, n) => `field ${n}`)
  await stage.client.xAdd(stage.queue, '*', Object.fromEntries(fields.map((name) => [name, 'value'])))
  const consumer = await start({ handle: async () => { throw new BadArgument('planned') } })
  await until(() => stage.settled(), 'it is settled')
  await consumer.stop()
  const [{ message }] = await stage.client.xRange(`{${stage.queue}}.test.dead`, '-', '+')
  assert.deepEqual(JSON.parse(message['x-idempotency-fields']), fields.flatMap((name) => [name, 'value']))
})

test('redis: a field may have any name', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  const sent = Object.fromEntries([['__proto__', 'a'], ['constructor', 'b']])
  await stage.client.xAdd(stage.queue, '*', sent)
  let fields
  const consumer = await start({ handle: async (entry) => { fields = entry.fields } })
  await until(() => fields, 'it is handled')
  await consumer.stop()
  assert.deepEqual(fields, sent)
})

test('redis: a consumer that is gone leaves its name only with entries', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  for (const answer of [{ action: 'again', after: 60_000 }, { action: 'ack' }]) {
    await stage.send(['one'])
    let handled = false
    const consumer = await start({ handle: async () => { handled = true; return answer } })
    await until(() => handled, 'it is handled')
    await consumer.stop()
  }
  await (await start({ handle: async () => {} })).stop()
  assert.deepEqual((await stage.client.xInfoConsumers(stage.queue, 'test')).map(({ pending }) => pending), [1])
})

test('redis: nothing is left of an entry that is deleted while it pauses', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  await stage.send(['one', 'two'])
  const handle = async (entry) => {
    if (stage.key(entry) === 'two') return
    await stage.client.xDel(stage.queue, entry.id)
    throw new Error('planned')
  }
  const consumer = await start({ handle })
  await until(async () => await stage.settled() &&
    await stage.client.exists([`{${stage.queue}}.test.again`, `{${stage.queue}}.test.tries`]) === 0, 'all is gone')
  await consumer.stop()
})

test('redis: a client that speaks RESP 3', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  stage.client.destroy()
  stage.client = await createClient({ url: process.env.DEMO_REDIS, RESP: 3 }).connect()
  await stage.send(['one'])
  let deliveries
  const consumer = await start({ handle: async (entry) => { deliveries = entry.deliveries } })
  await until(() => deliveries, 'it is handled')
  await consumer.stop()
  assert.equal(deliveries, 1)
})

test('redis: a group that is lost is made again', { timeout: 120_000 }, async (t) => {
  const { stage, start } = await stageFor(t, 'redis')
  const seen = []
  await stage.send(['one'])
  const consumer = await start({ handle: async (message) => {
    if (seen.push(stage.key(message)) > 1) return
    await stage.client.del(stage.queue)
    await stage.send(['two'])
  } })
  await until(async () => seen.length === 2, 'the second entry')
  await consumer.stop()
  assert.deepEqual(seen, ['one', 'two'])
})

test('one message owns the dead letter of a failure', async (t) => {
  const { idempotency } = idempotencyFor(t)
  const key = newKey()
  const decline = () => { throw new Declined(402) }
  const fresh = await idempotency.transaction(key, null, decline)
  await assert.rejects(ownsDeadLetter(idempotency, 'q', fresh, 'm1'), BadArgument)
  const failure = await idempotency.transaction(key, null, decline)
  const owners = []
  for (const name of ['m1', 'm2', 'm1']) owners.push(await ownsDeadLetter(idempotency, 'q', failure, name))
  assert.deepEqual(owners, [true, false, true])
  assert.ok(await ownsDeadLetter(idempotency, 'another queue', failure, 'm2'))
  // what settles it has failed for good, as its attempts were lost too often: each copy is a dead letter
  await idempotency.transaction(failure.record, null, decline, { scope: 'lost.dead' })
  for (const name of ['m1', 'm2']) assert.equal(await ownsDeadLetter(idempotency, 'lost', failure, name), true)
})
