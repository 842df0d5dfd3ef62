// Package databasesql connects package idempotency to database/sql and any driver for
// PostgreSQL whose errors show their SQLSTATE, as those of lib/pq, pgx and bun's pgdriver do.
//
// database/sql has no pipelining: each statement is a round trip of its own, or
// two, where the driver prepares it first. A transaction of n statements takes
// n + 5 of them with a driver that needs one for each. Package pgxv5 takes n + 2.
package databasesql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"unicode/utf8"

	"example.org/idempotency"
	"example.org/idempotency/internal/bounded"
)

// DB makes a database known to idempotency.New. The work gets a *sql.Tx, which it
// neither commits nor rolls back.
func DB(db *sql.DB) idempotency.Database[*sql.Tx] { return database{db} }

type database struct{ db *sql.DB }

// Acquire takes nothing yet: database/sql takes a connection with the first
// statement, and passes over those that its driver knows to be dead.
func (d database) Acquire(context.Context) (idempotency.Conn[*sql.Tx], error) {
	return &conn{db: d.db}, nil
}

func (d database) In(ctx context.Context, tx *sql.Tx, statement idempotency.Statement) ([]idempotency.Row, error) {
	return query(ctx, tx, statement)
}

type conn struct {
	db *sql.DB
	tx *sql.Tx
}

func (c *conn) Query(ctx context.Context, statement idempotency.Statement) ([]idempotency.Row, error) {
	return query(ctx, c.db, statement)
}

func (c *conn) Begin(ctx context.Context, level sql.IsolationLevel,
	statements ...idempotency.Statement) ([]idempotency.Row, error) {
	var err error
	c.tx, err = bounded.Call(ctx, func() (*sql.Tx, error) {
		return c.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	})
	if err != nil {
		return nil, err
	}
	return c.run(ctx, statements)
}

// run returns the rows of the first statement that has any. When ctx ends it returns,
// also where the driver still waits for an answer, as lib/pq does if the network hangs:
// then database/sql rolls back as soon as it can.
func (c *conn) run(ctx context.Context, statements []idempotency.Statement) ([]idempotency.Row, error) {
	return bounded.Call(ctx, func() (first []idempotency.Row, err error) {
		for _, statement := range statements {
			rows, err := c.runOne(ctx, statement)
			if err != nil {
				return nil, err
			}
			if first == nil {
				first = rows
			}
		}
		return first, nil
	})
}

// runOne takes the short way where there is nothing to send or to read: drivers
// prepare what has arguments.
func (c *conn) runOne(ctx context.Context, statement idempotency.Statement) ([]idempotency.Row, error) {
	if len(statement.Args) > 0 {
		return query(ctx, c.tx, statement)
	}
	_, err := c.tx.ExecContext(ctx, statement.SQL)
	return nil, err
}

func (c *conn) Tx() *sql.Tx { return c.tx }

// Commit takes an error of COMMIT that is not the server's for a lost connection: not
// every driver says so there.
func (c *conn) Commit(ctx context.Context, statements ...idempotency.Statement) error {
	if _, err := c.run(ctx, statements); err != nil {
		return err
	}
	err := c.end(ctx, c.tx.Commit)
	if err == nil || ctx.Err() != nil || idempotency.SQLState(err) != "" {
		return err
	}
	return idempotency.ConnectionLost(err)
}

func (c *conn) end(ctx context.Context, end func() error) error {
	_, err := bounded.Call(ctx, func() (any, error) { return nil, end() })
	return err
}

// Rollback finds nothing to do where the context has ended, or a COMMIT failed:
// database/sql has rolled back.
func (c *conn) Rollback(ctx context.Context, statements ...idempotency.Statement) error {
	if c.tx == nil {
		return nil
	}
	_, _ = c.run(ctx, statements)
	if err := c.end(ctx, c.tx.Rollback); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

func (c *conn) Release() {}

// unreadable is what the server answers to a text that is no UTF-8 or has a NUL. The driver of bun
// sends another text in its place, and two keys could become one.
type unreadable struct{}

func (unreadable) Error() string    { return "databasesql: a text is no UTF-8, or has a NUL" }
func (unreadable) SQLState() string { return "22021" }

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func query(ctx context.Context, on querier, statement idempotency.Statement) (_ []idempotency.Row, err error) {
	args := make([]any, len(statement.Args))
	for i, arg := range statement.Args {
		if arg != nil {
			if !utf8.ValidString(*arg) || strings.ContainsRune(*arg, 0) {
				return nil, unreadable{}
			}
			args[i] = *arg
		}
	}
	rows, err := on.QueryContext(ctx, statement.SQL, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var result []idempotency.Row
	for rows.Next() {
		row := make(idempotency.Row, len(columns))
		targets := make([]any, len(columns))
		for i := range row {
			targets[i] = &row[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		result = append(result, row)
	}
	return result, rows.Err()
}
