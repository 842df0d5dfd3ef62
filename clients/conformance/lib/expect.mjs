// Whether an answer is the one that a case expects.  Each check gives a list of
// complaints; none means that the answer is as expected.

const SHOWN = 300      // characters of a body in a complaint

// `saved`: earlier answers of the case, by name.
export function complaints(expected, answer, saved) {
  const found = []
  const say = (text) => found.push(text)
  if (expected.status !== undefined && !fits(expected.status, answer.status)) {
    say(`status ${answer.status}, expected ${[expected.status].flat().join(' or ')}`)
  }
  for (const [name, rule] of Object.entries(expected.headers ?? {})) checkHeader(name, rule, answer, say)
  if (expected.json !== undefined) checkJson(expected.json, answer, say)
  if (expected.problem) checkProblem(answer, say)
  if (expected.documented) checkDocumented(answer, say)
  for (const word of expected.hides ?? []) {
    if (answer.body.toString('latin1').toLowerCase().includes(word.toLowerCase())) say(`the body shows "${word}"`)
  }
  if (expected.sameAs !== undefined) checkSame(expected, answer, saved[expected.sameAs], say)
  if (expected.differsFrom !== undefined && answer.body.equals(saved[expected.differsFrom].body)) {
    say(`the body is that of the answer "${expected.differsFrom}"`)
  }
  if (expected.takes !== undefined && answer.seconds < expected.takes) {
    say(`answered after ${answer.seconds.toFixed(2)} s, expected ${expected.takes} s at least`)
  }
  if (found.length > 0) say(`the answer: ${describe(answer)}`)
  return found
}

export function describe({ status, headers, body }) {
  const fields = headers.map(([name, value]) => `${name}: ${value}`).join('; ')
  return `${status} [${fields}] ${body.toString('utf8').slice(0, SHOWN)}`
}

export function header(answer, name) {
  return answer.headers.find(([found]) => found === name.toLowerCase())?.[1]
}

// A status is named by its number or by its class, as in "4xx".
function fits(expected, status) {
  return [expected].flat().some((one) =>
    typeof one === 'string' ? Number(one[0]) === Math.floor(status / 100) : one === status)
}

// A rule is the value, null for "absent", or an object with one of the names below.
function checkHeader(name, rule, answer, say) {
  const value = header(answer, name)
  const shown = value === undefined ? 'no header' : 'header'
  const complain = (what) => say(`${shown} ${name}${value === undefined ? '' : `: ${value}`}, expected ${what}`)
  if (rule === null) {
    if (value !== undefined) complain('none')
  } else if (value === undefined) {
    complain('one')
  } else if (typeof rule === 'string') {
    if (value !== rule) complain(rule)
  } else if (rule.integer !== undefined) {
    if (!/^\d+$/.test(value) || Number(value) < rule.integer) complain(`an integer of ${rule.integer} at least`)
  } else if (rule.mediaType !== undefined) {
    if (value.split(';')[0].trim().toLowerCase() !== rule.mediaType) complain(rule.mediaType)
  } else if (value !== String(parsed(answer)?.[rule.member])) {
    complain(`the member "${rule.member}" of the body`)
  }
}

// Every member that is named has this value; there may be others.
function checkJson(expected, answer, say) {
  const value = parsed(answer)
  if (value === undefined || value === null) {
    say('the body is no JSON object')
    return
  }
  for (const [name, wanted] of Object.entries(expected)) {
    if (JSON.stringify(value[name]) !== JSON.stringify(wanted)) {
      say(`member "${name}" is ${JSON.stringify(value[name])}, expected ${JSON.stringify(wanted)}`)
    }
  }
}

// RFC 9457.  Of an error of the server itself there may be nothing to tell.
function checkProblem(answer, say) {
  checkHeader('Content-Type', { mediaType: 'application/problem+json' }, answer, say)
  const value = parsed(answer)
  if (typeof value !== 'object' || value === null) {
    say('the body is no JSON object')
    return
  }
  for (const name of answer.status < 500 ? ['type', 'title', 'detail'] : ['type', 'title']) {
    if (typeof value[name] !== 'string' || value[name] === '') say(`member "${name}" is no text`)
  }
  if (value.status !== answer.status) say(`member "status" is ${JSON.stringify(value.status)}, the status is ${answer.status}`)
}

function checkDocumented(answer, say) {
  const type = parsed(answer)?.type
  const linked = /rel="?describedby"?/i.test(header(answer, 'Link') ?? '')
  if (!linked && (typeof type !== 'string' || !/^\w[\w+.-]*:/.test(type) || type === 'about:blank')) {
    say('neither "type" nor a header Link points to documentation')
  }
}

function checkSame({ sameAs, sameHeaders = [] }, answer, first, say) {
  if (answer.status !== first.status) say(`status ${answer.status}, the answer "${sameAs}" had ${first.status}`)
  if (!answer.body.equals(first.body)) {
    say(`the body is not byte for byte that of "${sameAs}": ${first.body.toString('utf8').slice(0, SHOWN)}`)
  }
  for (const name of sameHeaders) {
    if (header(answer, name) !== header(first, name)) say(`header ${name} differs from that of "${sameAs}": ${header(first, name)}`)
  }
}

function parsed(answer) {
  try {
    return JSON.parse(answer.body.toString('utf8'))
  } catch {
    return undefined
  }
}
