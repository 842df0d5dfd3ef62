// The self-test: a case that no wrong server fails asserts nothing.
//
// reference/wrong.json names the ways in which reference/server can be wrong, and
// for each the cases that must notice.  A case counts as shown on each of its
// routes on which it failed against some wrong server.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { choose, readCases } from './cases.mjs'
import { collect } from './database.mjs'

const here = (path) => fileURLToPath(new URL(path, import.meta.url))
const wrongs = JSON.parse(readFileSync(here('../reference/wrong.json'), 'utf8'))
const pairs = choose(readCases(here('../cases.json')), {}).map(({ theCase, route }) => `${theCase.name} ${route}`)
const shown = new Set()
let passed = 0
let failed = 0

function report(good, name, detail = '') {
  if (good) passed++
  else failed++
  console.log(`${good ? 'ok' : 'not ok'} ${name}${good ? '' : `\n${detail}`}`)
}

// What the runner says of the reference server: {ok: [...], failed: [...]}.
async function runAgainst(wrong, options) {
  const environment = ['env', ...(wrong ? [`WRONG=${wrong}`] : ['-u', 'WRONG'])]
  const { output } = await collect(environment[0], [...environment.slice(1), here('../run'), '--all', ...options, here('../reference/server')])
  const lines = (start) => output.split('\n').filter((line) => line.startsWith(`${start} `))
    .map((line) => line.slice(start.length + 1).split(':')[0])
  return { ok: lines('ok'), failed: lines('not ok'), output }
}

async function right() {
  const { ok, output } = await runAgainst(undefined, [])
  report(pairs.every((pair) => ok.includes(pair)) && ok.length === pairs.length, 'the right server passes every case', output)
}

// Each of its cases fails on one route at least.
async function wrong(name) {
  const cases = wrongs[name]
  const only = cases.flatMap((one) => ['--only', one])
  const { failed: found, output } = await runAgainst(name, ['--timeout', '6', '--retry-for', '8', ...only])
  for (const pair of found) shown.add(pair)
  const missed = cases.filter((one) => !found.some((pair) => pair.startsWith(`${one} `)))
  const started = !/the program (ended|did not answer)/.test(output)
  report(missed.length === 0 && started, `${name} is noticed by ${cases.length} cases`, `not by ${missed.join(', ')}\n${output}`)
}

// The page that explains the cases names each of them, and no others.
function page() {
  const text = readFileSync(here('../../../docs/guide/http-conformance.md'), 'utf8')
  const names = new Set(pairs.map((pair) => pair.split(' ')[0]))
  const named = new Set([...text.matchAll(/`([a-z0-9]+(?:-[a-z0-9]+)+)`/g)].map(([, name]) => name))
  const unnamed = [...names].filter((name) => !named.has(name))
  const unknown = [...named].filter((name) => !names.has(name))
  report(unnamed.length + unknown.length === 0, 'docs/guide/http-conformance.md names every case and no other',
    `missing: ${unnamed.join(', ')}; unknown: ${unknown.join(', ')}`)
}

const chosen = process.argv.slice(2)
if (chosen.length === 0) {
  page()
  await right()
}
for (const name of chosen.length > 0 ? chosen : Object.keys(wrongs)) await wrong(name)
if (chosen.length === 0) {
  for (const pair of pairs) report(shown.has(pair), `${pair} fails against a wrong server`)
}
console.log(`${passed} passed, ${failed} failed`)
process.exitCode = failed === 0 && passed > 0 ? 0 : 1
