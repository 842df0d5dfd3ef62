// A server for the self-test of the cases: right as it is, and wrong in one way
// when the environment variable WRONG names that way.  Every case must pass
// against the right one and fail against a wrong one, or it asserts nothing.
//
// No example to copy: use a package.  It is written by hand because it must be
// able to do each thing wrong, which a package must not.
import http, { STATUS_CODES } from 'node:http'
import { createHash, randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import { readKey, Refused } from './key.mjs'

const pg = createRequire(new URL('../../node/package.json', import.meta.url))('pg')

const wrong = (...names) => names.includes(process.env.WRONG)
const LEASE = wrong('pending-forever', 'client-leaves-it-pending') ? '1 day' : '4 seconds'
const LIMIT = wrong('no-limit') ? 1e9 : 1 << 20
const ATTEMPTS = wrong('no-retry') ? 1 : 5
const LOST = /^(08|57P|40001|40P01|ECONN|EPIPE)|Connection terminated|terminating connection|not queryable/

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 12 })
if (!wrong('dies-with-an-idle-connection')) pool.on('error', () => {})
pool.on('connect', (db) => db.on('error', () => {}))
let running = 0

// ---- HTTP ----

const server = http.createServer((request, response) => {
  running++
  answer(request, response)
    .catch((error) => failure(error))
    .then((reply) => write(response, reply))
    .finally(() => { running-- })
})
if (wrong('takes-any-key')) {
  server.on('clientError', (_, socket) => socket.end('HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}'))
}

async function answer(request, response) {
  const { pathname } = new URL(request.url, 'http://x')
  const keyed = request.method === 'POST' || (wrong('any-method') && request.method === 'PUT') || (wrong('get-uses-keys') && request.headers['idempotency-key'])
  if (!keyed) return request.method === 'GET' ? { status: 200, body: 'ready' } : problem(405, 'method not allowed')
  if (wrong('one-at-a-time') && running > 1) return problem(409, 'busy')
  const text = await read(request)
  const call = {
    key: readKey(request, wrong),
    kind: pathname === '/charges' ? 'charge' : 'payment',
    route: pathname,
    tenant: request.headers['x-tenant'],
    wait: waitOf(request),
    input: text === '' && wrong('get-uses-keys') ? {} : parse(text),
    print: fingerprint(request, text),
    left: () => response.destroyed,
    response,
  }
  call.scope = wrong('one-scope') ? 'all' : `${call.route} ${call.tenant}`
  if (wrong('body-is-the-key')) call.key = createHash('sha256').update(text).digest('hex')
  if (wrong('no-idempotency')) call.key = randomUUID()
  return persist(call)
}

async function read(request) {
  const parts = []
  let size = 0
  for await (const part of request) {
    size += part.length
    if (size <= LIMIT) parts.push(part)
  }
  if (size > LIMIT) throw new Refused(413, 'The request is too large')
  return Buffer.concat(parts).toString('utf8')
}

function parse(text) {
  const refuse = (title) => {
    if (wrong('broken-body-500')) throw new Error('broken body')
    throw new Refused(400, title)
  }
  let value
  try {
    value = JSON.parse(text)
  } catch {
    return refuse('The body cannot be read')
  }
  // PostgreSQL cannot store it.
  if (/\\u(?:0000|d[89a-f])/.test(JSON.stringify(value))) refuse('The request is not acceptable')
  return value
}

function fingerprint(request, text) {
  if (wrong('no-fingerprint')) return null
  const sent = wrong('empty-query-compared') ? request.url : request.url.replace(/(?<=^[^?]*)\?$/, '')
  const target = wrong('target-not-compared') ? '' : sent
  const body = wrong('body-as-text') ? text : JSON.parse(text || 'null')
  return JSON.stringify({ method: wrong('any-method') ? 'POST' : request.method, target, body })
}

// Prefer: wait=n, up to 10 s.
function waitOf(request) {
  const prefer = request.headers.prefer ?? ''
  const seconds = /(?:^|,)\s*wait=(\d+)\s*(?:,|$)/.exec(prefer)?.[1]
  if (wrong('refuses-prefer') && prefer !== '' && !seconds) throw new Refused(400, 'malformed Prefer')
  if (wrong('waits')) return 30
  return wrong('ignores-prefer') || !seconds ? 0 : Math.min(Number(seconds), 10)
}

function write(response, { status, headers = {}, body }) {
  response.writeHead(status, { 'Content-Type': 'application/json', ...headers })
  response.end(body)
}

function problem(status, title, headers = {}) {
  if (wrong('plain-errors')) return { status, headers: { 'Content-Type': 'text/plain', ...headers }, body: title }
  const type = wrong('points-nowhere') ? 'about:blank' : 'https://example.com/docs/idempotency'
  const body = JSON.stringify({ type, title: wrong('other-titles') ? STATUS_CODES[status] : title, status, detail: `The request was refused: ${title}.` })
  return { status, headers: { 'Content-Type': 'application/problem+json', ...headers }, body }
}

function failure(error) {
  if (error instanceof Refused) return problem(error.status, error.message)
  if (error.code === 'ID422') return problem(422, 'Idempotency-Key is already used')
  if (error.code === 'ID400') return problem(400, 'Idempotency-Key is malformed')
  if (LOST.test(error.code) || LOST.test(error.message)) {
    return wrong('no-retry') ? problem(500, 'Internal Server Error') : problem(503, 'The service is busy', { 'Retry-After': '1' })
  }
  return problem(500, 'Internal Server Error')
}

