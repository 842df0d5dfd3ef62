// The SQL text of the package, and how the rows of its answers are read. All parameters but bytes, and all
// results, travel as text, so that a driver's types cannot change them.
import { createHash } from 'node:crypto'
import { BadArgument } from './errors.js'
import { asParameters, checkWhole, texts, toHash, toInterval, toJson } from './response.js'

export const BEGIN = { text: 'BEGIN' }
export const COMMIT = { text: 'COMMIT' }
export const ROLLBACK = { text: 'ROLLBACK' }
export const SAVEPOINT = { text: 'SAVEPOINT pg_idempotency' }
export const RELEASE = { text: 'RELEASE SAVEPOINT pg_idempotency' }
export const ROLLBACK_TO = { text: 'ROLLBACK TO SAVEPOINT pg_idempotency' }

const COLUMNS = `outcome::text, idempotency_key, scope, attempt::text, taken_over::text, replayed::text, fence::text,
  (extract(epoch FROM lease_expires_at - clock_timestamp()) * 1000)::text,
  (extract(epoch FROM retry_after) * 1000)::text, response_code::text, response_headers::text,
  response_payload::text, encode(response_body, 'hex'), (extract(epoch FROM created_at) * 1000000)::bigint::text`

/**
 * @typedef {object} Operation
 * @property {'ACQUIRED' | 'IN_PROGRESS' | 'COMPLETED' | 'FAILED' | 'MISMATCH'} outcome
 * @property {string} key
 * @property {string} scope
 * @property {number | null} attempt from 1
 * @property {boolean} takenOver an earlier lease ran out without an end: what it did outside is unknown
 * @property {boolean} replayed the answer comes from the store
 * @property {bigint | null} fence of a leased attempt: give it to the outside system
 * @property {number | null} leaseLeft milliseconds
 * @property {number | null} retryAfter milliseconds
 * @property {number | null} code
 * @property {Record<string, string> | null} headers
 * @property {unknown} payload undefined: none was stored
 * @property {Buffer | null} body
 * @property {string | null} record of a replay: names the stored record. Another one where the operation ran anew
 * @property {string | null} created when its first attempt began, in microseconds since 1970
 */

/**
 * @param {(string | null)[]} row
 * @returns {Operation}
 */
export function toOperation([outcome, key, scope, attempt, takenOver, replayed, fence, leaseLeft, retryAfter, code,
  headers, payload, body, created]) {
  return {
    outcome: /** @type {Operation['outcome']} */ (outcome),
    key: key ?? '',
    scope: scope ?? '',
    attempt: toNumber(attempt),
    takenOver: takenOver === 'true',
    replayed: replayed === 'true',
    fence: fence === null ? null : BigInt(fence),
    leaseLeft: toNumber(leaseLeft),
    retryAfter: toNumber(retryAfter),
    code: toNumber(code),
    headers: headers === null ? null : JSON.parse(headers),
    payload: payload === null ? undefined : JSON.parse(payload),
    body: body === null ? null : Buffer.from(body, 'hex'),
    record: replayed === 'true' ? toRecord(scope, key, created) : null,
    created,
  }
}

// The packages for other languages compute it in the same way, so that their consumers can share a queue.
function toRecord(scope, key, created) {
  return createHash('sha256').update(`${scope}\0${key}\0${created}`).digest('hex')
}

function toNumber(text) {
  return text === null ? null : Number(text)
}

// A text may be a duration that the function would refuse each time, as only the server reads it. ID400 may be about the key, which is the
// client's; division by zero is not.
function toDuration(parameter, isText, atLeast) {
  const given = `${parameter}::interval`
  if (!isText) return given
  return `CASE WHEN ${given} ${atLeast} '0' AND ${given} <= '36500 days' THEN ${given} ELSE ${given} / 0 END`
}

/** The statements for a schema; without one, the search path finds the functions. */
export class Sql {
  #prefix

  /** @param {string | undefined} schema */
  constructor(schema) {
    this.#prefix = schema === undefined ? '' : `"${schema.replaceAll('"', '""')}".`
  }

