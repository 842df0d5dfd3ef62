// What a case is played on: the server that all cases share, or programs of its
// own, with a proxy in front of PostgreSQL where a fault needs one.
import { Program } from './program.mjs'
import { Proxy } from '../../node/tests/proxy.js'

// The server that all cases share.
export async function openShared(options) {
  if (options.url) {
    const { protocol, hostname, port } = new URL(options.url)
    if (protocol !== 'http:') throw new Error('--url must begin with http:')
    return { host: hostname, port: Number(port || 80), kill: async () => {} }
  }
  const program = programOf(options, options.database)
  await startOrKill([program])
  return program
}

export function sharedStage(program) {
  return { servers: { first: program }, close: async () => {} }
}

export async function ownStage(options, needs) {
  const { proxy, url } = needs.proxy ? await proxied(options.database) : { url: options.database }
  const servers = { first: programOf(options, url) }
  if (needs.second) servers.second = programOf(options, url)
  const close = async () => {
    for (const program of Object.values(servers)) await program.kill()
    await proxy?.stop()
  }
  await startOrKill(Object.values(servers)).catch(async (error) => {
    await close()
    throw error
  })
  return { servers, proxy, close }
}

// A proxy in front of the database, and the URL that leads through it. A URL of libpq may have no host before the slash.
async function proxied(database) {
  const [, user = '', host, port, name = '', options = ''] =
    /^postgres(?:ql)?:\/\/([^@/]*@)?(\[[^\]]*\]|[^:/?]*)(?::(\d+))?(\/[^?]*)?(?:\?(.*))?$/.exec(database) ?? []
  if (host === undefined) throw new Error('the database is not given as postgres://...')
  const parameters = new URLSearchParams(options)
  const proxy = await Proxy.start({
    host: parameters.get('host') ?? (decodeURIComponent(host.replace(/^\[|\]$/g, '')) || '127.0.0.1'),
    port: parameters.get('port') ?? port ?? 5432,
  })
  for (const each of ['host', 'port']) parameters.delete(each)
  parameters.set('sslmode', 'disable')
  return { proxy, url: `postgres://${user}127.0.0.1:${proxy.port}${name}?${parameters}` }
}

function programOf({ command, patience }, databaseUrl) {
  return new Program(command, { databaseUrl, patience })
}

async function startOrKill(programs) {
  try {
    for (const program of programs) await program.start()
  } catch (error) {
    for (const program of programs) await program.kill()
    throw error
  }
}
