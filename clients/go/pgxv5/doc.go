// Package pgxv5 connects package idempotency to pgx version 5.
//
// The package's statements leave nothing in a session that a pooler would miss, so
// they work behind pgbouncer in transaction mode, whatever its version: where a pooler
// is in between, they are unnamed. They travel together: BEGIN with idem_begin,
// idem_complete with COMMIT. A transaction of n statements takes n + 2 round trips.
// Connect makes a pool whose own statements do the same.
package pgxv5
