package core_test

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// quick keeps real waits short where the fault is the subject. A begin after a lost
// connection waits for the session that it belonged to, for as long as Cap.
var quick = idempotency.Retry{Base: time.Millisecond, Cap: time.Minute}

func TestFaults(t *testing.T) {
	onBoth(t, faultTests[pgx.Tx](), faultTests[*sql.Tx]())
	t.Run("database/sql with pgx", func(t *testing.T) { testLostConnection(t, onSQLBy("pgx")) })
}

func faultTests[Tx any]() tests[Tx] {
	return tests[Tx]{
		"SerializationFailures": testSerializationFailures[Tx], "WriteSkew": testWriteSkew[Tx], "LostConnection": testLostConnection[Tx],
		"TerminatedPool": testTerminatedPool[Tx],
		"ManyFaults":     testManyFaults[Tx], "HangingTransaction": testHangingTransaction[Tx], "NothingToReach": testNothingToReach[Tx],
		"LossOfTheWork": testLossOfTheWork[Tx], "SessionThatStillEnds": testSessionThatStillEnds[Tx],
		"TakenBetweenAttempts": testTakenBetweenAttempts[Tx],
	}
}

func testSerializationFailures[Tx any](t *testing.T, b backend[Tx]) {
	for _, state := range []string{"40001", "40P01"} {
		var count counter
		client, key := b.client(t, idempotency.Options{Retry: quick, Hooks: count.hooks()}), newKey()
		failures := 2
		work := does(func(ctx context.Context, tx Tx) error {
			must(t, b.insert(ctx, tx, key))
			if failures == 0 {
				return nil
			}
			failures--
			return b.exec(ctx, tx, raise(state))
		})
		result, err := client.Transaction(background, key, nil, work)
		must(t, err)
		same(t, "replayed", result.Replayed, false)
		same(t, "retried", count.retried.Load(), 2)
		same(t, "effects", effects(t, key), "1")
		failures = 100
		_, err = client.Transaction(background, newKey(), nil, work)
		same(t, "SQLSTATE of the last", idempotency.SQLState(err), state)
		same(t, "attempts", failures, 95)
		same(t, "transient", idempotency.Transient(err), true)
	}
}

// Two at SERIALIZABLE read before either writes. The server refuses one, and its
// repetition sees what the other has done.
func testWriteSkew[Tx any](t *testing.T, b backend[Tx]) {
	execute(t, "DELETE FROM duty; INSERT INTO duty VALUES ('ann', true), ('bob', true)")
	var count counter
	client := b.client(t, idempotency.Options{Retry: quick, Hooks: count.hooks()})
	var first sync.WaitGroup
	first.Add(2)
	errs := make(chan error, 2)
	for _, who := range []string{"ann", "bob"} {
		go func() {
			attempt := 0
			_, err := client.Transaction(background, newKey(), nil, does(func(ctx context.Context, tx Tx) error {
				err := b.exec(ctx, tx, "CREATE TEMP TABLE others ON COMMIT DROP AS SELECT count(*) AS n FROM duty WHERE on_call")
				if attempt++; attempt == 1 {
					first.Done()
					first.Wait()
				}
				return errors.Join(err, b.exec(ctx, tx, fmt.Sprintf(
					"UPDATE duty SET on_call = false WHERE who = '%s' AND (SELECT n FROM others) > 1", who)))
			}), idempotency.WithIsolation(sql.LevelSerializable))
			errs <- err
		}()
	}
	must(t, <-errs)
	must(t, <-errs)
	same(t, "on call", value(t, "SELECT count(*) FROM duty WHERE on_call"), "1")
	if count.retried.Load() == 0 {
		t.Fatal("no serialization failure")
	}
}

func TestBackoff(t *testing.T) {
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	var delays []time.Duration
	client := onPgx.client(t, idempotency.Options{Clock: clock, Retry: idempotency.Retry{Attempts: 9},
		Hooks: idempotency.Hooks{Retried: func(e idempotency.Event) { delays = append(delays, e.Delay) }}})
	done := make(chan error)
	run := func(ctx context.Context) {
		_, err := client.Transaction(ctx, newKey(), nil, onPgx.runs(raise("40001")))
		done <- err
	}
	go run(background)
	for range 8 {
		clock.AwaitSleepers(1)
		clock.Advance(2 * time.Second)
	}
	err := <-done
	same(t, "SQLSTATE", idempotency.SQLState(err), "40001")
	same(t, "delays", len(delays), 8)
	for i, delay := range delays {
		longest := min(50*time.Millisecond<<i, 2*time.Second)
		if delay < 0 || delay > longest {
			t.Fatalf("delay %d is %v, longer than %v", i, delay, longest)
		}
	}
	ctx, cancel := context.WithCancel(background)
	go run(ctx)
	clock.AwaitSleepers(1)
	cancel()
	err = <-done
	wantError(t, err, context.Canceled)
	same(t, "SQLSTATE", idempotency.SQLState(err), "40001")

	// Nobody waits for a repeat, so none is told of.
	count := len(delays)
	ctx, cancel = context.WithCancel(background)
	_, err = client.Transaction(ctx, newKey(), nil, does(func(ctx context.Context, tx pgx.Tx) error {
		defer cancel()
		return onPgx.exec(ctx, tx, raise("40001"))
	}))
	wantError(t, err, context.Canceled)
	same(t, "SQLSTATE", idempotency.SQLState(err), "40001")
	same(t, "delays", len(delays), count)
}

