// What a caller gets: the answer of this run, or the stored one.
import { toBytes, toJson } from './response.js'

/**
 * @typedef {object} Result
 * @property {'COMPLETED' | 'FAILED' | 'IN_PROGRESS'} outcome
 * @property {number | null} code
 * @property {Record<string, string> | null} headers
 * @property {unknown} payload a JSON value; undefined: none was given
 * @property {Buffer | null} body
 * @property {boolean} replayed the answer comes from the store; the work did not run
 * @property {number | null} attempt
 * @property {number | null} retryAfter milliseconds. IN_PROGRESS: until the owner's lease ends; FAILED: until it may be tried again
 * @property {boolean} takenOver an earlier attempt ran out before this one
 * @property {string | null} record of a replay: names the stored record. All replays of it have the same; where the operation ran
 *   anew, as after idem_forget, it is another
 */

/**
 * The stored answer.
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Operation} operation
 * @returns {Result}
 */
export function answered(settings, operation) {
  settings.emit(operation.outcome === 'IN_PROGRESS' ? 'inProgress' : 'replayed', operation)
  const { outcome, code, headers, payload, body, replayed, attempt, retryAfter, takenOver, record } = operation
  return {
    outcome: /** @type {Result['outcome']} */ (outcome), code, headers, payload, body, replayed, attempt, retryAfter,
    takenOver, record,
  }
}

/**
 * The answer of work that has just been completed. Its payload is as JSON has it, so that it equals that of its replays.
 * @param {Pick<import('./sql.js').Operation, 'takenOver'> & {attempt: number | null}} operation
 * @param {import('./response.js').Response} response
 * @returns {Result}
 */
export function completed({ attempt, takenOver }, { code, headers, payload, body }) {
  const json = toJson(payload)
  return {
    outcome: 'COMPLETED',
    code: code ?? null,
    headers: headers ?? null,
    payload: json === null ? undefined : JSON.parse(json),
    body: toBytes(body),
    replayed: false,
    attempt,
    retryAfter: null,
    takenOver,
    record: null,
  }
}

/**
 * The answer of work that has just been declined.
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Operation} operation
 * @param {import('./errors.js').Declined} declined
 * @param {import('./pipeline.js').Answer} answer to the statement of `fail`
 * @returns {Result}
 */
export function failed(settings, operation, { response }, { rows: [[, retryAfter]] }) {
  settings.emit('declined', operation)
  return { ...completed(operation, response), outcome: 'FAILED', retryAfter: retryAfter === null ? null : Number(retryAfter) }
}
