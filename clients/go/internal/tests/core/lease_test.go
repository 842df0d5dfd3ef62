package core_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/safe"
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
		result, err := client.Lease(background, key, map[string]int{"n": 1}, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
	_, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{}, fmt.Errorf("refused: %w", idempotency.ErrNotDone)))
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
	_, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		first = o
		same(t, "note of nobody", string(o.Payload), "")
		must(t, client.Progress(ctx, o, 0))
		must(t, client.Progress(ctx, o, map[string]string{"charged": "ch_1"}))
		return idempotency.Completion[Tx]{}, died
	})
	wantError(t, err, died)
	runOut(t, key)
	_, err = client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
		same(t, "lease is over", value(t, "SELECT lease_expires_at <= now() FROM idempotency_store WHERE idempotency_key = $1", key), "true")
		next, err := b.client(t, idempotency.Options{}).Lease(background, key, nil, b.answer(key))
		must(t, err)
		same(t, "taken over", next.TakenOver, true)
	}
}

// awaitBeat moves the clock, and waits until the lease is extended.
func awaitBeat(t *testing.T, clock *idempotency.FakeClock, key string, after time.Duration) {
	t.Helper()
	until := func() string {
		return value(t, "SELECT lease_expires_at FROM idempotency_store WHERE idempotency_key = $1", key)
	}
	before := until()
	clock.AwaitSleepers(1)
	clock.Advance(after)
	for looks := 0; until() == before; looks++ {
		if looks == 600 {
			t.Fatal("no beat")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The clock stands still but for Advance: each third of the lease is one beat.
func testHeartbeat[Tx any](t *testing.T, b backend[Tx]) {
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	client, key := b.client(t, idempotency.Options{Scope: "beat", Clock: clock}), newKey()
	_, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		for range 4 {
			awaitBeat(t, clock, key, 10*time.Second)
			same(t, "cancelled", ctx.Err() == nil, true)
		}
		return b.answer(key)(ctx, o)
	}, idempotency.WithLease(30*time.Second))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
}

// errPanic is what a function of the pool panics with.
var errPanic = errors.New("planned")

// slow has a connection for which one waits, by the clock, and perhaps in vain.
type slow[Tx any] struct {
	idempotency.Database[Tx]
	clock *idempotency.FakeClock
	mutex sync.Mutex
	by    time.Duration
	err   error
}

// next is how long the next connection takes, and its error.
func (s *slow[Tx]) next(by time.Duration, err error) (time.Duration, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	wasBy, wasErr := s.by, s.err
	s.by, s.err = by, err
	return wasBy, wasErr
}

func (s *slow[Tx]) Acquire(ctx context.Context) (idempotency.Conn[Tx], error) {
	by, err := s.next(0, nil)
	s.clock.Advance(by)
	if err == errPanic {
		panic(err)
	}
	if err != nil {
		return nil, err
	}
	return s.Database.Acquire(ctx)
}

// The answer to the begin took 25 of the 30 seconds of the lease, so the first beat is due
// after a third of the other 5.
func testSlowBegin[Tx any](t *testing.T, b backend[Tx]) {
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	database := &slow[Tx]{Database: b.open(t, serverURL, 4), clock: clock, by: 25 * time.Second}
	client, key := idempotency.New[Tx](database, idempotency.Options{Clock: clock}), newKey()
	_, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		awaitBeat(t, clock, key, 2*time.Second)
		return b.answer(key)(ctx, o)
	}, idempotency.WithLease(30*time.Second))
	must(t, err)
}

// Somebody else takes the operation over and completes it. The next beat ends the
// work; what it wanted to write is refused. Its caller gets the other answer, whatever the work returns.
func testHeartbeatLosesTheLease[Tx any](t *testing.T, b backend[Tx]) {
	for _, failure := range []error{nil, context.Canceled, errors.New("planned"), idempotency.ErrNotDone} {
		var count counter
		clock := idempotency.NewFakeClock(time.Unix(0, 0))
		client, key := b.client(t, idempotency.Options{Clock: clock, Hooks: count.hooks()}), newKey()
		result, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
			runOut(t, key)
			other, err := b.client(t, idempotency.Options{}).Lease(background, key, nil, b.answer(key))
			must(t, err)
			same(t, "taken over", other.TakenOver, true)
			clock.AwaitSleepers(1)
			clock.Advance(10 * time.Second)
			<-ctx.Done()
			completion, err := b.answer(key)(ctx, o)
			must(t, err)
			return completion, failure
		})
		must(t, err)
		same(t, "replayed", result.Replayed, true)
		same(t, "payload", string(result.Payload), "2")
		same(t, "hook", count.leaseLost.Load(), 1)
		same(t, "effects", effects(t, key), "1")
	}
}

