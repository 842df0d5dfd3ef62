// What is no duration is refused by name, before the work runs, and where only a text's reader can tell, by the server.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import pg from 'pg'
import { BadArgument, Declined, Idempotency } from 'pg-idempotency'
import { Caller, MemoryStore } from 'pg-idempotency/caller'
import { HttpIdempotency } from 'pg-idempotency/http'
import { KafkaConsumer } from 'pg-idempotency/kafka'
import { NatsConsumer } from 'pg-idempotency/nats'
import { RabbitConsumer } from 'pg-idempotency/rabbitmq'
import { RedisConsumer } from 'pg-idempotency/redis'
import { BadDuration, ServiceMistake } from '../src/errors.js'
import { idempotencyFor, newKey, stored } from './support.js'

const nowhere = new pg.Pool({ host: '/nowhere' })
const refusal = (name) => (error) => error instanceof BadArgument && error.code === 'ID400' && error.name === 'BadArgument' &&
  error.message.includes(name)
// By its class HTTP knows that the client is not to blame.
const mistake = (name) => (error) => error instanceof ServiceMistake && refusal(name)(error)
const duration = (name) => (error) => error instanceof BadDuration && refusal(name)(error)
const notRun = () => assert.fail('the work ran')

test('what is neither a pool nor a source is refused, and not quoted', () => {
  const poolOfKnex = { acquire: notRun, release: notRun }
  const driverOfTypeORM = { connect: notRun, options: {} }
  for (const given of [undefined, 'postgres://u:secret@host/db', { connectionString: 'postgres://u:secret@host/db' }, new pg.Client(), () => nowhere,
    poolOfKnex, driverOfTypeORM]) {
    assert.throws(() => new Idempotency(given), (error) => error instanceof TypeError && /^an Idempotency needs a Pool of pg, /.test(error.message))
  }
})

describe('a number that is none, or too large, asks no database', () => {
  const wrong = [NaN, -Infinity, -1, 1e300, true, {}]
  // The server refuses them, of each call.
  const refused = [0, 36_500 * 86_400_000 + 1]
  const endless = [Infinity]
  // A repeat is the last one where its number is not below the limit: nothing is below NaN.
  const counts = [NaN, 0, -1, '8', true, null]
  const options = {
    retention: [...wrong, ...endless, ...refused], lease: [...wrong, ...endless, ...refused],
    retry: [...[...wrong, ...endless, '1 s'].flatMap((value) => [{ base: value }, { cap: value }]),
      ...counts.map((attempts) => ({ attempts }))],
  }
  for (const [name, values] of Object.entries(options)) {
    test(`${name} of the Idempotency`, () => {
      for (const value of values) assert.throws(() => new Idempotency(nowhere, { [name]: value }), refusal(name))
    })
  }
  for (const [name, values] of Object.entries({
    wait: [...wrong, ...refused.slice(1)], retention: [...wrong, ...endless, ...refused], lease: [...wrong, ...endless, ...refused],
    maxAttempts: [NaN, -1, 1.5, '3', 2 ** 31],
  })) {
    test(`${name} of a call`, async () => {
      for (const value of values) {
        const idempotency = new Idempotency(nowhere)
        await assert.rejects(idempotency.lease('k', null, notRun, { [name]: value }), mistake(name))
        if (name !== 'lease') await assert.rejects(idempotency.transaction('k', null, notRun, { [name]: value }), mistake(name))
      }
    })
  }
  for (const name of ['attempts', 'base', 'cap', 'longestWait', 'deadline', 'timeout']) {
    test(`${name} of a Caller`, () => {
      for (const value of name === 'attempts' ? counts : [NaN, '1 s', null]) {
        assert.throws(() => new Caller({ store: new MemoryStore(), [name]: value }), refusal(name))
      }
    })
  }
  const given = { idempotency: new Idempotency(nowhere), handle: notRun }
  const inConsumers = { tries: counts, delays: [[NaN], [1, '2'], [], [2, 1]], idempotency: [undefined], handle: [undefined] }
  for (const [Consumer, ...names] of [[RabbitConsumer, 'queue'], [NatsConsumer, 'stream', 'durable'], [RedisConsumer, 'stream', 'group'],
    [KafkaConsumer, 'topic', 'groupId']]) {
    test(`options of a ${Consumer.name}`, async () => {
      const options = { ...given, ...Object.fromEntries(names.map((name) => [name, 'q'])) }
      const values = { ...inConsumers, ...Object.fromEntries(names.map((name) => [name, [undefined, 'q'.repeat(251), '\ud800']])) }
      for (const [name, wrong] of Object.entries(values)) {
        for (const value of wrong) {
          const named = names.includes(name) && value ? 'is a scope' : name
          await assert.rejects(Consumer.start({}, { ...options, [name]: value }), refusal(named))
        }
      }
      // it goes as far as the broker
      const longest = { ...options, [names[0]]: '\u{1f600}'.repeat(250 - 2 * (names.length - 1)), delays: [1, 1] }
      await assert.rejects(Consumer.start({ jetstream: () => ({}) }, longest), TypeError)
    })
  }
  for (const name of ['idle', 'poll']) {
    test(`${name} of a consumer of Redis`, async () => {
      const options = { idempotency: new Idempotency(nowhere), handle: notRun, stream: 's', group: 'g' }
      for (const value of [NaN, Infinity, -1, 0, 0.5, '500']) {
        await assert.rejects(RedisConsumer.start({}, { ...options, [name]: value }), refusal(name))
      }
    })
  }
  const middleware = (options) => new HttpIdempotency(new Idempotency(nowhere), { principal: () => 'a', ...options })
  for (const [name, values] of Object.entries({
    header: ['X Name', 'Ł', 7], marker: ['X Name', 'Ł', 7], lifetime: ['X Name', 'Ł', 7], maxAttempts: [-1, 1.5],
    wait: [...wrong, '-1'], retention: [...wrong, 0, '0'], lease: [...wrong, 0, '3153600001'],
    // of these the server is not told
    maxWait: [NaN, -1, true, {}], timeout: [NaN, -1, true, {}],
  })) {
    test(`${name} of the middleware`, () => {
      for (const value of values) assert.throws(() => middleware({ [name]: value }), refusal(name))
    })
  }
  test('a hash of another length, or beside a request, and one of a batch', async (t) => {
    const { idempotency } = idempotencyFor(t)
    for (const [request, length] of [[null, 31], [null, 0], [1, 32]]) {
      await assert.rejects(idempotency.transaction(newKey(), request, notRun, { requestHash: Buffer.alloc(length) }),
        mistake('requestHash'))
    }
    await assert.rejects(idempotency.batch((batch) => batch.beginMany([newKey()], [], { requestHashes: [Buffer.alloc(31)] })),
      mistake('requestHash'))
  })
  test('no header with the time until which an answer is kept', () => { middleware({ lifetime: '' }) })
  test('numbers of an answer and of a batch', async (t) => {
    const { idempotency } = idempotencyFor(t)
    for (const retention of [0, -1, 1e300]) {
      await assert.rejects(idempotency.transaction(newKey(), null, () => ({ payload: 1, retention })), duration('retention'))
    }
    const declining = (retryAfter) => idempotency.transaction(newKey(), null,
      () => { throw new Declined(402, null, { retryAfter }) })
    for (const past of [-1, -1e300, '-1', '-1 year']) assert.equal((await declining(past)).retryAfter, 0)
    for (const retryAfter of [NaN, 1e300]) {
      await assert.rejects(declining(retryAfter), duration('retryAfter'))
    }
    for (const maxLostAttempts of [-1, 1.5, NaN, 2 ** 31, '1; COMMIT']) {
      await assert.rejects(idempotency.transaction(newKey(), null, notRun, { maxLostAttempts }), mistake('maxLostAttempts'))
    }
    await assert.rejects(idempotency.batch((batch) => batch.beginMany([newKey()], [], { maxAttempts: -1 })),
      mistake('maxAttempts'))
  })
})

