// Errors of the package. Each class stands for one SQLSTATE, and only the SQLSTATE decides which class an
// error of the server becomes: messages are translated and change.

/** Base class. `code` is the SQLSTATE, `cause` the driver's error where there is one. */
export class IdempotencyError extends Error {
  static code = 'XX000'

  /**
   * @param {string} message what happened, without request or response
   * @param {{code?: string, cause?: unknown}} [options] SQLSTATE, by default that of the class, and the error behind it
   */
  constructor(message, { code = new.target.code, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    /** @type {string} SQLSTATE */
    this.code = code
    this.name = Object.hasOwn(new.target.prototype, 'name') ? this.name : new.target.name
  }
}

/** ID400: an argument is missing, too long, out of range, or nothing that the server can read. */
export class BadArgument extends IdempotencyError {
  static code = 'ID400'
}
/** An option, an answer of the work or a fingerprint, and none of the client's: HTTP answers 500, not 400, and a message comes again. */
export class ServiceMistake extends BadArgument {}
/** An option that is no duration. */
export class BadDuration extends ServiceMistake {}
/** ID403: the role may not use this scope. */
export class Forbidden extends IdempotencyError {}
/** ID404: this transaction does not own the operation. A mistake of the program. */
export class NotOwned extends IdempotencyError {}
/** ID409: the lease was lost; another attempt owns the operation, or it has ended. */
export class LeaseLost extends IdempotencyError {
  static code = 'ID409'
}
/** ID413: the response is larger than the server stores. */
export class TooLarge extends IdempotencyError {}
/** ID422: the key was used before with another request. */
export class KeyReused extends IdempotencyError {}
/** ID428: the transaction began an operation and did not end it. A mistake of the program. */
export class NotEnded extends IdempotencyError {}

/** 42883, 3F000, 42501: the database lacks the extension, or the role its rights; the message says what to do. */
export class NotReady extends IdempotencyError {}

const BY_SQLSTATE = {
  ID400: BadArgument, ID403: Forbidden, ID404: NotOwned, ID409: LeaseLost, ID413: TooLarge, ID422: KeyReused,
  ID428: NotEnded,
}

/** 08006: the connection ended, so it is unknown whether the last statement took effect. */
export class ConnectionLost extends IdempotencyError {
  static code = '08006'
}

/** 40000: COMMIT answered ROLLBACK, or could only have done so. Nothing was stored. */
export class CommitRolledBack extends IdempotencyError {
  static code = '40000'
}

/** The error of a statement that comes when its transaction has ended. */
export function ended() {
  return new IdempotencyError('the transaction has ended: await every statement of the work', { code: '25P01' })
}

/**
 * The error where the transaction has ended before the work.
 * @param {unknown} [cause]
 */
export function left(cause) {
  return new NotOwned('the work, or its writes, ended their transaction', { code: 'ID404', cause })
}

/** What an attempt that was taken over did outside is not known. Try again after `retryAfter` milliseconds. */
export class Unknown extends IdempotencyError {
  /**
   * @param {string} message what is unknown
   * @param {{retryAfter?: number | null, cause?: unknown}} [options] milliseconds until somebody may know
   */
  constructor(message, { retryAfter = null, cause } = {}) {
    super(message, { cause, code: 'ID503' })
    this.retryAfter = retryAfter && Math.max(0, retryAfter)
  }
}

/**
 * The work of a lease was done, and its answer could not be stored: the operation has ended without one, and no attempt repeats it. The call
 * that did the work gets the error of its answer; this one is for the calls after it.
 */
export class Unstorable extends IdempotencyError {
  constructor() {
    super('the work was done, and its answer could not be stored', { code: 'ID500' })
  }
}

/** A plain function was called while another call of the same operation runs. */
export class InProgress extends IdempotencyError {
  /** @param {number | null} retryAfter milliseconds until the owner's lease ends, null where that is not known */
  constructor(retryAfter) {
    super('the operation is in progress', { code: 'ID409' })
    this.retryAfter = retryAfter
  }
}

// A bundler that minifies renames the classes, but not these members. A class of the user's that extends one of them has its own name.
const CLASSES = {
  IdempotencyError, BadArgument, Forbidden, NotOwned, LeaseLost, TooLarge, KeyReused, NotEnded, NotReady, ConnectionLost, CommitRolledBack,
  Unknown, Unstorable, InProgress,
}
for (const [name, { prototype }] of Object.entries(CLASSES)) nameAs(name, prototype)
// To the user both are the class that is exported.
for (const { prototype } of [ServiceMistake, BadDuration]) nameAs('BadArgument', prototype)

/**
 * @param {string} value
 * @param {Error} prototype
 */
export function nameAs(value, prototype) {
  Object.defineProperty(prototype, 'name', { value, configurable: true, writable: true })
}

/**
 * Thrown by work: the operation has failed for a reason that is an answer. Its writes are rolled back, the
 * failure is stored, and repeats get it as their answer.
 */
export class Declined extends Error {
  /**
   * @param {number | null} code status of the answer, such as 402
   * @param {unknown} [payload] JSON value of the answer
   * @param {{headers?: Record<string, string>, retryAfter?: number | string | null, body?: Uint8Array | string,
   *   retention?: number | string}} [options] retryAfter: milliseconds or a PostgreSQL interval, below
   *   0: now; then the operation may be tried again after it. Without it the failure is permanent.
   */
  constructor(code, payload, { headers, retryAfter = null, body, retention } = {}) {
    super(`the operation was declined${code === null ? '' : ` with ${code}`}`)
    this.name = 'Declined'
    this.response = { code, payload, headers, body, retention }
    this.retryAfter = typeof retryAfter === 'number' ? Math.max(0, retryAfter) : retryAfter
  }
}

/**
 * Thrown by leased work: nothing has happened outside, so the key may be free at once. Thrown in a transaction: it is rolled back,
 * and is no lost attempt.
 */
export class NotDone extends Error {
  /** @param {{cause?: unknown}} [options] why not */
  constructor(options) {
    super('the work was not done', options)
    this.name = 'NotDone'
  }
}

/**
 * The package's error for an error of the driver; any other error as it is. The server quotes the JSON that it cannot read, and the
 * driver's error has that: it is no cause.
 * @param {unknown} error
 * @returns {unknown}
 */
export function translated(error) {
  const state = sqlstate(error)
  if (!state || error instanceof IdempotencyError) return error
  if (UNREADABLE.has(state)) return new IdempotencyError(/** @type {Error} */ (error).message, { code: state })
  const Class = BY_SQLSTATE[state]
  if (!Class) return error
  return new Class(/** @type {Error} */ (error).message, { code: state, cause: error })
}

// A text that is no interval, more than the type interval holds, and what the functions would refuse.
const NO_INTERVAL = new Set(['22007', '22008', '22015', '22012'])

/**
 * BadArgument where the server does not take a duration of these statements; any other error as it is.
 * @param {unknown} error
 * @param {import('./pipeline.js').Statement[]} statements
 * @returns {unknown}
 */
export function unreadDuration(error, statements) {
  const names = statements.flatMap(({ durations = [] }) => durations)
  if (names.length === 0 || !NO_INTERVAL.has(sqlstate(error) ?? '')) return error
  return new BadDuration(`the server does not take ${names.join(' or ')} as a duration`, { cause: error })
}

// What text or jsonb does not take: bad JSON or half a surrogate pair, the character NUL, bytes that are no UTF-8, a
// number too large, nesting too deep.
const UNREADABLE = new Set(['22P02', '22P05', '22021', '22003', '54001'])

const NOT_READY = {
  '42883': 'the functions of the extension were not found: run CREATE EXTENSION idempotency in this database, or name its schema by the ' +
    'option "schema"; a role without idem_grant does not find them in a schema of their own',
  '3F000': 'the schema of the option "schema" does not exist: it is the one in which the extension idempotency was created',
  '42501': "the role may not use the extension: let its owner run SELECT idem_grant('the role')",
}

/**
 * The same for an error of a begin, where nothing but the package's own functions can be missing or forbidden: data that the server cannot read are the caller's argument.
 * @param {unknown} error
 * @returns {unknown}
 */
export function translatedBegin(error) {
  const state = sqlstate(error)
  if (state && NOT_READY[state]) return new NotReady(NOT_READY[state], { code: state, cause: error })
  return UNREADABLE.has(sqlstate(error) ?? '')
    ? new BadArgument('the server cannot read the key or the request')
    : translated(error)
}

/**
 * SQLSTATE of an error. ORMs wrap the driver's error, so its causes are looked at as well.
 * @param {unknown} of
 * @returns {string | undefined}
 */
export function sqlstate(of) {
  let error = /** @type {any} */ (of)
  for (let depth = 0; error && depth < 5; depth++) {
    if (typeof error.code === 'string' && /^[0-9A-Z]{5}$/.test(error.code) && !SYSTEM.has(error.code)) return error.code
    error = error.cause ?? error.original
  }
  return undefined
}

// Errors of the operating system that look like a SQLSTATE.
const SYSTEM = new Set(['EPIPE', 'EBUSY', 'EPERM', 'EROFS', 'EXDEV', 'EBADF', 'EFBIG'])
