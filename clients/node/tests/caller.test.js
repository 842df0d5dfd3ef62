// The client's half, against a server that answers as it is told.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { mkdir, mkdtemp, open, readdir } from 'node:fs/promises'
import http from 'node:http'
import path from 'node:path'
import { once } from 'node:events'
import { test } from 'node:test'
import { BadArgument, FakeClock } from 'pg-idempotency'
import { Caller, FileStore, MemoryStore, NoAnswer } from 'pg-idempotency/caller'
import { deferred, newKey, portOf } from './support.js'

// Each request takes the next of the answers; the last one stays.
async function service(t, answers) {
  const seen = []
  const server = http.createServer((request, response) => {
    const chunks = []
    request.on('data', (chunk) => chunks.push(chunk))
    request.on('end', () => {
      const { method, url, headers: { 'idempotency-key': key, 'content-type': type } } = request
      seen.push({ method, url, key, type, body: Buffer.concat(chunks).toString() })
      const answer = answers.length > 1 ? answers.shift() : answers[0]
      if (answer === 'cut') request.socket.destroy()
      else if (answer === 'half') response.writeHead(201, { 'Content-Length': '10' }).write('abc', () => request.socket.destroy())
      else if (answer !== 'silence') response.writeHead(answer.status, answer.headers ?? {}).end(answer.body ?? '')
    })
  }).listen(0, '127.0.0.1')
  return { seen, server, url: `http://127.0.0.1:${await portOf(t, server)}/payments` }
}

// A clock that sleeps through each pause at once, and never through the time-out of a try.
class Pauses {
  slept = []
  now = () => 0
  sleep = (ms, signal) => {
    if (ms === 30_000) return new Promise((resolve) => signal.addEventListener('abort', resolve))
    this.slept.push(ms)
    return Promise.resolve()
  }
  every = () => () => {}
}

test('retries 409, 503 and lost answers with the same key, and obeys Retry-After', async (t) => {
  const { seen, url } = await service(t, [
    'cut', { status: 409, headers: { 'Retry-After': '7' } }, 'half', { status: 503, headers: { 'Retry-After': 'Thu, 01 Jan 1970 00:00:09 GMT' } },
    { status: 201, body: 'done' }])
  const clock = new Pauses()
  const caller = new Caller({ store: new MemoryStore(), clock })
  const response = await caller.send('order 1', url, { body: '{"a":1}', headers: { 'Content-Type': 'application/json' } })
  assert.deepEqual([response.status, await response.text()], [201, 'done'])
  assert.equal(seen.length, 5)
  assert.equal(new Set(seen.map(({ key }) => key)).size, 1)
  assert.match(seen[0].key, /^"[0-9a-f-]{36}"$/)
  assert.ok(seen.every(({ body, type }) => body === '{"a":1}' && type === 'application/json'))
  assert.deepEqual([clock.slept[1], clock.slept[3]], [7000, 9000])
})

test('a pause is bounded, is never none, and is not begun beyond the deadline', async (t) => {
  const { url } = await service(t, [409, 503, 503, 503].map((status, i) => (
    { status, headers: { 'Retry-After': ['0', '999999', '20', '999999'][i] } })))
  const clock = new Pauses()
  clock.now = () => clock.slept.reduce((sum, ms) => sum + ms, 0)
  const caller = new Caller({ store: new MemoryStore(), clock, deadline: 90_000 })
  await assert.rejects(caller.send('x', url), (error) => error instanceof NoAnswer && error.response.status === 503)
  assert.deepEqual(clock.slept.slice(1), [60_000, 20_000])
  assert.ok(clock.slept[0] > 0)
})

test('a replay is final, unless it names a time', async (t) => {
  for (const marker of ['Idempotency-Replayed', 'Idempotent-Replayed']) {
    const replayed = { [marker]: 'true' }
    const { seen, url } = await service(t,
      [{ status: 409, headers: { ...replayed, 'Retry-After': '5' } }, { status: 409, headers: replayed }])
    assert.equal((await new Caller({ store: new MemoryStore(), clock: new Pauses() }).send('x', url)).status, 409)
    assert.equal(seen.length, 2)
  }
})

