// 5. @dbos-inc/dbos-sdk: the key is the workflow's id, the business a transaction
// of DBOS' data source for node-postgres, so that the step's completion commits
// with it. Its system tables are in the same database.

import { UPDATE, INSERT, callGateway } from './driver/business.mjs';

const { PGHOST, PGPORT, PGUSER, PGDATABASE } = process.env;
const DEFAULT_POOL = 10;

export const dbos = {
  name: 'dbos',
  async open({ pool, executor, clients }) {
    const { DBOS } = await import('@dbos-inc/dbos-sdk');
    const { DrizzleDataSource } = await import('@dbos-inc/drizzle-datasource');
    const { sql } = await import('drizzle-orm');
    const source = new DrizzleDataSource('payments', pool);
    const workflow = DBOS.registerWorkflow(async (operation) => {
      if (operation.gateway) {
        await DBOS.runStep(() => callGateway(operation), { name: 'gateway' });
      }
      return source.runTransaction(
        () => pay(source.client, sql, operation), { name: 'pay', isolationLevel: 'read committed' });
    }, { name: 'payment' });
    DBOS.setConfig({
      name: 'bench', applicationVersion: '1', executorID: executor, logLevel: 'error',
      systemDatabaseUrl: `postgresql://${PGUSER}@localhost:${PGPORT}/${PGDATABASE}?host=${encodeURIComponent(PGHOST)}`,
      systemDatabasePoolSize: Math.max(clients, DEFAULT_POOL),   // with less it waits for itself
    });
    await DBOS.launch();
    return {
      async deliver({ key, account, amount, data, gateway }) {
        const handle = await DBOS.startWorkflow(workflow, { workflowID: key })({ key, account, amount, data, gateway });
        return { response: await handle.getResult() };
      },
      close: () => DBOS.shutdown(),
    };
  },
};

// The statements of business.mjs, through the data source's own client.
async function pay(client, sql, { account, amount, key, data }) {
  const updated = await client.execute(bind(sql, UPDATE.text, [account, amount]));
  if (updated.rowCount === 0) {
    return { state: 'declined' };
  }
  const { rows } = await client.execute(bind(sql, INSERT.text, [account, amount, key]));
  return { payment: Number(rows[0].id), state: 'accepted', data };
}

function bind(sql, text, values) {
  const parts = text.split(/\$(\d+)/);
  return sql.join(parts.map((part, i) => (i % 2 ? sql`${values[part - 1]}` : sql.raw(part))));
}
