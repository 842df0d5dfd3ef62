package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

func testIdempotent[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	var inner func() error
	double := idempotency.Idempotent(client, "double", func(ctx context.Context, tx Tx, n int) (int, error) {
		if n < 0 {
			return 0, idempotency.Decline(400, "negative")
		}
		if inner != nil {
			must(t, inner())
		}
		return 2 * n, b.insert(ctx, tx, key)
	})
	inner = func() error {
		inner = nil
		_, err := double(background, key, 21)
		wantError(t, err, idempotency.ErrInProgress)
		return nil
	}
	for i := 0; i < 2; i++ {
		n, err := double(background, key, 21)
		must(t, err)
		same(t, "result", n, 42)
	}
	same(t, "effects", effects(t, key), "1")
	same(t, "scope", value(t, "SELECT scope FROM idempotency_store WHERE idempotency_key = $1", key), "double")
	_, err := double(background, key, 22)
	wantError(t, err, idempotency.ErrKeyReused)
	refused := newKey()
	for i := 0; i < 2; i++ {
		_, err := double(background, refused, -1)
		var refusal *idempotency.Declined
		if !errors.As(err, &refusal) || refusal.Code != 400 {
			t.Fatalf("got %v", err)
		}
	}
}

// The packages for all languages have the same scopes, or one key would be two operations.
func TestScopesOfFunctions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("SPELLINGS")), "functions.json"))
	must(t, err)
	var functions []struct {
		Service, Name, Scope string
		Own                  *string
	}
	must(t, json.Unmarshal(text, &functions))
	for _, f := range functions {
		client, key := onPgx.client(t, idempotency.Options{Scope: f.Service}), newKey()
		var options []idempotency.Option
		if f.Own != nil {
			options = append(options, idempotency.InScope(*f.Own))
		}
		_, err := idempotency.Idempotent(client, f.Name, func(context.Context, pgx.Tx, int) (int, error) { return 1, nil }, options...)(background, key, 1)
		must(t, err)
		same(t, "scope", value(t, "SELECT scope FROM idempotency_store WHERE idempotency_key = $1", key), f.Scope)
	}
	same(t, "functions", len(functions) > 3, true)
	defer func() { same(t, "panic", recover() != nil, true) }()
	idempotency.Idempotent(onPgx.client(t, idempotency.Options{}), "", func(context.Context, pgx.Tx, int) (int, error) { return 1, nil })
}

func TestSettle(t *testing.T) {
	minute := time.Minute
	for _, c := range []struct {
		result *idempotency.Result
		err    error
		want   idempotency.Settlement
	}{
		{&idempotency.Result{Outcome: idempotency.Completed}, nil, idempotency.Settlement{Do: idempotency.Ack}},
		{&idempotency.Result{Outcome: idempotency.Failed}, nil, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{&idempotency.Result{Outcome: idempotency.Failed, RetryAfter: &minute}, nil, idempotency.Settlement{Do: idempotency.Again, After: minute}},
		{&idempotency.Result{Outcome: idempotency.InProgress, RetryAfter: &minute}, nil, idempotency.Settlement{Do: idempotency.Again, After: minute}},
		{&idempotency.Result{Outcome: idempotency.InProgress}, nil, idempotency.Settlement{Do: idempotency.Again, After: time.Second}},
		{nil, idempotency.ErrKeyReused, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{nil, idempotency.ErrBadArgument, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{nil, idempotency.ErrTooLarge, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{nil, &idempotency.UnknownError{RetryAfter: minute}, idempotency.Settlement{Do: idempotency.Again, After: minute}},
		{nil, errors.New("any"), idempotency.Settlement{Do: idempotency.Again, After: time.Second}},
	} {
		same(t, "settlement", idempotency.Settle(c.result, c.err), c.want)
	}
}
