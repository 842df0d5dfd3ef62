// Tools of agents: the adapter by itself, and with the official SDK, over stdio and HTTP. The servers are the program of
// docs/guide/agents.md, and they are killed in the middle of a call.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { Completion, Declined, NotDone, Reconciled } from 'pg-idempotency'
import { Tools, keyOfArguments } from 'pg-idempotency/mcp'
import { z } from 'zod'
import { deferred, effect, effects, expire, idempotencyFor, newKey, poolFor, portOf } from './support.js'

const SHARED = JSON.parse(readFileSync(new URL('../../conformance/tools.json', import.meta.url), 'utf8'))
const SCOPE = 'tests tool send ann'

// Tools, and the errors that they were told of.
function toolsFor(t, options) {
  const { pool, idempotency } = idempotencyFor(t, options)
  const errors = []
  return { pool, errors, tools: new Tools(idempotency, { onError: (error) => errors.push(error) }) }
}

const outcomeOf = ({ _meta }) => _meta['pg-idempotency/outcome']

function assertProblem(answer, outcome, retryAfterSeconds) {
  const message = SHARED.messages[outcome]
  const retry = (name) => retryAfterSeconds === undefined ? {} : { [name]: retryAfterSeconds }
  assert.ok(message)
  assert.deepEqual(answer, {
    content: [{ type: 'text', text: message }],
    structuredContent: { outcome, message, ...retry('retryAfterSeconds') },
    isError: true,
    _meta: { 'pg-idempotency/outcome': outcome, ...retry('pg-idempotency/retryAfterSeconds') },
  })
}

function assertReplay(answer, first) {
  assert.deepEqual(answer, { ...first, _meta: { ...first._meta, 'pg-idempotency/replayed': true } })
}

const stored = async (pool, key, scope = SCOPE) => (await pool.query(
  'SELECT status::text, request_hash FROM idempotency_store WHERE idempotency_key = $1 AND scope = $2', [key, scope])).rows

test('scopes and keys are those of the packages for other languages', async () => {
  const asked = []
  for (const { service, name, principal } of SHARED.scopes) {
    const transaction = async (key, request, work, { scope }) => { asked.push(scope); return { outcome: 'COMPLETED' } }
    await new Tools({ scope: service, transaction }).transaction(name, principal, 'k', {}, () => 1)
  }
  assert.deepEqual(asked, SHARED.scopes.map(({ scope }) => scope))
  assert.equal(new Set(asked).size, asked.length)
  assert.deepEqual(SHARED.keys.map(({ arguments: text }) => keyOfArguments(JSON.parse(text))), SHARED.keys.map(({ key }) => key))
  assert.equal(keyOfArguments({ a: undefined }), keyOfArguments({}))
  assert.equal(keyOfArguments({ at: new Date(0) }), keyOfArguments({ at: '1970-01-01T00:00:00.000Z' }))
  for (const value of [NaN, 1n, () => 1, '\ud800', new Map([[1, 2]]), new Set([1]), Promise.resolve(1)]) assert.throws(() => keyOfArguments({ value }), TypeError)
})

test('the same key once; a replay says so, and other arguments are refused', async (t) => {
  const { pool, tools, errors } = toolsFor(t)
  const key = newKey()
  const args = { to: 'é', parts: [1, 2.5, null] }
  const call = (principal = 'ann', given = args, name = 'send') =>
    tools.transaction(name, principal, key, given,
      async (tx, operation) => { await effect(tx, key); return { by: operation.scope } })
  const first = await call()
  assert.deepEqual(first, {
    content: [{ type: 'text', text: '{"by":"tests tool send ann"}' }], structuredContent: { by: 'tests tool send ann' }, isError: false,
    _meta: { 'pg-idempotency/outcome': 'COMPLETED' },
  })
  assertReplay(await call(), first)
  assertProblem(await call('ann', { to: 'f' }), 'KEY_REUSED')
  assertProblem(await call('ann', null), 'KEY_REUSED')
  assert.equal(await effects(pool, key), 1)
  const [{ request_hash: hash }] = await stored(pool, key)
  assert.deepEqual(hash, (await pool.query('SELECT idem_fingerprint($1) AS hash', [JSON.stringify(args)])).rows[0].hash)
  // Another principal, and another tool.
  assert.equal((await call('bob')).structuredContent.by, 'tests tool send bob')
  assert.equal((await call('ann', args, 'mail')).structuredContent.by, 'tests tool mail ann')
  assert.deepEqual([await effects(pool, key), errors], [3, []])
})

