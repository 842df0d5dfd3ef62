// Package brokertest has the tests that the consumers of all brokers that number
// their messages must pass: copies, retries, dead letters, a stop.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Handle runs the operation of a message, by its key.
type Handle func(ctx context.Context, key string) (*idempotency.Result, error)

// Options are what the tests ask of a consumer. Its delays are 20 and 100 ms.
type Options struct {
	Handle  Handle
	Tries   int
	OnError func(error)
}

// Stage is a queue of a broker.
type Stage interface {
	Send(t *testing.T, keys ...string)
	// Consume runs a consumer until ctx ends.
	Consume(ctx context.Context, client *idempotency.Client[pgx.Tx], options Options) error
	// Settled says whether no message waits or is being handled.
	Settled(t *testing.T) bool
	DeadLetters(t *testing.T) []string
}

// Main is the TestMain of a package: it refuses to run without a server and the
// broker whose address the variable has.
func Main(m *testing.M, variable string) {
	if os.Getenv("PGHOST") == "" || os.Getenv(variable) == "" {
		fmt.Fprintln(os.Stderr, "run clients/go/test, which starts a server and a broker")
		os.Exit(1)
	}
	pool, err := Connect()
	if err == nil {
		_, err = pool.Exec(context.Background(), `CREATE EXTENSION IF NOT EXISTS idempotency;
			CREATE TABLE IF NOT EXISTS effect (name text, value int)`)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Connect makes a pool on the server of the environment.
func Connect() (*pgxpool.Pool, error) {
	return pgxv5.Connect(context.Background(), fmt.Sprintf("postgres:///%s?host=%s&port=%s&user=%s&sslmode=disable",
		os.Getenv("PGDATABASE"), os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER")))
}

// NewQueue is a name that no other test has.
func NewQueue() string { return fmt.Sprintf("go-%d", time.Now().UnixNano()) }

// Work leaves one effect for a key, declines keys with "bad", and puts "late" off
// the first time. at is called inside of the transaction.
func Work(key string, at func()) idempotency.Work[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, o idempotency.Operation) (idempotency.Response, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, 1)", key); err != nil {
			return idempotency.Response{}, err
		}
		at()
		switch {
		case strings.Contains(key, "bad"):
			return idempotency.Response{}, idempotency.Decline(402, nil)
		case strings.Contains(key, "late") && o.Attempt == 1:
			return idempotency.Response{}, idempotency.Decline(503, nil).Again(30 * time.Millisecond)
		}
		return idempotency.Response{Payload: "done"}, nil
	}
}

// Run tests a broker. make makes a stage.
func Run(t *testing.T, make func(t *testing.T, queue string) Stage) {
	for name, test := range map[string]func(*testing.T, *scene){
		"copies and failures": testCopies, "errors": testErrors, "stop": testStop,
	} {
		t.Run(name, func(t *testing.T) {
			queue := NewQueue()
			pool, err := Connect()
			Must(t, err)
			t.Cleanup(pool.Close)
			client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: queue})
			test(t, &scene{Stage: make(t, queue), queue: queue, pool: pool, client: client})
		})
	}
}

type scene struct {
	Stage
	queue  string
	pool   *pgxpool.Pool
	client *idempotency.Client[pgx.Tx]
	mutex  sync.Mutex
	seen   []string
	errors []error
}

func (s *scene) note(key string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.seen = append(s.seen, key)
	n := 0
	for _, each := range s.seen {
		if each == key {
			n++
		}
	}
	return n
}

func (s *scene) fail(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.errors = append(s.errors, err)
}

// consumeUntil consumes until the condition holds and all is settled.
func (s *scene) consumeUntil(t *testing.T, options Options, holds func() bool) {
	t.Helper()
	options.OnError = s.fail
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Consume(ctx, s.client, options) }()
	for deadline := time.Now().Add(time.Minute); !holds() || !s.Settled(t); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time; seen %v, errors %v", s.seen, s.errors)
		}
	}
	cancel()
	Must(t, <-ended)
}

func (s *scene) all(n int) func() bool {
	return func() bool {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		return len(s.seen) >= n
	}
}

func (s *scene) wantDead(t *testing.T, want ...string) {
	t.Helper()
	dead := s.DeadLetters(t)
	sort.Strings(dead)
	if fmt.Sprint(dead) != fmt.Sprint(want) {
		t.Errorf("dead letters %v, not %v", dead, want)
	}
}

func testCopies(t *testing.T, s *scene) {
	handle := func(ctx context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return s.client.Transaction(ctx, key, nil, Work(s.queue+key, func() {}))
	}
	s.Send(t, "good", "bad", "late", "good", "bad", "bad2", "bad")
	s.consumeUntil(t, Options{Handle: handle}, s.all(8))
	s.wantDead(t, "bad", "bad2")
	for key, want := range map[string]int{"good": 1, "late": 1, "bad": 0, "bad2": 0} {
		var got int
		Must(t, s.pool.QueryRow(context.Background(), "SELECT count(*) FROM effect WHERE name = $1", s.queue+key).Scan(&got))
		if got != want {
			t.Errorf("%d effects of %s", got, key)
		}
	}
}

func testErrors(t *testing.T, s *scene) {
	var times []time.Time
	handle := func(_ context.Context, key string) (*idempotency.Result, error) {
		switch key {
		case "broken":
			s.mutex.Lock()
			times = append(times, time.Now())
			s.mutex.Unlock()
			s.note(key)
			return nil, errors.New("planned")
		case "argument":
			s.note(key)
			return nil, idempotency.ErrBadArgument
		}
		s.note(key)
		return nil, nil
	}
	s.Send(t, "broken", "argument", "nothing")
	s.consumeUntil(t, Options{Handle: handle, Tries: 3}, s.all(5))
	s.wantDead(t, "argument", "broken")
	if len(times) != 3 || len(s.errors) != 4 {
		t.Fatalf("times %v, errors %v", times, s.errors)
	}
	if times[1].Sub(times[0]) < 20*time.Millisecond || times[2].Sub(times[1]) < 100*time.Millisecond {
		t.Errorf("too early: %v", times)
	}
}

func testStop(t *testing.T, s *scene) {
	ctx, cancel := context.WithCancel(context.Background())
	handle := func(inner context.Context, key string) (*idempotency.Result, error) {
		cancel()
		<-ctx.Done()
		s.note(key)
		return nil, inner.Err()
	}
	s.Send(t, "one")
	Must(t, s.Consume(ctx, s.client, Options{Handle: handle, OnError: s.fail}))
	again := func(_ context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return nil, nil
	}
	s.consumeUntil(t, Options{Handle: again}, s.all(1))
	if len(s.seen) != 1 || len(s.errors) != 0 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// Must ends the test at an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
