// The page of the shop. All that must not get lost is one value in localStorage, which all tabs share: the cart, the key of
// its order, and the payment that was asked for. The key is made with the cart, so that reloads, other tabs and lost networks
// use the same one, and whatever happens there is one order. It is not made when the customer pays: what one tab writes
// into localStorage reaches another a little later, lock or not, and two tabs that pay at the same moment would make two.
/* global document, localStorage, location, window */
import { PICTURES } from './pictures.js'

const $ = (id) => document.getElementById(id)
const empty = () => ({ cart: {}, key: null, payment: null, order: null })
const WORDS = {
  PLACED: 'We have your order', RESERVING: 'Looking for your things', RESERVED: 'Your things are set aside', CHARGING: 'Charging your card',
  CHARGED: 'Your card was charged', SHIPPING: 'Packing your parcel', RECALLING: 'Stopping your parcel', CANCELLING: 'Cancelling',
  REFUNDING: 'Giving your money back', RELEASING: 'Putting your things back', CONFIRMED: 'On its way to you', CANCELLED: 'Cancelled: you pay nothing',
}
const tenant = remember('tenant', () => `page-${crypto.randomUUID()}`)
let catalog = []
let live = null

function remember(name, make) {
  if (localStorage.getItem(name) === null) localStorage.setItem(name, make())
  return localStorage.getItem(name)
}

function load() {
  return { ...empty(), ...JSON.parse(localStorage.getItem('shop')) }
}

// Tabs take turns: what one changes, the next one reads, or almost always; see above.
function change(how) {
  return navigator.locks.request('shop', () => {
    const state = load()
    const result = how(state)
    localStorage.setItem('shop', JSON.stringify(state))
    render()
    return result
  })
}

// ---- paying ----

// Asked for twice, the second finds the payment of the first; or its order, and nothing in the cart.
async function pay() {
  await change((state) => {
    if (state.payment || Object.keys(state.cart).length === 0) return
    const items = Object.entries(state.cart).map(([sku, quantity]) => ({ sku, quantity }))
    state.payment = { key: state.key, body: JSON.stringify({ items, card: $('card').value, city: $('city').value }) }
  })
  await finishPayment()
}

async function finishPayment() {
  const { payment } = load()
  if (!payment) return
  const answer = await insist('/orders', payment.key, payment.body)
  await change((state) => {
    if (state.key !== payment.key) return    // another tab has the answer already
    Object.assign(state, answer.ok ? { ...empty(), order: answer.body.id } : { payment: null, key: crypto.randomUUID() })
    if (!answer.ok) $('note').textContent = answer.body.reason ?? answer.body.title
  })
}

// Sends until there is an answer, always with the same key.
async function insist(path, key, body) {
  for (let pause = 300; ; pause = Math.min(pause * 2, 5000)) {
    try {
      const response = await fetch(path, {
        method: 'POST', body,
        headers: { 'Content-Type': 'application/json', 'Idempotency-Key': `"${key}"`, 'X-Tenant': tenant },
      })
      if (response.ok || (response.status < 500 && response.status !== 409)) return { ok: response.ok, body: await response.json() }
    } catch {
      $('note').textContent = 'No answer yet. We keep asking; you will not pay twice.'
    }
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

// ---- the order ----

async function cancel() {
  const { order } = load()
  $('cancel').disabled = true
  await insist(`/orders/${order}/cancel`, remember(`cancel-${order}`, () => crypto.randomUUID()), '{}')
}

function follow(order) {
  if (live?.order === order) return
  live?.source.close()
  live = order && { order, source: new window.EventSource(`/orders/${order}/live?tenant=${encodeURIComponent(tenant)}`) }
  if (!live) return
  live.source.onmessage = ({ data }) => renderOrder(JSON.parse(data))
  live.source.onerror = () => setTimeout(reconnect, 1000)
}

// The browser connects again by itself after a lost connection, but not after a 503.
function reconnect() {
  if (live?.source.readyState !== window.EventSource.CLOSED) return
  live = null
  follow(load().order)
}

// ---- what is seen ----

const euros = (cents) => `€${(cents / 100).toFixed(2)}`

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties })
}

function renderGoods() {
  $('goods').replaceChildren(...catalog.map(({ sku, name, text, price }) => {
    const thing = element('div', '', { className: 'thing', innerHTML: PICTURES[sku] })
    const footer = element('footer', '')
    const add = element('button', 'Add', { type: 'button', onclick: () => change((state) => put(state, sku, 1)) })
    add.dataset.sku = sku
    footer.append(element('strong', euros(price)), add)
    thing.append(element('h3', name), element('p', text), footer)
    return thing
  }))
}

// What is being paid for does not change any more.
function put(state, sku, count) {
  if (state.payment) return
  const quantity = Math.min((state.cart[sku] ?? 0) + count, 99)
  if (quantity > 0) state.cart[sku] = quantity
  else delete state.cart[sku]
  state.key ??= crypto.randomUUID()
  state.order = null
}

function render() {
  const { cart, payment, order } = load()
  const lines = catalog.filter(({ sku }) => cart[sku])
  $('lines').replaceChildren(...lines.map(({ sku, name, price }) => {
    const line = element('li', '')
    const less = element('button', '−', { type: 'button', title: 'One less', disabled: payment !== null,
      onclick: () => change((state) => put(state, sku, -1)) })
    const what = element('span', `${cart[sku]} × ${name}`)
    what.prepend(less)
    line.append(what, element('span', euros(price * cart[sku])))
    return line
  }))
  $('empty').hidden = lines.length > 0
  $('total').textContent = euros(lines.reduce((sum, { sku, price }) => sum + price * cart[sku], 0))
  $('pay').disabled = lines.length === 0
  $('pay').textContent = payment ? 'Paying …' : 'Pay'
  for (const id of ['card', 'city']) $(id).disabled = payment !== null
  if (!payment && lines.length === 0) $('note').textContent = ''
  $('cart').hidden = order !== null
  $('order').hidden = order === null
  $('number').textContent = order?.slice(0, 8) ?? ''
  follow(order)
}

function renderOrder({ id, amount, state, history }) {
  if (id !== load().order) return
  const over = state === 'CONFIRMED' || state === 'CANCELLED'
  $('state').className = state
  $('state').textContent = `${WORDS[state]} (${euros(amount)})`
  $('history').replaceChildren(...(history ?? []).map((step) => {
    const line = element('li', WORDS[step.state], { title: step.cause })
    line.append(element('time', new Date(step.at).toLocaleTimeString('en-GB')))
    return line
  }))
  $('cancel').hidden = over
  $('cancel').disabled = localStorage.getItem(`cancel-${id}`) !== null
  $('another').hidden = !over
}

$('cart').addEventListener('submit', (event) => {
  event.preventDefault()
  pay()
})
$('cancel').onclick = cancel
$('another').onclick = () => change((state) => { state.order = null })
window.addEventListener('storage', render)
window.addEventListener('pageshow', ({ persisted }) => persisted && location.reload())
catalog = await (await fetch('/catalog')).json()
renderGoods()
render()
finishPayment()
