// Names each test that failed, and ends with the project's line: "N passed, N failed". A test that was
// skipped has shown nothing, so it counts as failed.
import { inspect } from 'node:util'

export default async function* report(source) {
  let passed = 0
  let failed = 0
  for await (const { type, data } of source) {
    if (type === 'test:pass' && !isGroup(data)) {
      if (data.skip === undefined && data.todo === undefined) passed++
      else yield (failed++, `skipped: ${data.name}\n`)
    } else if (type === 'test:fail' && !isGroup(data)) {
      failed++
      yield `not ok: ${data.name} (${data.file}:${data.line})\n${inspect(data.details.error?.cause ?? data.details.error)}\n`
    } else if (type === 'test:stderr' || type === 'test:stdout') {
      yield data.message
    }
  }
  if (passed + failed === 0) failed = 1
  yield `${passed} passed, ${failed} failed\n`
}

// A suite is no test, unless its own hooks failed.
function isGroup({ details }) {
  return details?.type === 'suite' && details.error?.failureType !== 'hookFailed'
}
