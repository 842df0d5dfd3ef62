// RabbitMQ, by amqplib: tells the broker what `settle` says. RabbitMQ has no "again after n seconds", so there
// is a queue for each delay, whose messages return when their time is over. Nor does it number messages, so a message
// whose operation failed is first put back under a random name: then a redelivery of it differs from a copy, and the
// operation leaves one dead letter.
import { randomUUID } from 'node:crypto'
import { TRIES, decide, decideFailure, withDefaults } from './consumer.js'

/**
 * @typedef {object} RabbitOptions
 * @property {string} queue made as a quorum queue, with `queue.dead` for dead letters and `queue.again.<delay>` for each delay
 * @property {number} [prefetch] messages at a time; 10
 * @property {number} [deliveryLimit] after so many consumers that died with a message the broker makes it a dead letter; 20
 */
/**
 * What a message of amqplib is at least. Handlers may ask for more: for the ConsumeMessage of its types. A messageId that the
 * producer did not give is undefined, which `transaction` refuses: so it has to get it as it came.
 * @typedef {{content: Buffer, fields: {deliveryTag: number, redelivered: boolean},
 *   properties: {messageId: string, headers?: Record<string, unknown> | undefined}}} Message
 */
/** @typedef {import('./consumer.js').CommonOptions<Message> & RabbitOptions} ConsumerOptions */

const NAME = 'x-idempotency-name'

/** Consumes a queue. Each message is acknowledged when its operation has ended. */
export class RabbitConsumer {
  #channel
  /** @type {Required<ConsumerOptions>} */
  #options
  /** @type {string | undefined} */
  #tag
  #running = new Set()
  #stopping = new AbortController()
  /** @type {Promise<unknown>} */
  #publishing = Promise.resolve()
  /** @type {Promise<void> | undefined} */
  #stopped

  /**
   * Makes the queues, and begins to consume, on a channel of its own. If it fails, it leaves no channel. Where the broker ends the channel
   * or the consumer later, `onError` gets the error without a message, and no message comes any more: start anew.
   * @template {Message} [M=Message]
   * @param {{createConfirmChannel: () => PromiseLike<unknown>}} connection of amqplib
   * @param {import('./consumer.js').CommonOptions<M> & RabbitOptions} options `delays` name the queues; "again" takes the first that is long enough, or the last
   * @returns {Promise<RabbitConsumer>}
   */
  static async start(connection, options) {
    const given = /** @type {ConsumerOptions} */ (/** @type {unknown} */ (options))
    const complete = { prefetch: 10, deliveryLimit: 20, ...withDefaults(given, ['queue'], ({ queue }) => queue) }
    const consumer = new RabbitConsumer(await connection.createConfirmChannel(), complete)
    try {
      await consumer.#declare()
      await consumer.#consume()
    } catch (error) {
      await consumer.#close()
      throw error
    }
    return consumer
  }

  /**
   * @param {unknown} channel
   * @param {Required<ConsumerOptions>} options
   */
  constructor(channel, options) {
    this.#channel = /** @type {any} */ (channel)
    this.#options = options
    // A channel that ends is an event of its connection as well; messages under way come again.
    this.#channel.on('error', (error) => options.onError(error, undefined))
  }

  /**
   * Takes no more messages, waits for those under way, and closes the channel. A broker that does not answer is waited for until the
   * heartbeat of the connection has noticed.
   */
  stop() {
    this.#stopped ??= this.#end()
    return this.#stopped
  }

