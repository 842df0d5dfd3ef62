// The HTTP core without a server and a database: what it asks of an Idempotency, and what it answers.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { FakeClock } from 'pg-idempotency'
import { HttpIdempotency } from 'pg-idempotency/http'
import {
  BadArgument, Declined, Forbidden, InProgress, KeyReused, LeaseLost, NotDone, ServiceMistake, TooLarge, Unknown, Unstorable,
} from '../src/errors.js'
import { fromStored, parseRetryAfter, storedHeaders, toStored } from '../src/http/answer.js'
import { comparable, comparableParsed } from '../src/http/body.js'
import { problemFor, rendered } from '../src/http/problem.js'
import { hash, isStorable, routeScope, scopeOf } from '../src/http/spelling.js'

test('the status of each error, and when a client may try again', () => {
  const withCode = (code) => Object.assign(new Error('of the database'), { code })
  for (const [error, status, retryAfter] of [
    [new ServiceMistake('x'), 500], [new BadArgument('x'), 400], [new Forbidden('x'), 403], [new KeyReused('x'), 422], [new TooLarge('x'), 413],
    [new Unstorable(), 500],
    [new InProgress(4100), 409, '5'], [new LeaseLost('x'), 409, '1'], [new Unknown('x'), 503, '1'], [new Unknown('x', { retryAfter: 2000 }), 503, '2'],
    ...['25006', '53300', '55P03', '57014', '40001', '40P01'].map((code) => [withCode(code), 503, '1']), [withCode('23505'), 500],
    [new NotDone(), 503, '1'], [new NotDone({ cause: new KeyReused('x') }), 422],
    [{ statusCode: 404 }, 404], [{ status: 404, statusCode: 500 }, 404], [{ status: 400 }, 400], [{ status: 499 }, 499],
    [{ status: 399 }, 500], [{ status: 503 }, 500], [{ status: '404' }, 500], [{ status: 404.5 }, 500], [null, 500], [undefined, 500],
  ]) {
    const problem = problemFor(error)
    assert.deepEqual([problem.status, problem.headers['Retry-After']], [status, retryAfter], String(error?.code ?? error?.status))
    assert.match(problem.title, /[A-Z]/)
  }
})

test('a problem has the type of its own, or that of the page; a shape of its own has no content type', () => {
  const typeOf = (problem, page) => JSON.parse(rendered({ status: 400, ...problem }, page).body).type
  assert.deepEqual([typeOf({}), typeOf({}, '/page'), typeOf({ type: '/own' }, '/page')], ['about:blank', '/page', '/own'])
  assert.deepEqual([rendered({ status: 400 }).headers, rendered({ status: 400, body: 'x' }).headers],
    [{ 'content-type': 'application/problem+json' }, {}])
})

test('what is stored of an answer, and what is sent of it', () => {
  const result = { outcome: 'COMPLETED', code: null, headers: null, payload: { a: 1 }, body: null, replayed: true, retryAfter: null }
  const answered = (own) => {
    const { status, headers, body } = fromStored({ ...result, ...own }, 'Again')
    return [status, headers['content-type'], headers['retry-after'], headers.again, body.toString()]
  }
  assert.deepEqual(answered({}), [200, 'application/json', undefined, 'true', '{"a":1}'])
  assert.equal(answered({ code: 0 })[0], 200)
  assert.deepEqual(answered({ outcome: 'FAILED', retryAfter: 0, replayed: false }),
    [422, 'application/json', '1', undefined, '{"a":1}'])
  assert.deepEqual(answered({ code: 202, headers: { 'content-type': 'a/b+json' } }),
    [202, 'a/b+json', undefined, 'true', '{"a":1}'])
  assert.deepEqual(answered({ headers: { 'retry-after': '120' }, retryAfter: 119_500 })[2], '120')
  const { headers: once } = fromStored({ ...result, headers: { 'Content-Type': 'a/b', 'Retry-After': '30', AGAIN: 'no' }, retryAfter: 12_000 }, 'Again')
  assert.deepEqual(once, { 'content-type': 'a/b', 'retry-after': '12', again: 'true' })
  assert.deepEqual(answered({ body: Buffer.from('b') }), [200, undefined, undefined, 'true', 'b'])
  assert.deepEqual(answered({ payload: undefined }), [200, undefined, undefined, 'true', ''])
  const headers = { Mine: ['a', 'b'], 'X-A': 7, ETag: 'e', 'Set-Cookie': 'c', Other: 'd' }
  assert.deepEqual(toStored({ status: 201, headers, body: 'x' }, storedHeaders(['Mine', 'X-*', 'set-cookie', 'Set-*'])),
    { code: 201, headers: { mine: 'a, b', 'x-a': '7', etag: 'e' }, body: 'x' })
})

