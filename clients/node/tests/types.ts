// What must compile, and what must not: read by types.test.js, not run.
import { Idempotency } from '../src/index.js'
import { expressIdempotency } from '../src/http/express.js'
import { honoIdempotency } from '../src/http/hono.js'
import { HttpIdempotency } from '../src/http/core.js'

const idempotency = new Idempotency({}, { scope: 'types', lease: '30 s', retry: { attempts: 3 } })

expressIdempotency(idempotency, { principal: () => 'anyone', timeout: 0, marker: 'Idempotent-Replayed' })
honoIdempotency(idempotency, { scope: async () => 'own', statuses: (status) => status === 404 ? 'release' : { end: 'fail', retention: '1 day' } })
// @ts-expect-error who asks is missing
expressIdempotency(idempotency)
// @ts-expect-error who asks is missing
honoIdempotency(idempotency, { wait: 1000 })
// @ts-expect-error who asks is missing
new HttpIdempotency(idempotency, {})
// @ts-expect-error a number is no principal
expressIdempotency(idempotency, { principal: () => 7 })
// @ts-expect-error no such end
expressIdempotency(idempotency, { principal: () => 'anyone', statuses: () => 'forget' })
// @ts-expect-error a key is a string
idempotency.transaction(7, null, () => 1)
// @ts-expect-error no such hook
new Idempotency({}, { hooks: { replay: () => {} } })
