// The key of a request for the server of the self-test: a string as in RFC 8941,
// or the same without its quotes.
import { createHash, randomUUID } from 'node:crypto'

const STRING = /(?:[ !#-[\]-~]|\\["\\])*/.source
const QUOTED = new RegExp(`^"(${STRING})"((?:; *[a-z*][a-z0-9_.*-]*(?:=[\\w.-]+|="${STRING}")?)*)$`)
const BARE = /^[!#-'*+\--:<-[\]-~]+$/

// An error whose message may be shown to the client.
export class Refused extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

export function readKey(request, wrong) {
  const values = valuesOf(request, wrong)
  if (values.length === 0 && (wrong('takes-a-missing-key') || request.method === 'GET')) return randomUUID()
  if (values.length === 0) throw new Refused(400, 'Idempotency-Key is missing')
  if (wrong('takes-any-key')) return createHash('sha256').update(values[0]).digest('hex')
  if (values.length > 1) throw new Refused(400, 'Idempotency-Key is malformed')
  const key = keyOf(values[0], wrong)
  if (key === '' || key.length > (wrong('short-keys') ? 100 : 255)) {
    throw new Refused(400, `Idempotency-Key is malformed${wrong('shows-the-key') ? ` ${values[0]}` : ''}`)
  }
  return wrong('lower-cases-keys') ? key.toLowerCase() : key
}

// node:http keeps the names as they were sent in rawHeaders only.
function valuesOf(request, wrong) {
  if (!wrong('one-spelling-of-the-name')) return request.headersDistinct['idempotency-key'] ?? []
  return request.rawHeaders.filter((_, index, all) => index % 2 === 1 && all[index - 1] === 'Idempotency-Key')
}

function keyOf(value, wrong) {
  const quoted = QUOTED.exec(value)
  if (wrong('quotes-belong-to-the-key') && quoted) return value
  if (wrong('only-uuids') && !/^"?[0-9a-f-]{36}"?$/.test(value)) return ''
  if (quoted) return quoted[1].replace(/\\(.)/g, '$1') + (wrong('parameters-belong-to-the-key') ? quoted[2] : '')
  return BARE.test(value) ? value : ''
}
