// Answers that cannot be sent or stored: on each framework.
import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { Completion, Declined, Reconciled } from 'pg-idempotency'
import { effect, effects, expire, newKey } from './support.js'
import { headerOf, onEachFramework } from './http-kit.js'

onEachFramework((framework, server) => {
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
      const { post, errors } = await server(t, () => { throw new Declined(402, { own }) },
        { style, fingerprint: () => ({ own: own || 1 }) })
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
      const keyless = await server(t, () => ({ status: 201, body: 'x'.repeat(1001) }),
        { style, maxResponse: 1000, required: false })
      assert.equal((await keyless.post()).status, 500)
    }
    size = 1000
    assert.equal((await post(key)).status, 201)
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

  test('a lease whose handler gave an answer that cannot be sent or stored is done, with its writes', async (t) => {
    const bytes = 'x'.repeat(1001)
    const scope = (request) => `${framework} unstorable ${headerOf(request, 'x-scope') ?? ''}`
    let answer
    let runs = 0
    const { pool, post, errors } = await server(t, () => { runs++; return answer() },
      { style: 'lease', scope, maxResponse: 1000 })
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

  for (const [what, headers] of [['name of a header', { 'a b': '1' }], ['header', { 'X-A': 'a\r\nb' }]]) {
    test(`who declines with a ${what} that HTTP cannot carry gets a 500, and stores nothing`, async (t) => {
      const key = newKey()
      const { pool, status } = await server(t, () => { throw new Declined(402, {}, { headers }) }, { required: false })
      assert.deepEqual([await status(), await status(key)], [500, 500])
      const { rows } = await pool.query('SELECT 1 FROM idempotency_store WHERE idempotency_key = $1', [key])
      assert.deepEqual(rows, [])
    })
  }

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
