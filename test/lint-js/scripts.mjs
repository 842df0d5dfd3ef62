// Reads JavaScript with eslint's rules: node scripts.mjs FILE...  The rules come as one
// file without dependencies; eslint's own command would bring 84 more.
import { readFile } from 'node:fs/promises'
import { Linter } from 'eslint-linter-browserify'
import config from './eslint.config.mjs'

const linter = new Linter()
let found = 0

for (const path of process.argv.slice(2)) {
  for (const { line, column, message, ruleId } of linter.verify(await readFile(path, 'utf8'), config, path)) {
    console.log(`${path}:${line}:${column}: ${message} (${ruleId})`)
    found++
  }
}
process.exitCode = found === 0 && process.argv.length > 2 ? 0 : 1
