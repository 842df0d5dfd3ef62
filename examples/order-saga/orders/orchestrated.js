// The saga, orchestrated: one table of states, which this service walks through. Each state sends one command, and
// says which answer leads where. What is not in the table is late, and changes nothing.
const STATES = {
  RESERVING: { send: 'stock.reserve', timeout: 'RELEASING',
    on: { 'stock.reserved': 'CHARGING', 'stock.refused': 'CANCELLED', cancel: 'RELEASING' } },
  CHARGING: { send: 'payment.charge', timeout: 'REFUNDING',
    on: { 'payment.charged': 'SHIPPING', 'payment.declined': 'RELEASING', cancel: 'REFUNDING' } },
  // A parcel that has left does not come back, so from here on only shipping can say that the order ends well or not.
  SHIPPING: { send: 'parcel.ship', on: { 'parcel.shipped': 'CONFIRMED', 'parcel.refused': 'REFUNDING', cancel: 'RECALLING' } },
  RECALLING: { send: 'parcel.recall', on: { 'parcel.shipped': 'CONFIRMED', 'parcel.refused': 'REFUNDING' } },
  // Compensations have no time-out: they are asked for until they have happened.
  REFUNDING: { send: 'payment.refund', on: { 'payment.refunded': 'RELEASING' } },
  RELEASING: { send: 'stock.release', on: { 'stock.released': 'CANCELLED' } },
  CONFIRMED: { on: {} },
  CANCELLED: { on: {} },
}
const GIVING_UP = Object.keys(STATES).filter((state) => STATES[state].timeout)

// A command without an answer is issued again after this time, twice as much each time; a state with a time-out is left after
// the other.
const AGAIN = process.env.AGAIN_AFTER ?? '10 s'
const GIVES_UP = process.env.GIVES_UP_AFTER ?? '2 min'

/** Begins the saga of a new order. */
export async function place(tx, { order }) {
  await tx.query("INSERT INTO saga (order_id, state, version, issued) VALUES ($1, 'PLACED', 0, 0)", [order])
  await enter(tx, order, { state: 'PLACED', version: 0 }, 'RESERVING', 'placed')
}

/** An answer to a command. */
export function hear(tx, { order }, type) {
  return advance(tx, order, type)
}

/** The customer changes their mind. Gives whether that came in time. */
export async function cancel(tx, { order }) {
  const state = await advance(tx, order, 'cancel')
  return state !== 'CONFIRMED'
}

// The lock puts the customer's cancellation and the answers of the services in a row: each sees what the one before has done.
async function advance(tx, order, event) {
  const { rows: [{ locked }] } = await tx.query('SELECT idem_lock(ARRAY[$1], $2) AS locked', [`order:${order}`, '5 s'])
  if (!locked) throw new Error(`order ${order} is busy`)
  const { rows: [saga] } = await tx.query('SELECT state, version FROM saga WHERE order_id = $1', [order])
  const next = event === 'timeout' ? STATES[saga.state].timeout : STATES[saga.state].on[event]
  if (next) await enter(tx, order, saga, next, event)
  return next ?? saga.state
}

// Guarded by state and version: even without the lock, only one can leave a state.
async function enter(tx, order, from, next, cause) {
  const { send, timeout } = STATES[next]
  const { rowCount } = await tx.query(`
    UPDATE saga SET state = $4, version = version + 1, issued = 1,
      step_key = CASE WHEN $5::text IS NOT NULL THEN idem_step_key($1::text, $5) END,
      again_at = CASE WHEN $5::text IS NOT NULL THEN clock_timestamp() + $6::interval END,
      gives_up_at = CASE WHEN $7 THEN clock_timestamp() + $8::interval END
    WHERE order_id = $1::uuid AND state = $2 AND version = $3`,
  [order, from.state, from.version, next, send ?? null, AGAIN, timeout !== undefined, GIVES_UP])
  if (rowCount !== 1) throw new Error(`order ${order} has left ${from.state}, version ${from.version}`)
  if (send) await tx.query('SELECT say(id::text, $2, document) FROM orders WHERE id = $1', [order, send])
  await tx.query('SELECT show($1, $2, $3)', [order, next, cause])
}

/** What time brings: commands are issued again under the same key, and states are given up. Runs every second. */
export async function tick(pool, idempotency) {
  await pool.query(`
    WITH due AS (
      UPDATE saga SET issued = issued + 1, again_at = clock_timestamp() + LEAST($1::interval * 2 ^ LEAST(issued, 10), '30 s')
      WHERE again_at < clock_timestamp() RETURNING step_key)
    UPDATE outbox SET sent_at = NULL FROM due WHERE key = step_key`, [AGAIN])
  const { rows } = await pool.query(
    'SELECT order_id, version FROM saga WHERE gives_up_at < clock_timestamp() AND state = ANY($1)', [GIVING_UP])
  for (const { order_id: order, version } of rows) {
    await idempotency.transaction(`${order}:timeout:${version}`, null, async (tx) => {
      const { rowCount } = await tx.query('SELECT FROM saga WHERE order_id = $1 AND version = $2', [order, version])
      return rowCount === 1 ? advance(tx, order, 'timeout') : null
    })
  }
}
