// HTTP without a framework: from a request to an answer that is given once. An adapter describes the request,
// calls the handler, and sends the answer; it sends nothing before the answer is stored.
import { validateHeaderName, validateHeaderValue } from 'node:http'
import { BadArgument, Declined, NotDone, ServiceMistake, TooLarge } from '../errors.js'
import { Completion, Reconciled } from '../lease.js'
import { optionsOf, telling } from '../options.js'
import { Json, checkMilliseconds, checkWhole, toInterval, toJson, toResponse } from '../response.js'
import { completed } from '../result.js'
import { isTransient } from '../retry.js'
import { isText } from '../sql.js'
import { abandoning } from '../transaction.js'
import { fromStored, parseRetryAfter, storedHeaders, toStored, withoutCookies } from './answer.js'
import { isEncoded, mediaType, requestTooLarge, unreadable } from './body.js'
import { parseKey, preferredWait } from './key.js'
import { Problem, inProgress, problemFor, rendered } from './problem.js'
import { routeScope, scopeOf } from './spelling.js'

/**
 * A request as an adapter describes it.
 * @template [Req=unknown]
 * @typedef {object} Exchange
 * @property {Req} request the framework's own
 * @property {string} method
 * @property {string} target path and query
 * @property {string} route template of the path, such as /payments/:id
 * @property {(name: string) => string[]} header values, one for each time that it was sent; the name in lower case
 * @property {(type: string, encoded: boolean) => Promise<string>} body JSON text that stands for it: see comparable
 * @property {(error: unknown, problem: import('./problem.js').Answer) => import('./problem.js').Answer | undefined} [passOn] in place of
 *   `problem` an answer with `error`, which the framework answers itself; by its status the operation is ended
 */
/**
 * @template [Tx=unknown]
 * @typedef {import('./problem.js').Answer & {writes?: (tx: Tx) => unknown}} HandlerAnswer
 */
/**
 * What a handler gets.
 * @template [Tx=unknown]
 * @typedef {object} Context
 * @property {Tx} [tx] style "transaction": the connection in the open transaction
 * @property {import('../sql.js').Operation | null} operation null where the request is not run once: skipped, or without a key
 * @property {AbortSignal} signal aborted when the lease is lost, or time is up
 */
/**
 * What a handler of style "transaction" gets.
 * @template [Tx=unknown]
 * @typedef {Context<Tx> & {tx: Tx}} TransactionContext
 */
/** @typedef {'complete' | 'fail' | 'release' | 'leave'} End */
/**
 * @template [Req=unknown]
 * @typedef {object} AllOptions
 * @property {(request: Req) => string | undefined | Promise<string | undefined>} [principal] who asks: a tenant or a user,
 *   a string that is not empty: anything else is a 500. Asked first, also where there is no key. Part of the scope. It has to be given, or
 *   `scope`: `() => 'anyone'` where all clients are one
 * @property {(request: Req, about: {method: string, route: string, principal: string}) => string | Promise<string>} [scope] in place of
 *   method, route and principal. The scope of the Idempotency stands before it
 * @property {string} [header] 'Idempotency-Key'
 * @property {boolean} [required] a request without a key is refused (true), or run as if there were no package (false)
 * @property {(request: Req) => string | undefined | Promise<string | undefined>} [makeKey] the key of a request without one
 * @property {boolean} [strict] keys in quotes only; false
 * @property {string[]} [methods] ['POST', 'PATCH']; others are run as without a key
 * @property {(request: Req) => boolean | Promise<boolean>} [skip] true: run as without a key
 * @property {(request: Req) => unknown} [fingerprint] JSON value that is compared in place of media type and body, beside method and target
 * @property {(status: number) => End | {end: End, retention?: import('../index.js').Duration} | undefined} [statuses] what becomes of an answer:
 *   "complete", "fail" (the transaction's writes are undone), "release" (nothing is stored), "leave" (a lease is left to run out). By default
 *   complete below 400, fail for 4xx, but for 401, 403, 408, 409, 425 and 429: those and the rest release, or leave for a lease
 * @property {string[]} [headers] stored beside Content-Type, Content-Language, Content-Encoding, Location and ETag: names, or X-*
 * @property {number} [maxRequest] bytes; 1 MB
 * @property {number} [maxResponse] bytes; 1 MB
 * @property {number} [wait] milliseconds to wait for a request in progress; 0
 * @property {number} [maxWait] milliseconds that `Prefer: wait=n` can ask for; 10 000
 * @property {number} [timeout] milliseconds until a handler must have answered; 60 000. 0 or Infinity: no limit
 * @property {string} [marker] name of the header of a replay; 'Idempotency-Replayed'
 * @property {string} [lifetime] name of a header with the time until which an answer is kept; none by default, and one more round trip
 * @property {string} [describedBy] address of your page about keys: the `type` of problems, and a Link header
 * @property {(error: unknown, request: Req, problem: import('./problem.js').Described) => import('./problem.js').Described | undefined} [mapError]
 *   a problem of your own in place of `problem`; with `body` and a Content-Type an answer of another shape
 * @property {(error: unknown, request: Req) => void} [onError] called with each error that becomes a 500, and with an answer of `reconcile` that
 *   HTTP cannot send; by default it is logged on the console
 * @property {import('../index.js').Duration} [retention]
 * @property {import('../index.js').Duration} [lease]
 * @property {number} [maxAttempts]
 * @property {import('../lease.js').Reconcile} [reconcile] of leased routes; its response has code, headers, and payload or body
 */

