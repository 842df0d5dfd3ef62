// The package's entry: settings and the operations on them.
import { batch } from './batch.js'
import { systemClock } from './clock.js'
import { BadArgument, ConnectionLost, LeaseLost, ServiceMistake } from './errors.js'
import { idempotent } from './function.js'
import { alone, lease, progress } from './lease.js'
import { optionsOf, telling } from './options.js'
import { sourceOf } from './pg.js'
import { retrying } from './retry.js'
import { checkCount, checkMilliseconds, checkWhole, toHash, toInterval } from './response.js'
import { Sql, isText } from './sql.js'
import { milliseconds, transaction } from './transaction.js'

export { Batch } from './batch.js'
export { FakeClock, systemClock } from './clock.js'
export { ownsDeadLetter, settle } from './consumer.js'
export {
  BadArgument, CommitRolledBack, ConnectionLost, Declined, Forbidden, IdempotencyError, InProgress, KeyReused,
  LeaseLost, NotDone, NotEnded, NotReady, NotOwned, TooLarge, Unknown, Unstorable, sqlstate,
} from './errors.js'
export { Completion, Reconciled } from './lease.js'

/** @typedef {import('./result.js').Result} Result */
/** @typedef {import('./response.js').Response} Response */
/** @typedef {import('./sql.js').Operation} Operation */
/** @typedef {import('./clock.js').Clock} Clock */
/** @typedef {import('./consumer.js').Settlement} Settlement */
/**
 * A duration is a number of milliseconds, or a string that PostgreSQL reads as an interval: '90' has seconds.
 * @typedef {number | string} Duration
 */
/**
 * What a hook is called with. Never a request or a response.
 * @typedef {{event: string, scope: string, key?: string, attempt?: number | null, repeat?: number, code?: string}} HookEvent
 */
/** @typedef {'acquired' | 'replayed' | 'inProgress' | 'mismatch' | 'takenOver' | 'leaseLost' | 'declined' | 'retried'} EventName */
/** @typedef {{[name in EventName]?: (event: HookEvent) => void}} Hooks */
/**
 * @typedef {object} Options
 * @property {string} [scope] name space of the keys of calls that give none; ''
 * @property {string} [schema] where the extension is; by default the search path finds it
 * @property {Duration} [retention] how long answers are kept; by default as the server says
 * @property {Duration} [lease] of leased operations; '30 s'
 * @property {{attempts?: number, base?: number, cap?: number}} [retry] attempts in all (5); pauses are drawn between 0 and
 *   `base` (50) milliseconds, twice as much each time, up to `cap` (2000)
 * @property {Hooks} [hooks] for metrics and logs
 * @property {import('./clock.js').Clock} [clock]
 */
/**
 * @typedef {object} CallOptions
 * @property {string} [scope]
 * @property {Uint8Array} [requestHash] SHA-256 of the request, 32 bytes, in place of the request
 * @property {Duration} [wait] how long to wait for the present owner, without a connection: from 0 to 36,500 days, or Infinity; 0
 * @property {number} [maxAttempts] which attempt is the last; 0: no limit
 * @property {Duration} [retention]
 */
/**
 * @typedef {object} LostAttempts
 * @property {number} [maxLostAttempts] how many attempts may be lost with their transaction: the next one is `FAILED`, for good, and a consumer
 *   makes its message a dead letter. 0: no limit. By default as the server says; a policy of the scope comes first. Where the server does not
 *   preload the library nobody counts
 */
/** @typedef {CallOptions & LostAttempts} TransactionOptions */
/** @typedef {CallOptions & {lease?: Duration, reconcile?: import('./lease.js').Reconcile}} LeaseOptions */
/** @typedef {{scope: string, key?: string, attempt?: number | null, repeat?: number, code?: unknown}} About */
/**
 * @typedef {object} Settings inside of the package
 * @property {import('./pg.js').Source} source
 * @property {Sql} sql
 * @property {string} scope
 * @property {Duration | undefined} retention
 * @property {Duration} lease
 * @property {{attempts: number, base: number, cap: number}} retry
 * @property {import('./clock.js').Clock} clock
 * @property {(event: EventName, about: About) => void} emit
 */

