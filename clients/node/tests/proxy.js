// Starts test/kit/fault_proxy.py, and sends it orders: `await proxy.order('arm', 'lose')`.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const PROGRAM = fileURLToPath(new URL('../../../test/kit/fault_proxy.py', import.meta.url))
// A unix socket's directory, or a pooler's address.
const upstream = (host, port) => host.startsWith('/') ? `${host}/.s.PGSQL.${port}` : `${host}:${port}`

export class Proxy {
  #child
  #lines

  static async start({ host = process.env.PGHOST, port = process.env.PGPORT } = {}) {
    const proxy = new Proxy()
    proxy.#child = spawn('python3', [PROGRAM, '-', upstream(host, port)], { stdio: ['pipe', 'pipe', 'inherit'] })
    proxy.#lines = createInterface({ input: proxy.#child.stdout })[Symbol.asyncIterator]()
    proxy.port = await proxy.#line()
    return proxy
  }

  /** One that ends with the test, and how a pool goes through it. */
  static async forTest(t) {
    const proxy = await Proxy.start()
    t.after(() => proxy.stop())
    return { order: (...order) => proxy.order(...order), options: { host: '127.0.0.1', port: proxy.port, ssl: false } }
  }

  /** Its result, when it is carried out. */
  order(...order) {
    this.#child.stdin.write(JSON.stringify(order) + '\n')
    return this.#line()
  }

  async stop() {
    this.#child.stdin.end()
    if (this.#child.exitCode === null) await once(this.#child, 'exit')
  }

  async #line() {
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('the proxy has ended')
    return JSON.parse(value)
  }
}
