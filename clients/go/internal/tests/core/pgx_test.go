package core_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestConnectWhereNothingAnswers(t *testing.T) {
	if pool, err := pgxv5.Connect(background, "postgres:///?host="+t.TempDir()); err == nil {
		pool.Close()
		t.Fatal("no error")
	}
}

// A savepoint that is over, or whose transaction is, does nothing more.
func TestSavepoints(t *testing.T) {
	client, key := idempotency.New(onPgx.open(t, serverURL, 1), idempotency.Options{}), newKey()
	var late []pgx.Tx
	refused := func() {
		t.Helper()
		for _, tx := range late {
			wantError(t, onPgx.insert(background, tx, key), pgx.ErrTxClosed)
			wantError(t, tx.QueryRow(background, "SELECT 1").Scan(), pgx.ErrTxClosed)
			wantError(t, tx.SendBatch(background, &pgx.Batch{}).Close(), pgx.ErrTxClosed)
			_, err := tx.CopyFrom(background, pgx.Identifier{"effect"}, []string{"key"}, pgx.CopyFromRows(nil))
			wantError(t, err, pgx.ErrTxClosed)
			_, err = tx.Prepare(background, "late", "SELECT 1")
			wantError(t, err, pgx.ErrTxClosed)
			_, err = tx.Begin(background)
			wantError(t, err, pgx.ErrTxClosed)
			_, err = client.BeginMany(background, tx, []string{key}, nil)
			wantError(t, err, pgx.ErrTxClosed)
		}
	}
	savepoint := func(ctx context.Context, tx pgx.Tx) pgx.Tx {
		inner, err := tx.Begin(ctx)
		must(t, err)
		must(t, onPgx.insert(ctx, inner, key))
		return inner
	}
	_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx pgx.Tx) error {
		kept, undone, left := savepoint(ctx, tx), savepoint(ctx, tx), savepoint(ctx, tx)
		inside := savepoint(ctx, left)
		must(t, left.Rollback(ctx))
		must(t, undone.Rollback(ctx))
		must(t, kept.Commit(ctx))
		wantError(t, kept.Rollback(ctx), pgx.ErrTxClosed)
		copied, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"key"}, pgx.CopyFromRows([][]any{{"copied"}}))
		same(t, "copied", copied, 1)
		prepared, failure := tx.Prepare(ctx, "own", "SELECT 1")
		must(t, errors.Join(err, failure))
		batch := &pgx.Batch{}
		batch.Queue(prepared.Name)
		must(t, tx.SendBatch(ctx, batch).Close())
		late = []pgx.Tx{kept, undone, left, inside}
		refused()
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the work ended the client's transaction")
		}
		late = append(late, tx)
		return nil
	}))
	must(t, err)
	planned := errors.New("planned")
	_, err = client.Transaction(background, newKey(), nil, does(func(_ context.Context, tx pgx.Tx) error {
		late = append(late, tx)
		return planned
	}))
	wantError(t, err, planned)
	_, err = client.Transaction(background, newKey(), nil, does(func(context.Context, pgx.Tx) error {
		refused()
		return nil
	}))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
}

// What would commit by itself is refused, also behind a savepoint that was left, and says why.
func TestEndedByText(t *testing.T) {
	client, key := idempotency.New(onPgx.open(t, serverURL, 1), idempotency.Options{}), newKey()
	work := func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		must(t, err)
		must(t, onPgx.exec(ctx, tx, "SAVEPOINT own"))
		must(t, onPgx.exec(ctx, tx, "ROLLBACK TO own"))
		must(t, onPgx.insert(ctx, inner, key))
		must(t, onPgx.exec(ctx, tx, "ROLLBACK"))
		var failure error
		for _, tx := range []pgx.Tx{tx, inner} {
			batch := &pgx.Batch{}
			batch.Queue("INSERT INTO effect VALUES ($1)", key)
			wantError(t, onPgx.insert(ctx, tx, key), idempotency.ErrNotOwned)
			wantError(t, tx.QueryRow(ctx, "INSERT INTO effect VALUES ($1) RETURNING key", key).Scan(&key), idempotency.ErrNotOwned)
			wantError(t, tx.SendBatch(ctx, batch).Close(), idempotency.ErrNotOwned)
			_, err = tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"key"}, pgx.CopyFromRows([][]any{{key}}))
			wantError(t, err, idempotency.ErrNotOwned)
			_, failure = client.BeginMany(ctx, tx, []string{key}, nil)
			wantError(t, failure, idempotency.ErrNotOwned)
		}
		return failure
	}
	_, err := client.Transaction(background, key, nil, does(work))
	wantError(t, err, idempotency.ErrNotOwned)
	wantError(t, client.Run(background, work), idempotency.ErrNotOwned)
	same(t, "effects", effects(t, key), "0")
}

