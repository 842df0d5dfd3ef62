// 5. graphile-worker with the key as job key, in the mode that runs a job at most
// once while it is queued. A job is forgotten when it has run, and one that died
// is run again: at least once, by design.

import { EventEmitter } from 'node:events';
import pg from 'pg';
import { callGateway, pay, transaction } from './driver/business.mjs';

export const graphileWorker = {
  name: 'graphile-worker',
  waitsForItself: true,     // an event tells the end, to the process that ran the job only
  async open({ pool, clients }) {
    const { Logger, makeWorkerUtils, run } = await import('graphile-worker');
    const logger = new Logger(() => () => {});
    const answers = new Map();
    const finished = new EventEmitter().setMaxListeners(0);
    const events = new EventEmitter();
    const payment = async (operation) => {
      await callGateway(operation);
      answers.set(operation.key, await transaction(pool, (client) => pay(client, operation)));
    };
    // A pool of its own: it keeps connections to itself.
    const own = new pg.Pool({ max: clients + 4 });
    const utils = await makeWorkerUtils({ pgPool: own, logger });
    await utils.migrate();
    const runner = await run({
      pgPool: own, logger, events, noHandleSignals: true, concurrency: clients, pollInterval: 100, taskList: { payment },
    });
    events.on('job:complete', ({ job }) => finished.emit(job.payload.key));
    return {
      async deliver({ key, account, amount, data, gateway }) {
        const done = new Promise((resolve) => finished.once(key, resolve));
        await utils.addJob('payment', { key, account, amount, data, gateway }, { jobKey: key });
        await done;
        return { response: answers.get(key) };
      },
      async close() {
        await runner.stop();
        await utils.release();
        await own.end();
      },
    };
  },
};
