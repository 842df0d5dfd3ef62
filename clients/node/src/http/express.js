// Express. What a handler writes to `res` is kept until it is stored, and only then sent.
import { EventEmitter } from 'node:events'
import { HttpIdempotency, answering, responseTooLarge, withWrites } from './core.js'
import {
  comparable, comparableParsed, encoded, isJson, keep, keptBody, parseJson, readRequest, saysBody, unseen,
} from './body.js'

/**
 * What a request and a response of Express are at least. Handlers may ask for more: for the Request and the Response of its types.
 * @typedef {import('node:http').IncomingMessage & {body?: unknown, params: Record<string, unknown>, query: unknown, originalUrl: string,
 *   get(name: string): unknown}} Req
 * @typedef {import('node:http').ServerResponse & {status(code: number): Res, json(value: unknown): unknown, send(value: unknown): unknown,
 *   set(name: string, value: string): unknown}} Res
 * @typedef {(error?: unknown) => void} Next
 * @typedef {(error: unknown, req: Req, res: Res, next: Next) => void} ErrorHandler
 */
/**
 * A handler answers by `res` as always. In style "lease" it may return a function (tx) => writes, which commit together with the answer.
 * By default its request is the one that the option "principal" takes.
 * @template C
 * @template {Req} Q
 * @typedef {<R extends Req = Q, S extends Res = Res>(handler: (req: R, res: S, context: C) => unknown) =>
 *   (req: R, res: S, next: Next) => Promise<void>} Wrap
 */

/**
 * Routes of Express that run once for each key.
 * @template Tx
 * @template {Req} [Q=Req]
 * @param {import('../index.js').Idempotency<Tx>} idempotency
 * @param {import('./core.js').HttpOptions<Q>} options
 * @returns {{transaction: Wrap<import('./core.js').TransactionContext<Tx>, Q>, lease: Wrap<import('./core.js').Context<Tx>, Q>,
 *   keepBody: () => (req: import('node:http').IncomingMessage, res: unknown, next: () => void) => void,
 *   problemErrors: () => ErrorHandler}} transaction:
 *   the handler gets `tx`, in whose transaction its answer is stored. lease: it gets an operation, with fence, and a signal.
 *   keepBody: `app.use` it before body parsers, so that requests are compared by what was sent, not by what a parser made of it.
 *   problemErrors: `app.use` it last; errors before a route, such as those of express.json(), become problems that tell nothing of the error
 */
export function expressIdempotency(idempotency, options) {
  const core = new HttpIdempotency(idempotency, options)
  const route = (/** @type {'transaction' | 'lease'} */ style) => (/** @type {Function} */ handler) => async (req, res, next) => {
    const capture = new Capture(res, core.maxResponse)
    const answer = await core.run(toExchange(req, core.maxRequest), style, async (context) => {
      const answered = capture.start()
      const returned = Promise.resolve().then(() => handler(req, res, context))
      return withWrites(answered, returned)
    })
    // Somebody else has answered meanwhile: a timeout, say.
    if (res.headersSent) return
    try {
      capture.send(answer)
    } catch (error) {
      // A header that HTTP cannot carry.
      next(error)
    }
  }
  const keepBody = () => (req, res, next) => {
    keep(req, core.maxRequest)
    next()
  }
  return { transaction: route('transaction'), lease: route('lease'), keepBody, problemErrors: () => problemErrors(core) }
}

// Express's own handler sends the stack. It still ends an answer of which a part has been sent.
function problemErrors(core) {
  return (error, req, res, next) => {
    if (res.headersSent) return next(error)
    const { status, headers, body } = core.bodyProblem(error, req)
    res.statusCode = status
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
    res.end(body)
  }
}

function toExchange(req, maxRequest) {
  const header = (name) => valuesOf(req.rawHeaders, name)
  return {
    request: req,
    method: req.method,
    target: req.originalUrl ?? req.url,
    route: `${req.baseUrl ?? ''}${req.route?.path ?? req.path}`,
    header,
    body: (type, isEncoded) => bodyOf(req, header, type, isEncoded, maxRequest),
  }
}

/**
 * The values of a header as they came: Node joins them.
 * @param {string[]} raw names and values by turns
 * @param {string} name in lower case
 */
export function valuesOf(raw, name) {
  return raw.filter((value, index) => index % 2 === 1 && raw[index - 1].toLowerCase() === name)
}

// A body that nobody has read is read here, so that the handler finds it in req.body. Express 4 leaves {} there, although its
// parser has read nothing.
async function bodyOf(req, header, type, isEncoded, maxRequest) {
  const kept = keptBody(req, maxRequest)
  if (kept) return comparable(kept, type, isEncoded)
  if (!req.readableDidRead) {
    const bytes = await readRequest(req, maxRequest)
    if (bytes.length > 0 && isJson(type) && isEncoded) throw encoded()
    if (bytes.length > 0) req.body = isJson(type) ? parseJson(bytes) : bytes
    return comparable(bytes, type)
  }
  if (!saysBody(header)) return 'null'
  const { body } = req
  const isEmpty = typeof body === 'object' && Object.keys(body ?? {}).length === 0
  // Files are beside the fields, and {} is what a parser leaves of a body that is none of its own.
  if (body === undefined || type === 'multipart/form-data' || (isEmpty && !isJson(type))) throw unseen()
  return comparableParsed(body, type)
}

