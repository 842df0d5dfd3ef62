// Answers to errors, as problem+json (RFC 9457). They say nothing of the scope, the key, SQL, or the error of a
// handler: a client gets what it can act upon, the service's own log gets the error.
import { STATUS_CODES } from 'node:http'
import {
  BadArgument, Forbidden, InProgress, KeyReused, LeaseLost, NotDone, ServiceMistake, TooLarge, Unknown, Unstorable, sqlstate,
} from '../errors.js'
import { isTransient } from '../retry.js'

/**
 * @typedef {{status: number, headers: Record<string, string | string[]>, body: Buffer, live?: boolean, error?: Error, statusMessage?: string}} Answer
 *   statusMessage: the handler's own reason phrase, which is not stored
 */

/** @typedef {{status: number, title?: string, detail?: string, type?: string, headers?: Record<string, string>, body?: string | Uint8Array}} Described */

/** An error that is an answer to the client. */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {string} title
   * @param {{detail?: string, type?: string, headers?: Record<string, string>, cause?: unknown}} [options]
   */
  constructor(status, title, { detail, type, headers = {}, cause } = {}) {
    super(title, { cause })
    this.name = 'Problem'
    this.status = status
    this.title = title
    this.detail = detail
    this.type = type
    this.headers = headers
  }
}

/**
 * Seconds for Retry-After, at least 1.
 * @param {number | null} ms null: not known
 */
export function retryAfter(ms) {
  return { 'Retry-After': String(Math.max(1, Math.ceil((ms ?? 0) / 1000))) }
}

/** @param {number | null} ms */
export function inProgress(ms) {
  return new Problem(409, 'A request is outstanding for this Idempotency-Key',
    { detail: 'Send it again, with the same key, after the time in Retry-After.', headers: retryAfter(ms) })
}

/** @type {[Function, (error: any) => Problem][]} */
const BY_CLASS = [
  [ServiceMistake, () => new Problem(500, 'Internal Server Error')],
  [BadArgument, () => new Problem(400, 'The request is not acceptable', { detail: 'The Idempotency-Key or the request is not acceptable.' })],
  [Forbidden, () => new Problem(403, 'This Idempotency-Key may not be used here', { detail: 'The service has no right to it.' })],
  [KeyReused, () => new Problem(422, 'Idempotency-Key is already used',
    { detail: 'It was used with another request. Use a new key for a new request.' })],
  [TooLarge, () => new Problem(413, 'The answer is too large to be stored', { detail: 'Nothing was stored.' })],
  [Unstorable, () => new Problem(500, 'The answer could not be stored', { detail: 'The request was done, and is not repeated.' })],
  [InProgress, (error) => inProgress(error.retryAfter)],
  [LeaseLost, () => inProgress(null)],
  [Unknown, (error) => busy('It is not known yet whether an earlier attempt took effect', error.retryAfter)],
]

const UNAVAILABLE = new Set(['25006', '53300', '55P03', '57014'])

/**
 * The problem for an error of this package, or for one that a repeat may heal.
 * @param {unknown} error
 * @returns {Problem | undefined} undefined: another error
 */
export function knownProblem(error) {
  if (error instanceof Problem) return error
  const known = BY_CLASS.find(([Class]) => error instanceof Class)
  if (known) return known[1](error)
  return isTransient(error) || UNAVAILABLE.has(sqlstate(error) ?? '') ? busy('The service is busy', null) : undefined
}

/**
 * The problem for any error.
 * @param {unknown} error
 * @returns {Problem}
 */
export function problemFor(error) {
  try {
    return problemOf(error)
  } catch {
    // It cannot be read, or is its own cause.
    return unexpected()
  }
}

function problemOf(error) {
  if (error instanceof NotDone) return error.cause === undefined ? busy('The request was not processed', null) : problemOf(error.cause)
  const known = knownProblem(error)
  if (known) return known
  const { statusCode, status = statusCode } = /** @type {{statusCode?: any, status?: any}} */ (error ?? {})
  if (Number.isInteger(status) && status >= 400 && status < 500) return new Problem(status, STATUS_CODES[status] ?? 'Error')
  return unexpected()
}

function unexpected() {
  return new Problem(500, 'Internal Server Error')
}

/**
 * Names as a Declined, mapError or SQL has given them, in any case of letters: else one header could come twice.
 * @template V
 * @param {Record<string, V>} headers
 * @returns {Record<string, V>}
 */
export function inLowerCase(headers) {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

function busy(title, ms) {
  return new Problem(503, title,
    { detail: 'Send it again, with the same key, after the time in Retry-After.', headers: retryAfter(ms) })
}

/**
 * @param {Described} problem
 * @param {string | undefined} describedBy address of a page for the clients: the type of problems without one of their own
 * @returns {Answer}
 */
export function rendered({ status, title, detail, type, headers = {}, body }, describedBy) {
  return {
    status,
    headers: {
      ...(body === undefined && { 'content-type': 'application/problem+json' }),
      ...(describedBy && { link: `<${describedBy}>; rel="describedby"` }),
      ...inLowerCase(headers),
    },
    body: Buffer.from(body ?? JSON.stringify({ type: type ?? describedBy ?? 'about:blank', title, status, detail })),
  }
}
