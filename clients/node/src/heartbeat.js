// Keeps a lease while its work runs: extends it at each third, and says when it is lost. A server that does
// not answer counts as a lost lease once the lease is over by our own clock, as then another caller may have it.
import { LeaseLost, translated } from './errors.js'
import { onConnection } from './transaction.js'

export class Heartbeat {
  #settings
  #operation
  #lease
  #deadline
  #stopTicks
  #extending = Promise.resolve()
  #busy = false
  #controller = new AbortController()

  /**
   * @param {import('./index.js').Settings} settings
   * @param {import('./sql.js').Operation} operation
   * @param {number | string} lease as the caller gave it
   * @param {number} begun when the begin was sent, by the clock
   */
  constructor(settings, operation, lease, begun) {
    const left = Math.max(operation.leaseLeft ?? 0, 1)
    this.#settings = settings
    this.#operation = operation
    this.#lease = lease
    this.#deadline = begun + left
    // rounded up: the third tick must not come just before the deadline
    this.#stopTicks = settings.clock.every(Math.ceil(left / 3), () => this.#tick())
  }

  /** Aborted, with LeaseLost as its reason, when the lease is lost. */
  get signal() {
    return this.#controller.signal
  }

  /** Stops it, and waits for an extension that is under way. */
  async stop() {
    this.#stopTicks()
    await this.#extending
  }

  #tick() {
    if (this.signal.aborted) return undefined
    if (this.#settings.clock.now() >= this.#deadline) {
      return this.#lose(new LeaseLost('the lease could not be extended in time', { code: 'ID409' }))
    }
    if (!this.#busy) this.#extending = this.#extend()
    return this.#extending
  }

  async #extend() {
    const { clock, sql } = this.#settings
    this.#busy = true
    try {
      const sent = clock.now()
      const [{ rows: [[left]] }] = await onConnection(this.#settings, (connection) =>
        connection.send([sql.extend(this.#operation, this.#lease)]))
      this.#deadline = sent + Number(left)
    } catch (error) {
      const named = translated(error)
      // Any other error may go away before the lease is over: the next tick tries again.
      if (named instanceof LeaseLost) this.#lose(named)
    } finally {
      this.#busy = false
    }
  }

  #lose(error) {
    this.#stopTicks()
    this.#settings.emit('leaseLost', this.#operation)
    this.#controller.abort(error)
  }
}