/**
 * Who asks has to be known, or the whole scope.
 * @template [Req=unknown]
 * @typedef {AllOptions<Req> & ({principal: NonNullable<AllOptions<Req>['principal']>} | {scope: NonNullable<AllOptions<Req>['scope']>})} HttpOptions
 */

const MEGABYTE = 1024 * 1024
// A question mark without a query is none, which not all frameworks tell of.
const EMPTY_QUERY = /(?<=^[^?]*)\?$/
// A target may be a whole address, as for a proxy.
const ORIGIN = /^[a-z][a-z0-9+.-]*:\/\/[^/?]*\/?/i
// A refusal of the moment, which says nothing of the operation: who asks, how often, and when. Nor does it say that a leased handler has
// done nothing outside before.
const PASSING = new Set([401, 403, 408, 409, 425, 429])
const ENDS = new Set(['complete', 'fail', 'release', 'leave'])
const DEFAULTS = {
  header: 'Idempotency-Key', marker: 'Idempotency-Replayed', required: true, strict: false, methods: ['POST', 'PATCH'], headers: [], wait: 0,
  maxRequest: MEGABYTE, maxResponse: MEGABYTE, maxWait: 10_000, timeout: 60_000, onError: (error) => console.error(error),
}

// An answer that is sent and not stored.
class Unstored extends Error {
  constructor(answer) {
    super(`answered ${answer.status}`)
    this.answer = answer
  }
}

/**
 * One configuration for the routes of an application.
 * @template [Req=unknown] the framework's own request
 * @template [Tx=unknown] what a handler gets to run statements by
 */
export class HttpIdempotency {
  #idempotency
  #options
  #isStored

