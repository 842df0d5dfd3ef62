// Runs Prisma's engine for migrations as WebAssembly, as its binary comes from a host of its own.
import { PrismaPg } from '@prisma/adapter-pg'

const CHAR = 18
const TEXT = 25

/**
 * The adapter is made for queries: it splits scripts at each semicolon, does not know the
 * type "char", and drops a shadow database while it is connected to it.
 */
class Adapter extends PrismaPg {
  async connect() {
    const adapter = await super.connect()
    const pool = adapter.underlyingDriver()
    const query = pool.query.bind(pool)
    adapter.executeScript = (script) => query(script).then(() => {}, (error) => adapter.onError(error))
    pool.query = async (...parameters) => {
      const result = await query(...parameters)
      for (const field of result.fields) {
        if (field.dataTypeID === CHAR) field.dataTypeID = TEXT
      }
      return result
    }
    return adapter
  }

  async connectToShadowDb() {
    const database = 'prisma_migrate_shadow'
    const admin = await this.connect()
    await admin.executeScript(`CREATE DATABASE ${database}`)
    const shadow = await new Adapter({ ...this.config, database }).connect()
    const dispose = shadow.dispose.bind(shadow)
    shadow.dispose = async () => {
      await dispose()
      await admin.executeScript(`DROP DATABASE ${database}`)
      await admin.dispose()
    }
    return shadow
  }
}

// The engine limits the time for its lock, and the program would wait for that timer.
const { setTimeout } = globalThis
globalThis.setTimeout = (...parameters) => {
  const timer = setTimeout(...parameters)
  return parameters[1] === 10_000 ? timer.unref() : timer
}

const { PGHOST: host, PGPORT: port, PGUSER: user, PGDATABASE: database } = process.env

export default {
  engine: 'js',
  experimental: { adapter: true },
  schema: 'schema.prisma',
  migrations: { path: 'migrations' },
  adapter: async () => new Adapter({ host, port: Number(port), user, database, idleTimeoutMillis: 100 })
}
