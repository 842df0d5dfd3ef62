// 2. The usual pattern, statement by statement from the client: SELECT FOR
// UPDATE, INSERT PENDING, business, UPDATE COMPLETED.

import { callGateway, pay, replay, transaction } from './driver/business.mjs';

const UNIQUE_VIOLATION = '23505';    // somebody else was first: look again

const SELECT = {
  name: 'client-select',
  text: "SELECT status, request_hash, response_payload FROM hand_store WHERE scope = '' AND idempotency_key = $1 FOR UPDATE",
};
const INSERT = {
  name: 'client-insert',
  text: `INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
    VALUES ($1, $2, 'PENDING', now() + interval '1 day')`,
};
const UPDATE = {
  name: 'client-update',
  text: `UPDATE hand_store SET status = $2, response_payload = $3, updated_at = clock_timestamp()
    WHERE scope = '' AND idempotency_key = $1`,
};

export const clientReadCommitted = {
  name: 'client-rc', open: async ({ pool }) => ({ deliver: (operation) => protectedPayment(pool, operation) }),
};

export function protectedPayment(pool, operation) {
  return transaction(pool, async (client) => {
    const { rows } = await client.query({ ...SELECT, values: [operation.key] });
    if (rows.length) {
      return replay(rows[0], operation);
    }
    await client.query({ ...INSERT, values: [operation.key, operation.hash] });
    return payAndStore(client, operation);
  }, { retryAlso: [UNIQUE_VIOLATION] });
}

async function payAndStore(client, operation) {
  await callGateway(operation);
  const response = await pay(client, operation);
  const status = response.state === 'declined' ? 'FAILED' : 'COMPLETED';
  await client.query({ ...UPDATE, values: [operation.key, status, JSON.stringify(response)] });
  return { replayed: false, response };
}
