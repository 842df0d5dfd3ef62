// Time. Every timer and every pause of the package goes through a clock, so that a test of leases and of
// retries can let an hour pass in a moment.
import { setTimeout } from 'node:timers/promises'

/**
 * @typedef {object} Clock
 * @property {() => number} now milliseconds since 1970, which only grow
 * @property {(ms: number, signal?: AbortSignal) => Promise<void>} sleep ends early, without an error, when the signal is aborted
 * @property {(ms: number, call: () => unknown) => () => void} every calls again and again, at least each 24 days; the result stops it
 */

// A timer of Node that is longer fires at once.
const LONGEST_TIMER = 2 ** 31 - 1

/** @type {Clock} The computer's clock. */
export const systemClock = {
  // Steps of the computer's clock do not matter.
  now: () => performance.timeOrigin + performance.now(),
  async sleep(ms, signal) {
    for (; ms > LONGEST_TIMER && !signal?.aborted; ms -= LONGEST_TIMER) await this.sleep(LONGEST_TIMER, signal)
    await setTimeout(ms, undefined, { signal }).catch(() => {})
  },
  every(ms, call) {
    const timer = setInterval(call, Math.min(ms, LONGEST_TIMER))
    return () => clearInterval(timer)
  },
}

/**
 * A clock for tests: time passes when the test says so.
 *
 * With `{ auto: true }` each sleep lets its own time pass at once, which is what a test of retries wants.
 * @implements {Clock}
 */
export class FakeClock {
  #now
  #auto
  #timers = new Set()
  #watchers = []

  /** @param {{now?: number, auto?: boolean}} [options] now: where time starts, milliseconds since 1970 */
  constructor({ now = 0, auto = false } = {}) {
    this.#now = now
    this.#auto = auto
  }

  /** @returns {number} milliseconds since 1970 */
  now() {
    return this.#now
  }

  /** How many sleeps and repetitions are pending. */
  get pending() {
    return this.#timers.size
  }

  /**
   * @param {number} ms
   * @param {AbortSignal} [signal]
   * @returns {Promise<void>}
   */
  sleep(ms, signal) {
    if (this.#auto) {
      this.#now += ms
      return new Promise((resolve) => setImmediate(resolve))
    }
    return new Promise((resolve) => {
      if (signal?.aborted) return resolve()
      const end = () => {
        this.#timers.delete(timer)
        signal?.removeEventListener('abort', end)
        resolve()
      }
      const timer = this.#add({ at: this.#now + ms, every: 0, call: end })
      signal?.addEventListener('abort', end)
    })
  }

  /**
   * @param {number} ms
   * @param {() => unknown} call
   * @returns {() => void}
   */
  every(ms, call) {
    const timer = this.#add({ at: this.#now + ms, every: ms, call })
    return () => { this.#timers.delete(timer) }
  }

  /**
   * Lets time pass. What is due is called in order, and waited for where it gives a promise.
   * @param {number} ms
   */
  async advance(ms) {
    const end = this.#now + ms
    for (let timer = this.#next(end); timer; timer = this.#next(end)) {
      this.#now = timer.at
      if (timer.every > 0) timer.at += timer.every
      else this.#timers.delete(timer)
      await timer.call()
    }
    this.#now = end
  }

  /**
   * Waits until so many sleeps and repetitions are pending.
   * @param {number} count
   * @returns {Promise<void>}
   */
  whenPending(count) {
    if (this.pending >= count) return Promise.resolve()
    return new Promise((resolve) => this.#watchers.push({ count, resolve }))
  }

  #add(timer) {
    this.#timers.add(timer)
    this.#watchers = this.#watchers.filter(({ count, resolve }) => this.pending < count || resolve())
    return timer
  }

  #next(end) {
    let first
    for (const timer of this.#timers) {
      if (timer.at <= end && (!first || timer.at < first.at)) first = timer
    }
    return first
  }
}
