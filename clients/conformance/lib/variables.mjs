// The variables of a case: ${key}, ${account}, ${tenant} and the others, new for each time
// that a case is played, so that cases never meet in the store of a server.
import { randomUUID } from 'node:crypto'

export function variablesFor(name, route) {
  return {
    route,
    other: route === '/payments' ? '/charges' : '/payments',
    kind: route === '/payments' ? 'payment' : 'charge',
    key: randomUUID(),
    tenant: `t-${randomUUID().slice(0, 8)}`,
    account: `${name}-${randomUUID().slice(0, 8)}`,
  }
}

// Replaces the variables in every text inside `value`.  ${repeat:k:255} is 255
// times the character k.
export function expand(value, variables) {
  if (typeof value === 'string') return expandText(value, variables)
  if (Array.isArray(value)) return value.map((one) => expand(one, variables))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, expand(one, variables)]))
}

function expandText(text, variables) {
  return text.replace(/\$\{([^}]*)\}/g, (_, name) => {
    const repeat = /^repeat:(.):(\d+)$/.exec(name)
    if (repeat) return repeat[1].repeat(Number(repeat[2]))
    if (!(name in variables)) throw new Error(`no such variable: ${name}`)
    return variables[name]
  })
}
