// What the HTTP core promises beside the conformance cases, on each framework.
import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { describe, test } from 'node:test'
import { serve } from '@hono/node-server'
import express from 'express'
import Fastify from 'fastify'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { Completion, Declined, FakeClock, Idempotency, KeyReused, NotDone, Reconciled } from 'pg-idempotency'
import { expressIdempotency } from 'pg-idempotency/express'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { honoIdempotency } from 'pg-idempotency/hono'
import { deferred, effect, effects, expire, newKey, poolFor, portOf, send } from './support.js'

// Each framework's way to start a server whose handler is `answer(context, body, response)`: gives {status, headers, body, writes}.
// The response is that of Node, which Hono has none of.
const FRAMEWORKS = {
  express: (idempotency, style, options, answer) => {
    const app = express()
    const once = expressIdempotency(idempotency, options)
    if (options.keepBody) app.use(once.keepBody())
    app.use(express.json())
    if (options.guard) app.use((req, res, next) => options.guard(req) ? next() : res.status(401).end())
    app.all('/do/:id', once[style](async (req, res, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, req.body, res)
      res.status(status).set(headers)
      if (json) return void res.json(json)
      if (body instanceof Readable) body.pipe(res)
      else res.end(body)
      return writes
    }))
    app.use(once.problemErrors())
    return app.listen(0, '127.0.0.1')
  },
  fastify: async (idempotency, style, options, answer) => {
    const app = Fastify()
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => done(null, body))
    if (options.guard) app.addHook('preHandler', async (request, reply) => options.guard(request) ? undefined : reply.code(401).send())
    await app.register(fastifyIdempotency, { idempotency, ...options })
    app.all('/do/:id', app.idempotent[style](async (request, reply, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, request.body, reply.raw)
      if (json) return reply.headers(headers).send(json)
      reply.code(status).headers(headers).send(body ?? undefined)
      return writes ?? reply
    }))
    await app.listen({ port: 0, host: '127.0.0.1' })
    return app.server
  },
  hono: (idempotency, style, options, answer) => {
    const app = new Hono()
    const once = honoIdempotency(idempotency, options)
    if (options.guard) app.use(async (c, next) => options.guard(c.req) ? next() : c.body(null, 401))
    app.all('/do/:id', once[style](async (c, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, await c.req.text())
      if (json) return c.json(json, status, headers)
      const all = new Headers()
      for (const [name, value] of Object.entries(headers)) for (const one of [value].flat()) all.append(name, one)
      const response = new Response(body instanceof Readable ? Readable.toWeb(body) : body, { status, headers: all })
      return writes ? { response, writes } : response
    }))
    return serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' })
  },
}

// The errors by which handlers of each framework refuse.
const REFUSALS = {
  express: (status) => Object.assign(new Error('no'), { status }),
  fastify: (statusCode) => Object.assign(new Error('no'), { statusCode }),
  hono: (status) => new HTTPException(status),
}

const headerOf = (request, name) => typeof request.header === 'function' ? request.header(name) : request.headers[name]

