package pgxv5

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotYours is what Commit and Rollback of the work's transaction return.
var errNotYours = errors.New("pgxv5: the client ends the transaction: return an error to roll it back")

// transaction is the pgx.Tx that the work gets. BEGIN was sent with idem_begin,
// so it cannot be pgx's own.
type transaction struct {
	conn       *pgx.Conn
	savepoints int
	ended      bool
}

// Begin sets a savepoint.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.ended {
		return nil, pgx.ErrTxClosed
	}
	t.savepoints++
	name := fmt.Sprintf("idempotency_nested_%d", t.savepoints)
	if _, err := t.conn.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &nested{transaction: t, name: name}, nil
}

// Commit is refused: the client commits when the work has returned.
func (t *transaction) Commit(context.Context) error { return errNotYours }

// Rollback is refused: the client rolls back if the work returns an error.
func (t *transaction) Rollback(context.Context) error { return errNotYours }

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if t.ended {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if t.ended {
		return closedBatch{}
	}
	return t.conn.SendBatch(ctx, batch)
}

// LargeObjects panics: pgx makes them for transactions of its own only. Use the
// server's functions, such as lo_from_bytea.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	panic("pgxv5: no large objects in this transaction: call the server's lo_ functions")
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.ended {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, sql)
}

func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if t.ended {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.conn.Exec(ctx, sql, arguments...)
}

func (t *transaction) Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error) {
	if t.ended {
		return closedRows{}, pgx.ErrTxClosed
	}
	return t.conn.Query(ctx, sql, arguments...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	if t.ended {
		return closedRows{}
	}
	return t.conn.QueryRow(ctx, sql, arguments...)
}

// Conn is the connection. It goes back to the pool when the work has returned.
func (t *transaction) Conn() *pgx.Conn { return t.conn }

// nested is a savepoint of the work's transaction.
type nested struct {
	*transaction
	name   string
	closed bool
}

// Commit releases the savepoint.
func (n *nested) Commit(ctx context.Context) error { return n.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback rolls back to the savepoint.
func (n *nested) Rollback(ctx context.Context) error { return n.end(ctx, "ROLLBACK TO SAVEPOINT ") }

func (n *nested) end(ctx context.Context, command string) error {
	if n.closed || n.ended {
		return pgx.ErrTxClosed
	}
	n.closed = true
	_, err := n.conn.Exec(ctx, command+n.name)
	return err
}
