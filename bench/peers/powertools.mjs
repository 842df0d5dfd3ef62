// 5. @aws-lambda-powertools/idempotency with its cache persistence layer, around
// the plain transaction. Outside Lambda a context of our own gives it the remaining
// time; without a context, an attempt that died would block its key for as long as
// the record is kept.

import { Busy, callGateway, pay, transaction } from './driver/business.mjs';

const DAY = 86_400;

export const powertools = {
  name: 'powertools', redis: true,
  async open({ pool, redisSocket, lease }) {
    const { createClient } = await import('@redis/client');
    const { IdempotencyConfig, makeIdempotent } = await import('@aws-lambda-powertools/idempotency');
    const { CachePersistenceLayer } = await import('@aws-lambda-powertools/idempotency/cache');
    const client = await createClient({ socket: { path: redisSocket } }).connect();
    const idempotent = makeIdempotent(async (operation) => {
      await callGateway(operation);
      return transaction(pool, (connection) => pay(connection, operation));
    }, {
      persistenceStore: new CachePersistenceLayer({ client }),
      keyPrefix: 'payment',
      config: new IdempotencyConfig({
        eventKeyJmesPath: 'key',
        expiresAfterSeconds: DAY,
        lambdaContext: { getRemainingTimeInMillis: () => lease },
      }),
    });
    return {
      async deliver(operation) {
        try {
          return { response: await idempotent(operation) };
        } catch (error) {
          if (error.name === 'IdempotencyAlreadyInProgressError') {
            throw new Busy();
          }
          throw error;
        }
      },
      close: () => client.close(),
    };
  },
};
