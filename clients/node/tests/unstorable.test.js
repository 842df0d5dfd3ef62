// Work of a lease that is done, and whose answer cannot be stored.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BadArgument, Completion, Declined, Reconciled, TooLarge, Unstorable } from 'pg-idempotency'
import { abandoned, effect, effects, expire, idempotencyFor, newKey, stored } from './support.js'
import { Proxy } from './proxy.js'

async function days(pool, key) {
  const { rows: [{ days }] } = await pool.query(
    'SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM idempotency_store WHERE idempotency_key = $1', [key])
  return days
}

const cycle = {}
cycle.self = cycle
const LARGE = 'x'.repeat(2_000_000)

for (const [what, answer, error] of [
  ['a function', () => {}, BadArgument], ['a cycle', cycle, BadArgument], ['NaN', { rate: NaN }, BadArgument], ['a bigint', 1n, BadArgument],
  ['bytes that are none', { body: 7 }, BadArgument], ['a code that is none', { code: 'x', payload: 1 }, BadArgument],
  ['a retention that is none', { payload: 1, retention: -1 }, BadArgument], ['a retention of the past', { payload: 1, retention: '-1 s' }, BadArgument],
  ['a header that is none', { payload: 1, headers: { a: 1n } }, BadArgument],
  ['a member that throws', { get payload() { throw new RangeError('broken') } }, RangeError], ['NUL', 'a\0b', { code: '22P05' }], ['half a character', '\ud800', { code: '22P02' }], ['a code of more than an int', { code: 2 ** 40, payload: 1 }, { code: '22003' }],
  ['more than is stored', LARGE, TooLarge],
]) {
  test(`work whose answer cannot be stored is done, and not repeated: ${what}`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    for (const writes of [false, true]) {
      const key = newKey()
      let runs = 0
      const run = () => idempotency.lease(key, null, () => {
        runs++
        return writes ? new Completion(answer, (tx) => effect(tx, key)) : answer
      }, { reconcile: () => assert.fail('asked') })
      await assert.rejects(run(), error)
      assert.deepEqual(await stored(pool, key), { status: 'COMPLETED', code: 500, attempt: 1 })
      for (const call of [run, run]) await assert.rejects(call(), { name: 'Unstorable', message: 'the work was done, and its answer could not be stored' })
      assert.deepEqual([runs, await effects(pool, key)], [1, writes ? 1 : 0])
    }
  })
}

for (const [what, payload, options, error] of [
  ['a cycle', cycle, {}, BadArgument], ['a bigint', 1n, {}, BadArgument], ['NUL', 'a\0b', {}, { code: '22P05' }],
  ['half a character', '\ud800', {}, { code: '22P02' }], ['more than is stored', LARGE, {}, TooLarge],
  ['a header that is none', 1, { headers: { a: 1n } }, BadArgument], ['a retention that is none', 1, { retention: '-1 s' }, BadArgument],
  ['a time that is none', 1, { retryAfter: NaN }, BadArgument], ['a text that is no time', 1, { retryAfter: 'soon' }, BadArgument],
]) {
  test(`work that declines with what cannot be stored is done, and not repeated: ${what}`, async (t) => {
    const { pool, idempotency } = idempotencyFor(t)
    const decline = () => { throw new Declined(402, payload, options) }
    const declining = async (tx) => { await effect(tx, what); decline() }
    const answering = (answer) => () => new Completion(answer, declining)
    for (const [work, wrong] of [[decline, error], [answering('good'), error], [answering(() => {}), BadArgument]]) {
      const key = newKey()
      let runs = 0
      const run = () => idempotency.lease(key, null, () => { runs++; return work() })
      await assert.rejects(run(), wrong)
      assert.deepEqual(await stored(pool, key), { status: 'COMPLETED', code: 500, attempt: 1 })
      await assert.rejects(run(), { name: 'Unstorable' })
      assert.deepEqual([runs, await effects(pool, what)], [1, 0])
    }
    const key = newKey()
    const inTransaction = idempotency.transaction(key, null, async (tx) => { await effect(tx, what); decline() })
    await assert.rejects(inTransaction, error)
    assert.deepEqual([await stored(pool, key), await effects(pool, what)], [undefined, 0])
  })
}

