// The tests that the consumers of all brokers must pass: copies, retries, dead letters,
// a stop.
package brokers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
	"example.org/idempotency/internal/tests/kit"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) {
	kit.Main(m, "CREATE TABLE IF NOT EXISTS effect (name text, value int)", "DEMO_AMQP", "DEMO_NATS", "DEMO_REDIS", "DEMO_KAFKA")
}

var must = kit.Must

// stage is a queue of a broker.
type stage interface {
	send(t *testing.T, keys ...string)
	// at is told what the consumer does.
	at(point string)
	// settled says whether no message waits or is being handled.
	settled(t *testing.T) bool
	deadLetters(t *testing.T) []string
}

// deaf is a stage that need not be told.
type deaf struct{}

func (deaf) at(string) {}

var stages = map[string]func(t *testing.T, queue string) stage{"rabbitmq": newRabbitMQ, "nats": newNATS,
	"redis": newRedis, "kafka": newTopic}

func TestConsumers(t *testing.T) {
	for broker := range stages {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			for name, test := range map[string]func(*testing.T, *scene){
				"copies and failures": testCopies, "a dead letter that is sent again": testSentAgain, "errors": testErrors, "accidents": testAccidents,
				"in progress": testInProgress, "a long time": testLongTime, "stop": testStop,
			} {
				t.Run(name, func(t *testing.T) { test(t, newScene(t, broker)) })
			}
		})
	}
}

type scene struct {
	stage
	broker, queue string
	pool          *pgxpool.Pool
	client        *idempotency.Client[pgx.Tx]
	mutex         sync.Mutex
	seen          []string
	errors        []error
	panics        bool // fail does, as OnError
}

func newScene(t *testing.T, broker string) *scene {
	queue := fmt.Sprintf("go-%s-%d", broker, time.Now().UnixNano())
	pool, err := kit.Connect()
	must(t, err)
	t.Cleanup(pool.Close)
	return &scene{stage: stages[broker](t, queue), broker: broker, queue: queue, pool: pool,
		client: idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: queue})}
}

// consume waits a minute for a consumer that died, as none does, unless the test says else: no
// message comes again, however slow the machine is.
func (s *scene) consume(ctx context.Context, options Options) error {
	options.Patience, options.OnError, options.At = cmp.Or(options.Patience, time.Minute), s.fail, s.at
	return Consumers[s.broker](ctx, s.queue, s.client, options)
}

// note says how many there are now.
func (s *scene) note(key string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.seen = append(s.seen, key)
	return len(s.seen)
}

// noteOf says how often this one was seen.
func (s *scene) noteOf(key string) (times int) {
	s.note(key)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, seen := range s.seen {
		if seen == key {
			times++
		}
	}
	return times
}

func (s *scene) fail(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.errors = append(s.errors, err)
	if s.panics {
		panic("planned")
	}
}

// consumeUntil consumes until the condition holds and all is settled.
func (s *scene) consumeUntil(t *testing.T, options Options, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.consume(ctx, options) }()
	for deadline := time.Now().Add(time.Minute); !holds() || !s.settled(t); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time; seen %v, errors %v", s.seen, s.errors)
		}
	}
	cancel()
	must(t, <-ended)
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
	dead := s.deadLetters(t)
	sort.Strings(dead)
	if fmt.Sprint(dead) != fmt.Sprint(want) {
		t.Errorf("dead letters %v, not %v", dead, want)
	}
}

// handle leaves an effect under the name of the queue and the key.
func (s *scene) handle(ctx context.Context, key string) (*idempotency.Result, error) {
	s.note(key)
	return s.client.Transaction(ctx, key, nil, Work(s.queue+key, func() {}))
}

