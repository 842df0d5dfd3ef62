// A consumer of its own process that takes one delivery and may be killed or
// stopped at an answer of a server: node consumer.mjs '{"peer": …, …}'.

import './wire.mjs';
import { operation } from './business.mjs';
import { Stuck, answer } from './deliver.mjs';
import { find, open } from './peers.mjs';
import { roundTrips, setTripwire } from './wire.mjs';

const order = JSON.parse(process.argv[2]);
const made = { ...order.operation, hash: Buffer.from(order.operation.hash, 'hex') };
const opened = await open(find(order.peer), { clients: 2, lease: order.lease });

// Everything is warm before the wire is set: so each answer belongs to the operation.
await answer(opened, operation());
if (order.at) {
  setTripwire(order.at, order.action, order.milliseconds);
}
const trips = roundTrips();
let outcome;
try {
  const { response } = await answer(opened, made, order.patience);
  outcome = { response };
} catch (error) {
  outcome = error instanceof Stuck ? { stuck: true } : { error: `${error.code ?? error.name}: ${error.message}` };
}
console.log(JSON.stringify({ ...outcome, trips: roundTrips() - trips }));
process.exit(0);
