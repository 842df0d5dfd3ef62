package core_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/databasesql"
	"example.org/idempotency/internal/tests/kit"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun/driver/pgdriver"
)

var (
	background = context.Background()
	serverURL  = kit.URL()
	must       = kit.Must
	newKey     = kit.NewKey
)

func TestMain(m *testing.M) {
	kit.Main(m, `CREATE TABLE IF NOT EXISTS effect (key text NOT NULL);
		CREATE TABLE IF NOT EXISTS duty (who text PRIMARY KEY, on_call boolean NOT NULL)`)
}

// backend is a driver under test.
type backend[Tx any] struct {
	open func(t *testing.T, url string, size int) idempotency.Database[Tx]
	exec func(ctx context.Context, tx Tx, statement string) error
}

var onPgx = backend[pgx.Tx]{
	open: func(t *testing.T, url string, size int) idempotency.Database[pgx.Tx] {
		pool, err := pgxv5.Connect(background, fmt.Sprintf("%s&pool_max_conns=%d", url, size))
		must(t, err)
		t.Cleanup(pool.Close)
		return pgxv5.Pool(pool)
	},
	exec: func(ctx context.Context, tx pgx.Tx, statement string) error {
		_, err := tx.Exec(ctx, statement)
		return err
	},
}

var onSQL = onSQLBy("postgres") // lib/pq

func onSQLBy(driver string) backend[*sql.Tx] {
	return onSQLFrom(func(url string) (*sql.DB, error) { return sql.Open(driver, url) })
}

// onBun is on the driver of bun, whose address of a socket is the path of its file.
var onBun = onSQLFrom(func(address string) (*sql.DB, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	options := parsed.Query()
	return sql.OpenDB(pgdriver.NewConnector(pgdriver.WithNetwork("unix"), pgdriver.WithInsecure(true),
		pgdriver.WithAddr(options.Get("host")+"/.s.PGSQL."+options.Get("port")),
		pgdriver.WithUser(options.Get("user")), pgdriver.WithDatabase(parsed.Path[1:]))), nil
})

func onSQLFrom(open func(url string) (*sql.DB, error)) backend[*sql.Tx] {
	return backend[*sql.Tx]{
		open: func(t *testing.T, url string, size int) idempotency.Database[*sql.Tx] {
			db, err := open(url)
			must(t, err)
			db.SetMaxOpenConns(size)
			db.SetMaxIdleConns(size)
			t.Cleanup(func() { db.Close() })
			return databasesql.DB(db)
		},
		exec: func(ctx context.Context, tx *sql.Tx, statement string) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		},
	}
}

// tests are those of one driver, by name.
type tests[Tx any] map[string]func(*testing.T, backend[Tx])

func (all tests[Tx]) run(t *testing.T, b backend[Tx]) {
	for name, test := range all {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// onBoth runs the tests with both drivers.
func onBoth(t *testing.T, withPgx tests[pgx.Tx], withSQL tests[*sql.Tx]) {
	t.Run("pgx", func(t *testing.T) { withPgx.run(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { withSQL.run(t, onSQL) })
}

// client is a client on a pool of four.
func (b backend[Tx]) client(t *testing.T, options idempotency.Options) *idempotency.Client[Tx] {
	return idempotency.New(b.open(t, serverURL, 4), options)
}

// does is work that stores an empty answer.
func does[Tx any](work func(ctx context.Context, tx Tx) error) idempotency.Work[Tx] {
	return func(ctx context.Context, tx Tx, _ idempotency.Operation) (idempotency.Response, error) {
		return idempotency.Response{}, work(ctx, tx)
	}
}

// responds is work with that answer.
func responds[Tx any](response idempotency.Response) idempotency.Work[Tx] {
	return func(context.Context, Tx, idempotency.Operation) (idempotency.Response, error) { return response, nil }
}

// fails is work that returns that error.
func fails[Tx any](err error) idempotency.Work[Tx] {
	return does(func(context.Context, Tx) error { return err })
}

// runs is work of one statement.
func (b backend[Tx]) runs(statement string) idempotency.Work[Tx] {
	return does(func(ctx context.Context, tx Tx) error { return b.exec(ctx, tx, statement) })
}

// note is work that writes one row and answers with a payload.
func (b backend[Tx]) note(key string) idempotency.Work[Tx] {
	return func(ctx context.Context, tx Tx, o idempotency.Operation) (idempotency.Response, error) {
		return idempotency.Response{Code: 201, Payload: map[string]any{"attempt": o.Attempt}}, b.insert(ctx, tx, key)
	}
}

// beginMany is a batch that begins and does nothing.
func beginMany[Tx any](client *idempotency.Client[Tx], keys []string, requests []any) error {
	return client.Run(background, func(ctx context.Context, tx Tx) error {
		_, err := client.BeginMany(ctx, tx, keys, requests)
		return err
	})
}

func (b backend[Tx]) insert(ctx context.Context, tx Tx, key string) error {
	return b.exec(ctx, tx, fmt.Sprintf("INSERT INTO effect VALUES ('%s')", key))
}

// raise is a statement that fails.
func raise(state string) string { return fmt.Sprintf("DO $$ BEGIN RAISE SQLSTATE '%s'; END $$", state) }

// admin runs statements beside the client under test.
func admin(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", serverURL)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func execute(t *testing.T, statements string, args ...any) {
	t.Helper()
	_, err := admin(t).Exec(statements, args...)
	must(t, err)
}

func value(t *testing.T, query string, args ...any) string {
	t.Helper()
	var result sql.NullString
	must(t, admin(t).QueryRow(query, args...).Scan(&result))
	return result.String
}

func effects(t *testing.T, key string) string {
	t.Helper()
	return value(t, "SELECT count(*) FROM effect WHERE key = $1", key)
}

func stored(t *testing.T, key string) string {
	t.Helper()
	return value(t, "SELECT coalesce((SELECT status::text FROM idempotency_store WHERE idempotency_key = $1), 'nothing')", key)
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantError(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

// counter counts the calls of each hook.
type counter struct {
	acquired, replayed, inProgress, mismatch, takenOver, leaseLost, declined, retried atomic.Int64
}

func (c *counter) hooks() idempotency.Hooks {
	count := func(n *atomic.Int64) func(idempotency.Event) {
		return func(idempotency.Event) { n.Add(1) }
	}
	return idempotency.Hooks{Acquired: count(&c.acquired), Replayed: count(&c.replayed), InProgress: count(&c.inProgress),
		Mismatch: count(&c.mismatch), TakenOver: count(&c.takenOver), LeaseLost: count(&c.leaseLost),
		Declined: count(&c.declined), Retried: count(&c.retried)}
}
