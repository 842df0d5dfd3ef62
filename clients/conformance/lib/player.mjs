// Plays one case against one server.  Each verb of a step is a method of Player;
// the first step that goes wrong ends the case with an Error that says what.
import { setTimeout as sleep } from 'node:timers/promises'
import * as http from './http.mjs'
import { complaints, describe, header } from './expect.mjs'
import { expand, variablesFor } from './variables.mjs'

const VERBS = ['send', 'start', 'answer', 'abandon', 'gate', 'server', 'postgres', 'proxy', 'effects', 'pause']
const RETRIED = [409, 429, 500, 502, 503, 504]
// The orders for what a case says of the proxy. A COMMIT is that of a transaction that inserted a row.
const COMMIT = '(^|;)\\s*(commit|end(\\s+(work|transaction))?\\s*(;|$))'
const ORDERS = {
  'lose COMMIT': () => ['arm', 'before', COMMIT, true],
  'lose the answer to COMMIT': () => ['arm', 'lose', COMMIT, true],
  'hold the answer to COMMIT': () => ['arm', 'hold', COMMIT, true],
  'cut at the round trip': (trip) => ['arm_trip', 'cut', trip],
  'hold at the round trip': (trip) => ['arm_trip', 'hold', trip],
  down: () => ['refuse'],
  up: () => ['admit'],
  cut: () => ['cut'],
  off: () => ['disarm'],
}
const MOST_TRIPS = 60        // a sweep that goes on longer never ends

// Plays a case.  `makeServers` gives {servers, proxy, close} for the case.
export async function play(theCase, route, makeServers, tools) {
  const stage = await makeServers()
  try {
    if (theCase.sweep) await sweep(theCase, route, stage, tools)
    else await new Player(theCase, route, stage, tools).playAll()
  } finally {
    await stage.close()
  }
}

// The same steps with the fault at the first round trip, then at the second,
// until a run is over before the fault could hit.
async function sweep(theCase, route, stage, tools) {
  for (let trip = 1; ; trip++) {
    const player = new Player(theCase, route, stage, tools)
    player.trip = trip
    try {
      await player.playAll()
    } catch (error) {
      throw new Error(`fault at round trip ${trip}: ${error.message}`)
    }
    if (!await isHit(stage.proxy)) {
      if (trip === 1) throw new Error('the fault never hit: does the server use DATABASE_URL?')
      return
    }
    if (trip === MOST_TRIPS) throw new Error(`the fault still hits at round trip ${trip}`)
  }
}

const isHit = async (proxy) => (await proxy.order('state')).hits > 0

class Player {
  constructor(theCase, route, stage, tools) {
    Object.assign(this, { theCase, stage, tools, timeout: tools.timeout })
    this.variables = variablesFor(theCase.name, route)
    this.saved = {}
    this.open = {}
    this.gates = []
  }

  async playAll() {
    try {
      for (const [index, step] of this.theCase.steps.entries()) {
        try {
          await this.playStep(step)
        } catch (error) {
          throw new Error(`step ${index + 1}: ${error.message}`)
        }
      }
    } finally {
      for (const gate of this.gates) await gate.open()
    }
  }

  // Expanded for each request, as ${n} numbers the requests of a group.
  async playStep(step) {
    const verb = VERBS.find((name) => name in step)
    await this[verb](verb === 'send' || verb === 'start' ? step : expand(step, this.variables))
  }

  // ---- requests ----

  async send(step) {
    if (step.times) return this.sendTogether(step)
    const { send, expect, save } = expand(step, this.variables)
    const answer = step.patiently ? await this.persist(send) : await this.request(send).answer
    this.check(expect, answer, save)
  }

  async start(step) {
    const { start, save } = expand(step, this.variables)
    this.open[save] = this.request(start)
  }

  async answer({ answer, expect, optional }) {
    const found = await this.open[answer].answer.catch((error) => {
      if (optional && error instanceof http.Lost) return undefined
      throw error
    })
    if (found) this.check(expect, found, answer)
  }

  async abandon({ abandon }) {
    this.open[abandon].abandon()
  }

