// The client's half: one key for each intent, kept before the first request is sent, so that a retry after a
// crash of the client has the same key.
import { createHash, randomUUID } from 'node:crypto'
import { link, mkdir, open, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { systemClock } from './clock.js'
import { BadArgument } from './errors.js'
import { parseRetryAfter } from './http/answer.js'
import { checkCount, checkMilliseconds } from './response.js'
import { isText } from './sql.js'

/**
 * @typedef {object} KeyStore
 * @property {(intent: string, make: () => string) => Promise<string>} keyFor the key of an intent; made, and stored for good, the first time
 * @property {(intent: string) => Promise<void>} forget
 */

/**
 * Keys in memory: for tests, and for intents that end with the process.
 * @implements {KeyStore}
 */
export class MemoryStore {
  #keys = new Map()

  /**
   * @param {string} intent
   * @param {() => string} make
   * @returns {Promise<string>}
   */
  async keyFor(intent, make) {
    if (!this.#keys.has(intent)) this.#keys.set(intent, make())
    return this.#keys.get(intent)
  }

  /** @param {string} intent */
  async forget(intent) {
    this.#keys.delete(intent)
  }
}

/**
 * Keys in a directory, a file for each intent. Several processes may share it.
 * @implements {KeyStore}
 */
export class FileStore {
  #directory

  /** @param {string} directory made when it is missing */
  constructor(directory) {
    this.#directory = directory
  }

  /**
   * @param {string} intent
   * @param {() => string} make
   * @returns {Promise<string>}
   */
  async keyFor(intent, make) {
    const file = this.#fileOf(intent)
    await mkdir(this.#directory, { recursive: true })
    for (;;) {
      // Somebody may forget it between the two.
      const key = (await read(file)) ?? (await this.#create(file, make()))
      if (key === undefined) continue
      // Who has made the file may have died before its name was on disk.
      await sync(this.#directory, 'r')
      return key
    }
  }

  /** @param {string} intent */
  async forget(intent) {
    await mkdir(this.#directory, { recursive: true })
    await rm(this.#fileOf(intent), { force: true })
    // Else the key may come back, for a request that is new.
    await sync(this.#directory, 'r')
  }

  // The name appears with the whole content, and never replaces another's: undefined where it is there already.
  async #create(file, key) {
    const draft = `${file}.${randomUUID()}`
    try {
      await sync(draft, 'wx', key)
      await link(draft, file)
      return key
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
      return undefined
    } finally {
      await rm(draft, { force: true })
    }
  }

  #fileOf(intent) {
    return path.join(this.#directory, createHash('sha256').update(intent).digest('hex'))
  }
}

async function read(file) {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    if (error.code !== 'ENOENT') throw error
    return undefined
  }
}

// On disk when it returns: a directory, or a file with this text.
async function sync(file, flags, text) {
  const handle = await open(file, flags)
  try {
    if (text !== undefined) await handle.writeFile(text)
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/**
 * No answer came, or only such as ask for another try. It is unknown whether the request took effect: send the same intent again
 * later.
 */
export class NoAnswer extends Error {
  /**
   * @param {Response | undefined} response the last answer, if there was one
   * @param {unknown} cause the last error
   */
  constructor(response, cause) {
    super(response ? `the last answer was ${response.status}` : 'there was no answer', { cause })
    this.name = 'NoAnswer'
    this.response = response
  }
}

// In progress, too early, too many, and the answers of a service or of a proxy that did not get to the end.
const RETRIED = new Set([409, 425, 429, 502, 503, 504])

const REDIRECTS = new Set([301, 302, 303, 307, 308])
const LONGEST_CHAIN = 10

/** Sends each intent with its own key, and again with the same key until there is an answer. */
export class Caller {
  #store
  #fetch
  #clock
  #options

  /**
   * @param {{store: KeyStore, fetch?: typeof globalThis.fetch, clock?: import('./clock.js').Clock, attempts?: number, base?: number, cap?: number,
   *   longestWait?: number, deadline?: number, timeout?: number, header?: string}} options attempts in all (8); pauses are drawn between 0
   *   and `base` (200) milliseconds, twice as much each time, up to `cap` (10 000), and last at least as long as Retry-After says, up to
   *   `longestWait` (60 000). deadline: milliseconds from `send` on; a pause that would outlast it is NoAnswer at once. timeout:
   *   milliseconds for one try (30 000). header: 'Idempotency-Key'
   * @throws {BadArgument} a number is none
   */
  constructor({ store, fetch = globalThis.fetch, clock = systemClock, attempts = 8, base = 200, cap = 10_000, longestWait = 60_000,
    deadline = Infinity, timeout = 30_000, header = 'Idempotency-Key' }) {
    checkCount('attempts', attempts)
    for (const [name, duration] of Object.entries({ base, cap, longestWait, deadline, timeout })) checkMilliseconds(name, duration)
    this.#store = store
    this.#fetch = fetch
    this.#clock = clock
    this.#options = { attempts, base, cap, longestWait, deadline, timeout, header }
  }

  /**
   * Sends a request until there is an answer. 409, 425, 429, 502, 503, 504 and lost answers are tried again with the same key; any other answer
   * is returned, a 422, a 500 and a replay too. A redirect is followed where it keeps the method (307 and 308, for GET and HEAD 301 to 303)
   * and stays with its origin; any other one is returned.
   * @param {string} intent what is wanted, such as "order 17: pay": the same for all tries, and another one for another request
   * @param {string | URL} url
   * @param {RequestInit} init as for fetch; the body is a string or bytes, as it is sent again
   * @returns {Promise<Response>}
   * @throws {NoAnswer} after the last try; send the intent again later
   * @throws {BadArgument} at once: the intent is none, or no request can be made of url and init
   */
  async send(intent, url, init = {}) {
    const { attempts, deadline } = this.#options
    const end = this.#clock.now() + deadline
    if (!isText(intent) || intent === '') throw new BadArgument('an intent is a string that is not empty')
    checkBody(init)
    // A fetch of the caller's own may know what to make of "/orders".
    if (this.#fetch === globalThis.fetch) checkTarget(url, init)
    const request = await this.#prepare(intent, init)
    let response, error
    for (let attempt = 1; ; attempt++) {
      [response, error] = await this.#try(url, request)
      if (response && isFinal(response)) return response
      const pause = this.#pause(response, attempt)
      if (init.signal?.aborted || attempt >= attempts || this.#clock.now() + pause > end) throw new NoAnswer(response, error)
      await this.#clock.sleep(pause, init.signal ?? undefined)
    }
  }

  /**
   * Drops the key of an intent that has come to its end: the same words mean a new request afterwards.
   * @param {string} intent
   */
  async forget(intent) {
    await this.#store.forget(intent)
  }

  async #prepare(intent, init) {
    const key = await this.#store.keyFor(intent, randomUUID)
    const headers = new Headers(init.headers)
    headers.set(this.#options.header, `"${key}"`)
    return { method: 'POST', ...init, headers }
  }

  // fetch would follow 301 to 303 as a GET, without the effect, and give the key to any origin.
  async #follow(url, request) {
    const redirect = request.redirect === 'error' ? 'error' : 'manual'
    let response = await this.#fetch(url, { ...request, redirect })
    for (let hops = 0; hops < LONGEST_CHAIN && request.redirect !== 'manual'; hops++) {
      const next = targetOf(response, response.url || url, request.method)
      if (!next) break
      await response.body?.cancel()
      response = await this.#fetch(next, { ...request, redirect })
    }
    return response
  }

  async #try(url, request) {
    const late = new AbortController()
    const done = new AbortController()
    this.#clock.sleep(this.#options.timeout, done.signal).then(() => late.abort())
    const signal = request.signal ? AbortSignal.any([request.signal, late.signal]) : late.signal
    try {
      const response = await this.#follow(url, { ...request, signal })
      // The answer is there when its body is.
      const body = await response.arrayBuffer()
      return [copyOf(response, body), undefined]
    } catch (error) {
      if (error?.cause?.code === 'ERR_INVALID_URL') throw notSendable(error)
      return [undefined, error]
    } finally {
      done.abort()
    }
  }

  #pause(response, attempt) {
    const { base, cap, longestWait } = this.#options
    const asked = parseRetryAfter(response?.headers.get('Retry-After') ?? undefined, this.#clock.now()) ?? 0
    return Math.max(Math.min(asked, longestWait), Math.random() * Math.min(cap, base * 2 ** (attempt - 1)))
  }
}

// Another try gives no other answer. A replay is final whatever its status, unless it names a time.
function isFinal({ status, headers }) {
  const isReplay = [headers.get('Idempotency-Replayed'), headers.get('Idempotent-Replayed')].includes('true')
  return !RETRIED.has(status) || (isReplay && !headers.has('Retry-After'))
}

// Where to send the same request: undefined if the answer is no redirect, or one that is not followed.
function targetOf({ status, headers }, url, method) {
  const location = headers.get('Location')
  const keepsMethod = status === 307 || status === 308 || /^(GET|HEAD)$/i.test(method)
  if (!REDIRECTS.has(status) || !keepsMethod || location === null || !URL.canParse(location, url)) return undefined
  const next = new URL(location, url)
  return next.origin === new URL(url).origin ? next : undefined
}

/** @param {RequestInit} init */
function checkBody({ body }) {
  if (body !== undefined && body !== null && typeof body !== 'string' && !(body instanceof Uint8Array)) {
    throw new TypeError('the body is sent again: give a string or bytes')
  }
}

function checkTarget(url, init) {
  try {
    const { protocol } = new URL(new Request(url, { method: 'POST', ...init }).url)
    if (protocol !== 'http:' && protocol !== 'https:') throw new TypeError(`nothing is sent by ${protocol}`)
  } catch (error) {
    throw notSendable(error)
  }
}

function notSendable(cause) {
  return new BadArgument('fetch can make no request of url and init', { cause })
}

function copyOf({ status, statusText, headers }, body) {
  return new Response(body.byteLength > 0 ? body : null, { status, statusText, headers })
}