  /**
   * @param {import('../index.js').Idempotency<Tx>} idempotency
   * @param {HttpOptions<Req>} options
   * @throws TypeError: neither `principal` nor `scope` is given. BadArgument: an option is no duration, a number out of its range, or no name of a header
   */
  constructor(idempotency, options) {
    if (typeof options?.principal !== 'function' && typeof options?.scope !== 'function') {
      throw new TypeError('the option "principal" is missing: a function of a request that says who asks, as clients must ' +
        "not get the answers of others. Give () => 'anyone' where all clients are one")
    }
    this.#idempotency = idempotency
    /** @type {HttpOptions<any> & typeof DEFAULTS} */
    this.#options = optionsOf(DEFAULTS, options)
    checkNumbers(this.#options)
    checkNames(this.#options)
    this.#options.onError = telling('onError', this.#options.onError)
    this.#options.methods = this.#options.methods.map((method) => method.toUpperCase())
    this.#isStored = storedHeaders(this.#options.headers)
  }

  /** @returns {number} bytes */
  get maxRequest() {
    return this.#options.maxRequest
  }

  /** @returns {number} bytes */
  get maxResponse() {
    return this.#options.maxResponse
  }

  /**
   * The answer to a request. Never throws: an error is an answer, too.
   * @param {Exchange<Req>} exchange
   * @param {'transaction' | 'lease'} style
   * @param {(context: Context<Tx>) => Promise<HandlerAnswer<Tx>>} invoke calls the handler; called again when the transaction is repeated
   * @returns {Promise<import('./problem.js').Answer>}
   */
  async run(exchange, style, invoke) {
    // mapError is asked once about an error.
    const answers = new Map()
    const answerTo = (error) => {
      if (!answers.has(error)) answers.set(error, this.#answerTo(error, exchange.request, exchange.passOn))
      return answers.get(error)
    }
    try {
      const who = await this.#isCovered(exchange) ? await this.#principal(exchange.request) : undefined
      const key = who === undefined ? undefined : await this.#key(exchange)
      return key === undefined
        ? await this.#runPlain(style, invoke).catch((error) => this.#plainRefusal(error))
        : await this.#runOnce({ ...exchange, who }, key, style, invoke, answerTo)
    } catch (error) {
      return this.problem(error, exchange.request, answerTo(error))
    }
  }

  async #isCovered({ method, request }) {
    return this.#options.methods.includes(method) && !await this.#options.skip?.(request)
  }

  async #key({ header, request }) {
    const { header: name, strict, required, makeKey } = this.#options
    const key = parseKey(header(name.toLowerCase()), { name, strict }) ?? await makeKey?.(request)
    if (key !== undefined && typeof key !== 'string') throw new TypeError('the option "makeKey" has to give a string, or undefined')
    if (key === undefined && required) {
      throw new Problem(400, `${name} is missing`,
        { detail: 'This request needs a key, a string that is new for each new request.' })
    }
    return key
  }

  async #runOnce(exchange, key, style, invoke, answerTo) {
    let live, declined
    const perform = async (context) => {
      try {
        return await handle(context)
      } catch (error) {
        if (style === 'transaction' || !unsent.has(error)) throw error
        // The handler is done, also where its answer cannot be sent.
        const { retention, writes } = this.#endWithout(error)
        const response = { payload: unstorable(error), retention }
        return writes ? new Completion(response, /** @type {any} */ (writesOf(/** @type {any} */ ({ writes })))) : response
      }
    }
    const handle = async (context) => {
      live = undefined
      const answer = await this.#limited(invoke, context).catch((error) => {
        if (error instanceof Declined) {
          declined = this.#refusal(error)
          throw withoutCookie(error)
        }
        throw style === 'transaction' ? asRefusal(error, answerTo) : error
      })
      live = answer
      return this.#ended({ ...answer, writes: writesOf(answer) }, style)
    }
    // Writes that decline have another answer than the handler's.
    const writesOf = (/** @type {HandlerAnswer<Tx>} */ { writes, ...answer }) => writes && (async (/** @type {Tx} */ tx) => {
      live = undefined
      await this.#checked(writes, (answer) => { declined = answer })(tx).catch((error) => {
        throw unsent.has(error) ? new Declined(null, unstorable(error)) : error
      })
      live = answer
    })
    const request = await this.#fingerprint(exchange)
    const options = await this.#callOptions(exchange)
    const result = style === 'transaction'
      ? await this.#idempotency.transaction(key, request, (tx, operation) => perform({ tx, operation }), options)
      : await this.#idempotency.lease(key, request, (operation, signal) => perform({ operation, signal }), options).catch(asOfLease)
    if (result.outcome === 'IN_PROGRESS') throw inProgress(result.retryAfter)
    // What is stored of a refusal has lost its cookies.
    const headers = (!result.replayed && declined?.headers) || result.headers
    const answer = live && !result.replayed ? live : sendable(fromStored({ ...result, headers }, this.#options.marker))
    return { ...answer, headers: { ...answer.headers, ...await this.#lifetime(key, options.scope) } }
  }

  // The answer is true without it.
  async #lifetime(key, scope) {
    const { lifetime } = this.#options
    const until = lifetime && await this.#idempotency.expiresAt(key, { scope }).catch(() => null)
    return until ? { [lifetime.toLowerCase()]: until.toUTCString() } : {}
  }

  // What work does with an answer: returns what is stored, or throws what ends it otherwise.
  #ended(answer, style) {
    const { end, retention } = this.#endOf(answer.status, style)
    const stored = { ...toStored(answer, this.#isStored), ...(retention !== undefined && { retention }) }
    if (end === 'complete') return answer.writes ? new Completion(stored, answer.writes) : stored
    if (end === 'fail') {
      const retryAfter = parseRetryAfter(answer.headers['retry-after'], this.#idempotency.clock.now())
      throw new Declined(stored.code, undefined, { ...stored, retryAfter })
    }
    const unstored = new Unstored(answer)
    // In a transaction an answer below 500 is a refusal: its rollback is no lost attempt.
    throw (style === 'lease' ? end === 'release' : answer.status < 500) ? new NotDone({ cause: unstored }) : unstored
  }

  // The end of a lease whose handler gave an answer that cannot be sent. One that is not stored leaves the lease.
  #endWithout(error) {
    const { status, writes } = unsent.get(error)
    const { end, retention } = isFinal(status) ? this.#endOf(status, 'lease') : { end: 'complete' }
    if (end !== 'complete' && end !== 'fail') throw error
    return { retention, writes: end === 'complete' ? writes : undefined }
  }

  #endOf(status, style) {
    const own = this.#options.statuses?.(status)
    if (own) {
      const given = typeof own === 'object' ? own : { end: own }
      // An answer whose writes are not stored must not look like a success by a slip.
      if (!ENDS.has(given.end)) throw refused(own, 'the option "statuses" has to give "complete", "fail", "release" or "leave"')
      return given
    }
    if (status < 400) return { end: 'complete' }
    if (status < 500 && !PASSING.has(status)) return { end: 'fail' }
    return { end: style === 'lease' ? 'leave' : 'release' }
  }

  // Without a key: one transaction that commits what is below 400, and nothing is stored.
  async #runPlain(style, invoke) {
    if (style === 'lease') {
      const answer = await this.#limited(invoke, { operation: null })
      const { writes } = answer
      if (writes && answer.status < 400) await this.#idempotency.batch(({ tx }) => Promise.resolve(writes(tx)))
      return answer
    }
    return this.#idempotency.batch(async ({ tx }) => {
      const answer = await this.#limited(invoke, { tx, operation: null })
      if (answer.status >= 400) throw new Unstored(answer)
      return answer
    })
  }

  // The answer of who declines. Throws where HTTP cannot carry it, and any other error as it is.
  #refusal(error) {
    if (!(error instanceof Declined)) throw error
    const { response, retryAfter } = error
    try {
      return this.#sendable(response, { outcome: 'FAILED', retryAfter: typeof retryAfter === 'number' ? retryAfter : null })
    } catch (wrong) {
      throw ofAnswer(wrong)
    }
  }

  // The same where nothing is stored, so that the server has not yet read a duration that is a text.
  async #plainRefusal(error) {
    const isText = error instanceof Declined && typeof error.retryAfter === 'string'
    return this.#refusal(isText ? declining(error.response, await this.#idempotency.milliseconds(error.retryAfter)) : error)
  }

  #sendable(response, end) {
    const answer = sendable(fromStored({ ...completed({ attempt: null, takenOver: false }, response), ...end }, this.#options.marker))
    if (answer.body.length > this.#options.maxResponse) throw responseTooLarge()
    return answer
  }

  // Writes that decline with what HTTP cannot carry fail.
  #checked(writes, /** @type {(answer: import('./problem.js').Answer) => void} */ refused = () => {}) {
    return async (tx) => {
      try {
        await writes(tx)
      } catch (error) {
        refused(this.#refusal(error))
        throw withoutCookie(error)
      }
    }
  }

  // What reconcile has found ends the operation only if HTTP can carry it: else each replay would be a 500.
  #reconciling(reconcile, request) {
    return async (operation, signal) => {
      const known = await reconcile(operation, signal)
      if (known?.state !== 'done') return known
      const { response: found, writes } = known.response instanceof Completion ? known.response : { response: known.response, writes: undefined }
      let response
      try {
        response = withoutCookies(toResponse(found))
        this.#sendable(response, {})
      } catch (error) {
        this.#options.onError(error, request)
        throw error
      }
      return Reconciled.done(writes ? new Completion(response, this.#checked(writes)) : response)
    }
  }

  // The handler's answer, if it comes in time and is one that can be stored.
  async #limited(invoke, context) {
    const { timeout, maxResponse } = this.#options
    const late = new AbortController()
    const done = new AbortController()
    const signal = context.signal ? AbortSignal.any([context.signal, late.signal]) : late.signal
    const isLimited = timeout > 0 && timeout < Infinity
    const timeUp = !isLimited ? new Promise(() => {}) : this.#idempotency.clock.sleep(timeout, done.signal).then(() => {
      if (done.signal.aborted) return undefined
      const error = abandoning(new Problem(503, 'The request took too long', { headers: { 'Retry-After': '1' } }))
      late.abort(error)
      throw error
    })
    try {
      const answer = /** @type {HandlerAnswer} */ (await Promise.race([invoke({ ...context, signal }), timeUp]))
      if (answer.body.length > maxResponse) throw responseTooLarge(answer)
      try {
        return { ...sendable(answer), live: true }
      } catch (error) {
        throw ofAnswer(error, answer)
      }
    } finally {
      done.abort()
    }
  }

  async #fingerprint(exchange) {
    const { fingerprint, maxRequest } = this.#options
    if (Number(exchange.header('content-length')[0] ?? 0) > maxRequest) throw requestTooLarge()
    const { method } = exchange
    const target = exchange.target.replace(ORIGIN, '/').replace(EMPTY_QUERY, '')
    if (fingerprint) return new Json(/** @type {string} */ (toJson({ method, target, own: (await fingerprint(exchange.request)) ?? null })))
    const type = mediaType(exchange.header('content-type')[0])
    const body = await exchange.body(type, isEncoded(exchange.header('content-encoding')))
    return new Json(`${JSON.stringify({ method, target, type }).slice(0, -1)},"body":${body}}`)
  }

  async #callOptions(exchange) {
    const { wait, maxWait, retention, lease, maxAttempts, reconcile } = this.#options
    const preferred = preferredWait(exchange.header('prefer').join(', '))
    return {
      scope: await this.#scope(exchange),
      wait: preferred === undefined ? wait : Math.min(preferred * 1000, maxWait),
      maxAttempts,
      ...(retention !== undefined && { retention }),
      ...(lease !== undefined && { lease }),
      ...(reconcile && { reconcile: this.#reconciling(reconcile, exchange.request) }),
    }
  }

  // Asked before anything else, also of a request that runs without a key. '' where the scope alone counts.
  async #principal(request) {
    const { principal } = this.#options
    const who = principal ? await principal(request) : ''
    if (principal && (!isText(who) || who === '')) {
      // Who cannot be told apart from others would get their answers.
      throw new TypeError('the option "principal" has to give a string that is not empty')
    }
    return who
  }

  // A key is the client's own choice, so two clients may choose the same.
  async #scope({ request, method, route, who }) {
    const { scope } = this.#options
    const own = scope ? await scope(request, { method, route, principal: who }) : routeScope(method, route, who)
    if (!isText(own) || own === '') throw new TypeError('the option "scope" has to give a string that is not empty')
    return scopeOf(this.#idempotency.scope, own)
  }

  /**
   * The answer to an error of a body parser, which comes before a route.
   * @param {unknown} error
   * @param {Req} request the framework's own
   * @returns {import('./problem.js').Answer}
   */
  bodyProblem(error, request) {
    const { statusCode, status = statusCode } = /** @type {{statusCode?: number, status?: number}} */ (error ?? {})
    if (status === 413) return this.problem(requestTooLarge(), request)
    return this.problem(status === 400 ? unreadable(error) : error, request)
  }

  /**
   * The answer to an error.
   * @param {unknown} error
   * @param {Req} request the framework's own
   * @param {import('./problem.js').Answer} [answer] where it is known
   * @returns {import('./problem.js').Answer}
   */
  problem(error, request, answer = this.#answerTo(error, request)) {
    const cause = causeOf(error)
    if (answer.status === 500 && !answer.error && !(cause instanceof Unstored)) this.#options.onError(cause, request)
    return answer
  }

  /** @returns {import('./problem.js').Answer} */
  #answerTo(error, request, passOn) {
    const cause = causeOf(error)
    if (cause instanceof Unstored) return cause.answer
    const usual = problemFor(error)
    const problem = rendered(usual, this.#options.describedBy)
    return this.#mapped(error, request, usual) ?? passOn?.(cause, problem) ?? problem
  }

  // What mapError gives may be none that can be sent.
  #mapped(error, request, usual) {
    const { mapError, onError, describedBy } = this.#options
    try {
      const own = mapError?.(error, request, usual)
      if (own && !isFinal(own.status)) throw refused(own, 'what the option "mapError" gives has no status')
      return own && rendered(own, describedBy)
    } catch (failure) {
      onError(failure, request)
      return undefined
    }
  }
}

