// What the consumers of all brokers decide in the same way, and which message of an operation becomes its
// dead letter.
import { BadArgument, Forbidden, InProgress, KeyReused, ServiceMistake, TooLarge, Unknown, Unstorable } from './errors.js'
import { optionsOf, telling } from './options.js'
import { checkCount, checkMilliseconds } from './response.js'
import { isText } from './sql.js'

/** @typedef {{action: 'ack'} | {action: 'again', after: number} | {action: 'deadLetter', reason: string}} Settlement */
/**
 * @template [M=unknown]
 * @typedef {object} CommonOptions
 * @property {import('./index.js').Idempotency} idempotency remembers which message of an operation became its dead letter
 * @property {(message: M) => Promise<import('./result.js').Result | Settlement | void>} handle runs the operation of a
 *   message: the result of `transaction` or `lease`, or what `settle` gives; nothing: acknowledge
 * @property {number} [tries] after so many errors of `handle` a message is a dead letter; 20
 * @property {number[]} [delays] milliseconds, growing: the pauses after the first error, the second, and so on. [1000, 10 000, 60 000]
 * @property {(error: unknown, message: M | undefined) => void} [onError] told of errors of `handle` and of the broker; by default they go to the console
 */
/**
 * @typedef {object} Decision
 * @property {'ack' | 'again' | 'bury' | 'fail'} action bury: this very message is a dead letter; fail: the operation has one
 * @property {number} after milliseconds, of 'again'
 * @property {number} tries errors so far
 * @property {boolean} [inProgress] another worker runs the operation, so this delivery counts neither as a try nor as a delivery
 * @property {import('./result.js').Result} [failure] of 'fail'
 */

const OUTCOMES = ['COMPLETED', 'FAILED', 'IN_PROGRESS']

// A service can be mended: its message waits for that.
const isHopeless = (/** @type {unknown} */ error) =>
  [KeyReused, BadArgument, Forbidden, TooLarge, Unstorable].some((kind) => error instanceof kind) && !(error instanceof ServiceMistake)

export const TRIES = 'x-idempotency-tries'

const DEFAULTS = {
  tries: 20, delays: [1000, 10_000, 60_000], onError: (/** @type {unknown} */ error) => console.error(error),
}

/**
 * @template {CommonOptions<never>} O
 * @param {O} options
 * @param {string[]} required
 * @param {(options: O) => string} queueOf the name under which messages own their dead letters
 */
export function withDefaults(options, required, queueOf) {
  for (const name of ['idempotency', 'handle', ...required]) {
    if (!options[name]) throw new BadArgument(`a consumer needs the option ${name}`)
  }
  const complete = optionsOf(DEFAULTS, options)
  if (!complete.delays.length) throw new BadArgument('a consumer needs one of delays at least')
  for (const [index, delay] of complete.delays.entries()) {
    checkMilliseconds('each of delays', delay)
    if (delay < complete.delays[index - 1]) throw new BadArgument('delays grow')
  }
  checkCount('tries', complete.tries)
  const queue = queueOf(options)
  const scope = deadScope(queue)
  // The server would refuse each question for an owner.
  if (!isText(scope) || [...scope].length > 255) throw new BadArgument(`the name is none, or too long: ${scope} is a scope`)
  return { ...complete, queue, onError: telling('onError', complete.onError) }
}

const deadScope = (/** @type {string} */ queue) => `${queue}.dead`

/**
 * Runs the operation of a message and says what becomes of the message.
 * @template M
 * @param {Required<CommonOptions<M>>} options
 * @param {M} message
 * @param {number} tries errors that the message has had before
 * @returns {Promise<Decision>}
 */
export async function decide(options, message, tries) {
  let given, settlement
  try {
    given = await options.handle(message)
    settlement = settlementOf(given)
  } catch (error) {
    const decision = afterError(options, message, error, tries)
    return isHopeless(error) ? { ...decision, action: 'bury', after: 0 } : decision
  }
  switch (settlement.action) {
    case 'ack': return { action: 'ack', after: 0, tries }
    case 'again': return { action: 'again', after: settlement.after, tries, inProgress: given.outcome === 'IN_PROGRESS' }
    default: return given !== settlement
      ? { action: 'fail', after: 0, tries, failure: given }
      : { action: 'bury', after: 0, tries }
  }
}

/**
 * What to tell the broker about the message of an operation.
 *
 * A failure for good goes to the dead letters. In progress elsewhere, and a failure that may be tried again: again after
 * so many milliseconds, 1000 where the result does not say how many.
 * @param {import('./result.js').Result} result
 * @returns {Settlement}
 */
