// The options of the runner.
import { parseArgs } from 'node:util'

export const USAGE = `usage: run [OPTION...] COMMAND [ARG...]       starts COMMAND with PORT and DATABASE_URL
       run [OPTION...] --url URL               takes a server that runs already

  --database URL      the server's PostgreSQL database; by default DATABASE_URL
  --effects COMMAND   prints the effects of the account that it is given, "amount kind" a line,
                      for a server that keeps them elsewhere
  --restart COMMAND   restarts PostgreSQL and returns when it answers again;
                      by default RESTART_POSTGRES
  --core              only what every server should do, not what this project promises beyond it
  --only PATTERN      only the cases whose name fits; * stands for anything; may be given again
  --route ROUTE       only this route, such as /payments
  --all               a case that cannot be played counts as failed
  --jobs N            so many cases at the same time (default 4)
  --timeout SECONDS   for one request (default 20)
  --retry-for SECONDS for a request that is repeated until it ends (default 90)
  --patience SECONDS  for the start of the program (default 60)
  --list              print the cases and end`

// Throws an Error with a message for the caller when the options make no sense.
export function readOptions(args) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      ...texts('url', 'database', 'effects', 'restart', 'route', 'jobs', 'timeout', 'retry-for', 'patience'),
      ...flags('core', 'all', 'list', 'help'),
      only: { type: 'string', multiple: true },
    },
  })
  const options = {
    ...values,
    command: positionals,
    database: values.database ?? (process.env.DATABASE_URL || undefined),
    restart: values.restart ?? (process.env.RESTART_POSTGRES || undefined),
    jobs: number(values.jobs, 4),
    timeout: number(values.timeout, 20),
    retryFor: number(values['retry-for'], 90),
    patience: number(values.patience, 60),
  }
  if (options.help || options.list) return options
  if ((options.url === undefined) === (positionals.length === 0)) throw new Error('give either a command or --url')
  if (!options.database && !options.effects) throw new Error('give DATABASE_URL, --database or --effects: without effects nothing can be judged')
  return options
}

function texts(...names) {
  return Object.fromEntries(names.map((name) => [name, { type: 'string' }]))
}

function flags(...names) {
  return Object.fromEntries(names.map((name) => [name, { type: 'boolean', default: false }]))
}

function number(text, otherwise) {
  const value = Number(text ?? otherwise)
  if (!(value > 0)) throw new Error(`${text} is no number above zero`)
  return value
}
