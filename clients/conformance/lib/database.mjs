// What the runner does in the database, by psql, so that no driver is needed:
// reads the effects, and holds a handler at its INSERT (the gate).
//
// The gate is a trigger on the table payment that takes a shared advisory lock
// named by the account.  Whoever holds that lock exclusively holds the handlers
// of this account, and pg_locks shows when one has come.  So a case can say "while
// the first request is in its handler" without guessing a time.
import { spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'

const SPACE = 17851     // the class of the gate's advisory locks
const OPTIONS = ['-XAtq', '-F', ' ', '-v', 'ON_ERROR_STOP=1']

const INSTALL = `
CREATE OR REPLACE FUNCTION conformance_gate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $gate$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(${SPACE}, hashtext(NEW.account));
  RETURN NEW;
END $gate$;
CREATE OR REPLACE TRIGGER conformance_gate BEFORE INSERT ON payment FOR EACH ROW EXECUTE FUNCTION conformance_gate();`

const REMOVE = `
DROP TRIGGER IF EXISTS conformance_gate ON payment;
DROP FUNCTION IF EXISTS conformance_gate();`

export class Database {
  constructor(url) {
    this.url = url
  }

  async installGate() {
    await this.run(INSTALL)
  }

  async removeGate() {
    await this.run(REMOVE)
  }

  // The rows of an account, each as "amount kind", in order.
  async effects(account) {
    return (await this.run(`SELECT amount, kind FROM payment WHERE account = ${quote(account)}`)).sort()
  }

  async closeGate(account) {
    const gate = new Gate(this, account)
    await gate.close()
    return gate
  }

  // Runs SQL and gives the lines that psql prints.
  async run(sql) {
    const { status, output, errors } = await collect('psql', [...OPTIONS, '-c', sql, this.url])
    if (status !== 0) throw new Error(`psql: ${errors.trim()}`)
    return output.split('\n').filter((line) => line !== '')
  }
}

// Effects by a command of the caller's, for a server with another store: it is
// given the account and prints a line "amount kind" for each row.
export async function effectsByCommand(command, account) {
  const { status, output, errors } = await collect('sh', ['-c', `${command} "$1"`, 'effects', account])
  if (status !== 0) throw new Error(`${command}: ${errors.trim()}`)
  return output.split('\n').filter((line) => line !== '').sort()
}

// A lock that holds the handlers of one account at their INSERT.
class Gate {
  constructor(database, account) {
    Object.assign(this, { database, account })
  }

  async close() {
    this.holder = spawn('psql', [...OPTIONS, this.database.url], { stdio: ['pipe', 'pipe', 'ignore'] })
    this.exited = new Promise((resolve) => this.holder.once('exit', resolve))
    this.holder.stdin.on('error', () => {})
    const closed = new Promise((resolve, reject) => {
      this.holder.stdout.once('data', resolve)
      this.exited.then(() => reject(new Error('psql ended before the gate was closed')))
    })
    this.holder.stdin.write(`SELECT pg_advisory_lock(${SPACE}, hashtext(${quote(this.account)})) IS NOT NULL;\n`)
    await closed
  }

  // Returns when so many handlers wait at the gate.
  async reached(waiting, seconds) {
    const sql = `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = ${SPACE}
      AND objid::bigint = (hashtext(${quote(this.account)})::bigint & 4294967295)
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
    await until(seconds, `no ${waiting} handlers came to their INSERT`,
      async () => (await this.database.run(sql)).length >= waiting)
  }

  async open() {
    this.holder.kill('SIGTERM')
    await this.exited
  }
}

// Asks again and again until `condition` holds.
async function until(seconds, complaint, condition) {
  const deadline = Date.now() + seconds * 1000
  while (!await condition()) {
    if (Date.now() > deadline) throw new Error(`${complaint} within ${seconds} s`)
    await sleep(30)
  }
}

export function collect(command, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    let errors = ''
    child.stdout.on('data', (text) => { output += text })
    child.stderr.on('data', (text) => { errors += text })
    child.once('error', reject)
    child.once('close', (status) => resolve({ status, output, errors }))
  })
}

function quote(text) {
  return `'${text.replaceAll('\'', '\'\'')}'`
}