for (const [framework, start] of Object.entries(FRAMEWORKS)) {
  describe(framework, () => {
    async function server(t, answer, { style = 'transaction', clock, ...options } = {}) {
      const pool = poolFor(t)
      const idempotency = new Idempotency(pool, { retry: { base: 1, cap: 20 }, clock })
      const errors = []
      const port = await portOf(t, await start(idempotency, style, {
        principal: async () => 'me', scope: async (request, { method, route, principal }) => `${framework} ${method} ${route} ${principal}`,
        onError: (error) => errors.push(error), ...options,
      }, answer))
      const post = (key, body = '{}', { headers = {}, path = '/do/1', method = 'POST' } = {}) => send(port, {
        method, path, body, headers: { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }), ...headers },
      })
      const status = async (...request) => (await post(...request)).status
      return { pool: poolFor(t), post, status, errors }
    }

    test('a body replays byte for byte, with the listed headers and without cookies', async (t) => {
      const bytes = Buffer.from([0, 255, 13, 10, 128])
      const { post } = await server(t, () => ({
        status: 203, body: bytes, headers: {
          'Content-Type': 'application/x-bytes', Location: '/1', 'Set-Cookie': ['a=1', 'b=2'], 'X-Mine': 'kept', 'X-Other': 'kept too', Server: 'no',
        },
      }), { headers: ['X-*', 'Set-Cookie'] })
      const key = newKey()
      const [first, second] = [await post(key), await post(key)]
      for (const answer of [first, second]) {
        assert.deepEqual([answer.status, answer.bytes], [203, bytes])
        const { headers } = answer
        assert.deepEqual([headers['content-type'], headers.location, headers['x-mine'], headers['x-other']],
          ['application/x-bytes', '/1', 'kept', 'kept too'])
      }
      assert.deepEqual(first.headers['set-cookie'], ['a=1', 'b=2'])
      assert.equal(first.headers['idempotency-replayed'], undefined)
      assert.deepEqual([second.headers['set-cookie'], second.headers.server, second.headers['idempotency-replayed']],
        [undefined, undefined, 'true'])
    })

    test('an answer without a Content-Type replays without one', async (t) => {
      // The server that Hono stands on gives each body a type.
      const type = framework === 'hono' ? 'text/plain; charset=UTF-8' : undefined
      for (const [status, body, want] of [[201, null], [402, null], [200, Readable.from([Buffer.from('streamed')]), type]]) {
        const { post } = await server(t, () => ({ status, body }))
        const key = newKey()
        const [first, second] = [await post(key), await post(key)]
        assert.equal(second.headers['idempotency-replayed'], 'true')
        assert.deepEqual([first.headers['content-type'], second.headers['content-type']], [want, want], String(status))
      }
    })

    test('4xx: the writes are undone, the answer is stored; with Retry-After it may be tried again', async (t) => {
      const [key, redirected] = [newKey(), newKey()]
      let headers = {}
      const { pool, post } = await server(t, async ({ tx, operation }) => {
        await effect(tx, operation.key)
        return { status: operation.key === redirected ? 303 : 402, body: 'not now', headers }
      })
      assert.deepEqual([(await post(redirected)).status, await effects(pool, redirected)], [303, 1])
      assert.equal((await post(key)).status, 402)
      assert.equal((await post(key)).headers['idempotency-replayed'], 'true')
      assert.equal(await effects(pool, key), 0)
      headers = { 'Retry-After': '500' }
      const other = newKey()
      await post(other)
      const replay = await post(other)
      assert.equal(replay.headers['idempotency-replayed'], 'true')
      assert.ok(Number(replay.headers['retry-after']) > 400 && Number(replay.headers['retry-after']) <= 500)
    })

    for (const [style, statuses] of [['transaction'], ['lease', (status) => status === 201 ? 'complete' : 'release']]) {
      test(`${style}: a refusal of the moment is not stored`, async (t) => {
        let status
        const { post } = await server(t, () => ({ status }), { style, statuses })
        for (const passing of [401, 403, 408, 409, 425, 429]) {
          const key = newKey()
          const seen = []
          for (status of [passing, 201, 500]) seen.push((await post(key)).status)
          assert.deepEqual(seen, [passing, 201, 201])
        }
      })
    }

    test('transaction: an answer that is too large is sent whole; a replay has what the policy has in its place', async (t) => {
      const whole = 'x'.repeat(300)
      const { pool, post, errors } = await server(t, () => ({ status: 201, body: whole, headers: { 'Content-Type': 'text/plain' } }), {
        scope: () => `${framework} large`,
      })
      await pool.query(`SELECT idem_set_policy($1, max_response_size => 200, too_large_response => '{"at":"/1"}')`, [`${framework} large`])
      const key = newKey()
      const answers = [await post(key), await post(key)]
      assert.deepEqual(answers.map(({ status, body, headers }) => [status, body, headers['idempotency-replayed']]), [
        [201, whole, undefined], [201, '{"at":"/1"}', 'true']])
      assert.equal(answers[1].headers['content-type'], 'application/json')
      assert.deepEqual(errors, [])
    })

    test('transaction: an answer below 500 that is not stored is no lost attempt, one of 500 is', async (t) => {
      let status
      const { pool, post, errors } = await server(t, () => ({ status }), {
        scope: () => `${framework} lost`, statuses: (status) => status === 404 ? 'release' : undefined,
      })
      await pool.query('SELECT idem_set_policy($1, max_lost_attempts => 2)', [`${framework} lost`])
      const key = newKey()
      const seen = []
      for (status of [429, 403, 404, 201]) seen.push((await post(key)).status)
      assert.deepEqual(seen, [429, 403, 404, 201])
      const failing = newKey()
      status = 500
      assert.deepEqual([(await post(failing)).status, (await post(failing)).status, (await post(failing)).status, errors], [500, 500, 422, []])
    })

    test('transaction: an error that is answered below 500 is no lost attempt, another one is', async (t) => {
      let error
      const asked = []
      const { pool, post, errors } = await server(t, async ({ tx }) => {
        if (error instanceof RangeError) await tx.query('SELECT 1/0').catch(() => {})
        if (error) throw error
        return { status: 201 }
      }, {
        scope: () => `${framework} thrown`,
        mapError: (error) => {
          asked.push(error)
          return error instanceof RangeError ? { status: 409, title: 'out of range' } : undefined
        },
      })
      await pool.query('SELECT idem_set_policy($1, max_lost_attempts => 1)', [`${framework} thrown`])
      const key = newKey()
      const thrown = [REFUSALS[framework](403), new RangeError('no'), REFUSALS[framework](429), new KeyReused('another one', {})]
      const seen = []
      for (error of [...thrown, undefined]) seen.push((await post(key)).status)
      assert.deepEqual([seen, asked, errors], [[403, 409, 429, 422, 201], thrown, []])
      const failing = newKey()
      error = new Error('broken')
      const answers = [await post(failing), await post(failing)]
      assert.deepEqual(answers.map(({ status }) => status), [500, 422])
      assert.equal(JSON.parse(answers[1].body).reason, 'attempts lost')
      assert.deepEqual([asked.slice(thrown.length), errors], [[error], [error]])
    })

    test('transaction: mapError changes neither a refusal that is stored nor a repeat', async (t) => {
      let runs = 0
      const { post } = await server(t, async ({ tx }) => {
        if (++runs === 1) await tx.query("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        throw new Declined(402)
      }, { mapError: () => ({ status: 409, title: 'mine' }) })
      const key = newKey()
      assert.deepEqual([(await post(key)).status, (await post(key)).headers['idempotency-replayed'], runs], [402, 'true', 2])
    })

    // The handler may have charged before it was refused: the next owner reconciles, and does not charge again.
    test('lease: a refusal of the moment leaves the lease, and so does an error', async (t) => {
      let status
      let charges = 0
      const { pool, post } = await server(t, () => {
        charges++
        if (status === 404) throw REFUSALS[framework](404)
        return { status }
      }, { style: 'lease', reconcile: () => Reconciled.done({ code: 201, body: 'charged' }) })
      for (status of [401, 403, 404, 408, 409, 425, 429]) {
        const key = newKey()
        charges = 0
        assert.deepEqual([(await post(key)).status, (await post(key)).status], [status, 409])
        await expire(pool, key)
        assert.deepEqual([(await post(key)).status, (await post(key)).status, charges], [201, 201, 1])
      }
    })

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

    test('an answer says until when it is kept', async (t) => {
      let status = 429
      const { pool, post } = await server(t, () => ({ status }), { lifetime: 'Idempotency-Expires', retention: '1 hour' })
      const key = newKey()
      const until = async () => (await post(key)).headers['idempotency-expires']
      assert.equal(await until(), undefined)
      status = 201
      const [first, second] = [await until(), await until()]
      const { rows: [{ expires_at: stored }] } = await pool.query('SELECT expires_at FROM idempotency_store WHERE idempotency_key = $1', [key])
      assert.deepEqual([first, second], [stored.toUTCString(), stored.toUTCString()])
      for (const end of ['infinity', '10000-01-01Z', '9999-12-31 23:59:59Z']) {
        await pool.query('UPDATE idempotency_store SET expires_at = $2 WHERE idempotency_key = $1', [key, end])
        const { status, headers } = await post(key)
        assert.deepEqual([status, headers['idempotency-replayed'], headers['idempotency-expires']],
          [201, 'true', end.startsWith('9') ? 'Fri, 31 Dec 9999 23:59:59 GMT' : undefined])
      }
    })

    test('a header that HTTP cannot carry: nothing commits', async (t) => {
      const key = newKey()
      let headers
      const { pool, post } = await server(t, async ({ tx }) => {
        await effect(tx, key)
        return { status: 201, headers }
      })
      for (headers of [{ 'X-Name': 'Łódź' }, { 'X Name': 'x' }]) assert.deepEqual([(await post(key)).status, await effects(pool, key)], [500, 0])
    })

    for (const style of ['transaction', 'lease']) {
      test(`${style}: what is no JSON of a handler or a fingerprint is a 500, and the service is told`, async (t) => {
        let own = NaN
        const { post, errors } = await server(t, () => { throw new Declined(402, { own }) }, { style, fingerprint: () => ({ own: own || 1 }) })
        assert.equal((await post(newKey())).status, 500)
        own = 1n
        assert.equal((await post(newKey())).status, 500)
        assert.deepEqual(errors.map(({ message }) => message), Array(2).fill('the value is not JSON'))
      })

      test(`${style}: a code that is no status of HTTP is neither stored nor replayed`, async (t) => {
        let code
        const { pool, post } = await server(t, () => { throw new Declined(code, 'no') }, { style })
        const key = newKey()
        for (code of [1, 100, 1000]) {
          assert.equal((await post(key + code)).status, 500)
          const { rows } = await pool.query('SELECT response_code FROM idempotency_store WHERE idempotency_key = $1', [key + code])
          // The handler of a lease is done.
          assert.deepEqual(rows, style === 'lease' ? [{ response_code: 500 }] : [])
        }
        code = 402
        assert.equal((await post(key)).status, 402)
        await pool.query('UPDATE idempotency_store SET response_code = 1 WHERE idempotency_key = $1', [key])
        const { status, headers } = await post(key)
        assert.deepEqual([status, headers['content-type']], [500, 'application/problem+json'])
      })
    }

    test('an empty body is one like any other', async (t) => {
      const { status } = await server(t, () => ({ status: 201 }))
      const key = newKey()
      const ask = (body) => status(key, body, { headers: { 'content-type': 'text/x-any' } })
      assert.deepEqual([await ask(''), await ask(''), await ask('x')], [201, 201, 422])
    })

    test('a handler that is too late: the statement that it waits for is ended, too', async (t) => {
      const name = newKey()
      const clock = new FakeClock()
      const { pool, post } = await server(t, ({ tx }) => tx.query(`SELECT pg_sleep(600) /* ${name} */`), { timeout: 200, clock })
      const sleeps = async (wanted) => {
        for (let tries = 0; tries < 3000; tries++) {
          const { rows: [{ found }] } = await pool.query(
            "SELECT count(*) > 0 AS found FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(600)%' || $1 || '%' AND state = 'active'", [name])
          if (found === wanted) return true
          await sleep(20)
        }
        return false
      }
      const late = post(newKey())
      assert.ok(await sleeps(true))
      await clock.advance(200)
      assert.equal((await late).status, 503)
      assert.ok(await sleeps(false))
    })

    test('statuses of one\'s own, with a retention', async (t) => {
      let calls = 0
      const { pool, post } = await server(t, () => ({ status: ++calls === 1 ? 404 : 202 }), {
        statuses: (status) => status === 404 ? 'release' : { end: 'complete', retention: '3 days' },
      })
      const key = newKey()
      assert.deepEqual([(await post(key)).status, (await post(key)).status, (await post(key)).status], [404, 202, 202])
      const { rows } = await pool.query(
        'SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM idempotency_store WHERE idempotency_key = $1', [key])
      assert.deepEqual([calls, rows], [2, [{ days: 3 }]])
    })

    test('a request or a response that is too large: nothing commits', async (t) => {
      const key = newKey()
      let size = 1001
      const { pool, post, errors } = await server(t, async ({ tx }) => {
        await effect(tx, key)
        return { status: 201, body: 'x'.repeat(size) }
      }, { maxRequest: 2000, maxResponse: 1000 })
      assert.equal((await post(key, JSON.stringify(['x'.repeat(2000)]))).status, 413)
      const { status, body } = await post(key)
      assert.deepEqual([status, JSON.parse(body).title], [500, 'The answer is too large to be stored'])
      assert.deepEqual([await effects(pool, key), errors.length], [0, 1])
      for (const style of ['transaction', 'lease']) {
        const keyless = await server(t, () => ({ status: 201, body: 'x'.repeat(1001) }), { style, maxResponse: 1000, required: false })
        assert.equal((await keyless.post()).status, 500)
      }
      size = 1000
      assert.equal((await post(key)).status, 201)
    })

    test('a stream that stalls is answered when time is up', async (t) => {
      const stalled = new Readable({ read() {} })
      stalled.push('a')
      const cancelled = deferred()
      for (const body of framework === 'express' ? [stalled] : [stalled, new ReadableStream({ cancel: cancelled.resolve })]) {
        const { post } = await server(t, () => ({ status: 200, body }), { timeout: 100 })
        assert.equal((await post(newKey())).status, 503)
      }
      if (framework === 'express') return
      assert.ok(stalled.destroyed)
      await cancelled.promise
    })

    test('a stream is stored; one without an end is refused at the limit', async (t) => {
      let body = () => Readable.from([Buffer.from('a'), Buffer.from('b'), Buffer.from('c')])
      const { post } = await server(t, () => ({ status: 200, body: body() }), { maxResponse: 1000 })
      const key = newKey()
      await post(key)
      assert.equal((await post(key)).body, 'abc')
      body = () => Readable.from((function* () { for (;;) yield Buffer.alloc(100) })())
      assert.equal((await post(newKey())).status, 500)
    })

    test('a handler that never answers is rolled back, and late statements do nothing', async (t) => {
      const key = newKey()
      const clock = new FakeClock()
      const waiting = deferred()
      let late
      const { pool, post } = await server(t, async ({ tx, signal }) => {
        await effect(tx, key)
        late = new Promise((resolve) => signal.addEventListener('abort', () => setImmediate(() => resolve(effect(tx, key)))))
        waiting.resolve()
        await late.catch(() => {})
        return new Promise(() => {})
      }, { timeout: 100, clock })
      const answer = post(key)
      await waiting.promise
      await clock.advance(100)
      const { status, headers } = await answer
      assert.deepEqual([status, headers['retry-after']], [503, '1'])
      await assert.rejects(late, { code: '25P01' })
      assert.equal(await effects(pool, key), 0)
    })

    test('repeated after 40001: the last call\'s answer, and only its headers', async (t) => {
      let calls = 0
      const { post } = await server(t, async ({ tx }) => {
        if (++calls < 3) {
          // Fails at COMMIT, when the handler has answered.
          await tx.query(`CREATE OR REPLACE FUNCTION pg_temp.busy() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$`)
          await tx.query('CREATE TEMP TABLE IF NOT EXISTS late (a int) ON COMMIT DROP')
          await tx.query('CREATE CONSTRAINT TRIGGER busy AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.busy()')
          await tx.query('INSERT INTO late VALUES (1)')
        }
        return { status: 200 + calls, headers: { [`X-${calls}`]: 'x' }, body: `call ${calls}` }
      })
      const { status, headers, body } = await post(newKey())
      assert.deepEqual([status, body, headers['x-1'], headers['x-2'], headers['x-3']], [203, 'call 3', undefined, undefined, 'x'])
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

    test('problems of one\'s own, and a page that describes them', async (t) => {
      const { post } = await server(t, () => { throw new Declined(402, { reason: 'thrown' }) }, {
        header: 'X-Once', strict: true, describedBy: '/docs/keys',
        mapError: (error) => error.status === 400 ? { status: 418, title: 'mine', headers: { 'X-A': 'b', 'Content-Type': 'text/plain' } } : undefined,
      })
      const mine = await post(undefined, '{}', { headers: { 'x-once': 'bare' } })
      const { 'x-a': own, link, 'content-type': type } = mine.headers
      assert.deepEqual([mine.status, JSON.parse(mine.body).title, own, link, type.split(';')[0]],
        [418, 'mine', 'b', '</docs/keys>; rel="describedby"', 'text/plain'])
      const declined = await post(undefined, '{}', { headers: { 'x-once': `"${newKey()}"` } })
      assert.deepEqual([declined.status, declined.body, declined.headers['content-type'].split(';')[0]], [402, '{"reason":"thrown"}', 'application/json'])
    })

    test('an error is answered in a shape of one\'s own', async (t) => {
      const told = []
      const { post } = await server(t, () => ({ status: 201 }), {
        onError: (error) => told.push(error.name),
        mapError: (error, request, { status, title, headers }) =>
          ({ status, headers: { ...headers, 'content-type': 'text/plain' }, body: error instanceof KeyReused ? {} : title }),
      })
      const missing = await post(undefined)
      assert.deepEqual([missing.status, missing.headers['content-type'].split(';')[0], missing.body], [400, 'text/plain', 'Idempotency-Key is missing'])
      // a body that cannot be sent
      const key = newKey()
      await post(key, '{"a":1}')
      const reused = await post(key, '{"a":2}')
      assert.deepEqual([reused.status, JSON.parse(reused.body).title, told], [422, 'Idempotency-Key is already used', ['TypeError']])
    })

    test('an onError that fails changes no answer', async (t) => {
      for (const onError of [() => { throw null }, () => Promise.reject(new Error('planned'))]) {
        const { post } = await server(t, () => { throw new Error('planned') }, { onError, timeout: 3000 })
        const { status, headers } = await post(newKey())
        assert.deepEqual([status, headers['content-type'].split(';')[0]], [500, 'application/problem+json'])
      }
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

    test('a lease: reconciled on a takeover, Unknown is 503, a crash leaves the lease', async (t) => {
      let known = () => Reconciled.unknown({ retryAfter: 4100 })
      let crash = true
      const key = newKey()
      const { pool, post } = await server(t, ({ tx, operation, signal }) => {
        assert.deepEqual([tx, typeof operation.fence, signal.aborted], [undefined, 'bigint', false])
        if (crash) throw new Error('the gateway hung up')
        return { status: 201, body: 'charged', writes: (connection) => effect(connection, key) }
      }, { style: 'lease', reconcile: () => known() })
      assert.equal((await post(key)).status, 500)
      const refused = await post(key)
      assert.equal(refused.status, 409)
      assert.ok(Number(refused.headers['retry-after']) > 20)
      await expire(pool, key)
      const unknown = await post(key)
      assert.deepEqual([unknown.status, unknown.headers['retry-after']], [503, '5'])
      crash = false
      known = () => Reconciled.notDone
      assert.deepEqual([(await post(key)).body, (await post(key)).body, await effects(pool, key)], ['charged', 'charged', 1])
    })

    test('what reconcile has found and HTTP cannot send is not stored', async (t) => {
      let known
      const { pool, post, errors } = await server(t, () => { throw new Error('the gateway hung up') }, {
        style: 'lease', reconcile: () => Reconciled.done(known), maxResponse: 200,
      })
      const declining = (code, payload) => new Completion({ code: 201 }, () => { throw new Declined(code, payload) })
      for (const [wrong, right, status] of [
        [{ code: 99, payload: 1 }, { code: 201, body: 'charged' }, 503], [{ headers: { 'X-A': 'a\r\nb' }, payload: 1 }, 'charged', 503],
        [new Completion({ code: 99, payload: 1 }, (tx) => effect(tx, 'wrong')), new Completion(1, (tx) => effect(tx, 'right')), 503],
        [declining(99), declining(402), 500], [{ body: 'x'.repeat(201) }, { body: 'x'.repeat(200) }, 503],
        [declining(402, 'x'.repeat(199)), declining(402, 'x'.repeat(198)), 500],
      ]) {
        const key = newKey()
        await post(key)
        errors.length = 0
        for (known of [wrong, wrong]) {
          await expire(pool, key)
          assert.deepEqual([(await post(key)).status, errors.splice(0).length], [status, 1])
        }
        await expire(pool, key)
        known = right
        const [first, again] = [await post(key), await post(key)]
        assert.deepEqual([again.status, again.body, again.headers['idempotency-replayed']], [first.status, first.body, 'true'])
        assert.ok(first.status < 500)
      }
      assert.deepEqual([await effects(pool, 'wrong'), await effects(pool, 'right') > 0], [0, true])
    })

    test('without a key, too, what may be tried again since a while says so', async (t) => {
      const { post } = await server(t, () => { throw new Declined(402, 1, { retryAfter: '-1 hour' }) }, { required: false })
      for (const key of [undefined, newKey()]) {
        const { status, headers } = await post(key)
        assert.deepEqual([status, headers['retry-after']], [402, '1'])
      }
    })

    test('a lease whose handler gave an answer that cannot be sent or stored is done, with its writes', async (t) => {
      const bytes = 'x'.repeat(1001)
      const scope = (request) => `${framework} unstorable ${headerOf(request, 'x-scope') ?? ''}`
      let answer
      let runs = 0
      const { pool, post, errors } = await server(t, () => { runs++; return answer() }, { style: 'lease', scope, maxResponse: 1000 })
      await pool.query('SELECT idem_set_policy($1, max_response_size => 200)', [`${framework} unstorable small`])
      const [small, large, wrong] = [{ 'x-scope': 'small' }, 'The answer is too large to be stored', 'Internal Server Error']
      const give = (status, body) => (key) => ({ status, body: body(), writes: (tx) => effect(tx, key) })
      const decline = (code, payload, headers) => () => { throw new Declined(code, payload, { headers }) }
      const declining = (...given) => (key) => ({ status: 201, body: 'charged', writes: (tx) => effect(tx, key).then(decline(...given)) })
      for (const [end, title, written, headers = {}] of [
        [give(201, () => bytes), large, 1], [give(201, () => Readable.from([Buffer.alloc(600), Buffer.alloc(600)])), large, 1],
        [give(201, () => 'x'.repeat(900)), large, 1, small],
        [decline(402, bytes), large, 0], [decline(402, 'x'.repeat(900)), large, 0, small], [decline(402, 1, { 'X-A': 'a\r\nb' }), wrong, 0],
        [decline(99), wrong, 0], [give(402, () => bytes), large, 0], [give(402, () => 'x'.repeat(900)), large, 0, small],
        [declining(402, bytes), large, 0], [declining(402, 'x'.repeat(900)), large, 0, small], [declining(402, 1, { 'X-A': 'a\r\nb' }), wrong, 0],
        [declining(99), wrong, 0],
      ]) {
        const key = newKey()
        runs = errors.length = 0
        answer = () => end(key)
        const seen = []
        for (let call = 0; call < 3; call++) {
          const { status, body: problem } = await post(key, '{}', { headers })
          seen.push([status, JSON.parse(problem).title])
        }
        const again = [500, 'The answer could not be stored']
        assert.deepEqual(seen, [[500, title], again, again])
        assert.deepEqual([runs, errors.length, await effects(pool, key)], [1, 3, written])
      }
      const key = newKey()
      answer = () => ({ status: 503, body: bytes })
      assert.equal((await post(key)).status, 500)
      await expire(pool, key)
      answer = () => ({ status: 201, body: 'second' })
      assert.equal((await post(key)).body, 'second')
    })

    test('writes of a handler in a transaction, which has its own, are a mistake: all undone, and a 500', async (t) => {
      const key = newKey()
      const { pool, status } = await server(t, async ({ tx }) => {
        await effect(tx, key)
        return { status: 201, writes: () => assert.fail('ran') }
      })
      assert.deepEqual([await status(key), await status(key), await effects(pool, key)], [500, 500, 0])
    })

    test('an error that cannot be read is a 500', async (t) => {
      const circle = new NotDone()
      circle.cause = circle
      const unreadable = new Error('x')
      for (const name of ['status', 'statusCode']) Object.defineProperty(unreadable, name, { get() { throw new Error('unreadable') } })
      for (const error of [circle, unreadable]) {
        for (const style of ['transaction', 'lease']) {
          const { status } = await server(t, () => { throw error }, { style })
          assert.equal(await status(newKey()), 500)
        }
      }
    })

    test('what the framework cannot make an answer of: a transaction is undone, the handler of a lease is done', async (t) => {
      const circle = {}
      circle.self = circle
      // Fastify finds a wrong header when it sends.
      for (const [json, headers] of [[{ fence: 1n }], [circle], [1, { 'X-A': 'a\nb' }], [1, { 'X-A': 'Łódź' }]]) {
        for (const [style, statuses] of [['transaction', [500, 201]], ['lease', [500, 500]]]) {
          const key = newKey()
          const ends = [json, undefined]
          const { pool, status, errors } = await server(t, async ({ tx }) => {
            if (tx) await effect(tx, key)
            const end = ends.shift()
            return { status: 201, json: end, headers: end && headers }
          }, { style })
          assert.deepEqual([await status(key), await status(key)], statuses)
          assert.deepEqual([ends.length, await effects(pool, key)], style === 'lease' ? [1, 0] : [0, 1])
          assert.match(errors[0].message, headers ? /header|greater than 255/i : /BigInt|circular/)
        }
      }
    })

    test('a lease whose writes decline answers so, with a key and without', async (t) => {
      const key = newKey()
      const decline = async (tx) => {
        await effect(tx, key)
        throw new Declined(402, { reason: 'no money' })
      }
      const { pool, post } = await server(t, () => ({ status: 201, body: 'charged', writes: decline }), { style: 'lease', required: false })
      for (const answer of [await post(key), await post(key), await post()]) {
        assert.deepEqual([answer.status, answer.body], [402, '{"reason":"no money"}'])
      }
      assert.equal(await effects(pool, key), 0)
    })

    for (const [what, headers] of [['name of a header', { 'a b': '1' }], ['header', { 'X-A': 'a\r\nb' }]]) {
      test(`who declines with a ${what} that HTTP cannot carry gets a 500, and stores nothing`, async (t) => {
        const key = newKey()
        const { pool, status } = await server(t, () => { throw new Declined(402, {}, { headers }) }, { required: false })
        assert.deepEqual([await status(), await status(key)], [500, 500])
        const { rows } = await pool.query('SELECT 1 FROM idempotency_store WHERE idempotency_key = $1', [key])
        assert.deepEqual(rows, [])
      })
    }

    test('Set-Cookie goes to who is declined, and is not stored, nor where reconcile has found it', async (t) => {
      const headers = { 'Set-Cookie': 'a=b', 'X-A': 'b' }
      const refusal = new Declined(402, 1, { headers, retryAfter: '1 hour' })
      const decline = () => { throw refusal }
      const { post } = await server(t, decline, { required: false })
      const writes = await server(t, () => ({ writes: decline }), { style: 'lease' })
      const leased = await server(t, () => { throw new Error('planned') }, {
        style: 'lease', reconcile: () => Reconciled.done({ code: 402, payload: 1, headers }),
      })
      const [key, ...keys] = [newKey(), newKey(), newKey()]
      await leased.post(key)
      await expire(leased.pool, key)
      const answer = async (posted) => {
        const { status, headers } = await posted
        return [status, headers['x-a'], headers['set-cookie'], headers['retry-after']]
      }
      assert.deepEqual(await answer(leased.post(key)), [402, 'b', undefined, undefined])
      assert.deepEqual(await answer(post(undefined)), [402, 'b', ['a=b'], '3600'])
      for (const send of [() => post(keys[0]), () => writes.post(keys[1])]) {
        assert.deepEqual(await answer(send()), [402, 'b', ['a=b'], '3600'])
        assert.deepEqual(await answer(send()), [402, 'b', undefined, '3600'])
      }
    })

    // Hono sends no reason phrase.
    if (framework === 'hono') return
    for (const reason of ['Łódź', 'a\r\nSet-Cookie: b', 'a\0']) {
      test(`the statusMessage ${JSON.stringify(reason)} cannot be sent: rolled back, and a 500`, async (t) => {
        const key = newKey()
        const { pool, post, errors } = await server(t, async ({ tx }, body, response) => {
          await effect(tx, key)
          response.statusMessage = reason
          return {}
        })
        const answers = [await post(key), await post(key)]
        assert.deepEqual(answers.map(({ status, reason }) => `${status} ${reason}`), Array(2).fill('500 Internal Server Error'))
        assert.deepEqual([await effects(pool, key), errors.map(({ code }) => code)], [0, Array(2).fill('ERR_INVALID_CHAR')])
      })
    }

    test('a statusMessage that can be sent is, with its own answer and with no other', async (t) => {
      const key = newKey()
      let calls = 0
      const { post } = await server(t, (context, body, response) => {
        if (++calls === 2) throw new Error('planned')
        if (calls !== 3) response.statusMessage = 'Grüezi'
        if (calls === 1) throw Object.assign(new Error('planned'), { code: '40001' })
        return {}
      })
      const reasons = []
      for (const each of [key, key, newKey()]) reasons.push((await post(each)).reason)
      assert.deepEqual(reasons, ['Internal Server Error', 'OK', 'Grüezi'])
    })
  })
}


test('without a principal there is an error, unless the scope is given', () => {
  const idempotency = new Idempotency({ acquire: () => assert.fail('asked') })
  for (const make of [expressIdempotency, honoIdempotency]) {
    assert.throws(() => make(idempotency), { name: 'TypeError', message: /principal/ })
    make(idempotency, { scope: () => 'own' })
  }
})
