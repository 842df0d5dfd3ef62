package core_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

// answer is leased work that writes one row with its end.
func (b backend[Tx]) answer(key string) idempotency.LeasedWork[Tx] {
	return func(_ context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		return idempotency.Completion[Tx]{
			Response: idempotency.Response{Code: 201, Payload: o.Attempt},
			Writes:   func(ctx context.Context, tx Tx) error { return b.insert(ctx, tx, key) },
		}, nil
	}
}

// gives is leased work that ends like that.
func gives[Tx any](completion idempotency.Completion[Tx], err error) idempotency.LeasedWork[Tx] {
	return func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
		return completion, err
	}
}

// runOut lets the lease of a key be over.
func runOut(t *testing.T, key string) {
	t.Helper()
	execute(t, "UPDATE idempotency_store SET lease_expires_at = now() - interval '1 second' WHERE idempotency_key = $1", key)
}

// abandon leaves an operation whose first attempt ran out of its lease.
func (b backend[Tx]) abandon(t *testing.T, client *idempotency.Client[Tx], key string) {
	t.Helper()
	died := errors.New("died")
	_, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{}, died))
	same(t, "is the work's own error", err == died, true)
	same(t, "stored", stored(t, key), "PENDING")
	runOut(t, key)
}

func TestLeases(t *testing.T) { onBoth(t, leaseTests[pgx.Tx](), leaseTests[*sql.Tx]()) }

func leaseTests[Tx any]() tests[Tx] {
	return tests[Tx]{
		"Lease": testLease[Tx], "LeaseDeclined": testLeaseDeclined[Tx], "NotDone": testNotDone[Tx], "Progress": testProgress[Tx],
		"Reconcile": testReconcile[Tx], "Heartbeat": testHeartbeat[Tx], "SlowBegin": testSlowBegin[Tx],
		"HeartbeatLosesTheLease": testHeartbeatLosesTheLease[Tx], "HooksThatFail": testHooksThatFail[Tx],
		"HeartbeatWithoutServer": testHeartbeatWithoutServer[Tx], "HangingNetwork": testHangingNetwork[Tx], "LostAnswerToCompletion": testLostAnswerToCompletion[Tx],
		"CallerGoesAway": testCallerGoesAway[Tx],
		"WritesThatFail": testWritesThatFail[Tx], "NothingBeginsTooLate": testNothingBeginsTooLate[Tx],
		"WorkThatDoesNotKnow": testWorkThatDoesNotKnow[Tx], "WritesThatExit": testWritesThatExit[Tx],
		"LateBeat": testLateBeat[Tx], "Times": testTimes[Tx],
		"EndOfALostLease": testEndOfALostLease[Tx], "Unstorable": testUnstorable[Tx], "UnstorableKinds": testUnstorableKinds[Tx],
		"UnstorableAndOtherEnds": testUnstorableAndOtherEnds[Tx], "AnswersWithCode500": testAnswersWithCode500[Tx],
	}
}

// The pool has one connection, which no lease holds while it works.
func testLease[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, key := idempotency.New(b.open(t, serverURL, 1), idempotency.Options{Hooks: count.hooks()}), newKey()
	for _, replayed := range []bool{false, true} {
		result, err := client.Lease(background, key, map[string]int{"n": 1},
			func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
				same(t, "stored meanwhile", stored(t, key), "PENDING")
				same(t, "has a fence", o.Fence > 0, true)
				same(t, "has a lease", o.LeaseLeft > 20*time.Second && o.LeaseLeft <= 30*time.Second, true)
				inner, err := client.Lease(background, key, map[string]int{"n": 1}, b.answer(key))
				must(t, err)
				same(t, "outcome meanwhile", inner.Outcome, idempotency.InProgress)
				same(t, "retry after", inner.RetryAfter != nil && *inner.RetryAfter > 20*time.Second, true)
				return b.answer(key)(ctx, o)
			})
		must(t, err)
		same(t, "replayed", result.Replayed, replayed)
		same(t, "payload", string(result.Payload), "1")
		same(t, "code", result.Code, 201)
	}
	same(t, "effects", effects(t, key), "1")
	same(t, "leases lost", count.leaseLost.Load(), 0)
	_, err := client.Lease(background, key, map[string]int{"n": 2}, b.answer(key))
	wantError(t, err, idempotency.ErrKeyReused)
	same(t, "mismatches", count.mismatch.Load(), 1)
}

