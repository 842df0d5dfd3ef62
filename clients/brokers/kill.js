// Kills consumers, and counts what they have done. For each broker and each language a program consumes a queue and
// kills itself (kill -9) at a point: inside of the work, after COMMIT, before the acknowledgement, before or after the
// dead letter. It is started again and again, each time with new messages, some of them twice. In the end each good
// message has one effect, and each bad one has one dead letter. Kafka counts no deliveries: there a poison message kills
// each consumer in its work, until max_lost_attempts makes it a dead letter, too. And there messages are sent while a second
// consumer joins the group and the first one leaves it.
//
//   node clients/brokers/kill.js KILLS LANGUAGE/BROKER[/POINT+POINT...]=COMMAND...
//
// A round kills at each point once, or at each of those that are named. The lanes of a broker do as many rounds as together
// have KILLS. Prints "ok" or "not ok" for each lane, and exits with 1 if one is not.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { createRequire } from 'node:module'
import { openStage, stages } from '../node/tests/stages.js'

const pg = createRequire(new URL('../node/package.json', import.meta.url))('pg')
const PATIENCE = 120_000
const POISON = 3    // the limit of lost attempts in each language's program

const pool = new pg.Pool({ max: 10 })
const [kills, ...lanes] = process.argv.slice(2)

let lanesSoFar = 0

class Lane {
  constructor(name, command) {
    const [language, broker, points] = name.split('/')
    this.name = name
    this.broker = broker
    this.command = command
    this.queue = `${language}-${broker}-${Date.now()}-${++lanesSoFar}`
    this.keys = []
    this.kills = 0
    this.children = []
    this.points = points?.split('+') ?? stages[broker].points
  }

  async run(rounds) {
    const stage = await openStage(this.broker, this.queue)
    try {
      await this.prepare(stage)
      for (let round = 0; round < rounds; round++) {
        for (const point of this.points) await this.kill(stage, round, point)
      }
      if (this.broker === 'kafka') await this.poison(stage)
      await this.finish(stage)
      return await this.judge(stage)
    } finally {
      await stage.close()
    }
  }

  // The program makes what it consumes; Kafka makes topics when somebody asks.
  async prepare(stage) {
    const { Idempotency } = await import('../node/src/index.js')
    await stage.prepare({ idempotency: new Idempotency(pool, { scope: this.queue }), onError: () => {} })
  }

  async kill(stage, round, point) {
    const keys = ['good', 'bad', 'late'].map((kind) => `${this.queue} ${round} ${point} ${kind}`)
    this.keys.push(...keys)
    await stage.send([...keys, ...keys.slice(0, 2), keys[1]])
    await this.die(point)
  }

  // Bad, and worse: nobody lives to say so.
  async poison(stage) {
    const key = `${this.queue} bad poison`
    this.keys.push(key)
    await stage.send([key])
    for (let delivery = 0; delivery < POISON; delivery++) await this.die('poison')
  }

  async die(point) {
    const [status, signal] = await this.within(once(this.start(point), 'exit'), `a kill at ${point}`)
    if (signal !== 'SIGKILL') throw new Error(`the consumer ended with ${status ?? signal} before ${point}\n${this.said}`)
    this.kills++
  }

  async finish(stage) {
    const consumers = [this.start('')]
    const ended = [once(consumers[0], 'exit')]
    await this.settle(stage)
    if (this.broker === 'kafka') {
      consumers.push(this.start(''))
      ended.push(once(consumers[1], 'exit'))
      await this.within(this.flow(stage, 2), 'a second consumer joins')
      consumers[0].kill('SIGTERM')
      await this.within(this.flow(stage, 1), 'the first one leaves')
      await this.settle(stage)
    }
    consumers.at(-1).kill('SIGTERM')
    for (const [status, signal] of await this.within(Promise.all(ended), 'the last consumers stop')) {
      if (status !== 0) throw new Error(`a last consumer ended with ${status ?? signal}\n${this.said}`)
    }
  }

  // RabbitMQ moves a dead letter when it has the time.
  async settle(stage) {
    const good = this.keys.filter((key) => !key.includes('bad'))
    await this.within((async () => {
      while (await this.effects() < good.length || !(await stage.settled()) ||
        (await stage.deadLetters()).length < this.keys.length - good.length) await sleep(50)
    })(), 'all is settled')
  }

  // Sends messages until the group has so many members.
  async flow(stage, members) {
    do {
      const key = `${this.queue} ${this.keys.length} good`
      this.keys.push(key)
      await stage.send([key])
      await sleep(20)
    } while (await stage.members() !== members)
  }

  async judge(stage) {
    const { rows } = await pool.query('SELECT name, count(*)::int AS count FROM effect WHERE starts_with(name, $1) GROUP BY name', [this.queue])
    const wrong = []
    const good = this.keys.filter((key) => !key.includes('bad'))
    compare(wrong, 'effects', good, rows.flatMap(({ name, count }) => Array(count).fill(name)))
    compare(wrong, 'dead letters', this.keys.filter((key) => key.includes('bad')), await stage.deadLetters())
    return wrong
  }

  async effects() {
    const { rows: [{ count }] } = await pool.query('SELECT count(*)::int AS count FROM effect WHERE starts_with(name, $1)', [this.queue])
    return count
  }

  start(point) {
    const child = spawn(this.command, [], {
      env: { ...process.env, BROKER: this.broker, QUEUE: this.queue, DIE: point }, stdio: ['ignore', 'ignore', 'pipe'],
    })
    this.said = ''
    child.stderr.on('data', (chunk) => { this.said = (this.said + chunk).slice(-4000) })
    this.children.push(child)
    return child
  }

  async within(promise, what) {
    const late = new AbortController()
    const timer = sleep(PATIENCE, undefined, { signal: late.signal }).then(() => {
      for (const child of this.children) child.kill('SIGKILL')
      throw new Error(`not in time: ${what}\n${this.said}`)
    })
    try {
      return await Promise.race([promise, timer])
    } finally {
      late.abort()
      timer.catch(() => {})
    }
  }
}

function compare(wrong, what, expected, found) {
  const counts = new Map()
  for (const key of found) counts.set(key, (counts.get(key) ?? 0) + 1)
  for (const key of expected) {
    if (counts.get(key) !== 1) wrong.push(`${counts.get(key) ?? 0} ${what} of ${key}`)
    counts.delete(key)
  }
  for (const key of counts.keys()) wrong.push(`${what} of ${key}`)
}

// How often each lane of a broker kills at each of its points.
function roundsOf(broker, all) {
  const own = all.filter((lane) => lane.broker === broker)
  const points = own.reduce((sum, lane) => sum + lane.points.length, 0)
  const poisoned = broker === 'kafka' ? POISON * own.length : 0
  return Math.ceil(Math.max(Number(kills) - poisoned, 1) / points)
}

let failed = false
const started = lanes.map((text) => new Lane(...text.split('=')))
await Promise.all(started.map(async (lane) => {
  const began = performance.now()
  const wrong = await lane.run(roundsOf(lane.broker, started)).catch((error) => [String(error.stack)])
  failed ||= wrong.length > 0
  console.log(`${wrong.length > 0 ? 'not ok' : 'ok'}: ${lane.name}, ${lane.kills} kills, ${Math.round((performance.now() - began) / 1000)} s`)
  for (const line of wrong.slice(0, 20)) console.log(`  ${line}`)
}))
await pool.end()
process.exitCode = failed ? 1 : 0
