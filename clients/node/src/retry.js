// Repeats: which errors go away, and how long to wait. The whole transaction is repeated, never a part of
// it, and its begin shows whether an attempt with a lost answer has committed.
import { ConnectionLost, NotDone, sqlstate } from './errors.js'

const TRANSIENT = new Set(['40001', '40P01'])
// With these, too, the server ends a session, whose transaction was idle or open for too long.
const TOO_LONG = new Set(['25P03', '25P04'])
const DATABASE_DROPPED = '57P04'

/**
 * True where the connection has ended, so that nobody knows what became of the last statement.
 * @param {unknown} error
 */
export function isLost(error) {
  const state = sqlstate(error)
  return error instanceof ConnectionLost || state?.startsWith('08') === true || state?.startsWith('57P') === true ||
    TOO_LONG.has(state ?? '')
}

/**
 * True where the same transaction may succeed when it is repeated.
 * @param {unknown} error
 */
export function isTransient(error) {
  const state = sqlstate(error)
  return isLost(error) || (state !== undefined && TRANSIENT.has(state))
}

/**
 * Calls `attempt` until it succeeds, fails for good, or has failed `attempts` times; then throws the last error. NotDone is for good,
 * whatever its cause is.
 * `attempt` gets the errors so far.
 * @template T
 * @param {import('./index.js').Settings} settings
 * @param {{scope: string, key?: string}} about for the hook
 * @param {(errors: unknown[]) => Promise<T>} attempt
 * @returns {Promise<T>}
 */
export async function retrying(settings, about, attempt) {
  const { attempts, base, cap } = settings.retry
  const errors = []
  for (;;) {
    try {
      return await attempt(errors)
    } catch (error) {
      errors.push(error)
      const isFinal = error instanceof NotDone || sqlstate(error) === DATABASE_DROPPED || !isTransient(error)
      if (isFinal || errors.length >= attempts) throw error
      settings.emit('retried', { ...about, repeat: errors.length, code: sqlstate(error) })
      await settings.clock.sleep(Math.random() * Math.min(cap, base * 2 ** (errors.length - 1)))
    }
  }
}
