// 2. INSERT ... ON CONFLICT and UPDATE by hand, in one PL/pgSQL call.

import { statement } from './driver/business.mjs';
import { declinedAsAnswer } from './bare.mjs';

export const plpgsql = {
  name: 'plpgsql',
  open: async ({ pool }) => ({
    deliver: (operation) => declinedAsAnswer(() => call(pool, 'peer_call', operation)),
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
