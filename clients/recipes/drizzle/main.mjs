import { drizzle } from 'drizzle-orm/node-postgres'
import pg from 'pg'
import { serve } from '../serve.mjs'
import { pay } from './pay.mjs'
import { openPool } from './pool.mjs'
import { sqlstate } from './once.mjs'

const pool = openPool(pg.Pool)
const db = drizzle({ client: pool })
await serve((key, request) => pay(db, key, request), sqlstate)
await pool.end()
