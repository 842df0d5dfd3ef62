// Fastify, as a plugin. A reply goes through Fastify's hooks and its serializer; the plugin's last hook holds it
// until the answer is stored, and puts another in its place where it was not.
import { finished } from 'node:stream'
import { HttpIdempotency, ofAnswer, responseTooLarge, withWrites } from './core.js'
import { hush, tookOver } from './answer.js'
import { comparable, keep, keptBody, readAll, readRequest, saysBody, unseen } from './body.js'
import { valuesOf } from './express.js'

/**
 * A handler answers by `reply.send` or by what it returns. In style "lease" it may return a function (tx) => writes after `reply.send`.
 * @template C
 * @typedef {<G extends import('fastify').RouteGenericInterface = import('fastify').RouteGenericInterface>(
 *   handler: (request: import('fastify').FastifyRequest<G>, reply: import('fastify').FastifyReply<G>, context: C) => unknown) =>
 *   (request: import('fastify').FastifyRequest<G>, reply: import('fastify').FastifyReply<G>) => Promise<unknown>} Wrap
 */
/**
 * What the instance has as `idempotent`: in TypeScript, declare it on FastifyInstance.
 * @template [Tx=unknown]
 * @typedef {{transaction: Wrap<import('./core.js').TransactionContext<Tx>>, lease: Wrap<import('./core.js').Context<Tx>>}} Idempotent
 */

const ATTEMPT = Symbol('attempt')

/**
 * A plugin: `fastify.register(fastifyIdempotency, { idempotency, … })`. Then `fastify.idempotent.transaction(handler)` and
 * `fastify.idempotent.lease(handler)` make handlers that run once for each key. Register it after plugins that change replies.
 * @param {import('fastify').FastifyInstance} instance
 * @param {import('./core.js').HttpOptions<import('fastify').FastifyRequest> & {idempotency: import('../index.js').Idempotency}} options
 */
export async function fastifyIdempotency(instance, { idempotency, ...options }) {
  const fastify = /** @type {any} */ (instance)
  const core = new HttpIdempotency(idempotency, options)
  const routes = new WeakSet()
  const route = (style) => (handler) => {
    const run = (request, reply) =>
      runRoute(core, style, (context) => handler.call(request.server, request, reply, context), request, reply)
    routes.add(run)
    return run
  }
  fastify.decorate('idempotent', { transaction: route('transaction'), lease: route('lease') })
  fastify.decorateRequest(ATTEMPT, null)
  fastify.addHook('onRoute', (options) => {
    if (!routes.has(options.handler)) return
    options.errorHandler ??= bodyErrors(core)
    // What the client sent is compared, not what a parser of Fastify makes of it.
    options.onRequest = [options.onRequest ?? []].flat().concat(keepBody(core))
  })
  fastify.addHook('onSend', (request, reply, payload) => hold(core, request, reply, payload))
  // An answer that Fastify cannot make, as its serializer fails, is an error of the handler, which is done.
  fastify.addHook('onError', async (request, reply, error) => {
    const attempt = request[ATTEMPT]
    if (!attempt?.isError) attempt?.refuse(ofAnswer(error))
  })
}

// Its decorator and its hook are for the application, not for the plugin.
fastifyIdempotency[Symbol.for('skip-override')] = true
fastifyIdempotency[Symbol.for('fastify.display-name')] = 'pg-idempotency'

// A body that Fastify refuses never comes to the route. Other errors go on to the application's own handler.
function bodyErrors(core) {
  return (error, request, reply) => {
    if (!error.code?.startsWith('FST_ERR_CTP_')) throw error
    const { status, headers, body } = core.bodyProblem(error, request)
    setAnswer(reply, { status, headers: { ...reply.getHeaders(), ...headers } })
    // Fastify has not read it: a connection that is closed while its client still sends is reset, and the answer may be lost.
    finished(request.raw.resume(), () => reply.send(body))
  }
}

function keepBody(core) {
  return async (request) => keep(request.raw, core.maxRequest)
}

// A body that no parser has read, such as that of @fastify/multipart, is not known here.
async function bodyOf(request, header, type, isEncoded, maxRequest) {
  const kept = keptBody(request.raw, maxRequest)
  if (kept) return comparable(kept, type, isEncoded)
  if (saysBody(header)) throw unseen()
  // HTTP/2 has bodies that no header tells of. Without a type Fastify reads none.
  const { raw } = request
  if (raw.stream?.endAfterHeaders === false && (type !== '' || (await readRequest(raw, maxRequest)).length > 0)) throw unseen()
  return 'null'
}

