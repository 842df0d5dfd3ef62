// What the HTTP core promises beside the conformance cases, on each framework.
import assert from 'node:assert/strict'
import events from 'node:events'
import http from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { createGunzip, gzipSync } from 'node:zlib'
import { describe, test } from 'node:test'
import { serve } from '@hono/node-server'
import express from 'express'
import Fastify from 'fastify'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { Declined, FakeClock, Idempotency, KeyReused, Reconciled, Unknown } from 'pg-idempotency'
import { expressIdempotency } from 'pg-idempotency/express'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { honoIdempotency } from 'pg-idempotency/hono'
import { Proxy } from './proxy.js'
import { deferred, effect, effects, expire, newKey, poolFor, portOf } from './support.js'

// Each framework's way to start a server whose handler is `answer(context, body)`: gives {status, headers, body, writes}.
const FRAMEWORKS = {
  express: (idempotency, style, options, answer) => {
    const app = express()
    const once = expressIdempotency(idempotency, options)
    if (options.keepBody) app.use(once.keepBody())
    app.use(express.json())
    if (options.guard) app.use((req, res, next) => options.guard(req) ? next() : res.status(401).end())
    app.all('/do/:id', once[style](async (req, res, context) => {
      const { status = 200, headers = {}, body = '', writes } = await answer(context, req.body)
      res.status(status).set(headers)
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
      const { status = 200, headers = {}, body = '', writes } = await answer(context, request.body)
      reply.code(status).headers(headers).send(body)
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
      const { status = 200, headers = {}, body = '', writes } = await answer(context, await c.req.text())
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
        principal: () => 'me', scope: (request, { method, route, principal }) => `${framework} ${method} ${route} ${principal}`,
        onError: (error) => errors.push(error), ...options,
      }, answer))
      const post = (key, body = '{}', { headers = {}, path = '/do/1', method = 'POST' } = {}) => send(port, {
        method, path, body, headers: { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }), ...headers },
      })
      return { pool: poolFor(t), post, errors }
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

    test('4xx: the writes are undone, the answer is stored; with Retry-After it may be tried again', async (t) => {
      const key = newKey()
      let headers = {}
      const { pool, post } = await server(t, async ({ tx }) => {
        await effect(tx, key)
        return { status: 402, body: 'not now', headers }
      })
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
      const { pool, post } = await server(t, () => ({ status }), {
        scope: () => `${framework} lost`, statuses: (status) => status === 404 ? 'release' : undefined,
      })
      await pool.query('SELECT idem_set_policy($1, max_lost_attempts => 2)', [`${framework} lost`])
      const key = newKey()
      const seen = []
      for (status of [429, 403, 404, 201]) seen.push((await post(key)).status)
      assert.deepEqual(seen, [429, 403, 404, 201])
      const failing = newKey()
      status = 500
      assert.deepEqual([(await post(failing)).status, (await post(failing)).status, (await post(failing)).status], [500, 500, 422])
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
    test('lease: a refusal of the moment leaves the lease', async (t) => {
      let status
      let charges = 0
      const { pool, post } = await server(t, () => { charges++; return { status } }, {
        style: 'lease', reconcile: () => Reconciled.done({ code: 201, body: 'charged' }),
      })
      for (status of [401, 403, 408, 409, 425, 429]) {
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

    test('a fingerprint of one\'s own is compared beside method and target', async (t) => {
      const { post } = await server(t, () => ({ status: 201 }), {
        fingerprint: () => 1, methods: ['POST', 'put'], scope: () => `${framework} own fingerprint`,
      })
      const key = newKey()
      const status = async (...args) => (await post(key, ...args)).status
      assert.deepEqual([await status('{"a":1}'), await status('{"a":2}')], [201, 201])
      assert.deepEqual([await status('{}', { path: '/do/2' }), await status('{}', { method: 'PUT' })], [422, 422])
    })

    test('what was sent is compared, not what a parser makes of it', async (t) => {
      const { post } = await server(t, () => ({ status: 201 }), { keepBody: true })
      const differ = async (type, first, second) => {
        const key = newKey()
        const status = async (body) => (await post(key, body, { headers: { 'content-type': type } })).status
        assert.deepEqual([await status(first), await status(first), await status(second)], [201, 201, 422])
      }
      await differ('application/json', '{"n":9007199254740993}', '{"n":9007199254740992}')
      await differ('application/json', '{"n":1e400}', '{"n":null}')
      await differ('application/json', Buffer.from('{"n":"\xff"}', 'latin1'), Buffer.from('{"n":"\xfe"}', 'latin1'))
      await differ('text/x-any', Buffer.from([0xff]), Buffer.from([0xfe]))
      const form = (text) => `--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n${text}\r\n--b--\r\n`
      await differ('multipart/form-data; boundary=b', form('one'), form('two'))
    })

    test('the bytes of a body with a Content-Encoding are compared', async (t) => {
      const key = newKey()
      const { post } = await server(t, () => ({ status: 201 }), { keepBody: true })
      const packed = { headers: { 'content-encoding': 'gzip' } }
      const status = async (...args) => (await post(key, ...args)).status
      const refused = framework === 'fastify' ? 400 : 422
      if (framework === 'fastify') assert.equal(await status(gzipSync('{"a":1}'), packed), 400)
      else assert.deepEqual([await status(gzipSync('{"a":1}'), packed), await status(gzipSync('{"a":1}'), packed)], [201, 201])
      assert.equal(await status(gzipSync('{"a":2}'), packed), refused)
      if (framework === 'hono') assert.equal(await status('{"a":1}', packed), 422)
      assert.equal(await status('{"a":1}', { headers: { 'content-encoding': 'identity' } }), framework === 'fastify' ? 201 : 422)
    })

    test('JSON that is none: the problem quotes nothing of it, and nobody is told of an error', async (t) => {
      const { post, errors } = await server(t, () => assert.fail('ran'))
      const { status, body } = await post(newKey(), '{"secret":x}')
      assert.deepEqual([status, body.includes('secret'), errors], [400, false, []])
    })

    test('the marker of a replay has a name of one\'s own', async (t) => {
      const { post } = await server(t, () => ({ status: 201 }), { marker: 'Idempotent-Replayed' })
      const key = newKey()
      await post(key)
      const { headers } = await post(key)
      assert.deepEqual([headers['idempotent-replayed'], headers['idempotency-replayed']], ['true', undefined])
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
      const { pool, post } = await server(t, async ({ tx }) => {
        await effect(tx, key)
        return { status: 201, headers: { 'X-Name': 'Łódź' } }
      })
      assert.deepEqual([(await post(key)).status, await effects(pool, key)], [500, 0])
    })

    for (const style of ['transaction', 'lease']) {
      test(`${style}: a code that is no status of HTTP is neither stored nor replayed`, async (t) => {
        let code
        const { pool, post } = await server(t, () => { throw new Declined(code, 'no') }, { style })
        for (code of [1, 100, 1000]) assert.equal((await post(newKey())).status, 500)
        const key = newKey()
        code = 402
        assert.equal((await post(key)).status, 402)
        await pool.query('UPDATE idempotency_store SET response_code = 1 WHERE idempotency_key = $1', [key])
        assert.equal((await post(key)).status, 500)
      })
    }

    test('an empty body is one like any other', async (t) => {
      const { post } = await server(t, () => ({ status: 201 }))
      const key = newKey()
      const status = async (body) => (await post(key, body, { headers: { 'content-type': 'text/x-any' } })).status
      assert.deepEqual([await status(''), await status(''), await status('x')], [201, 201, 422])
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
      size = 1000
      assert.equal((await post(key)).status, 201)
    })

    test('a stream that stalls is answered when time is up', async (t) => {
      const stalled = new Readable({ read() {} })
      stalled.push('a')
      const { post } = await server(t, () => ({ status: 200, body: stalled }), { timeout: 100 })
      assert.equal((await post(newKey())).status, 503)
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
      assert.equal(await effects(optional.pool, key), 2)
      const made = await server(t, answer, { makeKey: () => 'made-' + key })
      assert.equal((await made.post()).body, 'made-' + key)
      assert.equal((await made.post()).headers['idempotency-replayed'], 'true')
      const skipped = await server(t, answer, { skip: () => true })
      assert.deepEqual([(await skipped.post(key)).body, (await skipped.post(key)).body], ['null', 'null'])
      const failing = await server(t, async (context) => ({ ...await answer(context), status: 400 }), { required: false })
      const before = await effects(failing.pool, key)
      assert.equal((await failing.post()).status, 400)
      assert.equal(await effects(failing.pool, key), before)
    })

    test('problems of one\'s own, and a page that describes them', async (t) => {
      const { post } = await server(t, () => { throw new Declined(402, { reason: 'thrown' }) }, {
        header: 'X-Once', strict: true, describedBy: '/docs/keys',
        mapError: (error) => error.status === 400 ? { status: 418, title: 'mine', headers: { 'X-A': 'b' } } : undefined,
      })
      const mine = await post(undefined, '{}', { headers: { 'x-once': 'bare' } })
      assert.deepEqual([mine.status, JSON.parse(mine.body).title, mine.headers['x-a'], mine.headers.link],
        [418, 'mine', 'b', '</docs/keys>; rel="describedby"'])
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

    test('an option that is undefined was not given', async (t) => {
      t.mock.method(console, 'error', () => {})
      const { post } = await server(t, () => { throw new Error('planned') }, { required: undefined, maxWait: undefined, onError: undefined })
      const impatient = await post(newKey(), '{}', { headers: { prefer: 'wait=1' } })
      assert.deepEqual([(await post(undefined)).status, impatient.status], [400, 500])
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
        [{ makeKey: () => 7 }, 'makeKey'], [{ statuses: () => 'completed' }, 'statuses'], [{ statuses: async () => 'complete' }, 'statuses'],
      ]) {
        const { post, errors } = await server(t, answer, wrong)
        assert.equal((await post(name === 'makeKey' ? undefined : newKey())).status, 500)
        assert.deepEqual([errors.length, errors[0].name], [1, 'TypeError'])
        assert.ok(errors[0].message.includes(name))
      }
      assert.equal(await effects(made.pool, key), 1)
      const refused = await server(t, answer, { mapError: async () => ({ status: 418 }) })
      assert.equal((await refused.post()).status, 400)
    })

    test('a stored Retry-After is sent once', async (t) => {
      const { post } = await server(t, () => ({ status: 400, headers: { 'Retry-After': '120' } }), { headers: ['Retry-After'] })
      const key = newKey()
      assert.deepEqual([(await post(key)).headers['retry-after'], (await post(key)).headers['retry-after']], ['120', '120'])
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
      assert.ok(new Unknown('x') instanceof Error)
    })
  })
}

describe('express alone', () => {
  // A server with one route; `before` are handlers that stand before it.
  async function app(t, style, handler, { before = [], pool = poolFor(t), ...options } = {}) {
    const app = express()
    const errors = []
    t.mock.method(console, 'error', (error) => errors.push(error))
    const once = expressIdempotency(new Idempotency(pool), { principal: () => newKey(), ...options })
    app.post('/do', ...before, once[style](handler))
    app.use((error, req, res, next) => res.headersSent ? next(error) : res.status(500).end('own'))
    const port = await portOf(t, app.listen(0, '127.0.0.1'))
    const post = (key = newKey(), body = '{}', type = 'application/json', headers = {}) => send(port,
      { method: 'POST', path: '/do', body, headers: { 'content-type': type, 'idempotency-key': key, ...headers } })
    return { post, errors }
  }

  test('a request that is answered while it waits for a connection: nothing runs, and the process goes on', async (t) => {
    const pool = poolFor(t, { max: 1 })
    const taken = await pool.connect()
    let calls = 0
    let ended
    const gone = new Promise((resolve) => { ended = resolve })
    const giveUp = (req, res, next) => {
      setImmediate(() => { res.status(503).end('too slow'); ended() })
      next()
    }
    const { post } = await app(t, 'transaction', (req, res) => { calls++; res.end('done') }, { pool, before: [giveUp] })
    const answer = post()
    await gone
    taken.release()
    assert.deepEqual([(await answer).status, (await answer).body], [503, 'too slow'])
    // The pool has one connection: it is free again when the refused transaction has ended.
    await pool.query('SELECT 1')
    assert.equal(calls, 0)
  })

  test('an answer that comes when time is up goes nowhere', async (t) => {
    for (const late of [
      (res) => res.status(200).set('X-A', 'b').json({}),
      (res) => { res.writeHead(200, { 'X-A': 'b' }); res.end() },
      (res) => { res.appendHeader('X-A', 'b'); res.removeHeader('X-A'); res.redirect('/') },
    ]) {
      const [go, answered] = [deferred(), deferred()]
      const { post } = await app(t, 'transaction', (req, res) => {
        // as a callback does: what it throws ends the process
        go.promise.then(() => setImmediate(() => { late(res); answered.resolve() }))
      }, { timeout: 50 })
      assert.equal((await post()).status, 503)
      go.resolve()
      await answered.promise
    }
  })

  test('a status as Node sends it, and each cookie of writeHead', async (t) => {
    const { post } = await app(t, 'transaction', (req, res) => {
      res.setHeader('Set-Cookie', 'old=1')
      res.writeHead('201', ['Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'X-A', 'c'])
      res.end()
    })
    const { status, headers } = await post()
    assert.deepEqual([status, headers['set-cookie'], headers['x-a']], [201, ['a=1', 'b=2'], 'c'])
    const never = await app(t, 'transaction', (req, res) => { res.statusCode = 1000; res.end() })
    assert.deepEqual([(await never.post()).status, never.errors.length], [500, 1])
    assert.match(never.errors[0].message, /cannot answer 1000/)
  })

  test('a refusal by a deferred constraint: a lost attempt in COMMIT, and none where the work asks for it', async (t) => {
    const pool = poolFor(t)
    await pool.query(`CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO deferred VALUES (1);
      SELECT idem_set_policy('deferred', max_lost_attempts => 1)`)
    for (const [ending, answers] of [['SELECT 1', [409, 422]], ['SET CONSTRAINTS ALL IMMEDIATE', [409, 409]]]) {
      const { post } = await app(t, 'transaction', async (req, res, { tx }) => {
        await tx.query('INSERT INTO deferred VALUES (1)')
        await tx.query(ending)
        res.status(201).end()
      }, { scope: () => 'deferred', mapError: (error) => error.code === '23505' ? { status: 409, title: 'taken' } : undefined })
      const key = newKey()
      assert.deepEqual([(await post(key)).status, (await post(key)).status], answers, ending)
    }
  })

  test('a header that HTTP cannot carry goes to the error handler', async (t) => {
    const { post } = await app(t, 'transaction', () => { throw new Error('no') },
      { mapError: () => ({ status: 400, title: 'no', headers: { 'X-Name': 'Łódź' } }) })
    assert.deepEqual([(await post()).body, (await post()).status], ['own', 500])
  })

  for (const style of ['transaction', 'lease']) {
    for (const [name, write] of Object.entries({
      pipeline: (res) => pipeline(Readable.from([Buffer.from('do'), Buffer.from('ne')]), res),
      'a callback of end': (res) => new Promise((resolve) => { res.end('done', resolve) }),
      'the event finish': (res) => { const finished = events.once(res, 'finish'); res.end('done'); return finished },
    })) {
      test(`${style}: a handler may wait for ${name}`, async (t) => {
        const { post } = await app(t, style, async (req, res) => { await write(res) }, { principal: () => 'me', timeout: 5000 })
        const key = newKey()
        const [first, second] = [await post(key), await post(key)]
        assert.deepEqual([first.status, first.body, second.status, second.body], [200, 'done', 200, 'done'])
        assert.equal(second.headers['idempotency-replayed'], 'true')
      })
    }
  }

  test('a body that a parser has read without keeping it is refused where it says too little', async (t) => {
    const { post, errors } = await app(t, 'transaction', (req, res) => { res.status(201).end() }, { principal: () => 'me', before: [express.json()] })
    const status = async (body, type = 'application/json') => (await post(newKey(), body, type)).status
    assert.deepEqual([await status('{"n":1}'), await status('[]'), await status('{}'), await status('x=1', 'text/x-any')], [201, 201, 201, 201])
    for (const lossy of ['{"n":9007199254740993}', '[1e400]', '{"n":"\ufffd"}']) assert.equal(await status(lossy), 500)
    assert.match(errors[0].message, /keepBody/)
    assert.equal(errors.length, 3)
  })

  test('a stream that a middleware has read, or that Express 4 has left with {}', async (t) => {
    const swallow = async (req, res, next) => { req.resume(); await events.once(req, 'end'); req.body = {}; next() }
    const eaten = await app(t, 'transaction', (req, res) => { res.end('ran') }, { principal: () => 'me', before: [swallow] })
    for (const type of ['multipart/form-data; boundary=b', 'text/xml']) assert.equal((await eaten.post(newKey(), '<a/>', type)).status, 500)
    const four = await app(t, 'transaction', (req, res) => { res.end('ran') }, { principal: () => 'me', before: [(req, res, next) => { req.body = {}; next() }] })
    const key = newKey()
    const status = async (body) => (await four.post(key, body, 'text/xml')).status
    assert.deepEqual([await status('<a/>'), await status('<a/>'), await status('<b/>')], [200, 200, 422])
  })

  test('JSON with a Content-Encoding that no parser has decoded is refused; one that a parser has, is compared by its value', async (t) => {
    const gzip = { 'content-encoding': 'gzip' }
    const seen = []
    const handler = (req, res) => { seen.push(req.body); res.status(201).end() }
    const bare = await app(t, 'transaction', handler, { principal: () => 'me' })
    const { status, headers } = await bare.post(newKey(), gzipSync('{"a":1}'), 'application/json', gzip)
    assert.deepEqual([status, headers['accept-encoding'], seen], [415, 'identity', []])
    const parsing = await app(t, 'transaction', handler, { principal: () => 'me', before: [express.json()] })
    const key = newKey()
    const ask = async (body) => (await parsing.post(key, gzipSync(body), 'application/json', gzip)).status
    assert.deepEqual([await ask('{"a":1}'), await ask('{ "a": 1 }'), await ask('{"a":2}')], [201, 201, 422])
    assert.deepEqual(seen, [{ a: 1 }])
  })

  for (const timeout of [0, Infinity, 2 ** 40]) {
    test(`a timeout of ${timeout} does not fire at once`, async (t) => {
      const { post } = await app(t, 'transaction', async (req, res) => { await sleep(50); res.end('done') }, { timeout })
      assert.equal((await post()).status, 200)
    })
  }

  for (const option of ['principal', 'scope']) {
    test(`a ${option} that is none: 500, and nothing runs`, async (t) => {
      for (const nobody of [undefined, null, '', 0, 7, { id: 1 }]) {
        const { post, errors } = await app(t, 'transaction', () => assert.fail('ran'), { [option]: () => nobody })
        assert.equal((await post()).status, 500)
        assert.deepEqual(errors.map(({ message }) => message), [`the option "${option}" has to give a string that is not empty`])
      }
    })
  }
})

describe('fastify alone', () => {
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
})

// The response of Node, whose reason phrase the handler sets. Hono sends none.
const REASONS = {
  express: (setReason) => {
    const app = express()
    const once = expressIdempotency(setReason.idempotency, { principal: () => 'me', onError: setReason.onError })
    app.post('/', once.transaction(async (req, res, { tx }) => {
      await setReason(res, tx)
      res.end()
    }))
    return app.listen(0, '127.0.0.1')
  },
  fastify: async (setReason) => {
    const app = Fastify()
    await app.register(fastifyIdempotency, { idempotency: setReason.idempotency, principal: () => 'me', onError: setReason.onError })
    app.post('/', app.idempotent.transaction(async (request, reply, { tx }) => {
      await setReason(reply.raw, tx)
      return ''
    }))
    await app.listen({ port: 0, host: '127.0.0.1' })
    return app.server
  },
}

for (const [framework, serveReasons] of Object.entries(REASONS)) {
  describe(`${framework}: statusMessage`, () => {
    async function app(t, setReason) {
      const pool = poolFor(t)
      const errors = []
      const port = await portOf(t, await serveReasons(Object.assign(setReason, {
        idempotency: new Idempotency(pool, { retry: { base: 0 } }), onError: (error) => errors.push(error.code),
      })))
      const post = async (key) => {
        const request = http.request({ port, host: '127.0.0.1', method: 'POST', path: '/', headers: { 'idempotency-key': key } }).end()
        const [{ statusCode, statusMessage }] = await events.once(request, 'response')
        return `${statusCode} ${statusMessage}`
      }
      return { pool, post, errors }
    }

    for (const reason of ['Łódź', 'a\r\nSet-Cookie: b', 'a\0']) {
      test(`${JSON.stringify(reason)} cannot be sent: rolled back, and a 500`, async (t) => {
        const key = newKey()
        const { pool, post, errors } = await app(t, async (res, tx) => { await effect(tx, key); res.statusMessage = reason })
        for (let i = 0; i < 2; i++) assert.equal(await post(key), '500 Internal Server Error')
        assert.deepEqual([await effects(pool, key), errors], [0, ['ERR_INVALID_CHAR', 'ERR_INVALID_CHAR']])
      })
    }

    test('one that can is sent with its own answer, and with no other', async (t) => {
      const key = newKey()
      let calls = 0
      const { post } = await app(t, async (res) => {
        if (++calls === 2) throw new Error('planned')
        if (calls === 3) return
        res.statusMessage = 'Grüezi'
        if (calls === 1) throw Object.assign(new Error('planned'), { code: '40001' })
      })
      assert.equal(await post(key), '500 Internal Server Error')
      assert.equal(await post(key), '200 OK')
      assert.equal(await post(newKey()), '200 Grüezi')
    })
  })
}

describe('hono alone', () => {
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
      const once = honoIdempotency(new Idempotency(pool), { scope: () => 'hono thrown', required: false, onError: (error) => errors.push(error) })
      await pool.query("SELECT idem_set_policy('hono thrown', max_lost_attempts => 1)")
      const errors = []
      const without = application(routes((handler) => handler))
      const [transaction, lease] = [once.transaction, once.lease].map((wrap) => application(routes(wrap)))
      for (const path of Object.keys(THROWN)) {
        const expected = await post(without, path)
        assert.ok(expected.rejected || expected.headers.some(([name]) => name === 'x-before'), path)
        const key = newKey()
        assert.deepEqual([await post(transaction, path, key), await post(transaction, path, null), await post(lease, path)], [expected, expected, expected], path)
        // what is refused is no lost attempt, and is not stored
        const again = await post(transaction, path, key)
        if (path === '/busy' || path === '/broken') assert.equal(JSON.parse(again.body).reason, 'attempts lost', path)
        else assert.deepEqual(again, expected, path)
      }
      assert.equal(await effects(pool, 'hono thrown'), 0)
      assert.deepEqual(errors, [])
    })
  }

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
      const { app } = await throwing(t, { application, onError: (error) => errors.push(error) })
      for (const path of Object.keys(PLAIN)) await post(app, path)
      assert.deepEqual(errors, [PLAIN['/plain']])
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
    const status = async (path, body, headers) => (await app.request(path, {
      method: 'POST', body, headers: { 'content-type': 'application/json', ...headers },
    })).status
    const keyed = { 'idempotency-key': newKey() }
    const refused = [await status('/read', '{"a"'), await status('/read', '', keyed), await status('/read', '{"a"', { ...keyed, 'content-encoding': 'x' })]
    assert.deepEqual(refused, [400, 400, 400])
    assert.deepEqual([await status('/own', '{}'), await status('/read', '{"a"', { 'content-type': 'text/plain' })], [500, 500])
  })
})