  async #end() {
    this.#stopping.abort()
    await unlessClosed(() => this.#channel.cancel(this.#tag))
    await Promise.all(this.#running)
    await this.#close()
  }

  #close() {
    return unlessClosed(() => this.#channel.close())
  }

  async #declare() {
    const { queue, delays, deliveryLimit, prefetch } = this.#options
    await this.#channel.assertQueue(`${queue}.dead`, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
    await this.#channel.assertQueue(queue, { durable: true, arguments: {
      'x-delivery-limit': deliveryLimit, ...movesTo(`${queue}.dead`),
    } })
    for (const delay of delays) {
      await this.#channel.assertQueue(`${queue}.again.${delay}`, { durable: true, arguments: {
        'x-message-ttl': delay, ...movesTo(queue),
      } })
    }
    await this.#channel.prefetch(prefetch)
  }

  async #consume() {
    const { consumerTag } = await this.#channel.consume(this.#options.queue, (message) => {
      if (!message) return this.#options.onError(new Error('the broker has ended the consumer'), undefined)
      const done = this.#settle(message).finally(() => this.#running.delete(done))
      this.#running.add(done)
    })
    this.#tag = consumerTag
  }

  async #settle(message) {
    try {
      const decision = await decide(this.#options, message, triesOf(message))
      await (decision.action === 'fail' ? this.#fail(message, decision.failure, decision.tries) : this.#obey(message, decision))
    } catch (error) {
      // The broker is gone, or refuses: it will deliver the message again.
      this.#options.onError(error, message)
    }
  }

  // "Again" is the queue from which the message comes back. The broker moves a dead letter: a consumer that dies leaves neither two nor none.
  #obey(message, { action, after, tries }) {
    const { queue, delays } = this.#options
    if (action === 'ack') return this.#channel.ack(message)
    if (action === 'bury') return this.#channel.nack(message, false, false)
    const delay = delays.find((each) => each >= after) ?? delays.at(-1)
    if (nameOf(message)) return this.#retry(message, delay, tries)
    return this.#replace(message, `${queue}.again.${delay}`, { [TRIES]: tries })
  }

  // A copy with the same name would own the dead letter as well. If the consumer ends meanwhile, the broker delivers the message again.
  async #retry(message, delay, tries) {
    const { idempotency } = this.#options
    await idempotency.clock.sleep(delay, this.#stopping.signal)
    if (this.#stopping.signal.aborted) return
    message.properties.headers[TRIES] = tries
    await this.#settle(message)
  }

  // The operation has failed for good.
  async #fail(message, failure, tries) {
    const { tries: limit } = this.#options
    const name = nameOf(message)
    if (!name) return this.#rename(message, tries)
    if (failure.record === null) {
      // The record went away meanwhile, and the operation failed anew.
      return tries + 1 >= limit ? this.#obey(message, { action: 'bury', after: 0, tries }) : this.#rename(message, tries + 1)
    }
    return this.#obey(message, await decideFailure(this.#options, message, failure, { name, tries }))
  }

  // Back under a random name.
  #rename(message, tries) {
    return this.#replace(message, this.#options.queue, { [TRIES]: tries, [NAME]: randomUUID() })
  }

  // The copy is safe before the original goes. After a crash in between there are two, of one operation.
  async #replace(message, queue, further) {
    const { properties, content } = message
    // A copy goes to no queue of the sender's CC once more, and the broker does not take it for one that goes in a circle.
    const headers = { ...properties.headers, ...further, CC: undefined, 'x-death': undefined }
    try {
      await this.#publish(queue, content, { ...properties, headers, persistent: true, expiration: undefined, userId: undefined })
    } catch (error) {
      this.#options.onError(error, message)
      return this.#channel.nack(message, false, true)
    }
    this.#channel.ack(message)
  }

  // One at a time, so that a message that comes back is known to be this one.
  #publish(queue, content, options) {
    const published = this.#publishing.then(() => this.#publishNow(queue, content, options))
    this.#publishing = published.catch(() => {})
    return published
  }

  async #publishNow(queue, content, options) {
    let returned = false
    const note = () => { returned = true }
    this.#channel.once('return', note)
    try {
      await new Promise((resolve, reject) => {
        this.#channel.sendToQueue(queue, content, { ...options, mandatory: true },
          (/** @type {any} */ error) => error ? reject(error) : resolve(undefined))
      })
    } finally {
      this.#channel.off('return', note)
    }
    if (returned) throw new Error(`there is no queue ${queue}`)
  }
}

// The sender's own header of that name may be anything. The broker ends a connection that sends Infinity.
function triesOf({ properties }) {
  const tries = properties.headers?.[TRIES]
  return Number.isSafeInteger(tries) && tries > 0 ? tries : 0
}

// The name that `#rename` has given.
function nameOf({ properties }) {
  const name = properties.headers?.[NAME]
  return typeof name === 'string' ? name : undefined
}

// A channel that has ended, and perhaps the connection with it, delivers nothing more.
async function unlessClosed(call) {
  try {
    await call()
  } catch {
    return
  }
}

// Without at-least-once a message can be lost between two queues; that needs reject-publish.
function movesTo(queue) {
  return {
    'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue,
    'x-dead-letter-strategy': 'at-least-once', 'x-overflow': 'reject-publish',
  }
}
