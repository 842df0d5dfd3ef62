// What Hono alone has: errors with a response, and the onError of an application.
import assert from 'node:assert/strict'
import { gzipSync } from 'node:zlib'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { serve } from '@hono/node-server'
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { streamSSE } from 'hono/streaming'
import { Idempotency, KeyReused } from 'pg-idempotency'
import { honoIdempotency } from 'pg-idempotency/hono'
import { effect, effects, newKey, poolFor, portOf, send } from './support.js'

class Declining extends HTTPException {
  getResponse() {
    return Response.json({ reason: this.message }, { status: 402, headers: { 'X-Reason': 'own', 'Set-Cookie': 'a=1' } })
  }
}
class Broken extends HTTPException {
  getResponse() {
    throw new RangeError('no response')
  }
}
const THROWN = {
  '/response': () => new HTTPException(401, { res: Response.json({ who: '?' }, { headers: { 'WWW-Authenticate': 'Bearer realm="a"' } }) }),
  '/stream': () => new HTTPException(429, { res: new Response(new Blob(['slowly']).stream(), { headers: { 'Retry-After': '7' } }) }),
  '/own': () => new Declining(500, { message: 'poor' }),
  '/message': () => new HTTPException(409, { message: 'taken' }),
  '/busy': () => new HTTPException(503, { res: new Response('later', { headers: { 'X-Mine': 'yes' } }) }),
  '/broken': () => new Broken(403),
}
const told = (error, c) => c.json({ told: error.constructor.name }, error.status === 503 ? 502 : 418, { 'X-Told': error.message })
// What stands above the routes: Hono's own answer, the application's, and that of a part of it.
const APPLICATIONS = {
  'no onError': (routes) => routes,
  onError: (routes) => routes.onError(told),
  'onError of a part': (routes) => new Hono().route('/', routes.onError(told)).onError((error, c) => c.text('the outer one', 500)),
}

function routes(wrap) {
  const app = new Hono()
  for (const [path, error] of Object.entries(THROWN)) {
    app.post(path, wrap(async (c, context) => {
      c.header('X-Before', 'set')
      if (context?.tx) await effect(context.tx, 'hono thrown')
      throw error()
    }))
  }
  return app
}

async function post(app, path, key = newKey()) {
  const headers = { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }) }
  const response = await app.request(path, { method: 'POST', body: '{}', headers }).catch((error) => error)
  // as Hono itself does with '/broken'
  if (response instanceof Error) return { rejected: response.message }
  return { status: response.status, headers: [...response.headers], body: await response.text() }
}

for (const [name, application] of Object.entries(APPLICATIONS)) {
  test(`${name}: an error that has a response is answered as without the package`, async (t) => {
    const pool = poolFor(t)
    const once = honoIdempotency(new Idempotency(pool),
      { scope: () => 'hono thrown', required: false, onError: (error) => errors.push(error) })
    await pool.query("SELECT idem_set_policy('hono thrown', max_lost_attempts => 1)")
    const errors = []
    const without = application(routes((handler) => handler))
    const [transaction, lease] = [once.transaction, once.lease].map((wrap) => application(routes(wrap)))
    for (const path of Object.keys(THROWN)) {
      const expected = await post(without, path)
      assert.ok(expected.rejected || expected.headers.some(([name]) => name === 'x-before'), path)
      const key = newKey()
      assert.deepEqual([await post(transaction, path, key), await post(transaction, path, null), await post(lease, path)],
        [expected, expected, expected], path)
      // what is refused is no lost attempt, and is not stored
      const again = await post(transaction, path, key)
      if (path === '/busy' || path === '/broken') assert.equal(JSON.parse(again.body).reason, 'attempts lost', path)
      else assert.deepEqual(again, expected, path)
    }
    assert.equal(await effects(pool, 'hono thrown'), 0)
    assert.deepEqual(errors, [])
  })
}

test('a header of an answer may have any name', async (t) => {
  const once = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me', headers: ['__proto__'] })
  const app = new Hono().post('/named', once.transaction(() => new Response('done', { headers: [['__proto__', 'a']] })))
  const key = newKey()
  for (const replayed of [null, 'true']) {
    const headers = new Headers((await post(app, '/named', key)).headers)
    assert.deepEqual([headers.get('__proto__'), headers.get('idempotency-replayed')], ['a', replayed])
  }
})

// Errors without a response. The second one says by its status that it is a refusal.
const PLAIN = {
  '/plain': new Error('plain'),
  '/status': Object.assign(new Error('status'), { status: 409 }),
}

