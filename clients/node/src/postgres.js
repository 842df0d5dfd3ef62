// postgres.js: a source of connections for Idempotency. postgres.js sends the statements of one connection
// without waiting for answers, so they share a round trip, each with a Sync of its own. It asks for the types of a
// statement's parameters the first time that a connection has it: one round trip more then, or always with `prepare: false`.
import { ConnectionLost, IdempotencyError, ended } from './errors.js'

const LOST = new Set(['CONNECTION_CLOSED', 'CONNECTION_ENDED', 'CONNECTION_DESTROYED', 'CONNECT_TIMEOUT', 'ECONNREFUSED',
  'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT'])

// What runs a statement, beside the tag itself.
/** @type {Set<string | symbol>} */
const SENDING = new Set(['unsafe', 'file', 'notify'])

/**
 * @template Tx
 * @param {{reserve: () => Promise<Tx>}} sql what `postgres(…)` gave. Work gets a reserved connection of it as `tx`, to be used as a tag: tx`SELECT 1`
 * @returns {import('./pg.js').Source<Tx>}
 */
export function postgresSource(sql) {
  return {
    async acquire() {
      try {
        return new PostgresConnection(await sql.reserve())
      } catch (error) {
        throw named(error)
      }
    },
  }
}

function named(error) {
  return LOST.has(error?.code) ? new ConnectionLost('the connection was lost', { cause: error }) : error
}

// postgres.js takes a connection that has ended back by itself. To send on such a connection, or to give it back once
// more, would end the process; so the first error of that kind is remembered.

/** @typedef {import('./pg.js').Connection} Connection */
/** @implements {Connection} */
class PostgresConnection {
  #sql
  #closed = false
  #ended = false
  #lost = false
  #running = new Set()
  /** @type {Promise<unknown> | undefined} */
  #cancelled

  constructor(sql) {
    this.#sql = sql
    this.tx = new Proxy(sql, {
      apply: (target, self, args) => this.#open(() => target(...args)),
      get: (target, property) => property === 'release' ? () => this.#open(() => { throw notYours() })
        : SENDING.has(property) ? (...args) => this.#open(() => target[property](...args))
          : target[property],
    })
  }

  async send(statements) {
    if (this.#lost) throw new ConnectionLost('the connection was lost')
    const answers = await Promise.allSettled(statements.map(({ text, values = [] }) =>
      this.#watched(this.#sql.unsafe(text, values, { prepare: true })).values()))
    return answers.map((answer) => {
      if (answer.status === 'rejected') throw named(answer.reason)
      return { rows: answer.value.map((row) => row.map(asText)), tag: answer.value.command }
    })
  }

  named(error) {
    return this.#lost ? named(error) : error
  }

  endWork() {
    this.#ended = true
  }

  // Their own cancel() drops this promise: an error of it would end the process. So would a part of a query, which is never sent.
  cancel() {
    const sent = [...this.#running].filter(({ executed }) => executed)
    this.#cancelled = Promise.allSettled(sent.map((query) => query.canceller(query)))
  }

  close(broken) {
    if (this.#closed) return
    this.#closed = true
    if (this.#lost) return
    if (broken) this.#giveBack()
    else this.#sql.release()
  }

  // When the server has nothing more to do for it: postgres.js would never use a connection again that was ended from here.
  async #giveBack() {
    await this.#cancelled
    const isLost = await this.#sql`ROLLBACK`.then(() => false, (error) => LOST.has(error.code))
    if (!isLost) this.#sql.release()
  }

  #open(call) {
    if (this.#ended) throw ended()
    return this.#watched(call())
  }

  #watched(query) {
    if (typeof query?.reject !== 'function') return query
    const { resolve, reject } = query
    this.#running.add(query)
    query.resolve = (rows) => {
      this.#running.delete(query)
      resolve(rows)
    }
    query.reject = (error) => {
      this.#running.delete(query)
      if (LOST.has(error?.code)) this.#lost = true
      reject(error)
    }
    return query
  }
}

// All columns are text; a value that the user's own parser has changed is not.
function asText(value) {
  if (value === null || typeof value === 'string') return value
  throw new IdempotencyError('a parser of postgres.js for text is in the way', { code: '42804' })
}

function notYours() {
  return new IdempotencyError('the connection belongs to the transaction', { code: '2D000' })
}
