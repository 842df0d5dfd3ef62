// Kafka, by kafkajs: the offset of a message is committed after the COMMIT of its operation. Kafka has no "again after
// n": the partition pauses for so long, and then goes on with the same message, so the order within the partition
// stays as it was, and what comes after the message waits with it.
import { decideByPosition, withDefaults } from './consumer.js'

/**
 * @typedef {object} KafkaOptions
 * @property {string} topic
 * @property {string} groupId
 * @property {string} [deadTopic] where dead letters go; `<topic>.<groupId>.dead`. Make it, or let the brokers make it
 * @property {number} [partitions] how many partitions are handled at a time; 1. Messages of one partition never are
 * @property {boolean} [fromBeginning] where a new group begins; true
 * @property {Omit<import('kafkajs').ConsumerConfig, 'groupId'>} [consumer] further options of kafkajs' consumer, such as sessionTimeout
 */
/** @typedef {import('kafkajs').KafkaMessage & {topic: string, partition: number}} Message */
/** @typedef {import('./consumer.js').CommonOptions<Message> & KafkaOptions} KafkaConsumerOptions */

const DEFAULTS = { partitions: 1, fromBeginning: true, consumer: {} }

/**
 * Consumes a topic. The offset of a message is committed when its operation has ended. After a crash that kafkajs calls
 * retriable, the consumer joins the group again: the first of `delays` later, and until it can.
 */
export class KafkaConsumer {
  #kafka
  /** @type {any} of kafkajs, a new one after each crash */
  #consumer
  #producer
  /** @type {any} */
  #options
  #tries = new Map()
  // Dead letters that were sent, and whose offset is not committed yet.
  #buried = new Set()
  #stopping = new AbortController()
  /** @type {Promise<void>} */
  #restarting = Promise.resolve()

  /**
   * Joins the group, and begins to consume.
   * @param {import('kafkajs').Kafka} kafka of kafkajs
   * @param {KafkaConsumerOptions} options `handle` gets kafkajs' message with `topic` and `partition`. `tries` are counted by
   *   the consumer that has the partition: they begin anew when it dies, or when the partition moves
   * @returns {Promise<KafkaConsumer>}
   */
  static async start(kafka, options) {
    const given = withDefaults(options, ['topic', 'groupId'], ({ topic, groupId }) => `${topic}.${groupId}`)
    const consumer = new KafkaConsumer(kafka, { deadTopic: `${given.queue}.dead`, ...DEFAULTS, ...given })
    try {
      await consumer.#start()
    } catch (error) {
      await consumer.stop().catch(() => {})
      throw error
    }
    return consumer
  }

  /**
   * @param {import('kafkajs').Kafka} kafka
   * @param {KafkaConsumerOptions} options
   */
  constructor(kafka, options) {
    this.#kafka = kafka
    this.#options = options
    this.#producer = kafka.producer()
  }

  /** Takes no more messages, waits for those under way, and leaves the group. */
  async stop() {
    this.#stopping.abort()
    await this.#restarting
    await this.#consumer?.disconnect()
    await this.#producer.disconnect()
  }