// ---- operations ----

// Repeats the whole when the connection was lost.
async function persist(call) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await (call.kind === 'charge' || LEASE === '1 day' ? leased(call) : atOnce(call))
    } catch (error) {
      const lost = LOST.test(error.code) || LOST.test(error.message) || error.code === 'ID409'
      if (!lost || attempt >= ATTEMPTS) throw error
      await sleep(30 * 2 ** attempt * Math.random())
    }
  }
}

// Key, effect and answer in one transaction.
async function atOnce(call) {
  if (wrong('effect-by-itself')) await inTransaction((db) => insert(db, call))
  return inTransaction(async (db) => {
    const found = await begin(db, call, null)
    if (found.outcome !== 'ACQUIRED') return replay(found)
    if (declined(call)) return end(db, call, found, declinedAnswer())
    if (!wrong('effect-by-itself')) await insert(db, call)
    return finish(db, call, found)
  })
}

// A lease, the work without a connection, then effect and answer in one transaction.
async function leased(call) {
  const found = await inTransaction((db) => begin(db, call, LEASE))
  if (found.outcome !== 'ACQUIRED') return replay(found)
  try {
    if (wrong('effect-by-itself')) await inTransaction((db) => insert(db, call))
    return await inTransaction(async (db) => {
      if (wrong('client-leaves-it-pending')) call.response.on('close', () => db.connection.stream.destroy())
      if (declined(call)) return end(db, call, found, declinedAnswer())
      if (!wrong('effect-by-itself')) await insert(db, call)
      return finish(db, call, found)
    })
  } catch (error) {
    if (error.crash) {
      await inTransaction((db) => db.query('SELECT idem_release($1, scope => $2, fence => $3)', [call.key, call.scope, found.fence]))
    }
    throw error
  }
}

async function inTransaction(work) {
  const db = await pool.connect()
  try {
    await db.query('BEGIN')
    const result = await work(db)
    await db.query('COMMIT')
    db.release()
    return result
  } catch (error) {
    await db.query('ROLLBACK').catch(() => {})
    db.release(error)
    throw error
  }
}

async function begin(db, { key, scope, print, wait }, lease) {
  const { rows: [found] } = await db.query(
    'SELECT *, ceil(extract(epoch FROM retry_after))::int AS seconds FROM idem_begin($1, $2, $3, lease => $4, wait => make_interval(secs => $5))',
    [key, print, scope, lease, wait])
  return found
}

async function insert(db, { input, kind }) {
  if (input.amount > 1000) return
  await db.query('INSERT INTO payment (account, amount, kind) VALUES ($1, $2, $3)', [input.account, input.amount, kind])
}

async function finish(db, call, found) {
  const { input } = call
  if (input.crash && wrong('crash-commits')) await db.query('COMMIT')
  if (input.crash && wrong('stores-500')) return end(db, call, found, problem(500, 'Internal Server Error'))
  if (input.crash) throw Object.assign(new Error('crash'), { crash: true })
  if (input.slow) await sleep(input.slow)
  const id = randomUUID()
  const body = JSON.stringify({ id, account: input.account, amount: input.amount })
  return end(db, call, found, { status: wrong('answers-200') ? 200 : 201, headers: { 'X-Payment': id }, body })
}

function declined({ input }) {
  return input.amount > 1000 || (input.amount >= 1000 && wrong('declines-1000'))
}

function declinedAnswer() {
  const extra = wrong('declined-not-stored') ? { id: randomUUID() } : {}
  return { status: 402, body: JSON.stringify({ reason: 'declined', ...extra }) }
}

async function end(db, call, found, answer) {
  const release = answer.status === 402 && wrong('declined-not-stored')
  const values = [call.key, call.scope, answer.status, JSON.stringify(answer.headers ?? {}), Buffer.from(answer.body), found.fence]
  if (release) await db.query('SELECT idem_release($1, scope => $2, fence => $3)', [call.key, call.scope, found.fence])
  else await db.query(`SELECT ${answer.status < 400 ? 'idem_complete' : 'idem_fail'}($1, NULL, $2, $3, $4, $5, fence => $6)`, values)
  return answer
}

function replay(found) {
  if (found.outcome === 'IN_PROGRESS') {
    return problem(409, 'A request is outstanding for this Idempotency-Key', wrong('no-retry-after') ? {} : { 'Retry-After': String(Math.max(found.seconds ?? 1, 1)) })
  }
  const headers = { ...found.response_headers }
  if (!wrong('unmarked-replay')) headers['Idempotency-Replayed'] = 'true'
  if (wrong('replay-without-headers')) delete headers['X-Payment']
  if (wrong('replay-without-headers')) headers['Content-Type'] = 'text/plain'
  const body = wrong('new-body-on-replay') ? JSON.stringify(JSON.parse(found.response_body), null, 1) : found.response_body
  return { status: found.response_code, headers, body }
}

if (wrong('forgets-at-start')) await pool.query('DELETE FROM idempotency_store')
server.listen(Number(process.env.PORT), '127.0.0.1')
