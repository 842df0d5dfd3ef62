package idemrabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

var pool *pgxpool.Pool

// TestMain refuses to run where there is no server or no broker.
func TestMain(m *testing.M) {
	if os.Getenv("PGHOST") == "" || os.Getenv("DEMO_AMQP") == "" {
		fmt.Fprintln(os.Stderr, "run clients/go/test, which starts a server and a broker")
		os.Exit(1)
	}
	var err error
	pool, err = pgxv5.Connect(context.Background(), fmt.Sprintf("postgres:///%s?host=%s&port=%s&user=%s&sslmode=disable",
		os.Getenv("PGDATABASE"), os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER")))
	if err == nil {
		_, err = pool.Exec(context.Background(), `CREATE EXTENSION IF NOT EXISTS idempotency;
			CREATE TABLE IF NOT EXISTS effect (key text NOT NULL)`)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bench is a queue with what a test needs around it.
type bench struct {
	t      *testing.T
	queue  string
	client *idempotency.Client[pgx.Tx]
	conn   *amqp.Connection
	ch     *amqp.Channel
	mutex  sync.Mutex
	seen   []string
	errors []error
	open   atomic.Int64 // messages that are not settled
}

func newBench(t *testing.T) *bench {
	queue := fmt.Sprintf("go-%d", time.Now().UnixNano())
	b := &bench{t: t, queue: queue, client: idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: queue})}
	b.conn = b.dial()
	ch, err := b.conn.Channel()
	must(t, err)
	b.ch = ch
	return b
}

func (b *bench) dial() *amqp.Connection {
	conn, err := amqp.Dial(os.Getenv("DEMO_AMQP"))
	must(b.t, err)
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// options have short delays and many deliveries. The handler leaves an effect for
// each key, declines "bad", and puts "late" off the first time.
func (b *bench) options() idemrabbitmq.Options {
	return idemrabbitmq.Options{Queue: b.queue, Handle: b.handle(func(string) {}), Prefetch: 4, DeliveryLimit: 1000,
		Delays:  []time.Duration{20 * time.Millisecond, 100 * time.Millisecond},
		OnError: func(err error, _ amqp.Delivery) { b.note("", err) }}
}

func (b *bench) note(key string, err error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if err != nil {
		b.errors = append(b.errors, err)
		return
	}
	b.seen = append(b.seen, key)
}

func (b *bench) handle(at func(point string)) func(context.Context, amqp.Delivery) (*idempotency.Result, error) {
	return func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
		key := message.MessageId
		b.note(key, nil)
		result, err := b.client.Transaction(ctx, key, string(message.Body), func(ctx context.Context, tx pgx.Tx, o idempotency.Operation) (idempotency.Response, error) {
			if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", b.queue+key); err != nil {
				return idempotency.Response{}, err
			}
			at("before COMMIT")
			switch {
			case key == "bad":
				return idempotency.Response{}, idempotency.Decline(402, nil)
			case key == "late" && o.Attempt == 1:
				return idempotency.Response{}, idempotency.Decline(503, nil).Again(30 * time.Millisecond)
			}
			return idempotency.Response{Payload: "done"}, nil
		})
		at("after COMMIT")
		return result, err
	}
}

func (b *bench) declare(options idemrabbitmq.Options) { must(b.t, idemrabbitmq.Declare(b.ch, options)) }

func (b *bench) send(keys ...string) {
	for _, key := range keys {
		b.open.Add(1)
		must(b.t, b.ch.PublishWithContext(context.Background(), "", b.queue, true, false,
			amqp.Publishing{MessageId: key, Body: []byte("{}"), DeliveryMode: amqp.Persistent, Headers: amqp.Table{"own": "1"}}))
	}
}

func (b *bench) count(queue string) int {
	state, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	must(b.t, err)
	return state.Messages
}

// consumeUntil consumes until the condition holds and all messages are settled.
func (b *bench) consumeUntil(options idemrabbitmq.Options, what string, holds func() bool) {
	b.t.Helper()
	ch, err := b.dial().Channel()
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- idemrabbitmq.ConsumeOn(ctx, &watched{Channel: ch, bench: b, at: func(string) {}}, b.client, options)
	}()
	b.await(what, func() bool { return b.open.Load() == 0 && holds() })
	cancel()
	must(b.t, <-ended)
}

