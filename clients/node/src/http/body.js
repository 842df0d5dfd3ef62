// The body of a request: read up to a limit, and made into what a repeat is compared by.
import { createHash } from 'node:crypto'
import { Problem } from './problem.js'

/** @param {string | undefined} header Content-Type */
export function mediaType(header) {
  return (header ?? '').split(';')[0].trim().toLowerCase()
}

/** @param {string} type */
export function isJson(type) {
  return type === 'application/json' || type.endsWith('+json')
}

export function requestTooLarge() {
  return new Problem(413, 'The request is too large', { detail: 'Its body is larger than this service takes.' })
}

/**
 * @param {AsyncIterable<any>} stream
 * @param {number} limit bytes
 * @param {() => Error} tooLarge
 * @returns {Promise<Buffer>}
 */
export async function readAll(stream, limit, tooLarge) {
  const chunks = []
  let size = 0
  for await (const chunk of stream) {
    const bytes = Buffer.from(chunk)
    size += bytes.length
    if (size > limit) throw tooLarge()
    chunks.push(bytes)
  }
  return Buffer.concat(chunks)
}

/** @param {unknown} cause error of a parser, which may quote the body */
export function unreadable(cause) {
  return new Problem(400, 'The body cannot be read', { detail: 'It is not what its Content-Type says.', cause })
}

/**
 * The value of a JSON body.
 * @param {Buffer} bytes
 * @throws {Problem} 400
 */
export function parseJson(bytes) {
  try {
    return JSON.parse(bytes.toString())
  } catch (error) {
    throw unreadable(error)
  }
}

/**
 * What stands for a body in the fingerprint: the value of JSON, the SHA-256 of anything else, null where there is none.
 * @param {unknown} body what a parser made, or bytes
 * @param {string} type
 */
export function comparable(body, type) {
  if (body === undefined || body === null) return null
  if (typeof body === 'string') return isJson(type) ? comparableJson(body) : hashed(Buffer.from(body))
  if (body instanceof Uint8Array) {
    const bytes = Buffer.from(body)
    if (bytes.length === 0) return null
    return isJson(type) ? comparableJson(parseJson(bytes)) : hashed(bytes)
  }
  return comparableJson(body)
}

// jsonb does not take any depth. A text that it cannot hold, such as one with the character NUL, is refused by the begin.
function comparableJson(value) {
  let text
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw new Problem(400, 'The body cannot be compared', { cause: error })
  }
  return depth(text) > 500 ? hashed(Buffer.from(text)) : value
}

// Brackets inside of strings count too: the answer may be too great, and is the same each time.
function depth(text) {
  let deepest = 0
  let now = 0
  for (const character of text) {
    if (character === '[' || character === '{') deepest = Math.max(deepest, ++now)
    else if (character === ']' || character === '}') now--
  }
  return deepest
}

function hashed(bytes) {
  return { sha256: createHash('sha256').update(bytes).digest('hex') }
}
