// node-postgres: how the package gets a connection, sends statements, and gives the connection back. A
// source of connections is anything with `acquire()`; postgres.js has one of its own.
import net from 'node:net'
import { ConnectionLost, IdempotencyError, ended, left, sqlstate } from './errors.js'
import { Pipeline } from './pipeline.js'
import { Prepared } from './prepared.js'

/**
 * @template [Tx=unknown]
 * @typedef {object} Connection
 * @property {Tx} tx what work gets: it runs statements until `endWork` is called
 * @property {(statements: import('./pipeline.js').Statement[]) => Promise<import('./pipeline.js').Answer[]>} send
 * @property {(error: unknown) => unknown} named the same error, or ConnectionLost where that is what it comes from
 * @property {() => void} cancel asks the server to end the statement that runs; the connection is ended afterwards
 * @property {() => void} endWork refuses statements of work from now on
 * @property {(broken: boolean) => void} close gives the connection back, or ends it
 */
/**
 * @template [Tx=unknown]
 * @typedef {{acquire: () => Promise<Connection<Tx>>}} Source
 */
/**
 * A Pool of node-postgres, whose clients are Tx. Its types have two forms of connect, and the compiler compares the last with the last.
 * @template [Tx=unknown]
 * @typedef {{connect(): Promise<Tx>, connect(callback: (...given: never[]) => void): void}} Pool
 */

/**
 * The error does not quote what was given: a connection string has a password.
 * @template Tx
 * @param {Pool<Tx> | Source<Tx>} given
 * @returns {Source<Tx>}
 * @throws TypeError where it is neither
 */
export function sourceOf(given) {
  const pool = /** @type {any} */ (given)
  // The pools of Knex and Sequelize have acquire, too.
  if (typeof pool?.acquire === 'function' && !pool.release) return pool
  // A Client has connect, too, and a driver of TypeORM also options.
  if (typeof pool?.connect === 'function' && pool.options && pool.listenerCount) return pgSource(pool)
  throw new TypeError('an Idempotency needs a Pool of pg, or postgresSource(sql) of pg-idempotency/postgres')
}

/**
 * @template Tx
 * @param {Pool<Tx>} given
 * @returns {Source<Tx>}
 */
function pgSource(given) {
  const pool = /** @type {any} */ (given)
  // An idle connection that ends is an event "error"; without a listener it ends the process.
  if (pool.listenerCount('error') === 0) pool.on('error', () => {})
  if (!pool.listeners('acquire').includes(watch)) pool.on('acquire', watch)
  return {
    async acquire() {
      const client = await pool.connect().catch((error) => { throw unavailable(pool, error) })
      if (client?.connection?.parse) return new PgConnection(client)
      client?.release()
      throw new TypeError('pg-native cannot be used: take the Pool of pg itself')
    },
  }
}

// No connection and no SQLSTATE: the server was not reached. With a full pool it is the pool's time-out, and
// to wait for it five times over helps nobody.
function unavailable(pool, error) {
  if (sqlstate(error)) return error
  if (pool.ending || pool.totalCount >= pool.options.max) {
    return new IdempotencyError('no connection is free', { code: '53300', cause: error })
  }
  return new ConnectionLost('no connection to the server', { cause: error })
}

/** @type {WeakSet<object>} */
const LOST = new WeakSet()

// An "error" of a client that nobody listens to ends the process. It may come in one packet with the answer that makes the client free,
// and so before who awaits the client can listen.
function watch(client) {
  if (!client.listeners('error').includes(note)) client.on('error', note)
}

/** @this {object} a client whose connection has ended */
function note() {
  LOST.add(this)
}

/** @implements {Connection} */
class PgConnection {
  #client
  #closed = false
  #ended = false
  /** @type {Promise<unknown> | undefined} */
  #cancelled
  // Whether a transaction is open, as the server said at the end of the last statement. It says so behind an error, often in
  // a packet of its own: until then, the work is not told of the error.
  #status
  #settled = Promise.resolve()
  #settle = () => {}
  #events = {
    errorMessage: () => {
      this.#settle()    // a server that shuts down sends a second error
      this.#settled = new Promise((resolve) => { this.#settle = resolve })
    },
    readyForQuery: ({ status }) => { this.#status = status; this.#settle() },
    end: () => this.#settle(),
  }

