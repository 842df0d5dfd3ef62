// What a broker seldom does: a commit that fails, a partition that goes away while a dead letter is decided, and a
// consumer that crashes while it is stopped.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Declined } from 'pg-idempotency'
import { KafkaConsumer } from 'pg-idempotency/kafka'
import { deferred, idempotencyFor, newKey } from './support.js'

// A consumer beside a kafkajs with a group of one partition, which does as the test says.
function consumerOf(t, { handle = async () => {}, ...options } = {}) {
  const { idempotency } = idempotencyFor(t)
  const group = { events: [], errors: [], sent: [], committed: [], stale: false, refusals: 0, join: async () => {} }
  const { events } = group
  const kafka = {
    consumer: ({ retry }) => {
      const number = events.filter((event) => event.startsWith('connect')).length + 1
      let tell
      group.crash = (error) => { tell({ payload: { error } }); return retry.restartOnFailure(error) }
      return {
        on: (event, listener) => { tell = listener }, subscribe() {}, seek() {},
        connect: async () => { events.push(`connect ${number}`) },
        run: async ({ eachBatch, ...options }) => { Object.assign(group, { deliver: eachBatch, options }); await group.join(); events.push(`run ${number}`) },
        disconnect: async () => { events.push(`disconnect ${number}`) },
      }
    },
    producer: () => ({
      connect: () => group.connect?.(), disconnect: async () => { events.push('end') }, send: async ({ acks, messages }) => { group.sent.push({ acks, ...messages[0] }) },
    }),
  }
  group.start = () => KafkaConsumer.start(kafka, {
    idempotency, topic: newKey(), groupId: 'g', handle: (message) => handle(idempotency, message, group), delays: [1],
    onError: (error) => group.errors.push(error.message), ...options,
  })
  group.batch = (...more) => group.deliver({
    batch: { partition: 0, messages: ['9007199254740993', ...more].map((offset) => ({ offset, key: Buffer.from('k'), headers: group.headers ?? {} })) },
    heartbeat: async () => { group.beaten?.resolve(); throw new Error('the group is rebalancing') },
    isRunning: () => !group.stopping, isStale: () => group.stale, resolveOffset() {}, pause: () => () => { group.isResumed = true },
    commitOffsetsIfNecessary: async ({ topics: [{ partitions: [{ offset }] }] }) => {
      if (group.refusals-- > 0) throw new Error('the group is rebalancing')
      group.committed.push(offset)
    },
  })
  return group
}

async function started(t, options) {
  const group = consumerOf(t, options)
  const consumer = await group.start()
  t.after(() => consumer.stop())
  return { group, consumer }
}

const declined = (idempotency, message) => idempotency.transaction(`${message.topic} ${message.offset}`, null, () => {
  throw new Declined(422, 'never')
})

test('a dead letter whose offset was not committed is not sent again', async (t) => {
  const { group } = await started(t, { handle: declined })
  group.refusals = 1
  await group.batch()
  assert.deepEqual([group.sent.length, group.committed, group.errors], [1, [], ['the group is rebalancing']])
  const [{ acks, headers }] = group.sent
  assert.deepEqual([acks, headers['x-idempotency-message'].replace(/^[0-9a-f-]{36}/, 'topic')], [-1, 'topic/0/9007199254740993'])
  assert.deepEqual(group.options, { autoCommit: false, eachBatchAutoResolve: false, partitionsConsumedConcurrently: 1 })
  await group.batch()
  assert.deepEqual([group.sent.length, group.committed.at(-1)], [1, '9007199254740994'])
})

// kafkajs cannot write one, so that the partition would wait for ever.
test('a header without a value is an empty one of the dead letter', async (t) => {
  const { group } = await started(t, { handle: declined })
  group.headers = { none: null, some: [Buffer.from('1'), null] }
  await group.batch()
  const { none, some } = group.sent[0].headers
  assert.deepEqual([none, some], ['', [Buffer.from('1'), '']])
})

