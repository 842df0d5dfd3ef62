// What Express alone has: its response is written to, and parsers stand before it.
import assert from 'node:assert/strict'
import events from 'node:events'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { test } from 'node:test'
import express from 'express'
import { FakeClock, Idempotency } from 'pg-idempotency'
import { expressIdempotency } from 'pg-idempotency/express'
import { Proxy } from './proxy.js'
import { deferred, newKey, poolFor, portOf, send } from './support.js'

// A server with one route; `before` are handlers that stand before it.
async function app(t, style, handler, { before = [], pool = poolFor(t), ...options } = {}) {
  const app = express()
  const [errors, runs] = [[], []]
  t.mock.method(console, 'error', (error) => errors.push(error))
  const once = expressIdempotency(new Idempotency(pool), { principal: () => newKey(), ...options })
  // As Express 4 does, which lets go of the promise.
  app.post('/do', ...before, (req, res, next) => { runs.push(once[style](handler)(req, res, next)) })
  app.use((error, req, res, next) => res.headersSent ? next(errors.push(error)) : res.status(500).end('own'))
  const port = await portOf(t, app.listen(0, '127.0.0.1'))
  const post = (key = newKey(), body = '{}', type = 'application/json', headers = {}) => send(port,
    { method: 'POST', path: '/do', body, headers: { 'content-type': type, 'Idempotency-Key': key, ...headers } })
  return { post, errors, runs }
}

test('a request that is answered while it waits for a connection: nothing runs, and the process goes on', async (t) => {
  const pool = poolFor(t, { max: 1 })
  const taken = await pool.connect()
  let calls = 0
  let ended
  const gone = new Promise((resolve) => { ended = resolve })
  const giveUp = (req, res, next) => {
    res.removeHeader('X-Powered-By')
    setImmediate(() => { res.status(503).end('too slow'); ended() })
    next()
  }
  const { post, errors, runs } = await app(t, 'transaction', (req, res) => { calls++; res.end('done') },
    { pool, before: [giveUp] })
  const answer = post()
  await gone
  taken.release()
  assert.deepEqual([(await answer).status, (await answer).body], [503, 'too slow'])
  // The pool has one connection: it is free again when the refused transaction has ended.
  await pool.query('SELECT 1')
  await Promise.all(runs)
  assert.deepEqual([calls, errors.length], [0, 1])
})

test('a client that goes while it sends is no error of the server', async (t) => {
  const gone = (req, res, next) => { next(); req.socket.destroy() }
  const { post, errors, runs } = await app(t, 'transaction', () => assert.fail('ran'), { before: [gone] })
  await assert.rejects(post(newKey(), 'x'.repeat(900_000)))
  await Promise.all(runs)
  assert.deepEqual([runs.length, errors], [1, []])
})

test('an answer that comes when time is up goes nowhere', async (t) => {
  for (const late of [
    (res) => res.status(200).set('X-A', 'b').json({}),
    (res) => { res.writeHead(200, { 'X-A': 'b' }); res.write('late'); res.end('later') },
    (res) => { res.setHeaders(new Map([['X-A', 'b']])); res.setHeader('X-A', 'c') },
    (res) => { res.appendHeader('X-A', 'b'); res.removeHeader('X-A'); res.redirect('/') },
  ]) {
    const answered = deferred()
    const { post } = await app(t, 'transaction', (req, res) => {
      // as a callback does: what it throws ends the process
      res.once('prefinish', () => process.nextTick(() => { late(res); answered.resolve() }))
    }, { timeout: 50 })
    assert.equal((await post()).status, 503)
    await answered.promise
  }
})

