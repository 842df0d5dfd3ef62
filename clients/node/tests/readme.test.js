// The programs of the README, run as they are there: what they print is in the block after them. And the
// package as npm installs it, with its types.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, symlink, mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'

const run = promisify(execFile)
const readme = await readFile('README.md', 'utf8')
const examples = [...readme.matchAll(/^```js\n(.*?)^```\n\n```text\n(.*?)^```$/gms)]

test('each program of the README has an expected output', () => {
  assert.ok(examples.length >= 8)
  assert.equal(readme.match(/^```js$/gm).length, examples.length)
})

for (const [index, [, program, expected]] of examples.entries()) {
  const line = readme.slice(0, examples[index].index).split('\n').length
  test(`README.md:${line} prints what it says`, async () => {
    const child = spawn(process.execPath, ['--input-type=module'], { stdio: ['pipe', 'pipe', 'pipe'] })
    let [output, errors] = ['', '']
    child.stdout.on('data', (chunk) => { output += chunk })
    child.stderr.on('data', (chunk) => { errors += chunk })
    child.stdin.end(program)
    const [status] = await once(child, 'close')
    assert.deepEqual([output, errors, status], [expected, '', 0])
  })
}

const CONSUMER = `
import pg from 'pg'
import { Completion, Declined, Idempotency, Reconciled, settle, type Result } from 'pg-idempotency'
import { Caller, FileStore } from 'pg-idempotency/caller'
import { expressIdempotency } from 'pg-idempotency/express'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { honoIdempotency } from 'pg-idempotency/hono'
import { postgresSource } from 'pg-idempotency/postgres'

const idempotency = new Idempotency(new pg.Pool(), { retry: { attempts: 3 }, hooks: { acquired: ({ key }) => console.log(key) } })
const result: Result = await idempotency.transaction('k', { a: 1 }, async (tx, { attempt }) => {
  if (attempt === 2) throw new Declined(402, null, { retryAfter: '1 minute' })
  return { code: 201, payload: 1 }
}, { wait: '1 s' })
await idempotency.lease('k', null, ({ fence }, signal) => {
  const token: bigint | null = fence
  return signal.aborted ? 1 : new Completion(token, () => {})
}, { reconcile: () => Reconciled.unknown({ retryAfter: 5 }) })
const double = idempotency.idempotent((context, n: number) => n * 2, { key: (n) => String(n), name: 'double' })
const four: number = await double(2)
const rows: number = await idempotency.batch(async (batch) => (await batch.beginMany(['a'])).length)
const action: 'ack' | 'again' | 'deadLetter' = settle(result).action
expressIdempotency(idempotency, { principal: () => 'me', statuses: (status) => status === 404 ? 'release' : undefined }).lease(() => {})
honoIdempotency(idempotency, { scope: async () => 'own' }); fastifyIdempotency; postgresSource
await new Caller({ store: new FileStore('/keys') }).send('x', 'http://localhost')
// @ts-expect-error a key is a string
idempotency.transaction(1, null, () => 1)
// @ts-expect-error there is no such hook
new Idempotency(new pg.Pool(), { hooks: { nothing: () => {} } })
// @ts-expect-error who asks is missing
expressIdempotency(idempotency)
// @ts-expect-error who asks is missing
honoIdempotency(idempotency, { wait: 1000 })
// @ts-expect-error a number is no principal
expressIdempotency(idempotency, { principal: () => 7 })
// @ts-expect-error no such end
expressIdempotency(idempotency, { principal: () => 'me', statuses: () => 'forget' })
// @ts-expect-error the function takes a number
double('two')
export { four, rows, action }
`

test('the packed package installs, and its types hold in a program of a user', async (t) => {
  const directory = await mkdtemp(path.join(process.env.IDEM_WORK, 'consumer'))
  t.after(() => rm(directory, { recursive: true }))
  const npmDirectories = { npm_config_cache: path.join(directory, 'cache'), npm_config_update_notifier: 'false' }
  const environment = { env: { ...process.env, ...npmDirectories } }
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', directory], environment)
  const { filename, files } = packed(stdout)
  const names = files.map((file) => file.path)
  assert.ok(['LICENSE', 'README.md', 'package.json', 'src/index.js', 'types/index.d.ts', 'types/http/express.d.ts']
    .every((name) => names.includes(name)), names.join())
  assert.ok(names.every((name) => !name.startsWith('tests/') && !name.startsWith('conformance/')))
  const installed = path.join(directory, 'node_modules/pg-idempotency')
  await mkdir(installed, { recursive: true })
  await run('tar', ['-xzf', path.join(directory, filename), '-C', installed, '--strip-components=1'])
  for (const name of ['pg', '@types', 'structured-headers', 'hono', 'typescript']) {
    await symlink(path.resolve('node_modules', name), path.join(directory, 'node_modules', name))
  }
  await writeFile(path.join(directory, 'package.json'), '{ "type": "module" }')
  await writeFile(path.join(directory, 'consumer.ts'), CONSUMER)
  await run(process.execPath, [path.resolve('node_modules/typescript/bin/tsc'), '--noEmit', '--strict', '--target', 'ES2022', '--module', 'NodeNext',
    '--types', 'node', 'consumer.ts'], { cwd: directory }).catch((error) => assert.fail(error.stdout))
  await run(process.execPath, ['--input-type=module', '-e', "await import('pg-idempotency'); await import('pg-idempotency/hono')"], { cwd: directory })
})

// Scripts of the package may print before the JSON.
function packed(text) {
  const value = JSON.parse(text.slice(text.search(/^[[{]/m)))
  return Array.isArray(value) ? value[0] : Object.values(value)[0]
}