// It may be a promise, whose own rejection must not end the process.
function refused(given, message) {
  Promise.resolve(given).catch(() => {})
  return new TypeError(message)
}

function checkNumbers({ wait, maxWait, timeout, retention, lease, maxAttempts }) {
  if (wait !== Infinity) toInterval('wait', wait)
  for (const [name, duration] of Object.entries({ maxWait, timeout })) {
    checkMilliseconds(name, duration)
    if (duration < 0) throw new BadArgument(`${name} is below 0`)
  }
  toInterval('retention', retention)
  toInterval('lease', lease)
  checkWhole('maxAttempts', maxAttempts)
}

// HTTP would refuse each request, or each answer.
function checkNames({ header, marker, lifetime }) {
  for (const [name, value] of Object.entries({ header, marker, lifetime: lifetime || marker })) {
    try {
      validateHeaderName(value)
    } catch (cause) {
      throw new BadArgument(`${name} is no name of a header`, { cause })
    }
  }
}

// Whether HTTP can send it, as the last status of an answer.
function isFinal(status) {
  return Number.isInteger(status) && status >= 200 && status <= 999
}

// Throws for what HTTP cannot carry: Node finds out when it sends, after COMMIT.
/**
 * @template {import('./problem.js').Answer} A
 * @param {A} answer
 */
