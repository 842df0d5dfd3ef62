// Hono: a handler gives back a Response, which is read, stored, and sent.
import { routePath } from 'hono/route'
import { hush, tookOver } from './answer.js'
import { comparable, isJson, mediaType, parseJson, readAll, readRequest, unreadable, unseen } from './body.js'
import { HttpIdempotency, answering, ofAnswer, responseTooLarge } from './core.js'
import { telling } from '../options.js'
import { valuesOf } from './express.js'
import { knownProblem } from './problem.js'

/**
 * A handler gives back a Response; in style "lease" it may give writes as well, which commit together with the answer.
 * @template A
 * @template C
 * @typedef {<H extends import('hono').Context = import('hono').Context>(handler: (c: H, context: C) => A | Promise<A>) =>
 *   (c: H) => Promise<Response>} Wrap
 */

/**
 * Routes of Hono that run once for each key.
 * @template Tx
 * @param {import('../index.js').Idempotency<Tx>} idempotency
 * @param {import('./core.js').HttpOptions<import('hono').HonoRequest>} options
 * @returns {{transaction: Wrap<Response, import('./core.js').TransactionContext<Tx>>,
 *   lease: Wrap<Response | {response: Response, writes: (tx: Tx) => unknown}, import('./core.js').Context<Tx>>}}
 */
export function honoIdempotency(idempotency, options) {
  const core = new HttpIdempotency(idempotency, options)
  const onError = options.onError && telling('onError', options.onError)
  const route = (/** @type {'transaction' | 'lease'} */ style) => (/** @type {Function} */ handler) => async (c) => {
    const answer = await core.run(toExchange(c, core.maxRequest), style, async (context) => {
      const given = await called(handler, c, context)
      return given instanceof Response || !given?.response
        ? toAnswer(given, core.maxResponse, context.signal)
        : toAnswer(given.response, core.maxResponse, context.signal, given.writes)
    })
    if (!answer.error) return toResponse(answer)
    if (!hasOwnResponse(answer.error)) giveResponse(answer.error, answer, c.req, onError)
    throw answer.error
  }
  return { transaction: route('transaction'), lease: route('lease') }
}

const ANSWERING = ['json', 'text', 'html', 'body', 'newResponse', 'redirect', 'header']

// That a body is no JSON, the handler finds out where it is empty, has a Content-Encoding, or came without a key.
async function called(handler, c, context) {
  const own = ANSWERING.map((name) => c[name])
  for (const name of ANSWERING) c[name] = answering(c[name])
  let isPast = false
  const giveBack = c.env?.outgoing ? hush(c.env.outgoing, () => { isPast = true }) : () => {}
  // Time may be up for a handler that goes on.
  context.signal.addEventListener('abort', giveBack, { once: true })
  try {
    const given = await handler(c, context)
    if (isPast) throw tookOver()
    return given
  } catch (error) {
    const text = error instanceof SyntaxError ? await c.req.text().catch(() => undefined) : undefined
    if (text === '' || (text && isJson(mediaType(c.req.header('content-type'))))) parseJson(Buffer.from(text))
    throw error
  } finally {
    giveBack()
    for (const [index, name] of ANSWERING.entries()) c[name] = own[index]
  }
}

function toExchange(c, maxRequest) {
  const url = new URL(c.req.url)
  const raw = c.env?.incoming?.rawHeaders
  return {
    request: c.req,
    method: c.req.method,
    target: url.pathname + url.search,
    route: routePath(c),
    header: (name) => raw ? valuesOf(raw, name) : [c.req.header(name)].filter((value) => value !== undefined),
    body: (type, isEncoded) => bodyOf(c, type, isEncoded, maxRequest),
    passOn,
  }
}

// An error that this package does not know is answered by the application's onError. Only Hono can ask that, and after the rollback: so
// the error itself has to say whether it is a refusal, by its response, as HTTPException does, or by its status.
function passOn(error, problem) {
  if (!(error instanceof Error)) return undefined
  if (hasOwnResponse(error)) return { status: statusOf(error), headers: {}, body: Buffer.alloc(0), error }
  return knownProblem(error) || !Object.isExtensible(error) ? undefined : { ...problem, error }
}

// Errors whose response is a problem of this package.
const givenResponses = new WeakSet()

function hasOwnResponse(error) {
  return 'getResponse' in error && !givenResponses.has(error)
}

// Where the application has no onError, Hono's own asks the error for its response, and logs nothing.
function giveResponse(error, problem, request, onError) {
  const isUnexpected = problem.status === 500
  if (isUnexpected) onError?.(error, request)
  const getResponse = () => {
    if (isUnexpected && !onError) console.error(error)
    return toResponse(problem)
  }
  Object.defineProperty(error, 'getResponse', { value: getResponse, configurable: true })
  givenResponses.add(error)
}

function statusOf(error) {
  try {
    return error.getResponse().status
  } catch {
    return 500
  }
}

// Read under the limit, and put back for the handler. What a middleware has read, Hono keeps, and gives again.
async function bodyOf(c, type, isEncoded, maxRequest) {
  const { raw, bodyCache } = c.req
  if ('text' in bodyCache || 'arrayBuffer' in bodyCache) {
    const bytes = Buffer.from(await c.req.arrayBuffer())
    // The text of bytes that were no UTF-8 does not say which ones, and may have lost the three bytes of a byte order mark.
    if ('text' in bodyCache && bytes.includes('\ufffd')) throw unseen()
    return comparable(whole(c, bytes, 'text' in bodyCache ? 3 : 0), type, isEncoded)
  }
  if (raw.bodyUsed) throw unseen()
  if (!raw.body) return 'null'
  const bytes = whole(c, await readRequest(raw.body, maxRequest))
  c.req.raw = new Request(raw.url, { method: raw.method, headers: raw.headers, body: new Uint8Array(bytes), signal: raw.signal })
  return comparable(bytes, type, isEncoded)
}

// Deno gives a body that its client has broken off under HTTP/2 as a whole one.
function whole(c, bytes, lost = 0) {
  if (bytes.length + lost < Number(c.req.header('content-length'))) throw unreadable(new Error('the body is shorter than its Content-Length'))
  return bytes
}

async function toAnswer(response, maxResponse, signal, writes) {
  const { status, pairs, stream } = partsOf(response, writes)
  const headers = Object.fromEntries(pairs
    // It is sent as a whole, with a length: a client refuses an answer with both.
    .filter(([name]) => name !== 'transfer-encoding')
    .map(([name, value]) => [name, name === 'set-cookie' ? response.headers.getSetCookie() : value]))
  const body = stream ? await readAll(stream, maxResponse, () => responseTooLarge({ status, writes }), signal) : Buffer.alloc(0)
  return { status, headers, body, writes }
}

// A Response of @hono/node-server is not made before it is read, and may be one that cannot be.
function partsOf(response, writes) {
  const status = response?.status
  try {
    return { status, pairs: [...response.headers], stream: response.body }
  } catch (error) {
    throw ofAnswer(error, { status, writes })
  }
}

const WITHOUT_BODY = new Set([204, 205, 304])

function toResponse({ status, headers, body }) {
  const all = new Headers()
  for (const [name, value] of Object.entries(headers)) {
    for (const one of [value].flat()) all.append(name, one)
  }
  return new Response(WITHOUT_BODY.has(status) || body.length === 0 ? null : new Uint8Array(body), { status, headers: all })
}