// Whatever passes when the connection breaks, and whether or not the server got
// it: one effect, and an answer.
func testLostConnection[Tx any](t *testing.T, b backend[Tx]) {
	for _, fault := range []struct {
		when, pattern string
		replayed      bool
	}{
		{"after", "^COMMIT", true},
		{"before", "^COMMIT", false},
		{"after", "idem_begin", false},
		{"before", "idem_begin", false},
		{"before", "idem_complete", false},
		{"after", "INSERT INTO effect", false},
		{"before", "INSERT INTO effect", false},
	} {
		t.Run(fault.when+" "+fault.pattern, func(t *testing.T) {
			p := startProxy(t)
			client, key := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Retry: quick}), newKey()
			p.order("arm", fault.when, fault.pattern)
			result, err := client.Transaction(background, key, map[string]int{"n": 1}, b.note(key))
			must(t, err)
			same(t, "cuts", p.state().Hits, 1)
			same(t, "outcome", result.Outcome, idempotency.Completed)
			same(t, "replayed", result.Replayed, fault.replayed)
			same(t, "effects", effects(t, key), "1")
		})
	}
}

// Until the session of a lost connection has ended, it owns the operation.
func testSessionThatStillEnds[Tx any](t *testing.T, b backend[Tx]) {
	p := startProxy(t)
	client, key, runs := idempotency.New(b.open(t, p.url(), 2), idempotency.Options{Retry: quick}), newKey(), 0
	result, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
		if runs++; runs == 1 {
			time.AfterFunc(200*time.Millisecond, func() { p.order("cut") })
			return b.exec(ctx, tx, "SELECT pg_sleep(1)")
		}
		return b.insert(ctx, tx, key)
	}))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.Completed)
	same(t, "runs", runs, 2)
	same(t, "effects", effects(t, key), "1")
}

// Who begins the operation between two attempts is no session of ours, so nobody waits for its end.
func testTakenBetweenAttempts[Tx any](t *testing.T, b backend[Tx]) {
	key := newKey()
	other, err := admin(t).Begin()
	must(t, err)
	defer other.Rollback()
	client := b.client(t, idempotency.Options{Retry: idempotency.Retry{Base: time.Millisecond, Cap: time.Hour},
		Hooks: idempotency.Hooks{Retried: func(idempotency.Event) {
			_, err := other.Exec("SELECT idem_begin($1)", key)
			must(t, err)
		}}})
	ctx, cancel := context.WithTimeout(background, 10*time.Second)
	defer cancel()
	result, err := client.Transaction(ctx, key, nil, b.runs(raise("40001")))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.InProgress)
}

// A network that hangs closes nothing. The call ends with its context all the same.
func testHangingTransaction[Tx any](t *testing.T, b backend[Tx]) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		before, inside func(p *proxy)
		returns, want  error
		stored         string
	}{
		"begin":    {before: func(p *proxy) { p.order("hang") }, stored: "nothing"},
		"end":      {inside: func(p *proxy) { p.order("hang") }, stored: "nothing"},
		"commit":   {inside: func(p *proxy) { p.order("arm", "hold", "^COMMIT") }, stored: "COMPLETED"},
		"rollback": {inside: func(p *proxy) { p.order("hang") }, returns: own, want: own, stored: "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			client, key := idempotency.New(b.open(t, p.url(), 1), idempotency.Options{}), newKey()
			_, err := client.Transaction(background, newKey(), nil, b.note("x"))
			must(t, err)
			if c.before != nil {
				c.before(p)
			}
			ctx, cancel := context.WithTimeout(background, 500*time.Millisecond)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := client.Transaction(ctx, key, nil, does(func(ctx context.Context, tx Tx) error {
					if err := b.insert(ctx, tx, key); err != nil || c.inside == nil {
						return err
					}
					c.inside(p)
					return c.returns
				}))
				ended <- err
			}()
			select {
			case err := <-ended:
				if want := cmp.Or(c.want, context.DeadlineExceeded); !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			case <-time.After(30 * time.Second):
				t.Error("the call never ends")
			}
			p.order("cut")
			same(t, "stored", stored(t, key), c.stored)
		})
	}
}