test('no principal, no name, no arguments: the server is wrong, and nothing runs', async (t) => {
  const { tools } = toolsFor(t)
  const run = () => assert.fail('ran')
  for (const nobody of [undefined, null, '', 7, {}, ['ann'], '\ud800']) {
    await assert.rejects(tools.transaction('send', nobody, 'k', {}, run), { name: 'TypeError', message: /principal/ })
    await assert.rejects(tools.lease('send', nobody, 'k', {}, run), { name: 'TypeError', message: /principal/ })
    await assert.rejects(tools.transaction(nobody, 'ann', 'k', {}, run), { name: 'TypeError', message: /name/ })
  }
  for (const args of [7, 'a', [1]]) await assert.rejects(tools.transaction('send', 'ann', 'k', args, run), { name: 'TypeError', message: /arguments/ })
})

test('what is no key, and what cannot be stored', async (t) => {
  const { tools, errors } = toolsFor(t)
  const run = () => assert.fail('ran')
  for (const key of [undefined, null, '', 7, 'k'.repeat(256), 'a\0b', '\ud800']) {
    assertProblem(await tools.transaction('send', 'ann', key, {}, run), 'BAD_ARGUMENT')
    assertProblem(await tools.lease('send', 'ann', key, {}, run), 'BAD_ARGUMENT')
  }
  for (const text of ['a\0b', '\ud800']) {
    assertProblem(await tools.transaction('send', 'ann', newKey(), { text }, run), 'BAD_ARGUMENT')
    assertProblem(await tools.lease('send', 'ann', newKey(), { text }, run), 'BAD_ARGUMENT')
  }
  assert.deepEqual(errors, [])
  const long = newKey() + '😀'.repeat(219)
  assert.equal(outcomeOf(await tools.transaction('send', 'ann', long, {}, () => 1)), 'COMPLETED')
})

test('the answers that work may give', async (t) => {
  const { tools } = toolsFor(t)
  const image = { content: [{ type: 'image', data: 'aGk=', mimeType: 'image/png' }], _meta: { mine: 1, 'pg-idempotency/outcome': 'FAILED' } }
  for (const [returned, content, structuredContent] of [
    [7, [{ type: 'text', text: '7' }], { result: 7 }],
    [undefined, [{ type: 'text', text: 'null' }], { result: null }],
    [[1], [{ type: 'text', text: '[1]' }], { result: [1] }],
    [{ code: 201, payload: { bb: 1, a: { d: [{ f: 2, e: 1 }], c: 3 } } }, [{ type: 'text', text: '{"a":{"c":3,"d":[{"e":1,"f":2}]},"bb":1}' }],
      { bb: 1, a: { d: [{ f: 2, e: 1 }], c: 3 } }],
    [{ content: 'text' }, [{ type: 'text', text: '{"content":"text"}' }], { content: 'text' }],
  ]) {
    const key = newKey()
    const call = () => tools.transaction('send', 'ann', key, {}, () => returned)
    const first = await call()
    assert.deepEqual(first, { content, structuredContent, isError: false, _meta: { 'pg-idempotency/outcome': 'COMPLETED' } })
    assertReplay(await call(), first)
  }
  const key = newKey()
  const call = () => tools.transaction('send', 'ann', key, {}, () => image)
  const first = await call()
  assert.deepEqual(first, { ...image, isError: false, _meta: { mine: 1, 'pg-idempotency/outcome': 'COMPLETED' } })
  assertReplay(await call(), first)
})

