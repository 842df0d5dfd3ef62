// Plain functions that run once for each key.
import { BadArgument, Declined, InProgress } from './errors.js'

/** @typedef {'transaction' | 'lease'} Style */
/**
 * What the function gets before its own arguments: `tx` in style "transaction", `signal` in style "lease".
 * @template [Tx=unknown]
 * @template {Style} [S='transaction']
 * @typedef {{operation: import('./sql.js').Operation} & (S extends 'transaction' ? {tx: Tx} : {signal: AbortSignal})} Context
 */
/**
 * @template {unknown[]} Args
 * @template {Style} [S='transaction']
 * @typedef {import('./index.js').LeaseOptions & {key: (...args: Args) => string, name?: string,
 *   request?: (...args: Args) => unknown, style?: S}} FunctionOptions key: makes the key from the arguments.
 *   name: tells the operations of this function from those of others, so it must not change; by default the name of `run`, which is
 *   no good where a bundler minifies.
 *   It stands in the scope, after the option `scope` or the scope of the Idempotency. request: what must be the same in a repeat;
 *   by default the arguments. style: 'transaction'
 */

// Bundlers that minify, such as that of Next.js, make names of a letter or two, and other ones the next time. A function that a
// module exports by default has the name "default" if it has none of its own.
const SHORTEST = 3
const BOUND = /^(bound )+/

/**
 * @template {unknown[]} Args
 * @template R
 * @template Tx
 * @template {Style} S
 * @param {import('./index.js').Idempotency<Tx>} idempotency
 * @param {(context: Context<Tx, S>, ...args: Args) => R | Promise<R>} run
 * @param {FunctionOptions<Args, S>} options
 * @returns {(...args: Args) => Promise<R>}
 * @throws BadArgument: the function has no name, or one that another function may have
 */
export function idempotent(idempotency, run, { key, name = nameOf(run), request = (...args) => args, style, ...given }) {
  const call = /** @type {(context: object, ...args: Args) => R | Promise<R>} */ (run)
  if (typeof name !== 'string' || name === '') {
    throw new BadArgument('a function that runs once needs a name: give the option "name"')
  }
  const options = { ...given, scope: [given.scope ?? idempotency.scope, name].filter((part) => part !== '').join('.') }
  const once = {
    transaction: (args) => idempotency.transaction(key(...args), request(...args),
      async (tx, operation) => ({ payload: await call({ tx, operation }, ...args) }), options),
    lease: (args) => idempotency.lease(key(...args), request(...args),
      async (operation, signal) => ({ payload: await call({ signal, operation }, ...args) }), options),
  }[style ?? 'transaction']
  return async (...args) => valueOf(await once(args))
}

function nameOf({ name }) {
  const own = name.replace(BOUND, '')
  if (own === '') return own
  if (own.length >= SHORTEST && own !== 'default') return name
  throw new BadArgument(`the name "${name}" of a function that runs once may be that of another one, too, or change with the next build: ` +
    'give the option "name"')
}

function valueOf({ outcome, code, headers, payload, body, retryAfter }) {
  if (outcome === 'COMPLETED') return payload
  if (outcome === 'IN_PROGRESS') throw new InProgress(retryAfter)
  throw new Declined(code, payload, { headers: headers ?? undefined, body: body ?? undefined, retryAfter })
}