// kafkajs calls a partition stale where it was sought; that it is somebody else's shows at a heartbeat.
for (const sign of ['stale', 'beaten']) {
  test(`a partition that goes away meanwhile, ${sign}: whoever has it sends the dead letter`, async (t) => {
    const { group } = await started(t, {
      consumer: { sessionTimeout: sign === 'beaten' ? 100 : 30_000 },
      handle: async (idempotency, message, group) => {
        const result = await declined(idempotency, message)
        group.stale = sign === 'stale'
        if (sign === 'beaten') await (group.beaten ??= deferred()).promise
        return result
      },
    })
    await group.batch()
    assert.deepEqual([group.sent, group.committed, group.errors], [[], [], []])
  })
}

for (const reason of ['stopping', 'stale']) {
  test(`a batch ends with the message that is under way where its consumer is ${reason}`, async (t) => {
    const seen = []
    const { group } = await started(t, {
      handle: async (idempotency, { offset }, group) => { group[reason] = true; seen.push(offset) },
    })
    await group.batch('9007199254740994')
    assert.deepEqual([seen, group.committed], [['9007199254740993'], ['9007199254740994']])
  })
}

test('a partition that pauses when its consumer stops is not resumed', async (t) => {
  const { group, consumer } = await started(t, { handle: async () => ({ action: 'again', after: 60_000 }) })
  await group.batch()
  await consumer.stop()
  await new Promise(setImmediate)
  assert.equal(group.isResumed, undefined)
})

test('a consumer that crashed joins again, and one that is stopped does not', async (t) => {
  const { group, consumer } = await started(t)
  const joined = deferred()
  group.join = joined.resolve
  assert.equal(await group.crash(new Error('planned')), false)
  await joined.promise
  await consumer.stop()
  assert.deepEqual(group.events, ['connect 1', 'run 1', 'connect 2', 'run 2', 'disconnect 2', 'end'])
  assert.equal(await group.crash(new Error('planned')), false)
  await consumer.stop()
  assert.ok(!group.events.includes('connect 3'))
})

test('a stop waits for a consumer that is joining again, and ends it', async (t) => {
  const { group, consumer } = await started(t)
  const [joining, go] = [deferred(), deferred()]
  group.join = () => (joining.resolve(), go.promise)
  await group.crash(new Error('planned'))
  await joining.promise
  const stopped = consumer.stop()
  go.resolve()
  await stopped
  assert.deepEqual(group.events, ['connect 1', 'run 1', 'connect 2', 'run 2', 'disconnect 2', 'end'])
})

test('a consumer that cannot join again tries until it can, unless its options say no', async (t) => {
  const { group, consumer } = await started(t)
  const joined = deferred()
  group.join = async () => {
    group.join = joined.resolve
    throw new Error('no broker')
  }
  await group.crash(new Error('planned'))
  await joined.promise
  await consumer.stop()
  assert.deepEqual(group.errors, ['planned', 'no broker'])
  assert.deepEqual(group.events, ['connect 1', 'run 1', 'connect 2', 'disconnect 2', 'connect 3', 'run 3', 'disconnect 3', 'end'])

  const { group: other, consumer: once } = await started(t, { consumer: { retry: { restartOnFailure: async () => false } } })
  await other.crash(new Error('planned'))
  await sleep(20)
  await once.stop()
  assert.deepEqual(other.events, ['connect 1', 'run 1', 'disconnect 1', 'end'])
})

test('a consumer that cannot start leaves no connection', async (t) => {
  const group = consumerOf(t)
  group.join = async () => { throw new Error('no broker') }
  await assert.rejects(group.start(), /no broker/)
  group.connect = group.join
  await assert.rejects(group.start(), /no broker/)
  assert.deepEqual(group.events, ['connect 1', 'disconnect 1', 'end', 'end'])
})
