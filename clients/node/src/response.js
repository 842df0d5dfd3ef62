// What work answers with, and how it is stored.
import { BadArgument, BadDuration } from './errors.js'

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
 * The response in what work returned. An object with `payload` or `body`, and nothing but the fields of a response, is one;
 * anything else is the payload.
 * @param {unknown} value
 * @returns {Response}
 */
export function toResponse(value) {
  return isResponse(value) ? value : { payload: value }
}

/**
 * @param {unknown} value
 * @returns {value is Response}
 */
function isResponse(value) {
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
  if (code !== null && !Number.isInteger(code)) throw new BadArgument('the code of a response is an integer')
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
 * @returns {string | null} null: SQL NULL
 */
export function toJson(value) {
  if (value === undefined) return null
  if (value instanceof Json) return value.text
  let text
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw new BadArgument('the value is not JSON', { cause: error })
  }
  // Of some values it makes {}, whatever they hold: two requests would be one.
  if (text === undefined || isOpaque(value)) throw new BadArgument('the value is not JSON')
  return text
}

/** @param {unknown} value */
export function isOpaque(value) {
  return value instanceof Map || value instanceof Set || typeof /** @type {any} */ (value)?.then === 'function'
}

/**
 * @param {Uint8Array | string | null | undefined} body
 * @returns {Buffer | null}
 */
export function toBytes(body) {
  if (body === undefined || body === null) return null
  if (typeof body === 'string') return Buffer.from(body)
  if (body instanceof Uint8Array) return Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  throw new BadArgument('a body is a string or bytes')
}

/**
 * @param {string} name of the option
 * @param {number | string | null | undefined} duration milliseconds, or what PostgreSQL reads as an interval
 * @returns {string | null}
 * @throws BadArgument: it is neither. What a text means only the server knows
 */
export function toInterval(name, duration) {
  if (duration === undefined || duration === null) return null
  if (typeof duration === 'string') return duration
  if (!Number.isFinite(duration) || Math.abs(duration) > LONGEST) {
    throw new BadDuration(`${name} is a number of milliseconds, or an interval`)
  }
  return `${duration.toFixed(3)} milliseconds`
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

// An interval of PostgreSQL has no more milliseconds.
const LONGEST = 9e15

/**
 * The names of the durations that only the server can read.
 * @param {Record<string, unknown>} durations
 */
export function texts(durations) {
  return Object.keys(durations).filter((name) => typeof durations[name] === 'string')
}
