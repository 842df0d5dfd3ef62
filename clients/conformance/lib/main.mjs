// The runner: plays the cases and prints a line for each, and the sums.
//
// Cases never meet, as each has keys and accounts of its own.  So those on the
// shared server run side by side, then those with servers of their own, and those
// that restart PostgreSQL come last, alone.
import { collect, Database, effectsByCommand } from './database.mjs'
import { choose, hindrance, readCases } from './cases.mjs'
import { openShared, ownStage, sharedStage } from './stage.mjs'
import { play } from './player.mjs'
import { readOptions, USAGE } from './options.mjs'

const CASES = new URL('../cases.json', import.meta.url)

class Run {
  constructor(options) {
    const database = options.database ? new Database(options.database) : undefined
    this.options = options
    this.database = database
    this.count = { passed: 0, failed: 0, hindered: 0 }
    this.tools = {
      database,
      effects: (account) => options.effects ? effectsByCommand(options.effects, account) : database.effects(account),
      restart: () => restart(options.restart),
      timeout: options.timeout,
      retryFor: options.retryFor,
    }
  }

  async all(list) {
    this.tools.defaults = list.request
    const chosen = choose(list, this.options)
    const playable = chosen.filter((one) => !this.hinders(one))
    const shared = playable.filter(({ needs }) => !needs.own)
    const own = playable.filter(({ needs }) => needs.own && !needs.restart)
    const alone = playable.filter(({ needs }) => needs.restart)
    if (playable.some(({ needs }) => needs.gate)) await this.database.installGate()
    try {
      if (shared.length > 0) await this.onShared(shared)
      await this.side(own, this.options.jobs, ({ needs }) => ownStage(this.options, needs))
      await this.side(alone, 1, ({ needs }) => ownStage(this.options, needs))
    } finally {
      if (playable.some(({ needs }) => needs.gate)) await this.database.removeGate()
    }
  }

  hinders(one) {
    const reason = hindrance(one, this.options)
    if (reason === undefined) return false
    this.count.hindered++
    if (this.options.all) this.count.failed++
    console.log(`${this.options.all ? 'not ok' : 'not played'} ${one.theCase.name} ${one.route}: it needs ${reason}`)
    return true
  }

  async onShared(entries) {
    const program = await openShared(this.options)
    try {
      await this.side(entries, this.options.jobs, () => sharedStage(program))
    } finally {
      await program.kill()
    }
  }

  // Plays the entries, `width` of them at a time.
  async side(entries, width, stageOf) {
    const waiting = [...entries]
    const worker = async () => {
      for (let entry; (entry = waiting.shift());) await this.one(entry, () => stageOf(entry))
    }
    await Promise.all(Array.from({ length: width }, worker))
  }

  async one({ theCase, route }, makeStage) {
    const name = `${theCase.name} ${route}`
    try {
      await play(theCase, route, makeStage, this.tools)
      this.count.passed++
      console.log(`ok ${name}`)
    } catch (error) {
      this.count.failed++
      console.log(`not ok ${name}: ${theCase.title}\n    ${error.message}`)
    }
  }

  verdict() {
    const { passed, failed, hindered } = this.count
    if (hindered > 0 && !this.options.all) console.log(`${hindered} not played`)
    console.log(`${passed} passed, ${failed} failed`)
    return failed === 0 && passed > 0 ? 0 : 1
  }
}

async function restart(command) {
  const { status, errors } = await collect('sh', ['-c', command])
  if (status !== 0) throw new Error(`${command}: ${errors.trim()}`)
}

function print({ cases, routes }) {
  for (const { name, level, title, routes: own } of cases) console.log(`${name} (${level}; ${(own ?? routes).join(', ')}): ${title}`)
}

async function main() {
  const options = readOptions(process.argv.slice(2))
  const list = readCases(CASES)
  if (options.help) return console.log(USAGE)
  if (options.list) return print(list)
  const run = new Run(options)
  try {
    await run.all(list)
  } catch (error) {
    run.count.failed++
    console.log(`not ok: ${error.message}`)
  }
  process.exitCode = run.verdict()
}

main().catch((error) => {
  console.error(`run: ${error.message}\n${USAGE}`)
  process.exitCode = 2
})
