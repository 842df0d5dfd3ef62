// The live state of orders, as server-sent events. PostgreSQL says which order has changed.
import { setTimeout as sleep } from 'node:timers/promises'
import { streamSSE } from 'hono/streaming'
import pg from 'pg'

/** `find(id)` gives what a page shows of an order. */
export function liveOrders(connectionString, find) {
  const followers = new Map()    // id => the pages that show it

  async function listen() {
    const client = new pg.Client({ connectionString })
    const ended = new Promise((resolve) => client.on('end', resolve).on('error', resolve))
    client.on('notification', ({ payload }) => tell(payload))
    await client.connect()
    await client.query('LISTEN order_changed')
    // what has changed while nobody listened
    for (const id of followers.keys()) await tell(id)
    await ended
  }

  async function tell(id) {
    if (!followers.has(id)) return
    try {
      const order = await find(id)
      for (const page of followers.get(id) ?? []) send(page, order)
    } catch (error) {
      console.error('live:', error.message)
    }
  }

  async function forever() {
    for (;;) {
      await listen().catch((error) => console.error('live:', error.message))
      await sleep(500)
    }
  }

  forever()
  return {
    follow(order, c) {
      return streamSSE(c, async (page) => {
        const closed = new Promise((resolve) => { page.onAbort(resolve) })
        const pages = followers.get(order.id) ?? followers.set(order.id, new Set()).get(order.id)
        pages.add(page)
        send(page, order)
        // what has changed since the order was read
        tell(order.id)
        await closed
        if (pages.delete(page) && pages.size === 0) followers.delete(order.id)
      })
    },
  }
}

function send(page, order) {
  page.writeSSE({ data: JSON.stringify(order), retry: 500 })
}