  constructor(client) {
    this.#client = client
    watch(client)
    // before the client's own listeners, which may run the work
    for (const [event, listener] of Object.entries(this.#events)) client.connection.prependListener(event, listener)
    this.tx = this.#guarded()
  }

  async send(statements) {
    try {
      return await (this.#client.pipeline ? this.#sendQueued(statements) : this.#sendPipeline(statements))
    } catch (error) {
      throw this.named(error)
    }
  }

  endWork() {
    this.#ended = true
  }

  cancel() {
    this.#cancelled = sendCancel(this.#client)
  }

  close(broken) {
    if (this.#closed) return
    this.#closed = true
    for (const [event, listener] of Object.entries(this.#events)) this.#client.connection.off(event, listener)
    this.#settle()
    if (this.#cancelled) this.#cancelled.then(() => this.#client.release(broken))
    else this.#client.release(broken)
  }

  #sendPipeline(statements) {
    return Prepared.of(this.#client).roundTrip(statements, (all) => new Promise((resolve, reject) => {
      this.#client.query(new Pipeline(all, (error, answers) => error ? reject(error) : resolve(answers)))
    }))
  }

  // A client with the option `pipeline` takes only its own queries, and sends them without waiting.
  async #sendQueued(statements) {
    const answers = await Promise.allSettled(statements.map(({ text, values = [] }) =>
      this.#client.query({ text, values, rowMode: 'array', types: AS_TEXT, queryMode: 'extended' })))
    return answers.map((answer) => {
      if (answer.status === 'rejected') throw answer.reason
      return { rows: answer.value.rows, tag: answer.value.command }
    })
  }

  named(error) {
    if (sqlstate(error) || !LOST.has(this.#client)) return error
    return new ConnectionLost('the connection was lost', { cause: error })
  }

  #query(args) {
    const tell = (callback) => (error, ...result) =>
      error ? this.#settled.then(() => callback(error)) : callback(error, ...result)
    const sent = this.#client.query(...args.map((arg) => typeof arg === 'function' ? tell(arg) : arg))
    return sent?.catch?.(async (error) => { await this.#settled; throw error }) ?? sent
  }

  // The client, for as long as the transaction is open. A statement that came later would run outside of
  // it, on a connection that somebody else has taken from the pool. Where the work has ended the transaction, as a Kysely
  // does that opens one of its own, it would commit by itself, and again with each attempt.
  #guarded() {
    const query = (...args) => {
      if (this.#ended) return refuse(this.#client, args, ended())
      return this.#status === 'I' ? refuse(this.#client, args, left()) : this.#query(args)
    }
    const own = { query, release: notYours, end: notYours }
    return new Proxy(this.#client, {
      get(client, property) {
        if (Object.hasOwn(own, property)) return own[property]
        const value = client[property]
        return typeof value === 'function' ? value.bind(client) : value
      },
    })
  }
}

// A CancelRequest of PostgreSQL's protocol, on a connection of its own. The server closes that when it has the request. pgbouncer passes
// nothing on where one of the two connections ends before, and 1.18 may end itself. A server that has gone need not hear of it.
function sendCancel({ host, port, processID, secretKey }) {
  const request = Buffer.alloc(16)
  for (const [index, number] of [16, 80877102, processID, secretKey].entries()) request.writeInt32BE(number | 0, 4 * index)
  const socket = host.startsWith('/') ? net.connect(`${host}/.s.PGSQL.${port}`) : net.connect(port, host)
  socket.on('error', () => {}).setTimeout(5000, () => socket.destroy())
  socket.resume().write(request)
  return new Promise((resolve) => { socket.on('close', resolve) })
}

const AS_TEXT = { getTypeParser: () => (value) => value }

// As the client refuses one itself.
function refuse({ connection }, args, error) {
  const [query] = args
  const callback = args.find((arg) => typeof arg === 'function') ?? query?.callback
  const isSubmittable = typeof query?.submit === 'function'
  if (!callback && !isSubmittable) return Promise.reject(error)
  process.nextTick(() => callback ? callback(error) : query.handleError(error, connection))
  return isSubmittable ? query : undefined
}

function notYours() {
  throw new IdempotencyError('the connection belongs to the transaction', { code: '2D000' })
}