test('a database that does not say until when an answer is kept costs the header, and no more', async (t) => {
  const proxy = await Proxy.forTest(t)
  const clock = new FakeClock()
  const once = expressIdempotency(new Idempotency(poolFor(t, { ...proxy.options, max: 1 }), { clock }), { principal: () => newKey(), lifetime: 'Until' })
  const app = express()
  app.post('/', once.transaction((req, res) => { res.end('done') }))
  const port = await portOf(t, app.listen(0, '127.0.0.1'))
  const post = () => send(port, { method: 'POST', path: '/', body: '', headers: { 'idempotency-key': newKey() } })
  await proxy.order('arm', 'hold', 'idem_lookup')
  const held = post()
  while ((await proxy.order('state')).hits === 0) await sleep(5)
  await clock.advance(5000)
  const { status, body, headers } = await Promise.race([held, sleep(10_000, {})])
  assert.deepEqual([status, body, headers?.until], [200, 'done', undefined])
  // The connection was cut, and its place in the pool is free.
  assert.ok((await post()).headers.until)
})

test('without a principal there is an error, unless the scope is given', () => {
  const idempotency = new Idempotency({ acquire: () => assert.fail('asked') })
  for (const make of [expressIdempotency, honoIdempotency]) {
    assert.throws(() => make(idempotency), { name: 'TypeError', message: /principal/ })
    make(idempotency, { scope: () => 'own' })
  }
})

function send(port, { method, path, headers, body }) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', method, path, agent: false,
      headers: { ...headers, 'content-length': Buffer.byteLength(body) } }, (answer) => {
      const chunks = []
      answer.on('data', (chunk) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () => {
        const bytes = Buffer.concat(chunks)
        resolve({ status: answer.statusCode, headers: answer.headers, bytes, body: bytes.toString() })
      })
    })
    request.on('error', reject)
    request.end(body)
  })
}
