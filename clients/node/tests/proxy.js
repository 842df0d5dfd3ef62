// A TCP proxy that knows PostgreSQL's messages: it counts round trips, loses answers, and changes them.
import net from 'node:net'

// A unix socket's directory, or a pooler's address.
const TARGET = () => process.env.PGHOST.startsWith('/')
  ? { path: `${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}` }
  : { host: process.env.PGHOST, port: Number(process.env.PGPORT) }

export class Proxy {
  trips = 0
  statements = []
  #sockets = new Set()
  #server
  // Called with the type and the bytes of each message of the server; gives what is passed on, or null to cut.
  onAnswer = (type, bytes) => bytes
  onRequest = () => {}

  static async start(t) {
    const proxy = new Proxy()
    proxy.#server = net.createServer((client) => proxy.#connect(client))
    await new Promise((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve))
    t.after(() => proxy.stop())
    return proxy
  }

  get poolOptions() {
    return { host: '127.0.0.1', port: this.#server.address().port, ssl: false }
  }

  stop() {
    for (const socket of this.#sockets) socket.destroy()
    return new Promise((resolve) => this.#server.close(resolve))
  }

  /** From now on no answer comes, and no connection ends. */
  hang() {
    this.onAnswer = () => Buffer.alloc(0)
  }

  /** Ends all connections, as a network does. */
  cut() {
    for (const socket of this.#sockets) socket.destroy()
  }

  #connect(client) {
    const server = net.connect(TARGET())
    const state = { asked: false }
    this.#pipe(client, server, this.#reader(true, (type, bytes) => {
      state.asked = true
      this.#note(type, bytes)
      return bytes
    }))
    this.#pipe(server, client, this.#reader(false, (type, bytes) => {
      // A trip is a change of direction: something was asked, and now it is answered.
      if (state.asked) this.trips++
      state.asked = false
      return this.onAnswer(type, bytes)
    }))
  }

  #note(type, bytes) {
    if (type !== 'P' && type !== 'Q') return
    const text = bytes.subarray(5).toString()
    this.statements.push(type === 'Q' ? text.slice(0, -1) : text.split('\0')[1])
    this.onRequest(this.statements.at(-1))
  }

  #pipe(from, to, read) {
    this.#sockets.add(from)
    from.on('data', (chunk) => {
      for (const bytes of read(chunk)) {
        if (bytes === null) return from.destroy(), to.destroy()
        to.write(bytes)
      }
    })
    from.on('error', () => {})
    from.on('close', () => { this.#sockets.delete(from); to.destroy() })
  }

  // Splits a stream into messages. The first message of a client has no type.
  #reader(untyped, handle) {
    let rest = Buffer.alloc(0)
    return function* (chunk) {
      rest = Buffer.concat([rest, chunk])
      for (;;) {
        const head = untyped ? 0 : 1
        if (rest.length < head + 4) return
        const end = head + rest.readUInt32BE(head)
        if (rest.length < end) return
        const bytes = rest.subarray(0, end)
        rest = rest.subarray(end)
        yield untyped ? bytes : handle(String.fromCharCode(bytes[0]), bytes)
        untyped = false
      }
    }
  }
}

/** True for the message that says that this command is complete. */
export const isTag = (type, bytes, tag) => type === 'C' && bytes.subarray(5, -1).toString() === tag

/** The message that says so. */
export function tagMessage(tag) {
  const bytes = Buffer.alloc(6 + tag.length)
  bytes.write('C')
  bytes.writeUInt32BE(5 + tag.length, 1)
  bytes.write(tag, 5)
  return bytes
}
