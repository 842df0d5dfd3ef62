// A delivery, again and again until it is answered, as a queue would do it.

import { setTimeout as sleep } from 'node:timers/promises';
import { Busy } from './business.mjs';

const PAUSE = 2;
const LONGEST_PAUSE = 20;

export class Stuck extends Error {}

export async function answer(opened, operation, patience = 30_000) {
  const until = performance.now() + patience;
  for (let pause = PAUSE; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
    try {
      return await within(opened.deliver(operation), until);
    } catch (error) {
      if (!(error instanceof Busy)) {
        throw error;
      }
      if (performance.now() > until) {
        throw new Stuck();
      }
      await sleep(pause * (0.5 + Math.random()));
    }
  }
}

// A delivery that waits for a dead owner never comes back.
async function within(promise, until) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Stuck()), Math.max(until - performance.now(), 0) + 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