// counting counts the connections that were asked for, which may be of no use.
type counting[Tx any] struct {
	idempotency.Database[Tx]
	asked int
	err   error
}

func (c *counting[Tx]) Acquire(ctx context.Context) (idempotency.Conn[Tx], error) {
	c.asked++
	conn, err := c.Database.Acquire(ctx)
	if err != nil || c.err == nil {
		return conn, err
	}
	return useless[Tx]{conn, c.err}, nil
}

type useless[Tx any] struct {
	idempotency.Conn[Tx]
	err error
}

func (u useless[Tx]) Query(context.Context, idempotency.Statement) ([]idempotency.Row, error) {
	return nil, u.err
}

func (u useless[Tx]) Begin(context.Context, sql.IsolationLevel, ...idempotency.Statement) ([]idempotency.Row, error) {
	return nil, u.err
}

// Where no connection can be made, or one is waited for in vain, each is an attempt: it is
// none that was dead in the pool.
func testNothingToReach[Tx any](t *testing.T, b backend[Tx]) {
	for _, failure := range []error{nil, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
		&pgconn.PgError{Code: "57P03"}, &pgconn.PgError{Code: "08004"}} {
		p := startProxy(t)
		database := &counting[Tx]{Database: b.open(t, p.url(), 2), err: failure}
		client := idempotency.New[Tx](database, idempotency.Options{Retry: idempotency.Retry{Attempts: 2, Base: time.Millisecond}})
		if failure == nil {
			p.order("close")
		}
		_, err := client.Transaction(background, newKey(), nil, b.note("x"))
		wantError(t, err, idempotency.ErrConnectionLost)
		_, err = client.Lease(background, newKey(), nil, b.answer("x"))
		wantError(t, err, idempotency.ErrConnectionLost)
		if database.asked > 6 { // the proxy still takes one, which ends at once
			t.Errorf("%d connections for 4 attempts, with %v", database.asked, failure)
		}
	}
}

// The connections that work loses are another client's, so each loss is an attempt of its own.
func testLossOfTheWork[Tx any](t *testing.T, b backend[Tx]) {
	outer := b.client(t, idempotency.Options{Retry: idempotency.Retry{Attempts: 2, Base: time.Millisecond}})
	for _, loss := range []error{driver.ErrBadConn, io.ErrUnexpectedEOF, idempotency.ConnectionLost(io.EOF)} {
		inner := idempotency.New[Tx](&counting[Tx]{Database: b.open(t, serverURL, 1), err: loss},
			idempotency.Options{Retry: idempotency.Retry{Attempts: 1}})
		for name, call := range map[string]func() error{
			"run": func() error { return inner.Run(background, func(context.Context, Tx) error { return nil }) },
			"lease": func() error {
				_, err := inner.Lease(background, newKey(), nil, b.answer("x"))
				return err
			},
		} {
			runs := 0
			_, err := outer.Transaction(background, newKey(), nil, does(func(context.Context, Tx) error {
				runs++
				return call()
			}))
			wantError(t, err, idempotency.ErrConnectionLost)
			same(t, "said", strings.Count(err.Error(), "connection was lost"), 1)
			same(t, name, runs, 2)
		}
	}
}

// A pool full of connections that the server has closed does not use the attempts
// up.
func testTerminatedPool[Tx any](t *testing.T, b backend[Tx]) {
	const size = 10
	client := idempotency.New(b.open(t, serverURL+"&application_name=terminated", size),
		idempotency.Options{Retry: idempotency.Retry{Attempts: 1}})
	var inside sync.WaitGroup
	inside.Add(size)
	errs := make(chan error)
	for range size {
		go func() {
			_, err := client.Transaction(background, newKey(), nil, does(func(context.Context, Tx) error {
				inside.Done()
				inside.Wait()
				return nil
			}))
			errs <- err
		}()
	}
	for range size {
		must(t, <-errs)
	}
	// the one that has found out whether a pooler is in between may still be at its end
	for looks := 0; looks < 600 &&
		value(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'terminated'") != fmt.Sprint(size); looks++ {
		time.Sleep(100 * time.Millisecond)
	}
	ended := value(t, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name = 'terminated'")
	same(t, "ended", ended, fmt.Sprint(size))
	key := newKey()
	_, err := client.Transaction(background, key, nil, b.note(key))
	must(t, err)
	same(t, "effects", effects(t, key), "1")
}

// The server ends a session that was idle for too long. With TLS nobody sees that before
// the next statement, and so it is here, where the socket is hidden.
func TestIdleForTooLong(t *testing.T) {
	key := newKey()
	config, err := pgxv5.Config(startProxy(t).url() + "&pool_max_conns=1&application_name=" + key)
	must(t, err)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		socket, err := dial(ctx, network, address)
		return struct{ net.Conn }{socket}, err
	}
	pool, err := pgxpool.NewWithConfig(background, config)
	must(t, err)
	defer pool.Close()
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Retry: idempotency.Retry{Attempts: 1}})
	idle := func() {
		_, err := client.Transaction(background, newKey(), nil, onPgx.runs("SET idle_session_timeout = 1"))
		must(t, err)
		for value(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", key) != "0" {
		}
	}
	idle()
	_, err = client.Transaction(background, key, nil, onPgx.note(key))
	must(t, err)
	idle()
	_, err = client.Lease(background, key+"-lease", nil, onPgx.answer(key))
	must(t, err)
	same(t, "effects", effects(t, key), "2")
}

