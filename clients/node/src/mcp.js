// Calls of tools by agents (Model Context Protocol): the same key, tool and principal is one operation, and each end of it an
// answer. Results are those of tools/call, so this works with any SDK and needs none. clients/conformance/tools.json has what
// the packages for all languages write alike.
import { createHash } from 'node:crypto'
import { scopeOf, toolScope } from './http/spelling.js'
import { BadArgument, Declined, KeyReused, NotDone, ServiceMistake, Unknown, Unstorable } from './errors.js'
import { Completion, Reconciled } from './lease.js'
import { telling } from './options.js'
import { isOpaque, isResponse } from './response.js'
import { isText } from './sql.js'

/** @typedef {{type: 'text', text: string}} Text */
/**
 * The result of tools/call. `_meta` has "pg-idempotency/outcome", and with a stored answer "pg-idempotency/replayed".
 * @typedef {{content: Text[], structuredContent: Record<string, unknown>, isError: boolean, _meta: Record<string, unknown>,
 *   [name: string]: unknown}} ToolAnswer
 */
/** @typedef {Omit<import('./index.js').TransactionOptions, 'scope' | 'requestHash'>} ToolOptions */
/** @typedef {Omit<import('./index.js').LeaseOptions, 'scope' | 'requestHash'>} LeasedToolOptions */

const MESSAGES = {
  FAILED: 'The operation has failed.',
  IN_PROGRESS: 'Another call with this key is at work. Call again with the same key and arguments to get its answer.',
  KEY_REUSED: 'This key was used before with other arguments. Nothing was done. Use a new key only for another operation.',
  UNKNOWN: 'Nobody knows whether an attempt with this key took effect. Do not use a new key. Call again later with the same key and ' +
    'arguments, or ask a person.',
  BAD_ARGUMENT: 'Nothing was done. A key is a string of 1 to 255 characters, and key and arguments are text and numbers that can be stored.',
  ERROR: 'The call failed. Call again with the same key and arguments: it takes effect once.',
}

/**
 * Runs the work of tools once for each key of a principal.
 * @template [Tx=unknown] what work gets to run statements by
 */
export class Tools {
  #idempotency
  #onError

  /**
   * @param {import('./index.js').Idempotency<Tx>} idempotency
   * @param {{onError?: (error: unknown) => void}} [options] told of errors that no answer shows; by default they go to the console
   */
  constructor(idempotency, { onError = (error) => console.error(error) } = {}) {
    this.#idempotency = idempotency
    this.#onError = telling('onError', onError)
  }