test('a failure is stored, and its writes are undone', async (t) => {
  const { pool, tools } = toolsFor(t)
  const own = { content: [{ type: 'text', text: 'no money' }], isError: true }
  for (const end of [() => { throw new Declined(402, { reason: 'no money' }) }, () => own, () => ({ payload: own }),
    () => { throw new Declined(402, { ...own, isError: false }) }]) {
    const key = newKey()
    const call = () => tools.transaction('send', 'ann', key, {}, async (tx) => { await effect(tx, key); return end() })
    const first = await call()
    assert.deepEqual([outcomeOf(first), first.isError], ['FAILED', true])
    assert.match(first.content[0].text, /no money/)
    assertReplay(await call(), first)
    assert.equal(await effects(pool, key), 0)
  }
  const key = newKey()
  const leased = await tools.lease('send', 'ann', key, {}, () => new Completion(own, (tx) => effect(tx, key)))
  assert.deepEqual([outcomeOf(leased), await effects(pool, key)], ['FAILED', 0])
  for (const [payload, retryAfter, seconds] of [[null, 1200, 2], [null, 0, 1], [undefined, undefined, undefined]]) {
    assertProblem(await tools.transaction('send', 'ann', newKey(), {}, () => { throw new Declined(409, payload, { retryAfter }) }), 'FAILED', seconds)
  }
})

test('an error of the work: nothing is stored, no text of it is shown, and the next call runs', async (t) => {
  const { pool, tools, errors } = toolsFor(t)
  const key = newKey()
  const failure = new Error('secret')
  for (const fail of [() => { throw failure }, () => ({ code: 'x', payload: 1 })]) {
    assertProblem(await tools.transaction('send', 'ann', key, {}, async (tx) => { await effect(tx, key); return fail() }), 'ERROR')
  }
  assertProblem(await tools.lease('send', 'ann', key, {}, () => { throw new NotDone({ cause: failure }) }), 'ERROR')
  assert.deepEqual(errors.map(({ message }) => message), ['secret', 'the code of a response is an integer', 'secret'])
  assert.deepEqual([await stored(pool, key), await effects(pool, key)], [[], 0])
  assert.equal(outcomeOf(await tools.transaction('send', 'ann', key, {}, () => 1)), 'COMPLETED')
  const { mock } = t.mock.method(console, 'error', () => {})
  assertProblem(await new Tools(idempotencyFor(t).idempotency).transaction('send', 'ann', newKey(), {}, () => { throw failure }), 'ERROR')
  assert.deepEqual(mock.calls.map(({ arguments: told }) => told), [[failure]])
  const deaf = new Tools(idempotencyFor(t).idempotency, { onError: () => { throw failure } })
  assertProblem(await deaf.transaction('send', 'ann', newKey(), {}, () => { throw failure }), 'ERROR')
})

