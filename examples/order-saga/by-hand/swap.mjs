// Gives a service node.mjs in place of the package: NODE_OPTIONS='--import …/swap.mjs'.
import { register } from 'node:module'
import { isMainThread } from 'node:worker_threads'

if (isMainThread) register(import.meta.url)

export function resolve(specifier, context, next) {
  const ours = ['pg-idempotency', 'pg-idempotency/express'].includes(specifier)
  return next(ours ? new URL('node.mjs', import.meta.url).href : specifier, context)
}
