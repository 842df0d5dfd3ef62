package pgxv5

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotYours is what Commit and Rollback of the work's transaction return.
var errNotYours = errors.New("pgxv5: the client ends the transaction: return an error to roll it back")

// errLeft: what came behind a ROLLBACK or COMMIT of the work's own would commit by itself, and again with each attempt.
var errLeft = fmt.Errorf("%w: the work ended its transaction: %w", idempotency.ErrNotOwned, pgx.ErrTxClosed)

// transaction is the pgx.Tx that the work gets, or a savepoint of it. BEGIN was sent
// with idem_begin, so it cannot be pgx's own.
type transaction struct {
	conn   *pgx.Conn
	parent *transaction // nil: it is no savepoint
	name   string       // of the savepoint
	nested int          // savepoints so far
	ended  bool
}

// over is an error if it has ended, or what it is a savepoint of has. The server told of its state with its last answer.
func (t *transaction) over() error {
	for one := t; one != nil; one = one.parent {
		if one.ended {
			return pgx.ErrTxClosed
		}
	}
	if t.conn.PgConn().TxStatus() == 'I' {
		return errLeft
	}
	return nil
}

// Begin sets a savepoint.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.over(); err != nil {
		return nil, err
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
	if err := t.over(); err != nil {
		return err
	}
	t.ended = true
	_, err := t.conn.Exec(ctx, command+t.name)
	return err
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	source pgx.CopyFromSource) (int64, error) {
	if err := t.over(); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := t.over(); err != nil {
		return closedBatch{err: err}
	}
	return t.conn.SendBatch(ctx, batch)
}

// LargeObjects panics: pgx makes them for transactions of its own only. Use the
// server's functions, such as lo_from_bytea.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	panic("pgxv5: no large objects in this transaction: call the server's lo_ functions")
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.over(); err != nil {
		return nil, err
	}
	return t.conn.Prepare(ctx, name, sql)
}

func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if err := t.over(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.conn.Exec(ctx, sql, arguments...)
}

func (t *transaction) Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error) {
	if err := t.over(); err != nil {
		return closedRows{err: err}, err
	}
	return t.conn.Query(ctx, sql, arguments...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	if err := t.over(); err != nil {
		return closedRows{err: err}
	}
	return t.conn.QueryRow(ctx, sql, arguments...)
}

// Conn is the connection. It goes back to the pool when the work has returned.
func (t *transaction) Conn() *pgx.Conn { return t.conn }