test('the milliseconds of a Retry-After', () => {
  const now = Date.UTC(2026, 0, 1)
  for (const [value, ms] of [
    [undefined, null], [['1', '2'], null], ['2', 2000], [2, 2000], [' 2 ', 2000], ['', null], ['soon', null], ['3153599999', 3_153_599_999_000], ['9'.repeat(400), 36_500 * 86_400_000],
    ['1.5', null], ['2026-01-02', null],
    ['Thu, 01 Jan 2026 00:00:03 GMT', 3000], ['Wed, 31 Dec 2025 23:59:59 GMT', 0],
    ['Thu, 01 Jan 2999 00:00:00 GMT', 36_500 * 86_400_000],
  ]) assert.equal(parseRetryAfter(value, now), ms, String(value))
})

test('a parsed body is compared by its value where it says all', () => {
  const hashed = /^"sha256:/
  assert.equal(comparableParsed(null, 'application/json'), 'null')
  assert.equal(comparableParsed({ a: [1, { b: 2 }] }, 'application/json'), '{"a":[1,{"b":2}]}')
  assert.equal(comparableParsed(Buffer.from('{"a": 1}'), 'application/json'), '{"a": 1}')
  assert.equal(comparableParsed('a', 'application/json'), '"a"')
  assert.match(comparableParsed('a', 'text/plain'), hashed)
  assert.match(comparableParsed(JSON.parse('['.repeat(201) + ']'.repeat(201)), 'application/json'), hashed)
  const tooDeep = JSON.parse('['.repeat(20_000) + ']'.repeat(20_000))
  assert.throws(() => comparableParsed(tooDeep, 'application/json'), { status: 400 })
  for (const lossy of [2 ** 53, { a: [NaN] }, '\ufffd']) assert.throws(() => comparableParsed(lossy, 'application/json'), /keepBody/)
})

const REPLAY = { outcome: 'COMPLETED', code: 200, headers: null, payload: undefined, body: Buffer.from('stored'), replayed: true, retryAfter: null }
const ANSWER = { status: 201, headers: {}, body: Buffer.from('mine') }

// One request; `own` has the calls of an Idempotency, and `about` the request.
function request(own, options, { style = 'transaction', handle = async () => ANSWER, prefer = [], type = '', body = () => 'null', ...about } = {}) {
  const headers = { 'idempotency-key': ['k'], 'content-type': [type], prefer }
  const header = (name) => headers[name] ?? []
  const exchange = { request: {}, method: 'POST', target: '/do', route: '/do', header, ...about, body: async (kind) => body(kind) }
  return new HttpIdempotency({ scope: 's', clock: new FakeClock(), ...own }, { principal: () => 'me', ...options }).run(exchange, style, handle)
}

test('the options of a call, and what the client prefers', async () => {
  const asked = []
  const transaction = async (key, request, work, options) => { asked.push(options); return REPLAY }
  const own = { retention: '1 h', lease: '2 s', maxAttempts: 3 }
  for (const prefer of [[], ['wait=1'], ['respond-async', 'x, WAIT = "2"; y'], ['wait=9'], ['await=1'], ['wait=1s'], ['x; wait=1']]) {
    await request({ transaction }, { wait: 7, maxWait: 3000, ...own }, { prefer })
  }
  assert.deepEqual(asked.splice(0), [7, 1000, 2000, 3000, 7, 7, 7].map((wait) => ({ scope: 's POST /do me', wait, ...own })))
  // An option that is undefined was not given.
  await request({ transaction }, { wait: undefined, maxWait: undefined, retention: undefined }, { prefer: ['wait=11'] })
  assert.deepEqual(asked, [{ scope: 's POST /do me', wait: 10_000, maxAttempts: undefined }])
})

test('a target that is a whole address counts by its path and query, as the other packages have it', async () => {
  const seen = []
  const transaction = async (key, request) => { seen.push(JSON.parse(request.text).target); return REPLAY }
  for (const target of ['/a?b=http://c/', 'http://example.org/a?b=1', 'HTTP://[::1]:80//a', 'http://example.org?b=1', 'http://example.org?']) {
    await request({ transaction }, {}, { target })
  }
  assert.deepEqual(seen, ['/a?b=http://c/', '/a?b=1', '//a', '/?b=1', '/'])
})

