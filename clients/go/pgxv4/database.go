package pgxv4

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

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

// Config is what Connect opens, for pools with settings of your own: statements
// are prepared where no pooler is in between. Elsewhere each is described once, and
// sent unnamed.
func Config(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.BuildStatementCache = func(conn *pgconn.PgConn) stmtcache.Cache {
		if isDirect(conn) {
			return stmtcache.New(conn, stmtcache.ModePrepare, 512)
		}
		return stmtcache.New(conn, stmtcache.ModeDescribe, 512)
	}
	return config, nil
}

// isDirect: the process that the connection was told of at its start is the one
// that answers. A pooler makes up a number of its own.
func isDirect(conn *pgconn.PgConn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	result := conn.ExecParams(ctx, "SELECT pg_backend_pid()::text", nil, nil, nil, nil).Read()
	return result.Err == nil && len(result.Rows) == 1 && string(result.Rows[0][0]) == strconv.FormatUint(uint64(conn.PID()), 10)
}

// askTimeout is longer than a connection takes to answer that is good for anything.
const askTimeout = 10 * time.Second

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
	rows, _, err := send(ctx, tx.Conn(), statement)
	return rows, err
}

// conn is one connection of the pool.
type conn struct {
	pooled *pgxpool.Conn
	tx     *transaction
	stop   func()
}

func (c *conn) Query(ctx context.Context, statement idempotency.Statement) ([]idempotency.Row, error) {
	rows, _, err := send(ctx, c.pooled.Conn(), statement)
	return rows, err
}

func (c *conn) Begin(ctx context.Context, level sql.IsolationLevel, statements ...idempotency.Statement) ([]idempotency.Row, error) {
	begin, err := beginAt(level)
	if err != nil {
		return nil, err
	}
	connection := c.pooled.Conn()
	c.tx = &transaction{conn: connection}
	rows, _, err := send(ctx, connection, append([]idempotency.Statement{{SQL: begin}}, statements...)...)
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
	_, tag, err := send(ctx, c.pooled.Conn(), append(statements, idempotency.Statement{SQL: "COMMIT"})...)
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
	_, _, err := send(ctx, c.pooled.Conn(), idempotency.Statement{SQL: "ROLLBACK"})
	return err
}

func (c *conn) Release() {
	c.unwatch()
	c.pooled.Release()
}

// unknownStatement is the SQLSTATE of a prepared statement that somebody has thrown
// away, as DISCARD ALL does.
const unknownStatement = "26000"

// send sends all statements in one round trip, in the extended protocol. It
// returns the rows of the first statement that has any, and the last tag.
func send(ctx context.Context, connection *pgx.Conn, statements ...idempotency.Statement) ([]idempotency.Row, string, error) {
	results, err := run(ctx, connection, statements)
	if idempotency.SQLState(err) == unknownStatement {
		// the connection is given up, and the whole is repeated
		_ = connection.Close(ctx)
		return nil, "", idempotency.ConnectionLost(err)
	}
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

// run has what repeats prepared where pgx itself prepares. That is a trip of its
// own, once for each connection. A transaction that has failed prepares nothing.
func run(ctx context.Context, connection *pgx.Conn, statements []idempotency.Statement) ([]*pgconn.Result, error) {
	cache := connection.StatementCache()
	prepares := cache != nil && cache.Mode() == stmtcache.ModePrepare && connection.PgConn().TxStatus() != 'E'
	batch := &pgconn.Batch{}
	for _, statement := range statements {
		if !prepares || len(statement.Args) == 0 {
			batch.ExecParams(statement.SQL, valuesOf(statement.Args), nil, nil, nil)
			continue
		}
		prepared, err := cache.Get(ctx, statement.SQL)
		if err != nil {
			return nil, err
		}
		batch.ExecPrepared(prepared.Name, valuesOf(statement.Args), nil, nil)
	}
	return connection.PgConn().ExecBatch(ctx, batch).ReadAll()
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
