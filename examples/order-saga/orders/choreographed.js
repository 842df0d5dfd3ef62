// The saga, choreographed: nobody leads. The services hear each other's events, and this one only shows how far
// an order has come. Events of three services arrive in any order, so each has a number, and a lower one than
// the last is out of date.
const STAGES = {
  'stock.reserved': [1, 'RESERVED'],
  'payment.charged': [2, 'CHARGED'],
  cancel: [3, 'CANCELLING'],
  'payment.declined': [4, 'RELEASING'],
  'parcel.refused': [4, 'REFUNDING'],
  'payment.refunded': [5, 'RELEASING'],
  'stock.refused': [6, 'CANCELLED'],
  'stock.released': [6, 'CANCELLED'],
  // last, because the parcel may be faster than a cancellation
  'parcel.shipped': [7, 'CONFIRMED'],
}

/** Sends the event of a new order. */
export async function place(tx, document) {
  await tx.query('SELECT say($1, $2, $3)', [document.order, 'order.placed', document])
  await tx.query('SELECT show($1, $2, $3)', [document.order, 'PLACED', 'placed'])
}

/** Something has happened to an order. */
export async function hear(tx, { order }, type) {
  const [number, state] = STAGES[type]
  const { rows: [{ newer }] } = await tx.query('SELECT idem_advance($1, $2) AS newer', [`order:${order}`, number])
  if (newer) await tx.query('SELECT show($1, $2, $3)', [order, state, type])
}

/** The customer changes their mind: shipping decides whether that comes in time. Gives false if it is too late already. */
export async function cancel(tx, document) {
  await hear(tx, document, 'cancel')
  const { rows: [{ state }] } = await tx.query('SELECT state FROM orders WHERE id = $1', [document.order])
  if (state === 'CANCELLING') await tx.query('SELECT say($1, $2, $3)', [document.order, 'order.cancelled', document])
  return state !== 'CONFIRMED'
}

/** Nothing is waited for here. */
export async function tick() {}