function sendable(answer) {
  const { status, statusMessage, headers } = answer
  if (!isFinal(status)) throw new Error(`a route that runs once cannot answer ${status}`)
  if (statusMessage !== undefined) validateHeaderValue('statusMessage', statusMessage)
  for (const [name, value] of Object.entries(headers)) {
    validateHeaderName(name)
    validateHeaderValue(name, /** @type {string} */ (value))
  }
  return answer
}

function causeOf(error) {
  return error instanceof NotDone ? error.cause : error
}

// The work may throw the same object again.
function withoutCookie({ response, retryAfter }) {
  return declining(withoutCookies(response), retryAfter)
}

function declining({ code, payload, ...options }, retryAfter) {
  return new Declined(code, payload, { ...options, retryAfter })
}

// A payload that cannot be stored either, so that the operation ends without an answer.
function unstorable(error) {
  return { toJSON() { throw error } }
}

// To a client a 413 says that nothing was done.
function asOfLease(error) {
  if (error instanceof ServiceMistake && unsent.has(/** @type {object} */ (error.cause))) throw error.cause
  throw error instanceof TooLarge ? responseTooLarge({}, error) : error
}

// An error of a handler that is answered below 500 is a refusal, as such an answer is: its rollback is no lost attempt. What may be
// repeated goes on as it is.
function asRefusal(error, answerTo) {
  if (error instanceof Declined || isTransient(error)) return error
  const answer = answerTo(error)
  return answer.status < 500 ? new NotDone({ cause: new Unstored(answer) }) : error
}

