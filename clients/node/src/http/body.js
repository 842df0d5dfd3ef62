// The body of a request: read up to a limit, and made into what a repeat is compared by.
import { setImmediate as turn } from 'node:timers/promises'
import { Problem } from './problem.js'
import { hash, isStorable } from './spelling.js'

/** @param {string | undefined} header Content-Type */
export function mediaType(header) {
  return (header ?? '').split(';')[0].trim().toLowerCase()
}

/** @param {string[]} values of the header Content-Encoding */
export function isEncoded(values) {
  return values.some((value) => !['', 'identity'].includes(value.trim().toLowerCase()))
}

/** @param {string} type */
export function isJson(type) {
  return type === 'application/json' || type.endsWith('+json')
}

export function requestTooLarge() {
  return new Problem(413, 'The request is too large', { detail: 'Its body is larger than this service takes.' })
}

/**
 * @param {any} stream of Node, or of the web
 * @param {number} limit bytes
 * @param {() => Error} tooLarge
 * @param {AbortSignal} [signal] cancels a stream of the web
 * @returns {Promise<Buffer>}
 */
export async function readAll(stream, limit, tooLarge, signal) {
  const chunks = []
  let size = 0
  for await (const chunk of signal && stream.pipeThrough ? stream.pipeThrough(new TransformStream(), { signal }) : stream) {
    const bytes = Buffer.from(chunk)
    size += bytes.length
    if (size > limit) {
      // What Readable.toWeb has been asked for comes first: Node 20 ends the process where it comes to a stream that is cancelled.
      await turn()
      throw tooLarge()
    }
    chunks.push(bytes)
  }
  return Buffer.concat(chunks)
}

/**
 * The body of a request. That it ends in the middle is its client's doing.
 * @param {any} stream
 * @param {number} limit bytes
 * @throws {Problem}
 */
export async function readRequest(stream, limit) {
  try {
    return await readAll(stream, limit, requestTooLarge)
  } catch (error) {
    throw error instanceof Problem ? error : unreadable(error)
  }
}

/** @param {unknown} cause error of a parser, which may quote the body */
export function unreadable(cause) {
  return new Problem(400, 'The body cannot be read', { detail: 'It is not what its Content-Type says.', cause })
}

export function encoded() {
  return new Problem(415, 'The Content-Encoding is not supported',
    { detail: 'Send the body without.', headers: { 'Accept-Encoding': 'identity' } })
}

/**
 * The value of a JSON body.
 * @param {Uint8Array} bytes
 * @throws {Problem} 400
 */
export function parseJson(bytes) {
  try {
    return JSON.parse(Buffer.from(bytes).toString())
  } catch (error) {
    throw unreadable(error)
  }
}

/**
 * JSON text that stands for a body in the fingerprint: JSON as it came, so no number loses a digit; the SHA-256 of anything else;
 * null where there is none.
 * @param {Uint8Array} bytes
 * @param {string} type
 * @param {boolean} [encoded] it has a Content-Encoding: these bytes are not what its type says
 * @throws {Problem} 400: its type is JSON, and it is not
 */
export function comparable(bytes, type, encoded = false) {
  if (bytes.length === 0) return 'null'
  if (encoded || !isJson(type)) return hashed(bytes)
  parseJson(bytes)
  return jsonText(bytes) ?? hashed(bytes)
}

/**
 * The same for what a parser has made of a body that nobody kept. A handler that reads nothing else sees no more than this.
 * @param {unknown} body
 * @param {string} type
 * @throws {Error} it does not say what was sent
 */
export function comparableParsed(body, type) {
  if (body instanceof Uint8Array) return comparable(body, type)
  if (body === null) return 'null'
  refuseRounded(body)
  const text = typeof body === 'string' && !isJson(type) ? body : written(body)
  if (text.includes('\ufffd')) throw unseen()
  return typeof body === 'string' ? comparable(Buffer.from(text), type) : isStorable(text) ? text : hashed(Buffer.from(text))
}

// V8 writes less deep JSON than it reads.
function written(body) {
  try {
    return JSON.stringify(body)
  } catch (error) {
    throw error instanceof RangeError ? unreadable(error) : error
  }
}

/** The error of a request that cannot be compared with a repeat. */
export function unseen() {
  return new Error('the body of this request cannot be compared with that of a repeat: a parser has read it, and what it left is not all. ' +
    'Keep what was sent, by keepBody before the parser, or give the option "fingerprint"')
}

// JSON.parse rounds such numbers, or makes Infinity of them.
function refuseRounded(body) {
  const values = [body]
  while (values.length > 0) {
    const value = values.pop()
    if (typeof value === 'number' && !(Math.abs(value) <= Number.MAX_SAFE_INTEGER)) throw unseen()
    if (typeof value === 'object' && value !== null) for (const inner of Object.values(value)) values.push(inner)
  }
}

const KEPT = Symbol('pg-idempotency.body')

/**
 * Keeps a copy of the body of a Node request, whoever reads it.
 * @param {any} request
 * @param {number} limit bytes; of a longer body a little more is kept
 */
export function keep(request, limit) {
  if (request[KEPT]) return
  const kept = { chunks: /** @type {Buffer[]} */ ([]), size: 0, ended: false, isLossy: false }
  request[KEPT] = kept
  const emit = request.emit
  request.emit = function (event, ...args) {
    if (event === 'end') kept.ended = true
    if (event === 'data' && kept.size <= limit) {
      const [chunk] = args
      // After setEncoding there is text, which does not say what was sent in the place of U+FFFD.
      kept.isLossy ||= typeof chunk === 'string' && chunk.includes('\ufffd')
      const bytes = Buffer.from(chunk, this.readableEncoding)
      kept.chunks.push(bytes)
      kept.size += bytes.length
    }
    return emit.call(this, event, ...args)
  }
}

/**
 * The body that was kept; undefined where it was not, or is not whole.
 * @param {any} request
 * @param {number} limit
 */
export function keptBody(request, limit) {
  const kept = request[KEPT]
  if (kept?.size > limit) throw requestTooLarge()
  if (kept?.isLossy) throw unseen()
  // HTTP/2 ends a body that its client has broken off.
  if (request.aborted) throw unreadable(new Error('the client has gone'))
  return kept?.ended ? Buffer.concat(kept.chunks) : undefined
}

/**
 * True where the client said that there is a body.
 * @param {(name: string) => string[]} header
 */
export function saysBody(header) {
  return header('transfer-encoding').length > 0 || Number(header('content-length')[0] ?? 0) > 0
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

// The text of JSON, unless some byte is no UTF-8, or jsonb cannot hold it.
function jsonText(bytes) {
  try {
    const text = utf8.decode(bytes)
    return isStorable(text) ? text : undefined
  } catch {
    return undefined
  }
}

function hashed(bytes) {
  return JSON.stringify(hash(bytes))
}
