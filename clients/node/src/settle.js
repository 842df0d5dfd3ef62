// What to tell a broker about a message.

/** @typedef {{action: 'ack'} | {action: 'again', after: number} | {action: 'deadLetter', reason: string}} Settlement */

/**
 * What to tell the broker about the message of an operation.
 *
 * A failure for good goes to the dead letters. In progress elsewhere, and a failure that may be tried again: again after
 * so many milliseconds.
 * @param {import('./result.js').Result} result
 * @param {{pause?: number}} [options] milliseconds where the result does not say how long; 1000
 * @returns {Settlement}
 */
export function settle(result, { pause = 1000 } = {}) {
  if (result.outcome === 'COMPLETED') return { action: 'ack' }
  if (result.outcome === 'IN_PROGRESS' || (result.retryAfter ?? null) !== null) {
    return { action: 'again', after: againAfter(result.retryAfter, pause) }
  }
  return { action: 'deadLetter', reason: 'failed' }
}

/**
 * @param {number | null} retryAfter milliseconds
 * @param {number} [pause] where it does not say how long
 */
export function againAfter(retryAfter, pause = 1000) {
  return Math.max(1, Math.ceil(retryAfter ?? pause))
}
