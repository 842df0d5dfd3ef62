// The costs on the servers: processor time from /proc, counters from SQL.

import fs from 'node:fs';
import pg from 'pg';
import { connectRedis } from './peers.mjs';

const TICKS = 100;      // USER_HZ, on every Linux

// Nanoseconds of the postmaster's children, the dead among them, and of Redis.
export function serverCpu() {
  const postmaster = Number(fs.readFileSync(`${process.env.PGDATA}/postmaster.pid`, 'utf8').split('\n')[0]);
  const children = fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name) && parent(name) === postmaster);
  const [childrenUser, childrenSystem] = stat(postmaster).slice(13, 15);
  return {
    postgres: children.reduce((sum, pid) => sum + onCpu(pid), 0)
      + (Number(childrenUser) + Number(childrenSystem)) * 1e9 / TICKS,
    redis: process.env.BENCH_REDIS_PID ? onCpu(process.env.BENCH_REDIS_PID) : 0,
  };
}

function stat(pid) {
  const text = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  return text.slice(text.lastIndexOf(')') + 2).split(' ');
}

function parent(pid) {
  try {
    return Number(stat(pid)[1]);
  } catch {
    return 0;       // gone meanwhile
  }
}

// All threads: Redis writes its log from one of its own.
function onCpu(pid) {
  try {
    return fs.readdirSync(`/proc/${pid}/task`).reduce((sum, thread) =>
      sum + Number(fs.readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]), 0);
  } catch {
    return 0;
  }
}

// The cost of an operation besides time. Sessions report their counters when they
// end, so all of them must have ended before this is called.
export async function counters() {
  const client = new pg.Client();
  await client.connect();
  try {
    await othersGone(client);
    const { rows } = await client.query(`
      SELECT pg_current_wal_insert_lsn() - '0/0' AS wal,
        (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables
          WHERE relname NOT IN ('accounts', 'peer_payments')) AS dead,
        (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)
          FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
          WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')
            AND relname NOT IN ('accounts', 'peer_payments')) AS stored`);
    const [counted] = rows;
    return { wal: Number(counted.wal), dead: Number(counted.dead), stored: Number(counted.stored) };
  } finally {
    await client.end();
  }
}

// The memory of Redis, and the bytes that it has appended to its log.
export async function redisCounters() {
  const redis = await connectRedis();
  try {
    const info = await redis.info();
    const figure = (name) => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)[1]);
    return { memory: figure('used_memory_dataset'), log: figure('aof_current_size') };
  } finally {
    redis.destroy();
  }
}

async function othersGone(client) {
  for (let tries = 0; tries < 500; tries++) {
    const { rows } = await client.query(
      "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
    if (rows.length === 0) {
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error('sessions that should have ended are still there');
}
