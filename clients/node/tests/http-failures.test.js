// Handlers that fail, refuse or take too long: on each framework.
import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { test } from 'node:test'
import { Declined, FakeClock, KeyReused, NotDone, Reconciled } from 'pg-idempotency'
import { deferred, effect, effects, expire, newKey } from './support.js'
import { onEachFramework, REFUSALS } from './http-kit.js'

onEachFramework((framework, server) => {
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
    assert.deepEqual([(await post(failing)).status, (await post(failing)).status, (await post(failing)).status, errors],
      [500, 500, 422, []])
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
    assert.deepEqual([declined.status, declined.body, declined.headers['content-type'].split(';')[0]],
      [402, '{"reason":"thrown"}', 'application/json'])
  })

  test('an error is answered in a shape of one\'s own', async (t) => {
    const told = []
    const { post } = await server(t, () => ({ status: 201 }), {
      onError: (error) => told.push(error.name),
      mapError: (error, request, { status, title, headers }) =>
        ({ status, headers: { ...headers, 'content-type': 'text/plain' }, body: error instanceof KeyReused ? {} : title }),
    })
    const missing = await post(undefined)
    assert.deepEqual([missing.status, missing.headers['content-type'].split(';')[0], missing.body],
      [400, 'text/plain', 'Idempotency-Key is missing'])
    // a body that cannot be sent
    const key = newKey()
    await post(key, '{"a":1}')
    const reused = await post(key, '{"a":2}')
    assert.deepEqual([reused.status, JSON.parse(reused.body).title, told],
      [422, 'Idempotency-Key is already used', ['TypeError']])
  })

  test('an onError that fails changes no answer', async (t) => {
    for (const onError of [() => { throw null }, () => Promise.reject(new Error('planned'))]) {
      const { post } = await server(t, () => { throw new Error('planned') }, { onError, timeout: 3000 })
      const { status, headers } = await post(newKey())
      assert.deepEqual([status, headers['content-type'].split(';')[0]], [500, 'application/problem+json'])
    }
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

  test('without a key, too, what may be tried again since a while says so', async (t) => {
    const { post } = await server(t, () => { throw new Declined(402, 1, { retryAfter: '-1 hour' }) }, { required: false })
    for (const key of [undefined, newKey()]) {
      const { status, headers } = await post(key)
      assert.deepEqual([status, headers['retry-after']], [402, '1'])
    }
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

  test('a lease whose writes decline answers so, with a key and without', async (t) => {
    const key = newKey()
    const decline = async (tx) => {
      await effect(tx, key)
      throw new Declined(402, { reason: 'no money' })
    }
    const { pool, post } = await server(t, () => ({ status: 201, body: 'charged', writes: decline }),
      { style: 'lease', required: false })
    for (const answer of [await post(key), await post(key), await post()]) {
      assert.deepEqual([answer.status, answer.body], [402, '{"reason":"no money"}'])
    }
    assert.equal(await effects(pool, key), 0)
  })
})
