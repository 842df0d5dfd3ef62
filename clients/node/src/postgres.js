// postgres.js: a source of connections for Idempotency. postgres.js sends the statements of one connection
// without waiting for answers, so they share a round trip, each with a Sync of its own. It asks for the types of a
// statement's parameters the first time that a connection has it: one round trip more then, or always with `prepare: false`.
import { readFile } from 'node:fs'
import { ConnectionLost, IdempotencyError, ended, left, sqlstate } from './errors.js'

// What a query fails with whose connection has ended, beside errors of the operating system.
const LOST = new Set(['CONNECTION_CLOSED', 'CONNECTION_DESTROYED', 'ECONNRESET', 'EPIPE'])

// With these the server ends a session in a statement.
/** @type {Set<string | undefined>} */
const ENDED = new Set(['57P01', '57P02'])

// What runs a statement, beside the tag itself.
/** @type {Set<string | symbol>} */
const SENDING = new Set(['unsafe', 'notify'])

// Comments nest: here three deep.
const COMMENT = ['', '', ''].reduce((inner) => String.raw`/\*(?:[^*/]|\*(?!/)|/(?!\*)${inner && `|${inner}`})*\*/`, '')
const GAP = String.raw`(?:\s|--[^\n\r]*(?:[\n\r]|$)|${COMMENT})`

// What ends the transaction. A ROLLBACK to a savepoint does not.
const ENDS = new RegExp(
  `^(?:;|${GAP})*(?:commit|end|abort|prepare${GAP}+transaction|rollback(?!${GAP}*(?:(?:work|transaction)${GAP}+)?to\\b))\\b`, 'i')

/**
 * @template Tx
 * @param {{reserve: () => Promise<Tx>}} sql what `postgres(…)` gave. Work gets a reserved connection of it as `tx`, to be used as a tag: tx`SELECT 1`
 * @returns {import('./pg.js').Source<Tx>}
 */
export function postgresSource(sql) {
  // SQL of Bun has reserve, too, and would leave each call waiting.
  const { options } = /** @type {any} */ (sql) ?? {}
  if (!options?.parsers) throw new TypeError('postgresSource needs what postgres(…) of postgres.js gave')
  const source = SOURCES.get(sql) ?? new Reserving(sql)
  SOURCES.set(sql, source)
  return { acquire: () => source.acquire() }
}

/** @type {WeakMap<object, Reserving>} */
const SOURCES = new WeakMap()

// Reserves connections of a pool, never more than it has.
class Reserving {
  #sql
  #free
  /** @type {(() => void)[]} */
  #queue = []
  #waiting = new Set()
  // True where a connection may have ended in a statement.
  #suspect = false
  /** @type {Promise<void> | undefined} */
  #waking

