// The page in headless Chromium: whatever a customer does to it, there is one order.
//
//   node page.mjs ADDRESS        the server of the databases is the one that libpq's variables name
/* global document, localStorage, Storage */
import path from 'node:path'
import process from 'node:process'
import pg from 'pg'
import { chromium } from 'playwright-core'

const [address] = process.argv.slice(2)
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--disable-gpu'] })
let passed = 0
let failed = 0

function check(good, what, details = '') {
  good ? passed++ : failed++
  console.log(good ? `ok: page: ${what}` : `not ok: page: ${what} ${JSON.stringify(details)}`)
}

async function query(database, statement, values) {
  const client = new pg.Client({ host: process.env.PGHOST, port: Number(process.env.PGPORT), user: process.env.PGUSER, database })
  await client.connect()
  try {
    return (await client.query(statement, values)).rows
  } finally {
    await client.end()
  }
}

// A customer of their own: nothing in localStorage.
async function customer(what, act) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 820 } })
  try {
    const page = await open(context)
    for (const sku of ['mug', 'beans', 'mug']) await page.click(`button[data-sku=${sku}]`)
    await isFull(page)
    await act(page, context)
    await look(page, what)
  } catch (error) {
    check(false, what, error.message)
  } finally {
    await context.close()
  }
}

// The tab knows of all three things.
function isFull(tab) {
  return tab.waitForFunction(() => document.getElementById('total').textContent === '€48.50')
}

async function open(context) {
  const page = await context.newPage()
  page.setDefaultTimeout(120_000)    // a busy machine is no mistake
  await page.goto(address)
  await page.waitForSelector('button[data-sku]')
  return page
}

// The order comes to its end on the page, and is the only one, in the shop and at the payments.
async function look(page, what, end = 'CONFIRMED') {
  await page.waitForSelector(`#state.${end}`)
  const tenant = await page.evaluate(() => localStorage.getItem('tenant'))
  const orders = await query('orders', 'SELECT id, state, amount FROM orders WHERE tenant = $1', [tenant])
  const payments = await query('payments', 'SELECT state, amount FROM payment WHERE order_id = ANY($1)', [orders.map(({ id }) => id)])
  const right = orders.length === 1 && orders[0].state === end && orders[0].amount === 2 * 1800 + 1250
    && (end === 'CANCELLED' || (payments.length === 1 && payments[0].state === 'charged' && payments[0].amount === orders[0].amount))
  check(right, `${what}: one order, one payment`, { orders, payments })
  const { cart } = JSON.parse(await page.evaluate(() => localStorage.getItem('shop')))
  check(Object.keys(cart).length === 0, `${what}: nothing is left in the cart`, cart)
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, `${what.replaceAll(' ', '-')}.png`) })
}

// The n-th request to pay is sent, and its answer is not for the page, or not yet.
async function intercept(page, times, withAnswer) {
  const sent = { requests: 0, keys: new Set() }
  await page.route('**/orders', async (route) => {
    const request = route.request()
    if (request.method() !== 'POST') return route.continue()
    sent.requests++
    sent.keys.add(request.headers()['idempotency-key'])
    if (sent.requests > times) return route.continue()
    await withAnswer(route, () => route.fetch())
  })
  return sent
}

const cases = {
  'one click': (page) => page.click('#pay'),
  'double click': (page) => page.dblclick('#pay'),

  'network lost after the request was sent': async (page) => {
    const sent = await intercept(page, 2, async (route, send) => {
      await send()
      await route.abort('connectionreset')
    })
    await page.click('#pay')
    await page.waitForSelector('#state.CONFIRMED')
    check(sent.requests >= 3 && sent.keys.size === 1, `${sent.requests} requests had one key`, [...sent.keys])
  },

  'reload while paying': async (page) => {
    let reload
    const asked = new Promise((resolve) => { reload = resolve })
    const sent = await intercept(page, 1, async (route, send) => {
      await send()
      reload()    // the answer never comes
    })
    await page.click('#pay')
    await asked
    await page.reload()
    await page.waitForSelector('#state.CONFIRMED')
    check(sent.requests === 2 && sent.keys.size === 1, 'the page that was loaded again asked once more, with the same key', sent.requests)
  },

  'back button': async (page) => {
    await page.click('#pay')
    await page.waitForSelector('#order:not([hidden])')
    await page.goto('about:blank')
    await page.goBack()
    await page.waitForSelector('#state.CONFIRMED')
    check(await page.$eval('#cart', ({ hidden }) => hidden), 'after the back button there is the order, and nothing to pay')
  },

  'two tabs': async (page, context) => {
    const other = await open(context)
    await isFull(other)
    // both at the same moment, without a tab coming to the front first
    const press = (tab) => tab.evaluate(() => document.getElementById('pay').click())
    await Promise.all([press(page), press(other)])
    await other.waitForSelector('#state.CONFIRMED')
  },

  'a tab that learns too late': async (page, context) => {
    const other = await open(context)
    await isFull(other)
    // until it writes by itself, the other tab sees nothing of the payment, as if the browser had not brought it over yet
    await other.evaluate(() => {
      const { getItem, setItem } = Storage.prototype
      const seen = localStorage.getItem('shop')
      Storage.prototype.getItem = function (name) { return name === 'shop' ? seen : getItem.call(this, name) }
      Storage.prototype.setItem = function (name, value) {
        Object.assign(Storage.prototype, { getItem, setItem })
        setItem.call(this, name, value)
      }
    })
    await page.click('#pay')
    await page.waitForSelector('#order:not([hidden])')
    await other.evaluate(() => document.getElementById('pay').click())
    await other.waitForSelector('#state.CONFIRMED')
  },
}

for (const [what, act] of Object.entries(cases)) await customer(what, act)
await browser.close()
console.log(`${passed} passed, ${failed} failed`)
process.exitCode = failed > 0 || passed === 0 ? 1 : 0
