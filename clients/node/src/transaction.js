// An operation whose whole work is in one transaction: key, effect and response commit together or not at
// all. n statements of work cost n + 2 round trips, as BEGIN travels with the begin and the end with COMMIT.
import {
  CommitRolledBack, Declined, KeyReused, LeaseLost, NotDone, left, sqlstate, translated, translatedBegin, unreadDuration,
} from './errors.js'
import { toInterval, toResponse } from './response.js'
import { answered, completed, failed } from './result.js'
import { isLost, retrying } from './retry.js'
import { BEGIN, COMMIT, ROLLBACK, ROLLBACK_TO, SAVEPOINT, toOperation } from './sql.js'

/**
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Call} call
 * @param {(tx: any, operation: import('./sql.js').Operation) => unknown} work
 * @returns {Promise<import('./result.js').Result>}
 */
export async function transaction(settings, call, work) {
  const { operation, result } = await waiting(settings, call, (now) => transactionNow(settings, now, work))
  if (result instanceof NotDone) throw result
  return result ?? answered(settings, operation)
}

// `result` is undefined where the work did not run, and the NotDone that it has thrown.
function transactionNow(settings, call, work) {
  const { scope, key } = call
  return retrying(settings, { scope, key }, (errors) => inTransaction(settings, async (connection) => {
    // The server may not have noticed yet that our lost connection is gone: wait for it.
    const longer = errors.some(isLost) ? settings.retry.cap : 0
    const { sql } = settings
    const answers = await begin(settings, call, connection,
      [BEGIN, ...sql.limitLost(call.maxLostAttempts), sql.begin(call, { longer }), SAVEPOINT])
    const operation = toOperation(answers[answers.length - 2].rows[0])
    if (operation.outcome === 'ACQUIRED') return { operation, result: await run(settings, call, connection, operation, work) }
    await commit(connection, [])
    return { operation, result: undefined }
  }))
}

/**
 * Calls `attempt` until nobody else has the operation, or the call's wait is over. Waits here: a begin that waits on the server
 * holds a connection, which the owner may need for its end, and one client could take them all.
 * @template {{operation: import('./sql.js').Operation}} T
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Call} call
 * @param {(call: any) => Promise<T>} attempt
 * @returns {Promise<T>}
 */
export async function waiting(settings, call, attempt) {
  const { clock, retry } = settings
  const wait = await milliseconds(settings, call)
  const until = clock.now() + wait
  for (let pause = Math.max(retry.base, 10); ; pause = Math.min(2 * pause, 1000)) {
    const acquired = await attempt({ ...call, wait: 0 })
    const left = until - clock.now()
    if (acquired.operation.outcome !== 'IN_PROGRESS' || left <= 0) return acquired
    await clock.sleep(Math.min(pause, left))
  }
}

// Only the server can read an interval.
export async function milliseconds(settings, call, name = 'wait') {
  const { scope, key, wait } = call
  if (typeof wait === 'number') return wait
  const [{ rows: [[read]] }] = await retrying(settings, { scope, key }, () => onConnection(settings, (connection) =>
    begin(settings, call, connection, [settings.sql.milliseconds(wait)])))
  toInterval(name, Number(read))
  return Number(read)
}

/**
 * Calls the hooks of an operation that is to run.
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Operation} operation
 */
export function tellAcquired(settings, operation) {
  settings.emit('acquired', operation)
  if (operation.takenOver) settings.emit('takenOver', operation)
}

async function run(settings, call, connection, operation, work) {
  const { sql } = settings
  tellAcquired(settings, operation)
  let response
  try {
    response = toResponse(await work(connection.tx, operation))
  } catch (error) {
    if (error instanceof NotDone) return takeBack(settings, connection, operation, error)
    if (!(error instanceof Declined)) throw error
    connection.endWork()
    const answers = await commit(connection, [ROLLBACK_TO, sql.fail(operation, error, call.retention)])
    return failed(settings, operation, error, answers[1])
  }
  connection.endWork()
  await commit(connection, [sql.complete(operation, response, call.retention)])
  return completed(operation, response)
}

// Rolls back without a lost attempt: the server counts none after idem_release.
async function takeBack(settings, connection, operation, notDone) {
  connection.endWork()
  try {
    await connection.send([ROLLBACK_TO, settings.sql.release(operation), ROLLBACK])
  } catch {
    throw notDone
  }
  return notDone
}

/**
 * Sends statements of which one begins an operation.
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Call} call
 * @param {import('./pg.js').Connection} connection
 * @param {import('./pipeline.js').Statement[]} statements
 */
export async function begin(settings, call, connection, statements) {
  try {
    return await connection.send(statements)
  } catch (error) {
    const named = translatedBegin(unreadDuration(error, statements))
    if (named instanceof KeyReused) settings.emit('mismatch', call)
    throw named
  }
}

