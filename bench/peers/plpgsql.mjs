// 2. INSERT ... ON CONFLICT and UPDATE by hand, in one PL/pgSQL call.

import { payMany, statement, transaction } from './driver/business.mjs';
import { declinedAsAnswer } from './bare.mjs';

export const plpgsql = {
  name: 'plpgsql',
  open: async ({ pool }) => ({
    deliver: (operation) => declinedAsAnswer(() => call(pool, 'peer_call', operation)),
    batch: (operations) => transaction(pool, (client) => batch(client, operations)),
  }),
};

export const plpgsqlCatch = {
  name: 'plpgsql-catch',
  open: async ({ pool }) => ({ deliver: (operation) => call(pool, 'peer_call_catch', operation) }),
};

async function call(pool, name, { key, request, hash }) {
  const { rows } = await statement(pool, {
    name, text: `SELECT * FROM ${name}($1, $2, $3)`, values: [key, request, hash],
  });
  const { outcome, replayed, response } = rows[0];
  return { replayed, response: outcome === 'FAILED' ? { state: 'declined' } : response };
}

async function batch(client, operations) {
  const { rows } = await client.query({
    name: 'batch-claim',
    text: `INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
      SELECT k, h, 'PENDING', now() + interval '1 day' FROM unnest($1::text[], $2::bytea[]) AS t(k, h)
      ON CONFLICT DO NOTHING RETURNING idempotency_key`,
    values: [operations.map((o) => o.key), operations.map((o) => o.hash)],
  });
  const claimed = new Set(rows.map((r) => r.idempotency_key));
  const responses = await payMany(client, operations.filter((o) => claimed.has(o.key)));
  await client.query({
    name: 'batch-complete',
    text: `UPDATE hand_store SET status = 'COMPLETED', response_payload = r, updated_at = clock_timestamp()
      FROM unnest($1::text[], $2::jsonb[]) AS t(k, r) WHERE scope = '' AND idempotency_key = k`,
    values: [[...responses.keys()], [...responses.values()].map((r) => JSON.stringify(r))],
  });
}
