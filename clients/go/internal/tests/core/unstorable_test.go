package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/safe"
)

// panics is a value whose JSON cannot be made.
type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("planned") }

var large = strings.Repeat("x", 2_000_000)

// The work was done, so no attempt repeats it.
func testUnstorable[Tx any](t *testing.T, b backend[Tx]) {
	cycle := map[string]any{}
	cycle["self"] = cycle
	client := b.client(t, idempotency.Options{})
	for name, response := range map[string]idempotency.Response{
		"function": {Payload: func() {}}, "cycle": {Payload: cycle}, "NaN": {Payload: math.NaN()}, "panic": {Payload: panics{}},
		"NUL": {Payload: "a\x00b"}, "half": {Payload: json.RawMessage(`"\ud800"`)}, "broken": {Payload: json.RawMessage("{")},
		"code": {Code: 1 << 40}, "retention": {Retention: -1}, "large": {Payload: large}, "header": {Headers: map[string]string{"a": "\x00"}},
	} {
		for end, written := range map[string]string{"answer": "0", "writes": "1", "declined": "0", "declining writes": "0"} {
			runs, key := 0, newKey()
			work := func(context.Context, idempotency.Operation) (completion idempotency.Completion[Tx], err error) {
				runs++
				refusal := &idempotency.Declined{Response: response}
				switch end {
				case "answer":
					completion.Response = response
				case "writes":
					completion.Response = response
					completion.Writes = func(ctx context.Context, tx Tx) error { return b.insert(ctx, tx, key) }
				case "declined":
					err = refusal
				case "declining writes":
					completion.Writes = func(ctx context.Context, tx Tx) error { return errors.Join(refusal, b.insert(ctx, tx, key)) }
				}
				return completion, err
			}
			result, err := client.Lease(background, key, nil, work)
			if result != nil || err == nil || errors.Is(err, idempotency.ErrUnstorable) {
				t.Fatal(name, end, result, err)
			}
			same(t, name+" "+end, stored(t, key)+value(t, "SELECT response_code FROM idempotency_store WHERE idempotency_key = $1",
				key), "COMPLETED500")
			for range 2 {
				_, err = client.Lease(background, key, nil, work)
				wantError(t, err, idempotency.ErrUnstorable)
				same(t, "settled", idempotency.Settle(nil, err).Do, idempotency.DeadLetter)
			}
			same(t, name, runs, 1)
			same(t, name, effects(t, key), written)
		}
		key := newKey()
		err := safe.Call(func() error {
			_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
				return errors.Join(&idempotency.Declined{Response: response}, b.insert(ctx, tx, key))
			}))
			return err
		})
		same(t, name+" in a transaction", fmt.Sprint(err != nil)+stored(t, key)+effects(t, key), "truenothing0")
	}
}

// It is kept for as long as it asked for, and an answer of a reconcile function is asked for again.
func testUnstorableKinds[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	_, err := client.Lease(background, key, nil,
		gives(idempotency.Completion[Tx]{Response: idempotency.Response{Payload: large, Retention: 90 * 24 * time.Hour}}, nil))
	wantError(t, err, idempotency.ErrTooLarge)
	same(t, "days", value(t, days, key), "90")
	key = newKey()
	_, err = client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{},
		&idempotency.Declined{Response: idempotency.Response{Payload: large, Retention: 90 * 24 * time.Hour}}))
	wantError(t, err, idempotency.ErrTooLarge)
	same(t, "days", value(t, days, key), "90")
	after := time.Duration(math.MaxInt64)
	_, err = client.Lease(background, key+"r", nil, gives(idempotency.Completion[Tx]{}, &idempotency.Declined{RetryAfter: &after}))
	same(t, "time", fmt.Sprint(err != nil)+stored(t, key+"r"), "trueCOMPLETED")
	key = newKey()
	b.abandon(t, client, key)
	for _, found := range []any{func() {}, large, "found"} {
		result, err := client.Lease(background, key, nil, b.answer(key), idempotency.WithReconcile(
			func(context.Context, idempotency.Operation) (idempotency.Reconciled, error) {
				return idempotency.Done(idempotency.Response{Payload: found}), nil
			}))
		if found == "found" {
			must(t, err)
			same(t, "payload", string(result.Payload), `"found"`)
			return
		}
		same(t, "refused", err != nil && !errors.Is(err, idempotency.ErrUnstorable), true)
		same(t, "stored", stored(t, key), "PENDING")
		runOut(t, key)
	}
}

// What was wrong with the answer is the error, unless another end is stored.
func testUnstorableAndOtherEnds[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	wrong := idempotency.Response{Payload: large}
	for _, theirs := range []error{nil, errors.New("died")} {
		key := newKey()
		result, err := client.Lease(background, key, nil,
			func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
				runOut(t, key)
				_, _ = client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Response: idempotency.Response{Code: 201}}, theirs))
				return idempotency.Completion[Tx]{Response: idempotency.Response{Payload: func() {}}}, nil
			})
		if theirs == nil {
			must(t, err)
			same(t, "theirs", result.Code, 201)
		} else {
			same(t, "the error of the answer", err != nil && !errors.Is(err, idempotency.ErrLeaseLost), true)
		}
	}
	p, key := startProxy(t), newKey()
	far := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Retry: quick})
	_, err := far.Lease(background, key, nil, func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
		p.order("arm", "after", "idem_complete")
		return idempotency.Completion[Tx]{Response: idempotency.Response{Payload: func() {}}}, nil
	})
	same(t, "cuts", p.state().Hits, 1)
	same(t, "the answer to the end was lost", err != nil && !errors.Is(err, idempotency.ErrUnstorable), true)
	same(t, "stored", stored(t, key), "COMPLETED")
	end := func(key string, response idempotency.Response, fails error) (*idempotency.Result, error) {
		return client.Lease(background, key, nil,
			gives(idempotency.Completion[Tx]{Response: response, Writes: func(context.Context, Tx) error { return fails }}, nil))
	}
	result, err := end(newKey(), wrong, idempotency.Decline(402, nil))
	must(t, err)
	same(t, "declined", result.Outcome, idempotency.Failed)
	key = newKey()
	_, err = end(key, wrong, idempotency.ErrNotDone)
	wantError(t, err, idempotency.ErrNotDone)
	same(t, "released", stored(t, key), "nothing")
	for state, response := range map[string]idempotency.Response{"ID413": wrong, "22P02": {}} {
		key = newKey()
		calls := 0
		_, err = client.Lease(background, key, nil,
			gives(idempotency.Completion[Tx]{Response: response, Writes: func(ctx context.Context, tx Tx) error {
				calls++
				return b.exec(ctx, tx, raise("22P02"))
			}}, nil))
		same(t, "the first error", idempotency.SQLState(err), state)
		same(t, "left", stored(t, key)+fmt.Sprint(calls), "PENDING1")
	}
}