async function runRoute(core, style, handle, request, reply) {
  const [initial, statusMessage] = [{ ...reply.getHeaders() }, reply.raw.statusMessage]
  // An async handler that returns its reply would wait until it is sent, which waits for the handler.
  reply.then = undefined
  let giveBack = () => {}
  const answer = await core.run(toExchange(request, core.maxRequest), style, async (context) => {
    setAnswer(reply, { status: 200, statusMessage, headers: initial })
    const attempt = new Attempt(context.signal)
    request[ATTEMPT] = attempt
    giveBack()
    giveBack = hush(reply.raw, () => attempt.refuse(tookOver()))
    return withWrites(attempt.answered, called(() => handle(context), reply, attempt))
  })
  delete reply.then
  giveBack()
  const attempt = request[ATTEMPT]
  const complete = answer.live ? answer : { ...answer, headers: { ...initial, ...answer.headers } }
  if (reply.sent) {
    sendRaw(reply.raw, complete)
  } else if (attempt?.isCalled) {
    attempt.release(complete)
  } else {
    request[ATTEMPT] = null
    setAnswer(reply, complete)
    const isTyped = reply.hasHeader('content-type')
    reply.send(complete.body)
    // Fastify has given the bytes a type, and sends nothing before the hook has ended.
    if (!isTyped) reply.removeHeader('content-type')
  }
  return reply
}

// Calls a handler, and sends what it returns. As everywhere in Fastify, an async handler has answered when it ends; a
// plain one may send later.
async function called(handle, reply, attempt) {
  // Not known from the hook: those of other plugins come first, and may take their time.
  reply.send = (payload) => {
    delete reply.send
    // An error that it sends is answered by the application.
    attempt.isError = payload instanceof Error
    reply.send(payload)
    attempt.isCalled = true
    return reply
  }
  // Fastify takes the 200 of setAnswer for the handler's own.
  reply.redirect = (url, code = reply.statusCode === 200 ? 302 : reply.statusCode) => {
    delete reply.redirect
    return reply.redirect(url, code)
  }
  const returned = handle()
  const value = await returned
  if (reply.sent) throw tookOver()
  if (typeof value === 'function') return value
  const isAnswer = value === undefined ? typeof returned?.then === 'function' : value !== reply
  if (isAnswer && !attempt.isCalled) reply.send(value)
  return undefined
}

// Fastify leaves a reply alone that a handler has taken over.
function sendRaw(raw, { status, headers, body }) {
  if (raw.writableEnded) return
  raw.statusMessage = ''
  if (raw.headersSent) raw.destroy()
  else raw.writeHead(status, headers).end(body)
}

// One call of a handler: the answer it gave, and the answer that is sent.
class Attempt {
  isCalled = false
  isError = false

  constructor(signal) {
    this.signal = signal
    this.answered = new Promise((resolve, reject) => { this.give = resolve; this.refuse = reject })
    this.released = new Promise((resolve) => { this.release = resolve })
  }
}

// A reply of an earlier call, which was repeated, waits for ever: nobody holds on to it.
async function hold(core, request, reply, payload) {
  const attempt = request[ATTEMPT]
  if (!attempt) return payload
  // Fastify takes the status and the headers of a Response when it sends, which is after COMMIT.
  if (payload instanceof Response) {
    reply.code(payload.status)
    for (const [name, value] of payload.headers) reply.header(name, value)
    payload = payload.body
  }
  const [status, statusMessage, headers] = [reply.statusCode, reply.raw.statusMessage, { ...reply.getHeaders() }]
  // A stream may never end: the answer is sent all the same when time is up.
  toBytes(payload, core.maxResponse, status, attempt.signal).then((body) => attempt.give({ status, statusMessage, headers, body }), attempt.refuse)
  const answer = await attempt.released
  // If a later hook fails, the answer is that of Fastify.
  request[ATTEMPT] = null
  payload?.destroy?.()
  setAnswer(reply, answer)
  return answer.body
}

async function toBytes(payload, limit, status, signal) {
  if (payload === undefined || payload === null) return Buffer.alloc(0)
  if (typeof payload === 'string' || payload instanceof Uint8Array) return Buffer.from(payload)
  return readAll(payload, limit, () => responseTooLarge({ status }), signal)
}

/**
 * @param {any} reply
 * @param {Pick<import('./problem.js').Answer, 'status' | 'statusMessage' | 'headers'>} answer
 */
function setAnswer(reply, { status, statusMessage, headers }) {
  reply.raw.statusMessage = statusMessage
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name)
  reply.code(status)
  for (const [name, value] of Object.entries(headers)) {
    if (name.toLowerCase() !== 'content-length') reply.header(name, value)
  }
}

function toExchange(request, maxRequest) {
  const header = (name) => valuesOf(request.raw.rawHeaders, name)
  return {
    request,
    method: request.method,
    target: request.originalUrl,
    route: request.routeOptions.url,
    header,
    body: (type, isEncoded) => bodyOf(request, header, type, isEncoded, maxRequest),
  }
}
