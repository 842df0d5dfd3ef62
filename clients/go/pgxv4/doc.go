// Package pgxv4 connects package idempotency to pgx version 4.
//
// The package's own statements are unnamed and leave nothing in a session, so
// they work behind pgbouncer in transaction mode, whatever its version. They
// travel together: BEGIN with idem_begin, idem_complete with COMMIT. A transaction
// of n statements takes n + 2 round trips. Connect makes a pool whose own
// statements are unnamed, too.
package pgxv4