test('a redirect that would send a GET, or the key to another origin, is the answer', async (t) => {
  const stranger = await service(t, [{ status: 200 }])
  for (const [method, status, location, want] of [
    ['POST', 301, '/there', 301], ['POST', 302, '/there', 302], ['POST', 303, '/there', 303], ['PUT', 302, '/there', 302],
    ['POST', 307, '/there', 201], ['PUT', 308, '/there', 201], ['get', 302, '/there', 201], ['HEAD', 303, '/there', 201],
    ['POST', 307, stranger.url, 307], ['GET', 302, stranger.url, 302], ['POST', 307, 'http://', 307], ['POST', 307, undefined, 307],
    ['GET', 200, '/there', 200],
  ]) {
    const { seen, url } = await service(t, [{ status, headers: location && { Location: location } }, { status: 201 }])
    const body = { POST: 'body', PUT: Buffer.from('body') }[method] ?? null
    const response = await new Caller({ store: new MemoryStore(), clock: new Pauses() }).send('x', url, { method, body })
    assert.equal(response.status, want)
    assert.equal(seen.length, want === 201 ? 2 : 1)
    assert.ok(seen.every((one) => one.method === method.toUpperCase() && one.key === seen[0].key && one.body === String(body ?? '')))
    const manual = await service(t, [{ status: 307, headers: { Location: '/there' } }, { status: 201 }])
    assert.equal((await new Caller({ store: new MemoryStore() }).send('x', manual.url, { redirect: 'manual' })).status, 307)
  }
  const { seen, url } = await service(t, [{ status: 308, headers: { Location: '/payments' } }])
  assert.equal((await new Caller({ store: new MemoryStore() }).send('x', url)).status, 308)
  assert.equal(seen.length, 11)
  assert.deepEqual(stranger.seen, [])
  const chain = await service(t,
    [{ status: 307, headers: { Location: '/a/b' } }, { status: 307, headers: { Location: 'c' } }, { status: 201 }])
  assert.equal((await new Caller({ store: new MemoryStore() }).send('x', chain.url)).status, 201)
  assert.deepEqual(chain.seen.map(({ url }) => url), ['/payments', '/a/b', '/a/c'])
  await assert.rejects(new Caller({ store: new MemoryStore(), attempts: 1 }).send('x', url, { redirect: 'error' }), NoAnswer)
})

test('what asks for another try, and what is the answer', async (t) => {
  for (const [statuses, tries] of [[[422, 500, 402, 200, 204], 1], [[409, 425, 429, 502, 503, 504], 2]]) {
    for (const status of statuses) {
      const { seen, url } = await service(t, [{ status }, { status: 201 }])
      const answer = await new Caller({ store: new MemoryStore(), clock: new Pauses() }).send('x', url)
      const want = tries === 1 ? status : 201
      assert.deepEqual([answer.status, answer.statusText, seen.length], [want, http.STATUS_CODES[want], tries])
    }
  }
})

test('gives up after the last try, and says what it knows', async (t) => {
  const { seen, url } = await service(t, [{ status: 503 }])
  const clock = new Pauses()
  t.mock.method(Math, 'random', () => 0.5)
  const caller = new Caller({ store: new MemoryStore(), clock, attempts: 4, cap: 500 })
  await assert.rejects(caller.send('x', url), (error) => error instanceof NoAnswer && error.response.status === 503)
  assert.deepEqual([seen.length, clock.slept], [4, [100, 200, 250]])
  const cut = await service(t, ['cut'])
  await assert.rejects(caller.send('y', cut.url), (error) => error instanceof NoAnswer && error.response === undefined)
})

test('a service that never answers: the time-out of a try is a lost answer', async (t) => {
  const { seen, server, url } = await service(t, ['silence', { status: 201 }])
  const clock = new FakeClock()
  const arrived = once(server, 'request')
  const sent = new Caller({ store: new MemoryStore(), clock, timeout: 5000, base: 0 })
    .send('x', url, { signal: new AbortController().signal })
  await arrived
  await clock.advance(5000)
  await clock.whenPending(1)
  await clock.advance(1)
  assert.equal((await sent).status, 201)
  assert.deepEqual([new Set(seen.map(({ key }) => key)).size, clock.pending], [1, 0])
})

for (const [when, sleeps] of [['a try', 1], ['a pause', 2]]) {
  test(`a caller that gives up in ${when} gets NoAnswer, and nothing more is sent`, async (t) => {
    const { seen, server, url } = await service(t, [sleeps === 1 ? 'silence' : { status: 503 }])
    const [clock, stop, arrived, asleep] = [new FakeClock(), new AbortController(), once(server, 'request'), deferred()]
    const sleep = t.mock.method(clock, 'sleep', (...given) => {
      if (sleep.mock.callCount() + 1 === sleeps) asleep.resolve()
      return FakeClock.prototype.sleep.apply(clock, given)
    })
    const wrapped = t.mock.fn(fetch)
    const refused = assert.rejects(new Caller({ store: new MemoryStore(), clock, fetch: wrapped }).send('x', url, { signal: stop.signal }), NoAnswer)
    await Promise.all([arrived, asleep.promise])
    stop.abort()
    await refused
    assert.deepEqual([seen.length, wrapped.mock.callCount(), clock.pending], [1, sleeps, 0])
  })
}

