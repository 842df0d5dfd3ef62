package core_test

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

// startPgbouncer pools in transaction mode: more clients than connections, so that
// one's statements meet sessions that served another.
func startPgbouncer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	file := filepath.Join(t.TempDir(), "pgbouncer.ini")
	must(t, os.WriteFile(file, []byte(fmt.Sprintf(`[databases]
postgres = host=%s port=%s user=postgres dbname=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
default_pool_size = 3
`, os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGDATABASE"), port)), 0o644))
	bouncer := exec.Command("pgbouncer", file)
	if os.Getuid() == 0 {
		t.Fatal("pgbouncer does not run as root: use clients/go/test")
	}
	must(t, bouncer.Start())
	t.Cleanup(func() {
		_ = bouncer.Process.Signal(syscall.SIGTERM)
		_ = bouncer.Wait()
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for deadline := time.Now().Add(20 * time.Second); ; {
		probe, err := net.Dial("tcp", address)
		if err == nil {
			probe.Close()
			return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", address)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
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
