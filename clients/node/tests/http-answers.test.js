// What is stored of an answer, and how it is replayed: on each framework.
import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { Declined, Reconciled } from 'pg-idempotency'
import { effect, effects, expire, newKey } from './support.js'
import { onEachFramework } from './http-kit.js'

onEachFramework((framework, server) => {
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
    await pool.query(`SELECT idem_set_policy($1, max_response_size => 200, too_large_response => '{"at":"/1"}')`,
      [`${framework} large`])
    const key = newKey()
    const answers = [await post(key), await post(key)]
    assert.deepEqual(answers.map(({ status, body, headers }) => [status, body, headers['idempotency-replayed']]), [
      [201, whole, undefined], [201, '{"at":"/1"}', 'true']])
    assert.equal(answers[1].headers['content-type'], 'application/json')
    assert.deepEqual(errors, [])
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

  test('a stream is stored; one without an end is refused at the limit', async (t) => {
    let body = () => Readable.from([Buffer.from('a'), Buffer.from('b'), Buffer.from('c')])
    const { post } = await server(t, () => ({ status: 200, body: body() }), { maxResponse: 1000 })
    const key = newKey()
    await post(key)
    assert.equal((await post(key)).body, 'abc')
    body = () => Readable.from((function* () { for (;;) yield Buffer.alloc(100) })())
    assert.equal((await post(newKey())).status, 500)
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
})
