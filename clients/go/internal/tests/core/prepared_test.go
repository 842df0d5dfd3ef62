package core_test

import (
	"context"
	"fmt"
	"testing"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

// Where the connection is the server's own, begin and complete are prepared, and
// behind a pooler nothing is.
func TestPrepared(t *testing.T) {
	t.Run("directly", func(t *testing.T) { testPrepared(t, serverURL(), "[1 2 2]") })
	t.Run("behind pgbouncer", func(t *testing.T) { testPrepared(t, startPgbouncer(t), "[0 0 0]") })
}

func testPrepared(t *testing.T, url, expected string) {
	client := idempotency.New(onPgx.open(t, url, 1), idempotency.Options{})
	var counts []int
	for i := 0; i < 3; i++ {
		_, err := client.Transaction(background, newKey(), nil, func(ctx context.Context, tx pgx.Tx, _ idempotency.Operation) (idempotency.Response, error) {
			var count int
			err := tx.QueryRow(ctx, "SELECT count(*)::int FROM pg_prepared_statements WHERE statement ~ 'FROM idem_begin\\(|SELECT idem_complete\\('").Scan(&count)
			counts = append(counts, count)
			return idempotency.Response{Payload: 1}, err
		})
		must(t, err)
	}
	same(t, "prepared", fmt.Sprint(counts), expected)
}

// Statements that somebody threw away are not missed: the whole is repeated on
// another connection.
func TestPreparedThrownAway(t *testing.T) {
	pool := onPgx.open(t, serverURL(), 1)
	client := idempotency.New(pool, idempotency.Options{})
	runs := 0
	for i := 0; i < 3; i++ {
		_, err := client.Transaction(background, newKey(), nil, func(ctx context.Context, tx pgx.Tx, _ idempotency.Operation) (idempotency.Response, error) {
			runs++
			if runs == 2 {
				_, err := tx.Exec(ctx, "DEALLOCATE ALL")
				return idempotency.Response{}, err
			}
			return idempotency.Response{Payload: 1}, nil
		})
		must(t, err)
	}
	same(t, "runs", fmt.Sprint(runs), "4")
}