describe('a text that is no interval, or one that the server does not take, is refused before the work', () => {
  for (const text of ['abc', '', '300000000 years', '99999999999999999999 s', '-1 s', '999999 years', '36501 days', '0 s']) {
    for (const name of ['0 s', '36501 days'].includes(text) ? ['retention', 'lease'] : ['wait', 'retention', 'lease']) {
      test(`${name}: ${JSON.stringify(text)}`, async (t) => {
        const { pool, idempotency } = idempotencyFor(t)
        const key = newKey()
        await assert.rejects(idempotency.lease(key, null, notRun, { [name]: text }), duration(name))
        if (name !== 'lease') await assert.rejects(idempotency.transaction(key, null, notRun, { [name]: text }), duration(name))
        assert.equal(await stored(pool, key), undefined)
      })
    }
    test(`retention and retryAfter of an answer: ${JSON.stringify(text)}`, async (t) => {
      const { idempotency } = idempotencyFor(t)
      const answers = {
        retention: () => ({ payload: 1, retention: text }),
        retryAfter: () => { throw new Declined(402, null, { retryAfter: text }) },
      }
      // What has passed is now.
      if (['0 s', '-1 s'].includes(text)) {
        assert.equal((await idempotency.transaction(newKey(), null, answers.retryAfter)).retryAfter, 0)
        delete answers.retryAfter
      }
      for (const [name, work] of Object.entries(answers)) {
        await assert.rejects(idempotency.transaction(newKey(), null, work), duration(name))
        await assert.rejects(idempotency.lease(newKey(), null, work), duration(name))
      }
    })
  }
})

test('what PostgreSQL reads as an interval, and any number of milliseconds, is one', async (t) => {
  const { idempotency } = idempotencyFor(t)
  for (const duration of ['1 day 02:03:04', 'P1DT1H', '90', '@ 5 minutes', 1e9, 5000.5]) {
    const options = { wait: duration, retention: duration, lease: duration }
    assert.equal((await idempotency.lease(newKey(), null, () => 1, options)).outcome, 'COMPLETED')
  }
  for (const options of [{ wait: Infinity }, { wait: 36_500 * 86_400_000 }, { wait: 1e-9 }, { maxAttempts: null, maxLostAttempts: null }, { maxLostAttempts: 0 },
    { retention: 36_500 * 86_400_000 }]) {
    assert.equal((await idempotency.transaction(newKey(), null, () => 1, options)).outcome, 'COMPLETED')
  }
})
