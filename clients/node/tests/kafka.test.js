// What a broker seldom does: a commit that fails, and a partition that goes away while a dead letter is decided.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Declined } from 'pg-idempotency'
import { KafkaConsumer } from 'pg-idempotency/kafka'
import { idempotencyFor, newKey } from './support.js'

// A consumer beside a group of one partition, which does as the test says.
async function consume(t, handle) {
  const { idempotency } = idempotencyFor(t)
  const group = { sent: [], committed: [], errors: [], stale: false, refusals: 0 }
  const kafka = {
    consumer: () => ({
      on() {}, connect() {}, disconnect() {}, subscribe() {}, seek() {}, run: ({ eachBatch }) => { group.deliver = eachBatch },
    }),
    producer: () => ({ connect() {}, disconnect() {}, send: async ({ messages }) => { group.sent.push(...messages) } }),
  }
  const topic = newKey()
  const consumer = await KafkaConsumer.start(kafka, {
    idempotency, topic, groupId: 'g', handle: (message) => handle(idempotency, message, group), delays: [1],
    onError: (error) => group.errors.push(error.message),
  })
  t.after(() => consumer.stop())
  group.batch = () => group.deliver({
    batch: { partition: 0, messages: [{ offset: '7', key: Buffer.from('k'), value: Buffer.from('v'), headers: {} }] },
    heartbeat: async () => {}, isRunning: () => true, isStale: () => group.stale, resolveOffset() {}, pause: () => () => {},
    commitOffsetsIfNecessary: async ({ topics: [{ partitions: [{ offset }] }] }) => {
      if (group.refusals-- > 0) throw new Error('the group is rebalancing')
      group.committed.push(offset)
    },
  })
  return group
}

const declined = (idempotency, message) => idempotency.transaction(`${message.topic} ${message.offset}`, null, () => {
  throw new Declined(422, 'never')
})

test('a dead letter whose offset was not committed is not sent again', async (t) => {
  const group = await consume(t, declined)
  group.refusals = 1
  await group.batch()
  assert.deepEqual([group.sent.length, group.committed, group.errors], [1, [], ['the group is rebalancing']])
  await group.batch()
  assert.deepEqual([group.sent.length, group.committed.at(-1)], [1, '8'])
})

test('a partition that goes away meanwhile: whoever has it sends the dead letter', async (t) => {
  const group = await consume(t, async (idempotency, message, group) => {
    const result = await declined(idempotency, message)
    group.stale = true
    return result
  })
  await group.batch()
  assert.deepEqual([group.sent, group.committed, group.errors], [[], [], []])
})