func (b *bench) await(what string, holds func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not in time: %s; seen %v, errors %v", what, b.seen, b.errors)
		}
	}
}

// drain consumes all, and then a last message that is declined: the broker moves
// dead letters in order.
func (b *bench) drain(options idemrabbitmq.Options) []amqp.Delivery {
	b.t.Helper()
	b.consumeUntil(options, "the operations have ended", func() bool {
		return b.number("SELECT count(*) FROM idempotency_store WHERE scope = $1 AND (status = 'COMPLETED' OR retry_at IS NULL AND status = 'FAILED')", b.queue) == 3
	})
	b.send("last")
	b.consumeUntil(options, "the last message", func() bool { return true })
	return b.deadLetters("last")
}

// deadLetters takes them until the one of that key.
func (b *bench) deadLetters(last string) (dead []amqp.Delivery) {
	b.t.Helper()
	b.await("the dead letter of "+last, func() bool {
		for {
			message, found, err := b.ch.Get(b.queue+".dead", true)
			must(b.t, err)
			if !found {
				return false
			}
			dead = append(dead, message)
			if message.MessageId == last {
				return true
			}
		}
	})
	return dead
}

func (b *bench) number(query string, args ...any) (n int) {
	must(b.t, pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

func (b *bench) effects(key string) int {
	return b.number("SELECT count(*) FROM effect WHERE key = $1", b.queue+key)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watched is a channel that counts the messages that are not settled, and tells at
// which point the consumer is.
type watched struct {
	*amqp.Channel
	bench     *bench
	at        func(point string)
	published atomic.Bool
}

func (w *watched) PublishWithContext(ctx context.Context, exchange, key string, mandatory, immediate bool, msg amqp.Publishing) error {
	w.published.Store(true)
	w.bench.open.Add(1)
	return w.Channel.PublishWithContext(ctx, exchange, key, mandatory, immediate, msg)
}

func (w *watched) Ack(tag uint64, multiple bool) error {
	w.at("before ack")
	if w.published.Load() {
		w.at("after the copy")
	}
	return w.settled(w.Channel.Ack(tag, multiple))
}

func (w *watched) Nack(tag uint64, multiple, requeue bool) error {
	w.at("before nack")
	return w.settled(w.Channel.Nack(tag, multiple, requeue))
}

func (w *watched) settled(err error) error {
	if err == nil {
		w.bench.open.Add(-1)
	}
	return err
}

func TestOnceWhereverAConsumerDies(t *testing.T) {
	for _, point := range []string{"before COMMIT", "after COMMIT", "before ack", "after the copy", "before nack"} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			options := b.options()
			b.declare(options)
			b.send("good", "bad", "good", "bad", "late", "bad")
			breakAt(b, options, point)
			options.Handle = b.lastFails(b.handle(func(string) {}))
			dead := b.drain(options)
			if len(dead) != 2 || dead[0].MessageId != "bad" || dead[0].Headers["own"] != "1" {
				t.Errorf("dead letters: %v", dead)
			}
			for key, want := range map[string]int{"good": 1, "late": 1, "bad": 0} {
				if got := b.effects(key); got != want {
					t.Errorf("%d effects of %s", got, key)
				}
			}
		})
	}
}

// breakAt consumes one message at a time until the connection breaks at the point.
func breakAt(b *bench, options idemrabbitmq.Options, point string) {
	conn := b.dial()
	ch, err := conn.Channel()
	must(b.t, err)
	broken := false
	at := func(reached string) {
		if reached == point {
			broken = true
			conn.Close()
		}
	}
	options.Prefetch = 1
	options.Handle = b.handle(at)
	if idemrabbitmq.ConsumeOn(context.Background(), &watched{Channel: ch, bench: b, at: at}, b.client, options) == nil || !broken {
		b.t.Fatal("the connection did not break")
	}
}

// lastFails declines the key "last".
func (b *bench) lastFails(handle func(context.Context, amqp.Delivery) (*idempotency.Result, error)) func(context.Context, amqp.Delivery) (*idempotency.Result, error) {
	return func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
		if message.MessageId != "last" {
			return handle(ctx, message)
		}
		return b.client.Transaction(ctx, "last", nil, func(context.Context, pgx.Tx, idempotency.Operation) (idempotency.Response, error) {
			return idempotency.Response{}, idempotency.Decline(402, nil)
		})
	}
}