  /**
   * Runs `work` in one transaction, as `Idempotency.transaction`.
   * @param {string} name of the tool
   * @param {string} principal who asks, as you have authenticated it; not empty
   * @param {unknown} key as the caller has chosen it: an argument of the tool, or a field of _meta
   * @param {object | undefined} args arguments of the tool: a repeat with others is refused
   * @param {(tx: Tx, operation: import('./sql.js').Operation) => unknown} work returns what `transaction` takes, and its payload is the
   *   answer; or a result with `content`, which is the answer as it is. One with `isError` is a failure: its writes are undone
   * @param {ToolOptions} [options]
   * @returns {Promise<ToolAnswer>}
   * @throws TypeError where name, principal or arguments are none: a mistake of the server
   */
  async transaction(name, principal, key, args, work, options = {}) {
    return this.#answer(name, principal, key, args, false, (chosen, request, scope, entered) =>
      this.#idempotency.transaction(chosen, request, async (tx, operation) => {
        entered()
        return declining(await work(tx, operation))
      }, { ...options, scope, requestHash: undefined }))
  }

  /**
   * Runs `work` outside of a transaction, as `Idempotency.lease`. After an attempt without an end, `reconcile` is asked; where there is none, the
   * answer is UNKNOWN, and the work does not run.
   * @param {string} name
   * @param {string} principal
   * @param {unknown} key
   * @param {object | undefined} args
   * @param {import('./lease.js').LeasedWork} work as in `transaction`, and it may return a Completion. NotDone frees the key; any other error is
   *   answered UNKNOWN
   * @param {LeasedToolOptions} [options]
   * @returns {Promise<ToolAnswer>}
   * @throws TypeError
   */
  async lease(name, principal, key, args, work, options = {}) {
    const { reconcile = () => Reconciled.unknown() } = options
    // A failure that reconcile has found is stored as one of the work.
    let found
    return this.#answer(name, principal, key, args, true, (chosen, request, scope, entered) =>
      this.#idempotency.lease(chosen, request, async (operation, signal) => {
        entered()
        return declining(found ?? await work(operation, signal))
      }, { ...options, scope, requestHash: undefined, reconcile: async (operation, signal) => {
        entered()
        const known = await reconcile(operation, signal)
        if (known?.state !== 'done' || !isFailure(known.response)) return known
        found = known.response
        return Reconciled.notDone
      } }))
  }

  async #answer(name, principal, key, args, leased, run) {
    if (!isName(name)) throw new TypeError('the name of a tool is a string that is not empty')
    if (!isName(principal)) throw new TypeError('the principal of a call is a string that is not empty: who asks, as you have authenticated it')
    const request = args ?? {}
    if (!isObject(request)) throw new TypeError('the arguments of a call are an object')
    if (!isName(key)) return problem('BAD_ARGUMENT')
    let began = false
    try {
      return answered(await run(key, request, scopeOf(this.#idempotency.scope, toolScope(name, principal)), () => { began = true }))
    } catch (error) {
      if (error instanceof KeyReused) return problem('KEY_REUSED')
      if (error instanceof BadArgument && !(error instanceof ServiceMistake) && !began) return problem('BAD_ARGUMENT')
      if (!(error instanceof Unknown) || error.cause) this.#onError(error instanceof NotDone && error.cause ? error.cause : error)
      if (error instanceof Unknown) return problem('UNKNOWN', error.retryAfter)
      return problem(error instanceof Unstorable || (leased && began && !(error instanceof NotDone)) ? 'UNKNOWN' : 'ERROR')
    }
  }
}

/**
 * A key that is made from arguments, in whatever order and spelling they come. Only for tools of which nobody ever wants the same thing twice.
 * @param {object} args
 * @returns {string}
 * @throws TypeError where they are no JSON
 */
export function keyOfArguments(args) {
  return `sha256:${createHash('sha256').update(canonical(args)).digest('hex')}`
}

// JSON with members in the order of their UTF-16, without blanks, and each number as the bytes of a double in hexadecimal.
function canonical(given) {
  const value = typeof given?.toJSON === 'function' ? given.toJSON() : given
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (isObject(value) && !isOpaque(value)) {
    const names = Object.keys(value).filter((name) => value[name] !== undefined).sort()
    return `{${names.map((name) => `${canonical(name)}:${canonical(value[name])}`).join(',')}}`
  }
  if (Number.isFinite(value)) {
    const bytes = Buffer.alloc(8)
    bytes.writeDoubleBE(value + 0)
    return bytes.toString('hex')
  }
  if (value === null || typeof value === 'boolean' || isText(value)) return JSON.stringify(value)
  throw new TypeError('arguments are JSON')
}

function isName(text) {
  return isText(text) && text !== ''
}

function isObject(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value)
}

function isToolResult(value) {
  return isObject(value) && Array.isArray(value.content)
}

// The result of a tool in what work returned.
function resultOf(value) {
  const response = value instanceof Completion ? value.response : value
  return isResponse(response) ? /** @type {any} */ (response.payload) : response
}

function isFailure(value) {
  const result = resultOf(value)
  return isToolResult(result) && Boolean(result.isError)
}

// An error result is a failure: the writes of its work are undone.
function declining(value) {
  if (isFailure(value)) throw new Declined(null, resultOf(value))
  return value
}

function answered({ outcome, payload, replayed, retryAfter }) {
  if (outcome === 'IN_PROGRESS' || (outcome === 'FAILED' && (payload ?? null) === null)) return problem(outcome, retryAfter, replayed)
  const isError = outcome === 'FAILED'
  const meta = metaOf(outcome, retryAfter, replayed)
  if (isToolResult(payload)) return { ...payload, isError, _meta: { ...payload._meta, ...meta } }
  const value = payload ?? null
  return {
    content: [{ type: 'text', text: JSON.stringify(value, inOrder) }],
    structuredContent: isObject(value) ? value : { result: value },
    isError,
    _meta: meta,
  }
}

// jsonb has another order of members than the work had: the text of a replay would not be that of the first answer.
function inOrder(name, value) {
  return isObject(value) ? Object.fromEntries(Object.keys(value).sort().map((member) => [member, value[member]])) : value
}

/**
 * @param {keyof typeof MESSAGES} outcome
 * @param {number | null} [retryAfter] milliseconds
 * @param {boolean} [replayed]
 * @returns {ToolAnswer}
 */
function problem(outcome, retryAfter = null, replayed = false) {
  const message = MESSAGES[outcome]
  return {
    content: [{ type: 'text', text: message }],
    structuredContent: { outcome, message, ...(retryAfter !== null && { retryAfterSeconds: seconds(retryAfter) }) },
    isError: true,
    _meta: metaOf(outcome, retryAfter, replayed),
  }
}

function metaOf(outcome, retryAfter, replayed) {
  return {
    'pg-idempotency/outcome': outcome,
    ...(replayed && { 'pg-idempotency/replayed': true }),
    ...(retryAfter !== null && { 'pg-idempotency/retryAfterSeconds': seconds(retryAfter) }),
  }
}

function seconds(milliseconds) {
  return Math.max(1, Math.ceil(milliseconds / 1000))
}