// An application whose handlers throw what PLAIN has, and the errors that its parts are told of.
async function throwing(t, { application = (routes) => routes, ...options } = {}) {
  const pool = poolFor(t)
  const heard = []
  const scope = newKey()
  await pool.query('SELECT idem_set_policy($1, max_lost_attempts => 1)', [scope])
  const once = honoIdempotency(new Idempotency(pool), { scope: () => scope, describedBy: '/keys', required: false, ...options })
  const app = new Hono()
  for (const [path, error] of Object.entries(PLAIN)) {
    app.post(path, once.transaction(async (c, { tx }) => { await effect(tx, scope); throw error }))
    app.post(`/lease${path}`, once.lease(() => { throw error }))
  }
  t.mock.method(console, 'error', (error) => heard.push(`console: ${error.message}`))
  return { app: application(app, heard), heard, scope, pool }
}

const answering = (routes, heard) => routes.onError((error, c) => {
  heard.push(`application: ${error.message}`)
  return told(error, c)
})

test('the onError of the application answers an error of a handler, which rolls back; without a status it is a lost attempt', async (t) => {
  const { app, heard, scope, pool } = await throwing(t, { application: answering })
  for (const [path, error] of Object.entries(PLAIN)) {
    const key = newKey()
    for (const answer of [await post(app, path, key), await post(app, path, null), await post(app, `/lease${path}`)]) {
      assert.deepEqual([answer.status, answer.body], [418, '{"told":"Error"}'], path)
      assert.deepEqual(answer.headers.find(([name]) => name === 'x-told'), ['x-told', error.message])
    }
    const again = await post(app, path, key)
    if (path === '/plain') assert.equal(JSON.parse(again.body).reason, 'attempts lost')
    else assert.equal(again.status, 418)
  }
  assert.equal(await effects(pool, scope), 0)
  assert.deepEqual(new Set(heard), new Set(Object.values(PLAIN).map(({ message }) => `application: ${message}`)))
})

test('without an onError of the application the answer is a problem, and the console is told', async (t) => {
  const { app, heard } = await throwing(t)
  const seen = []
  for (const path of ['/plain', '/plain', '/status']) {
    const { status, headers, body } = await post(app, path)
    seen.push([status, JSON.parse(body).title, new Headers(headers).get('link')])
  }
  const link = '</keys>; rel="describedby"'
  assert.deepEqual(seen, [[500, 'Internal Server Error', link], [500, 'Internal Server Error', link], [409, 'Conflict', link]])
  assert.deepEqual(heard, ['console: plain', 'console: plain'])
})

test('an onError that is given to the package is told of what becomes a 500, whoever answers', async (t) => {
  for (const application of [answering, undefined]) {
    const errors = []
    const { app, heard } = await throwing(t, { application, onError: (error) => errors.push(error) })
    for (const path of Object.keys(PLAIN)) await post(app, path)
    assert.deepEqual([errors, heard.filter((one) => one.startsWith('console'))], [[PLAIN['/plain']], []])
  }
})

test('mapError comes before the application; errors of the package, and those that a repeat may heal, are problems', async (t) => {
  const pool = poolFor(t)
  const once = honoIdempotency(new Idempotency(pool, { retry: { attempts: 1 } }), {
    principal: (request) => { if (request.path === '/who') throw THROWN['/response'](); return newKey() },
    mapError: (error) => error.message === 'mine' ? { status: 410, title: 'gone' } : undefined,
  })
  const app = new Hono().onError(told)
  const thrown = {
    '/mine': new HTTPException(403, { message: 'mine' }), '/own': new Error('mine'), '/who': null,
    '/reused': new KeyReused('another one', {}), '/busy': Object.assign(new Error('busy'), { code: '40001' }), '/string': 'no error',
    '/frozen': Object.freeze(new Error('takes no response')),
  }
  for (const [path, error] of Object.entries(thrown)) app.post(path, once.transaction(() => { throw error }))
  t.mock.method(console, 'error', () => {})
  const titles = []
  for (const path of Object.keys(thrown).filter((path) => path !== '/who')) titles.push(JSON.parse((await post(app, path)).body).title)
  assert.deepEqual(titles, [
    'gone', 'gone', 'Idempotency-Key is already used', 'The service is busy', 'Internal Server Error', 'Internal Server Error'])
  assert.equal((await post(app, '/who')).body, '{"told":"HTTPException"}')
  assert.equal(JSON.parse((await post(app, '/own', null)).body).title, 'Idempotency-Key is missing')
})