/**
 * Sends statements and COMMIT in one round trip. Returns only when the server has said COMMIT: after a failed statement
 * that somebody caught, it answers ROLLBACK, and a driver takes that for success. The savepoint is gone where the work has ended
 * the transaction: it may have rolled back what it did, and COMMIT would not say so.
 * @param {import('./pg.js').Connection} connection
 * @param {import('./pipeline.js').Statement[]} statements
 * @param {(statements: import('./pipeline.js').Statement[]) => Promise<import('./pipeline.js').Answer[]>} [send]
 */
export async function commit(connection, statements, send = (all) => connection.send(all)) {
  let answers
  try {
    answers = await send([...statements, COMMIT])
  } catch (error) {
    const state = sqlstate(error)
    if (state === '25P02') throw rolledBack(error)
    if (state === '25P01' || state === '3B001') throw left(error)
    throw translated(unreadDuration(error, statements))
  }
  if (answers.at(-1)?.tag !== 'COMMIT') throw rolledBack(undefined)
  return answers
}

function rolledBack(cause) {
  return new CommitRolledBack(
    'the transaction was rolled back: a statement of the work had failed, and the work went on', { cause })
}

/**
 * Takes a connection for `use` and gives it back. After an error the transaction is rolled back; a connection
 * of which that is not certain is ended.
 * @template T
 * @param {import('./index.js').Settings} settings
 * @param {(connection: import('./pg.js').Connection) => Promise<T>} use
 * @param {number} [limit] milliseconds to wait for the connection
 * @returns {Promise<T>}
 */
export async function inTransaction(settings, use, limit) {
  const connection = await acquire(settings, limit)
  let broken = false
  try {
    return await use(connection)
  } catch (error) {
    connection.endWork()
    broken = isAbandoned(error)
    if (broken) connection.cancel()
    else broken = !(await rollback(connection))
    // NotDone is the work's own word, whatever became of the connection: nothing is repeated.
    throw error instanceof NotDone ? error : connection.named(error)
  } finally {
    connection.close(broken)
  }
}

/**
 * Marks an error that was raised while statements of the work may still run: nobody waits for those.
 * @template {Error} E
 * @param {E} error
 * @returns {E}
 */
export function abandoning(error) {
  Object.defineProperty(error, ABANDONED, { value: true })
  return error
}

const ABANDONED = Symbol('abandoned')

function isAbandoned(error) {
  return isLost(error) || error?.[ABANDONED] === true
}

async function rollback(connection) {
  try {
    await connection.send([ROLLBACK])
    return true
  } catch {
    return false
  }
}

/**
 * Takes a connection for statements without a transaction.
 * @template T
 * @param {import('./index.js').Settings} settings
 * @param {(connection: import('./pg.js').Connection) => Promise<T>} use
 * @param {number} [limit] milliseconds to wait for the connection
 * @returns {Promise<T>}
 */
export async function onConnection(settings, use, limit) {
  const connection = await acquire(settings, limit)
  let broken = true
  try {
    const result = await use(connection)
    broken = false
    return result
  } catch (error) {
    // A statement on its own leaves nothing open.
    broken = isLost(error) || sqlstate(error) === undefined
    throw error
  } finally {
    connection.close(broken)
  }
}

function acquire(settings, limit) {
  const acquiring = settings.source.acquire()
  if (limit === undefined) return acquiring
  return within(settings, limit, acquiring, () => { acquiring.then((late) => late.close(false), () => {}) })
}

const unanswered = () => abandoning(new LeaseLost('the database did not answer in time'))

/**
 * What the promise gives, if it does so in time; the error otherwise, and `late` is called.
 * @template T
 * @param {Pick<import('./index.js').Settings, 'clock'>} settings
 * @param {number} limit milliseconds
 * @param {Promise<T>} promise
 * @param {() => void} late
 * @param {() => Error} [error] by default LeaseLost
 * @returns {Promise<T>}
 */
export function within({ clock }, limit, promise, late, error = unanswered) {
  return new Promise((resolve, reject) => {
    const stop = clock.every(limit, () => {
      stop()
      late()
      reject(error())
    })
    promise.finally(stop).then(resolve, reject)
  })
}

/**
 * Sends statements. A connection that has no answer in time is ended.
 * @param {import('./index.js').Settings} settings
 * @param {import('./pg.js').Connection} connection
 * @param {import('./pipeline.js').Statement[]} statements
 * @param {number} limit milliseconds
 */
export function sendWithin(settings, connection, statements, limit) {
  const sending = connection.send(statements).catch((error) => { throw unreadDuration(error, statements) })
  return within(settings, limit, sending, () => connection.close(true))
}
