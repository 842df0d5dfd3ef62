package core_test

import (
	"database/sql"
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
	onBoth(t, func(t *testing.T, b backend[pgx.Tx]) { testPgbouncer(t, b, "") },
		func(t *testing.T, b backend[*sql.Tx]) { testPgbouncer(t, b, "&binary_parameters=yes") })
}

func testPgbouncer[Tx any](t *testing.T, b backend[Tx], parameters string) {
	client := idempotency.New(b.open(t, startPgbouncer(t)+parameters, 12), idempotency.Options{Retry: quick})
	prefix := newKey()
	var all sync.WaitGroup
	for caller := 0; caller < 12; caller++ {
		all.Add(1)
		go func(caller int) {
			defer all.Done()
			for i := 0; i < 25; i++ {
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
		}(caller)
	}
	all.Wait()
	same(t, "effects", value(t, "SELECT count(*) || '/' || count(DISTINCT key) FROM effect WHERE key LIKE $1 || '-%'", prefix), "25/25")
}
