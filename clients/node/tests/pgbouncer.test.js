// Behind a pgbouncer in transaction mode, the core's own tests run as well.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import net from 'node:net'
import path from 'node:path'
import { once } from 'node:events'
import { test } from 'node:test'
import pg from 'pg'

// Two server connections for all clients: a session's state would be lost at once.
async function startBouncer() {
  const directory = await mkdtemp(path.join(process.env.IDEM_WORK, 'bouncer'))
  const port = await freePort()
  await writeFile(path.join(directory, 'bouncer.ini'), `
[databases]
postgres = host=${process.env.PGHOST} port=${process.env.PGPORT} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = ${directory}/log
pidfile = ${directory}/pid
`)
  const bouncer = spawn('/usr/sbin/pgbouncer', ['-q', path.join(directory, 'bouncer.ini')], { stdio: ['ignore', 'ignore', 'inherit'] })
  return { bouncer, directory, port }
}

async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

async function answers(port) {
  for (let tries = 0; tries < 200; tries++) {
    const client = new pg.Client({ host: '127.0.0.1', port })
    client.on('error', () => {})
    try {
      await client.connect()
      await client.end()
      return
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
  throw new Error('pgbouncer did not start')
}

function runTests(port) {
  const files = ['transaction', 'lease', 'batch'].map((name) => `tests/${name}.test.js`)
  const { NODE_TEST_CONTEXT, ...environment } = process.env
  assert.ok(NODE_TEST_CONTEXT)
  const child = spawn(process.execPath, ['--test', '--test-reporter=./tests/reporter.js', ...files],
    { env: { ...environment, PGHOST: '127.0.0.1', PGPORT: String(port) } })
  let output = ''
  child.stdout.on('data', (chunk) => { output += chunk })
  return once(child, 'close').then(([status]) => ({ status, output }))
}

test('the core behind pgbouncer in transaction mode', { timeout: 300_000 }, async (t) => {
  const { bouncer, directory, port } = await startBouncer()
  t.after(async () => {
    bouncer.kill('SIGTERM')
    if (bouncer.exitCode === null) await once(bouncer, 'close')
    await rm(directory, { recursive: true })
  })
  await answers(port)
  const { status, output } = await runTests(port)
  assert.match(output, /(?:^|\n)[1-9]\d* passed, 0 failed\n$/, output)
  assert.equal(status, 0)
  assert.deepEqual(await preparedBehind(port), ['0', '0', '0', '0'])
})

// On both connections of the server: while one is in a transaction, the other answers.
async function preparedBehind(port) {
  const pool = new pg.Pool({ host: '127.0.0.1', port, max: 2 })
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
