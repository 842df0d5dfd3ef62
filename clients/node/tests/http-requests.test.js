// Which requests are the same, and what is read of them: on each framework.
import assert from 'node:assert/strict'
import { gzipSync } from 'node:zlib'
import { test } from 'node:test'
import { Idempotency } from 'pg-idempotency'
import { expressIdempotency } from 'pg-idempotency/express'
import { honoIdempotency } from 'pg-idempotency/hono'
import { effect, effects, newKey } from './support.js'
import { headerOf, onEachFramework } from './http-kit.js'

onEachFramework((framework, server) => {
  test('an authentication that stands before the route is asked before a replay, too', async (t) => {
    const owners = new Map([['Bearer ada', 'ada'], ['Bearer bob', 'bob']])
    const who = (request) => owners.get(headerOf(request, 'authorization'))
    let runs = 0
    const { post } = await server(t, () => ({ status: 201, body: `run ${++runs}` }), {
      guard: (request) => who(request) !== undefined, principal: who,
      scope: (request, { method, route, principal }) => `${framework} ${method} ${route} ${principal}`,
    })
    const key = newKey()
    const ask = async (authorization) => {
      const { status, body } = await post(key, '{}', { headers: { ...(authorization && { authorization }) } })
      return status === 201 ? body : status
    }
    assert.deepEqual([await ask(), await ask('Bearer eve')], [401, 401])
    assert.deepEqual([await ask('Bearer ada'), await ask('Bearer ada'), await ask('Bearer bob')], ['run 1', 'run 1', 'run 2'])
    owners.delete('Bearer ada')
    assert.deepEqual([await ask('Bearer ada'), await ask(), await ask('Bearer bob')], [401, 401, 'run 2'])
  })

  test('the template of a route is part of the scope; its path and its query are compared', async (t) => {
    const { status } = await server(t, () => ({ status: 201 }))
    const key = newKey()
    const seen = []
    for (const path of ['/do/1', '/do/1?', '/do/2', '/do/1?a=1']) seen.push(await status(key, '{}', { path }))
    assert.deepEqual(seen, [201, 201, 422, 422])
    assert.equal(await status(key, '{}', { headers: { 'content-type': 'Application/JSON ; charset=utf-8' } }), 201)
  })

  test('no space but a blank or a tab is left out around a key', async (t) => {
    const { status } = await server(t, () => ({ status: 201 }))
    const key = newKey()
    // Node writes a text as UTF-8, and the headers before it, too.
    const ask = (text) => status(text, Buffer.from('{}'))
    for (const [around, expected] of [[' ', 201], ['\t', 201], ['\u00a0', 400]]) {
      assert.deepEqual([await ask(key + around), await ask(`"${key}"${around}`), await ask(around + key)], Array(3).fill(expected))
    }
  })

  test('a fingerprint of one\'s own is compared beside method and target', async (t) => {
    const { status } = await server(t, () => ({ status: 201 }), {
      fingerprint: async (request) => headerOf(request, 'x-own'), methods: ['POST', 'put'], scope: () => `${framework} own fingerprint`,
    })
    const key = newKey()
    assert.deepEqual([await status(key, '{"a":1}'), await status(key, '{"a":2}')], [201, 201])
    assert.equal(await status(key, '{"a":1}', { headers: { 'x-own': '1' } }), 422)
    assert.deepEqual([await status(key, '{}', { path: '/do/2' }), await status(key, '{}', { method: 'PUT' })], [422, 422])
  })

  test('what was sent is compared, not what a parser makes of it', async (t) => {
    const { status } = await server(t, () => ({ status: 201 }), { keepBody: true })
    const form = (text) => `--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n${text}\r\n--b--\r\n`
    for (const [type, first, second] of [
      ['application/json', '{"n":9007199254740993}', '{"n":9007199254740992}'],
      ['application/json', '{"n":1e400}', '{"n":null}'],
      ['application/json', Buffer.from('{"n":"\xff"}', 'latin1'), Buffer.from('{"n":"\xfe"}', 'latin1')],
      ['text/x-any', Buffer.from([0xff]), Buffer.from([0xfe])],
      ['multipart/form-data; boundary=b', form('one'), form('two')],
    ]) {
      const key = newKey()
      const seen = []
      for (const body of [first, first, second]) seen.push(await status(key, body, { headers: { 'content-type': type } }))
      assert.deepEqual(seen, [201, 201, 422])
    }
  })

  test('the bytes of a body with a Content-Encoding are compared', async (t) => {
    const key = newKey()
    const { status } = await server(t, () => ({ status: 201 }), { keepBody: true })
    const ask = (body, headers = { 'content-encoding': 'gzip' }) => status(key, body, { headers })
    const [once, other] = framework === 'fastify' ? [400, 400] : [201, 422]
    for (let i = 0; i < 2; i++) assert.equal(await ask(gzipSync('{"a":1}')), once)
    assert.equal(await ask(gzipSync('{"a":2}')), other)
    if (framework !== 'fastify') assert.equal(await ask('{"a":1}', {}), 422)
    const plain = newKey()
    for (const [body, encoding] of [['{"a":1}', 'identity'], ['{ "a":1}', 'Identity'], ['{"a": 1}', '']]) {
      assert.equal(await status(plain, body, { headers: { 'content-encoding': encoding } }), 201)
    }
  })

  test('JSON that is none: the problem quotes nothing of it, and nobody is told of an error', async (t) => {
    const { post, errors } = await server(t, () => assert.fail('ran'))
    const { status, body } = await post(newKey(), '{"secret":x}')
    assert.deepEqual([status, body.includes('secret'), errors], [400, false, []])
  })

  test('an empty body is one like any other', async (t) => {
    const { status } = await server(t, () => ({ status: 201 }))
    const key = newKey()
    const ask = (body) => status(key, body, { headers: { 'content-type': 'text/x-any' } })
    assert.deepEqual([await ask(''), await ask(''), await ask('x')], [201, 201, 422])
  })

  test('without a key: optional, made, skipped, or another method', async (t) => {
    const key = newKey()
    const answer = async ({ tx, operation }) => {
      await effect(tx, key)
      return { status: 200, body: String(operation?.key ?? null) }
    }
    const optional = await server(t, answer, { required: false })
    assert.equal((await optional.post()).body, 'null')
    assert.equal((await optional.post(undefined, '{}', { method: 'PUT' })).body, 'null')
    const nobody = await server(t, answer, { required: false, principal: () => '' })
    assert.equal((await nobody.post()).status, 500)
    assert.equal(await effects(optional.pool, key), 2)
    const made = await server(t, answer, { makeKey: () => 'made-' + key })
    assert.equal((await made.post()).body, 'made-' + key)
    assert.equal((await made.post()).headers['idempotency-replayed'], 'true')
    const skipped = await server(t, answer, { skip: () => true, principal: () => '' })
    assert.deepEqual([(await skipped.post(key)).body, (await skipped.post(key)).body], ['null', 'null'])
    const before = await effects(optional.pool, key)
    const failing = await server(t, async (context) => ({ ...await answer(context), status: 400 }), { required: false })
    assert.equal((await failing.post()).status, 400)
    let status
    const leased = await server(t, () => ({ status, writes: (tx) => effect(tx, key) }), { required: false, style: 'lease' })
    for (status of [400, 201]) {
      assert.equal(await effects(optional.pool, key), before)
      assert.equal((await leased.post()).status, status)
    }
    assert.equal(await effects(optional.pool, key), before + 1)
  })

  test('skip and makeKey may be asynchronous, and what is no key, no end and no status is an error', async (t) => {
    const key = newKey()
    const answer = async ({ tx, operation }) => {
      await effect(tx, key)
      return { status: 201, body: String(operation?.key ?? null) }
    }
    const made = await server(t, answer, { skip: async () => false, makeKey: async () => key })
    assert.equal((await made.post()).body, key)
    for (const [wrong, name] of [
      [{ makeKey: () => 7 }, 'makeKey'], [{ statuses: () => 'completed' }, 'statuses'],
      [{ statuses: async () => { throw new Error('planned') } }, 'statuses'],
    ]) {
      const { post, errors } = await server(t, answer, wrong)
      assert.equal((await post(name === 'makeKey' ? undefined : newKey())).status, 500)
      assert.deepEqual([errors.length, errors[0].name], [1, 'TypeError'])
      assert.ok(errors[0].message.includes(name))
    }
    assert.equal(await effects(made.pool, key), 1)
    const refused = await server(t, answer, { mapError: async () => { throw new Error('planned') } })
    assert.equal((await refused.post()).status, 400)
  })
})

test('without a principal there is an error, unless the scope is given', () => {
  const idempotency = new Idempotency({ acquire: () => assert.fail('asked') })
  for (const make of [expressIdempotency, honoIdempotency]) {
    assert.throws(() => make(idempotency), { name: 'TypeError', message: /principal/ })
    make(idempotency, { scope: () => 'own' })
  }
})