  async #start() {
    await this.#producer.connect()
    await this.#join()
  }

  async #join() {
    const { topic, groupId, consumer, fromBeginning, partitions, onError } = this.#options
    const retry = { ...consumer.retry, restartOnFailure: (/** @type {Error} */ error) => this.#restart(error) }
    this.#consumer = this.#kafka.consumer({ ...consumer, groupId, retry })
    this.#consumer.on('consumer.crash', ({ payload }) => onError(payload.error, undefined))
    await this.#consumer.connect()
    await this.#consumer.subscribe({ topics: [topic], fromBeginning })
    await this.#consumer.run({
      autoCommit: false, eachBatchAutoResolve: false, partitionsConsumedConcurrently: partitions,
      eachBatch: (batch) => this.#handleBatch(batch),
    })
  }

  // kafkajs asks after a crash that another try may mend. It would start the consumer also while, and after, it is
  // stopped; and then nothing stops it. So this is done here.
  async #restart(error) {
    const { consumer } = this.#options
    if (await (consumer.retry?.restartOnFailure?.(error) ?? true)) this.#restarting = this.#joinAgain()
    return false
  }

  async #joinAgain() {
    const { delays, idempotency, onError } = this.#options
    for (;;) {
      await idempotency.clock.sleep(delays[0], this.#stopping.signal)
      if (this.#stopping.signal.aborted) return
      try {
        return await this.#join()
      } catch (error) {
        onError(error, undefined)
        await this.#consumer.disconnect().catch(() => {})
      }
    }
  }

  // One message after the other, until the partition is somebody else's, or one has to wait.
  async #handleBatch({ batch, heartbeat, isRunning, isStale, resolveOffset, pause, commitOffsetsIfNecessary }) {
    const { topic } = this.#options
    const { partition } = batch
    // kafkajs' own commitOffsets does nothing while the consumer stops.
    const commit = (offset) => commitOffsetsIfNecessary({
      topics: [{ topic, partitions: [{ partition, offset: String(BigInt(offset) + 1n) }] }],
    })
    let done
    for (const message of batch.messages) {
      if (!isRunning() || isStale()) break
      const { action, after } = await this.#settle({ ...message, topic, partition }, { heartbeat, commit, isStale })
      if (action === 'leave') break
      if (action === 'again') {
        this.#pauseAt(partition, message.offset, after, pause)
        break
      }
      resolveOffset(message.offset)
      done = message.offset
    }
    if (done !== undefined) await commit(done)
  }

  // A dead letter is committed at once, as another consumer that gets the message would send a second one; the others at
  // the end of the batch.
  async #settle(message, { heartbeat, commit, isStale }) {
    const { consumer, idempotency, delays, onError } = this.#options
    const name = `${message.partition}/${message.offset}`
    // While the group rebalances the partition is still this consumer's. With another error it may be somebody else's.
    let lost = false
    const stopBeating = idempotency.clock.every((consumer.sessionTimeout ?? 30_000) / 10,
      () => heartbeat().catch((error) => { lost ||= error.type !== 'REBALANCE_IN_PROGRESS' }))
    try {
      const decision = await decideByPosition(this.#options, message, { name, tries: this.#tries.get(name) ?? 0 })
      if (decision.action === 'bury') {
        // While this was decided, the partition may have become somebody else's, who sends it.
        if (lost || isStale()) return { action: 'leave', after: 0 }
        if (!this.#buried.has(name)) await this.#bury(message, name)
        this.#buried.add(name)
        await commit(message.offset)
        this.#buried.delete(name)
      }
      if (decision.action === 'again') this.#tries.set(name, decision.tries)
      else this.#tries.delete(name)
      return decision
    } catch (error) {
      onError(error, message)
      return { action: 'again', after: delays[0] }
    } finally {
      stopBeating()
    }
  }

  // All replicas have it before the offset is committed.
  #bury({ key, value, headers, timestamp }, name) {
    const { topic, deadTopic } = this.#options
    return this.#producer.send({ topic: deadTopic, acks: -1, messages: [
      { key, value, timestamp, headers: { ...writable(headers), 'x-idempotency-message': `${topic}/${name}` } },
    ] })
  }

  #pauseAt(partition, offset, after, pause) {
    const { topic, idempotency } = this.#options
    const resume = pause()
    this.#consumer.seek({ topic, partition, offset })
    idempotency.clock.sleep(after, this.#stopping.signal).then(() => {
      if (!this.#stopping.signal.aborted) resume()
    })
  }
}

// kafkajs reads headers without a value, and cannot write them. Where each object has the name of a header, such as "constructor", it
// reads what each object has as the first value.
function writable(headers = {}) {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) =>
    [name, Array.isArray(value) ? value.filter((each) => each !== {}[name]).map((each) => each ?? '') : value ?? '']))
}
