// The packages for all languages have the same scopes and fingerprints, or one key would be two operations for two services
// behind one address.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { HttpIdempotency } from 'pg-idempotency/http'
import { comparable } from '../src/http/body.js'
import { hash, isStorable, routeScope, scopeOf } from '../src/http/spelling.js'

const SPELLINGS = JSON.parse(readFileSync(new URL('../../conformance/spellings.json', import.meta.url), 'utf8'))

// What a request asks of the server: the scope and the text of what is compared, and how it is answered.
async function asked({ service, method, route, principal, target, type, body }) {
  const begun = []
  const idempotency = {
    scope: service,
    transaction: async (key, request, work, { scope }) => {
      begun.push({ scope, text: request.text })
      return { outcome: 'COMPLETED', replayed: true, code: 200 }
    },
  }
  const headers = { 'idempotency-key': ['k'], 'content-type': [type] }
  const exchange = { method, target, route, header: (name) => headers[name] ?? [], body: async (kind) => comparable(Buffer.from(body), kind) }
  const { status } = await new HttpIdempotency(idempotency, { principal: () => principal }).run(exchange, 'transaction')
  return { status, begun }
}

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
    const { status, begun } = await asked(spelling)
    const { type, body, fingerprint } = spelling
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
