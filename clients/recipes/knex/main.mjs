import Knex from 'knex'
import { serve } from '../serve.mjs'
import { pay } from './pay.mjs'
import { sqlstate } from './once.mjs'

// Its warnings go to the standard output by default.
const log = { warn: console.error, error: console.error, deprecate: console.error, debug: console.error }
const knex = Knex({ client: 'pg', connection: {}, pool: { min: 0, max: 2 }, log })
await serve((key, request) => pay(knex, key, request), sqlstate)
await knex.destroy()