  // All at once.  Each answer must be one of the expected ones, in their number;
  // "alike" ones have the same body.
  async sendTogether({ send, times, expect, together }) {
    const started = Array.from({ length: times }, (_, n) =>
      this.request(expand(send, { ...this.variables, n: String(n + 1) })))
    const answers = await Promise.all(started.map(({ answer }) => answer))
    const groups = expect.map((one) => ({ one: expand(one, this.variables), answers: [] }))
    for (const answer of answers) {
      const group = groups.find(({ one }) => complaints(one, answer, this.saved).length === 0)
      if (!group) throw new Error(`${complaints(groups[0].one, answer, this.saved).join('; ')} (of ${times} at once)`)
      group.answers.push(answer)
    }
    for (const { one, answers: found } of groups) checkGroup(one, found, times)
    if (together) this.saved[together] = groups[0].answers[0]
  }

  check(expect, answer, save) {
    const found = expect ? complaints(expect, answer, this.saved) : []
    if (found.length > 0) throw new Error(found.join('\n    '))
    if (save) this.saved[save] = answer
  }

  // Repeats the request as a client does that obeys Retry-After, until there is
  // an answer that says how it ended.
  async persist(request) {
    const deadline = Date.now() + this.tools.retryFor * 1000
    for (;;) {
      const answer = await this.request(request).answer.catch((error) => {
        if (error instanceof http.Lost) return undefined
        throw error
      })
      if (answer && !RETRIED.includes(answer.status)) return answer
      const pause = Number(header(answer ?? { headers: [] }, 'Retry-After') ?? 0.2) || 1
      if (Date.now() + pause * 1000 > deadline) {
        throw new Error(`no end within ${this.tools.retryFor} s; the last answer: ${answer ? describe(answer) : 'none'}`)
      }
      await sleep(pause * 1000)
    }
  }

  request(asked) {
    const { method, path, headers, key, json, text, to } = { ...this.defaultRequest(), ...asked }
    const fields = Object.entries({ ...this.defaultRequest().headers, ...headers }).filter(([, value]) => value !== null)
    const name = asked.keyHeader ?? 'Idempotency-Key'
    for (const one of [key].flat()) if (one !== null) fields.push([name, one])
    const body = Buffer.from(method === 'GET' ? '' : text ?? JSON.stringify(json))
    const server = this.stage.servers[to ?? 'first']
    return http.start(server, { method, target: path, headers: fields, body }, this.timeout)
  }

  defaultRequest() {
    return expand(this.tools.defaults, this.variables)
  }

  // ---- faults ----

  async gate({ gate, account = this.variables.account, waiting = 1 }) {
    if (gate === 'close') this.gates.push(await this.tools.database.closeGate(account))
    else if (gate === 'open') await this.gates.shift().open()
    else await this.gates[0].reached(waiting, this.timeout)
  }

  async server({ server, name = 'first' }) {
    if (server === 'kill') await this.stage.servers[name].kill()
    else await this.stage.servers[name].start()
  }

  async postgres() {
    await this.tools.restart()
  }

  async proxy({ proxy, optional }) {
    if (proxy === 'hit') return this.untilHit(optional)
    const order = ORDERS[proxy](this.trip)
    if (order[0].startsWith('arm')) await this.stage.proxy.order('reset')
    await this.stage.proxy.order(...order)
  }

  // In a sweep the last run is over without a hit: then the request ends by itself.
  async untilHit(optional) {
    let ended = false
    if (optional) this.open[optional].answer.catch(() => {}).then(() => { ended = true })
    const deadline = Date.now() + this.timeout * 1000
    while (!ended && !await isHit(this.stage.proxy)) {
      if (Date.now() >= deadline) throw new Error('the fault did not hit')
      await sleep(10)
    }
  }

  async pause({ pause }) {
    await sleep(pause)
  }

  // ---- effects ----

  // A list of "amount kind" in order, or the number of the rows.
  async effects({ effects, account = this.variables.account, within = 0 }) {
    const wanted = JSON.stringify(effects)
    const deadline = Date.now() + within * 1000
    for (;;) {
      const rows = await this.tools.effects(account)
      const found = JSON.stringify(typeof effects === 'number' ? rows.length : rows)
      if (found === wanted) return
      if (Date.now() >= deadline) throw new Error(`effects ${found}, expected ${wanted}`)
      await sleep(30)
    }
  }
}

function checkGroup({ count, least, alike }, answers, times) {
  if (count !== undefined && answers.length !== count) {
    throw new Error(`${answers.length} of ${times} answers were as expected of ${count}`)
  }
  if (least !== undefined && answers.length < least) {
    throw new Error(`${answers.length} of ${times} answers were as expected of ${least} at least`)
  }
  if (alike && answers.some((answer) => !answer.body.equals(answers[0].body))) {
    throw new Error(`answers differ: ${answers.map(({ body }) => body.toString('utf8')).join(' ')}`)
  }
}