func testCopies(t *testing.T, s *scene) {
	s.send(t, "good", "bad", "late", "good", "bad", "bad2", "bad")
	s.consumeUntil(t, Options{Handle: s.handle}, s.all(8))
	s.wantDead(t, "bad", "bad2")
	for key, want := range map[string]int{"good": 1, "late": 1, "bad": 0, "bad2": 0} {
		var got int
		must(t, s.pool.QueryRow(context.Background(), "SELECT count(*) FROM effect WHERE name = $1", s.queue+key).Scan(&got))
		if got != want {
			t.Errorf("%d effects of %s", got, key)
		}
	}
}

// A message that is sent again after idem_forget is no copy.
func testSentAgain(t *testing.T, s *scene) {
	for round := range 2 {
		s.send(t, "bad")
		s.consumeUntil(t, Options{Handle: s.handle}, s.all(round+1))
		forgotten := false
		must(t, s.pool.QueryRow(context.Background(), "SELECT idem_forget('bad', $1)", s.queue).Scan(&forgotten))
		if !forgotten {
			t.Fatal("there was no record")
		}
	}
	s.wantDead(t, "bad", "bad")
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
	s.send(t, "broken", "argument", "nothing")
	s.consumeUntil(t, Options{Handle: handle, Tries: 3}, s.all(5))
	s.wantDead(t, "argument", "broken")
	if len(times) != 3 || len(s.errors) != 4 {
		t.Fatalf("times %v, errors %v", times, s.errors)
	}
	if times[1].Sub(times[0]) < 20*time.Millisecond || times[2].Sub(times[1]) < 100*time.Millisecond {
		t.Errorf("too early: %v", times)
	}
}

// A panic, also one of OnError, would end each process that gets the message, and a result without
// an outcome would bring it again for ever.
func testAccidents(t *testing.T, s *scene) {
	s.panics = true
	s.send(t, "panic", "result")
	s.consumeUntil(t, Options{Tries: 3, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key); key == "panic" {
			panic("planned")
		}
		return &idempotency.Result{Code: 200}, nil
	}}, s.all(6))
	s.wantDead(t, "panic", "result")
	if len(s.seen) != 6 || len(s.errors) != 6 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// While another worker runs the operation, no try and no delivery counts: not as a result, and
// not as the error of a function that runs once.
func testInProgress(t *testing.T, s *scene) {
	soon := time.Millisecond
	s.send(t, "result", "function")
	s.consumeUntil(t, Options{Tries: 2, DeliveryLimit: 2, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		switch n := s.noteOf(key); {
		case n == 4:
			return nil, errors.New("planned")
		case n > 4:
			return nil, nil
		case key == "result":
			return &idempotency.Result{Outcome: idempotency.InProgress, RetryAfter: &soon}, nil
		}
		return nil, fmt.Errorf("function: %w", &idempotency.InProgressError{RetryAfter: &soon})
	}}, s.all(10))
	s.wantDead(t)
	if len(s.seen) != 10 || len(s.errors) != 2 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// The broker is told that the message is being handled.
func testLongTime(t *testing.T, s *scene) {
	s.send(t, "long")
	s.consumeUntil(t, Options{Patience: 2 * time.Second, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		time.Sleep(5 * time.Second)
		return nil, nil
	}}, s.all(1))
	if len(s.seen) != 1 || len(s.errors) != 0 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// Without an error and without an end, as where each consumer dies with the message.
func TestDeliveriesAreBounded(t *testing.T) {
	soon := time.Millisecond
	for _, broker := range []string{"nats", "redis"} {
		s := newScene(t, broker)
		s.send(t, "late")
		s.consumeUntil(t, Options{DeliveryLimit: 3, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
			s.note(key)
			return &idempotency.Result{Outcome: idempotency.Failed, RetryAfter: &soon}, nil
		}}, s.all(3))
		s.wantDead(t, "late")
		if len(s.seen) != 3 || len(s.errors) != 0 {
			t.Errorf("%s: seen %v, errors %v", broker, s.seen, s.errors)
		}
	}
}