test('a lease: in progress, unknown, and nothing is done twice without reconcile', async (t) => {
  const { pool, tools, errors } = toolsFor(t)
  const key = newKey()
  const begun = deferred()
  const lost = deferred()
  const first = tools.lease('send', 'ann', key, {}, () => { begun.resolve(); return lost.promise })
  await begun.promise
  const ran = () => assert.fail('ran')
  assertProblem(await tools.lease('send', 'ann', key, {}, ran), 'IN_PROGRESS', 30)
  lost.reject(new Error('socket hang up'))
  assertProblem(await first, 'UNKNOWN')
  assert.deepEqual(errors.map(({ message }) => message), ['socket hang up'])
  await expire(pool, key)
  assertProblem(await tools.lease('send', 'ann', key, {}, ran), 'UNKNOWN')
  assertProblem(await tools.lease('send', 'ann', key, {}, ran), 'UNKNOWN')
  assertProblem(await tools.lease('send', 'ann', key, {}, ran, { reconcile: () => Reconciled.unknown({ retryAfter: 1500 }) }), 'UNKNOWN', 2)
  assert.equal(errors.length, 1)
  assertProblem(await tools.lease('send', 'ann', key, {}, ran, { reconcile: () => { throw new Error('down') } }), 'UNKNOWN')
  assert.equal(errors[1].cause.message, 'down')
  const refused = { content: [{ type: 'text', text: 'no money' }], isError: true }
  const lapsed = newKey()
  await tools.lease('send', 'ann', lapsed, {}, () => { throw new Error('socket hang up') })
  await expire(pool, lapsed)
  assertProblem(await tools.lease('send', 'ann', lapsed, {}, ran, { reconcile: () => Reconciled.done({ code: 'x', payload: 1 }) }), 'UNKNOWN')
  await expire(pool, lapsed)
  const nothing = newKey()
  await tools.lease('send', 'ann', nothing, {}, () => { throw new Error('socket hang up') })
  await expire(pool, nothing)
  assert.equal(outcomeOf(await tools.lease('send', 'ann', nothing, {}, ran, { reconcile: () => Reconciled.done() })), 'COMPLETED')
  const found = await tools.lease('send', 'ann', lapsed, {}, ran, { reconcile: () => Reconciled.done(refused) })
  assert.deepEqual([outcomeOf(found), found.content, found.isError], ['FAILED', refused.content, true])
  assertReplay(await tools.lease('send', 'ann', lapsed, {}, ran), found)
  const known = await tools.lease('send', 'ann', key, {}, ({ attempt }) => ({ attempt }), { reconcile: () => Reconciled.notDone })
  assert.equal(known.structuredContent.attempt, 2)
  assertReplay(await tools.lease('send', 'ann', key, {}, ran), known)
})

test('a leased call whose answer cannot be stored is unknown', async (t) => {
  const { tools, errors } = toolsFor(t)
  const key = newKey()
  assertProblem(await tools.lease('send', 'ann', key, {}, () => 'x'.repeat(2_000_000)), 'UNKNOWN')
  assertProblem(await tools.lease('send', 'ann', key, {}, () => assert.fail('ran')), 'UNKNOWN')
  assert.deepEqual(errors.map(({ name }) => name), ['TooLarge', 'Unstorable'])
})

test('a database that cannot be reached: an error, as nothing has begun', async (t) => {
  const { errors, tools, pool } = toolsFor(t)
  pool.connect = () => Promise.reject(new Error('down'))
  for (const style of ['transaction', 'lease']) assertProblem(await tools[style]('send', 'ann', 'k', {}, () => assert.fail('ran')), 'ERROR')
  assert.deepEqual(errors.map(({ cause }) => cause.message), ['down', 'down'])
})

test('options are those of the call, and none is another scope', async (t) => {
  const { pool, tools, errors } = toolsFor(t)
  const key = newKey()
  // A mistake of the server is none of the caller's.
  for (const wait of ['soon', NaN, -1, '-1 s']) {
    assertProblem(await tools.transaction('send', 'ann', newKey(), {}, () => assert.fail('ran'), { wait }), 'ERROR')
    assert.match(errors.pop().message, /wait/)
  }
  await tools.transaction('send', 'ann', key, {}, () => 1, { scope: 'mine', requestHash: Buffer.alloc(32), retention: '90 days' })
  assert.equal((await stored(pool, key)).length, 1)
  assertProblem(await tools.transaction('send', 'ann', key, { a: 1 }, () => 1, { requestHash: Buffer.alloc(32) }), 'KEY_REUSED')
  assertProblem(await tools.lease('send', 'ann', key, { a: 1 }, () => 1, { scope: 'mine', requestHash: Buffer.alloc(32) }), 'KEY_REUSED')
  const { rows: [{ days }] } = await pool.query(
    "SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM idempotency_store WHERE idempotency_key = $1", [key])
  assert.equal(days, 90)
})

