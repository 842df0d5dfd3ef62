// 1. No protection at all, and the least that storing a record can cost.

import { callGateway, pay, replay, statement, transaction } from './driver/business.mjs';

const UNIQUE_VIOLATION = '23505';

const SELECT = {
  name: 'record-select',
  text: "SELECT status, request_hash, response_payload FROM hand_store WHERE scope = '' AND idempotency_key = $1",
};
const INSERT_RECORD = {
  name: 'record-insert',
  text: `INSERT INTO hand_store (idempotency_key, request_hash, status, response_payload, expires_at)
    VALUES ($1, $2, $3, $4, now() + interval '1 day')`,
};

export const bare = {
  name: 'bare',
  async open({ pool }) {
    return {
      deliver: (operation) => transaction(pool, async (client) => {
        await callGateway(operation);
        return { replayed: false, response: await pay(client, operation) };
      }),
    };
  },
};

export const bareCall = {
  name: 'bare-call',
  async open({ pool }) {
    return {
      deliver: ({ request }) => declinedAsAnswer(async () => {
        const { rows } = await statement(pool,
          { name: 'bare-call', text: 'SELECT peer_pay($1) AS response', values: [request] });
        return { replayed: false, response: rows[0].response };
      }),
    };
  },
};

// A failure that the function raises is the caller's answer.
export async function declinedAsAnswer(call) {
  try {
    return await call();
  } catch (error) {
    if (error.code === 'P0001') {
      return { replayed: false, response: { state: 'declined' } };
    }
    throw error;
  }
}

// The work comes first, and the primary key refuses a duplicate, whose work is undone.
export const insert = {
  name: 'insert',
  open: async ({ pool }) => ({
    async deliver(operation) {
      try {
        return await transaction(pool, (client) => payAndStore(client, operation));
      } catch (error) {
        if (error.code !== UNIQUE_VIOLATION) {
          throw error;
        }
        return replay((await pool.query({ ...SELECT, values: [operation.key] })).rows[0], operation);
      }
    },
  }),
};

// As many statements as begin and complete: look first, store last.
export const selectInsert = {
  name: 'select-insert',
  open: async ({ pool }) => ({
    deliver: (operation) => transaction(pool, async (client) => {
      const { rows } = await client.query({ ...SELECT, values: [operation.key] });
      return rows.length ? replay(rows[0], operation) : payAndStore(client, operation);
    }, { retryAlso: [UNIQUE_VIOLATION] }),
  }),
};

// Reads only: the comparison for a replay.
export const select = {
  name: 'select', readsOnly: true, stores: insert,
  open: async ({ pool }) => ({
    async deliver(operation) {
      return replay((await pool.query({ ...SELECT, values: [operation.key] })).rows[0], operation);
    },
  }),
};

async function payAndStore(client, operation) {
  await callGateway(operation);
  const response = await pay(client, operation);
  await client.query({
    ...INSERT_RECORD,
    values: [operation.key, operation.hash, response.state === 'declined' ? 'FAILED' : 'COMPLETED',
      JSON.stringify(response)],
  });
  return { replayed: false, response };
}