// A message that is sent again after idem_forget is no copy: if it fails again,
// it is a dead letter again.
func TestADeadLetterThatIsSentAgain(t *testing.T) {
	b := newBench(t)
	options := b.options()
	b.declare(options)
	for i := 0; i < 2; i++ {
		b.send("bad")
		b.consumeUntil(options, "a dead letter", func() bool { return b.count(b.queue+".dead") == i+1 })
		if forgotten := b.number("SELECT idem_forget('bad', $1)::int", b.queue); forgotten != 1 {
			t.Fatal("there was no record")
		}
	}
}

func TestErrorsComeAgainAndAreBounded(t *testing.T) {
	b := newBench(t)
	options := b.options()
	options.Tries = 3
	options.Handle = func(context.Context, amqp.Delivery) (*idempotency.Result, error) {
		b.note("failed", nil)
		return nil, errors.New("planned")
	}
	b.declare(options)
	b.send("broken")
	b.consumeUntil(options, "a dead letter", func() bool { return b.count(b.queue+".dead") == 1 })
	if dead := b.deadLetters("broken"); dead[0].Headers["own"] != "1" || len(b.seen) != 3 || len(b.errors) != 3 {
		t.Errorf("%v, seen %v, errors %v", dead, b.seen, b.errors)
	}
}

func TestAMessageThatCanNeverBegin(t *testing.T) {
	b := newBench(t)
	options := b.options()
	b.declare(options)
	b.send("good", "")
	b.consumeUntil(options, "a dead letter", func() bool { return b.count(b.queue+".dead") == 1 && b.effects("good") == 1 })
	if len(b.errors) != 1 || !errors.Is(b.errors[0], idempotency.ErrBadArgument) {
		t.Errorf("errors %v", b.errors)
	}
}

// If somebody has deleted a queue, the broker does not take the copy. The message
// stays where it is.
func TestNothingIsLostWithoutARetryQueue(t *testing.T) {
	b := newBench(t)
	options := b.options()
	fails := errors.New("planned")
	options.Handle = func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
		if b.note(message.MessageId, nil); len(b.seen) == 1 {
			_, err := b.ch.QueueDelete(b.queue+".again.20", false, false, false)
			must(t, err)
			return nil, fails
		}
		return nil, nil
	}
	b.declare(options)
	b.send("good")
	conn := b.dial()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- idemrabbitmq.Consume(ctx, conn, b.client, options) }()
	b.await("a redelivery", func() bool { b.mutex.Lock(); defer b.mutex.Unlock(); return len(b.seen) == 2 })
	cancel()
	must(t, <-ended)
	if len(b.errors) != 2 || b.count(b.queue) != 0 {
		t.Errorf("errors %v", b.errors)
	}
}

// stopping is a channel that tells when its consumer takes no more messages.
type stopping struct {
	*amqp.Channel
	stopped chan struct{}
}

func (s *stopping) Cancel(consumer string, noWait bool) error {
	defer close(s.stopped)
	return s.Channel.Cancel(consumer, noWait)
}

func TestStopWaitsForMessagesUnderWay(t *testing.T) {
	b := newBench(t)
	options := b.options()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	options.Handle = func(inner context.Context, message amqp.Delivery) (*idempotency.Result, error) {
		cancel()
		<-stopped
		b.note(message.MessageId, inner.Err())
		return nil, nil
	}
	b.declare(options)
	b.send("good")
	must(t, idemrabbitmq.ConsumeOn(ctx, &stopping{Channel: b.ch, stopped: stopped}, b.client, options))
	if len(b.seen) != 1 || b.count(b.queue) != 0 {
		t.Errorf("seen %v, errors %v", b.seen, b.errors)
	}
}

func TestTheBrokerEndsTheConsumer(t *testing.T) {
	b := newBench(t)
	options := b.options()
	options.Handle = func(context.Context, amqp.Delivery) (*idempotency.Result, error) {
		_, err := b.ch.QueueDelete(b.queue, false, false, false)
		return nil, err
	}
	b.declare(options)
	b.send("good")
	if err := idemrabbitmq.Consume(context.Background(), b.conn, b.client, options); err == nil {
		t.Error("no error")
	}
	if err := idemrabbitmq.Consume(context.Background(), b.conn, b.client, idemrabbitmq.Options{}); err == nil {
		t.Error("options are required")
	}
}
