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

export function operation({ declined = false, gateway = 0 } = {}) {
  const key = randomBytes(16).toString('hex');
  const content = {
    account: randomInt(ACCOUNTS) + 1,
    amount: declined ? TOO_MUCH : randomInt(100) + 1,
    currency: 'EUR',
    reference: key,
    data: 'one',
  };      // as JSON, 100 bytes
  const request = JSON.stringify(content);
  return { key, gateway, ...content, request, hash: createHash('sha256').update(request).digest() };
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
