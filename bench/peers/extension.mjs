// The extension, in its forms.

import { Busy, callGateway, pay, statement, transaction } from './driver/business.mjs';

const CALL = {
  name: 'idem-call',
  text: "SELECT outcome, replayed, response_payload FROM idem_call('peer_pay(jsonb)', $1, $2)",
};
const BEGIN = {
  name: 'idem-begin',
  text: 'SELECT outcome, replayed, response_payload FROM idem_begin($1, request => $2)',
};
const COMPLETE = { name: 'idem-complete', text: 'SELECT idem_complete($1, $2)' };
const FAIL = { name: 'idem-fail', text: 'SELECT idem_fail($1, $2)' };
const BEGIN_LEASED = {
  name: 'idem-begin-leased',
  text: "SELECT outcome, replayed, response_payload, fence FROM idem_begin($1, request => $2, lease => $3 * interval '1 millisecond')",
};
const COMPLETE_LEASED = { name: 'idem-complete-leased', text: 'SELECT idem_complete($1, $2, fence => $3)' };
const FAIL_LEASED = { name: 'idem-fail-leased', text: 'SELECT idem_fail($1, $2, fence => $3)' };
const RELEASE = { name: 'idem-release', text: 'SELECT idem_release($1, fence => $2)' };

export const call = {
  name: 'ext-call',
  open: async ({ pool }) => ({
    async deliver({ key, request }) {
      const { rows } = await statement(pool, { ...CALL, values: [key, request] });
      return answer(rows[0]);
    },
  }),
};

export const inTransaction = {
  name: 'ext-txn',
  open: async ({ pool }) => ({
    deliver: (operation) => transaction(pool, async (client) => {
      const { rows } = await client.query({ ...BEGIN, values: [operation.key, operation.request] });
      const known = answer(rows[0]);
      if (known) {
        return known;
      }
      await callGateway(operation);
      const response = await pay(client, operation);
      await client.query({
        ...(response.state === 'declined' ? FAIL : COMPLETE),
        values: [operation.key, JSON.stringify(response)],
      });
      return { replayed: false, response };
    }),
  }),
};

export const leased = {
  name: 'ext-lease',
  open: async ({ pool, lease }) => ({
    async deliver(operation) {
      const { rows } = await statement(pool,
        { ...BEGIN_LEASED, values: [operation.key, operation.request, lease] });
      const known = answer(rows[0]);
      if (known) {
        return known;
      }
      const { fence } = rows[0];
      try {
        await callGateway(operation);
        return { replayed: false, response: await completeLeased(pool, operation, fence) };
      } catch (error) {
        await pool.query({ ...RELEASE, values: [operation.key, fence] });    // false where it is not ours any more
        throw error;
      }
    },
  }),
};

async function completeLeased(pool, operation, fence) {
  try {
    return await transaction(pool, async (client) => {
      const response = await pay(client, operation);
      await client.query({
        ...(response.state === 'declined' ? FAIL_LEASED : COMPLETE_LEASED),
        values: [operation.key, JSON.stringify(response), fence],
      });
      return response;
    });
  } catch (error) {
    if (error.code === 'ID409') {       // taken over: their answer is the one
      throw new Busy();
    }
    throw error;
  }
}

// The stored answer, or nothing: then the operation is acquired.
function answer({ outcome, replayed, response_payload: stored }) {
  switch (outcome) {
    case 'IN_PROGRESS': throw new Busy();
    case 'FAILED': return { replayed, response: { state: 'declined' } };
    case 'COMPLETED': return { replayed, response: stored };
    default: return null;
  }
}
