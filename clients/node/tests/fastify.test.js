// What Fastify alone has: its hooks, and its reply.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http2 from 'node:http2'
import { createGunzip, gzipSync } from 'node:zlib'
import { test } from 'node:test'
import Fastify from 'fastify'
import { Idempotency } from 'pg-idempotency'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { effect, effects, newKey, poolFor, send } from './support.js'

async function app(t, setUp, options) {
  const pool = poolFor(t, options)
  const fastify = Fastify()
  const errors = []
  await setUp(fastify, () => fastify.register(fastifyIdempotency, {
    idempotency: new Idempotency(pool), principal: () => newKey(), onError: (error) => errors.push(error.message),
  }))
  await fastify.listen({ port: 0, host: '127.0.0.1' })
  t.after(() => fastify.close())
  const post = (path, body = '{}', type = 'application/json', headers = {}) => send(fastify.server.address().port, {
    method: 'POST', path, body, headers: { 'content-type': type, 'idempotency-key': newKey(), ...headers } })
  return { pool, post, errors }
}

test('a body that is too large is read to its end before it is refused', async (t) => {
  const complete = []
  const { post } = await app(t, async (fastify, register) => {
    fastify.addHook('onSend', async (request) => { complete.push(request.raw.complete) })
    await register()
    fastify.post('/', fastify.idempotent.transaction(() => 'ran'))
  })
  assert.deepEqual([(await post('/', 'x'.repeat(5_000_000))).status, complete], [413, [true]])
})

test('a redirect, and a Response, have the status that Fastify gives them', async (t) => {
  const routes = {
    302: (reply) => reply.redirect('/'), 303: (reply) => reply.code(303).redirect('/'), 307: (reply) => reply.redirect('/', 307),
    402: () => new Response('no', { status: 402, headers: { Location: '/' } }),
  }
  const { post } = await app(t, async (fastify, register) => {
    await register()
    for (const [path, redirect] of Object.entries(routes)) fastify.post(`/${path}`, fastify.idempotent.transaction(async (request, reply) => redirect(reply)))
  })
  for (const path of Object.keys(routes)) {
    const { status, headers } = await post(`/${path}`)
    assert.deepEqual([status, headers.location], [Number(path), '/'])
  }
})

test('a body that a hook decodes is compared by the bytes that came', async (t) => {
  const { post } = await app(t, async (fastify, register) => {
    fastify.addHook('preParsing', async (request, reply, payload) => {
      const decoded = payload.pipe(createGunzip())
      decoded.receivedEncodedLength = Number(request.headers['content-length'])
      return decoded
    })
    await register()
    fastify.post('/do', fastify.idempotent.transaction(async (request, reply) => reply.code(201).send(request.body)))
  })
  const { status, body } = await post('/do', gzipSync('{"a":1}'), 'application/json', { 'content-encoding': 'gzip' })
  assert.deepEqual([status, body], [201, '{"a":1}'])
})

test('a handler that takes over its reply is rolled back at once, and answered', async (t) => {
  const name = newKey()
  let ends = 0
  const { pool, post, errors } = await app(t, async (fastify, register) => {
    // As a program that watches each response.
    fastify.addHook('onRequest', async (request, { raw }) => {
      const { end } = raw
      raw.end = (...given) => { ends++; return end.apply(raw, given) }
    })
    await register()
    const take = (path, more) => fastify.post(path, fastify.idempotent.transaction(async (request, reply, { tx }) => {
      await effect(tx, name)
      more(reply)
    }))
    take('/hijack', (reply) => { reply.raw.statusMessage = 'Fine'; reply.hijack() })
    take('/raw', (reply) => reply.raw.end('mine'))
    take('/destroy', (reply) => reply.raw.destroy())
    take('/part', (reply) => { reply.hijack(); reply.raw.write('part') })
    take('/head', (reply) => { reply.raw.writeHead(201); reply.raw.flushHeaders(); return reply.send('mine') })
    fastify.post('/later', fastify.idempotent.transaction((request, reply, { tx }) => { effect(tx, name).then(() => reply.raw.end('mine')) }))
  }, { max: 1 })
  for (const path of ['/hijack', '/raw', '/destroy', '/later', '/part', '/head']) {
    const { status, reason, headers, body } = await post(path)
    assert.deepEqual([status, reason, headers['content-type'], JSON.parse(body).title],
      [500, 'Internal Server Error', 'application/problem+json', 'Internal Server Error'])
  }
  // The pool has one connection: it is free again when the refused transaction has ended.
  assert.deepEqual([await effects(pool, name), errors.length, ends], [0, 6, 6])
})

