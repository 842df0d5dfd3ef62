// Answers of handlers: which headers are stored, how an answer is stored, and how a stored one is sent again.
import { LONGEST } from '../response.js'
import { inLowerCase, retryAfter } from './problem.js'

const STORED = ['content-type', 'content-language', 'content-encoding', 'location', 'etag']

const isCookie = (/** @type {string} */ name) => name.toLowerCase().startsWith('set-cookie')

/**
 * A test for the names of headers that are stored. Set-Cookie never is: it is for one client.
 * @param {string[]} more names, or beginnings with a star, such as X-*
 * @returns {(name: string) => boolean}
 */
export function storedHeaders(more) {
  const names = new Set([...STORED, ...more.filter((name) => !name.endsWith('*')).map((name) => name.toLowerCase())])
  const beginnings = more.filter((name) => name.endsWith('*')).map((name) => name.slice(0, -1).toLowerCase())
  return (name) => !isCookie(name) &&
    (names.has(name) || beginnings.some((beginning) => name.startsWith(beginning)))
}

/**
 * What is declined, or what reconcile has found, as it is stored.
 * @template {import('../response.js').Response} R
 * @param {R} response
 * @returns {R}
 */
export function withoutCookies(response) {
  const { headers } = response
  return headers ? { ...response, headers: Object.fromEntries(Object.entries(headers).filter(([name]) => !isCookie(name))) } : response
}

/**
 * @param {import('./problem.js').Answer} answer
 * @param {(name: string) => boolean} isStored
 */
export function toStored({ status, headers, body }, isStored) {
  const kept = Object.entries(headers)
    .map(([name, value]) => [name.toLowerCase(), Array.isArray(value) ? value.join(', ') : String(value)])
    .filter(([name]) => isStored(name))
  return { code: status, headers: Object.fromEntries(kept), body }
}

/**
 * @param {import('../result.js').Result} result
 * @param {string} marker name of the header of a replay
 * @returns {import('./problem.js').Answer}
 */
export function fromStored({ outcome, code, headers, payload, body, replayed, retryAfter: ms }, marker) {
  const json = body === null && payload !== undefined
  return {
    status: code || (outcome === 'COMPLETED' ? 200 : 422),
    headers: {
      ...(json && { 'content-type': 'application/json' }),
      ...inLowerCase(headers ?? {}),
      ...(ms !== null && { 'retry-after': retryAfter(ms)['Retry-After'] }),
      ...(replayed && { [marker.toLowerCase()]: 'true' }),
    },
    body: body ?? (json ? Buffer.from(JSON.stringify(payload)) : Buffer.alloc(0)),
  }
}

/**
 * Milliseconds of a Retry-After header.
 * @param {string | string[] | number | undefined} value seconds, or a date
 * @param {number} now milliseconds since 1970
 * @returns {number | null} up to 36500 days
 */
export function parseRetryAfter(value, now) {
  if (value === undefined || Array.isArray(value)) return null
  const text = String(value).trim()
  if (/^\d+$/.test(text)) return Math.min(Number(text) * 1000, LONGEST)
  // Dates of HTTP begin with the day of the week. V8 takes "1.5" for a date.
  const date = /^[A-Za-z]{3}/.test(text) ? Date.parse(text) : NaN
  return Number.isNaN(date) ? null : Math.min(Math.max(0, date - now), LONGEST)
}

const SENDING = ['write', 'end', 'writeHead', 'flushHeaders', 'destroy']

/**
 * What a handler writes past its framework cannot be stored, and must not be sent.
 * @param {any} raw response of Node
 * @param {() => void} told called then
 * @returns {() => void} undoes that
 */
export function hush(raw, told) {
  const own = SENDING.map((name) => Object.getOwnPropertyDescriptor(raw, name))
  for (const name of SENDING) raw[name] = () => { told(); return raw }
  return () => {
    for (const [index, name] of SENDING.entries()) {
      if (own[index]) Object.defineProperty(raw, name, own[index])
      else delete raw[name]
    }
  }
}

/** The error of a handler that does so. */
export function tookOver() {
  return new Error('a route that runs once cannot take over its reply')
}
