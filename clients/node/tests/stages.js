// A stage for each broker: a queue of its own, with what a test needs to send, to consume and to count. The
// names of the messages are the keys of their operations. A consumer that is killed soon loads only what it needs.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const run = promisify(execFile)
const { DEMO_AMQP, DEMO_NATS, DEMO_REDIS, DEMO_KAFKA } = process.env

// Short times, and no limit of deliveries that a test of crashes could reach.
const QUICK = { delays: [20, 100], deliveryLimit: 1000 }

class RabbitStage {
  static points = ['work', 'commit', 'ack', 'copy', 'bury']
  dead = []

  async open(queue) {
    this.queue = queue
    const { default: amqp } = await import('amqplib')
    this.connection = await amqp.connect(DEMO_AMQP)
    this.channel = await this.connection.createConfirmChannel()
  }

  async prepare(options) {
    await (await this.start({ ...options, handle: async () => ({ action: 'again', after: 1 }) })).stop()
  }

  async send(keys) {
    for (const key of keys) this.channel.sendToQueue(this.queue, Buffer.from(key), { messageId: key, persistent: true, headers: { own: '1' } })
    await this.channel.waitForConfirms()
  }

  async start(options) {
    const { RabbitConsumer } = await import('pg-idempotency/rabbitmq')
    return RabbitConsumer.start(this.connection, { ...QUICK, queue: this.queue, prefetch: 4, ...options })
  }

  key = (message) => message.properties.messageId

  // What is delivered and not settled is not counted. Whoever has it settles it, or puts it back, within moments.
  async settled() {
    for (let samples = 0; samples < 10; samples++) {
      const queues = [this.queue, `${this.queue}.again.20`, `${this.queue}.again.100`]
      const counts = await Promise.all(queues.map((queue) => this.channel.checkQueue(queue)))
      if (counts.some(({ messageCount }) => messageCount > 0)) return false
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    return true
  }

  async deadLetters() {
    for (let message; (message = await this.channel.get(`${this.queue}.dead`, { noAck: true }));) this.dead.push(this.key(message))
    return [...this.dead]
  }

  // How a consumer's own calls of its client are watched.
  watch(at) {
    const create = this.connection.createConfirmChannel.bind(this.connection)
    this.connection.createConfirmChannel = async () => {
      const channel = await create()
      let copied = false
      before(channel, 'sendToQueue', () => { copied = true })
      before(channel, 'ack', () => { at('ack'); if (copied) at('copy') })
      before(channel, 'nack', () => at('bury'))
      return channel
    }
  }

  close() {
    return this.connection.close()
  }
}

class NatsStage {
  static points = ['work', 'commit', 'ack', 'bury']

  async open(queue) {
    this.queue = queue
    const [{ connect }, { jetstream }] = await Promise.all([import('@nats-io/transport-node'), import('@nats-io/jetstream')])
    this.connection = await connect({ servers: DEMO_NATS })
    this.jetstream = jetstream(this.connection)
    this.manager = await this.jetstream.jetstreamManager()
  }

  async prepare(options) {
    await this.manager.streams.add({ name: this.queue, subjects: [`${this.queue}.*`] })
    await (await this.start({ ...options, handle: async () => {} })).stop()
  }

  async send(keys) {
    for (const key of keys) await this.jetstream.publish(`${this.queue}.sent`, key)
  }

  async start(options) {
    const { NatsConsumer } = await import('pg-idempotency/nats')
    return NatsConsumer.start(this.connection, {
      ...QUICK, jetstream: this.jetstream, stream: this.queue, durable: 'test', prefetch: 4, ackWait: 500, ...options,
    })
  }

  key = (message) => message.string()

  async settled() {
    const { num_pending: waiting, num_ack_pending: delivered } = await this.manager.consumers.info(this.queue, 'test')
    return waiting + delivered === 0
  }

  async deadLetters() {
    const dead = `${this.queue}-test-dead`
    const { state } = await this.manager.streams.info(dead)
    const keys = []
    for (let seq = 1; seq <= state.last_seq; seq++) keys.push(new TextDecoder().decode((await this.manager.streams.getMessage(dead, { seq })).data))
    return keys
  }

  watch(at) {
    const { jetstream } = this
    let buried = false
    const publish = jetstream.publish.bind(jetstream)
    jetstream.publish = async (...given) => { const answer = await publish(...given); buried = true; return answer }
    const get = jetstream.consumers.get.bind(jetstream.consumers)
    const atEnd = () => { at('ack'); if (buried) at('bury') }
    jetstream.consumers.get = async (...given) => watchMessages(await get(...given), atEnd)
    Object.defineProperty(jetstream, 'consumers', { value: jetstream.consumers })
  }

  close() {
    return this.connection.close()
  }
}

// Its messages are watched as they come.
function watchMessages(consumer, atEnd) {
  const fetch = consumer.fetch.bind(consumer)
  consumer.fetch = async (options) => {
    const messages = await fetch(options)
    const iterate = messages[Symbol.asyncIterator].bind(messages)
    messages[Symbol.asyncIterator] = async function* watched() {
      for await (const message of { [Symbol.asyncIterator]: iterate }) {
        before(message, 'ack', atEnd)
        before(message, 'nak', atEnd)
        yield message
      }
    }
    return messages
  }
  return consumer
}

class RedisStage {
  static points = ['work', 'commit', 'ack', 'bury']