test('an async handler that ends without an answer has an empty one', async (t) => {
  const { post } = await app(t, async (fastify, register) => {
    await register()
    fastify.post('/nothing', fastify.idempotent.transaction(async () => {}))
    fastify.post('/later', fastify.idempotent.transaction((request, reply) => { setImmediate(() => reply.send('later')) }))
    fastify.post('/reply', fastify.idempotent.transaction((request, reply) => { setImmediate(() => reply.send('later')); return reply }))
  })
  const { status, body } = await post('/nothing')
  assert.deepEqual([status, body, (await post('/later')).body, (await post('/reply')).body], [200, '', 'later', 'later'])
})

test('hooks of others that take their time: one answer, also of a handler that throws after it', async (t) => {
  let sends = 0
  const { post, errors } = await app(t, async (fastify, register) => {
    fastify.addHook('onSend', (request, reply, payload) => new Promise((resolve) => { sends++; setImmediate(resolve, payload) }))
    await register()
    fastify.post('/sent', fastify.idempotent.transaction(async (request, reply) => { reply.send('sent') }))
    fastify.post('/thrown', fastify.idempotent.transaction(async (request, reply) => { reply.send('sent'); throw new Error('after') }))
  })
  assert.equal((await post('/sent')).body, 'sent')
  const { status, body } = await post('/thrown')
  assert.deepEqual([status, JSON.parse(body).title, errors, sends], [500, 'Internal Server Error', ['after'], 2])
})

for (const style of ['transaction', 'lease']) {
  test(`${style}: an answer that Fastify cannot make is an error of the handler, and one after its COMMIT is no success`, async (t) => {
    const [name, circular] = [newKey(), {}]
    circular.self = circular
    const { pool, post, errors } = await app(t, async (fastify, register) => {
      fastify.setErrorHandler((error, request, reply) => reply.code(418).send(error.message))
      await register()
      const route = (path, answer, options = {}) => fastify.post(path, options, fastify.idempotent[style](async (request, reply, { tx }) => {
        if (tx) await effect(tx, name)
        return answer
      }))
      route('/circle', circular)
      route('/hook', {}, { preSerialization: async () => { throw new Error('hook') } })
      route('/sent', Object.assign(new Error('sent'), { statusCode: 404 }))
      route('/late', { done: true },
        { onSend: async (request, reply, payload) => { if (payload !== 'late') throw new Error('late') } })
    })
    for (const path of ['/circle', '/hook']) {
      const { status, headers } = await post(path)
      assert.deepEqual([status, headers['content-type'], await effects(pool, name)], [500, 'application/problem+json', 0])
    }
    assert.deepEqual([errors.length, errors[1]], [2, 'hook'])
    // What the handler itself sends is answered by the application.
    for (const path of ['/sent', '/late']) {
      const { status, body } = await post(path)
      assert.deepEqual([status, body], [418, path.slice(1)])
    }
    assert.deepEqual([await effects(pool, name), errors.length], [style === 'lease' ? 0 : 1, 2])
  })
}

