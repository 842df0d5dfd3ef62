// What Fastify alone has: its hooks, and its reply.
import assert from 'node:assert/strict'
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

test('a redirect has the status that Fastify gives it', async (t) => {
  const routes = { 302: (reply) => reply.redirect('/'), 303: (reply) => reply.code(303).redirect('/'), 307: (reply) => reply.redirect('/', 307) }
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
  const { pool, post, errors } = await app(t, async (fastify, register) => {
    await register()
    const take = (path, more) => fastify.post(path, fastify.idempotent.transaction(async (request, reply, { tx }) => {
      await effect(tx, name)
      more(reply)
    }))
    take('/hijack', (reply) => reply.hijack())
    take('/raw', (reply) => reply.raw.end('mine'))
  }, { max: 1 })
  const hijacked = await post('/hijack')
  assert.deepEqual([hijacked.status, hijacked.headers['content-type']], [500, 'application/problem+json'])
  assert.equal((await post('/raw')).body, 'mine')
  // The pool has one connection: it is free again when the refused transaction has ended.
  assert.deepEqual([await effects(pool, name), errors.length], [0, 2])
})

test('an async handler that ends without an answer has an empty one', async (t) => {
  const { post } = await app(t, async (fastify, register) => {
    await register()
    fastify.post('/nothing', fastify.idempotent.transaction(async () => {}))
    fastify.post('/later', fastify.idempotent.transaction((request, reply) => { setImmediate(() => reply.send('later')) }))
  })
  const { status, body } = await post('/nothing')
  assert.deepEqual([status, body, (await post('/later')).body], [200, '', 'later'])
})

test('hooks of others that take their time: one answer, also of a handler that throws after it', async (t) => {
  const { post, errors } = await app(t, async (fastify, register) => {
    fastify.addHook('onSend', (request, reply, payload) => new Promise((resolve) => setImmediate(resolve, payload)))
    await register()
    fastify.post('/sent', fastify.idempotent.transaction(async (request, reply) => { reply.send('sent') }))
    fastify.post('/thrown', fastify.idempotent.transaction(async (request, reply) => { reply.send('sent'); throw new Error('after') }))
  })
  assert.equal((await post('/sent')).body, 'sent')
  const { status, body } = await post('/thrown')
  assert.deepEqual([status, JSON.parse(body).title, errors], [500, 'Internal Server Error', ['after']])
})

test('other errors, and other routes, are left to the application', async (t) => {
  const { post } = await app(t, async (fastify, register) => {
    await register()
    fastify.setErrorHandler((error, request, reply) => reply.code(418).send('mine'))
    fastify.post('/plain', async () => 'plain')
    fastify.post('/refused', { preHandler: async () => { throw new Error('no') } }, fastify.idempotent.transaction(async () => 'x'))
    fastify.post('/own', { errorHandler: (error, request, reply) => reply.code(417).send('own') }, fastify.idempotent.transaction(async () => 'x'))
  })
  const broken = (path) => post(path, '{"a":').then(({ status }) => status)
  assert.deepEqual([await broken('/plain'), (await post('/refused')).status, await broken('/refused'), await broken('/own')], [418, 418, 400, 417])
  const unsupported = await post('/refused', 'a', 'text/x-any')
  assert.deepEqual([unsupported.status, unsupported.headers['content-type']], [415, 'application/problem+json'])
})
