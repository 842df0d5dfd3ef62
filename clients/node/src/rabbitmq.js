// RabbitMQ, by amqplib: tells the broker what `settle` says. RabbitMQ has no "again after n seconds", so there
// is a queue for each delay, whose messages return when their time is over. Whatever the broker delivers twice, the
// operation's key makes one.
import { BadArgument, Forbidden, KeyReused } from './errors.js'
import { settle } from './settle.js'

/**
 * @typedef {object} ConsumerOptions
 * @property {string} queue made as a quorum queue, with `queue.dead` for dead letters and `queue.again.<delay>` for each delay
 * @property {(message: any) => Promise<import('./result.js').Result | import('./settle.js').Settlement>} handle runs the operation of a message: the
 *   result of `transaction` or `lease`, or what `settle` gives
 * @property {number} [prefetch] messages at a time; 10
 * @property {number[]} [delays] milliseconds, growing; "again" takes the first that is long enough. [1000, 10 000, 60 000]
 * @property {number} [tries] after so many errors of `handle` a message is a dead letter; 20
 * @property {number} [deliveryLimit] after so many consumers that died with a message it is a dead letter; 20
 * @property {(error: any, message: any) => void} [onError] told of errors of `handle`; by default they go to the console
 */

const TRIES = 'x-idempotency-tries'
const DEFAULTS = {
  prefetch: 10, delays: [1000, 10_000, 60_000], tries: 20, deliveryLimit: 20,
  onError: (/** @type {any} */ error) => console.error(error),
}

/** Consumes a queue. Each message is acknowledged when its operation has ended. */
export class RabbitConsumer {
  #channel
  /** @type {Required<ConsumerOptions>} */
  #options
  /** @type {string | undefined} */
  #tag
  #running = new Set()

  /**
   * Makes the queues, and begins to consume.
   * @param {any} connection of amqplib
   * @param {ConsumerOptions} options
   * @returns {Promise<RabbitConsumer>}
   */
  static async start(connection, options) {
    const consumer = new RabbitConsumer(await connection.createConfirmChannel(), { ...DEFAULTS, ...options })
    await consumer.#declare()
    await consumer.#consume()
    return consumer
  }

  /**
   * @param {any} channel
   * @param {Required<ConsumerOptions>} options
   */
  constructor(channel, options) {
    this.#channel = channel
    this.#options = options
    // A channel that ends is an event of its connection as well; messages under way come again.
    channel.on('error', (error) => options.onError(error, undefined))
  }

  /** Takes no more messages, waits for those under way, and closes the channel. */
  async stop() {
    await this.#channel.cancel(this.#tag)
    await Promise.all(this.#running)
    await this.#channel.close()
  }

  async #declare() {
    const { queue, delays, deliveryLimit, prefetch } = this.#options
    await this.#channel.assertQueue(`${queue}.dead`, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
    await this.#channel.assertQueue(queue, { durable: true, arguments: {
      'x-queue-type': 'quorum', 'x-delivery-limit': deliveryLimit,
      'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': `${queue}.dead`,
      // Otherwise a dead letter can be lost between two queues.
      'x-dead-letter-strategy': 'at-least-once', 'x-overflow': 'reject-publish',
    } })
    for (const delay of delays) {
      await this.#channel.assertQueue(`${queue}.again.${delay}`, { durable: true, arguments: {
        'x-queue-type': 'quorum', 'x-message-ttl': delay, 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue,
        'x-dead-letter-strategy': 'at-least-once', 'x-overflow': 'reject-publish',
      } })
    }
    await this.#channel.prefetch(prefetch)
  }

  async #consume() {
    const { consumerTag } = await this.#channel.consume(this.#options.queue, (message) => {
      if (!message) return
      const done = this.#settle(message).finally(() => this.#running.delete(done))
      this.#running.add(done)
    })
    this.#tag = consumerTag
  }

  async #settle(message) {
    try {
      const { action, after, tries } = await this.#decide(message)
      if (action === 'ack') this.#channel.ack(message)
      else if (action === 'deadLetter') this.#channel.nack(message, false, false)
      else await this.#again(message, after, tries)
    } catch (error) {
      // The broker is gone, or refuses: it will deliver the message again.
      this.#options.onError(error, message)
    }
  }

  async #decide(message) {
    const tries = Number(message.properties.headers?.[TRIES] ?? 0)
    try {
      const result = await this.#options.handle(message)
      return { tries, ...('outcome' in result ? settle(result) : result) }
    } catch (error) {
      this.#options.onError(error, message)
      const hopeless = error instanceof KeyReused || error instanceof BadArgument || error instanceof Forbidden
      if (hopeless || tries + 1 >= this.#options.tries) return { action: 'deadLetter' }
      const { delays } = this.#options
      return { action: 'again', after: delays[Math.min(tries, delays.length - 1)], tries: tries + 1 }
    }
  }

  // The copy is safe before the original goes. After a crash in between there are two, of one operation.
  async #again(message, after, tries) {
    const { queue, delays } = this.#options
    const delay = delays.find((each) => each >= after) ?? delays.at(-1)
    const { headers, ...properties } = message.properties
    await new Promise((resolve, reject) => {
      this.#channel.sendToQueue(`${queue}.again.${delay}`, message.content,
        { ...properties, headers: { ...headers, [TRIES]: tries }, persistent: true },
        (error) => error ? reject(error) : resolve(undefined))
    })
    this.#channel.ack(message)
  }
}