test('other errors, and other routes, are left to the application', async (t) => {
  const { post } = await app(t, async (fastify, register) => {
    await register()
    fastify.addHook('onRequest', async (request, reply) => { reply.header('X-Before', 'set') })
    fastify.setErrorHandler((error, request, reply) => reply.code(418).send(error.message))
    fastify.post('/plain', async () => 'plain')
    fastify.post('/refused', { preHandler: async () => { throw new Error('no') } },
      fastify.idempotent.transaction(async () => 'x'))
    fastify.post('/own', { errorHandler: (error, request, reply) => reply.code(417).send('own') },
      fastify.idempotent.transaction(async () => 'x'))
  })
  assert.equal((await post('/refused')).body, 'no')
  const broken = (path) => post(path, '{"a":').then(({ status }) => status)
  assert.deepEqual([await broken('/plain'), (await post('/refused')).status, await broken('/refused'), await broken('/own')],
    [418, 418, 400, 417])
  const unsupported = await post('/refused', 'a', 'text/x-any')
  assert.deepEqual([unsupported.status, unsupported.headers['content-type'], unsupported.headers['x-before']],
    [415, 'application/problem+json', 'set'])
})

test('what stands before a handler stays: hooks of its route, headers, and the server as `this`', async (t) => {
  let server
  const { post } = await app(t, async (fastify, register) => {
    server = fastify
    await register()
    fastify.addHook('onRequest', async (request, reply) => { reply.headers({ 'X-Before': 'set', 'X-Gone': 'set' }) })
    const refuse = async (request, reply) => reply.code(401).send('who?')
    const route = (path, handler, options = {}) => fastify.post(path, options, fastify.idempotent.transaction(handler))
    for (const [path, onRequest] of [['/guarded', refuse], ['/guards', [async () => {}, refuse]]]) route(path, () => assert.fail('ran'), { onRequest })
    route('/this', async function (request, reply) { assert.equal(this, server); return reply.removeHeader('X-Gone').send('ran') })
    route('/thrown', async () => { throw new Error('planned') })
    fastify.addContentTypeParser('multipart/form-data', (request, payload, done) => { payload.resume(); done() })
  })
  const seen = []
  for (const path of ['/guarded', '/guards', '/this', '/thrown']) {
    const { status, headers } = await post(path)
    seen.push([status, headers['x-before'], headers['x-gone']])
  }
  assert.deepEqual(seen, [[401, 'set', 'set'], [401, 'set', 'set'], [200, 'set', undefined], [500, 'set', 'set']])
  // a body that this package cannot see
  assert.equal((await post('/this', 'x', 'multipart/form-data')).status, 500)
})

test('under HTTP/2 a body needs no header: one that no parser has read is refused, and none is none', async (t) => {
  const fastify = Fastify({ http2: true })
  fastify.addContentTypeParser('*', (request, payload, done) => done(null))
  await fastify.register(fastifyIdempotency,
    { idempotency: new Idempotency(poolFor(t)), principal: () => newKey(), onError() {} })
  fastify.post('/', fastify.idempotent.transaction(() => 'ran'))
  const session = http2.connect(await fastify.listen({ port: 0, host: '127.0.0.1' }))
  t.after(() => fastify.close())
  t.after(() => session.close())
  const type = { 'content-type': 'text/x' }
  for (const [body, want, more] of [['x', 500, type], [undefined, 200, type], ['x', 500], ['', 200], [undefined, 200]]) {
    const request = session.request({ ':method': 'POST', 'idempotency-key': newKey(), ...more },
      { endStream: body === undefined })
    if (body !== undefined) request.end(body)
    const [headers] = await once(request.resume(), 'response')
    assert.equal(headers[':status'], want)
  }
})

test('under HTTP/2 a body that its client breaks off is none, although it has an end', async (t) => {
  const fastify = Fastify({ http2: true })
  const sent = new Promise((resolve) => { fastify.addHook('onSend', async (request, reply) => resolve(reply.statusCode)) })
  await fastify.register(fastifyIdempotency, { idempotency: new Idempotency(poolFor(t)), principal: () => newKey() })
  fastify.post('/', fastify.idempotent.transaction(() => 'ran'))
  const session = http2.connect(await fastify.listen({ port: 0, host: '127.0.0.1' }))
  t.after(() => fastify.close())
  const request = session.request({ ':method': 'POST', 'idempotency-key': newKey(), 'content-type': 'text/plain' })
  request.on('error', () => {}).write('half')
  await once(session, 'connect')
  await new Promise((resolve) => { session.ping(resolve) })
  session.destroy()
  assert.equal(await sent, 400)
})