test('a key that is forgotten while it is made: another one, and never none', async () => {
  const store = new FileStore(await mkdtemp(path.join(process.env.IDEM_WORK, 'keys')))
  for (let i = 0; i < 300; i++) {
    const keys = await Promise.all(Array.from({ length: 4 }, () => store.keyFor('x', newKey).finally(() => store.forget('x'))))
    assert.ok(keys.every((key) => typeof key === 'string' && key.length === 36), keys.join())
  }
})

test('what can never be sent is refused at once, and keeps no key', async () => {
  const store = new MemoryStore()
  const refused = async (caller, url, init) => {
    await assert.rejects(caller.send('x', url, init), BadArgument)
    assert.equal(await store.keyFor('x', () => 'none'), 'none')
    await store.forget('x')
  }
  const caller = new Caller({ store, clock: new Pauses() })
  for (const url of ['/orders', 'no url', '', 'http://', 'http://127.0.0.1:99999/', 'ftp://127.0.0.1/', 'http://a:b@127.0.0.1:1/']) {
    await refused(caller, url)
  }
  await refused(caller, 'http://127.0.0.1:1/', { method: 'GET', body: 'x' })
  // All requests whose intent is missing would have one key.
  for (const intent of ['', undefined, 7, '\ud800']) await assert.rejects(caller.send(intent, 'http://127.0.0.1:1/'), BadArgument)
  await assert.rejects(caller.send('x', 'http://127.0.0.1:1', { body: new ReadableStream() }), TypeError)
  assert.equal(await store.keyFor('x', () => 'none'), 'none')
})

test('a fetch of its own is asked once for what is no URL to it, and may take another', async () => {
  const tried = []
  const wrapped = (url, init) => { tried.push(url); return fetch(url, init) }
  await assert.rejects(new Caller({ store: new MemoryStore(), fetch: wrapped, clock: new Pauses() }).send('x', '/orders'), BadArgument)
  assert.deepEqual(tried, ['/orders'])
  const own = new Caller({ store: new MemoryStore(), fetch: async (url) => new Response(url) })
  assert.equal(await (await own.send('x', '/orders')).text(), '/orders')
})

test('a store that cannot be read is an error; one in memory has the same key until it is forgotten', async () => {
  const directory = await mkdtemp(path.join(process.env.IDEM_WORK, 'keys'))
  await mkdir(path.join(directory, createHash('sha256').update('x').digest('hex')))
  await assert.rejects(new FileStore(directory).keyFor('x', newKey), { code: 'EISDIR' })
  const store = new MemoryStore()
  const [first, second] = [await store.keyFor('x', newKey), await store.keyFor('x', newKey)]
  await new Caller({ store }).forget('x')
  assert.deepEqual([first === second, first === await store.keyFor('x', newKey)], [true, false])
})

test('keys outlive the process, and two processes agree on one', async () => {
  const directory = path.join(await mkdtemp(path.join(process.env.IDEM_WORK, 'keys')), 'new')
  const stores = Array.from({ length: 20 }, () => new FileStore(directory))
  const keys = await Promise.all(stores.map((store, i) => store.keyFor('order/17 "pay"', () => `key-${i}`)))
  assert.equal(new Set(keys).size, 1)
  assert.equal(await new FileStore(directory).keyFor('order/17 "pay"', () => 'new'), keys[0])
  assert.equal((await readdir(directory)).length, 1)
  await stores[0].forget('order/17 "pay"')
  assert.equal(await stores[1].keyFor('order/17 "pay"', () => 'new'), 'new')
})

test('a key is on disk with its name before it is used, whoever has made it; and so is that it is forgotten', async (t) => {
  const directory = path.join(await mkdtemp(path.join(process.env.IDEM_WORK, 'keys')), 'new')
  const store = new FileStore(directory)
  await store.forget('x')
  const handle = await open(path.dirname(directory))
  const synced = []
  t.mock.method(Object.getPrototypeOf(handle), 'sync',
    async function () { synced.push((await this.stat()).isDirectory() ? 'directory' : 'file') })
  await handle.close()
  for (const [call, want] of [['keyFor', ['file', 'directory']], ['keyFor', ['directory']], ['forget', ['directory']]]) {
    await store[call]('x', newKey)
    assert.deepEqual(synced.splice(0), want)
  }
})