  constructor(sql) {
    this.#sql = sql
    const { options } = sql
    const { onclose } = options
    this.#free = options.max
    options.onclose = (id) => {
      onclose?.(id)
      for (const ask of this.#waiting) queueMicrotask(ask)
    }
  }

  async acquire() {
    if (this.#free > 0) this.#free--
    else await new Promise((/** @type {(value?: undefined) => void} */ resolve) => { this.#queue.push(resolve) })
    try {
      while (this.#suspect || this.#waking) await (this.#waking ??= this.#wake().finally(() => { this.#waking = undefined }))
      return new PostgresConnection(await this.#reserve(), (isLost) => this.#giveBack(isLost))
    } catch (error) {
      const state = sqlstate(error)
      this.#giveBack(ENDED.has(state))
      throw state ? error : lost(error)
    }
  }

  #giveBack(isLost) {
    this.#suspect ||= isLost
    const next = this.#queue.shift()
    if (next) next()
    else this.#free++
  }

  // Where the server ended a session in a statement, postgres.js answers the next one with that error. If that is a reserve(),
  // it never uses the connection again. So plain statements come first, as many as meet each connection.
  async #wake() {
    this.#suspect = false
    const answers = await Promise.allSettled(Array.from({ length: this.#sql.options.max }, () => this.#sql`SELECT 1`))
    for (const answer of answers) {
      if (answer.status === 'fulfilled' || sqlstate(answer.reason)) continue
      this.#suspect = true
      throw answer.reason
    }
  }

  // When a connection ends, postgres.js forgets one of those that wait for a connection, for ever. So each asks once more.
  #reserve() {
    let isSettled = false
    return new Promise((resolve, reject) => {
      const ask = async () => {
        try {
          const own = await this.#sql.reserve()
          if (isSettled) own.release()
          else resolve(own)
        } catch (error) {
          reject(error)
        }
        isSettled = true
        this.#waiting.delete(ask)
      }
      this.#waiting.add(ask)
      ask()
    })
  }
}

/** @param {unknown} [cause] */
function lost(cause) {
  return new ConnectionLost('the connection was lost, or what was prepared on it', { cause })
}

// postgres.js takes a connection that has ended back by itself. To send on such a connection, or to give it back once
// more, would end the process; so it is remembered that the connection has ended, also where no statement was running.

/** @typedef {import('./pg.js').Connection} Connection */
/** @implements {Connection} */
class PostgresConnection {
  #sql
  #giveBack
  #closed = false
  #ended = false
  // Whether the work has sent an end of its own: postgres.js does not show whether a transaction is open.
  #left = false
  #lost = false
  #running = new Set()
  /** @type {Promise<unknown> | undefined} */
  #cancelled
  // As their own begin() does it. The answer says that more statements may be sent.
  #onexecute = (connection) => {
    connection.onclose = () => { this.#lost = true }
    return true
  }

  constructor(sql, giveBack) {
    this.#sql = sql
    this.#giveBack = giveBack
    this.tx = new Proxy(sql, {
      apply: (target, self, args) => this.#open(() => target(...args)),
      get: (target, property) => property === 'release' ? () => this.#open(() => { throw notYours() })
        : property === 'file' ? (...args) => this.#open(() => this.#file(...args))
          : SENDING.has(property) ? (...args) => this.#open(() => target[property](...args))
            : target[property],
    })
  }

  async send(statements) {
    if (this.#lost) throw lost()
    const answers = await Promise.allSettled(statements.map(({ text, values = [] }) =>
      this.#watched(this.#sql.unsafe(text, values, { prepare: true, onexecute: this.#onexecute })).values()))
    return answers.map((answer) => {
      if (answer.status === 'rejected') throw this.named(answer.reason)
      return { rows: answer.value.map((row) => row.map(asText)), tag: answer.value.command }
    })
  }

  // A statement that somebody has thrown away, as DISCARD ALL does, postgres.js prepares the next time: the whole is repeated.
  named(error) {
    return this.#lost || sqlstate(error) === '26000' ? lost(error) : error
  }

  endWork() {
    this.#ended = true
  }

  // Their own cancel() drops this promise: an error of it would end the process. Statements behind the active one fail with it.
  cancel() {
    const active = [...this.#running].filter((query) => query.active)
    this.#cancelled = Promise.allSettled(active.map((query) => query.canceller(query)))
  }

  close(broken) {
    if (this.#closed) return
    this.#closed = true
    if (broken) this.#rollBack()
    else this.#release()
  }

  // When the server has nothing more to do for it: postgres.js would never use a connection again that was ended from here.
  async #rollBack() {
    await this.#cancelled
    await this.send([{ text: 'ROLLBACK' }]).catch(() => {})
    this.#release()
  }

  #release() {
    if (!this.#lost) this.#sql.release()
    this.#giveBack(this.#lost)
  }

  #open(call) {
    if (this.#ended) throw ended()
    const query = this.#watched(call())
    const { handle } = query
    // It is sent when somebody awaits it, which may be later.
    query.handle = () => {
      const refusal = this.#refusal(query.executed)
      if (refusal) query.reject(refusal)
      else {
        this.#left ||= ENDS.test(query.strings[0])
        handle.call(query)
      }
    }
    return query
  }

  // What comes behind an end of the work's own would commit by itself, and again with each attempt.
  #refusal(isSent = false) {
    if (this.#ended) return ended()
    if (this.#lost) return lost()
    return this.#left && !isSent ? left() : undefined
  }

  // Their own file() sends what it has read also where the work has ended in the meantime.
  #file(path, ...more) {
    const query = this.#sql.file(path, ...more)
    const { handler } = this.#sql.unsafe('')
    query.handler = () => readFile(path, 'utf8', (error, text) => {
      const refusal = error ?? this.#refusal()
      if (refusal) return query.reject(refusal)
      query.strings = [text]
      this.#left ||= ENDS.test(text)
      handler(query)
    })
    return query
  }

  #watched(query) {
    const { resolve, reject } = query
    this.#running.add(query)
    query.resolve = (rows) => {
      this.#running.delete(query)
      resolve(rows)
    }
    query.reject = (error) => {
      this.#running.delete(query)
      // A file that cannot be read is an error of the operating system, too, but comes before the query is sent.
      if (query.state && (LOST.has(error?.code) || error?.syscall)) this.#lost = true
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
