// The packages for all languages have the same scopes and fingerprints, or one key would be two operations for two services
// behind one address.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { HttpIdempotency } from 'pg-idempotency/http'
import { comparable } from '../src/http/body.js'

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
