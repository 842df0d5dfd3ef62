// NATS JetStream, by @nats-io/jetstream or, before its version 3, by nats: tells the server what `settle` says. A message has
// a number in its stream, which stays the same when it is delivered again, and "again after n" is the server's own. A dead
// letter is published, and the stream of the dead letters drops a second one of the same message.
import { decideByPosition, withDefaults } from './consumer.js'
import { BadArgument } from './errors.js'

/**
 * @typedef {object} NatsOptions
 * @property {JetStream} [jetstream] `jetstream(connection)` of `@nats-io/jetstream`; a connection of nats, version 2, has its own
 * @property {string} stream must exist
 * @property {string} durable name of the consumer, which is made; consumers of one name share the messages
 * @property {string} [filter] subject of the messages; by default all of the stream
 * @property {number} [prefetch] messages at a time; 10
 * @property {number} [ackWait] milliseconds after which the messages of a consumer that died come again; 30 000. While `handle` runs, the
 *   server is told so at each third of it
 * @property {number} [deliveryLimit] a message that was delivered so often, for whatever reason, is a dead letter; 100
 * @property {number} [deadWindow] milliseconds for which the server recognizes a dead letter that is published twice; a day
 */
/**
 * What messages of either version of the client have.
 * @typedef {object} Message
 * @property {string} subject
 * @property {number} seq its number in the stream
 * @property {Uint8Array} data
 * @property {{get(name: string): string, keys(): string[]}} [headers]
 * @property {{deliveryCount: number}} info
 * @property {() => string} string `data` as text
 * @property {<T>() => T} json
 */
/** @typedef {{jetstreamManager(): Promise<unknown>, consumers: unknown, publish: unknown}} JetStream */
/**
 * @template {Message} [M=Message]
 * @typedef {import('./consumer.js').CommonOptions<M> & NatsOptions} NatsConsumerOptions
 */

const NANOSECONDS = 1_000_000
// What is remembered of messages that other consumers settle.
const MOST_ELSEWHERE = 10_000
const DEFAULTS = { prefetch: 10, ackWait: 30_000, deliveryLimit: 100, deadWindow: 86_400_000 }

/** Consumes a stream. Each message is acknowledged when its operation has ended. */
export class NatsConsumer {
  #jetstream
  /** @type {any} */
  #options
  #connection
  /** @type {any} what was asked for */
  #messages
  #running = new Set()
  #stopping = new AbortController()
  // For each message, the deliveries whose operation another worker was running. The server does not know which these were, and counts all.
  #elsewhere = new Map()
  /** @type {Promise<void>} */
  #loop = Promise.resolve()

  /**
   * Makes the durable consumer and the stream of its dead letters, `<stream>-<durable>-dead`, and begins to consume.
   * @template {Message} M
   * @param {{isClosed(): boolean, jetstream?(): JetStream}} connection of `@nats-io/transport-node`, or of nats, version 2
   * @param {NatsConsumerOptions<M>} options `tries` counts deliveries, as the server does, but those at which this consumer was told IN_PROGRESS
   * @returns {Promise<NatsConsumer>}
   */
  static async start(connection, options) {
    const consumer = new NatsConsumer(connection, {
      ...DEFAULTS, ...withDefaults(options, ['stream', 'durable'], ({ stream, durable }) => `${stream}-${durable}`),
    })
    await consumer.#make(await consumer.#jetstream.jetstreamManager())
    await consumer.#consume()
    return consumer
  }