// The work declines, or its writes do.
func testLeaseDeclined[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client := b.client(t, idempotency.Options{Hooks: count.hooks()})
	refusal := idempotency.Decline(402, "no")
	for i, work := range []idempotency.LeasedWork[Tx]{
		gives(idempotency.Completion[Tx]{}, refusal),
		gives(idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
			must(t, b.insert(ctx, tx, "declined"))
			return refusal
		}}, nil),
	} {
		key := newKey()
		for _, replayed := range []bool{false, true} {
			result, err := client.Lease(background, key, nil, work)
			must(t, err)
			same(t, "outcome", result.Outcome, idempotency.Failed)
			same(t, "replayed", result.Replayed, replayed)
			same(t, "payload", string(result.Payload), `"no"`)
		}
		same(t, "hook", count.declined.Load(), int64(i+1))
	}
	same(t, "effects", effects(t, "declined"), "0")
}

func testNotDone[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{Scope: "not done"}), newKey()
	_, err := client.Lease(background, key, nil,
		gives(idempotency.Completion[Tx]{}, fmt.Errorf("refused: %w", idempotency.ErrNotDone)))
	wantError(t, err, idempotency.ErrNotDone)
	same(t, "stored", stored(t, key), "nothing")
	result, err := client.Lease(background, key, nil, b.answer(key))
	must(t, err)
	same(t, "taken over", result.TakenOver, false)
	same(t, "attempt", result.Attempt, 1)
}

func testProgress[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{Scope: "progress"}), newKey()
	var first idempotency.Operation
	died := errors.New("died")
	_, err := client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
			first = o
			same(t, "note of nobody", string(o.Payload), "")
			must(t, client.Progress(ctx, o, 0))
			must(t, client.Progress(ctx, o, map[string]string{"charged": "ch_1"}))
			return idempotency.Completion[Tx]{}, died
		})
	wantError(t, err, died)
	runOut(t, key)
	_, err = client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
			same(t, "note", string(o.Payload), `{"charged": "ch_1"}`)
			wantError(t, client.Progress(ctx, first, "late"), idempotency.ErrLeaseLost)
			wantError(t, client.Progress(ctx, o, strings.Repeat("x", 2_000_000)), idempotency.ErrTooLarge)
			same(t, "a mistake of the program", idempotency.Settle(nil, client.Progress(ctx, o, nil)).Do, idempotency.Again)
			same(t, "is no JSON", errors.As(client.Progress(ctx, o, func() {}), new(*json.UnsupportedTypeError)), true)
			must(t, client.Progress(ctx, o, "sent"))
			return b.answer(key)(ctx, o)
		}, idempotency.WithReconcile(func(_ context.Context, o idempotency.Operation) (idempotency.Reconciled, error) {
			same(t, "note in reconcile", string(o.Payload), `{"charged": "ch_1"}`)
			return idempotency.NotDone(), nil
		}))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
}