test('a status as Node sends it, and each cookie of writeHead', async (t) => {
  const { post } = await app(t, 'transaction', (req, res) => {
    res.setHeader('Set-Cookie', 'old=1')
    res.writeHead('201', 'Made', ['Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'X-A', 'c'])
    res.end()
  })
  const { status, reason, headers } = await post()
  assert.deepEqual([status, reason, headers['set-cookie'], headers['x-a']], [201, 'Made', ['a=1', 'b=2'], 'c'])
  const never = await app(t, 'transaction', (req, res) => { res.statusCode = 1000; res.end() })
  assert.deepEqual([(await never.post()).status, never.errors.length], [500, 1])
  assert.match(never.errors[0].message, /cannot answer 1000/)
})

test('a handler whose stream breaks off, or that destroys its response, is answered as one that fails', async (t) => {
  const breaksOff = async function * (code) {
    yield 'do'
    throw Object.assign(new Error('broken off'), { code })
  }
  for (const destroy of [(res) => pipeline(breaksOff(), res.status(201)), (res) => res.destroy(), (res) => res.destroy(new Error('no more'))]) {
    const { post, errors } = await app(t, 'transaction', async (req, res) => { await destroy(res) }, { timeout: 2000 })
    const answers = [await post(), await post()]
    assert.deepEqual([...answers.map(({ status }) => status), errors.length], [500, 500, 2])
  }
  let calls = 0
  const { post } = await app(t, 'transaction',
    (req, res) => pipeline(++calls === 1 ? breaksOff('40001') : ['done'], res.status(201)))
  const { status, body } = await post()
  assert.deepEqual([status, body, calls], [201, 'done', 2])
})

// Each writes "done", with the header X-A.
const WAYS = {
  'chunks in an encoding, with callbacks': async (res) => {
    await new Promise((written) => res.set('X-A', 'b').write('ZA==', 'base64', written))
    await new Promise((written) => res.write('o', written))
    await new Promise((ended) => res.end('6e65', 'hex', ended))
  },
  'a pipeline': (res) => pipeline(Readable.from([Buffer.from('do'), Buffer.from('ne')]), res.set('X-A', 'b')),
  'end with nothing, and again': async (res) => {
    res.set('X-A', 'b').write('done')
    await new Promise((ended) => res.end(null, ended))
    await new Promise((ended) => res.status(500).end('more', ended))
  },
  'end with a callback alone': (res) => new Promise((ended) => { res.set('X-A', 'b').write('done'); res.end(ended) }),
  'the head first': (res) => { res.set('X-A', 'b').flushHeaders(); res.status(203).end('done') },
  'writeHead with pairs': (res) => res.writeHead(203, [['X-A', 'b']]).end('done'),
  'writeHead without headers': (res) => res.set('X-A', 'b').writeHead(203, null).end('done'),
  'another response after a failed COMMIT': async (res, calls) => {
    res.removeHeader('X-Powered-By')
    if (calls === 1) res.status(500).set('X-B', 'c')
    if (calls === 1) throw Object.assign(new Error('planned'), { code: '40001' })
    res.set('X-A', 'b').end('done')
  },
  ...Object.fromEntries(['on', 'once', 'addListener', 'prependListener', 'prependOnceListener'].map((name) => [
    `a listener of finish by ${name}`, (res) => new Promise((finished) => res[name]('finish', finished).set('X-A', 'b').end('done')),
  ])),
  ...Object.fromEntries(['off', 'removeListener'].map((name) => [`no listener of finish by ${name}`, (res) => {
    const listener = () => assert.fail('heard')
    res.on('finish', listener)[name]('finish', listener).set('X-A', 'b').end('done')
  }])),
}

for (const [name, write] of Object.entries(WAYS)) {
  test(`a handler may answer by ${name}`, async (t) => {
    let calls = 0
    // A middleware such as one that compresses.
    const loud = (res, { end }) => { res.end = (chunk, ...rest) => end.call(res, chunk && `${chunk}!`, ...rest) }
    const before = [(req, res, next) => { res.set('X-Before', 'set'); loud(res, res); next() }]
    const options = { principal: () => 'me', headers: ['X-A'], timeout: 2000, before }
    const { post } = await app(t, 'transaction', async (req, res) => { await write(res, ++calls) }, options)
    const key = newKey()
    const [first, second] = [await post(key), await post(key)]
    for (const { status, body, headers } of [first, second]) {
      assert.deepEqual([status < 204, body, headers['x-a'], headers['x-b'], headers['x-before']],
        [true, 'done!', 'b', undefined, 'set'])
    }
    assert.deepEqual([second.headers['idempotency-replayed'], second.status], ['true', first.status])
    assert.equal(first.headers['x-powered-by'], name.startsWith('another') ? undefined : 'Express')
  })
}

test('a handler that is mounted: where is part of the scope, and of what is compared', async (t) => {
  const application = express()
  const idempotency = new Idempotency(poolFor(t))
  for (const [path, options] of [['/own', { principal: () => 'me' }], ['/same', { scope: () => 'mounted' }]]) {
    const handle = expressIdempotency(idempotency, options).lease((req, res) => res.status(201).end())
    for (const version of ['/v1', '/v2']) application.use(`${path}${version}`, handle)
  }
  const port = await portOf(t, application.listen(0, '127.0.0.1'))
  const headers = { 'Idempotency-Key': newKey() }
  const seen = []
  for (const path of ['/own/v1', '/own/v2', '/same/v1', '/same/v2']) seen.push((await send(port, { method: 'POST', path, body: '', headers })).status)
  assert.deepEqual(seen, [201, 201, 201, 422])
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

test('an error after a part of an answer is left to other error handlers', async (t) => {
  const [application, seen] = [express(), deferred()]
  application.post('/', (req, res, next) => { res.write('part'); next(new Error('planned')) })
  application.use(expressIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me' }).problemErrors())
  application.use((error, req, res, next) => { seen.resolve(error.message); next(error) })
  t.mock.method(console, 'error', () => {})
  const port = await portOf(t, application.listen(0, '127.0.0.1'))
  await assert.rejects(send(port, { method: 'POST', path: '/', body: '', headers: {} }))
  assert.equal(await seen.promise, 'planned')
})

test('a header that HTTP cannot carry goes to the error handler', async (t) => {
  const { post } = await app(t, 'transaction', () => { throw new Error('no') },
    { mapError: () => ({ status: 400, title: 'no', headers: { 'X-Name': 'Łódź' } }) })
  assert.deepEqual([(await post()).body, (await post()).status], ['own', 500])
})

test('a body that a parser has read without keeping it is refused where it says too little', async (t) => {
  const { post, errors } = await app(t, 'transaction', (req, res) => { res.status(201).end() },
    { principal: () => 'me', before: [express.json()] })
  const status = async (body, type = 'application/json') => (await post(newKey(), body, type)).status
  assert.deepEqual([await status('{"n":1}'), await status('[]'), await status('{}'), await status('x=1', 'text/x-any')],
    [201, 201, 201, 201])
  for (const lossy of ['{"n":9007199254740993}', '[1e400]', '{"n":"\ufffd"}']) assert.equal(await status(lossy), 500)
  assert.match(errors[0].message, /keepBody/)
  assert.equal(errors.length, 3)
})

test('a stream that a middleware has read, or that Express 4 has left with {}', async (t) => {
  let left
  const swallow = async (req, res, next) => { req.resume(); await events.once(req, 'end'); req.body = left; next() }
  const eaten = await app(t, 'transaction', (req, res) => { res.end('ran') }, { principal: () => 'me', before: [swallow] })
  for (const [type, body] of [
    ['text/xml', {}], ['text/xml', undefined], ['application/json', undefined], ['multipart/form-data; boundary=b', { field: '1' }],
  ]) {
    left = body
    assert.equal((await eaten.post(newKey(), '<a/>', type)).status, 500)
  }
  assert.ok(eaten.errors.every(({ message }) => message.includes('keepBody')))
  left = undefined
  const chunked = { 'transfer-encoding': 'chunked' }
  assert.deepEqual([(await eaten.post(newKey(), '')).status, (await eaten.post(newKey(), 'a', 'text/xml', chunked)).status], [200, 500])
  const { keepBody } = expressIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me', maxRequest: 10 })
  const part = (req, res, next) => { req.once('readable', () => { req.read(1); next() }) }
  const options = { principal: () => 'me', maxRequest: 10 }
  for (const [before, answers] of [[[], [200, 413]], [[keepBody(), express.json()], [200, 413]], [[part], [500, 500]], [[keepBody(), part], [500, 500]]]) {
    const { post } = await app(t, 'transaction', (req, res) => { res.end('ran') }, { before, ...options })
    const seen = []
    for (const body of ['[12345678]', '[123456789]']) seen.push((await post(newKey(), body, 'application/json', chunked)).status)
    assert.deepEqual(seen, answers)
  }
  const four = await app(t, 'transaction', (req, res) => { res.end('ran') },
    { principal: () => 'me', before: [(req, res, next) => { req.body = {}; next() }] })
  const key = newKey()
  const status = async (body) => (await four.post(key, body, 'text/xml')).status
  assert.deepEqual([await status('<a/>'), await status('<a/>'), await status('<b/>')], [200, 200, 422])
})

test('what was kept is compared though a middleware has made text of it; bytes that were no text cannot be', async (t) => {
  const { keepBody } = expressIdempotency(new Idempotency(poolFor(t)), { principal: () => 'me' })
  for (const [encoding, answers] of [['hex', [200, 200, 422]], ['utf8', [500, 500, 500]]]) {
    const read = async (req, res, next) => { req.setEncoding(encoding).resume(); await events.once(req, 'end'); next() }
    const { post } = await app(t, 'transaction', (req, res) => { res.end('ran') },
      { principal: () => 'me', before: [keepBody(), keepBody(), read] })
    const key = newKey()
    const seen = []
    for (const byte of [0xff, 0xff, 0xfe]) seen.push((await post(key, Buffer.from([byte]), 'text/plain')).status)
    assert.deepEqual([seen, (await post(newKey(), '{}')).status], [answers, 200], encoding)
  }
})

test('JSON with a Content-Encoding that no parser has decoded is refused; one that a parser has, is compared by its value', async (t) => {
  const gzip = { 'content-encoding': 'gzip' }
  const seen = []
  const handler = (req, res) => { seen.push(req.body); res.status(201).end() }
  const bare = await app(t, 'transaction', handler, { principal: () => 'me' })
  const { status, headers } = await bare.post(newKey(), gzipSync('{"a":1}'), 'application/json', gzip)
  assert.deepEqual([status, headers['accept-encoding'], seen], [415, 'identity', []])
  for (const [body, type] of [['{"a":1}'], [''], ['b', 'text/plain']]) assert.equal((await bare.post(newKey(), body, type)).status, 201)
  assert.deepEqual(seen.splice(0), [{ a: 1 }, undefined, Buffer.from('b')])
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

test('a database that does not say until when an answer is kept costs the header, and no more', async (t) => {
  const proxy = await Proxy.forTest(t)
  const clock = new FakeClock()
  const once = expressIdempotency(new Idempotency(poolFor(t, { ...proxy.options, max: 1 }), { clock }),
    { principal: () => newKey(), lifetime: 'Until' })
  const app = express()
  app.post('/', once.transaction((req, res) => { res.end('done') }))
  const port = await portOf(t, app.listen(0, '127.0.0.1'))
  const post = () => send(port, { method: 'POST', path: '/', body: '', headers: { 'idempotency-key': newKey() } })
  await proxy.order('arm', 'hold', 'idem_lookup')
  const held = post()
  while ((await proxy.order('state')).hits === 0) await sleep(5)
  await clock.advance(5000)
  const { status, body, headers } = await Promise.race([held, sleep(10_000, {}, { ref: false })])
  assert.deepEqual([status, body, headers?.until], [200, 'done', undefined])
  // The connection was cut, and its place in the pool is free.
  assert.ok((await post()).headers.until)
})

const WRONG = { 'X-A': 'Łódź' }
for (const [name, answer] of Object.entries({
  write: (res) => res.write(5), end: (res) => res.end(5), writeHead: (res) => res.writeHead(200, WRONG), setHeader: (res) => res.set(WRONG),
  appendHeader: (res) => res.appendHeader('X-A', WRONG['X-A']), setHeaders: (res) => res.setHeaders(new Map(Object.entries(WRONG))),
  status: (res) => res.status(99), json: (res) => res.json(1n), jsonp: (res) => res.jsonp(1n),
})) {
  test(`a lease is done whose answer res.${name} cannot make`, async (t) => {
    const once = expressIdempotency(new Idempotency(poolFor(t)), { scope: () => 'express wrong', onError() {} })
    let runs = 0
    const port = await portOf(t, express().post('/', once.lease((req, res) => { runs++; answer(res) })).listen(0, '127.0.0.1'))
    const headers = { 'idempotency-key': newKey() }
    const titles = []
    for (let call = 0; call < 2; call++) titles.push(JSON.parse((await send(port, { method: 'POST', path: '/', body: '', headers })).body).title)
    assert.deepEqual([titles, runs], [['Internal Server Error', 'The answer could not be stored'], 1])
  })
}

test('a middleware may end the response later, as one that waits for a store of sessions', async (t) => {
  const later = (req, res, next) => {
    const { end } = res
    res.end = (...given) => { setImmediate(() => end.apply(res, given)); return res }
    next()
  }
  const { post } = await app(t, 'transaction', (req, res) => res.status(201).json({ paid: 1 }),
    { before: [later], principal: () => 'anyone' })
  const key = newKey()
  for (const replayed of [undefined, 'true']) {
    const { status, body, headers } = await post(key)
    assert.deepEqual([status, body, headers['idempotency-replayed']], [201, '{"paid":1}', replayed])
  }
})
