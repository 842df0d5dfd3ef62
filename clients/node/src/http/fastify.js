// Fastify, as a plugin. A reply goes through Fastify's hooks and its serializer; the plugin's last hook holds it
// until the answer is stored, and puts another in its place where it was not.
import { HttpIdempotency, responseTooLarge } from './core.js'
import { readAll } from './body.js'
import { valuesOf } from './express.js'

/**
 * @typedef {(request: any, reply: any, context: import('./core.js').Context) => unknown} Handler answers by `reply.send` or by what it
 *   returns. In style "lease" it may return a function (tx) => writes after `reply.send`
 * @typedef {(request: any, reply: any) => Promise<any>} Route
 */

const ATTEMPT = Symbol('attempt')

/**
 * A plugin: `fastify.register(fastifyIdempotency, { idempotency, … })`. Then `fastify.idempotent.transaction(handler)` and
 * `fastify.idempotent.lease(handler)` make handlers that run once for each key. Register it after plugins that change replies.
 * @param {any} fastify
 * @param {import('./core.js').HttpOptions & {idempotency: import('../index.js').Idempotency}} options
 */
export async function fastifyIdempotency(fastify, { idempotency, ...options }) {
  const core = new HttpIdempotency(idempotency, options)
  const route = (style) => (handler) => (request, reply) =>
    runRoute(core, style, (context) => handler.call(request.server, request, reply, context), request, reply)
  fastify.decorate('idempotent', { transaction: route('transaction'), lease: route('lease') })
  fastify.decorateRequest(ATTEMPT, null)
  fastify.addHook('onSend', (request, reply, payload) => hold(core, request, reply, payload))
}

// Its decorator and its hook are for the application, not for the plugin.
fastifyIdempotency[Symbol.for('skip-override')] = true
fastifyIdempotency[Symbol.for('fastify.display-name')] = 'pg-idempotency'

async function runRoute(core, style, handle, request, reply) {
  const initial = { ...reply.getHeaders() }
  // An async handler that returns its reply would wait until it is sent, which waits for the handler.
  reply.then = undefined
  const answer = await core.run(toExchange(request), style, async (context) => {
    setAnswer(reply, { status: 200, headers: initial })
    const attempt = new Attempt()
    request[ATTEMPT] = attempt
    const returned = Promise.resolve().then(() => handle(context)).then((value) => {
      if (typeof value === 'function') return value
      if (value !== undefined && value !== reply && !attempt.isSent) reply.send(value)
      return undefined
    })
    const [given, writes] = await Promise.all([attempt.answered, returned])
    return writes ? { ...given, writes } : given
  })
  delete reply.then
  const attempt = request[ATTEMPT]
  request[ATTEMPT] = null
  const complete = answer.live ? answer : { ...answer, headers: { ...initial, ...answer.headers } }
  if (attempt?.isSent) {
    attempt.release(complete)
  } else {
    setAnswer(reply, complete)
    reply.send(complete.body)
  }
  return reply
}

// One call of a handler: the answer it gave, and the answer that is sent.
class Attempt {
  isSent = false

  constructor() {
    this.answered = new Promise((resolve, reject) => { this.give = resolve; this.refuse = reject })
    this.released = new Promise((resolve) => { this.release = resolve })
    // A handler that throws after it has answered: the error is the handler's.
    this.answered.catch(() => {})
  }
}

// A reply of an earlier call, which was repeated, waits for ever: nobody holds on to it.
async function hold(core, request, reply, payload) {
  const attempt = request[ATTEMPT]
  if (!attempt) return payload
  attempt.isSent = true
  try {
    const body = await toBytes(payload, core.maxResponse)
    attempt.give({ status: reply.statusCode, headers: { ...reply.getHeaders() }, body })
  } catch (error) {
    attempt.refuse(error)
  }
  const answer = await attempt.released
  setAnswer(reply, answer)
  return answer.body
}

async function toBytes(payload, limit) {
  if (payload === undefined || payload === null) return Buffer.alloc(0)
  if (typeof payload === 'string' || payload instanceof Uint8Array) return Buffer.from(payload)
  if (payload instanceof Response) return toBytes(payload.body, limit)
  return readAll(payload, limit, responseTooLarge)
}

function setAnswer(reply, { status, headers }) {
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name)
  reply.code(status)
  for (const [name, value] of Object.entries(headers)) {
    if (name.toLowerCase() !== 'content-length') reply.header(name, value)
  }
}

function toExchange(request) {
  return {
    request,
    method: request.method,
    target: request.originalUrl,
    route: request.routeOptions.url,
    header: (name) => valuesOf(request.raw.rawHeaders, name),
    body: async () => request.body,
  }
}
