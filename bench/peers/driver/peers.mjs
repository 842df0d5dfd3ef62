// Every peer by its name, and the connections that each of them gets.

import './wire.mjs';
import pg from 'pg';
import { bare, bareCall, insert, select, selectInsert } from '../bare.mjs';
import { clientReadCommitted, doSelect } from '../client-side.mjs';
import { dbos } from '../dbos.mjs';
import { call, callRaise, inTransaction, leased } from '../extension.mjs';
import { plpgsql, plpgsqlCatch } from '../plpgsql.mjs';
import { redisBarrier, redisLock, redisState } from '../redis.mjs';

export const PEERS = [
  bare, bareCall, insert, select, selectInsert, plpgsql, plpgsqlCatch, clientReadCommitted, doSelect,
  redisLock, redisBarrier, redisState, dbos, call, callRaise, inTransaction, leased,
];

export function find(name) {
  const peer = PEERS.find((p) => p.name === name);
  if (!peer) {
    throw new Error(`there is no peer ${name}`);
  }
  return peer;
}

// The peer, ready to take deliveries. Each has the same driver, a connection a
// client, and at most one connection to Redis, as one process has.
export async function open(peer, { clients, lease = 30_000, executor = 'local' }) {
  const pool = new pg.Pool({ max: clients, idleTimeoutMillis: 0 });
  pool.on('error', () => {});     // a connection that is lost shows at the next query
  const redisSocket = process.env.BENCH_REDIS;
  const redis = peer.redis ? await connectRedis(redisSocket) : null;
  const opened = await peer.open({ pool, redis, redisSocket, lease, executor, clients });
  return {
    ...opened,
    async close() {
      await opened.close?.();
      redis?.disconnect();
      if (!pool.ended) {
        await pool.end();
      }
    },
  };
}

async function connectRedis(path) {
  const { Redis } = await import('ioredis');
  const redis = new Redis({ path, lazyConnect: true });
  await redis.connect();
  return redis;
}
