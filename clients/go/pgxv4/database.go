package pgxv4

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"example.org/idempotency"
	"github.com/jackc/pgconn"
	"github.com/jackc/pgconn/stmtcache"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// Connect opens a pool that works behind pgbouncer in transaction mode. url is as
// for pgxpool.Connect.
func Connect(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	return pgxpool.ConnectConfig(ctx, config)
}

// Config is what Connect opens, for pools with settings of your own: each
// statement is described once and sent unnamed.
func Config(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.BuildStatementCache = func(conn *pgconn.PgConn) stmtcache.Cache {
		return stmtcache.New(conn, stmtcache.ModeDescribe, 512)
	}
	return config, nil
}

// Pool makes a pool known to idempotency.New. The work gets a pgx.Tx.
func Pool(pool *pgxpool.Pool) idempotency.Database[pgx.Tx] { return database{pool} }

type database struct{ pool *pgxpool.Pool }

// Acquire passes over connections that the server has closed meanwhile.
func (d database) Acquire(ctx context.Context) (idempotency.Conn[pgx.Tx], error) {
	for {
		pooled, err := d.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		if !isClosedByPeer(pooled.Conn().PgConn().Conn()) {
			return &conn{pooled: pooled}, nil
		}
		_ = pooled.Conn().PgConn().Conn().Close()
		_ = pooled.Conn().Close(ctx)
		pooled.Release()
	}
}

func (d database) In(ctx context.Context, tx pgx.Tx, statement idempotency.Statement) ([]idempotency.Row, error) {
	rows, _, err := send(ctx, tx.Conn().PgConn(), statement)
	return rows, err
}

// conn is one connection of the pool.
type conn struct {
	pooled *pgxpool.Conn
	tx     *transaction
	stop   func()
}

func (c *conn) Query(ctx context.Context, statement idempotency.Statement) ([]idempotency.Row, error) {
	rows, _, err := send(ctx, c.pooled.Conn().PgConn(), statement)
	return rows, err
}

func (c *conn) Begin(ctx context.Context, level sql.IsolationLevel, statements ...idempotency.Statement) ([]idempotency.Row, error) {
	begin, err := beginAt(level)
	if err != nil {
		return nil, err
	}
	connection := c.pooled.Conn()
	c.tx = &transaction{conn: connection}
	rows, _, err := send(ctx, connection.PgConn(), append([]idempotency.Statement{{SQL: begin}}, statements...)...)
	if err == nil {
		c.stop = closeWhenOver(ctx, connection)
	}
	return rows, err
}

func beginAt(level sql.IsolationLevel) (string, error) {
	switch level {
	case sql.LevelDefault:
		return "BEGIN", nil
	case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return "BEGIN ISOLATION LEVEL " + level.String(), nil
	}
	return "", fmt.Errorf("pgxv4: no isolation level %v", level)
}

// closeWhenOver closes the socket when ctx ends, so that the server rolls back
// even if the work does not look at its context. The function that it returns
// ends the watch; after it, nothing closes any more.
func closeWhenOver(ctx context.Context, connection *pgx.Conn) func() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			_ = connection.PgConn().Conn().Close()
		case <-stop:
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

func (c *conn) unwatch() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

func (c *conn) Tx() pgx.Tx { return c.tx }

func (c *conn) Commit(ctx context.Context, statements ...idempotency.Statement) error {
	c.tx.ended = true
	_, tag, err := send(ctx, c.pooled.Conn().PgConn(), append(statements, idempotency.Statement{SQL: "COMMIT"})...)
	c.unwatch()
	if err == nil && tag != "COMMIT" {
		return idempotency.ErrCommitRolledBack
	}
	return err
}

func (c *conn) Rollback(ctx context.Context) error {
	c.unwatch()
	if c.tx != nil {
		c.tx.ended = true
	}
	if c.pooled.Conn().IsClosed() {
		return idempotency.ConnectionLost(errors.New("pgxv4: the connection is closed"))
	}
	if c.pooled.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	_, _, err := send(ctx, c.pooled.Conn().PgConn(), idempotency.Statement{SQL: "ROLLBACK"})
	return err
}

func (c *conn) Release() {
	c.unwatch()
	c.pooled.Release()
}

// send sends all statements in one round trip, unnamed, in the extended protocol.
// It returns the rows of the first statement that has any, and the last tag.
func send(ctx context.Context, connection *pgconn.PgConn, statements ...idempotency.Statement) ([]idempotency.Row, string, error) {
	batch := &pgconn.Batch{}
	for _, statement := range statements {
		batch.ExecParams(statement.SQL, valuesOf(statement.Args), nil, nil, nil)
	}
	results, err := connection.ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		if idempotency.SQLState(err) == "" && connection.IsClosed() && ctx.Err() == nil {
			err = idempotency.ConnectionLost(err)
		}
		return nil, "", err
	}
	var rows []idempotency.Row
	tag := ""
	for _, result := range results {
		if rows == nil && len(result.FieldDescriptions) > 0 {
			rows = rowsOf(result.Rows)
		}
		tag = string(result.CommandTag)
	}
	return rows, tag, nil
}

func valuesOf(args []*string) [][]byte {
	values := make([][]byte, len(args))
	for i, arg := range args {
		if arg != nil {
			values[i] = []byte(*arg)
		}
	}
	return values
}

func rowsOf(raw [][][]byte) []idempotency.Row {
	rows := make([]idempotency.Row, len(raw))
	for i, columns := range raw {
		rows[i] = make(idempotency.Row, len(columns))
		for j, column := range columns {
			if column != nil {
				text := string(column)
				rows[i][j] = &text
			}
		}
	}
	return rows
}
