// Keeps a lease while its work runs: extends it at each third, and says when it is lost. A server that does
// not answer counts as a lost lease once the lease is over by our own clock, as then another caller may have it. The
// server says how long the lease lasts, which a policy may have made shorter than what was asked for.
import { LeaseLost, translated } from './errors.js'
import { onConnection, sendWithin, within } from './transaction.js'

export class Heartbeat {
  #settings
  #operation
  #lease
  #deadline = 0
  #period = 0
  #stopped = false
  #stopTicks = () => {}
  #controller = new AbortController()

  /**
   * @param {import('./index.js').Settings} settings
   * @param {import('./sql.js').Operation} operation
   * @param {number | string} lease as the caller gave it
   * @param {number} begun when the begin was sent, by the clock
   */
  constructor(settings, operation, lease, begun) {
    this.#settings = settings
    this.#operation = operation
    this.#lease = lease
    this.#lasts(begun, operation.leaseLeft)
    this.#arm()
  }

  /** Aborted, with LeaseLost as its reason, when the lease is lost. */
  get signal() {
    return this.#controller.signal
  }

  /** Stops it. An extension that is under way has no effect any more. */
  stop() {
    this.#stopped = true
    this.#stopTicks()
  }

  // What the server answered to a statement that was sent at that time.
  #lasts(since, left) {
    this.#deadline = since + left
    this.#period = left / 3
  }

  #left() {
    return this.#deadline - this.#settings.clock.now()
  }

  #arm() {
    const left = this.#left()
    if (left <= 0) return this.#lose(new LeaseLost('the lease could not be extended in time'))
    this.#stopTicks = this.#settings.clock.every(Math.min(this.#period, left), () => {
      this.#stopTicks()
      return this.#tick()
    })
  }

  async #tick() {
    const lost = this.#left() > 0 ? await this.#extend() : undefined
    if (this.#stopped) return
    if (lost) this.#lose(lost)
    else this.#arm()
  }

  // LeaseLost, or undefined. Every wait is bounded by the time that is left.
  async #extend() {
    const { clock, sql } = this.#settings
    const sent = clock.now()
    const limit = this.#left()
    try {
      const extending = onConnection(this.#settings, (connection) =>
        sendWithin(this.#settings, connection, [sql.extend(this.#operation, this.#lease)], limit))
      const [{ rows: [[left]] }] = await within(this.#settings, limit, extending, () => {})
      this.#lasts(sent, Number(left))
      return undefined
    } catch (error) {
      const named = translated(error)
      // Any other error may go away before the lease is over: the next tick tries again.
      return named instanceof LeaseLost ? named : undefined
    }
  }

  #lose(error) {
    this.#settings.emit('leaseLost', this.#operation)
    this.#controller.abort(error)
  }
}
