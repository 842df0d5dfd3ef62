// Every peer by its name, and the connections that each of them gets.

import './wire.mjs';
import pg from 'pg';
import { createClient } from 'redis';
import { bare } from '../bare.mjs';
import { clientReadCommitted } from '../client-side.mjs';
import { call, inTransaction, leased } from '../extension.mjs';
import { redisBarrier, redisLock, redisState } from '../redis.mjs';

const PEERS = [bare, clientReadCommitted, redisLock, redisBarrier, redisState, call, inTransaction, leased];

export function find(name) {
  const peer = PEERS.find((p) => p.name === name);
  if (!peer) {
    throw new Error(`there is no peer ${name}`);
  }
  return peer;
}

// The peer, ready to take deliveries. Each has the same driver, a connection a
// client, and at most one connection to Redis, as one process has.
export async function open(peer, { clients, lease = 30_000 }) {
  const pool = new pg.Pool({ max: clients, idleTimeoutMillis: 0 });
  pool.on('error', () => {});     // a connection that is lost shows at the next query
  const redis = peer.redis ? await connectRedis() : null;
  const opened = await peer.open({ pool, redis, lease });
  return {
    ...opened,
    async close() {
      redis?.destroy();
      await pool.end();
    },
  };
}

export function connectRedis() {
  const redis = createClient({ socket: { path: process.env.BENCH_REDIS } });
  redis.on('error', () => {});    // as above
  return redis.connect();
}
