// Redis Streams, by redis (node-redis): an entry has an identifier that stays the same when it is delivered again. What
// changes more than one thing is a script, which Redis runs as a whole: so a dead letter is added when, and only
// when, its entry is acknowledged.
import { randomUUID } from 'node:crypto'
import { decideByPosition, withDefaults } from './consumer.js'
import { BadArgument } from './errors.js'
import { within } from './transaction.js'

/**
 * @typedef {object} RedisOptions
 * @property {string} stream
 * @property {string} group is made, together with the stream; consumers of one group share the entries
 * @property {number} [prefetch] entries at a time; 10
 * @property {number} [idle] milliseconds after which the entries of a consumer that died come again; 30 000. While `handle` runs, the entry is
 *   claimed anew at each third of it
 * @property {number} [poll] milliseconds between two looks for entries whose time has come, from 1; 500
 * @property {number} [deliveryLimit] an entry that was delivered so often, for whatever reason but IN_PROGRESS, is a dead letter; 100
 */
/** @typedef {{id: string, fields: Record<string, string>, deliveries: number, tries: number}} Entry */
/** @typedef {import('./consumer.js').CommonOptions<Entry> & RedisOptions} RedisConsumerOptions */
/** @typedef {{duplicate(): unknown, sendCommand(command: string[], options?: {abortSignal: AbortSignal}): Promise<unknown>}} Client */

const DEFAULTS = { prefetch: 10, idle: 30_000, poll: 500, deliveryLimit: 100 }

// Each consumer that is gone has left its name. One that lives has its own again when it reads.
// Without the right to it the names stay.
const TIDY = `
for _, consumer in ipairs(redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if consumer[4] == 0 then redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer[2]) end
end`

// Entries of consumers that died, and entries whose pause is over. XAUTOCLAIM would take those that still pause.
const TAKE = `
local stream, again, tries = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, idle, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids, from = {}, '-'
repeat
  local page = redis.call('XPENDING', stream, group, 'IDLE', idle, from, '+', 100)
  for _, pending in ipairs(page) do
    if #ids < count and not redis.call('ZSCORE', again, pending[1]) then ids[#ids + 1] = pending[1] end
  end
  if #page > 0 then from = '(' .. page[#page][1] end
until #page < 100 or #ids >= count
for _, id in ipairs(redis.call('ZRANGEBYSCORE', again, '-inf', now, 'LIMIT', 0, count - #ids)) do
  redis.call('ZREM', again, id)
  ids[#ids + 1] = id
end
local taken = {}
for _, id in ipairs(ids) do
  local entry = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
  if entry then
    local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
    taken[#taken + 1] = {entry[1], entry[2], pending[4], tonumber(redis.call('HGET', tries, id) or 0)}
  else
    redis.call('HDEL', tries, id)
  end
end
return taken`

// The entry stays pending until its time, with so many deliveries.
const AGAIN = `
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, ARGV[2], 'RETRYCOUNT', ARGV[6], 'JUSTID')
return 1`

// Of two consumers that have the same entry, one acknowledges it. Redis takes nothing back where a script fails, so the dead letter
// comes first. Lua passes on 8000 values at most.
const END = `
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
if ARGV[3] == 'bury' then
  local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
  local fields = entry and entry[2] or {'trimmed', '1'}
  if #fields > 4000 then fields = {'x-idempotency-fields', cjson.encode(fields)} end
  redis.call('XADD', KEYS[4], '*', 'x-idempotency-id', ARGV[2], unpack(fields))
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
return 1`

// For Redis 0 is without end: an entry whose pause is over would wait for a new one.
function checkWhole(name, duration) {
  if (!Number.isSafeInteger(duration) || duration < 1) throw new BadArgument(`${name} is a whole number of milliseconds from 1`)
}

/** Consumes a stream. Each entry is acknowledged when its operation has ended. */
export class RedisConsumer {
  #client
  #reader
  /** @type {any} */
  #options
  #name = randomUUID()
  #keys
  #running = new Set()
  #stopping = new AbortController()
  /** @type {Promise<void>} */
  #loop = Promise.resolve()

  /**
   * Makes the group, and begins to consume. If it fails, it leaves no connection.
   * @param {Client} client of redis, connected. A duplicate of it waits for entries
   * @param {RedisConsumerOptions} options `handle` gets an Entry
   * @returns {Promise<RedisConsumer>}
   */
  static async start(client, options) {
    const complete = { ...DEFAULTS, ...withDefaults(options, ['stream', 'group'], ({ stream, group }) => `${stream}.${group}`) }
    checkWhole('idle', complete.idle)
    checkWhole('poll', complete.poll)
    const consumer = new RedisConsumer(client, complete)
    try {
      await consumer.#make()
    } catch (error) {
      consumer.#disconnect()
      throw error
    }
    consumer.#loop = consumer.#take()
    return consumer
  }

