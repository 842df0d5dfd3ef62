// A proxy in front of PostgreSQL that loses what the cases want lost.  It reads
// the messages of both sides, so a fault hits an exact point of the protocol:
// the COMMIT of a transaction that inserted a row, or the n-th round trip.
import net from 'node:net'
import { once } from 'node:events'

const SSL_REQUEST = 80877103
const GSS_REQUEST = 80877104

// The types of the messages that matter here, and a state of the session.
const QUERY = 0x51
const PARSE = 0x50
const COMMAND_COMPLETE = 0x43
const READY = 0x5a
const IDLE = 0x49

// Which message a fault waits for, and whether the message is still passed on.
// "hold" keeps the answer back and leaves the connection as it is.
export const FAULTS = {
  'lose COMMIT': { side: 'client', at: (link, message) => link.inserted && isCommit(message), action: 'cut' },
  'lose the answer to COMMIT': { side: 'server', at: isCommitted, action: 'cut' },
  'hold the answer to COMMIT': { side: 'server', at: isCommitted, action: 'hold' },
  'cut at the round trip': { side: 'server', at: isNthReady, action: 'cut' },
  'hold at the round trip': { side: 'server', at: isNthReady, action: 'hold' },
}

export class Proxy {
  // `url`: where PostgreSQL is.
  constructor(url) {
    this.url = partsOf(url)
    this.links = new Set()
    this.server = net.createServer((socket) => this.accept(socket))
    this.hits = 0
  }

  // Gives the URL by which a program reaches PostgreSQL through this proxy.
  async listen() {
    this.server.listen(0, '127.0.0.1')
    await once(this.server, 'listening')
    const { user, database, options } = this.url
    const through = new URLSearchParams(options)
    for (const name of ['host', 'port']) through.delete(name)
    through.set('sslmode', 'disable')
    return `postgres://${user}127.0.0.1:${this.server.address().port}${database}?${through}`
  }

  // The next message that fits is the one that the fault hits.
  arm(name, trip) {
    const fault = FAULTS[name]
    if (!fault) throw new Error(`no such fault: ${name}`)
    this.fault = { ...fault, trip }
    this.trips = 0
    this.hits = 0
    this.hit = new Promise((resolve) => { this.struck = resolve })
  }

  disarm() {
    this.fault = undefined
  }

  // PostgreSQL seems to be gone: all connections end, and new ones do as well.
  down() {
    this.isDown = true
    this.cutAll()
  }

  up() {
    this.isDown = false
  }

  cutAll() {
    for (const link of this.links) link.cut()
  }

  async close() {
    this.server.close()
    this.cutAll()
  }

  accept(socket) {
    if (this.isDown) socket.destroy()
    else this.links.add(new Link(this, socket))
  }

  // What becomes of a message: 'pass', 'cut' or 'hold'.
  judge(side, link, message) {
    if (!this.fault || this.fault.side !== side || !this.fault.at(link, message, this)) return 'pass'
    const { action } = this.fault
    this.fault = undefined
    this.hits++
    this.struck()
    return action
  }
}

// One connection of the program, and the one to PostgreSQL that belongs to it.
class Link {
  constructor(proxy, socket) {
    Object.assign(this, { proxy, socket, inserted: false, started: false, held: false })
    this.upstream = net.connect(targetOf(proxy.url))
    this.fromClient = Buffer.alloc(0)
    this.fromServer = Buffer.alloc(0)
    for (const end of [this.socket, this.upstream]) {
      end.setNoDelay?.(true)
      end.on('error', () => this.cut())
      end.on('close', () => this.cut())
    }
    this.socket.on('data', (bytes) => this.fromProgram(bytes))
    this.upstream.on('data', (bytes) => this.fromPostgres(bytes))
  }

  cut() {
    this.proxy.links.delete(this)
    this.socket.destroy()
    this.upstream.destroy()
  }

  fromProgram(bytes) {
    this.fromClient = Buffer.concat([this.fromClient, bytes])
    if (!this.started) this.startUp()
    if (!this.started) return
    this.fromClient = this.forward('client', this.fromClient, this.upstream)
  }

  fromPostgres(bytes) {
    this.fromServer = this.forward('server', Buffer.concat([this.fromServer, bytes]), this.socket)
  }

  // The first messages have no type.  Encryption is refused, as it would hide
  // what follows.
  startUp() {
    while (!this.started && this.fromClient.length >= 8) {
      const length = this.fromClient.readInt32BE(0)
      if (this.fromClient.length < length) return
      const code = this.fromClient.readInt32BE(4)
      if (code === SSL_REQUEST || code === GSS_REQUEST) {
        this.socket.write('N')
      } else {
        this.upstream.write(this.fromClient.subarray(0, length))
        this.started = true
      }
      this.fromClient = this.fromClient.subarray(length)
    }
  }

  // Passes whole messages on and gives back what is not whole yet.
  forward(side, bytes, to) {
    let at = 0
    while (bytes.length - at >= 5) {
      const end = at + 1 + bytes.readInt32BE(at + 1)
      if (bytes.length < end) break
      const message = bytes.subarray(at, end)
      this.notice(side, message)
      const verdict = this.held ? 'hold' : this.proxy.judge(side, this, message)
      if (verdict === 'cut') {
        this.cut()
        return Buffer.alloc(0)
      }
      if (verdict === 'hold') this.held = true
      else to.write(message)
      at = end
    }
    return bytes.subarray(at)
  }

  // Remembers whether the open transaction has inserted a row.  Both sides are
  // read: in a pipeline COMMIT is sent before the INSERT is answered, and a
  // statement that is prepared already is sent without its text.
  notice(side, message) {
    if (side === 'client') {
      if (/^\s*insert\s+into\b/i.test(textOf(message))) this.inserted = true
      return
    }
    if (tagOf(message)?.startsWith('INSERT')) this.inserted = true
    if (message[0] === READY && message[5] === IDLE) this.inserted = false
  }
}

// The text of a Query or Parse message.
function textOf(message) {
  if (message[0] === QUERY) return message.toString('utf8', 5)
  return message[0] === PARSE ? message.toString('utf8', message.indexOf(0, 5) + 1) : ''
}

function tagOf(message) {
  return message[0] === COMMAND_COMPLETE ? message.subarray(5, message.length - 1).toString('latin1') : undefined
}

function isCommitted(link, message) {
  return link.inserted && tagOf(message) === 'COMMIT'
}

function isCommit(message) {
  return /(^|;)\s*(commit|end)\b/i.test(textOf(message))
}

function isNthReady(link, message, proxy) {
  if (message[0] !== READY) return false
  proxy.trips++
  return proxy.trips === proxy.fault.trip
}

// The parts of a URL as libpq takes it, which may have no host before the slash.
function partsOf(text) {
  const [, user = '', host, port, database = '', options = ''] =
    /^postgres(?:ql)?:\/\/([^@/]*@)?(\[[^\]]*\]|[^:/?]*)(?::(\d+))?(\/[^?]*)?(?:\?(.*))?$/.exec(text) ?? []
  if (host === undefined) throw new Error('the database is not given as postgres://...')
  const found = new URLSearchParams(options)
  return {
    user, database, options,
    host: found.get('host') ?? (decodeURIComponent(host.replace(/^\[|\]$/g, '')) || '127.0.0.1'),
    port: Number(found.get('port') ?? port ?? 5432),
  }
}

function targetOf({ host, port }) {
  return host.startsWith('/') ? { path: `${host}/.s.PGSQL.${port}` } : { host, port }
}