func testReconcile[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, broken := b.client(t, idempotency.Options{Hooks: count.hooks()}), errors.New("the gateway does not answer")
	for i, c := range []struct {
		found            idempotency.Reconciled
		err              error
		unknown          time.Duration // the caller has to wait so long
		payload, effects string
	}{
		{idempotency.Done(idempotency.Response{Code: 200, Payload: "found"}), nil, 0, `"found"`, "0"},
		{idempotency.NotDone(), nil, 0, "2", "1"},
		{idempotency.Unknown(time.Minute), nil, time.Minute, "", "0"},
		{idempotency.Unknown(-time.Minute), nil, 0, "", "0"},
		{idempotency.Reconciled{}, broken, time.Second, "", "0"},
		{idempotency.Reconciled{}, idempotency.Decline(402, "another operation's"), time.Second, "", "0"},
	} {
		key := newKey()
		b.abandon(t, client, key)
		result, err := client.Lease(background, key, nil, b.answer(key), idempotency.WithReconcile(
			func(_ context.Context, o idempotency.Operation) (idempotency.Reconciled, error) {
				same(t, "taken over", o.TakenOver, true)
				return c.found, c.err
			}))
		same(t, "hook", count.takenOver.Load(), int64(i+1))
		same(t, "effects", effects(t, key), c.effects)
		if c.payload != "" {
			must(t, err)
			same(t, "payload", string(result.Payload), c.payload)
			same(t, "stored", stored(t, key), "COMPLETED")
			continue
		}
		var unknown *idempotency.UnknownError
		if !errors.As(err, &unknown) || !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatalf("got %v", err)
		}
		same(t, "retry after", unknown.RetryAfter, c.unknown)
		same(t, "cause", unknown.Cause, c.err)
		same(t, "lease is over", value(t,
			"SELECT lease_expires_at <= now() FROM idempotency_store WHERE idempotency_key = $1", key), "true")
		next, err := b.client(t, idempotency.Options{}).Lease(background, key, nil, b.answer(key))
		must(t, err)
		same(t, "taken over", next.TakenOver, true)
	}
}

// errPanic is what a function of the pool panics with.
var errPanic = errors.New("planned")

func testLostAnswerToCompletion[Tx any](t *testing.T, b backend[Tx]) {
	for _, fault := range []struct {
		when, pattern string
		writes        bool
		replayed      bool
	}{
		{"after", "^COMMIT", true, true},
		{"before", "^COMMIT", true, false},
		{"before", "idem_complete", true, false},
		{"after", "INSERT INTO effect", true, false},
		{"before", "idem_complete", false, false},
	} {
		var count counter
		p := startProxy(t)
		client, key := idempotency.New(b.open(t, p.url(), 2),
			idempotency.Options{Scope: "lost", Retry: quick, Hooks: count.hooks()}), newKey()
		result, err := client.Lease(background, key, nil,
			func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
				p.order("arm", fault.when, fault.pattern)
				completion, err := b.answer(key)(ctx, o)
				if !fault.writes {
					completion.Writes = nil
				}
				return completion, err
			})
		must(t, err)
		same(t, "cuts", p.state().Hits, 1)
		same(t, fmt.Sprintf("replayed after %+v", fault), result.Replayed, fault.replayed)
		same(t, "payload", string(result.Payload), "1")
		same(t, "leases lost", count.leaseLost.Load(), 0)
		same(t, "effects", effects(t, key), map[bool]string{true: "1", false: "0"}[fault.writes])
		same(t, "stored", stored(t, key), "COMPLETED")
	}
}

// What has happened outside is recorded, although nobody listens any more.
func testCallerGoesAway[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	ctx, cancel := context.WithCancel(background)
	_, err := client.Lease(ctx, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		cancel()
		<-ctx.Done()
		return b.answer(key)(ctx, o)
	})
	must(t, err)
	same(t, "stored", stored(t, key), "COMPLETED")
	same(t, "effects", effects(t, key), "1")
}

// 40001 in the writes repeats them, and not the work. Another error leaves the
// lease to run out.
func testWritesThatFail[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{Retry: quick})
	works, writes := 0, 0
	work := func(key, state string) idempotency.LeasedWork[Tx] {
		return func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
			works++
			return idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
				must(t, b.insert(ctx, tx, key))
				if writes++; writes == 1 {
					return b.exec(ctx, tx, raise(state))
				}
				return nil
			}}, nil
		}
	}
	key := newKey()
	_, err := client.Lease(background, key, nil, work(key, "40001"))
	must(t, err)
	same(t, "works", works, 1)
	same(t, "writes", writes, 2)
	same(t, "effects", effects(t, key), "1")
	key, writes = newKey(), 0
	_, err = client.Lease(background, key, nil, work(key, "P0001"))
	same(t, "SQLSTATE", idempotency.SQLState(err), "P0001")
	same(t, "stored", stored(t, key), "PENDING")
	same(t, "effects", effects(t, key), "0")
}

