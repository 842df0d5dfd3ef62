// Several statements in one round trip. node-postgres sends a query only after the answer to the one
// before it, so BEGIN and COMMIT would cost a round trip each. A Pipeline is one "query" for its queue, and writes
// Parse, Bind and Execute of each statement, and then a single Sync: after an error the server skips the rest. All
// values are text, so it asks for no description of the rows. A statement without a name is parsed each time, which
// poolers in transaction mode require.

/**
 * @typedef {object} Statement
 * @property {string} text
 * @property {(string | Buffer | null)[]} [values]
 * @property {boolean} [repeated] worth to be prepared, where that is possible
 * @property {string} [name] under which it is prepared
 * @property {boolean} [known] it already is
 * @property {string[]} [durations] options of the caller in it that only the server can read
 */
/** @typedef {{rows: (string | null)[][], tag: string}} Answer rows as text, and the command tag */

/** A Submittable of node-postgres. */
export class Pipeline {
  #statements
  #answers = []
  #rows = []

  /**
   * @param {Statement[]} statements
   * @param {(error: Error | null, answers: Answer[]) => void} callback
   */
  constructor(statements, callback) {
    this.#statements = statements
    // node-postgres replaces it when query_timeout is set
    this.callback = callback
  }

  submit(connection) {
    connection.stream.cork?.()
    try {
      for (const { text, values = [], name = '', known } of this.#statements) {
        // What failed in an earlier round trip may have been prepared all the same.
        if (name && !known) connection.close({ type: 'S', name })
        if (!known) connection.parse({ text, name, types: [] })
        connection.bind({ portal: '', statement: name, values, binary: false })
        connection.execute({ portal: '', rows: 0 })
      }
      connection.sync()
    } finally {
      connection.stream.uncork?.()
    }
    return null
  }

  handleDataRow(message) {
    this.#rows.push(message.fields)
  }

  handleCommandComplete(message) {
    this.#answers.push({ rows: this.#rows, tag: message.text })
    this.#rows = []
  }

  handleError(error) {
    this.callback(error, [])
  }

  handleReadyForQuery() {
    this.callback(null, this.#answers)
  }
}
