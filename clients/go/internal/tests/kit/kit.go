// Package kit has what the tests of all packages begin with.
package kit

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Main is the TestMain of a package. It makes the extension and the tables. It refuses to
// run without a server, and without what the variables name.
func Main(m *testing.M, tables string, variables ...string) {
	for _, variable := range append(variables, "PGHOST") {
		if os.Getenv(variable) == "" {
			exit("run clients/go/test, which starts a server and the brokers")
		}
	}
	pool, err := Connect()
	if err == nil {
		_, err = pool.Exec(context.Background(), "CREATE EXTENSION IF NOT EXISTS idempotency;"+tables)
	}
	if err != nil {
		exit(err)
	}
	pool.Close()
	os.Exit(m.Run())
}

func exit(reason any) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(1)
}

// URL is the address of the server of the environment.
func URL() string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%s&user=%s&sslmode=disable",
		os.Getenv("PGDATABASE"), os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER"))
}

// Connect makes a pool on the server of the environment.
func Connect() (*pgxpool.Pool, error) { return pgxv5.Connect(context.Background(), URL()) }

var (
	keys atomic.Int64
	// firstKey lets the tests run again on the same server.
	firstKey = time.Now().UnixNano()
)

// NewKey is a key that no other test has.
func NewKey() string { return fmt.Sprintf("k%d-%d", firstKey, keys.Add(1)) }

// Must ends the test at an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
