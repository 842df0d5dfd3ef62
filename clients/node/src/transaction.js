// An operation whose whole work is in one transaction: key, effect and response commit together or not at
// all. n statements of work cost n + 2 round trips, as BEGIN travels with the begin and the end with COMMIT.
import { CommitRolledBack, Declined, KeyReused, sqlstate, translated, translatedBegin } from './errors.js'
import { toResponse } from './response.js'
import { answered, completed, failed } from './result.js'
import { isLost, retrying } from './retry.js'
import { BEGIN, COMMIT, ROLLBACK, ROLLBACK_TO, SAVEPOINT, toOperation } from './sql.js'

/**
 * @param {import('./index.js').Settings} settings
 * @param {import('./sql.js').Call} call
 * @param {(tx: any, operation: import('./sql.js').Operation) => unknown} work
 * @returns {Promise<import('./result.js').Result>}
 */
export function transaction(settings, call, work) {
  const { scope, key } = call
  return retrying(settings, { scope, key }, (errors) => inTransaction(settings, async (connection) => {
    // The server may not have noticed yet that our lost connection is gone: wait for it.
    const longer = errors.some(isLost) ? settings.retry.cap : 0
    const answers = await begin(settings, call, connection, [BEGIN, settings.sql.begin(call, { longer }), SAVEPOINT])
    const operation = toOperation(answers[1].rows[0])
    if (operation.outcome === 'ACQUIRED') return run(settings, call, connection, operation, work)
    await commit(connection, [])
    return answered(settings, operation)
  }))
}

async function run(settings, call, connection, operation, work) {
  const { sql } = settings
  settings.emit('acquired', operation)
  let response
  try {
    response = toResponse(await work(connection.tx, operation))
  } catch (error) {
    if (!(error instanceof Declined)) throw error
    connection.endWork()
    await commit(connection, [ROLLBACK_TO, sql.fail(operation, error, call.retention)])
    return failed(settings, operation, error)
  }
  connection.endWork()
  await commit(connection, [sql.complete(operation, response, call.retention)])
  return completed(operation, response)
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
    const named = translatedBegin(error)
    if (named instanceof KeyReused) settings.emit('mismatch', call)
    throw named
  }
}

/**
 * Sends statements and COMMIT in one trip. Returns only when the server has said COMMIT: after a failed statement
 * that somebody caught, it answers ROLLBACK, and a driver takes that for success.
 * @param {import('./pg.js').Connection} connection
 * @param {import('./pipeline.js').Statement[]} statements
 */
export async function commit(connection, statements) {
  let answers
  try {
    answers = await connection.send([...statements, COMMIT])
  } catch (error) {
    if (sqlstate(error) === '25P02') throw rolledBack(error)
    throw translated(error)
  }
  if (answers.at(-1)?.tag !== 'COMMIT') throw rolledBack(undefined)
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
 * @returns {Promise<T>}
 */
export async function inTransaction(settings, use) {
  const connection = await settings.source.acquire()
  let broken = false
  try {
    return await use(connection)
  } catch (error) {
    connection.endWork()
    broken = isAbandoned(error) || !(await rollback(connection))
    throw connection.named(error)
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
 * @returns {Promise<T>}
 */
export async function onConnection(settings, use) {
  const connection = await settings.source.acquire()
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