test('JSON that is none, where only the handler finds out, is refused; a SyntaxError of its own is not', async (t) => {
  const once = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => newKey(), required: false, onError: () => {} })
  const app = new Hono()
  app.post('/read', once.transaction(async (c) => c.json(await c.req.json())))
  app.post('/own', once.transaction(() => { throw new SyntaxError('own') }))
  app.post('/other', once.transaction(() => { throw new RangeError('other') }))
  const status = async (path, body, headers) => (await app.request(path, {
    method: 'POST', body, headers: { 'content-type': 'application/json', ...headers },
  })).status
  const keyed = { 'idempotency-key': newKey() }
  const refused = [await status('/read', '{"a"'), await status('/read', '', keyed),
    await status('/read', '{"a"', { ...keyed, 'content-encoding': 'x' })]
  assert.deepEqual(refused, [400, 400, 400])
  const cut = new ReadableStream({ pull: (controller) => controller.error(new Error('cut')) })
  assert.equal((await app.request('/read', { method: 'POST', body: cut, duplex: 'half', headers: keyed })).status, 400)
  const failed = [await status('/own', '{}'), await status('/other', '{"a"'),
    await status('/read', '{"a"', { 'content-type': 'text/plain' })]
  assert.deepEqual(failed, [500, 500, 500])
})

// The bytes are compared that a middleware has read, if it has kept them.
const READ = {
  text: [[200, 200, 422], [500, 500, 500]], arrayBuffer: [[200, 200, 422], [200, 200, 422]], json: [[200, 200, 422], [500, 500, 500]],
  blob: [[500, 500, 500], [500, 500, 500]],
}

for (const [read, answers] of Object.entries(READ)) {
  test(`a body that a middleware has read by ${read}()`, async (t) => {
    const errors = []
    const once = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me', onError: (error) => errors.push(error) })
    const app = new Hono()
    app.use(async (c, next) => { await c.req[read](); await next() })
    app.post('/', once.transaction((c) => c.text('done')))
    const seen = []
    for (const [one, other] of [['"a"', '"b"'], ['"\xff"', '"\xfe"']]) {
      const headers = { 'content-type': 'application/json', 'idempotency-key': newKey() }
      const ask = async (text) => (await app.request('/', { method: 'POST', body: Buffer.from(text, 'latin1'), headers })).status
      seen.push([await ask(one), await ask(one), await ask(other)])
    }
    assert.deepEqual(seen, answers)
    assert.ok(errors.every(({ message }) => message.includes('cannot be compared')))
    if (read !== 'arrayBuffer') return
    const headers = { 'content-type': 'application/json', 'content-encoding': 'gzip' }
    for (const body of [gzipSync('{}'), '"\ufffd"']) {
      headers['idempotency-key'] = newKey()
      assert.equal((await app.request('/', { method: 'POST', body, headers })).status, 200)
    }
  })
}

test('an answer of another realm, whose status has no body, to a request without one; its handler sees that the client has gone', async (t) => {
  const once = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me' })
  const gone = new AbortController()
  const app = new Hono()
  app.post('/:status', once.transaction(async (c) => {
    if (c.req.raw.body) gone.abort()
    return { status: Number(c.req.param('status')), headers: new Headers({ 'X-Gone': c.req.raw.signal.aborted }), body: ['x'] }
  }))
  for (const status of [204, 205, 304]) {
    const headers = { 'idempotency-key': newKey() }
    const seen = []
    for (let i = 0; i < 2; i++) seen.push((await app.request(`/${status}`, { method: 'POST', headers })).status)
    assert.deepEqual(seen, [status, status])
  }
  const request = new Request('http://localhost/200',
    { method: 'POST', body: '{}', headers: { 'idempotency-key': newKey() }, signal: gone.signal })
  assert.equal((await app.request(request)).headers.get('x-gone'), 'true')
})

const WRONG = { 'X-A': 'Łódź' }
for (const [name, answer] of Object.entries({
  json: (c) => c.json(1n), text: (c) => c.text('', 200, WRONG), html: (c) => c.html('', 200, WRONG), body: (c) => c.body('', 200, WRONG),
  newResponse: (c) => c.newResponse('', 200, WRONG), redirect: (c) => c.redirect('/', 99), header: (c) => c.header('a b', 'c') ?? c.text(''),
})) {
  test(`a lease is done whose answer c.${name} cannot make`, async (t) => {
    const once = honoIdempotency(new Idempotency(poolFor(t)), { scope: () => 'hono wrong', onError() {} })
    const key = newKey()
    let runs = 0
    const app = new Hono().post('/', once.lease((c) => { runs++; return answer(c) }))
    const titles = []
    for (let call = 0; call < 2; call++) titles.push(JSON.parse((await post(app, '/', key)).body).title)
    assert.deepEqual([titles, runs], [['Internal Server Error', 'The answer could not be stored'], 1])
  })
}

