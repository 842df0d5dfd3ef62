package pgxv5

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotYours is what Commit and Rollback of the work's transaction return.
var errNotYours = errors.New("pgxv5: the client ends the transaction: return an error to roll it back")

// transaction is the pgx.Tx that the work gets, or a savepoint of it. BEGIN was sent
// with idem_begin, so it cannot be pgx's own.
type transaction struct {
	conn   *pgx.Conn
	parent *transaction // nil: it is no savepoint
	name   string       // of the savepoint
	nested int          // savepoints so far
	ended  bool
}

// isOver: it has ended, or what it is a savepoint of has.
func (t *transaction) isOver() bool { return t.ended || t.parent != nil && t.parent.isOver() }

// Begin sets a savepoint.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if t.isOver() {
		return nil, pgx.ErrTxClosed
	}
	t.nested++
	name := fmt.Sprintf("%s_%d", cmp.Or(t.name, "idempotency_nested"), t.nested)
	if _, err := t.conn.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &transaction{conn: t.conn, parent: t, name: name}, nil
}

// Commit releases a savepoint. Else it is refused: the client commits when the work has
// returned.
func (t *transaction) Commit(ctx context.Context) error { return t.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback rolls back to a savepoint. Else it is refused: the client rolls back if the
// work returns an error.
func (t *transaction) Rollback(ctx context.Context) error {
	return t.end(ctx, "ROLLBACK TO SAVEPOINT ")
}

func (t *transaction) end(ctx context.Context, command string) error {
	if t.parent == nil {
		return errNotYours
	}
	if t.isOver() {
		return pgx.ErrTxClosed
	}
	t.ended = true
	_, err := t.conn.Exec(ctx, command+t.name)
	return err
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	source pgx.CopyFromSource) (int64, error) {
	if t.isOver() {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if t.isOver() {
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
	if t.isOver() {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, sql)
}

func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if t.isOver() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.conn.Exec(ctx, sql, arguments...)
}

func (t *transaction) Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error) {
	if t.isOver() {
		return closedRows{}, pgx.ErrTxClosed
	}
	return t.conn.Query(ctx, sql, arguments...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	if t.isOver() {
		return closedRows{}
	}
	return t.conn.QueryRow(ctx, sql, arguments...)
}

// Conn is the connection. It goes back to the pool when the work has returned.
func (t *transaction) Conn() *pgx.Conn { return t.conn }