  async open(queue) {
    this.queue = queue
    const { createClient } = await import('redis')
    this.client = await createClient({ url: DEMO_REDIS }).connect()
  }

  async prepare(options) {
    await (await this.start({ ...options, handle: async () => {} })).stop()
  }

  async send(keys) {
    for (const key of keys) await this.client.xAdd(this.queue, '*', { key })
  }

  async start(options) {
    const { RedisConsumer } = await import('pg-idempotency/redis')
    return RedisConsumer.start(this.client,
      { ...QUICK, stream: this.queue, group: 'test', prefetch: 4, idle: 300, poll: 20, ...options })
  }

  key = (entry) => entry.fields.key

  async settled() {
    const [group] = await this.client.xInfoGroups(this.queue)
    return group.pending === 0 && group.lag === 0
  }

  async deadLetters() {
    return (await this.client.xRange(`{${this.queue}}.test.dead`, '-', '+')).map(({ message }) => message.key)
  }

  watch(at) {
    before(this.client, 'sendCommand', ([command, script, , , , , , , , action]) => {
      if (command !== 'EVAL' || script.includes('XCLAIM')) return
      at('ack')
      if (action === 'bury') at('bury')
    })
  }

  close() {
    this.client.destroy()
  }
}

class KafkaStage {
  static points = ['work', 'commit', 'ack', 'bury']

  async open(queue) {
    this.queue = queue
    const { Kafka, logLevel } = await import('kafkajs')
    const clientOf = (retry) => new Kafka({ brokers: [DEMO_KAFKA], logLevel: logLevel.NOTHING, retry })
    this.kafka = clientOf({ initialRetryTime: 50 })
    // a busy broker takes seconds until it has a new topic
    const patient = clientOf({ initialRetryTime: 50, retries: 10 })
    this.admin = patient.admin()
    this.producer = patient.producer()
    await this.admin.connect()
    await this.producer.connect()
  }

  // The broker makes a topic when somebody asks for it.
  async prepare() {
    await this.producer.send({ topic: this.queue, messages: [{ key: 'first', value: '' }] })
    await this.producer.send({ topic: this.deadTopic, messages: [{ key: 'first', value: '' }] })
  }

  get deadTopic() {
    return `${this.queue}.${this.queue}.dead`
  }

  async send(keys) {
    await this.producer.send({ topic: this.queue, messages: keys.map((key) => ({ key, value: '' })) })
  }

  async start(options) {
    const { KafkaConsumer } = await import('pg-idempotency/kafka')
    return KafkaConsumer.start(this.kafka, {
      ...QUICK, topic: this.queue, groupId: this.queue, partitions: 4, ...options,
      consumer: { sessionTimeout: 4000, heartbeatInterval: 200, rebalanceTimeout: 4000, maxWaitTimeInMs: 50 },
    })
  }

  key = (message) => message.key.toString()

  async settled() {
    const ends = await this.admin.fetchTopicOffsets(this.queue)
    const [{ partitions }] = await this.admin.fetchOffsets({ groupId: this.queue, topics: [this.queue] })
    return ends.every(({ partition, high }) =>
      Number(high) === Math.max(0, Number(partitions.find((each) => each.partition === partition)?.offset ?? 0)))
  }

  // How many consumers have partitions; 0 while the group is changing.
  async members() {
    const { groups: [{ state, members }] } = await this.admin.describeGroups([this.queue])
    return state === 'Stable' ? members.length : 0
  }

  async deadMessages() {
    const { stdout } = await run('kcat', ['-C', '-b', DEMO_KAFKA, '-t', this.deadTopic, '-o', 'beginning', '-e', '-q', '-J'])
    return stdout.trim().split('\n').map((line) => JSON.parse(line)).filter(({ key }) => key !== 'first')
  }

  // Of a dead letter that was sent twice, the second has the same origin.
  async deadLetters() {
    const messages = await this.deadMessages()
    return [...new Map(messages.map(({ key, headers }) => [headers[1], key])).values()]
  }

  watch(at) {
    const consumer = this.kafka.consumer.bind(this.kafka)
    const producer = this.kafka.producer.bind(this.kafka)
    let buried = false
    this.kafka.producer = () => {
      const made = producer()
      const send = made.send.bind(made)
      made.send = async (given) => { const answer = await send(given); buried = true; return answer }
      return made
    }
    this.kafka.consumer = (options) => {
      const made = consumer(options)
      const start = made.run.bind(made)
      made.run = (given) => start({ ...given, eachBatch: (payload) => given.eachBatch({
        ...payload, commitOffsetsIfNecessary: (offsets) => {
          at('ack')
          if (buried) at('bury')
          return payload.commitOffsetsIfNecessary(offsets)
        },
      }) })
      return made
    }
  }

  async close() {
    await this.producer.disconnect()
    await this.admin.disconnect()
  }
}

function before(object, name, call) {
  const method = object[name].bind(object)
  object[name] = (...given) => {
    call(...given)
    return method(...given)
  }
}

export const stages = { rabbitmq: RabbitStage, nats: NatsStage, redis: RedisStage, kafka: KafkaStage }

/**
 * @param {string} broker
 * @param {string} queue
 */
export async function openStage(broker, queue) {
  const stage = new stages[broker]()
  await stage.open(queue)
  return stage
}
