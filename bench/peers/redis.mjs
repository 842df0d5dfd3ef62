// 3. Redis in front of PostgreSQL, in the three ways that are common.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Busy, Mismatch, callGateway, pay, transaction } from './driver/business.mjs';
import { protectedPayment } from './client-side.mjs';

const DAY = 86_400_000;

// Only the owner may release: the lock may have run out and belong to another owner.
const RELEASE = `
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`;

// ---- a lock around the whole transaction, which has its own record ----

export const redisLock = {
  name: 'redis-lock', redis: true,
  async open({ pool, redis, lease }) {
    const releaseLock = await script(redis, RELEASE);
    return {
      async deliver(operation) {
        const lock = `lock:${operation.key}`;
        const token = randomUUID();
        if (!await acquire(redis, lock, token, lease)) {
          throw new Busy();
        }
        try {
          return await protectedPayment(pool, operation);
        } finally {
          await releaseLock(lock, token);
        }
      },
    };
  },
};

// ---- a barrier of three states: absent, in progress, completed ----

// The record is "token|hash|" while in progress, "|hash|response" when completed.
const ENTER = `
local record = redis.call('GET', KEYS[1])
if record then
  return record
end
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. ARGV[2] .. '|', 'PX', ARGV[3])
return false`;

const COMPLETE = `
local record = redis.call('GET', KEYS[1])
if record and string.sub(record, 1, #ARGV[1] + 1) == ARGV[1] .. '|' then
  redis.call('SET', KEYS[1], '|' .. ARGV[2] .. '|' .. ARGV[3], 'PX', ARGV[4])
  return 1
end
return 0`;

const LEAVE = `
local record = redis.call('GET', KEYS[1])
if record and string.sub(record, 1, #ARGV[1] + 1) == ARGV[1] .. '|' then
  return redis.call('DEL', KEYS[1])
end
return 0`;

export const redisBarrier = {
  name: 'redis-barrier', redis: true,
  async open({ pool, redis, lease }) {
    const [enter, complete, leave] = await Promise.all([ENTER, COMPLETE, LEAVE].map((text) => script(redis, text)));
    return {
      async deliver(operation) {
        const key = `barrier:${operation.key}`;
        const hash = operation.hash.toString('hex');
        const token = randomUUID();
        const record = await enter(key, token, hash, lease);
        if (record !== null) {
          return readBarrier(record, hash);
        }
        let response;
        try {
          await callGateway(operation);
          response = await transaction(pool, (client) => pay(client, operation));
        } catch (error) {
          await leave(key, token);
          throw error;
        }
        await complete(key, token, hash, JSON.stringify(response), DAY);
        return { replayed: false, response };
      },
    };
  },
};

function readBarrier(record, hash) {
  const [token, usedHash] = record.split('|', 2);
  if (usedHash !== hash) {
    throw new Mismatch();
  }
  if (token !== '') {
    throw new Busy();
  }
  return { replayed: true, response: JSON.parse(record.slice(hash.length + 2)) };
}

// ---- a state record, and a short lock around each change of it ----

const LOCK_TTL = 1000;
const LOCK_TRIES = 20;
const LOCK_PAUSE = 5;

export const redisState = {
  name: 'redis-state', redis: true,
  async open({ pool, redis, lease }) {
    const withLock = locker(redis, await script(redis, RELEASE));
    return {
      async deliver(operation) {
        const state = `state:${operation.key}`;
        const hash = operation.hash.toString('hex');
        const owner = randomUUID();
        const known = await withLock(state, async () => {
          const record = await redis.get(state);
          if (record === null) {
            await redis.set(state, JSON.stringify({ status: 'PROCESSING', hash, owner }), { expiration: { type: 'PX', value: lease } });
          }
          return record;
        });
        if (known !== null) {
          return readState(JSON.parse(known), hash);
        }
        let response;
        try {
          await callGateway(operation);
          response = await transaction(pool, (client) => pay(client, operation));
        } catch (error) {
          await withLock(state, () => redis.del(state));
          throw error;
        }
        await withLock(state, () =>
          redis.set(state, JSON.stringify({ status: 'COMPLETED', hash, response }), { expiration: { type: 'PX', value: DAY } }));
        return { replayed: false, response };
      },
    };
  },
};

function readState(record, hash) {
  if (record.hash !== hash) {
    throw new Mismatch();
  }
  if (record.status !== 'COMPLETED') {
    throw new Busy();
  }
  return { replayed: true, response: record.response };
}

const locker = (redis, releaseLock) => async (name, body) => {
  const lock = `lock:${name}`;
  const token = randomUUID();
  for (let tries = 1; !await acquire(redis, lock, token, LOCK_TTL); tries++) {
    if (tries === LOCK_TRIES) {
      throw new Busy();
    }
    await sleep(LOCK_PAUSE);
  }
  try {
    return await body();
  } finally {
    await releaseLock(lock, token);
  }
};

async function acquire(redis, lock, token, ttl) {
  return await redis.set(lock, token, { condition: 'NX', expiration: { type: 'PX', value: ttl } }) === 'OK';
}

// A function that runs the script, which Redis keeps, for a key.
async function script(redis, text) {
  const hash = await redis.scriptLoad(text);
  return (key, ...words) => redis.evalSha(hash, { keys: [key], arguments: words.map(String) });
}