func TestTransientStates(t *testing.T) {
	for _, state := range []string{"40001", "40P01", "08006", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04"} {
		same(t, state, idempotency.Transient(&pgconn.PgError{Code: state}), true)
	}
}

func TestRoundTrips(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testRoundTrips(t, onPgx, 2, 1, 2) })
	t.Run("database/sql", func(t *testing.T) { testRoundTrips(t, onSQL, 7, 1, 5) })
	t.Run("database/sql,binary_parameters", func(t *testing.T) {
		b := onSQL
		b.open = func(t *testing.T, url string, size int) idempotency.Database[*sql.Tx] {
			return onSQL.open(t, url+"&binary_parameters=yes", size)
		}
		testRoundTrips(t, b, 5, 1, 4)
	})
}

// base is what the transaction costs beside its statements, replay what a stored
// answer does.
func testRoundTrips[Tx any](t *testing.T, b backend[Tx], base, perStatement, replay int) {
	p := startProxy(t)
	client := idempotency.New(b.open(t, p.url(), 1), idempotency.Options{})
	key := ""
	run := func(statements int) int {
		before := p.state().Trips
		_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
			for range statements {
				must(t, b.exec(ctx, tx, "INSERT INTO effect VALUES ('trips')"))
			}
			return nil
		}))
		must(t, err)
		return p.state().Trips - before
	}
	key = newKey()
	run(1) // connects, and describes the statement
	for _, n := range []int{0, 1, 3, 10} {
		key = newKey()
		same(t, fmt.Sprintf("round trips for %d statements", n), run(n), base+perStatement*n)
		same(t, "round trips for a replay", run(n), replay)
	}
}

// Connections break at random while eight callers send each key three times.
func testManyFaults[Tx any](t *testing.T, b backend[Tx]) {
	p := startProxy(t)
	client := idempotency.New(b.open(t, p.url(), 4),
		idempotency.Options{Retry: idempotency.Retry{Attempts: 50, Base: time.Millisecond, Cap: 20 * time.Millisecond}})
	faults := []string{"after", "before"}
	patterns := []string{"^COMMIT", "idem_begin", "INSERT INTO effect"}
	var all sync.WaitGroup
	prefix := newKey()
	for range 8 {
		all.Go(func() {
			for i := range 30 {
				key := fmt.Sprintf("%s-%d", prefix, i)
				p.order("arm", faults[rand.Intn(len(faults))], patterns[rand.Intn(len(patterns))])
				result, err := client.Transaction(background, key, nil, b.note(key), idempotency.WithWait(10*time.Second))
				if err != nil || result.Outcome != idempotency.Completed {
					t.Errorf("%s: %v %v", key, result, err)
				}
			}
		})
	}
	all.Wait()
	if hits := p.state().Hits; hits < 20 {
		t.Fatalf("only %d cuts", hits)
	}
	same(t, "effects", value(t, "SELECT count(*) || '/' || count(DISTINCT key) FROM effect WHERE key LIKE $1 || '-%'", prefix), "30/30")
}

// A sleeper that has gone is none that a test waits for.
func TestFakeClock(t *testing.T) {
	clock := idempotency.NewFakeClock(time.Now())
	must(t, clock.Sleep(background, 0))
	ctx, cancel := context.WithCancel(background)
	ended := make(chan error)
	sleep := func(ctx context.Context) { ended <- clock.Sleep(ctx, time.Second) }
	go sleep(ctx)
	clock.AwaitSleepers(1)
	cancel()
	wantError(t, <-ended, context.Canceled)
	go sleep(background)
	clock.AwaitSleepers(1)
	clock.Advance(time.Second)
	must(t, <-ended)
}