  /**
   * @param {{isClosed(): boolean, jetstream?(): JetStream}} connection
   * @param {NatsOptions} options
   */
  constructor(connection, options) {
    this.#connection = connection
    /** @type {any} */
    this.#jetstream = options.jetstream ?? connection.jetstream?.()
    if (!this.#jetstream) throw new BadArgument('a consumer of NATS needs the option jetstream: jetstream(connection) of @nats-io/jetstream')
    this.#options = options
  }

  /** Takes no more messages, and waits for those under way. */
  async stop() {
    this.#stopping.abort()
    await this.#messages?.close()
    await this.#loop
    await Promise.all(this.#running)
  }

  get #dead() {
    return `${this.#options.queue}-dead`
  }

  async #make(manager) {
    const { stream, durable, filter, ackWait, deadWindow } = this.#options
    await manager.streams.add({
      name: this.#dead, subjects: [`${this.#dead}.>`], duplicate_window: deadWindow * NANOSECONDS,
    })
    await manager.consumers.add(stream, {
      durable_name: durable, ack_policy: 'explicit', ack_wait: ackWait * NANOSECONDS, max_deliver: -1, max_ack_pending: -1,
      ...(filter && { filter_subject: filter }),
    })
  }

  async #consume() {
    const { stream, durable } = this.#options
    this.#loop = this.#take(await this.#jetstream.consumers.get(stream, durable))
  }

  async #take(consumer) {
    const { prefetch, idempotency, onError } = this.#options
    while (!this.#stopping.signal.aborted) {
      try {
        await this.#fetch(consumer)
        if (this.#running.size >= prefetch) await Promise.race(this.#running)
      } catch (error) {
        onError(error, undefined)
        if (this.#connection.isClosed()) return
        await idempotency.clock.sleep(1000, this.#stopping.signal)
      }
    }
  }

  // As many as are free: the time of a message that waits here would run, and the server give it to others.
  async #fetch(consumer) {
    this.#messages = await consumer.fetch({ max_messages: this.#options.prefetch - this.#running.size, expires: 1000 })
    for await (const message of this.#messages) {
      if (this.#stopping.signal.aborted) {
        // Another consumer gets it at once.
        message.nak()
        continue
      }
      const done = this.#settle(message).finally(() => this.#running.delete(done))
      this.#running.add(done)
    }
  }

  async #settle(message) {
    const { idempotency, ackWait, onError } = this.#options
    const stopTelling = idempotency.clock.every(ackWait / 3, () => {
      try {
        message.working()
      } catch (error) {
        onError(error, message)
      }
    })
    try {
      const { action, after, inProgress } = await this.#decide(message)
      this.#note(message.seq, action, inProgress)
      if (action === 'again') message.nak(Math.ceil(after))
      else {
        if (action === 'bury') await this.#bury(message)
        message.ack()
      }
    } catch (error) {
      // The server is gone, or refuses: it will deliver the message again.
      onError(error, message)
    } finally {
      stopTelling()
    }
  }

  #note(seq, action, inProgress) {
    if (action !== 'again') this.#elsewhere.delete(seq)
    else if (inProgress) {
      if (this.#elsewhere.size >= MOST_ELSEWHERE) this.#elsewhere.clear()
      this.#elsewhere.set(seq, (this.#elsewhere.get(seq) ?? 0) + 1)
    }
  }

  /** @returns {Promise<import('./consumer.js').Decision>} */
  async #decide(message) {
    const { deliveryLimit } = this.#options
    // A consumer that was made anew counts anew.
    const deliveryCount = Math.max(message.info.deliveryCount - (this.#elsewhere.get(message.seq) ?? 0), 1)
    if (deliveryCount > deliveryLimit) return { action: 'bury', after: 0, tries: deliveryCount }
    return decideByPosition(this.#options, message, { name: String(message.seq), tries: deliveryCount - 1 })
  }

  // Under the message's own subject, behind the name of the stream.
  async #bury(message) {
    const { headers } = message
    const id = headers?.get('Nats-Msg-Id')
    for (const name of headers?.keys() ?? []) {
      // What the sender has told the server of the other stream.
      if (/^nats-/i.test(name)) headers.delete(name)
    }
    if (id) headers.set('x-idempotency-msg-id', id)
    const { stream, durable } = this.#options
    // No name of NATS has a dot, so that the id of another stream and durable is another one.
    const msgID = `${stream}.${durable}.${message.seq}`
    await this.#jetstream.publish(`${this.#dead}.${message.subject}`, message.data, { headers, msgID })
  }
}
