// Options as users give them.

/**
 * Options with their defaults. One that is undefined was not given.
 * @template {object} D
 * @template {object} O
 * @param {D} defaults
 * @param {O} options
 * @returns {D & O}
 */
export function optionsOf(defaults, options) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  return /** @type {D & O} */ ({ ...defaults, ...Object.fromEntries(given) })
}

/**
 * For a function that is told something and must not change what happens: its error, and that of its promise, becomes a warning.
 * @template {unknown[]} Args
 * @param {string} name of the option
 * @param {(...args: Args) => unknown} call
 * @returns {(...args: Args) => void}
 */
export function telling(name, call) {
  return (...args) => {
    new Promise((resolve) => resolve(call(...args))).catch((error) =>
      process.emitWarning(`the hook ${name} failed: ${error?.message}`, 'IdempotencyWarning'))
  }
}
