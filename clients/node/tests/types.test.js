// Wrong arguments do not compile, and right ones do.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'

test('types.ts compiles, but for the lines that must not', async () => {
  const options = ['--ignoreConfig', '--noEmit', '--strict', '--noImplicitAny', 'false', '--allowJs', '--skipLibCheck', '--module', 'nodenext',
    '--target', 'es2022', '--types', 'node', 'tests/types.ts']
  const { stdout } = await promisify(execFile)('node_modules/.bin/tsc', options).catch((error) => error)
  assert.equal(stdout, '')
})
