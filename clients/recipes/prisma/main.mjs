import { PrismaPg } from '@prisma/adapter-pg'
import { PrismaClient } from './generated/index.js'
import { serve } from '../serve.mjs'
import { pay } from './pay.mjs'
import { sqlstate } from './once.mjs'

const { PGHOST: host, PGPORT: port, PGUSER: user, PGDATABASE: database } = process.env
const prisma = new PrismaClient({ adapter: new PrismaPg({ host, port: Number(port), user, database }) })
await serve((key, request) => pay(prisma, key, request), sqlstate)
await prisma.$disconnect()