// While the server cannot be reached, the lease runs out by the client's clock.
// Nobody took it over, so the end is still accepted.
func testHeartbeatWithoutServer[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	clock, p := idempotency.NewFakeClock(time.Unix(0, 0)), startProxy(t)
	client, key := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Clock: clock, Hooks: count.hooks()}), newKey()
	result, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		p.order("refuse")
		for ctx.Err() == nil {
			clock.Advance(time.Second)
		}
		same(t, "a lease has passed", clock.Now().After(time.Unix(29, 0)), true)
		p.order("admit")
		return b.answer(key)(ctx, o)
	})
	must(t, err)
	same(t, "replayed", result.Replayed, false)
	same(t, "hook", count.leaseLost.Load(), 1)
	same(t, "effects", effects(t, key), "1")
}

// A network that hangs closes nothing: the work ends when its lease does, and the end
// takes no longer than it may.
func testHangingNetwork[Tx any](t *testing.T, b backend[Tx]) {
	for name, work := range map[string]func(context.Context) error{
		"in the work":    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"before the end": func(context.Context) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			client, key := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Lease: 2 * time.Second}), newKey()
			ended := make(chan error, 1)
			go func() {
				_, err := client.Lease(background, key, nil, func(ctx context.Context, _ idempotency.Operation) (completion idempotency.Completion[Tx], err error) {
					p.order("hang")
					return completion, work(ctx)
				})
				ended <- err
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, idempotency.ErrLeaseLost) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the lease never ends")
			}
			p.order("cut")
			same(t, "stored", stored(t, key), "PENDING")
		})
	}
}

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
		client, key := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Scope: "lost", Retry: quick, Hooks: count.hooks()}), newKey()
		result, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
	for _, ending := range [][]string{{"ROLLBACK"}, {"ROLLBACK", "BEGIN"}, {"COMMIT"}} {
		key, calls := newKey(), 0
		result, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
			calls++
			for _, statement := range ending {
				must(t, b.exec(ctx, tx, statement))
			}
			return b.exec(ctx, tx, "SELECT 1")
		}}, nil))
		if ending[0] == "COMMIT" {
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

// The answer to the begin came too late, reconcile took too long, or the caller has gone.
func testNothingBeginsTooLate[Tx any](t *testing.T, b backend[Tx]) {
	for name, c := range map[string]struct {
		late   time.Duration // the begin takes so long
		during func(clock *idempotency.FakeClock, key string, cancel func())
		stored string
		want   error
	}{
		"begin": {31 * time.Second, nil, "nothing", idempotency.ErrLeaseLost},
		"reconcile": {0, func(clock *idempotency.FakeClock, key string, _ func()) {
			execute(t, "UPDATE idempotency_store SET fence = fence + 1000000 WHERE idempotency_key = $1", key)
			clock.AwaitSleepers(1)
			clock.Advance(10 * time.Second)
		}, "PENDING", idempotency.ErrLeaseLost},
		"caller": {0, func(_ *idempotency.FakeClock, _ string, cancel func()) { cancel() }, "PENDING", context.Canceled},
	} {
		clock, key := idempotency.NewFakeClock(time.Unix(0, 0)), newKey()
		if c.during != nil {
			b.abandon(t, b.client(t, idempotency.Options{}), key)
		}
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		database := &slow[Tx]{Database: b.open(t, serverURL, 4), clock: clock, by: c.late}
		_, err := idempotency.New[Tx](database, idempotency.Options{Clock: clock}).Lease(ctx, key, nil,
			func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
				t.Errorf("%s: the work has begun", name)
				return idempotency.Completion[Tx]{}, nil
			}, idempotency.WithReconcile(func(ctx context.Context, _ idempotency.Operation) (idempotency.Reconciled, error) {
				c.during(clock, key, cancel)
				<-ctx.Done()
				return idempotency.NotDone(), nil
			}))
		wantError(t, err, c.want)
		same(t, name, stored(t, key), c.stored)
	}
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
		result, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Writes: func(ctx context.Context, tx Tx) error {
			must(t, b.insert(ctx, tx, key))
			runtime.Goexit()
			return nil
		}}, nil))
		t.Errorf("returned %v %v", result, err)
	})
	var during context.Context
	all.Go(func() {
		_, _ = client.Lease(background, newKey(), nil, func(ctx context.Context, _ idempotency.Operation) (idempotency.Completion[Tx], error) {
			during = ctx
			runtime.Goexit()
			return idempotency.Completion[Tx]{}, nil
		})
	})
	all.Wait()
	same(t, "effects", effects(t, key), "0")
	wantError(t, during.Err(), context.Canceled) // with the heartbeat
}

