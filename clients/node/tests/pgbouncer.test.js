// Behind a pgbouncer in transaction mode, the core's own tests run as well.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { effect, idempotencyFor, newKey } from './support.js'

const PROGRAM = fileURLToPath(new URL('../../../test/kit/pooler.py', import.meta.url))

function runTests(host) {
  const files = ['transaction', 'lease', 'batch'].map((name) => `tests/${name}.test.js`)
  const { NODE_TEST_CONTEXT, ...environment } = process.env
  assert.ok(NODE_TEST_CONTEXT)
  const child = spawn(process.execPath, ['--test', '--test-reporter=./tests/reporter.js', ...files],
    { env: { ...environment, PGHOST: host } })
  let output = ''
  child.stdout.on('data', (chunk) => { output += chunk })
  return once(child, 'close').then(([status]) => ({ status, output }))
}

// The directory of its socket. Two server connections for all clients: a session's state would be lost at once.
async function startPooler(t) {
  const pooler = spawn('python3', [PROGRAM, '2'], { stdio: ['pipe', 'pipe', 'inherit'] })
  t.after(async () => {
    pooler.stdin.end()
    if (pooler.exitCode === null) await once(pooler, 'close')
  })
  const { value: host } = await createInterface({ input: pooler.stdout })[Symbol.asyncIterator]().next()
  assert.ok(host, 'pgbouncer did not start')
  return host
}

// Where the client of a CancelRequest goes at once, pgbouncer 1.18 passes nothing on, or even ends.
test('a statement that nobody waits for is cancelled behind pgbouncer', { timeout: 30_000 }, async (t) => {
  const { pool, idempotency } = idempotencyFor(t, { retry: { attempts: 1 } }, { host: await startPooler(t) })
  for (let i = 0; i < 5; i++) {
    await assert.rejects(idempotency.transaction(newKey(), null, async (tx) => {
      tx.query('SELECT pg_sleep(60)').catch(() => {})
      await new Promise((resolve) => setTimeout(resolve, 50))
      throw Object.assign(new Error('lost elsewhere'), { code: '08006' })
    }))
    assert.equal((await idempotency.transaction(newKey(), null, (tx) => effect(tx, 'cancelled').then(() => 'done'))).payload, 'done')
  }
  const sleeping = "SELECT count(*)::int FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
  while ((await pool.query(sleeping)).rows[0].count > 0) await new Promise((resolve) => setTimeout(resolve, 50))
})

test('the core behind pgbouncer in transaction mode', { timeout: 300_000 }, async (t) => {
  const host = await startPooler(t)
  const { status, output } = await runTests(host)
  assert.match(output, /(?:^|\n)[1-9]\d* passed, 0 failed\n$/, output)
  assert.equal(status, 0)
  assert.deepEqual(await preparedBehind(host), ['0', '0', '0', '0'])
})

// On both connections of the server: while one is in a transaction, the other answers.
async function preparedBehind(host) {
  const pool = new pg.Pool({ host, max: 2 })
  const clients = [await pool.connect(), await pool.connect()]
  const counts = []
  for (const client of [...clients, ...clients]) {
    await client.query('BEGIN')
    const { rows: [row] } = await client.query("SELECT count(*)::text FROM pg_prepared_statements WHERE name LIKE 'pg_idempotency%'")
    counts.push(row.count)
    if (counts.length % 2 === 0) for (const each of clients) await each.query('COMMIT')
  }
  for (const client of clients) client.release()
  await pool.end()
  return counts
}
