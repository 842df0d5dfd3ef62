// What the packages for all languages write alike: the scope of a route, and the text that stands for a body. Else one key
// would be two operations for two services behind one address. clients/conformance/spellings.json has examples.
import { createHash } from 'node:crypto'

/**
 * The scope of one route and principal within a service.
 * @param {string} method
 * @param {string} route
 * @param {string} principal
 */
export function routeScope(method, route, principal) {
  return `${method.toUpperCase()} ${escaped(route)} ${principal}`
}

/**
 * The scope of one tool and principal within a service. No method of HTTP is written in small letters.
 * @param {string} name
 * @param {string} principal
 */
export function toolScope(name, principal) {
  return `tool ${escaped(name)} ${escaped(principal)}`
}

/**
 * Spaces are between the parts, so a part has none but the last. The server takes 255 characters and no NUL, so other text is hashed.
 * @param {string} service
 * @param {string} own
 */
export function scopeOf(service, own) {
  const scope = service === '' ? own : `${escaped(service)} ${own}`
  return [...scope].length <= 255 && !scope.includes('\0') ? scope : hash(scope)
}

function escaped(text) {
  return text.replaceAll('%', '%25').replaceAll(' ', '%20')
}

/** @param {string | Uint8Array} bytes */
export function hash(bytes) {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`
}

const DEEPEST = 200
const LONGEST_NUMBER = 1000
const LONGEST_EXPONENT = 4

/**
 * Whether a text that is JSON has a depth and numbers that jsonb can hold. Where in doubt, no: the bytes are compared then.
 * @param {string} text
 */
export function isStorable(text) {
  let depth = 0
  for (let at = 0; at < text.length; at++) {
    const character = text[at]
    if (character === '"') at = endOfString(text, at)
    else if (character === '[' || character === '{') depth++
    else if (character === ']' || character === '}') depth--
    else if (character === '-' || (character >= '0' && character <= '9')) {
      const number = numberAt(text, at)
      const exponent = number.split(/e/i)[1] ?? ''
      if (number.length > LONGEST_NUMBER || exponent.length > LONGEST_EXPONENT) return false
      at += number.length - 1
    }
    if (depth > DEEPEST) return false
  }
  return true
}

function endOfString(text, start) {
  let at = start + 1
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1
  return at
}

const NUMBER = /[-+.eE0-9]+/y

function numberAt(text, start) {
  NUMBER.lastIndex = start
  return /** @type {RegExpExecArray} */ (NUMBER.exec(text))[0]
}