test('what becomes of an error of a handler, of a body parser, and of a status that is none', async () => {
  const told = []
  const onError = (error) => told.push(error)
  const cause = new Error('planned')
  const transaction = async (key, request, work) => work({}, {})
  const handle = async () => { throw new NotDone({ cause }) }
  assert.equal((await request({ transaction }, { onError }, { handle, passOn: (error) => void told.push(error) })).status, 500)
  assert.deepEqual(told.splice(0), [cause, cause])
  const causes = []
  const once = new HttpIdempotency({},
    { principal: () => 'me', wait: Infinity, onError, mapError: (error) => void causes.push(error?.cause) })
  for (const [error, status, title] of [
    [{ status: 413 }, 413, 'The request is too large'], [{ statusCode: 413 }, 413, 'The request is too large'],
    [{ statusCode: 400 }, 400, 'The body cannot be read'], [{ statusCode: 415 }, 415, 'Unsupported Media Type'], [null, 500, 'Internal Server Error'],
  ]) {
    const { status: given, body } = once.bodyProblem(error, {})
    assert.deepEqual([given, JSON.parse(body).title], [status, title])
  }
  assert.deepEqual(causes, [undefined, undefined, { statusCode: 400 }, undefined, undefined])
  for (const status of [199, 201.5, 1000]) {
    assert.equal((await request({ transaction }, { onError }, { handle: async () => ({ ...ANSWER, status }) })).status, 500)
  }
  assert.deepEqual(told.map((error) => error?.message.replace(/.*answer /, '')), [undefined, '199', '201.5', '1000'])
})

test('the answer of a call that was repeated is that of the last one, or the stored one', async () => {
  const elsewhere = await request({ transaction: async (key, request, work) => { await work({}, {}); return REPLAY } }, { marker: 'Again' })
  assert.deepEqual([elsewhere.status, String(elsewhere.body), elsewhere.headers], [200, 'stored', { again: 'true' }])
  let calls = 0
  const transaction = async (key, request, work) => {
    await work({}, {})
    await assert.rejects(work({}, {}), Declined)
    return { ...REPLAY, outcome: 'FAILED', code: 402, replayed: false }
  }
  const handle = async () => {
    if (++calls === 2) throw new Declined(402)
    return ANSWER
  }
  assert.equal((await request({ transaction }, {}, { handle })).status, 402)
})

for (const [end, status, isAborted] of [['an answer', 201, false], ['the loss of the lease', 201, true], ['its time', 503, true]]) {
  test(`the signal of a handler that ends by ${end}, and its timer`, async () => {
    const clock = new FakeClock()
    const lost = new AbortController()
    let signal
    const lease = async (key, request, work) => { await work({}, lost.signal); return { ...REPLAY, replayed: false } }
    const handle = async (context) => {
      signal = context.signal
      if (isAborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
      return ANSWER
    }
    const answered = request({ lease, clock }, {}, { style: 'lease', handle })
    if (isAborted) await clock.whenPending(1)
    if (status === 503) await clock.advance(60_000)
    else if (isAborted) lost.abort()
    assert.deepEqual([(await answered).status, signal.aborted, clock.pending], [status, isAborted, 0])
  })
}

// The packages for all languages have the same scopes and fingerprints, or one key would be two operations for two services
// behind one address.
const SPELLINGS = JSON.parse(readFileSync(new URL('../../conformance/spellings.json', import.meta.url), 'utf8'))

const isJson = (text) => {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

test('scopes and fingerprints are those of the packages for other languages', async () => {
  assert(SPELLINGS.length > 10)
  for (const spelling of SPELLINGS) {
    const { service, principal, type, body, fingerprint } = spelling
    const begun = []
    const transaction = async (key, request, work, { scope }) => { begun.push({ scope, text: request.text }); return REPLAY }
    const about = { ...spelling, body: (kind) => comparable(Buffer.from(body), kind) }
    const { status } = await request({ scope: service, transaction }, { principal: () => principal }, about)
    if (type === 'application/json' && body !== '' && !isJson(body)) {
      // Here such a request is no operation at all.
      assert.deepEqual({ status, begun }, { status: 400, begun: [] })
      continue
    }
    assert.equal(status, 200)
    assert.equal(begun[0].scope, spelling.scope)
    assert.deepEqual(JSON.parse(begun[0].text), fingerprint)
    // JSON.parse rounds numbers: the digits are there.
    const isText = body !== '' && !String(fingerprint.body).startsWith('sha256:')
    assert.equal(begun[0].text.endsWith(`"body":${body}}`), isText)
  }
})

test('what jsonb can hold is compared as it came', () => {
  const digits = (count) => '1'.repeat(count)
  for (const [text, want] of [
    ['['.repeat(200) + ']'.repeat(200), true], ['['.repeat(201) + ']'.repeat(201), false], ['{"a":'.repeat(201) + '1' + '}'.repeat(201), false],
    [`[${'{},[1],'.repeat(250)}1]`, true], [digits(1000), true], [digits(1001), false], [`-${digits(1000)}`, false],
    ['1e9999', true], ['1E10000', false], ['1e-9999', false], [`["${'['.repeat(300)}\\"${digits(1001)}"]`, true],
  ]) assert.equal(isStorable(text), want, text.slice(0, 20))
})

test('a scope that the server does not take is hashed', () => {
  assert.equal(routeScope('post', '/a b', 'me'), 'POST /a%20b me')
  for (const own of ['a'.repeat(256), 'a\0']) assert.equal(scopeOf('', own), hash(own))
  for (const own of ['a'.repeat(255), '𝄞'.repeat(255)]) assert.equal(scopeOf('', own), own)
})