  /**
   * @param {Client} client
   * @param {RedisConsumerOptions} options
   */
  constructor(client, options) {
    const { stream, group, onError } = options
    // What is in braces decides in which node of a cluster a key is, and a script needs all its keys in one.
    const prefix = /\{.+\}/.test(stream) ? stream : `{${stream}}`
    this.#client = /** @type {any} */ (client)
    this.#reader = this.#client.duplicate()
    this.#reader.on('error', (error) => onError?.(error, undefined))
    this.#options = options
    this.#keys = [stream, ...['again', 'tries', 'dead'].map((name) => `${prefix}.${group}.${name}`)]
  }

  /**
   * Takes no more entries, and waits for those under way. For each answer of Redis it waits as long as `idle` at most, or 5 seconds
   * where `idle` is shorter: what Redis has not answered then comes again.
   */
  async stop() {
    this.#stopping.abort()
    await this.#loop
    await Promise.all(this.#running)
    this.#disconnect()
  }

  #disconnect() {
    if (this.#reader.isOpen) this.#reader.destroy()
  }

  async #make() {
    await this.#answer(this.#reader.connect())
    await this.#makeGroup()
    await this.#run(TIDY, [this.#options.group])
  }

  async #makeGroup() {
    const { stream, group } = this.#options
    try {
      await this.#send(this.#client, ['XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM'])
    } catch (error) {
      if (!error.message.startsWith('BUSYGROUP')) throw error
    }
  }

  async #take() {
    const { prefetch, onError, idempotency } = this.#options
    const stopping = this.#stopping.signal
    while (!stopping.aborted) {
      try {
        for (const entry of await this.#next(prefetch - this.#running.size)) {
          const done = this.#settle(entry).finally(() => this.#running.delete(done))
          this.#running.add(done)
        }
        if (this.#running.size >= prefetch) await Promise.race(this.#running)
      } catch (error) {
        onError(error, undefined)
        // A Redis that comes back without its data has no group.
        if (error.message.includes('NOGROUP')) await this.#makeGroup().catch((failure) => onError(failure, undefined))
        await idempotency.clock.sleep(1000, stopping)
      }
    }
  }

  /** @returns {Promise<Entry[]>} */
  async #next(count) {
    const { stream, group, idle, poll } = this.#options
    const taken = await this.#run(TAKE, [group, this.#name, idle, count])
    if (taken.length > 0) return taken.map(toEntry)
    if (this.#stopping.signal.aborted) return []
    const read = await this.#send(this.#reader, ['XREADGROUP', 'GROUP', group, this.#name, 'COUNT', String(count),
      'BLOCK', String(poll), 'STREAMS', stream, '>'], poll)
    const streams = Array.isArray(read) ? read : Object.entries(read ?? {})    // in RESP 2, or 3
    return streams.flatMap(([, entries]) => entries).map(([id, fields]) => toEntry([id, fields, 1, 0]))
  }

  async #settle(entry) {
    const { group, onError } = this.#options
    try {
      const { action, after, tries, inProgress } = await this.#claiming(entry, () => this.#decide(entry))
      const deliveries = entry.deliveries - (inProgress ? 1 : 0)
      if (action === 'again') await this.#run(AGAIN, [group, entry.id, Math.ceil(after), tries, this.#name, deliveries])
      else await this.#run(END, [group, entry.id, action])
    } catch (error) {
      // Redis is gone: the entry comes again.
      onError(error, entry)
    }
  }

  // Tells Redis meanwhile that the entry is being handled.
  async #claiming(entry, decide) {
    const { stream, group, idle, idempotency, onError } = this.#options
    const claim = ['XCLAIM', stream, group, this.#name, '0', entry.id, 'JUSTID']
    const stop = idempotency.clock.every(idle / 3, () => {
      this.#send(this.#client, claim).catch((error) => onError(error, entry))
    })
    try {
      return await decide()
    } finally {
      stop()
    }
  }

  async #decide(entry) {
    if (entry.deliveries > this.#options.deliveryLimit) return { action: 'bury', after: 0, tries: entry.tries }
    return decideByPosition(this.#options, entry, { name: entry.id, tries: entry.tries })
  }

  #run(script, given) {
    return this.#send(this.#client, ['EVAL', script, String(this.#keys.length), ...this.#keys, ...given.map(String)])
  }

  // A command that waits in vain for the connection is taken back.
  #send(client, command, longer = 0) {
    const unsent = new AbortController()
    return this.#answer(client.sendCommand(command, { abortSignal: unsent.signal }), longer, () => unsent.abort())
  }

  // After `idle` another consumer may have the entries.
  #answer(promise, longer = 0, late = () => {}) {
    const { idle, idempotency } = this.#options
    return within(idempotency, Math.max(idle, 5000) + longer, promise, late, () => new Error('Redis did not answer in time'))
  }
}

function toEntry([id, list, deliveries, tries]) {
  const fields = Object.fromEntries(list.flatMap((name, i) => i % 2 ? [] : [[name, list[i + 1]]]))
  return { id, fields, deliveries, tries }
}
