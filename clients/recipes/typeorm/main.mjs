import { DataSource } from 'typeorm'
import { serve } from '../serve.mjs'
import { pay } from './pay.mjs'
import { sqlstate } from './once.mjs'

const { PGHOST: host, PGPORT: port, PGUSER: username, PGDATABASE: database } = process.env
const dataSource = await new DataSource({
  type: 'postgres', host, port: Number(port), username, database, poolErrorHandler: () => {},
}).initialize()
await serve((key, request) => pay(dataSource, key, request), sqlstate)
await dataSource.destroy()
