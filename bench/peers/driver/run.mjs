// One run of one peer: node run.mjs '{"peer": …, "clients": …, …}'.
// Prints one line of JSON. Clients run in a closed loop; the measurement begins
// when connections, statements and scripts are warm.

import './wire.mjs';
import pg from 'pg';
import { operation } from './business.mjs';
import { answer } from './deliver.mjs';
import { counters, redisCounters, serverCpu } from './meters.mjs';
import { find, open } from './peers.mjs';
import { roundTrips } from './wire.mjs';

const WARM_UP = 20;         // operations before round trips are counted

const order = JSON.parse(process.argv[2]);
const accepted = new Set();

async function deliver(opened) {
  const made = operation({ gateway: order.gateway });
  const { response } = await answer(opened, made);
  if (response.state === 'accepted') {
    accepted.add(made.key);
  }
}

// Every client until the time is over; the latencies of its operations.
async function load(opened, clients, seconds) {
  const latencies = [];
  const until = performance.now() + seconds * 1000;
  await Promise.all(Array.from({ length: clients }, async () => {
    for (let now = performance.now(); now < until;) {
      await deliver(opened);
      const ended = performance.now();
      latencies.push(ended - now);
      now = ended;
    }
  }));
  return latencies;
}

async function timed(peer) {
  const opened = await open(peer, order);
  await load(opened, order.clients, order.warmup);
  const cpu = serverCpu();
  const own = process.cpuUsage();
  const started = performance.now();
  const latencies = await load(opened, order.clients, order.seconds);
  const took = (performance.now() - started) / 1000;
  const client = process.cpuUsage(own);
  const spent = serverCpu();
  await opened.close();
  const operations = latencies.length;
  latencies.sort((a, b) => a - b);
  return {
    operations, seconds: took, throughput: operations / took,
    p50: latencies[Math.floor(operations * 0.5)], p99: latencies[Math.floor(operations * 0.99)],
    cpu_postgres: (spent.postgres - cpu.postgres) / 1e6 / operations,    // ms an operation: seconds a thousand
    cpu_redis: (spent.redis - cpu.redis) / 1e6 / operations,
    cpu_client: (client.user + client.system) / 1e3 / operations,
  };
}

// One client, an exact number of operations. Sessions report their counters when
// they end, so a count is always for whole sessions.
async function counted(peer) {
  const redis = peer.redis && await redisCounters();
  const before = await counters();
  const opened = await open(peer, order);
  await repeat(WARM_UP, () => deliver(opened));
  const trips = roundTrips();
  await repeat(order.count, () => deliver(opened));
  const made = roundTrips() - trips;
  await opened.close();
  const after = await counters();
  const operations = order.count + WARM_UP;
  const per = (of, to) => (of - to) / operations;
  const redisAfter = redis && await redisCounters();
  return {
    trips: made / order.count,
    wal: per(after.wal, before.wal), dead: per(after.dead, before.dead), stored: per(after.stored, before.stored),
    redis_memory: redis ? per(redisAfter.memory, redis.memory) : 0,
    redis_log: redis ? per(redisAfter.log, redis.log) : 0,
  };
}

async function repeat(times, work) {
  for (let i = 0; i < times; i++) {
    await work();
  }
}

// How many payments there are for each accepted operation.
async function effects() {
  const client = new pg.Client();
  await client.connect();
  const { rows } = await client.query(`
    SELECT count(*) AS payments, count(DISTINCT reference) AS keys,
      (SELECT sum(balance) FROM accounts) + coalesce(sum(amount), 0) AS money FROM peer_payments`);
  await client.end();
  const [{ payments, keys, money }] = rows;
  return { payments: Number(payments), keys: Number(keys), accepted: accepted.size, money: Number(money) };
}

const peer = find(order.peer);
const figures = await (order.count ? counted(peer) : timed(peer));
console.log(JSON.stringify({ ...figures, effects: await effects() }));
process.exit(0);
