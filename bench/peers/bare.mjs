// 1. No protection at all.

import { callGateway, pay, transaction } from './driver/business.mjs';

export const bare = {
  name: 'bare',
  open: async ({ pool }) => ({
    deliver: (operation) => transaction(pool, async (client) => {
      await callGateway(operation);
      return { replayed: false, response: await pay(client, operation) };
    }),
  }),
};
