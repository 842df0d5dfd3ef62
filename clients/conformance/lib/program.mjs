// The server program under test: starts it with PORT and DATABASE_URL, waits
// until it answers, kills it with all of its children.
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import net from 'node:net'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import * as http from './http.mjs'

const KEPT = 8192     // characters of the program's output
// Below the ports that systems give to outgoing connections: nobody takes the port
// of a program that is killed and started again.
const PORTS = { first: 20000, blocks: 120, size: 100 }

const running = new Set()

// A runner that is told to end leaves no program behind.
process.on('exit', () => {
  for (const program of running) program.signal()
})
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(name, () => process.exit(1))

export class Program {
  // `patience`: seconds until the program must answer GET /.
  constructor(command, { databaseUrl, patience }) {
    Object.assign(this, { command, databaseUrl, patience, host: '127.0.0.1', port: 0, output: '' })
  }

  // A program that is started again keeps its port, as its clients know it.
  async start() {
    if (this.port === 0) this.port = await freePort()
    const child = spawn(this.command[0], this.command.slice(1), {
      env: { ...process.env, PORT: String(this.port), DATABASE_URL: this.databaseUrl },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    this.child = child
    running.add(this)
    this.exited = new Promise((resolve) => {
      child.once('error', (error) => { this.keep(`${error.message}\n`); resolve() })
      child.once('exit', () => resolve())
    }).then(() => this.end())
    this.ended = false
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => this.keep(text))
    await this.untilReady()
  }

  keep(text) {
    this.output = (this.output + text).slice(-KEPT)
  }

  async untilReady() {
    const deadline = Date.now() + this.patience * 1000
    while (Date.now() < deadline) {
      if (this.ended) throw new Error(`the program ended before it answered:\n${this.output}`)
      const request = { method: 'GET', target: '/', headers: [], body: Buffer.alloc(0) }
      const answer = await http.start(this, request, 5).answer.catch(() => undefined)
      if (answer?.status === 200) return
      await sleep(50)
    }
    throw new Error(`the program did not answer GET / with 200 within ${this.patience} s:\n${this.output}`)
  }

  // SIGKILL to the whole process group: nothing of the program can clean up.
  async kill() {
    if (!this.child || this.ended) return
    this.signal()
    await this.exited
  }

  // Children may outlive the program.  They are ended at once, as later on the
  // number of the group may be somebody else's.
  end() {
    this.signal()
    this.ended = true
    running.delete(this)
  }

  signal() {
    if (!this.child.pid) return
    try {
      process.kill(-this.child.pid, 'SIGKILL')
    } catch (error) {
      if (error.code !== 'ESRCH') throw error
    }
  }
}

// Until a program listens on its port, another runner could find the same port free,
// and its program would answer for this one.  So each runner has a block of ports, and
// holds the first one as long as it runs.
let block
let turn = 0

async function freePort() {
  block ??= reserveBlock()
  const reserved = await block
  for (;;) {
    const port = reserved + 1 + turn++ % (PORTS.size - 1)
    const server = await listen(port)
    if (!server) continue
    server.close()
    await once(server, 'close')
    return port
  }
}

async function reserveBlock() {
  for (;;) {
    const first = PORTS.first + randomInt(PORTS.blocks) * PORTS.size
    const server = await listen(first)
    if (server) {
      server.unref()
      return first
    }
  }
}

// The server that listens on this port; undefined if the port is taken.
async function listen(port) {
  const server = net.createServer().listen(port, '127.0.0.1')
  return once(server, 'listening').then(() => server, (error) => {
    if (error.code !== 'EADDRINUSE') throw error
  })
}
