// The shop over HTTP. Whatever changes something needs an Idempotency-Key; the tenant is part of its scope.
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { serveStatic } from '@hono/node-server/serve-static'
import { Hono } from 'hono'
import { honoIdempotency } from 'pg-idempotency/hono'
import { liveOrders } from './live.js'

export function shop({ pool, idempotency, saga, catalog, connectionString }) {
  const app = new Hono()
  const once = honoIdempotency(idempotency, { principal: tenantOf })
  const live = liveOrders(connectionString, (id) => find(pool, id))

  app.get('/catalog', (c) => c.json(catalog))

  app.post('/orders', once.transaction(async (c, { tx }) => {
    const asked = read(await c.req.json(), catalog)
    if (!asked) return c.json({ reason: 'items, card and city are needed' }, 400)
    const document = { order: randomUUID(), ...asked }
    await tx.query("INSERT INTO orders (id, tenant, document, amount, state) VALUES ($1, $2, $3, $4, 'PLACED')",
      [document.order, tenantOf(c.req), document, document.amount])
    await saga.place(tx, document)
    return c.json({ id: document.order, amount: document.amount }, 201, { Location: `/orders/${document.order}` })
  }))

  app.post('/orders/:id/cancel', once.transaction(async (c, { tx }) => {
    const order = await find(tx, c.req.param('id'), tenantOf(c.req))
    return order ? c.json({ id: order.id, cancelling: await saga.cancel(tx, order.document) }) : unknown(c)
  }))

  app.get('/orders/:id', async (c) => {
    const order = await find(pool, c.req.param('id'), tenantOf(c.req))
    return order ? c.json(order) : unknown(c)
  })
  app.get('/orders/:id/live', async (c) => {
    const order = await find(pool, c.req.param('id'), tenantOf(c.req))
    return order ? live.follow(order, c) : unknown(c)
  })

  app.use(serveStatic({ root: fileURLToPath(new URL('page', import.meta.url)) }))
  app.onError((error, c) => {
    console.error(error.message)
    return c.json({ reason: 'try again' }, 503)
  })
  return app
}

function unknown(c) {
  return c.json({ reason: 'no such order' }, 404)
}

// An EventSource sends no headers. In a real shop this is the session of who is logged in.
function tenantOf(req) {
  return req.header('X-Tenant') ?? req.query('tenant') ?? ''
}

// The price is the shop's, whatever the page says.
function read(asked, catalog) {
  const { items, card, city } = asked ?? {}
  if (!Array.isArray(items) || items.length === 0 || typeof card !== 'string' || typeof city !== 'string') return undefined
  const prices = new Map(catalog.map(({ sku, price }) => [sku, price]))
  const good = ({ sku, quantity } = {}) => prices.has(sku) && Number.isInteger(quantity) && quantity > 0 && quantity < 100
  if (!items.every(good) || new Set(items.map(({ sku }) => sku)).size < items.length) return undefined
  const amount = items.reduce((sum, { sku, quantity }) => sum + prices.get(sku) * quantity, 0)
  return { items: items.map(({ sku, quantity }) => ({ sku, quantity })), card, city, amount }
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

async function find(db, id, tenant) {
  if (!UUID.test(id)) return undefined
  const { rows: [order] } = await db.query(`
    SELECT id, document, amount, state,
      (SELECT json_agg(json_build_object('at', at, 'state', state, 'cause', cause) ORDER BY at)
       FROM history WHERE order_id = id) AS history
    FROM orders WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)`, [id, tenant ?? null])
  return order
}
