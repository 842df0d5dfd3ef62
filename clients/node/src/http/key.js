// The key in a header: a string of structured fields (RFC 8941, `"abc"`), or, unless the option says
// otherwise, the same without its quotes. Both spellings are one key.
import { Problem } from './problem.js'

// What a key may look like without quotes: visible ASCII without what delimits strings, lists and parameters.
const BARE = /([!#-'*+\--:<-[\]-~]+)/.source
// RFC 8941, 3.3.3: printable ASCII; a quote and a backslash are escaped. Parameters may follow, and are ignored (3.1.2).
const STRING = /"((?:[ !#-[\]-~]|\\["\\])*)"/.source
const QUOTED = new RegExp(`^[ \t]*${STRING}(?:; *[a-z*][a-z0-9_.*-]*(?:=${BARE}|=${STRING})?)*[ \t]*$`)
const UNQUOTED = new RegExp(`^[ \t]*${BARE}[ \t]*$`)
const LONGEST = 255

/**
 * @param {string[]} values of the header, one for each time that it was sent
 * @param {{name: string, strict: boolean}} options strict: with quotes only
 * @returns {string | undefined} undefined: there is none
 * @throws {Problem} 400
 */
export function parseKey(values, { name, strict }) {
  if (values.length === 0) return undefined
  if (values.length > 1) throw malformed(name, 'It was sent more than once.')
  const quoted = QUOTED.exec(values[0])
  const key = quoted ? quoted[1].replaceAll(/\\(.)/g, '$1') : !strict && UNQUOTED.exec(values[0])?.[1]
  if (typeof key !== 'string') {
    throw malformed(name, `It has to be a string in quotes${strict ? '' : ', or letters, digits and - . _ without'}.`)
  }
  if (key.length === 0) throw malformed(name, 'It is empty.')
  if (key.length > LONGEST) throw malformed(name, `It is longer than ${LONGEST} characters.`)
  return key
}

function malformed(name, detail) {
  return new Problem(400, `${name} is malformed`, { detail })
}

/**
 * The seconds of `Prefer: wait=n` (RFC 7240).
 * @param {string | undefined} prefer
 * @returns {number | undefined}
 */
export function preferredWait(prefer) {
  const found = prefer?.match(/(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i)
  return found ? Number(found[1]) : undefined
}
