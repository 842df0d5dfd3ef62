// The list of cases: reads it, chooses from it, and says what a case needs.
import { readFileSync } from 'node:fs'

export function readCases(file) {
  return JSON.parse(readFileSync(file, 'utf8'))
}

// One entry for each route that a case is played on.
export function choose({ routes, cases }, { core, only, route }) {
  const chosen = cases
    .filter(({ level }) => !core || level === 'core')
    .filter(({ name }) => !only || only.some((pattern) => fits(pattern, name)))
  return chosen.flatMap((theCase) => (theCase.routes ?? routes)
    .filter((one) => !route || one === route)
    .map((one) => ({ theCase, route: one, needs: needsOf(theCase) })))
}

function fits(pattern, name) {
  const expression = pattern.split('*').map((part) => part.replace(/[^\w-]/g, '\\$&')).join('.*')
  return new RegExp(`^${expression}$`).test(name)
}

// gate: the database, to hold a handler.  own: a server of its own, to kill it or
// to start two.  proxy: a proxy in front of PostgreSQL.  restart: a PostgreSQL
// that nobody else uses meanwhile.
function needsOf({ steps }) {
  const second = steps.some((step) => (step.send ?? step.start)?.to === 'second')
  const has = (verb) => steps.some((step) => verb in step)
  return {
    gate: has('gate'),
    own: has('server') || has('proxy') || has('postgres') || second,
    proxy: has('proxy'),
    restart: has('postgres'),
    second,
  }
}

// Why a case cannot be played here; undefined when it can.
export function hindrance({ needs }, { command, database, restart }) {
  if (needs.own && command.length === 0) return 'a command that starts the server'
  if (needs.gate && !database) return 'the server\'s database (--database)'
  if (needs.proxy && !database) return 'the server\'s database (--database)'
  if (needs.restart && !restart) return 'a command that restarts PostgreSQL (--restart)'
  return undefined
}
