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

// The types of the package's exports, and those that they are made of. The rest is the package's own.
const PUBLIC = /^types\/(?!(transaction|pipeline|prepared|heartbeat|retry)\.|http\/(answer|body|key|spelling)\.)/

const CONSUMER = `
import pg from 'pg'
import { Completion, Declined, Idempotency, Reconciled, settle, type Result } from 'pg-idempotency'
import { Caller, FileStore } from 'pg-idempotency/caller'
import { expressIdempotency } from 'pg-idempotency/express'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { honoIdempotency } from 'pg-idempotency/hono'
import { postgresSource } from 'pg-idempotency/postgres'
import { KafkaConsumer } from 'pg-idempotency/kafka'
import { Tools, keyOfArguments } from 'pg-idempotency/mcp'
import { NatsConsumer } from 'pg-idempotency/nats'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'
import { RedisConsumer } from 'pg-idempotency/redis'
import postgres from 'postgres'
import Fastify, { type FastifyRequest } from 'fastify'
import { Kafka } from 'kafkajs'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { z } from 'zod'
import { jetstream } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { connect as connectByVersion2, type JsMsg } from 'nats'
import { createClient } from 'redis'
import { Hono } from 'hono'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Idempotent } from 'pg-idempotency/fastify'

const idempotency = new Idempotency(new pg.Pool(), { retry: { attempts: 3 }, hooks: { acquired: ({ key }) => console.log(key) } })
const result: Result = await idempotency.transaction('k', { a: 1 }, async (tx, { attempt }) => {
  const count: number | null = (await tx.query('SELECT 1')).rowCount
  if (attempt === 2) throw new Declined(402, null, { retryAfter: '1 minute' })
  return { code: 201, payload: 1 }
}, { wait: '1 s' })
await idempotency.lease('k', null, ({ fence }, signal) => {
  const token: bigint | null = fence
  return signal.aborted ? 1 : new Completion(token, (tx: pg.PoolClient) => tx.query('SELECT 1'))
}, { reconcile: () => Reconciled.unknown({ retryAfter: 5 }) })
const named = idempotency.idempotent(async ({ tx }, n: number) => (await tx.query('SELECT 1')).rowCount,
  { key: String, name: 'named' })
const count: number | null = await named(2)
const leased = idempotency.idempotent(({ signal }, n: number) => signal.aborted, { key: String, name: 'leased', style: 'lease' })
const double = idempotency.idempotent((context, n: number) => n * 2, { key: (n) => String(n), name: 'double' })
const four: number = await double(2)
const rows: number = await idempotency.batch(async (batch) => (await batch.beginMany(['a'])).length)
const action: 'ack' | 'again' | 'deadLetter' = settle(result).action
const tagged = new Idempotency(postgresSource(postgres()))
await tagged.transaction('k', null, async (sql) => (await sql\`SELECT 1\`).length)
// As the types of Express have them, and more than the package asks for.
interface Request extends IncomingMessage { body: any, params: Record<string, string>, query: object, originalUrl: string, user: string, get(name: string): string | undefined }
interface Response extends ServerResponse { status(code: number): this, json(value: any): this, send(value: any): this, set(name: string, value: string): this }
const app = { post: (path: string, handler: (req: Request, res: Response, next: (error?: any) => void) => unknown) => {} }
const once = expressIdempotency(idempotency,
  { principal: (req: Request) => req.user, statuses: (status) => status === 404 ? 'release' : undefined })
app.post('/a', once.transaction(async (req, res, { tx }) => { res.status(201).json([req.user, (await tx.query('SELECT 1')).rows]) }))
app.post('/b', once.lease((req: Request, res: Response, { signal, operation }) => { res.json([operation?.fence === null, signal.aborted]) }))
once.transaction((req, res) => { res.send(req.user) })
expressIdempotency(idempotency, { principal: (req) => String(req.get('x-user')) }).transaction((req, res) => { res.status(201).send(req.body) })
const hono = honoIdempotency(idempotency, { scope: async (request, { route }) => String(request.header('x-user')) + route })
new Hono().post('/a', hono.transaction(async (c, { tx }) => c.json((await tx.query('SELECT 1')).rows)))
  .post('/b', hono.lease((c, { signal }) => ({ response: c.json(signal.aborted), writes: (tx) => tx.query('SELECT 1') })))
const fastify = Fastify()
await fastify.register(fastifyIdempotency, { idempotency, principal: (request: FastifyRequest) => request.ip })
const onFastify = (fastify as unknown as { idempotent: Idempotent<pg.PoolClient> }).idempotent
fastify.post<{ Body: { amount: number } }>('/a', onFastify.transaction(async (request, reply, { tx }) => {
  const amount: number = request.body.amount
  return reply.code(201).send((await tx.query('SELECT 1')).rows)
}))
const handle = () => idempotency.transaction('k', null, () => 1)
const onError = (error: unknown) => console.error(error)
await KafkaConsumer.start(new Kafka({ brokers: [] }),
  { idempotency, topic: 't', groupId: 'g', handle: async ({ topic, value }) => settle(await handle()), onError })
const nats = await connect()
await NatsConsumer.start(nats,
  { idempotency, jetstream: jetstream(nats), stream: 's', durable: 'd', handle: ({ subject }) => handle() })
await NatsConsumer.start(await connectByVersion2(),
  { idempotency, stream: 's', durable: 'd', handle: (message: JsMsg) => handle() })
await RedisConsumer.start(createClient(), { idempotency, stream: 's', group: 'g', handle: ({ fields }) => handle() })
await RabbitConsumer.start({ createConfirmChannel: async () => ({}) },
  { idempotency, queue: 'q', handle: ({ content, properties: { messageId } }) => idempotency.transaction(messageId, String(content), () => 1) })
// As the types of amqplib have it, and more than the package asks for.
interface ConsumeMessage { content: Buffer, fields: { deliveryTag: number, redelivered: boolean, routingKey: string },
  properties: { messageId: any | undefined, type: any | undefined, headers: { 'x-death'?: object[], [key: string]: any } | undefined } }
await RabbitConsumer.start({ createConfirmChannel: async () => ({}) }, { idempotency, queue: 'q',
  handle: ({ fields, properties }: ConsumeMessage) => idempotency.transaction(properties.messageId, fields.routingKey, () => 1),
  onError: (error, message) => console.error(message?.properties.type) })
const tools = new Tools(idempotency, { onError })
const mcp = new McpServer({ name: 'a', version: '1' })
mcp.registerTool('a', { inputSchema: { key: z.string(), amount: z.number() } }, ({ key, ...request }, { authInfo }) =>
  tools.transaction('a', String(authInfo?.clientId), key, request,
    async (tx, { attempt }) => ({ attempt, rows: (await tx.query('SELECT 1')).rows }), { wait: '5 s' }))
mcp.registerTool('b', { inputSchema: { id: z.string() } }, (request, call) =>
  tools.lease('b', 'me', call._meta?.['pg-idempotency/key'] ?? keyOfArguments(request), request, ({ fence }, signal) => ({ fence: String(fence), lost: signal.aborted }),
    { lease: '1 min', reconcile: () => Reconciled.unknown() }))
// @ts-expect-error who asks is missing
tools.transaction('a', undefined, 'k', {}, () => 1)
// @ts-expect-error arguments are an object
tools.transaction('a', 'me', 'k', 7, () => 1)
// @ts-expect-error the scope is the adapter's
tools.transaction('a', 'me', 'k', {}, () => 1, { scope: 'mine' })
// @ts-expect-error a transaction has nothing to reconcile
tools.transaction('a', 'me', 'k', {}, () => 1, { reconcile: () => Reconciled.notDone })
// @ts-expect-error no pool's idempotency
new Tools(new pg.Pool())
await new Caller({ store: new FileStore('/keys') }).send('x', 'http://localhost')
// @ts-expect-error no client has it
idempotency.transaction('k', null, (tx) => tx.nothing())
// @ts-expect-error a payload has to be looked at
result.payload.id
// @ts-expect-error no pool
new Idempotency({})
// @ts-expect-error there is no transaction under a lease
idempotency.idempotent(({ tx }) => 1, { key: () => 'k', name: 'n', style: 'lease' })
// @ts-expect-error a message of NATS has no fields
NatsConsumer.start(await connect(), { idempotency, stream: 's', durable: 'd', handle: ({ fields }) => handle() })
// @ts-expect-error no connection of NATS
NatsConsumer.start({}, { idempotency, stream: 's', durable: 'd', handle })
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
  for (const name of ['pg', '@types', 'hono', 'typescript', 'fastify', 'kafkajs', 'nats', '@nats-io', 'postgres', 'redis', '@modelcontextprotocol', 'zod']) {
    await symlink(path.resolve('node_modules', name), path.join(directory, 'node_modules', name))
  }
  for (const file of names.filter((name) => PUBLIC.test(name))) {
    const text = (await readFile(path.join(installed, file), 'utf8')).replaceAll(/\/\*.*?\*\//gs, '')
    assert.doesNotMatch(text, /\bany\b/, file)
  }
  await writeFile(path.join(directory, 'package.json'), '{ "type": "module" }')
  await writeFile(path.join(directory, 'consumer.ts'), CONSUMER)
  const [, page] = /^```ts\n(.*?)^```$/ms.exec(await readFile('../../docs/clients/nextjs.md', 'utf8'))
  await writeFile(path.join(directory, 'nextjs.ts'), page)
  for (const resolution of [['--module', 'Node16'], ['--module', 'NodeNext'], ['--module', 'ESNext', '--moduleResolution', 'bundler']]) {
    await run(process.execPath, [path.resolve('node_modules/typescript/bin/tsc'), '--noEmit', '--strict', '--target', 'ES2022', ...resolution,
      '--types', 'node', 'consumer.ts', 'nextjs.ts'], { cwd: directory }).catch((error) => assert.fail(error.stdout))
  }
  await run(process.execPath, ['--input-type=module', '-e', "await import('pg-idempotency'); await import('pg-idempotency/hono'); await import('pg-idempotency/mcp')"], { cwd: directory })
  await run(process.execPath, ['--input-type=commonjs', '-e', "new (require('pg-idempotency').Idempotency)(new (require('pg').Pool)())"], { cwd: directory })
})

// Scripts of the package may print before the JSON.
function packed(text) {
  const value = JSON.parse(text.slice(text.search(/^[[{]/m)))
  return Array.isArray(value) ? value[0] : Object.values(value)[0]
}