const LISTENING = ['on', 'addListener', 'prependListener', 'once', 'prependOnceListener', 'off', 'removeListener']
// What throws when the headers are sent. A handler that is late would end the process by it. Before, a middleware may need it that ends
// the response later.
const HEADING = ['setHeader', 'appendHeader', 'removeHeader', 'setHeaders', 'writeHead']
// What makes an answer, as far as the response has it: that of Express has more.
const ANSWERING = ['write', 'end', 'writeHead', 'setHeader', 'appendHeader', 'status', 'json', 'jsonp']
const PATCHED = ['flushHeaders', 'destroy', ...LISTENING, ...ANSWERING]

// Stands between a handler and its ServerResponse, from when the handler is called. Before, and after the answer
// is sent, the response is the framework's own.
class Capture {
  /** @type {any} */
  #res
  #limit
  #status
  #statusMessage
  #headers
  /** @type {[string, unknown][] | undefined} */
  #own
  /** @type {any} */
  #attempt

  constructor(res, limit) {
    this.#res = res
    this.#limit = limit
    this.#status = res.statusCode
    this.#statusMessage = res.statusMessage
    this.#headers = { ...res.getHeaders() }
  }

  #takeOver() {
    const res = this.#res
    this.#own = PATCHED.map((name) => [name, Object.hasOwn(res, name) ? res[name] : undefined])
    res.write = (chunk, encoding, callback) => this.#write(chunk, encoding, callback)
    res.end = (chunk, encoding, callback) => this.#end(chunk, encoding, callback)
    res.writeHead = (status, reason, headers) => this.#writeHead(status, reason, headers)
    res.flushHeaders = () => {}
    // A pipeline whose source breaks off does so. The connection has an answer to come; and Bun would send an empty 200.
    res.destroy = (error) => { this.#attempt.reject(error ?? new Error('the handler has destroyed its response')); return res }
    for (const name of ANSWERING) if (res[name]) res[name] = answering(res[name])
    // A handler may wait until its answer is written: for the event, by a callback of end(), or in a pipeline. It
    // hears of that when it has ended its answer, and others hear when the answer is sent.
    for (const name of LISTENING) {
      const real = res[name]
      res[name] = (event, listener) => {
        if (event !== 'finish') return real.call(res, event, listener)
        this.#attempt.finish[name](event, listener)
        return res
      }
    }
  }

  #giveBack() {
    for (const [name, own] of this.#own ?? []) {
      if (own === undefined) delete this.#res[name]
      else this.#res[name] = own
    }
    this.#own = undefined
  }

  /** Begins a call of the handler: the answer is a promise, and what an earlier call has written is gone. */
  start() {
    if (this.#res.headersSent) throw new Error('the request was answered before its handler was called')
    if (!this.#own) this.#takeOver()
    this.#reset()
    return new Promise((resolve, reject) => {
      this.#attempt = { chunks: [], size: 0, resolve, reject, finish: new EventEmitter() }
    })
  }

  /**
   * Sends an answer. What a handler writes from now on goes nowhere.
   * @param {import('./problem.js').Answer} answer
   */
  send({ status, statusMessage, headers, body, live }) {
    const res = this.#res
    this.#giveBack()
    if (live) for (const name of res.getHeaderNames()) res.removeHeader(name)
    else this.#reset()
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
    res.statusCode = status
    if (live) res.statusMessage = statusMessage
    res.end(body)
    res.write = () => false
    res.end = () => res
    for (const name of HEADING) {
      const real = res[name]
      res[name] = (...given) => res.headersSent ? res : real.apply(res, given)
    }
  }

  #reset() {
    for (const name of this.#res.getHeaderNames()) this.#res.removeHeader(name)
    for (const [name, value] of Object.entries(this.#headers)) this.#res.setHeader(name, value)
    this.#res.statusCode = this.#status
    this.#res.statusMessage = this.#statusMessage
  }

  #write(chunk, encoding, callback) {
    const attempt = this.#attempt
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding]
    const bytes = bytesOf(chunk, encoding)
    attempt.size += bytes.length
    if (attempt.size > this.#limit) {
      attempt.reject(responseTooLarge({ status: this.#res.statusCode }))
      // A stream without an end pauses here.
      return false
    }
    attempt.chunks.push(bytes)
    if (callback) process.nextTick(callback)
    return true
  }

  #end(chunk, encoding, callback) {
    const attempt = this.#attempt
    const res = this.#res
    if (typeof chunk === 'function') [chunk, callback] = [undefined, chunk]
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding]
    if (chunk !== undefined && chunk !== null) attempt.chunks.push(bytesOf(chunk, encoding))
    if (callback) attempt.finish.once('finish', callback)
    process.nextTick(() => attempt.finish.emit('finish'))
    const { statusMessage } = res
    attempt.resolve({ status: res.statusCode | 0, statusMessage, headers: { ...res.getHeaders() }, body: Buffer.concat(attempt.chunks) })
    return res
  }

  #writeHead(status, reason, headers = reason) {
    const res = this.#res
    res.statusCode = status
    if (typeof reason === 'string') res.statusMessage = reason
    const pairs = Array.isArray(headers)
      ? Array.isArray(headers[0]) ? headers : headers.flatMap((name, i) => i % 2 ? [] : [[name, headers[i + 1]]])
      : typeof headers === 'object' && headers !== null ? Object.entries(headers) : []
    for (const [name] of pairs) res.removeHeader(name)
    for (const [name, value] of pairs) res.appendHeader(name, value)
    return res
  }
}

function bytesOf(chunk, encoding) {
  return typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk)
}
