// An operation whose work is outside of the database, such as a call of a payment gateway. No connection is
// held while it runs. What such work has done when it fails is not known, so by default the lease is left to run
// out: the next begin is told `takenOver`, and reconciles.
import {
  BadArgument, BadDuration, Declined, LeaseLost, NotDone, NotOwned, ServiceMistake, TooLarge, Unknown, Unstorable, nameAs, sqlstate, translated,
} from './errors.js'
import { Heartbeat } from './heartbeat.js'
import { checkMilliseconds, isResponse, toInterval, toResponse } from './response.js'
import { answered, completed, failed } from './result.js'
import { retrying } from './retry.js'
import { BEGIN, RELEASE, SAVEPOINT, toOperation } from './sql.js'
import { begin, commit, inTransaction, onConnection, sendWithin, tellAcquired, waiting } from './transaction.js'

/**
 * Returned by leased work: a response, and writes that commit together with it.
 * @template [Tx=unknown]
 */
export class Completion {
  /**
   * @param {unknown} response as leased work may return it
   * @param {(tx: Tx) => unknown} writes runs statements on `tx`; repeated when the transaction is
   */
  constructor(response, writes) {
    this.response = response
    this.writes = writes
  }

  /** @returns {never} nobody would run its writes */
  toJSON() {
    throw new ServiceMistake('a Completion is what the work of a lease returns, or reconcile')
  }
}

/** What `reconcile` may answer about the attempt that was taken over. */
export const Reconciled = Object.freeze({
  /**
   * It has taken effect: this response is stored and returned.
   * @param {unknown} response a response, a payload, or a Completion
   */
  done: (response) => ({ state: /** @type {const} */ ('done'), response }),
  /** It has not taken effect: the work runs. */
  notDone: Object.freeze({ state: /** @type {const} */ ('notDone') }),
  /**
   * Nobody knows: the caller gets the error Unknown, and the next begin reconciles again.
   * @param {{retryAfter?: number}} [options] milliseconds until somebody may know, up to 36500 days
   * @throws BadArgument
   */
  unknown: ({ retryAfter } = {}) => {
    if ((retryAfter ?? null) !== null) checkMilliseconds('retryAfter', retryAfter)
    toInterval('retryAfter', retryAfter)
    return { state: /** @type {const} */ ('unknown'), retryAfter }
  },
})

/**
 * @typedef {(operation: import('./sql.js').Operation, signal: AbortSignal) => unknown} LeasedWork
 * @typedef {{state: 'done' | 'notDone' | 'unknown', response?: unknown, retryAfter?: number | null}} Answered
 * @typedef {(operation: import('./sql.js').Operation, signal: AbortSignal) => Answered | Promise<Answered>} Reconcile
 */

/**
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Call & {lease: number | string, reconcile?: Reconcile}} call
 * @param {LeasedWork} work
 * @returns {Promise<import('./result.js').Result>}
 */
export async function lease(settings, call, work) {
  const { operation, begun } = await waiting(settings, call, (now) => acquireNow(settings, now))
  if (operation.outcome !== 'ACQUIRED') return known(settings, operation)
  tellAcquired(settings, operation)
  const heartbeat = new Heartbeat(settings, operation, call.lease, begun)
  let done
  try {
    done = await unlessLost(heartbeat.signal, () => perform(call, operation, heartbeat.signal, work))
  } catch (error) {
    if (heartbeat.signal.aborted) return replay(settings, operation, heartbeat.signal.reason, { isTold: true })
    return giveUp(settings, call, operation, error)
  } finally {
    heartbeat.stop()
  }
  return complete(settings, call, operation, done)
}

function acquireNow(settings, call) {
  const { scope, key } = call
  return retrying(settings, { scope, key }, () => onConnection(settings, async (connection) => {
    const begun = settings.clock.now()
    const [{ rows: [row] }] = await begin(settings, call, connection, [settings.sql.begin(call, { lease: call.lease })])
    return { operation: toOperation(row), begun }
  }))
}

// This attempt did nothing. After an Unknown of the work, as of another operation, nobody knows that.
class Unreconciled extends Unknown {}
nameAs('Unknown', Unreconciled.prototype)

async function perform(call, operation, signal, work) {
  // The answer to the begin may come after the lease, and that of reconcile, too.
  signal.throwIfAborted()
  const worked = async () => ({ outcome: await work(operation, signal), isOfWork: true })
  if (!operation.takenOver || !call.reconcile) return worked()
  const found = await reconciled(call.reconcile, operation, signal)
  switch (found?.state) {
    case 'done': return { outcome: found.response, isOfWork: false }
    case 'notDone':
      signal.throwIfAborted()
      return worked()
    default:
      throw new Unreconciled('nobody knows whether an earlier attempt took effect', { retryAfter: found?.retryAfter })
  }
}

async function reconciled(reconcile, operation, signal) {
  try {
    return await reconcile(operation, signal)
  } catch (error) {
    throw new Unreconciled('the earlier attempt could not be reconciled', { cause: error })
  }
}

/**
 * A statement on its own. A database that answers nothing for as long as a lease lasts is not waited for.
 * @param {import('./index.js').Settings} settings
 * @param {Pick<import('./sql.js').Operation, 'leaseLeft'>} operation
 * @param {import('./pipeline.js').Statement} statement
 * @returns {Promise<import('./pipeline.js').Answer[]>}
 */
export function alone(settings, operation, statement) {
  const limit = patience(operation)
  return onConnection(settings, (connection) => sendWithin(settings, connection, [statement], limit), limit)
}

function patience(operation) {
  return Math.max(operation.leaseLeft, 5000)
}