/**
 * Runs operations once, by the extension `idempotency` of a PostgreSQL database.
 * @template [Tx=unknown] what work gets to run statements by: a client of the pool, or of the source
 */
export class Idempotency {
  /** @type {Settings} */
  #settings

  /**
   * @param {import('./pg.js').Pool<Tx> | import('./pg.js').Source<Tx>} pool a Pool of node-postgres, or `postgresSource(sql)` of "pg-idempotency/postgres"
   * @param {Options} [options]
   */
  constructor(pool, options = {}) {
    const { scope = '', schema, retention, lease: leaseTime = '30 s', retry = {}, hooks = {}, clock = systemClock } = options
    const source = sourceOf(pool)
    const repeats = optionsOf({ attempts: 5, base: 50, cap: 2000 }, retry)
    checkCount('retry.attempts', repeats.attempts)
    checkMilliseconds('retry.base', repeats.base)
    checkMilliseconds('retry.cap', repeats.cap)
    const durations = { retention, lease: leaseTime, 'retry.base': repeats.base, 'retry.cap': repeats.cap }
    for (const [name, duration] of Object.entries(durations)) toInterval(name, duration)
    this.#settings = {
      source,
      sql: new Sql(schema),
      scope,
      retention,
      lease: leaseTime,
      retry: repeats,
      clock,
      emit: (event, about) => emit(hooks, event, about),
    }
  }

  /**
   * The name space of the keys of calls that give none; '' if there is none.
   * @returns {string}
   */
  get scope() {
    return this.#settings.scope
  }

  /**
   * The clock of this instance.
   * @returns {import('./clock.js').Clock}
   */
  get clock() {
    return this.#settings.clock
  }

  /**
   * Runs `work` in one transaction, once: its writes and its answer commit together, and a repeat gets the stored answer.
   * Repeated as a whole after 40001, 40P01 and a lost connection, so `work` may be called more than once.
   *
   * @param {string} key names the operation within its scope; 1 to 255 characters
   * @param {unknown} request JSON value; a repeat with another one is KeyReused. undefined or null: no check
   * @param {(tx: Tx, operation: import('./sql.js').Operation) => unknown} work runs statements by `tx.query`. Returns a response
   *   (`{code, headers, payload}` or `{code, headers, body}`) or a JSON value, which is the payload. Throws Declined to store a failure;
   *   any other error rolls back and stores nothing, and but for NotDone it is a lost attempt
   * @param {TransactionOptions} [options]
   * @returns {Promise<import('./result.js').Result>}
   * @throws BadArgument, Forbidden, KeyReused, TooLarge, NotReady, NotOwned, CommitRolledBack, what work threw, or after the last repeat
   *   the last error
   */
  async transaction(key, request, work, options = {}) {
    return transaction(this.#settings, this.#call(key, request, options), work)
  }

  /**
   * Runs `work` outside of a transaction, under a lease that is extended while it runs. No connection is held meanwhile.
   *
   * @param {string} key
   * @param {unknown} request
   * @param {import('./lease.js').LeasedWork} work gets the operation, with fence, attempt and takenOver, and a signal that is aborted
   *   when the lease is lost. Returns a response, a payload, or a Completion. Throws Declined to store a failure, NotDone where nothing
   *   has happened outside; any other error leaves the lease to run out. A response that cannot be stored ends the operation without one, and so
   *   does such a Declined: this call throws its error, and calls after it Unstorable
   * @param {LeaseOptions} [options] reconcile: called in place of work on a takeover, and answers by `Reconciled`
   * @returns {Promise<import('./result.js').Result>}
   * @throws as `transaction`, and LeaseLost, Unknown, NotDone, Unstorable
   */
  async lease(key, request, work, options = {}) {
    const { lease: time = this.#settings.lease, reconcile } = options
    toInterval('lease', time)
    return lease(this.#settings, { ...this.#call(key, request, options), lease: time, reconcile }, work)
  }

  /**
   * Leaves a note of how far the work of a lease came. It is stored when this returns. If the lease runs out, the next owner
   * gets it: `takenOver` is true, and `payload` is the note of the attempt before. Repeated as `transaction` is.
   * @param {import('./sql.js').Operation} operation what the work was given
   * @param {unknown} note JSON value; it takes the place of the note before
   * @returns {Promise<void>}
   * @throws LeaseLost where somebody else owns the operation, TooLarge, BadArgument
   */
  async progress(operation, note) {
    return progress(this.#settings, operation, note)
  }

  /**
   * Runs `work` in one transaction in which it begins and completes many operations. Repeated as `transaction` is; but if it
   * has acquired none, not after a COMMIT whose answer was lost: its writes might be made twice.
   * @template T
   * @param {(batch: import('./batch.js').Batch<Tx>) => Promise<T>} work
   * @param {{scope?: string}} [options]
   * @returns {Promise<T>} what work returned
   * @throws what work threw, NotEnded where an operation was begun and not completed, CommitRolledBack, NotOwned where work has ended
   *   the transaction
   */
  async batch(work, { scope = this.#settings.scope } = {}) {
    return batch(this.#settings, scope, work)
  }

  /**
   * Until when the answer of a key is kept.
   * @param {string} key
   * @param {{scope?: string}} [options]
   * @returns {Promise<Date | null>} null: there is none, or it is kept without end
   * @throws ConnectionLost: the database has not answered for five seconds
   */
  async expiresAt(key, { scope = this.#settings.scope } = {}) {
    try {
      const [{ rows: [[ms]] }] = await retrying(this.#settings, { scope, key }, () =>
        alone(this.#settings, { leaseLeft: null }, this.#settings.sql.expiry({ key, scope })))
      return ms === null ? null : new Date(Number(ms))
    } catch (error) {
      throw error instanceof LeaseLost ? new ConnectionLost(error.message, { cause: error }) : error
    }
  }

  /**
   * The milliseconds of a duration, which may be below 0: only the server can read a text.
   * @param {Duration} duration
   * @returns {Promise<number>}
   * @throws BadArgument
   */
  async milliseconds(duration) {
    return milliseconds(this.#settings, { scope: this.#settings.scope, wait: duration }, 'retryAfter')
  }

  /**
   * A function that runs once for each key. Its result is stored as JSON.
   * @template {unknown[]} Args
   * @template R
   * @template {import('./function.js').Style} [S='transaction']
   * @param {(context: import('./function.js').Context<Tx, S>, ...args: Args) => R | Promise<R>} run
   * @param {import('./function.js').FunctionOptions<Args, S>} options
   * @returns {(...args: Args) => Promise<R>} throws Declined where the stored end is a failure, InProgress, and what `transaction` or
   *   `lease` throw
   */
  idempotent(run, options) {
    return idempotent(this, run, options)
  }

  /**
   * @param {string} key
   * @param {unknown} request
   * @param {TransactionOptions} options
   */
  #call(key, request, {
    scope = this.#settings.scope, requestHash, wait = 0, maxAttempts, maxLostAttempts, retention = this.#settings.retention,
  }) {
    if (!isText(key)) throw new BadArgument('a key is a string')
    if (!isText(scope)) throw new BadArgument('a scope is a string')
    toInterval('retention', retention)
    checkWhole('maxAttempts', maxAttempts)
    if (wait !== Infinity) toInterval('wait', wait)
    const hash = toHash('requestHash', requestHash)
    if (hash && (request ?? null) !== null) throw new ServiceMistake('requestHash stands in place of a request')
    return { key, request, scope, wait, maxAttempts, maxLostAttempts, retention, requestHash: hash }
  }
}

// A hook must not change what becomes of an operation, and sees neither request nor response.
/**
 * @param {Hooks} hooks
 * @param {EventName} event
 * @param {About} about
 */
function emit(hooks, event, { scope, key, attempt, repeat, code }) {
  telling(event, () =>
    hooks[event]?.({ event, scope, key, attempt, ...(event === 'retried' && { repeat, code: /** @type {string | undefined} */ (code) }) }))()
}
