// What a case is played on: the server that all cases share, or programs of its
// own, with a proxy in front of PostgreSQL where a fault needs one.
import { Program } from './program.mjs'
import { Proxy } from './proxy.mjs'

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
  const proxy = needs.proxy ? new Proxy(options.database) : undefined
  const url = proxy ? await proxy.listen() : options.database
  const servers = { first: programOf(options, url) }
  if (needs.second) servers.second = programOf(options, url)
  const close = async () => {
    for (const program of Object.values(servers)) await program.kill()
    await proxy?.close()
  }
  await startOrKill(Object.values(servers)).catch(async (error) => {
    await close()
    throw error
  })
  return { servers, proxy, close }
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
