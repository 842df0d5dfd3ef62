package pgxv5

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect opens a pool that works behind pgbouncer in transaction mode. url is as
// for pgxpool.New. It fails if nothing answers there.
func Connect(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Config is what Connect opens, for pools with settings of your own: statements
// are prepared where no pooler is in between. Elsewhere each is described once, and
// sent unnamed. The pool finds out which by a connection of its own, before its
// first one. A default_query_exec_mode in the url stands.
func Config(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		config.BeforeConnect = (&prober{}).choose
	}
	return config, nil
}

// prober finds out once whether a pooler is in between.
type prober struct {
	mutex sync.Mutex
	asked bool
	mode  pgx.QueryExecMode
}

func (p *prober) choose(ctx context.Context, config *pgx.ConnConfig) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.asked {
		conn, err := pgconn.ConnectConfig(ctx, config.Config.Copy())
		if err != nil {
			return err
		}
		p.asked, p.mode = true, pgx.QueryExecModeCacheDescribe
		if isDirect(ctx, conn) {
			p.mode = pgx.QueryExecModeCacheStatement
		}
		_ = conn.Close(ctx)
	}
	config.DefaultQueryExecMode = p.mode
	return nil
}

// isDirect: the process that the connection was told of at its start is the one
// that answers. A pooler makes up a number of its own.
func isDirect(ctx context.Context, conn *pgconn.PgConn) bool {
	result := conn.ExecParams(ctx, "SELECT pg_backend_pid()::text", nil, nil, nil, nil).Read()
	return result.Err == nil && len(result.Rows) == 1 && string(result.Rows[0][0]) == strconv.FormatUint(uint64(conn.PID()), 10)
}

// Pool makes a pool known to idempotency.New. The work gets a pgx.Tx.
func Pool(pool *pgxpool.Pool) idempotency.Database[pgx.Tx] { return database{pool} }

type database struct{ pool *pgxpool.Pool }

// Acquire leaves it to the pool to pass over dead connections.
func (d database) Acquire(ctx context.Context) (idempotency.Conn[pgx.Tx], error) {
	pooled, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{pooled: pooled}, nil
}

// In leaves it to tx to refuse what comes after its end: its connection may be another
// caller's by then.
func (d database) In(ctx context.Context, tx pgx.Tx, statement idempotency.Statement) ([]idempotency.Row, error) {
	args := make([]any, len(statement.Args))
	for i, arg := range statement.Args {
		args[i] = arg
	}
	answer, err := tx.Query(ctx, statement.SQL, args...)
	if err != nil {
		return nil, named(ctx, tx.Conn(), err)
	}
	rows, err := pgx.CollectRows(answer, func(row pgx.CollectableRow) (idempotency.Row, error) {
		return rowOf(row.RawValues()), nil
	})
	return rows, named(ctx, tx.Conn(), err)
}

// conn is one connection of the pool.
type conn struct {
	pooled *pgxpool.Conn
	tx     *transaction
	stop   func()
}

func (c *conn) Query(ctx context.Context, statement idempotency.Statement) ([]idempotency.Row, error) {
	return send(ctx, c.pooled.Conn(), statement)
}

func (c *conn) Begin(ctx context.Context, level sql.IsolationLevel,
	statements ...idempotency.Statement) ([]idempotency.Row, error) {
	begin, err := beginAt(level)
	if err != nil {
		return nil, err
	}
	connection := c.pooled.Conn()
	c.tx = &transaction{conn: connection}
	rows, err := send(ctx, connection, append([]idempotency.Statement{{SQL: begin}}, statements...)...)
	c.stop = closeWhenOver(ctx, connection)
	return rows, err
}

func beginAt(level sql.IsolationLevel) (string, error) {
	switch level {
	case sql.LevelDefault:
		return "BEGIN", nil
	case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return "BEGIN ISOLATION LEVEL " + level.String(), nil
	}
	return "", fmt.Errorf("pgxv5: no isolation level %v", level)
}

// closeWhenOver closes the socket when ctx ends, so that the server rolls back
// even if the work does not look at its context. The function that it returns
// ends the watch.
func closeWhenOver(ctx context.Context, connection *pgx.Conn) func() {
	stop := context.AfterFunc(ctx, func() { _ = connection.PgConn().Conn().Close() })
	return func() {
		if !stop() {
			_ = connection.Close(ctx) // so that the pool does not take it for a good one
		}
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
	_, err := send(ctx, c.pooled.Conn(), append(statements, idempotency.Statement{SQL: "COMMIT"})...)
	return err
}

func (c *conn) Rollback(ctx context.Context, statements ...idempotency.Statement) error {
	rollback := idempotency.Statement{SQL: "ROLLBACK"}
	c.unwatch()
	if c.tx != nil {
		c.tx.ended = true
	}
	if len(statements) > 0 {
		// where one fails, ROLLBACK was not reached: it follows below
		_, _ = send(ctx, c.pooled.Conn(), append(statements, rollback)...)
	}
	if c.pooled.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	_, err := send(ctx, c.pooled.Conn(), rollback)
	if err != nil && !c.pooled.Conn().IsClosed() {
		return c.pooled.Conn().Close(ctx) // the work has left rows open
	}
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
// returns the rows, which one of them has at most.
func send(ctx context.Context, connection *pgx.Conn, statements ...idempotency.Statement) (rows []idempotency.Row, err error) {
	results, err := run(ctx, connection, statements)
	if err != nil {
		return nil, named(ctx, connection, err)
	}
	for _, result := range results {
		for _, columns := range result.Rows {
			rows = append(rows, rowOf(columns))
		}
	}
	return rows, nil
}

// named says by ConnectionLost that the connection is gone, or is given up: then the whole
// is repeated.
func named(ctx context.Context, connection *pgx.Conn, err error) error {
	switch state := idempotency.SQLState(err); {
	case state == unknownStatement:
		_ = connection.Close(ctx)
	case err == nil || state != "" || !connection.IsClosed() || ctx.Err() != nil:
		return err
	}
	return idempotency.ConnectionLost(err)
}

// run has what repeats prepared where pgx itself prepares. That is a round trip of its
// own, once for each connection. A transaction that has failed prepares nothing.
func run(ctx context.Context, connection *pgx.Conn, statements []idempotency.Statement) ([]*pgconn.Result, error) {
	prepares := prepares(connection) && connection.PgConn().TxStatus() != 'E'
	batch := &pgconn.Batch{}
	for _, statement := range statements {
		if !prepares || len(statement.Args) == 0 {
			batch.ExecParams(statement.SQL, valuesOf(statement.Args), nil, nil, nil)
			continue
		}
		prepared, err := connection.Prepare(ctx, statement.SQL, statement.SQL)
		if err != nil {
			return nil, err
		}
		batch.ExecPrepared(prepared.Name, valuesOf(statement.Args), nil, nil)
	}
	return connection.PgConn().ExecBatch(ctx, batch).ReadAll()
}

// modeKey is where a connection keeps what prepares has found out: to ask for its
// configuration is to copy it.
const modeKey = "idempotency: pgx prepares"

func prepares(connection *pgx.Conn) bool {
	known, isKnown := connection.PgConn().CustomData()[modeKey].(bool)
	if !isKnown {
		known = connection.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
		connection.PgConn().CustomData()[modeKey] = known
	}
	return known
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

func rowOf(columns [][]byte) idempotency.Row {
	row := make(idempotency.Row, len(columns))
	for i, column := range columns {
		if column != nil {
			text := string(column)
			row[i] = &text
		}
	}
	return row
}
