// The programs of docs/clients/nestjs.md and docs/clients/nextjs.md. NestJS is the real one; of Next.js there is what a
// route handler is: a function from Request to Response.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { newKey, poolFor } from './support.js'

// The page's program, as a module beside the package's own dependencies.
async function moduleOf(t, page) {
  const directory = await mkdtemp(path.resolve('page-'))
  t.after(() => rm(directory, { recursive: true }))
  const [, program] = /^```ts\n(.*?)^```$/ms.exec(await readFile(`../../docs/clients/${page}.md`, 'utf8'))
  await writeFile(path.join(directory, 'page.mts'), program)
  await promisify(execFile)('node_modules/.bin/tsc', [path.join(directory, 'page.mts'), '--noCheck', '--experimentalDecorators',
    '--emitDecoratorMetadata', '--target', 'es2022', '--module', 'nodenext', '--ignoreConfig'])
  return import(path.join(directory, 'page.mjs'))
}

// Each user has the answers of his own, and a stranger none; one effect for each key.
async function play(t, table, post, revoke) {
  const pool = poolFor(t)
  const key = newKey()
  const pay = async (token, amount = 30) => {
    const response = await post({
      method: 'POST', body: JSON.stringify({ account: 'a', amount }),
      headers: { 'content-type': 'application/json', 'idempotency-key': key, ...(token && { authorization: `Bearer ${token}` }) },
    })
    return [response.status, response.headers.get('idempotency-replayed'),
      response.status === 201 ? await response.json() : undefined]
  }
  const answer = { account: 'a', amount: 30 }
  assert.deepEqual([await pay('ada'), await pay('ada')], [[201, null, answer], [201, 'true', answer]])
  assert.deepEqual(await pay('ada', 31), [422, null, undefined])
  assert.deepEqual([await pay(), await pay('eve'), await pay('bob')],
    [[401, null, undefined], [401, null, undefined], [201, null, answer]])
  revoke?.('Bearer ada')
  if (revoke) assert.equal((await pay('ada'))[0], 401)
  assert.deepEqual((await pool.query(`SELECT * FROM ${table} ORDER BY name`)).rows,
    [{ name: 'ada', ...answer }, { name: 'bob', ...answer }])
}

async function prepare(t, table) {
  const pool = poolFor(t)
  await pool.query(`CREATE TABLE ${table} (name text, account text, amount int)`)
}

test('docs/clients/nestjs.md: the program runs once, behind its guard', async (t) => {
  await prepare(t, 'nest_payment')
  const { pool, start, users } = await moduleOf(t, 'nestjs')
  const app = await start(0)
  t.after(async () => { await app.close(); await pool.end() })
  const url = `${await app.getUrl()}/payments`
  await play(t, 'nest_payment', (request) => fetch(url, request), (token) => users.delete(token))
  // what its exceptions refuse is no lost attempt
  await poolFor(t).query("SELECT idem_set_policy('shop POST /payments *', max_lost_attempts => 1)")
  const key = newKey()
  const pay = async (amount) => (await fetch(url, {
    method: 'POST', body: JSON.stringify({ account: 'a', amount }),
    headers: { 'content-type': 'application/json', 'idempotency-key': key, authorization: 'Bearer bob' },
  })).status
  assert.deepEqual([await pay(2000), await pay(2000), await pay(20)], [403, 403, 201])
})

test('docs/clients/nextjs.md: the route handler runs once, behind its authentication', async (t) => {
  await prepare(t, 'next_payment')
  const route = await moduleOf(t, 'nextjs')
  // Next.js refuses some exports of a route, such as `runtime`, by what its configuration says.
  assert.deepEqual(Object.keys(route), ['POST'])
  await play(t, 'next_payment', (request) => route.POST(new Request('http://127.0.0.1/api/payments', request)))
})
