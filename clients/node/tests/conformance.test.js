// The conformance programs, started as programs, each against the same cases.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import http from 'node:http'
import net from 'node:net'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { newKey, poolFor } from './support.js'

for (const framework of ['express', 'fastify', 'hono']) {
  describe(framework, () => {
    let program
    let port
    before(async () => {
      port = await freePort()
      program = spawn(`./conformance/${framework}`, [], {
        env: {
          ...process.env, PORT: String(port),
          DATABASE_URL: `postgres://postgres@localhost:${process.env.PGPORT}/postgres?host=${process.env.PGHOST}&application_name=${framework}`,
        },
        stdio: ['ignore', 'ignore', 'pipe'],
      })
      program.errors = ''
      program.stderr.on('data', (chunk) => { program.errors += chunk })
      await answers(port, program)
    })
    after(async () => {
      program.kill()
      await once(program, 'close')
    })

    const post = (path, key, body, headers = {}) => send(port, { path, headers: {
      'content-type': 'application/json', 'x-tenant': 'a', ...(key && { 'idempotency-key': key }), ...headers,
    }, body: typeof body === 'string' ? body : JSON.stringify(body) })

    for (const [path, kind] of [['/payments', 'payment'], ['/charges', 'charge']]) {
      const payment = () => ({ account: newKey(), amount: 10 })
      const rows = async (t, { account }) => (await poolFor(t).query(
        'SELECT kind FROM payment WHERE account = $1', [account])).rows.map((row) => row.kind)

      test(`${path}: once, and the replay is the same byte for byte`, async (t) => {
        const [key, body] = [newKey(), payment()]
        const first = await post(path, `"${key}"`, body)
        const second = await post(path, key, body)
        assert.equal(first.status, 201, first.body)
        assert.deepEqual(Object.keys(JSON.parse(first.body)), ['id', 'account', 'amount'])
        assert.equal(first.headers['x-payment'], JSON.parse(first.body).id)
        assert.equal(first.headers['idempotency-replayed'], undefined)
        assert.equal(second.headers['idempotency-replayed'], 'true')
        assert.deepEqual([second.status, second.body, second.headers['x-payment'], second.headers['content-type']],
          [first.status, first.body, first.headers['x-payment'], first.headers['content-type']])
        assert.deepEqual(await rows(t, body), [kind])
      })

      test(`${path}: forty at once leave one effect`, async (t) => {
        const [key, body] = [newKey(), payment()]
        const all = await Promise.all(Array.from({ length: 40 }, () => post(path, key, body)))
        const statuses = new Set(all.map(({ status }) => status))
        assert.ok([...statuses].every((status) => status === 201 || status === 409), [...statuses].join())
        for (const { headers } of all.filter(({ status }) => status === 409)) assert.ok(Number(headers['retry-after']) >= 1)
        assert.equal(new Set(all.filter(({ status }) => status === 201).map((answer) => answer.body)).size, 1)
        assert.deepEqual(await rows(t, body), [kind])
      })

      test(`${path}: declined is stored`, async (t) => {
        const [key, body] = [newKey(), { account: newKey(), amount: 1001 }]
        const [first, second] = [await post(path, key, body), await post(path, key, body)]
        assert.deepEqual([first.status, first.body], [402, '{"reason":"declined"}'])
        assert.deepEqual([second.status, second.body, second.headers['idempotency-replayed']], [402, first.body, 'true'])
        assert.deepEqual(await rows(t, body), [])
      })

      test(`${path}: a crash leaves nothing, and says nothing`, async (t) => {
        const [key, body] = [newKey(), { account: newKey(), amount: 5, crash: true }]
        for (let i = 0; i < 2; i++) {
          const { status, headers, body: text } = await post(path, key, body)
          assert.equal(status, 500)
          assert.equal(headers['content-type'], 'application/problem+json')
          assert.deepEqual(JSON.parse(text), { type: 'https://example.com/docs/idempotency', title: 'Internal Server Error', status: 500 })
        }
        assert.match(program.errors, /crashed after the INSERT/)
        assert.deepEqual(await rows(t, body), [])
        const { rows: [{ count }] } = await poolFor(t).query(
          'SELECT count(*)::int AS count FROM idempotency_store WHERE idempotency_key = $1', [key])
        assert.equal(count, 0)
      })

      test(`${path}: problems`, async () => {
        const body = payment()
        const key = newKey()
        await post(path, key, body)
        const cases = [
          [400, await post(path, undefined, body)],
          [400, await post(path, '""', body)],
          [400, await post(path, '"a', body)],
          [400, await post(path, 'a b', body)],
          [400, await post(path, 'ü', body)],
          [400, await post(path, ['a', 'b'], body)],
          [400, await post(path, 'x'.repeat(256), body)],
          [422, await post(path, key, { ...body, amount: 11 })],
        ]
        for (const [expected, { status, headers, body: text }] of cases) {
          assert.equal(status, expected, text)
          assert.equal(headers['content-type'], 'application/problem+json')
          const problem = JSON.parse(text)
          assert.deepEqual([problem.status, typeof problem.title, typeof problem.detail], [expected, 'string', 'string'])
          assert.ok(!text.includes(key) && !text.includes(path))
        }
        assert.equal((await post(path, newKey().padEnd(255, 'x'), body)).status, 201)
        assert.equal((await post(path, `"${newKey()} \\"quoted\\", with a space"`, body)).status, 201)
      })

      test(`${path}: tenants are apart`, async () => {
        const [key, body] = [newKey(), payment()]
        const one = await post(path, key, body, { 'x-tenant': 'one' })
        const two = await post(path, key, { ...body, amount: 3 }, { 'x-tenant': 'two' })
        assert.deepEqual([one.status, two.status], [201, 201])
      })

      test(`${path}: in progress, and Prefer: wait`, async (t) => {
        const [key, body] = [newKey(), { ...payment(), slow: 1500 }]
        const first = post(path, key, body)
        await begun(t, framework, key)
        const refused = await post(path, key, body)
        assert.equal(refused.status, 409)
        assert.ok(Number(refused.headers['retry-after']) >= 1)
        const waiting = await post(path, key, body, { prefer: 'respond-async, wait=9' })
        assert.equal(waiting.headers['idempotency-replayed'], 'true')
        assert.equal(waiting.body, (await first).body)
      })

      test(`${path}: a client that goes away: the answer is stored all the same`, async (t) => {
        const [key, body] = [newKey(), { ...payment(), slow: 600 }]
        const controller = new AbortController()
        const gone = assert.rejects(send(port, { path, signal: controller.signal, headers: {
          'content-type': 'application/json', 'x-tenant': 'a', 'idempotency-key': key,
        }, body: JSON.stringify(body) }), { code: 'ABORT_ERR' })
        await begun(t, framework, key)
        controller.abort()
        await gone
        const after = await post(path, key, body, { prefer: 'wait=9' })
        assert.deepEqual([after.status, after.headers['idempotency-replayed']], [201, 'true'])
        assert.deepEqual(await rows(t, body), [kind])
      })
    }

    test('GET / answers 200', async () => {
      assert.equal((await send(port, { method: 'GET', path: '/', headers: {} })).status, 200)
    })
  })
}

// Waits until the program has begun the operation: its connection is idle in the transaction, or the lease is stored.
async function begun(t, framework, key) {
  const pool = poolFor(t)
  for (let tries = 0; tries < 400; tries++) {
    const { rowCount } = await pool.query(`SELECT FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle in transaction'
      UNION ALL SELECT FROM idempotency_store WHERE idempotency_key = $2 AND status = 'PENDING'`, [framework, key])
    if (rowCount > 0) return
    await sleep(20)
  }
  assert.fail('the operation was not begun')
}

function send(port, { method = 'POST', path, headers, body, signal }) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', method, path, headers, signal, agent: false }, (answer) => {
      const chunks = []
      answer.on('data', (chunk) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () => resolve({ status: answer.statusCode, headers: answer.headers, body: Buffer.concat(chunks).toString() }))
    })
    request.on('error', reject)
    request.end(body)
  })
}

async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

async function answers(port, program) {
  for (let tries = 0; tries < 300; tries++) {
    assert.equal(program.exitCode, null, program.errors)
    if (await send(port, { method: 'GET', path: '/', headers: {} }).catch(() => null)) return
    await sleep(50)
  }
  assert.fail(`the program does not answer: ${program.errors}`)
}
