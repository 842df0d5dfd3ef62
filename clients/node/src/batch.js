// Many operations in one transaction, such as the messages of one delivery.
import { BadArgument, ended, translated, translatedBegin } from './errors.js'
import { isLost, retrying } from './retry.js'
import { BEGIN, RELEASE, SAVEPOINT, isText, toOperation } from './sql.js'
import { commit, inTransaction, tellAcquired } from './transaction.js'

// Their connection is somebody else's.
const over = new WeakSet()
// They have acquired something, which tells a repeat whether the one before has committed.
const known = new WeakSet()

/**
 * A transaction in which operations are begun and completed.
 * @template [Tx=unknown]
 */
export class Batch {
  #settings
  #connection
  #scope

  /**
   * @param {import('./index.js').Settings} settings
   * @param {import('./pg.js').Connection<Tx>} connection
   * @param {string} scope
   */
  constructor(settings, connection, scope) {
    this.#settings = settings
    this.#connection = connection
    this.#scope = scope
    /**
     * The connection, in the open transaction.
     * @type {Tx}
     */
    this.tx = connection.tx
  }

  /**
   * Begins an operation for each key, without waiting.
   * @param {string[]} keys
   * @param {unknown[]} [requests] JSON values in the order of the keys; undefined or null: no check
   * @param {{scope?: string, requestHashes?: (Uint8Array | null)[], maxAttempts?: number}} [options]
   * @returns {Promise<import('./sql.js').Operation[]>} in the order of the keys. Run those that are ACQUIRED; a key that was used with
   *   another request is MISMATCH and fails no other
   * @throws BadArgument, Forbidden
   */
  async beginMany(keys, requests, { scope = this.#scope, requestHashes, maxAttempts } = {}) {
    const [{ rows }] = await this.#send(scope,
      this.#settings.sql.beginMany({ keys, requests, scope, requestHashes, maxAttempts }), translatedBegin)
    const operations = rows.map(toOperation)
    for (const operation of operations) {
      if (operation.outcome === 'ACQUIRED') {
        known.add(this)
        tellAcquired(this.#settings, operation)
      } else {
        this.#settings.emit(EVENTS[operation.outcome], operation)
      }
    }
    return operations
  }

  /**
   * Completes operations that this transaction began.
   * @param {string[]} keys
   * @param {unknown[]} [payloads] JSON values in the order of the keys
   * @param {{scope?: string}} [options]
   * @returns {Promise<number>} how many
   * @throws NotOwned, TooLarge, BadArgument
   */
  async completeMany(keys, payloads, { scope = this.#scope } = {}) {
    const [{ rows: [[count]] }] = await this.#send(scope, this.#settings.sql.completeMany({ keys, payloads, scope }))
    return Number(count)
  }

  async #send(scope, statement, named = translated) {
    if (over.has(this)) throw ended()
    if (!isText(scope)) throw new BadArgument('a scope is a string')
    try {
      return await this.#connection.send([statement])
    } catch (error) {
      throw named(error)
    }
  }
}

const EVENTS = { IN_PROGRESS: 'inProgress', COMPLETED: 'replayed', FAILED: 'replayed', MISMATCH: 'mismatch' }

/**
 * @template T
 * @template Tx
 * @param {import('./index.js').Settings} settings
 * @param {string} scope
 * @param {(batch: Batch<Tx>) => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function batch(settings, scope, work) {
  const { result, unknown } = await retrying(settings, { scope }, () => once(settings, scope, work))
  if (unknown) throw unknown
  return result
}

// `unknown` is the error of a COMMIT that may have taken effect, although nothing would tell a repeat.
/** @returns {Promise<{result?: any, unknown?: unknown}>} */
async function once(settings, scope, work) {
  let isUnknown = false
  try {
    return await inTransaction(settings, async (connection) => {
      await connection.send([BEGIN, SAVEPOINT])
      const begun = new Batch(settings, /** @type {import('./pg.js').Connection<any>} */ (connection), scope)
      let result
      try {
        result = await work(begun)
      } finally {
        over.add(begun)
      }
      connection.endWork()
      isUnknown = !known.has(begun)
      await commit(connection, [RELEASE])
      return { result }
    })
  } catch (error) {
    if (!isUnknown || !isLost(error)) throw error
    return { unknown: error }
  }
}