/**
 * A note of how far the attempt came. Its repeat after a lost answer does no harm.
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Operation} operation
 * @param {unknown} note
 */
export async function progress(settings, operation, note) {
  const { scope, key } = operation
  if (note === undefined) throw new ServiceMistake('a note is a JSON value')
  try {
    await retrying(settings, { scope, key }, () => alone(settings, operation, settings.sql.progress(operation, note)))
  } catch (error) {
    throw translated(error)
  }
}

// Work that does not heed the signal is not waited for: its lease is somebody else's.
function unlessLost(signal, run) {
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
    Promise.resolve().then(run).then(resolve, reject)
  })
}

async function giveUp(settings, call, operation, error) {
  if (error instanceof Declined) return decline(settings, call, operation, error)
  if (error instanceof NotDone || error instanceof Unreconciled) await release(settings, operation)
  throw error
}

// A lease that cannot be released runs out: the error of the work matters more.
async function release(settings, operation) {
  try {
    await alone(settings, operation, settings.sql.release(operation))
  } catch {
    settings.emit('leaseLost', operation)
  }
}

// Who declines has done the work, too, also where the refusal cannot be stored.
async function decline(settings, call, operation, declined) {
  const { response } = declined
  try {
    return await end(settings, operation, async () => {
      const answers = await alone(settings, operation, settings.sql.fail(operation, declined, call.retention))
      return failed(settings, operation, declined, answers[0])
    })
  } catch (error) {
    if (!isOfAnswer(error)) throw error
    return withoutAnswer(settings, call, operation, { error, writes: null, retention: retentionOf(response, error) })
  }
}

// `isOfWork`: the work was done. What reconcile has found and cannot be stored, it is asked for again.
async function complete(settings, call, operation, { outcome, isOfWork }) {
  const { response: value, writes } = outcome instanceof Completion ? outcome : { response: outcome, writes: null }
  let statement
  let hasWritten = false
  try {
    const response = toResponse(value)
    statement = settings.sql.complete(operation, response, call.retention)
    const once = async () => {
      if (!writes) await alone(settings, operation, statement)
      else await inTransaction(settings, commitWith, patience(operation))
      return completed(operation, response)
    }
    // The end comes first: a stale fence is refused before anything is written.
    const commitWith = async (connection) => {
      const send = (statements) => sendWithin(settings, connection, statements, patience(operation))
      await send([BEGIN, statement, SAVEPOINT])
      hasWritten = true
      await writes?.(connection.tx)
      connection.endWork()
      await commit(connection, [RELEASE], send)
    }
    return await end(settings, operation, once)
  } catch (error) {
    if (!isOfWork || hasWritten || (statement && !isOfAnswer(error))) return giveUp(settings, call, operation, error)
    return withoutAnswer(settings, call, operation,
      { error, writes, retention: isResponse(value) ? retentionOf(value, error) : undefined })
  }
}

function retentionOf(/** @type {import('./response.js').Response} */ { retention }, error) {
  return error instanceof BadDuration ? undefined : retention
}

// True where the server does not take a response: data that it cannot read, and more than it holds.
function isOfAnswer(error) {
  return error instanceof BadArgument || error instanceof TooLarge || /^(22|54)/.test(sqlstate(error) ?? '')
}

/** What is stored in place of an answer that cannot be. */
const WITHOUT_ANSWER = Object.freeze({ code: 500, payload: undefined })

// Ends what was done, with its writes, so that no attempt repeats it. Throws what was wrong with its answer, unless another end is stored.
async function withoutAnswer(settings, call, operation, { error, writes, retention }) {
  const response = { ...WITHOUT_ANSWER, retention }
  const result = await complete(settings, call, operation,
    { outcome: writes ? new Completion(response, writes) : response, isOfWork: false })
    .catch(() => { throw error })
  if (result.outcome === 'FAILED' || result.replayed) return result
  throw error
}

/**
 * The stored answer.
 * @throws Unstorable where there is none
 */
function known(settings, operation) {
  const result = answered(settings, operation)
  const { outcome, code, headers, payload, body } = result
  if (outcome === 'COMPLETED' && code === WITHOUT_ANSWER.code && headers === null && payload === undefined && body === null) throw new Unstorable()
  return result
}

// After a lost answer the end may have been stored: then its repeat is ID409. So it may be where the writes have ended its transaction.
async function end(settings, operation, once) {
  const { scope, key } = operation
  try {
    return await retrying(settings, { scope, key }, once)
  } catch (error) {
    const named = translated(error)
    if (!(named instanceof LeaseLost || named instanceof NotOwned)) throw named
    return replay(settings, operation, named, { isTold: false })
  }
}

// What is stored is the answer, whichever attempt came to its end: the next begin would get it. LeaseLost where there is no end yet,
// or the database does not say. `isTold`: the heartbeat has told of the loss.
async function replay(settings, operation, lost, { isTold }) {
  const stored = await lookUp(settings, operation, isTold).catch(() => null)
  if (!isTold && lost instanceof LeaseLost && stored?.attempt !== operation.attempt) settings.emit('leaseLost', operation)
  if (!stored) throw lost
  return known(settings, stored)
}

// The stored end; null: none. One that began at another time is another operation's: the key was used anew, maybe for another request.
// Where the heartbeat could not reach the database, it is asked once more, and no longer waited for.
async function lookUp(settings, operation, isTold) {
  const { scope, key } = operation
  const ask = () => alone(settings, operation, settings.sql.lookup(operation))
  const [{ rows: [row] }] = await (isTold ? ask() : retrying(settings, { scope, key }, ask))
  const found = toOperation(row)
  const ended = found.outcome === 'COMPLETED' || found.outcome === 'FAILED'
  return ended && found.created === operation.created ? found : null
}