func TestWritesThatEndTheirTransaction(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testWritesThatEndTheirTransaction(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { testWritesThatEndTheirTransaction(t, onSQL) })
	t.Run("database/sql with pgx", func(t *testing.T) { testWritesThatEndTheirTransaction(t, onSQLBy("pgx")) })
}

// No answer but one that is stored.
func testWritesThatEndTheirTransaction[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client := b.client(t, idempotency.Options{Retry: quick, Hooks: count.hooks()})
	for _, ending := range []string{"ROLLBACK", "ROLLBACK; BEGIN", "COMMIT"} {
		key, calls := newKey(), 0
		result, err := client.Lease(background, key, nil,
			gives(idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
				calls++
				must(t, b.exec(ctx, tx, ending))
				return b.exec(ctx, tx, "SELECT 1")
			}}, nil))
		if ending == "COMMIT" {
			must(t, err)
			same(t, "outcome", result.Outcome, idempotency.Completed)
			same(t, "stored", stored(t, key), "COMPLETED")
		} else {
			wantError(t, err, idempotency.ErrNotOwned)
			same(t, "stored", stored(t, key), "PENDING")
		}
		same(t, "calls", calls, 1)
	}
	same(t, "leases lost", count.leaseLost.Load(), 0)
}

// What an operation inside of the work or of its writes does not know, nobody knows of
// this one: the next attempt has to reconcile.
func testWorkThatDoesNotKnow[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	unknown := fmt.Errorf("the gateway: %w", &idempotency.UnknownError{RetryAfter: time.Minute})
	for _, work := range []idempotency.LeasedWork[Tx]{
		gives(idempotency.Completion[Tx]{}, unknown),
		gives(idempotency.Completion[Tx]{Writes: func(context.Context, Tx) error { return unknown }}, nil),
	} {
		key := newKey()
		_, err := client.Lease(background, key, nil, work)
		same(t, "is the work's own error", err == unknown, true)
		same(t, "stored", stored(t, key), "PENDING")
	}
}

// runtime.Goexit, as of t.FailNow, is no success, and leaves no heartbeat.
func testWritesThatExit[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	var all sync.WaitGroup
	all.Go(func() {
		result, err := client.Lease(background, key, nil,
			gives(idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
				must(t, b.insert(ctx, tx, key))
				runtime.Goexit()
				return nil
			}}, nil))
		t.Errorf("returned %v %v", result, err)
	})
	var during context.Context
	all.Go(func() {
		_, _ = client.Lease(background, newKey(), nil,
			func(ctx context.Context, _ idempotency.Operation) (idempotency.Completion[Tx], error) {
				during = ctx
				runtime.Goexit()
				return idempotency.Completion[Tx]{}, nil
			})
	})
	all.Wait()
	same(t, "effects", effects(t, key), "0")
	wantError(t, during.Err(), context.Canceled) // with the heartbeat
}