test('a key in _meta, and a tool with an output schema', async (t) => {
  const { pool, tools } = toolsFor(t)
  const server = new McpServer({ name: 'test', version: '1' })
  server.registerTool('send', { inputSchema: { to: z.string() }, outputSchema: { to: z.string() } }, (args, { _meta }) =>
    tools.transaction('send', 'ann', _meta?.['pg-idempotency/key'], args,
      async (tx) => { await effect(tx, _meta['pg-idempotency/key']); return args }))
  const [ours, theirs] = InMemoryTransport.createLinkedPair()
  await server.connect(theirs)
  const client = new Client({ name: 'test', version: '1' })
  await client.connect(ours)
  const key = newKey()
  const call = (_meta) => client.callTool({ name: 'send', arguments: { to: 'bob' }, _meta })
  const first = await call({ 'pg-idempotency/key': key })
  assert.deepEqual(first.structuredContent, { to: 'bob' })
  assertReplay(await call({ 'pg-idempotency/key': key }), first)
  assertProblem(await call(), 'BAD_ARGUMENT')
  assert.equal(await effects(pool, key), 1)
  await client.close()
})

// Charges once for each reference; a call may be left without an answer, or the list of charges be down.
async function startGateway(t) {
  const gateway = { charges: new Map(), calls: 0, hold: null, down: false }
  const server = createServer(async (request, response) => {
    const answer = (status, body) => response.writeHead(status).end(JSON.stringify(body))
    if (request.method === 'GET') {
      const found = gateway.charges.get(new URL(request.url, 'http://gateway').searchParams.get('reference'))
      return gateway.down ? answer(500) : answer(found ? 200 : 404, found)
    }
    const { reference, amount } = JSON.parse(Buffer.concat(await request.toArray()))
    gateway.calls++
    gateway.charges.set(reference, { charge: `ch_${gateway.calls}`, amount })
    if (gateway.hold) gateway.hold.resolve()
    else answer(200, gateway.charges.get(reference))
  })
  return Object.assign(gateway, { url: `http://127.0.0.1:${await portOf(t, server.listen(0, '127.0.0.1'))}` })
}

async function guideProgram(t) {
  const directory = await mkdtemp(path.resolve('page-'))
  t.after(() => rm(directory, { recursive: true }))
  const [, program] = /^```js agents\/server.mjs\n(.*?)^```$/ms.exec(await readFile('../../docs/guide/agents.md', 'utf8'))
  await writeFile(path.join(directory, 'server.mjs'), program)
  return path.join(directory, 'server.mjs')
}

// Each starts the program, and gives a client of one user, and a function that kills the server.
const TRANSPORTS = {
  async stdio(t, program, env) {
    const transport = new StdioClientTransport({ command: process.execPath, args: [program], env: { ...process.env, BANK_USER: 'ada', ...env } })
    const client = await connected(t, transport)
    const closed = deferred()
    client.onclose = closed.resolve
    return { client, kill: () => { process.kill(transport.pid, 'SIGKILL'); return closed.promise } }
  },
  async http(t, program, env) {
    const child = spawn(process.execPath, [program, '0'],
      { env: { ...process.env, ...env }, stdio: ['ignore', 'inherit', 'pipe'] })
    const kill = async () => { if (child.kill('SIGKILL')) await once(child, 'exit') }
    t.after(kill)
    const [address] = await once(createInterface({ input: child.stderr }), 'line')
    const clientOf = (user) => connected(t, new StreamableHTTPClientTransport(new URL(address), {
      requestInit: { headers: user && { Authorization: `Bearer token-of-${user}` } },
    }))
    return { client: await clientOf('ada'), clientOf, kill }
  },
}

async function connected(t, transport) {
  const client = new Client({ name: 'test', version: '1' })
  t.after(() => client.close())
  await client.connect(transport)
  return client
}

