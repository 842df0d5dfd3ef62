// What work answers with, and how it is stored.
import { BadArgument, BadDuration, ServiceMistake } from './errors.js'

/**
 * @typedef {object} Response
 * @property {number | null} [code] status, such as 201
 * @property {Record<string, string>} [headers]
 * @property {unknown} [payload] JSON value; undefined: SQL NULL
 * @property {Uint8Array | string} [body] replayed byte for byte; a string is stored as UTF-8
 * @property {number | string} [retention] milliseconds or a PostgreSQL interval
 */

/** JSON text that reaches the database as it is, numbers in full precision. */
export class Json {
  /** @param {string} text */
  constructor(text) {
    this.text = text
  }
}

const FIELDS = new Set(['code', 'headers', 'payload', 'body', 'retention'])

/**
 * The response in what work returned, with its payload as JSON.
 * @param {unknown} value
 * @returns {Response}
 * @throws BadArgument
 */
export function toResponse(value) {
  const response = isResponse(value) ? value : { payload: value }
  const text = toJson(response.payload)
  return text === null ? response : { ...response, payload: new Json(text) }
}

/**
 * An object with `payload` or `body`, and nothing but the fields of a response, is one; anything else is the payload.
 * @param {unknown} value
 * @returns {value is Response}
 */
export function isResponse(value) {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return false
  return (Object.hasOwn(value, 'payload') || Object.hasOwn(value, 'body')) &&
    Object.keys(value).every((name) => FIELDS.has(name))
}

/**
 * As the parameters of idem_complete and idem_fail: payload, code, headers, body, retention.
 * @param {Response} response
 * @param {number | string | undefined} retention where the response has none of its own
 */
export function asParameters(response, retention) {
  const code = response.code ?? null
  if (code !== null && !Number.isInteger(code)) throw new ServiceMistake('the code of a response is an integer')
  return {
    payload: toJson(response.payload),
    code: code === null ? null : String(code),
    headers: toJson(response.headers),
    body: toBytes(response.body),
    retention: toInterval('retention', response.retention ?? retention),
    durations: texts({ retention: response.retention ?? retention }),
  }
}

/**
 * @param {unknown} value
 * @param {typeof BadArgument} [Refusal] of a value that is none; by default the service has made it
 * @returns {string | null} null: SQL NULL
 */
export function toJson(value, Refusal = ServiceMistake) {
  if (value === undefined) return null
  if (value instanceof Json) return value.text
  let cause
  try {
    const text = JSON.stringify(value)
    if (text !== undefined && !isLossy(value)) return text
  } catch (error) {
    if (error instanceof ServiceMistake) throw error
    cause = error
  }
  throw new Refusal('the value is not JSON', { cause })
}

/**
 * True where JSON.stringify makes null or {} of something in a value, whatever that holds: two requests would be the same one.
 * @param {any} value
 * @returns {boolean}
 */
function isLossy(value) {
  if (typeof value === 'number') return !Number.isFinite(value)
  if (typeof value !== 'object' || value === null) return false
  if (typeof value.toJSON === 'function') return value instanceof Date ? Number.isNaN(value.getTime()) : isLossy(value.toJSON())
  const members = Object.values(value)
  return isOpaque(value, members) || members.some(isLossy)
}

/**
 * True for an object of which JSON.stringify sees nothing, such as a Map, a Promise, or one with private members only.
 * @param {object} value
 * @param {unknown[]} [members]
 */
export function isOpaque(value, members = Object.values(value)) {
  return typeof (/** @type {{then?: unknown}} */ (value)).then === 'function' || value instanceof Map || value instanceof Set ||
    (members.length === 0 && !isEmpty(value))
}

// Without members: an array, or an object of no class. A prototype without one of its own is Object.prototype, maybe of another realm.
function isEmpty(value) {
  if (Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView))) return true
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

/**
 * @param {Uint8Array | string | null | undefined} body
 * @returns {Buffer | null}
 */
export function toBytes(body) {
  if (body === undefined || body === null) return null
  if (typeof body === 'string') return Buffer.from(body)
  if (body instanceof Uint8Array) return Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  throw new ServiceMistake('a body is a string or bytes')
}

/**
 * @param {string} name of the option
 * @param {number | string | null | undefined} duration milliseconds, or what PostgreSQL reads as an interval
 * @returns {string | null}
 * @throws BadDuration: it is neither, or the server would refuse it. What a text means only the server knows
 */
export function toInterval(name, duration) {
  if (duration === undefined || duration === null) return null
  const isText = typeof duration === 'string'
  // PostgreSQL reads a bare number as seconds.
  const milliseconds = isText ? Number(duration) * 1000 : duration
  if (isText && Number.isNaN(milliseconds)) return duration
  // The server takes microseconds.
  const shortest = ABOVE_ZERO.has(name) ? 0.001 : name === 'retryAfter' ? -Infinity : 0
  if (!Number.isFinite(milliseconds) || milliseconds < shortest || milliseconds > LONGEST) {
    throw new BadDuration(`${name} is a number of milliseconds${shortest > 0 ? ' above 0' : ' from 0'}, up to 36500 days, or an interval`)
  }
  return isText ? duration : `${milliseconds.toFixed(3)} milliseconds`
}

/**
 * @param {string} name of the option
 * @param {unknown} duration a number of milliseconds, without end as well
 * @throws BadArgument
 */
export function checkMilliseconds(name, duration) {
  if (typeof duration !== 'number' || Number.isNaN(duration)) throw new BadDuration(`${name} is a number of milliseconds`)
}

/**
 * @param {string} name of the option
 * @param {unknown} count from 1, without end as well. With NaN or a text no number of repeats would be the last.
 * @throws BadArgument
 */
export function checkCount(name, count) {
  if (typeof count !== 'number' || !(count >= 1)) throw new BadArgument(`${name} is a number from 1`)
}

/**
 * @param {string} name of the option
 * @param {Uint8Array | null | undefined} hash
 * @returns {Buffer | null}
 * @throws ServiceMistake
 */
export function toHash(name, hash) {
  if (hash === undefined || hash === null) return null
  if (hash.length !== 32) throw new ServiceMistake(`${name} has 32 bytes`)
  return Buffer.from(hash)
}

const ABOVE_ZERO = new Set(['retention', 'lease'])

/** The server takes no longer duration: milliseconds of 36,500 days. */
export const LONGEST = 36_500 * 86_400_000

/**
 * @param {string} name of the option
 * @param {unknown} count undefined or null: not given
 * @throws ServiceMistake
 */
export function checkWhole(name, count) {
  if ((count ?? null) === null) return
  if (!Number.isInteger(count) || Number(count) < 0 || Number(count) > 2_147_483_647) throw new ServiceMistake(`${name} is a whole number from 0`)
}

/**
 * The names of the durations that only the server can read.
 * @param {Record<string, unknown>} durations
 */
export function texts(durations) {
  return Object.keys(durations).filter((name) => typeof durations[name] === 'string')
}