// The answer of the operation is that of whoever ended it. If the record has gone since, by its
// expiry or by idem_forget, the key is another operation's, maybe for another request.
func testEndOfALostLease[Tx any](t *testing.T, b backend[Tx]) {
	takeOver := func(work idempotency.LeasedWork[Tx]) func(string) {
		return func(key string) {
			runOut(t, key)
			_, _ = b.client(t, idempotency.Options{}).Lease(background, key, nil, work)
		}
	}
	for name, c := range map[string]struct {
		meanwhile func(key string)
		want      idempotency.Outcome // "": the lease is lost
	}{
		"completed": {takeOver(b.answer("lost")), idempotency.Completed},
		"declined":  {takeOver(gives(idempotency.Completion[Tx]{}, idempotency.Decline(402, nil))), idempotency.Failed},
		"goes on":   {takeOver(gives(idempotency.Completion[Tx]{}, errors.New("died"))), ""},
		"no longer ours": {func(key string) {
			execute(t, "UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = $1", key)
		}, ""},
		"another operation": {func(key string) {
			execute(t, "DELETE FROM idempotency_store WHERE idempotency_key = $1", key)
			_, err := b.client(t, idempotency.Options{}).Lease(background, key, "another", b.answer("lost"))
			must(t, err)
		}, ""},
	} {
		for _, refusal := range []error{nil, idempotency.Decline(429, nil)} {
			var count counter
			client, key := b.client(t, idempotency.Options{Hooks: count.hooks()}), newKey()
			result, err := client.Lease(background, key, "mine",
				func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
					c.meanwhile(key)
					completion, _ := b.answer(key)(ctx, o)
					return completion, refusal
				})
			if c.want == "" {
				wantError(t, err, idempotency.ErrLeaseLost)
			} else {
				must(t, err)
				same(t, name, result.Outcome, c.want)
				same(t, "replayed", result.Replayed, true)
				same(t, "replays", count.replayed.Load(), 1)
			}
			same(t, "leases lost", count.leaseLost.Load(), 1)
			same(t, "declined", count.declined.Load(), 0)
			same(t, "effects", effects(t, key), "0")
		}
	}
}

const days = "SELECT round(extract(epoch FROM expires_at - now()) / 86400) FROM idempotency_store WHERE idempotency_key = $1"

func testAnswersWithCode500[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for _, response := range []idempotency.Response{{Code: 500, Payload: 1}, {Code: 500, Body: []byte{}},
		{Code: 500, Headers: map[string]string{}}, {Code: 501}} {
		key := newKey()
		for range 2 {
			result, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Response: response}, nil))
			must(t, err)
			same(t, "code", result.Code, response.Code)
		}
	}
}

// A hook that waits, or panics, changes nothing, in whichever goroutine it is called.
func testHooksThatFail[Tx any](t *testing.T, b backend[Tx]) {
	ended := make(chan struct{})
	clock, key := idempotency.NewFakeClock(time.Unix(0, 0)), newKey()
	client := b.client(t, idempotency.Options{Clock: clock, Hooks: idempotency.Hooks{
		Acquired: func(idempotency.Event) { panic("planned") },
		LeaseLost: func(idempotency.Event) {
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the work goes on while the hook is called")
			}
			panic("planned")
		}}})
	_, err := client.Lease(background, key, nil,
		func(ctx context.Context, _ idempotency.Operation) (idempotency.Completion[Tx], error) {
			execute(t, "UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = $1", key)
			clock.AwaitSleepers(1)
			clock.Advance(10 * time.Second)
			<-ctx.Done()
			close(ended)
			return idempotency.Completion[Tx]{}, ctx.Err()
		})
	wantError(t, err, idempotency.ErrLeaseLost)
}

