// The operation that every peer protects: one payment, two statements.

import { createHash, randomBytes, randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

export const ACCOUNTS = 50_000;
const TOO_MUCH = 2_000_000;     // more than anybody has

// Another owner is at work on this operation: deliver it again later.
export class Busy extends Error {}

// The same key came with another request.
export class Mismatch extends Error {}

// The stored answer of a record of hand_store.
export function replay(record, operation) {
  if (!record.request_hash.equals(operation.hash)) {
    throw new Mismatch();
  }
  return { replayed: true, response: record.response_payload };
}

export function operation({ size = 100, declined = false, gateway = 0, key = freshKey() } = {}) {
  const content = {
    account: randomInt(ACCOUNTS) + 1,
    amount: declined ? TOO_MUCH : randomInt(100) + 1,
    currency: 'EUR',
    reference: key,
  };
  content.data = filler(size - JSON.stringify(content).length - 10);
  const request = JSON.stringify(content);
  return { key, gateway, ...content, request, hash: createHash('sha256').update(request).digest() };
}

function freshKey() {
  return randomBytes(16).toString('hex');
}

// Does not compress; the same pool for all, as making it costs time.
const pool = randomBytes(300_000).toString('base64');

function filler(length) {
  if (length <= 0) {
    return '';
  }
  const from = randomInt(pool.length - length);
  return pool.slice(from, from + length);
}

export const UPDATE = {
  name: 'business-update',
  text: 'UPDATE accounts SET balance = balance - $2 WHERE id = $1 AND balance >= $2',
};
export const INSERT = {
  name: 'business-insert',
  text: 'INSERT INTO peer_payments (account, amount, reference) VALUES ($1, $2, $3) RETURNING id',
};

// The answer of the business; the caller has begun a transaction. A declined
// payment has changed nothing.
export async function pay(client, operation) {
  const { account, amount, key, data } = operation;
  const updated = await client.query({ ...UPDATE, values: [account, amount] });
  if (updated.rowCount === 0) {
    return { state: 'declined' };
  }
  const { rows } = await client.query({ ...INSERT, values: [account, amount, key] });
  return { payment: Number(rows[0].id), state: 'accepted', data };
}

export async function callGateway(operation) {
  if (operation.gateway) {
    await sleep(operation.gateway);
  }
}

// Many payments in two statements; the accounts of a batch may repeat.
export const UPDATE_MANY = {
  name: 'business-update-many',
  text: `UPDATE accounts SET balance = balance - total
    FROM (SELECT a, sum(m) AS total FROM unnest($1::int[], $2::numeric[]) AS t(a, m) GROUP BY a ORDER BY a) AS t
    WHERE id = a`,
};
export const INSERT_MANY = {
  name: 'business-insert-many',
  text: `INSERT INTO peer_payments (account, amount, reference)
    SELECT * FROM unnest($1::int[], $2::numeric[], $3::text[]) RETURNING id, reference`,
};

// Responses by key. Accounts are locked one batch after the other, in no order
// that two batches would share: a deadlock is retried by the caller.
export async function payMany(client, operations) {
  const accounts = operations.map((o) => o.account);
  const amounts = operations.map((o) => o.amount);
  await client.query({ ...UPDATE_MANY, values: [accounts, amounts] });
  const { rows } = await client.query({
    ...INSERT_MANY, values: [accounts, amounts, operations.map((o) => o.key)],
  });
  const data = new Map(operations.map((o) => [o.key, o.data]));
  return new Map(rows.map((r) =>
    [r.reference, { payment: Number(r.id), state: 'accepted', data: data.get(r.reference) }]));
}

const RETRIED = new Set(['40001', '40P01']);

// A transaction, again where PostgreSQL asks for it; `retryAlso` are further
// SQLSTATEs after which to start afresh.
export async function transaction(pool, body, { retryAlso = [] } = {}) {
  for (;;) {
    const client = await pool.connect();
    let broken;
    try {
      await client.query('BEGIN');
      const result = await body(client);
      const { command } = await client.query('COMMIT');
      if (command !== 'COMMIT') {
        throw new Error(`COMMIT answered ${command}`);
      }
      return result;
    } catch (error) {
      await client.query('ROLLBACK').catch((e) => { broken = e; });
      if (!RETRIED.has(error.code) && !retryAlso.includes(error.code)) {
        throw error;
      }
    } finally {
      client.release(broken);
    }
  }
}

// One statement in autocommit mode, retried likewise. Not by pool.query, which
// gives the connection up after every error.
export async function statement(pool, query) {
  for (;;) {
    const client = await pool.connect();
    let broken;
    try {
      return await client.query(query);
    } catch (error) {
      broken = error.severity === 'ERROR' ? undefined : error;
      if (!RETRIED.has(error.code)) {
        throw error;
      }
    } finally {
      client.release(broken);
    }
  }
}