func testStop(t *testing.T, s *scene) {
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan struct{})
	handle := func(inner context.Context, key string) (*idempotency.Result, error) {
		cancel()
		select {
		case <-returned:
			t.Error("Consume has not waited")
		case <-time.After(time.Second): // a fetch of NATS waits for half of that
		}
		s.note(key)
		return nil, inner.Err()
	}
	s.send(t, "one")
	must(t, s.consume(ctx, Options{Handle: handle}))
	close(returned)
	again := func(_ context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return nil, nil
	}
	s.consumeUntil(t, Options{Handle: again}, s.all(1))
	if len(s.seen) != 1 || len(s.errors) != 0 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// Such as the right to its scope: there is time to give it, before each copy is a dead letter.
func TestAnErrorOfTheOwnerIsNoneOfTheMessage(t *testing.T) {
	forbidden := func(context.Context, string, *idempotency.Result, string) (bool, error) {
		return false, idempotency.ErrForbidden
	}
	policy, err := broker.Policy{}.Checked()
	must(t, err)
	decision := policy.DecideFailure(context.Background(), broker.Position{}, &idempotency.Result{}, forbidden, func(error) {})
	if decision.Do != idempotency.Again || decision.Tries != 1 {
		t.Errorf("got %+v", decision)
	}
}

func TestPausesGrowUntilTheLast(t *testing.T) {
	policy, err := broker.Policy{}.Checked()
	must(t, err)
	unknown := &idempotency.UnknownError{RetryAfter: 30 * time.Second}
	for _, c := range []struct {
		tries int
		err   error
		want  idempotency.Settlement
	}{
		{2, unknown, idempotency.Settlement{Do: idempotency.Again, After: time.Minute}},
		{1, unknown, idempotency.Settlement{Do: idempotency.Again, After: 30 * time.Second}},
		{18, errors.New("planned"), idempotency.Settlement{Do: idempotency.Again, After: time.Minute}},
		{19, errors.New("planned"), idempotency.Settlement{Do: idempotency.DeadLetter}},
	} {
		if got := policy.AfterError(c.err, c.tries); got.Settlement != c.want {
			t.Errorf("after %d tries: %+v", c.tries, got)
		}
	}
}

func TestStopWaitsForTheCallUnderWay(t *testing.T) {
	clock := idempotency.NewFakeClock(time.Now())
	entered, stopping := make(chan struct{}), make(chan struct{})
	calls := 0
	stop := broker.Repeat(clock, time.Second, func() {
		close(entered)
		<-stopping
		time.Sleep(20 * time.Millisecond) // a stop that did not wait would read calls now
		calls++
	})
	clock.AwaitSleepers(1)
	clock.Advance(time.Second)
	<-entered
	close(stopping)
	stop()
	clock.Advance(time.Hour)
	if calls != 1 {
		t.Errorf("%d calls when stop returned", calls)
	}
}

// Or messages would wait here, and their time to be handled would run, while other
// consumers have nothing to do.
func TestPullAsksForAsManyAsAreFree(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	release := make(chan struct{})
	var asked []int
	must(t, broker.Pull(ctx, 3, func(free int) ([]string, error) {
		asked = append(asked, free)
		if len(asked) == 1 {
			return []string{"one"}, nil
		}
		cancel()
		close(release)
		return nil, nil
	}, func(context.Context, string) { <-release }))
	if fmt.Sprint(asked) != "[3 2]" {
		t.Errorf("asked for %v", asked)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	growing := delays
	defer func() { delays = growing }()
	for name, consume := range Consumers {
		delays = []time.Duration{2, 1}
		if err := consume(context.Background(), "none", nil, Options{}); !errors.Is(err, broker.ErrDelays) {
			t.Errorf("%s: %v", name, err)
		}
		delays = growing
		if err := consume(context.Background(), strings.Repeat("q", 251), nil, Options{}); !errors.Is(err, broker.ErrName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
