package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
)

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
	_, err := client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
			for range 4 {
				awaitBeat(t, clock, key, 10*time.Second)
				same(t, "cancelled", ctx.Err() == nil, true)
			}
			return b.answer(key)(ctx, o)
		}, idempotency.WithLease(30*time.Second))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
}

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
	_, err := client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
		result, err := client.Lease(background, key, nil,
			func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
	result, err := client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
				_, err := client.Lease(background, key, nil,
					func(ctx context.Context, _ idempotency.Operation) (completion idempotency.Completion[Tx], err error) {
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
	for failure, within := range map[error]time.Duration{errors.New("planned"): time.Second, errPanic: time.Second,
		nil: 4 * time.Second} {
		b.beatLate(t, failure, within)
	}
}

func (b backend[Tx]) beatLate(t *testing.T, failure error, within time.Duration) {
	clock := listening{idempotency.NewFakeClock(time.Unix(0, 0)), make(chan time.Duration, 10)}
	database := &slow[Tx]{Database: b.open(t, serverURL, 4), clock: clock.FakeClock}
	client, key := idempotency.New[Tx](database, idempotency.Options{Clock: clock}), newKey()
	_, err := client.Lease(background, key, nil,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
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