for (const [name, start] of Object.entries(TRANSPORTS)) {
  test(`${name}: a server that is killed in the middle of a call, and the call repeated: one effect`, async (t) => {
    const pool = poolFor(t)
    const gateway = await startGateway(t)
    const program = await guideProgram(t)
    await pool.query('CREATE TABLE IF NOT EXISTS wallet (id text PRIMARY KEY, balance int NOT NULL)')
    await pool.query("INSERT INTO wallet VALUES ('ada', 100), ('bob', 0) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance")
    const balances = async () => (await pool.query('SELECT balance FROM wallet ORDER BY id')).rows.map(({ balance }) => balance)
    const [paid, key, charged] = [newKey(), newKey(), newKey()]
    let server = await start(t, program, { GATEWAY: gateway.url })
    const transfer = (given, amount) => server.client.callTool({ name: 'transfer', arguments: { key: given, to: 'bob', amount } })
    const charge = (client = server.client) => client.callTool({ name: 'charge_card', arguments: { key: charged, amount: 7 } })

    const first = await transfer(paid, 30)
    assert.deepEqual([first.structuredContent, first.isError], [{ to: 'bob', amount: 30 }, false])
    assertReplay(await transfer(paid, 30), first)
    assertProblem(await transfer(paid, 31), 'KEY_REUSED')
    assertProblem(await transfer('', 30), 'BAD_ARGUMENT')
    const poor = newKey()
    const declined = await transfer(poor, 500)
    assert.deepEqual([declined.structuredContent, declined.isError], [{ reason: 'not enough money' }, true])
    assertReplay(await transfer(poor, 500), declined)
    const nowhere = await server.client.callTool({ name: 'transfer', arguments: { key: newKey(), to: 'nobody', amount: 10 } })
    assert.deepEqual([nowhere.structuredContent, nowhere.isError], [{ reason: 'no such account' }, true])
    assert.deepEqual(await balances(), [70, 30])

    // Killed while its statement waits for our lock.
    const locker = await pool.connect()
    await locker.query("BEGIN; SELECT FROM wallet WHERE id = 'ada' FOR UPDATE")
    const cut = assert.rejects(transfer(key, 10))
    const worker = await waiting(pool)
    await server.kill()
    await cut
    assert.ok((await pool.query('SELECT pg_terminate_backend($1, 60000) AS gone', [worker])).rows[0].gone)
    await locker.query('ROLLBACK')
    locker.release()
    server = await start(t, program, { GATEWAY: gateway.url })
    const repeated = await transfer(key, 10)
    assert.deepEqual(repeated._meta, { 'pg-idempotency/outcome': 'COMPLETED' })
    assertReplay(await transfer(key, 10), repeated)
    assert.deepEqual(await balances(), [60, 40])

    // Killed when the gateway has charged, and has not answered.
    gateway.hold = deferred()
    const lost = assert.rejects(charge())
    await gateway.hold.promise
    await server.kill()
    await lost
    gateway.hold = null
    server = await start(t, program, { GATEWAY: gateway.url })
    const { structuredContent: { outcome, retryAfterSeconds }, isError } = await charge()
    assert.deepEqual([outcome, isError, retryAfterSeconds > 0 && retryAfterSeconds <= 60], ['IN_PROGRESS', true, true])
    await expire(pool, charged)
    gateway.down = true
    assertProblem(await charge(), 'UNKNOWN', 60)
    gateway.down = false
    const found = await charge()
    assert.deepEqual([found.structuredContent, found.isError], [{ charge: 'ch_1', amount: 7 }, false])
    assertReplay(await charge(), found)
    assert.deepEqual([gateway.calls, gateway.charges.size], [1, 1])

    if (server.clientOf) {
      const other = await charge(await server.clientOf('bob'))
      assert.deepEqual([other.structuredContent.charge, outcomeOf(other), gateway.charges.size], ['ch_2', 'COMPLETED', 2])
      await assert.rejects(server.clientOf('nobody'), /token/)
      await assert.rejects(server.clientOf(undefined), /Authorization/)
    } else {
      const { client } = await start(t, program, { BANK_USER: '' })
      const { isError: refused, content } = await charge(client)
      assert.deepEqual([refused, gateway.calls], [true, 1])
      assert.match(content[0].text, /principal/)
    }
  })
}

// The process on the server whose UPDATE waits for a lock.
async function waiting(pool) {
  for (;;) {
    const { rows: [found] } = await pool.query(
      "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE wallet %'")
    if (found) return found.pid
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