  /**
   * A retention that is a text is read here, too, so that one which the server does not take is refused before the work runs.
   * @param {Call} call
   * @param {{lease?: number | string, longer?: number}} [options] longer: milliseconds to wait for the present owner,
   *   beside what the call itself would wait
   */
  begin(call, { lease, longer = 0 } = {}) {
    const kept = typeof call.retention === 'string' ? [call.retention] : []
    return {
      repeated: true,
      durations: texts({ lease, retention: call.retention }),
      text: `SELECT ${COLUMNS}${kept.length > 0 ? `, ${toDuration('$9', true, '>')}::text` : ''} FROM ${this.#prefix}idem_begin($1, $2::text::jsonb, scope => $3, request_hash => $4::bytea,
  lease => ${toDuration('$5', typeof lease === 'string', '>')}, wait => $6::interval + $7::interval, max_attempts => $8::int)`,
      values: [call.key, toJson(call.request ?? undefined, BadArgument), call.scope, call.requestHash, toInterval('lease', lease),
        toInterval('wait', call.wait), toInterval('retry.cap', longer), toText(call.maxAttempts), ...kept],
    }
  }

  /**
   * For the rest of the transaction. SET takes no parameters, and no snapshot.
   * @param {number | undefined} limit
   * @returns {import('./pipeline.js').Statement[]}
   */
  limitLost(limit) {
    checkWhole('maxLostAttempts', limit)
    if ((limit ?? null) === null) return []
    return [{ text: `SET LOCAL idempotency.max_lost_attempts = ${limit}` }]
  }

  /** @param {string} wait */
  milliseconds(wait) {
    return { durations: ['wait'], text: 'SELECT (extract(epoch FROM $1::interval) * 1000)::text', values: [wait] }
  }

  /** @param {{key: string, scope: string}} call */
  lookup({ key, scope }) {
    return { text: `SELECT ${COLUMNS} FROM ${this.#prefix}idem_lookup($1, $2)`, values: [key, scope] }
  }

  /**
   * NULL also for a time without end, and for one that no date of HTTP can say.
   * @param {{key: string, scope: string}} call
   */
  expiry({ key, scope }) {
    const text = "SELECT CASE WHEN expires_at < '10000-01-01Z' THEN (extract(epoch FROM expires_at) * 1000)::text END " +
      `FROM ${this.#prefix}idem_lookup($1, $2)`
    return { text, values: [key, scope] }
  }

  /**
   * @param {{key: string, scope: string, fence: bigint | null}} operation
   * @param {import('./response.js').Response} response
   * @param {number | string | undefined} retention
   */
  complete(operation, response, retention) {
    const { payload, code, headers, body, retention: kept, durations } = asParameters(response, retention)
    return {
      repeated: true,
      durations,
      text: `SELECT ${this.#prefix}idem_complete($1, $2::text::jsonb, scope => $3, code => $4::int, headers => $5::text::jsonb,
  body => $6::bytea, fence => $7::bigint, retention => ${toDuration('$8', durations.length > 0, '>')})::text`,
      values: [operation.key, payload, operation.scope, code, headers, body, toText(operation.fence), kept],
    }
  }

  /**
   * Only the server can read a retryAfter that is a text: the answer has its milliseconds.
   * @param {{key: string, scope: string, fence: bigint | null}} operation
   * @param {import('./errors.js').Declined} declined
   * @param {number | string | undefined} retention
   */
  fail(operation, { response, retryAfter }, retention) {
    const { payload, code, headers, body, retention: kept, durations } = asParameters(response, retention)
    const isText = typeof retryAfter === 'string'
    const after = isText ? "greatest($9::interval, '0')" : '$9::interval'
    return {
      durations: [...durations, ...texts({ retryAfter })],
      text: `SELECT ${this.#prefix}idem_fail($1, $2::text::jsonb, scope => $3, code => $4::int, headers => $5::text::jsonb,
  body => $6::bytea, fence => $7::bigint, retryable => $8::text::boolean, retry_after => ${toDuration(after, isText, '>=')},
  retention => ${toDuration('$10', durations.length > 0, '>')})::text, (extract(epoch FROM ${after}) * 1000)::text`,
      values: [operation.key, payload, operation.scope, code, headers, body, toText(operation.fence),
        String(retryAfter !== null), toInterval('retryAfter', retryAfter), kept],
    }
  }

