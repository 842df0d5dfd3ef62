package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
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
			return 0, idempotency.Decline(400, map[int]any{-1: "no"}[n]).Again(time.Hour)
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
	nothing := idempotency.Idempotent(client, "nothing", func(context.Context, Tx, any) (any, error) { return nil, nil })
	_, err := nothing(background, key, nil)
	must(t, err)
	_, err = double(background, key, 22)
	wantError(t, err, idempotency.ErrKeyReused)
	for n, payload := range map[int]any{-1: json.RawMessage(`"no"`), -2: nil} {
		refused := newKey()
		for range 2 {
			_, err := double(background, refused, n)
			var refusal *idempotency.Declined
			if !errors.As(err, &refusal) || refusal.Code != 400 || !reflect.DeepEqual(refusal.Payload, payload) ||
				refusal.RetryAfter == nil {
				t.Fatalf("got %v", err)
			}
		}
	}
	leased := newKey()
	execute(t, "SELECT idem_begin($1, scope => 'double', lease => '1 minute')", leased)
	_, err = double(background, leased, 21)
	var busy *idempotency.InProgressError
	same(t, "says when", errors.As(err, &busy) && busy.RetryAfter != nil, true)
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
	work := func(context.Context, pgx.Tx, int) (int, error) { return 1, nil }
	for _, f := range functions {
		client, key := onPgx.client(t, idempotency.Options{Scope: f.Service}), newKey()
		options := make([]idempotency.Option, 0, 2) // with room that two functions must not share
		if f.Own != nil {
			options = append(options, idempotency.InScope(*f.Own))
		}
		once := idempotency.Idempotent(client, f.Name, work, options...)
		idempotency.Idempotent(client, "another", work, options...)
		_, err := once(background, key, 1)
		must(t, err)
		same(t, "scope", value(t, "SELECT scope FROM idempotency_store WHERE idempotency_key = $1", key), f.Scope)
	}
	same(t, "functions", len(functions) > 3, true)
	defer func() { same(t, "panic", recover() != nil, true) }()
	idempotency.Idempotent(onPgx.client(t, idempotency.Options{}), "", work)
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
		{&idempotency.Result{Outcome: idempotency.Failed, RetryAfter: new(time.Duration)}, nil, idempotency.Settlement{Do: idempotency.Again, After: time.Second}},
		{nil, idempotency.ErrTooLarge, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{nil, idempotency.ErrForbidden, idempotency.Settlement{Do: idempotency.DeadLetter}},
		{nil, &idempotency.InProgressError{RetryAfter: &minute}, idempotency.Settlement{Do: idempotency.Again, After: minute}},
		{nil, &idempotency.UnknownError{RetryAfter: minute}, idempotency.Settlement{Do: idempotency.Again, After: minute}},
		{nil, errors.New("any"), idempotency.Settlement{Do: idempotency.Again, After: time.Second}},
	} {
		same(t, "settlement", idempotency.Settle(c.result, c.err), c.want)
	}
}