// Errors about the answer that a handler gave, and what is known of that.
const unsent = new WeakMap()

/**
 * @template {object} E
 * @param {E} error
 * @param {{status?: unknown, writes?: unknown}} [answer]
 * @returns {E}
 */
export function ofAnswer(error, { status, writes } = {}) {
  if (Object(error) === error) unsent.set(error, { status, writes })
  return error
}

/**
 * A function of the framework by which a handler answers: its error, as of what is no JSON, is one about the answer.
 * @template {Function} F
 * @param {F} answer
 * @returns {F}
 */
export function answering(answer) {
  return /** @type {any} */ (/** @this {any} */ function (...given) {
    try {
      return answer.apply(this, given)
    } catch (error) {
      throw ofAnswer(error)
    }
  })
}

/**
 * The answer of a handler with the writes that it returned, which count also where the answer cannot be sent.
 * @param {Promise<HandlerAnswer>} answered
 * @param {Promise<unknown>} returned
 * @returns {Promise<HandlerAnswer>}
 */
export async function withWrites(answered, returned) {
  let writes
  const known = returned.then((value) => { if (typeof value === 'function') writes = /** @type {any} */ (value) })
  try {
    const [given] = await Promise.all([answered, known])
    return { ...given, writes }
  } catch (error) {
    if (unsent.has(error)) ofAnswer(error, { ...unsent.get(error), writes })
    throw error
  }
}

/**
 * @param {{status?: unknown, writes?: unknown}} [answer]
 * @param {unknown} [cause]
 */
export function responseTooLarge(answer, cause) {
  return ofAnswer(new Problem(500, 'The answer is too large to be stored', { cause }), answer)
}