// 0 is none of its own. A wrong one is the program's fault, and not the message's.
func testTimes[Tx any](t *testing.T, b backend[Tx]) {
	const longest = 36_500 * 24 * time.Hour
	client := b.client(t, idempotency.Options{})
	for own, isRight := range map[time.Duration]bool{0: true, longest: true, longest + 1: false,
		time.Nanosecond: false, -time.Second: false} {
		key, answer := newKey(), idempotency.Response{Retention: own}
		_, lease := client.Lease(background, key, nil, b.answer(key), idempotency.WithLease(own))
		_, option := b.client(t, idempotency.Options{Retention: own}).Transaction(background, newKey(), nil, b.note(key))
		_, call := client.Transaction(background, newKey(), nil, b.note(key), idempotency.WithRetention(own))
		_, response := client.Transaction(background, newKey(), nil, responds[Tx](answer))
		_, refusal := client.Transaction(background, newKey(), nil, fails[Tx](&idempotency.Declined{Response: answer}))
		for i, err := range []error{lease, option, call, response, refusal} {
			same(t, fmt.Sprint(own, i), err == nil, isRight)
			same(t, fmt.Sprint(own, i), err == nil || idempotency.Settle(nil, err).Do == idempotency.Again, true)
		}
	}
	for wait, isRight := range map[time.Duration]bool{0: true, longest: true, longest + 1: false, -1: false} {
		_, err := client.Transaction(background, newKey(), nil, b.note(newKey()), idempotency.WithWait(wait))
		same(t, fmt.Sprint(wait), err == nil, isRight)
		same(t, fmt.Sprint(wait), err == nil || idempotency.Settle(nil, err).Do == idempotency.Again, true)
	}
	for hash, request := range map[string]any{"short": nil, strings.Repeat("x", 32): 1} {
		_, err := client.Transaction(background, newKey(), request, b.note(newKey()), idempotency.WithRequestHash([]byte(hash)))
		same(t, hash, err != nil && idempotency.Settle(nil, err).Do == idempotency.Again, true)
	}
	for after, isRight := range map[time.Duration]bool{-time.Second: true, longest: true, longest + 1: false} {
		key := newKey()
		_, err := client.Transaction(background, key, nil, fails[Tx](idempotency.Decline(402, nil).Again(after)))
		same(t, fmt.Sprint(after), err == nil, isRight)
		same(t, fmt.Sprint(after), stored(t, key), map[bool]string{true: "FAILED", false: "nothing"}[isRight])
		same(t, fmt.Sprint(after), err == nil || idempotency.Settle(nil, err).Do == idempotency.Again, true)
	}
}

func testBatch[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, prefix := b.client(t, idempotency.Options{Scope: "batch", Hooks: count.hooks()}), newKey()
	keys := []string{prefix + `"a\`, prefix + "b", prefix + "b", prefix + "{c}"}
	run := func(requests []any) (outcomes string, completed int) {
		must(t, client.Run(background, func(ctx context.Context, tx Tx) error {
			operations, err := client.BeginMany(ctx, tx, keys, requests)
			if err != nil {
				return err
			}
			var owned []string
			var payloads []any
			for i, o := range operations {
				same(t, "key", o.Key, keys[i])
				outcomes += string(o.Outcome) + string(o.Payload) + " "
				if o.Outcome == idempotency.Acquired {
					owned, payloads = append(owned, o.Key), append(payloads, i)
				}
			}
			completed, err = client.CompleteMany(ctx, tx, owned, payloads)
			return err
		}))
		return outcomes, completed
	}
	outcomes, completed := run([]any{"1", nil, nil, `"\`})
	same(t, "outcomes", outcomes, "ACQUIRED ACQUIRED IN_PROGRESS ACQUIRED ")
	same(t, "completed", completed, 3)
	outcomes, completed = run([]any{"2", "any", nil, `"\`})
	same(t, "outcomes", outcomes, "MISMATCH COMPLETED1 COMPLETED1 COMPLETED3 ")
	same(t, "completed", completed, 0)
	same(t, "hooks", fmt.Sprint(count.acquired.Load(), count.inProgress.Load(), count.mismatch.Load(),
		count.replayed.Load()), "3 1 1 3")
	wantError(t, beginMany(client, keys, []any{1}), idempotency.ErrBadArgument)
	wantError(t, beginMany(client, []string{strings.Repeat("k", 300)}, nil), idempotency.ErrBadArgument)
	wantError(t, client.Run(background, func(ctx context.Context, tx Tx) error {
		if _, err := client.CompleteMany(ctx, tx, keys[:1], []any{func() {}}); !errors.As(err, new(*json.UnsupportedTypeError)) {
			t.Error(err)
		}
		_, err := client.CompleteMany(ctx, tx, keys, nil)
		return err
	}), idempotency.ErrNotOwned)
}