export function settle(result) {
  if (result.outcome === 'COMPLETED') return { action: 'ack' }
  if (result.outcome === 'IN_PROGRESS' || (result.retryAfter ?? null) !== null) {
    return { action: 'again', after: againAfter(result.retryAfter) }
  }
  return { action: 'deadLetter', reason: 'failed' }
}

function againAfter(retryAfter) {
  return Math.max(1, Math.ceil(retryAfter ?? 1000))
}

// What is none of these is a mistake of the handler, and no dead letter of work that may have succeeded.
function settlementOf(given) {
  if (given === undefined || given === null) return { action: 'ack' }
  if (OUTCOMES.includes(given.outcome)) return settle(given)
  const { action, after } = given
  if (action === 'ack' || action === 'deadLetter' || (action === 'again' && Number.isFinite(after))) return given
  throw new TypeError('handle has to return a result of the package, or what settle gives')
}

/**
 * InProgress, as of a function of `idempotent`, is the result that it stands for.
 * @template M
 * @param {Required<CommonOptions<M>>} options
 * @param {M} message
 * @param {unknown} error
 * @param {number} tries
 * @returns {Decision}
 */
function afterError({ delays, tries: limit, onError }, message, error, tries) {
  if (error instanceof InProgress) {
    return { action: 'again', after: againAfter(error.retryAfter), tries, inProgress: true }
  }
  onError(error, message)
  if (tries + 1 >= limit) return { action: 'bury', after: 0, tries: tries + 1 }
  const pause = delays[Math.min(tries, delays.length - 1)]
  const asked = error instanceof Unknown ? error.retryAfter ?? 0 : 0
  return { action: 'again', after: Math.max(pause, asked), tries: tries + 1 }
}

/**
 * Runs the operation of a message of a broker that numbers its messages, and says what becomes of the message: the one that owns the
 * dead letter of a failure is buried, the others are acknowledged.
 * @template M
 * @param {Required<CommonOptions<M>> & {queue: string}} options
 * @param {M} message
 * @param {{name: string, tries: number}} position of the message, which stays the same in a redelivery
 * @returns {Promise<Decision>} never 'fail'
 */
export async function decideByPosition(options, message, { name, tries }) {
  let decision = await decide(options, message, tries)
  // A failure that this call has stored: the replay names its record.
  if (decision.failure?.record === null) decision = await decide(options, message, tries)
  return decision.failure ? decideFailure(options, message, decision.failure, { name, tries }) : decision
}

/**
 * Says what becomes of a message whose operation has failed for good.
 * @template M
 * @param {Required<CommonOptions<M>> & {queue: string}} options
 * @param {M} message
 * @param {import('./result.js').Result} failure a replay
 * @param {{name: string, tries: number}} position
 * @returns {Promise<Decision>} never 'fail'
 */
export async function decideFailure(options, message, failure, { name, tries }) {
  try {
    const owns = await ownsDeadLetter(options.idempotency, options.queue, failure, name)
    return { action: owns ? 'bury' : 'ack', after: 0, tries }
  } catch (error) {
    return afterError(options, message, error, tries)
  }
}

/**
 * Whether a message is the one that becomes the dead letter of an operation that failed.
 *
 * Copies of a message, and redeliveries, all get the same stored failure, but one message of the queue owns its dead letter: the
 * first that asks. It gets true each time; the others get false, and are acknowledged. So a crash before the dead letter was sent
 * loses nothing.
 * @param {import('./index.js').Idempotency} idempotency keeps the answer in the scope `queue.dead`, as long as its records
 * @param {string} queue
 * @param {import('./result.js').Result} failure a replay: where this call ran the operation, call again first
 * @param {string} message names the message: redeliveries have the same name, other messages another. A position in a log, or a
 *   random identifier that the consumer added
 * @returns {Promise<boolean>}
 * @throws as `transaction`, BadArgument where the failure is no replay, and InProgress while another consumer asks
 */
export async function ownsDeadLetter(idempotency, queue, failure, message) {
  const { outcome, payload, retryAfter } = await idempotency.transaction(
    /** @type {string} */ (failure.record), null, () => ({ payload: message }), { scope: deadScope(queue), wait: 5000 })
  if (outcome === 'IN_PROGRESS') throw new InProgress(retryAfter)
  // Its attempts were lost too often: nobody owns it, and two dead letters are better than none.
  return outcome === 'FAILED' || payload === message
}