test('a lease is done whose Response @hono/node-server cannot make, which it tries after the handler', async (t) => {
  const pool = poolFor(t)
  const once = honoIdempotency(new Idempotency(pool), { scope: () => 'hono late', onError() {} })
  const [key, name] = [newKey(), newKey()]
  const app = new Hono().post('/', once.lease((c) => ({ response: c.body('x', 204), writes: (tx) => effect(tx, name) })))
  const port = await portOf(t, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }))
  const titles = []
  for (let call = 0; call < 2; call++) {
    const { body } = await send(port,
      { method: 'POST', path: '/', body: '{}', headers: { 'content-type': 'application/json', 'idempotency-key': key } })
    titles.push(JSON.parse(body).title)
  }
  assert.deepEqual([titles, await effects(pool, name)], [['Internal Server Error', 'The answer could not be stored'], 1])
})

test('a stream of Node that is too large is given up, and the process goes on', async (t) => {
  const once = honoIdempotency(new Idempotency(poolFor(t)), { scope: () => 'hono large', maxResponse: 10_000, onError() {} })
  const endless = {
    '/pushed': () => new Readable({ read() { this.push(Buffer.alloc(1000)) } }),
    '/made': () => Readable.from((async function* () { for (;;) { await null; yield Buffer.alloc(1000) } })()),
  }
  for (const [path, stream] of Object.entries(endless)) {
    const app = new Hono().post(path, once.transaction((c) => c.body(Readable.toWeb(stream()))))
    for (let call = 0; call < 5; call++) assert.equal((await post(app, path)).status, 500)
    await sleep(50)
  }
})

test('what a handler writes past Hono is not sent: rolled back, and a 500', async (t) => {
  const pool = poolFor(t)
  const once = honoIdempotency(new Idempotency(pool), { scope: () => 'hono past', onError() {} })
  const key = newKey()
  const app = new Hono().post('/', once.transaction(async (c, { tx }) => {
    await effect(tx, key)
    c.env.outgoing.writeHead(201).end('mine')
    return RESPONSE_ALREADY_SENT
  }))
  const port = await portOf(t, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }))
  const { status, body } = await send(port, { method: 'POST', path: '/', body: '', headers: { 'idempotency-key': key } })
  assert.deepEqual([status, JSON.parse(body).title, await effects(pool, key)], [500, 'Internal Server Error', 0])
})

test('a stream of events is one answer, with one length', async (t) => {
  const app = new Hono()
  const { transaction } = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => 'anyone' })
  app.post('/', transaction((c) => streamSSE(c, (events) => events.writeSSE({ data: 'paid' }))))
  const port = await portOf(t, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }))
  const key = newKey()
  for (const replayed of [null, 'true']) {
    const answer = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', headers: { 'Idempotency-Key': key } })
    assert.deepEqual([await answer.text(), answer.headers.get('Idempotency-Replayed')], ['data: paid\n\n', replayed])
  }
})

test('a body that is shorter than its length is refused, also where a middleware has read it', async (t) => {
  const once = honoIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me' })
  for (const before of [(c, next) => next(), async (c, next) => { await c.req.arrayBuffer(); await next() }]) {
    const app = new Hono()
    app.post('/', before, once.transaction((c) => c.text('ran')))
    for (const [length, status] of [['3', 400], ['2', 200], [undefined, 200]]) {
      const headers = { 'content-type': 'application/json', 'idempotency-key': newKey(), ...(length && { 'content-length': length }) }
      assert.equal((await app.request('/', { method: 'POST', body: '{}', headers })).status, status)
    }
  }
  // A text has lost its byte order mark.
  const app = new Hono()
  app.post('/', async (c, next) => { await c.req.text(); await next() }, once.transaction((c) => c.text('ran')))
  for (const [length, status] of [['4', 200], ['5', 400]]) {
    const headers = { 'content-type': 'text/csv', 'idempotency-key': newKey(), 'content-length': length }
    assert.equal((await app.request('/', { method: 'POST', body: '\ufeffa', headers })).status, status)
  }
})
