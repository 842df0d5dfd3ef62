// The shop over HTTP. Whatever changes something needs an Idempotency-Key; the tenant is part of its scope.
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import express from 'express'
import { expressIdempotency } from 'pg-idempotency/express'
import { liveOrders } from './live.js'

export function shop({ pool, idempotency, saga, catalog, connectionString }) {
  const app = express()
  const once = expressIdempotency(idempotency, { principal: tenantOf })
  const live = liveOrders(connectionString, (id) => find(pool, id))

  app.use(express.json())
  app.use(express.static(fileURLToPath(new URL('page', import.meta.url))))
  app.get('/catalog', (req, res) => res.json(catalog))

  app.post('/orders', once.transaction(async (req, res, { tx }) => {
    const asked = read(req.body, catalog)
    if (!asked) return res.status(400).json({ reason: 'items, card and city are needed' })
    const document = { order: randomUUID(), ...asked }
    await tx.query("INSERT INTO orders (id, tenant, document, amount, state) VALUES ($1, $2, $3, $4, 'PLACED')",
      [document.order, tenantOf(req), document, document.amount])
    await saga.place(tx, document)
    res.status(201).location(`/orders/${document.order}`).json({ id: document.order, amount: document.amount })
  }))

  app.post('/orders/:id/cancel', once.transaction(async (req, res, { tx }) => {
    const order = await find(tx, req.params.id, tenantOf(req))
    if (!order) return res.status(404).json({ reason: 'no such order' })
    res.json({ id: order.id, cancelling: await saga.cancel(tx, order.document) })
  }))

  app.get('/orders/:id', async (req, res) => {
    const order = await find(pool, req.params.id, tenantOf(req))
    return order ? res.json(order) : res.status(404).json({ reason: 'no such order' })
  })
  app.get('/orders/:id/live', async (req, res) => {
    const order = await find(pool, req.params.id, tenantOf(req))
    return order ? live.follow(order, res) : res.status(404).json({ reason: 'no such order' })
  })

  app.use(once.problemErrors())
  return app
}

// An EventSource sends no headers. In a real shop this is the session of who is logged in.
function tenantOf(req) {
  return req.get?.('X-Tenant') ?? String(req.query?.tenant ?? '')
}

// The price is the shop's, whatever the page says.
function read({ items, card, city } = {}, catalog) {
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