test('what is declined and cannot be stored is kept away for as long as it asked for', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, () => { throw new Declined(402, LARGE, { retention: '90 days' }) }), TooLarge)
  assert.equal(await days(pool, key), 90)
})

test('a function whose result cannot be stored: the same', async (t) => {
  const { idempotency } = idempotencyFor(t)
  let runs = 0
  const once = idempotency.idempotent(() => { runs++; return () => {} },
    { name: 'unstorable', key: (key) => key, style: 'lease' })
  const key = newKey()
  await assert.rejects(once(key), BadArgument)
  await assert.rejects(once(key), Unstorable)
  assert.equal(runs, 1)
})

test('an answer that cannot be stored is kept away for as long as it asked for', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, () => ({ payload: LARGE, retention: '90 days' })), TooLarge)
  assert.equal(await days(pool, key), 90)
})

test('an answer with the code 500 is one', async (t) => {
  const { idempotency } = idempotencyFor(t)
  for (const answer of [{ code: 500, payload: 1 }, { code: 500, payload: null }, { code: 500, body: '' }, { code: 500, payload: undefined, headers: {} }, { code: 501, payload: undefined }]) {
    const key = newKey()
    const first = await idempotency.lease(key, null, () => answer)
    assert.deepEqual({ ...await idempotency.lease(key, null, () => assert.fail('ran')), replayed: false, record: null }, first)
  }
})

test('what reconcile has found and cannot be stored is asked for again: the work does not run', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const key = newKey()
  await abandoned(pool, idempotency, key)
  for (const [found, error] of [[() => {}, BadArgument], [LARGE, TooLarge]]) {
    await assert.rejects(idempotency.lease(key, null, () => assert.fail('ran'), { reconcile: () => Reconciled.done(found) }), error)
    await expire(pool, key)
  }
  const { payload } = await idempotency.lease(key, null, () => assert.fail('ran'), { reconcile: () => Reconciled.done('found') })
  assert.equal(payload, 'found')
})

test('an answer that cannot be stored, and an end whose answer is lost', async (t) => {
  const proxy = await Proxy.forTest(t)
  const lost = []
  const { pool, idempotency } = idempotencyFor(t, { hooks: { leaseLost: (event) => lost.push(event) } }, proxy.options)
  const key = newKey()
  await assert.rejects(idempotency.lease(key, null, async () => {
    await proxy.order('arm', 'lose', 'idem_complete')
    return () => {}
  }), BadArgument)
  assert.deepEqual([(await proxy.order('state')).hits, lost, (await stored(pool, key)).code], [1, [], 500])
})

test('an answer that cannot be stored, of a lease that is lost: the stored one is the answer, and the error where there is none', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  for (const isEnded of [true, false]) {
    const key = newKey()
    const theirs = () => { if (!isEnded) throw new TypeError('lost'); return 'theirs' }
    const ended = idempotency.lease(key, null, async () => {
      await expire(pool, key)
      await idempotency.lease(key, null, theirs).catch(() => {})
      return new Completion(() => {}, (tx) => effect(tx, key))
    })
    if (isEnded) assert.equal((await ended).payload, 'theirs')
    else await assert.rejects(ended, BadArgument)
    assert.equal(await effects(pool, key), 0)
  }
})

test('writes that decline, and writes that fail as an answer may, beside an answer that cannot be stored', async (t) => {
  const { pool, idempotency } = idempotencyFor(t)
  const lease = (key, answer, writes) => idempotency.lease(key, null, () => new Completion(answer, writes))
  const { outcome, payload } = await lease(newKey(), () => {}, () => { throw new Declined(402, 'no') })
  assert.deepEqual([outcome, payload], ['FAILED', 'no'])
  for (const [answer, error] of [['good', { code: '22P02' }], [LARGE, TooLarge]]) {
    const key = newKey()
    let calls = 0
    const fail = async (tx) => { calls++; await tx.query("SELECT 'x'::int") }
    await assert.rejects(lease(key, answer, fail), error)
    assert.deepEqual([await stored(pool, key), calls], [{ status: 'PENDING', code: null, attempt: 1 }, 1])
  }
})