  /**
   * @param {{key: string, scope: string, fence: bigint | null}} operation
   * @param {unknown} note
   */
  progress({ key, scope, fence }, note) {
    return {
      text: `SELECT ${this.#prefix}idem_progress($1, $2::text::jsonb, scope => $3, fence => $4::bigint)::text`,
      values: [key, toJson(note), scope, toText(fence)],
    }
  }

  /** @param {{key: string, scope: string, fence: bigint | null}} operation */
  release({ key, scope, fence }) {
    return {
      text: `SELECT ${this.#prefix}idem_release($1, scope => $2, fence => $3::bigint)::text`,
      values: [key, scope, toText(fence)],
    }
  }

  /**
   * @param {{key: string, scope: string, fence: bigint | null}} operation
   * @param {number | string} lease
   */
  extend({ key, scope, fence }, lease) {
    return {
      text: `SELECT (extract(epoch FROM ${this.#prefix}idem_extend($1, $2::interval, scope => $3, fence => $4::bigint)
  - clock_timestamp()) * 1000)::text`,
      values: [key, toInterval('lease', lease), scope, toText(fence)],
    }
  }

  /**
   * @param {{keys: string[], requests?: unknown[], scope: string, requestHashes?: (Uint8Array | null)[],
   *   maxAttempts?: number}} call
   */
  beginMany({ keys, requests, scope, requestHashes, maxAttempts }) {
    checkWhole('maxAttempts', maxAttempts)
    return {
      text: `SELECT ${COLUMNS} FROM ${this.#prefix}idem_begin_batch($1::text[], $2::text[]::jsonb[], scope => $3,
  request_hashes => $4::text[]::bytea[], max_attempts => $5::int)`,
      values: [toKeys(keys), toArray(requests?.map((value) => toJson(value ?? undefined, BadArgument))), scope,
        toArray(requestHashes?.map((hash) => hash && `\\x${toHash('requestHashes', hash)?.toString('hex')}`)), toText(maxAttempts)],
    }
  }

  /** @param {{keys: string[], payloads?: unknown[], scope: string}} call */
  completeMany({ keys, payloads, scope }) {
    return {
      text: `SELECT ${this.#prefix}idem_complete_batch($1::text[], $2::text[]::jsonb[], scope => $3)::text`,
      values: [toKeys(keys), toArray(payloads?.map((payload) => toJson(payload))), scope],
    }
  }
}

/**
 * @typedef {object} Call what was asked for
 * @property {string} key
 * @property {unknown} request
 * @property {string} scope
 * @property {Buffer | null} requestHash
 * @property {number | string} wait
 * @property {number | undefined} maxAttempts
 * @property {number | undefined} maxLostAttempts
 * @property {number | string | undefined} retention
 */

// Half a surrogate pair would be stored as another character: two keys could become one.
const HALF = /\p{Surrogate}/u

/**
 * @param {unknown} value
 * @returns {value is string}
 */
export function isText(value) {
  return typeof value === 'string' && !HALF.test(value)
}

function toText(value) {
  return value === undefined || value === null ? null : String(value)
}

function toKeys(keys) {
  if (!Array.isArray(keys) || !keys.every(isText)) throw new BadArgument('keys are an array of strings')
  return toArray(keys)
}

// An array in PostgreSQL's text form. What is no string is NULL.
function toArray(values) {
  if (values === undefined) return null
  const elements = values.map((value) => typeof value !== 'string'
    ? 'NULL' : `"${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`)
  return `{${elements.join(',')}}`
}