// A transaction of the caller's own, of pgx, is refused after its end, too.
func TestBatchAfterTheEnd(t *testing.T) {
	pool, err := pgxv5.Connect(background, serverURL+"&pool_max_conns=1")
	must(t, err)
	defer pool.Close()
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{})
	tx, err := pool.Begin(background)
	must(t, err)
	must(t, tx.Rollback(background))
	_, err = client.Transaction(background, newKey(), nil, does(func(ctx context.Context, _ pgx.Tx) error {
		_, err := client.BeginMany(ctx, tx, []string{newKey()}, nil)
		wantError(t, err, pgx.ErrTxClosed)
		return nil
	}))
	must(t, err)
}

// A connection whose prepared statements are gone, as after DISCARD ALL, is no more an attempt than a dead one.
func TestStatementsThrownAway(t *testing.T) {
	config, err := pgxv5.Config(serverURL + "&pool_max_conns=1")
	must(t, err)
	config.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.Exec(background, "DISCARD ALL")
		return err == nil
	}
	pool, err := pgxpool.NewWithConfig(background, config)
	must(t, err)
	defer pool.Close()
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Retry: idempotency.Retry{Attempts: 1}})
	for range 3 {
		key := newKey()
		_, err := client.Transaction(background, key, nil, onPgx.note(key))
		must(t, err)
		same(t, "effects", effects(t, key), "1")
	}
}

// Who begins a batch may begin the whole again where the connection is gone, or what was prepared on it.
func TestBatchOnALostConnection(t *testing.T) {
	for name, loss := range map[string]string{"terminated": "SELECT pg_terminate_backend(pg_backend_pid())",
		"thrown away": "DEALLOCATE ALL"} {
		client := idempotency.New(onPgx.open(t, serverURL, 1), idempotency.Options{})
		_ = client.Run(background, func(ctx context.Context, tx pgx.Tx) error {
			if name == "thrown away" {
				_, err := client.BeginMany(ctx, tx, []string{newKey()}, nil)
				must(t, err)
			}
			_ = onPgx.exec(ctx, tx, loss)
			_, err := client.BeginMany(ctx, tx, []string{newKey()}, nil)
			if !errors.Is(err, idempotency.ErrConnectionLost) {
				t.Errorf("%s: %v", name, err)
			}
			return err
		})
	}
}

// Else each connection would be two.
func TestAPoolerIsLookedForOnce(t *testing.T) {
	config, err := pgxv5.Config(serverURL + "&pool_max_conns=2")
	must(t, err)
	dials, dial := atomic.Int64{}, config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(background, config)
	must(t, err)
	defer pool.Close()
	for range 2 {
		held, err := pool.Acquire(background)
		must(t, err)
		defer held.Release()
	}
	same(t, "connections", dials.Load(), 3)
}

// The work has not read its rows to the end. That is its mistake, and no lost connection.
func TestRowsLeftOpen(t *testing.T) {
	client, runs := idempotency.New(onPgx.open(t, serverURL, 1), idempotency.Options{Retry: quick}), 0
	_, err := client.Transaction(background, newKey(), nil, does(func(ctx context.Context, tx pgx.Tx) error {
		runs++
		_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
		return err
	}))
	same(t, "an error", err != nil, true)
	same(t, "transient", idempotency.Transient(err), false)
	same(t, "runs", runs, 1)
	_, err = client.Transaction(background, newKey(), nil, onPgx.note("x"))
	must(t, err)
}

// hearing calls heard when the answer to COMMIT has come, and then waits for Close.
type hearing struct {
	net.Conn
	heard  func()
	once   sync.Once
	closed chan struct{}
}

func (h *hearing) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("COMMIT\x00")) {
		h.heard()
		<-h.closed
	}
	return n, err
}

func (h *hearing) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}

// The context ended while the answer to COMMIT came: the socket is closed, and nobody else
// gets its connection.
func TestContextThatEndsWithTheCommit(t *testing.T) {
	ctx, cancel := context.WithCancel(background)
	config, err := pgxpool.ParseConfig(serverURL + "&pool_max_conns=1&default_query_exec_mode=exec")
	must(t, err)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		socket, err := dial(ctx, network, address)
		return &hearing{Conn: socket, heard: cancel, closed: make(chan struct{})}, err
	}
	pool, err := pgxpool.NewWithConfig(background, config)
	must(t, err)
	defer pool.Close()
	key := newKey()
	_, err = idempotency.New(pgxv5.Pool(pool), idempotency.Options{}).Transaction(ctx, key, nil, onPgx.note(key))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
	_, err = pool.Exec(background, "SELECT 1")
	must(t, err)
}
