// The test of duplicate deliveries, the same for every peer:
// node judge.mjs '{"peer": …, "keys": …}' prints one line of JSON.
//
// Each case delivers the same operation several times, and demands exactly one
// payment, and the same answer for all deliveries; if it is declined, no payment.

import './wire.mjs';
import { spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { operation } from './business.mjs';
import { Stuck, answer } from './deliver.mjs';
import { find, open } from './peers.mjs';

const LEASE = 1000;             // milliseconds, of locks and leases
const PATIENCE = 12_000;        // a delivery that takes longer is stuck
const AT_ONCE = 8;              // processes
const CONSUMER = new URL('consumer.mjs', import.meta.url).pathname;

const order = JSON.parse(process.argv[2]);
const peer = find(order.peer);
const database = new pg.Client();
let opened;

// ---- cases ----

async function inTurn() {
  return many((made) => series([1, 2, 3], () => deliver(made)));
}

async function atOnce() {
  return many((made) => Promise.all([1, 2, 3].map(() => deliver(made))));
}

async function declined() {
  return many((made) => series([1, 2, 3], () => deliver(made)), { declined: true });
}

// Killed before it has read the n-th answer; delivered again by a new process.
async function killed(answers) {
  return atEveryAnswer(answers, async (made, at) => {
    const first = await consume(made, { at, action: 'kill' });
    await sleep(first.tripped ? LEASE + 100 : 0);
    const second = await consume(made, {});
    return [first, second, await deliver(made)];
  });
}

// Stopped at the n-th answer for longer than its lease, while a duplicate comes.
async function stalled(answers) {
  return atEveryAnswer(answers, async (made, at) => {
    let duplicate;
    const first = await consume(made, { at, action: 'stall', milliseconds: LEASE * 2 }, () => {
      duplicate = deliver(made);
    });
    return [first, await duplicate, await deliver(made)];
  });
}

// ---- what they share ----

async function many(deliveries, wanted = {}) {
  const verdicts = [];
  for (let i = 0; i < order.keys; i++) {
    const made = operation(wanted);
    verdicts.push(await judge(made, await deliveries(made), wanted.declined ? 0 : 1));
  }
  return sum(verdicts);
}

async function atEveryAnswer(answers, deliveries) {
  const todo = Array.from({ length: answers }, (_, i) => i + 1);
  const verdicts = [];
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let at; (at = todo.shift());) {
      const made = operation();
      verdicts.push(await judge(made, await deliveries(made, at), 1));
    }
  }));
  const verdict = sum(verdicts);
  if (verdict.hit === 0) {
    throw new Error('no fault has struck: that proves nothing');
  }
  return verdict;
}

async function series(items, body) {
  const results = [];
  for (const item of items) {
    results.push(await body(item));
  }
  return results;
}

async function deliver(made) {
  try {
    return { response: (await answer(opened, made, PATIENCE)).response };
  } catch (error) {
    return error instanceof Stuck ? { stuck: true } : { error: error.message };
  }
}

// A delivery in a process of its own: how it ended, and whether its wire tripped.
async function consume(made, wire, tripped = () => {}) {
  const child = spawn(process.execPath, [CONSUMER, JSON.stringify({
    peer: peer.name, lease: LEASE, patience: PATIENCE,
    operation: { ...made, hash: made.hash.toString('hex') }, ...wire,
  })], { stdio: ['ignore', 'pipe', 'inherit'] });
  const result = {};
  const ended = new Promise((resolve) => child.on('close', resolve));
  let text = '';
  for await (const chunk of child.stdout) {
    text += chunk;
    for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) {
      const line = JSON.parse(text.slice(0, end));
      if (line.tripped) {
        tripped();
      }
      Object.assign(result, line);
    }
  }
  await ended;
  return result;
}

// How many payments there are, and whether the answers speak of them.
async function judge(made, results, wanted) {
  const { rows } = await database.query('SELECT id FROM peer_payments WHERE reference = $1', [made.key]);
  const answers = new Set(results.filter((r) => r.response).map((r) => String(r.response.payment)));
  return {
    cases: 1,
    hit: results[0].tripped ? 1 : 0,
    twice: rows.length > wanted ? 1 : 0,
    lost: rows.length < wanted ? 1 : 0,
    stuck: results.some((r) => r.stuck) ? 1 : 0,
    unlike: answers.size > 1 ? 1 : 0,
    errors: results.filter((r) => r.error).map((r) => r.error),
  };
}

function sum(verdicts) {
  const total = (name) => verdicts.reduce((count, verdict) => count + verdict[name], 0);
  const result = Object.fromEntries(['cases', 'hit', 'twice', 'lost', 'stuck', 'unlike'].map((n) => [n, total(n)]));
  const errors = [...new Set(verdicts.flatMap((v) => v.errors))].slice(0, 3);
  return { ...result, errors, right: !(result.twice || result.lost || result.stuck || result.unlike) };
}

// How many answers an operation waits for, and so how many cases there are.
async function answersOfOne() {
  const result = await consume(operation(), {});
  if (!result.response || !result.trips) {
    throw new Error(`a delivery without faults ended in ${JSON.stringify(result)}`);
  }
  return result.trips;
}

async function main() {
  await database.connect();
  opened = await open(peer, { clients: 8, lease: LEASE });
  const verdict = { 'in turn': await inTurn(), 'at once': await atOnce(), declined: await declined() };
  if (order.faults) {
    const answers = await answersOfOne();
    verdict.killed = await killed(answers);
    verdict.stalled = await stalled(answers);
  }
  console.log(JSON.stringify(verdict));
  process.exit(0);
}

await main();
