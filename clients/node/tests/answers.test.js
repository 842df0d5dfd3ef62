// Which answer stands for which error and for which stored result, and what a parsed body is compared by.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  BadArgument, BadDuration, Forbidden, InProgress, KeyReused, LeaseLost, NotDone, TooLarge, Unknown,
} from '../src/errors.js'
import { fromStored, parseRetryAfter, storedHeaders, toStored } from '../src/http/answer.js'
import { comparableParsed } from '../src/http/body.js'
import { problemFor, rendered } from '../src/http/problem.js'

test('the status of each error, and when a client may try again', () => {
  const withCode = (code) => Object.assign(new Error('of the database'), { code })
  for (const [error, status, retryAfter] of [
    [new BadDuration('x'), 500], [new BadArgument('x'), 400], [new Forbidden('x'), 403], [new KeyReused('x'), 422], [new TooLarge('x'), 413],
    [new InProgress(4100), 409, '5'], [new LeaseLost('x'), 409, '1'], [new Unknown('x'), 503, '1'], [new Unknown('x', { retryAfter: 2000 }), 503, '2'],
    ...['25006', '53300', '55P03', '57014', '40001', '40P01'].map((code) => [withCode(code), 503, '1']), [withCode('23505'), 500],
    [new NotDone(), 503, '1'], [new NotDone({ cause: new KeyReused('x') }), 422],
    [{ statusCode: 404 }, 404], [{ status: 404, statusCode: 500 }, 404], [{ status: 400 }, 400], [{ status: 499 }, 499],
    [{ status: 399 }, 500], [{ status: 500 }, 500], [{ status: '404' }, 500], [{ status: 404.5 }, 500], [null, 500], [undefined, 500],
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
  assert.deepEqual(answered({ outcome: 'FAILED', retryAfter: 0, replayed: false }), [422, 'application/json', '1', undefined, '{"a":1}'])
  assert.deepEqual(answered({ code: 202, headers: { 'content-type': 'a/b+json' } }), [202, 'a/b+json', undefined, 'true', '{"a":1}'])
  assert.deepEqual(answered({ body: Buffer.from('b') }), [200, undefined, undefined, 'true', 'b'])
  assert.deepEqual(answered({ payload: undefined }), [200, undefined, undefined, 'true', ''])
  const headers = { Mine: ['a', 'b'], 'X-A': 7, ETag: 'e', 'Set-Cookie': 'c', Other: 'd' }
  assert.deepEqual(toStored({ status: 201, headers, body: 'x' }, storedHeaders(['Mine', 'X-*', 'set-cookie', 'Set-*'])),
    { code: 201, headers: { mine: 'a, b', 'x-a': '7', etag: 'e' }, body: 'x' })
})

test('the milliseconds of a Retry-After', () => {
  const now = Date.UTC(2026, 0, 1)
  for (const [value, ms] of [
    [undefined, null], [['1', '2'], null], ['2', 2000], [2, 2000], [' 2 ', 2000], ['', null], ['soon', null], ['1234567890', null],
    ['Thu, 01 Jan 2026 00:00:03 GMT', 3000], ['Wed, 31 Dec 2025 23:59:59 GMT', 0],
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
  for (const lossy of [2 ** 53, { a: [NaN] }, '\ufffd']) assert.throws(() => comparableParsed(lossy, 'application/json'), /keepBody/)
})
