package idempotency

import (
	"context"
	"database/sql"
)

// Statement is one SQL statement. Each argument is text, and nil is NULL: the
// statement casts it.
type Statement struct {
	SQL  string
	Args []*string
}

// Row is one row of a result. Each column is text, and nil is NULL.
type Row []*string

// Database is what a Client needs of a driver. Tx is the transaction that the
// caller's work gets. Packages pgxv5 and databasesql implement it.
type Database[Tx any] interface {
	// Acquire takes a connection.
	Acquire(ctx context.Context) (Conn[Tx], error)
	// In runs one statement in a transaction of the caller's.
	In(ctx context.Context, tx Tx, statement Statement) ([]Row, error)
}

// Conn is one connection that belongs to one caller until Release. Where a
// method takes several statements, it sends them in one round trip if the
// driver is able to. An error that means that the connection is gone is made
// with ConnectionLost, or is one of package net's or driver.ErrBadConn.
type Conn[Tx any] interface {
	// Query runs one statement outside of a transaction.
	Query(ctx context.Context, statement Statement) ([]Row, error)
	// Begin sends BEGIN and the statements, and returns the rows of the one
	// that has any. When ctx ends, the transaction is rolled back, whatever the work does.
	Begin(ctx context.Context, level sql.IsolationLevel, statements ...Statement) ([]Row, error)
	// Tx is the open transaction, as the caller's work gets it.
	Tx() Tx
	// Commit sends the statements and COMMIT. Whether COMMIT rolled back the client knows by
	// the statements: in a transaction that has failed each of them is an error.
	Commit(ctx context.Context, statements ...Statement) error
	// Rollback sends the statements and ROLLBACK. It ends the transaction if there still
	// is one, also where a statement fails. It fails only if the connection is gone.
	Rollback(ctx context.Context, statements ...Statement) error
	// Release gives the connection back, or closes one that is not idle.
	Release()
}
