// Sees every packet of every library: counts round trips, and can kill or stop
// this process at one of them. Import it before anything opens a connection.
//
// A round trip is a write to a connection that was read from since the last one.
// The figure holds for one operation at a time: libraries that share a connection
// between operations send them together.

import fs from 'node:fs';
import net from 'node:net';

const COUNTED = Symbol('counted');
const ASKED = Symbol('asked');

let trips = 0;
let answers = 0;
let tripwire = null;

const { connect, write, push } = net.Socket.prototype;

net.Socket.prototype.connect = function (...args) {
  this[COUNTED] = true;
  return connect.apply(this, args);
};

net.Socket.prototype.write = function (...args) {
  if (this[COUNTED] && !this[ASKED]) {
    this[ASKED] = true;
    trips++;
  }
  return write.apply(this, args);
};

net.Socket.prototype.push = function (chunk, ...rest) {
  if (chunk && this[ASKED]) {
    this[ASKED] = false;
    answers++;
    if (tripwire && answers === tripwire.at) {
      trip();
    }
  }
  return push.call(this, chunk, ...rest);
};

export function roundTrips() {
  return trips;
}

// From now on, at the n-th answer of a server: "kill" dies before this process
// has read it, "stall" sleeps as a stopped process does.
export function setTripwire(at, action, milliseconds) {
  answers = 0;
  tripwire = { at, action, milliseconds };
}

function trip() {
  fs.writeSync(1, `${JSON.stringify({ tripped: tripwire.action })}\n`);
  if (tripwire.action === 'kill') {
    process.kill(process.pid, 'SIGKILL');
  }
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, tripwire.milliseconds);
}
