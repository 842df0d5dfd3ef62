package core_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

// startPgbouncer pools in transaction mode: more clients than connections, so that
// one's statements meet sessions that served another.
func startPgbouncer(t *testing.T) string {
	t.Helper()
	_, lines := startOfKit(t, filepath.Join(filepath.Dir(os.Getenv("FAULT_PROXY")), "pooler.py"), "3")
	if !lines.Scan() {
		t.Fatal("pgbouncer did not start")
	}
	return fmt.Sprintf("postgres:///%s?host=%s&user=postgres&sslmode=disable", os.Getenv("PGDATABASE"), lines.Text())
}

func TestPgbouncer(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testPgbouncer(t, onPgx, "") })
	t.Run("database/sql", func(t *testing.T) { testPgbouncer(t, onSQL, "&binary_parameters=yes") })
}

func testPgbouncer[Tx any](t *testing.T, b backend[Tx], parameters string) {
	client := idempotency.New(b.open(t, startPgbouncer(t)+parameters, 12), idempotency.Options{Retry: quick})
	prefix := newKey()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for i := range 25 {
				key := fmt.Sprintf("%s-%d", prefix, i)
				var result *idempotency.Result
				var err error
				if i%2 == 0 {
					result, err = client.Transaction(background, key, i, b.note(key), idempotency.WithWait(20*time.Second))
				} else {
					result, err = client.Lease(background, key, i, b.answer(key), idempotency.WithWait(20*time.Second))
				}
				if err != nil || result.Outcome != idempotency.Completed {
					t.Errorf("%s: %+v %v", key, result, err)
				}
			}
		})
	}
	all.Wait()
	same(t, "effects", value(t, "SELECT count(*) || '/' || count(DISTINCT key) FROM effect WHERE key LIKE $1 || '-%'", prefix), "25/25")
}

// Where the connection is the server's own, begin and complete are prepared, and nothing
// that has no arguments: it would be a round trip of its own. Behind a pooler nothing is.
func TestPrepared(t *testing.T) {
	t.Run("directly", func(t *testing.T) { testPrepared(t, serverURL, "[1 2 2]") })
	t.Run("as the url says", func(t *testing.T) { testPrepared(t, serverURL+"&default_query_exec_mode=exec", "[0 0 0]") })
	t.Run("behind pgbouncer", func(t *testing.T) { testPrepared(t, startPgbouncer(t), "[0 0 0]") })
}

func testPrepared(t *testing.T, url, expected string) {
	client := idempotency.New(onPgx.open(t, url, 1), idempotency.Options{})
	var counts []int
	for range 3 {
		_, err := client.Transaction(background, newKey(), nil, does(func(ctx context.Context, tx pgx.Tx) error {
			var count int
			err := tx.QueryRow(ctx, "SELECT count(*)::int FROM pg_prepared_statements WHERE statement ~ 'FROM idem_begin\\(|SELECT idem_complete\\(|^(BEGIN|SAVEPOINT|COMMIT)'").Scan(&count)
			counts = append(counts, count)
			return err
		}))
		must(t, err)
	}
	same(t, "prepared", fmt.Sprint(counts), expected)
}

// Statements that somebody threw away are not missed: the whole is repeated on
// another connection.
func TestPreparedThrownAway(t *testing.T) {
	client := idempotency.New(onPgx.open(t, serverURL, 1), idempotency.Options{})
	runs := 0
	for range 3 {
		_, err := client.Transaction(background, newKey(), nil, does(func(ctx context.Context, tx pgx.Tx) error {
			if runs++; runs == 2 {
				return onPgx.exec(ctx, tx, "DEALLOCATE ALL")
			}
			return nil
		}))
		must(t, err)
	}
	same(t, "runs", runs, 4)
}