// listening tells how long each sleep is to be.
type listening struct {
	*idempotency.FakeClock
	sleeps chan time.Duration
}

func (l listening) Sleep(ctx context.Context, d time.Duration) error {
	l.sleeps <- d
	return l.FakeClock.Sleep(ctx, d)
}

// A beat failed, or was answered late, when one of the 30 seconds was left. The next one does not
// come later. A panic would end the process.
func testLateBeat[Tx any](t *testing.T, b backend[Tx]) {
	for failure, within := range map[error]time.Duration{errors.New("planned"): time.Second, errPanic: time.Second, nil: 4 * time.Second} {
		b.beatLate(t, failure, within)
	}
}

func (b backend[Tx]) beatLate(t *testing.T, failure error, within time.Duration) {
	clock := listening{idempotency.NewFakeClock(time.Unix(0, 0)), make(chan time.Duration, 10)}
	database := &slow[Tx]{Database: b.open(t, serverURL, 4), clock: clock.FakeClock}
	client, key := idempotency.New[Tx](database, idempotency.Options{Clock: clock}), newKey()
	_, err := client.Lease(background, key, nil, func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
		database.next(19*time.Second, failure)
		clock.AwaitSleepers(1)
		clock.Advance(10 * time.Second)
		for range 3 { // two are the first beat, and the limit of the second
			if d := <-clock.sleeps; d < 9*time.Second {
				same(t, "in time", d < within, true)
				return b.answer(key)(ctx, o)
			}
		}
		t.Error("too late")
		return idempotency.Completion[Tx]{}, nil
	})
	must(t, err)
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
			result, err := client.Lease(background, key, "mine", func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
			same(t, name+" "+end, stored(t, key)+value(t, "SELECT response_code FROM idempotency_store WHERE idempotency_key = $1", key), "COMPLETED500")
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

const days = "SELECT round(extract(epoch FROM expires_at - now()) / 86400) FROM idempotency_store WHERE idempotency_key = $1"

// It is kept for as long as it asked for, and an answer of a reconcile function is asked for again.
func testUnstorableKinds[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	_, err := client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Response: idempotency.Response{Payload: large, Retention: 90 * 24 * time.Hour}}, nil))
	wantError(t, err, idempotency.ErrTooLarge)
	same(t, "days", value(t, days, key), "90")
	key = newKey()
	_, err = client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{}, &idempotency.Declined{Response: idempotency.Response{Payload: large, Retention: 90 * 24 * time.Hour}}))
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
		result, err := client.Lease(background, key, nil, func(context.Context, idempotency.Operation) (idempotency.Completion[Tx], error) {
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
		return client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Response: response, Writes: func(context.Context, Tx) error { return fails }}, nil))
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
		_, err = client.Lease(background, key, nil, gives(idempotency.Completion[Tx]{Response: response, Writes: func(ctx context.Context, tx Tx) error {
			calls++
			return b.exec(ctx, tx, raise("22P02"))
		}}, nil))
		same(t, "the first error", idempotency.SQLState(err), state)
		same(t, "left", stored(t, key)+fmt.Sprint(calls), "PENDING1")
	}
}

func testAnswersWithCode500[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for _, response := range []idempotency.Response{{Code: 500, Payload: 1}, {Code: 500, Body: []byte{}}, {Code: 500, Headers: map[string]string{}}, {Code: 501}} {
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
	_, err := client.Lease(background, key, nil, func(ctx context.Context, _ idempotency.Operation) (idempotency.Completion[Tx], error) {
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
	for own, isRight := range map[time.Duration]bool{0: true, longest: true, longest + 1: false, time.Nanosecond: false, -time.Second: false} {
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
	same(t, "hooks", fmt.Sprint(count.acquired.Load(), count.inProgress.Load(), count.mismatch.Load(), count.replayed.Load()), "3 1 1 3")
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
