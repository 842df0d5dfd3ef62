// Which statements a connection has prepared. Parsing and planning costs more than running `idem_begin`, so the
// package prepares its own statements, but only where the connection is the server's own: behind a pooler in transaction
// mode a prepared statement would be on some other connection of the server. The process that the connection was told
// of at its start is then not the one that answers `pg_backend_pid()`, as a pooler makes up a number of its own.
import { createHash } from 'node:crypto'
import { ConnectionLost, sqlstate } from './errors.js'

/** @typedef {import('./pipeline.js').Statement} Statement */
/** @typedef {import('./pipeline.js').Answer} Answer */

const WHO = { text: 'SELECT pg_backend_pid()::text' }
/** @type {WeakMap<object, Prepared>} */
const ofClients = new WeakMap()

/** What is known of one connection. */
export class Prepared {
  #processID
  /** @type {boolean | undefined} */
  #direct
  /** @type {Set<string>} */
  #names = new Set()

  /** @param {any} client of node-postgres; it keeps what was learnt for as long as it lives */
  static of(client) {
    const known = ofClients.get(client) ?? new Prepared(client.processID)
    ofClients.set(client, known)
    return known
  }

  /** @param {number | null | undefined} processID */
  constructor(processID) {
    this.#processID = processID
  }

  /**
   * Sends statements in one round trip. The first one also asks who answers.
   * @param {Statement[]} statements
   * @param {(statements: Statement[]) => Promise<Answer[]>} send
   */
  async roundTrip(statements, send) {
    const asks = this.#direct === undefined
    const named = statements.map((statement) => this.#named(statement))
    let answers
    try {
      answers = await send(asks ? [...named, WHO] : named)
    } catch (error) {
      if (sqlstate(error) !== '26000') throw error
      // Somebody has thrown our statements away, as DISCARD ALL does. This connection is given up, and the whole is repeated on another.
      throw new ConnectionLost('the session has lost its prepared statements', { cause: error })
    }
    if (asks) this.#direct = answers.pop()?.rows[0][0] === String(this.#processID)
    for (const { name } of named) if (name) this.#names.add(name)
    return answers
  }

  /** @param {Statement} statement */
  #named(statement) {
    if (!this.#direct || !statement.repeated) return statement
    const name = nameOf(statement.text)
    return { ...statement, name, known: this.#names.has(name) }
  }
}

/** @type {Map<string, string>} */
const names = new Map()

// It says what the text is, so that no other statement can have it.
/** @param {string} text */
function nameOf(text) {
  const name = names.get(text) ?? `pg_idempotency_${createHash('sha256').update(text).digest('hex').slice(0, 32)}`
  names.set(text, name)
  return name
}
