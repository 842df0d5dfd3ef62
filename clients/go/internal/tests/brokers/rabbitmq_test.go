package brokers

import (
	"context"
	"errors"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

type rabbitMQ struct {
	queue string
	ch    *amqp.Channel
	open  atomic.Int64 // messages that are not settled
	dead  atomic.Int64 // dead letters that were not read
}

func newRabbitMQ(t *testing.T, queue string) stage {
	conn, err := amqp.Dial(os.Getenv("DEMO_AMQP"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	must(t, idemrabbitmq.Declare(ch, idemrabbitmq.Options{Queue: queue, Delays: delays, DeliveryLimit: deliveryLimit}))
	return &rabbitMQ{queue: queue, ch: ch}
}

func (r *rabbitMQ) send(t *testing.T, keys ...string) {
	for _, key := range keys {
		r.open.Add(1)
		must(t, r.ch.PublishWithContext(context.Background(), "", r.queue, true, false,
			amqp.Publishing{MessageId: key, Body: []byte("{}"), DeliveryMode: amqp.Persistent, Headers: amqp.Table{"own": "1"}}))
	}
}

func (r *rabbitMQ) at(point string) {
	switch point {
	case "publish":
		r.open.Add(1)
	case "ack":
		r.open.Add(-1)
	case "bury":
		r.dead.Add(1)
		r.open.Add(-1)
	}
}

func (r *rabbitMQ) settled(*testing.T) bool { return r.open.Load() == 0 }

// deadLetters waits for the broker, which moves them when it has the time.
func (r *rabbitMQ) deadLetters(t *testing.T) (keys []string) {
	for deadline := time.Now().Add(time.Minute); r.dead.Load() > 0; time.Sleep(10 * time.Millisecond) {
		message, found, err := r.ch.Get(r.queue+".dead", true)
		must(t, err)
		if found {
			r.dead.Add(-1)
			keys = append(keys, message.MessageId)
			if message.Headers["own"] != "1" {
				t.Errorf("headers %v", message.Headers)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: dead letters %v, and %d more", keys, r.dead.Load())
		}
	}
	return keys
}

// If somebody has deleted a queue, the broker does not take the copy. The message
// stays where it is.
func TestNothingIsLostWithoutARetryQueue(t *testing.T) {
	s := newScene(t, "rabbitmq")
	ch := s.stage.(*rabbitMQ).ch
	ctx, cancel := context.WithCancel(context.Background())
	s.send(t, "good")
	must(t, s.consume(ctx, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key) == 2 {
			cancel()
			return nil, nil
		}
		_, err := ch.QueueDelete(s.queue+".again.20", false, false, false)
		return nil, errors.Join(errors.New("planned"), err)
	}}))
	left, err := ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	if err != nil || len(s.seen) != 2 || len(s.errors) != 2 || left.Messages != 0 {
		t.Errorf("seen %v, errors %v, left %v %v", s.seen, s.errors, left, err)
	}
}

// A copy with its name would own the dead letter, too, if the consumer died before it
// acknowledged the message.
func TestAMessageThatMayOwnTheDeadLetterHasNoCopy(t *testing.T) {
	s := newScene(t, "rabbitmq")
	copies := &publishing{stage: s.stage}
	s.stage = copies
	good, fails := s.client, failing{pgxv5.Pool(s.pool), new(atomic.Int64)}
	options := Options{Tries: 3, Handle: func(ctx context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return good.Transaction(ctx, key, nil, Work(s.queue+key, func() {}))
	}}
	fails.times.Store(3)
	s.send(t, "bad")

	clock := idempotency.NewFakeClock(time.Now())
	s.client = idempotency.New[pgx.Tx](fails, idempotency.Options{Clock: clock})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		clock.AwaitSleepers(1)
		cancel() // it waits for no message that pauses
	}()
	must(t, s.consume(ctx, options))

	s.client = idempotency.New[pgx.Tx](fails, idempotency.Options{})
	s.consumeUntil(t, options, s.all(5))
	s.wantDead(t, "bad")
	if len(s.seen) != 5 || len(s.errors) != 3 || copies.number.Load() != 1 {
		t.Errorf("seen %v, errors %v, %d copies", s.seen, s.errors, copies.number.Load())
	}
}

// publishing counts copies.
type publishing struct {
	stage
	number atomic.Int64
}

func (p *publishing) at(point string) {
	if point == "publish" {
		p.number.Add(1)
	}
	p.stage.at(point)
}

// failing gives no connection, so many times.
type failing struct {
	idempotency.Database[pgx.Tx]
	times *atomic.Int64
}

func (f failing) Acquire(ctx context.Context) (idempotency.Conn[pgx.Tx], error) {
	if f.times.Add(-1) >= 0 {
		return nil, errors.New("planned")
	}
	return f.Database.Acquire(ctx)
}

func TestTheBrokerEndsTheConsumer(t *testing.T) {
	s := newScene(t, "rabbitmq")
	s.send(t, "good")
	if err := s.consume(context.Background(), Options{Handle: func(context.Context, string) (*idempotency.Result, error) {
		_, err := s.stage.(*rabbitMQ).ch.QueueDelete(s.queue, false, false, false)
		return nil, err
	}}); err == nil {
		t.Error("no error")
	}
	if err := idemrabbitmq.Consume(context.Background(), nil, s.client, idemrabbitmq.Options{}); err == nil {
		t.Error("options are required")
	}
}

// What a sender puts into the header of the tries is no reason to fail, nor to end no more.
func TestTriesOfASender(t *testing.T) {
	for tries, want := range map[any]int{int32(-5): 3, int64(math.MinInt64): 3, "many": 3, int64(math.MaxInt64): 1} {
		s := newScene(t, "rabbitmq")
		r := s.stage.(*rabbitMQ)
		r.open.Add(1)
		must(t, r.ch.PublishWithContext(context.Background(), "", s.queue, true, false,
			amqp.Publishing{MessageId: "bad", Headers: amqp.Table{"own": "1", "x-idempotency-tries": tries}}))
		s.consumeUntil(t, Options{Tries: 3, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
			s.note(key)
			return nil, errors.New("planned")
		}}, s.all(1))
		s.wantDead(t, "bad")
		if len(s.seen) != want {
			t.Errorf("%v: seen %v", tries, s.seen)
		}
	}
}

// A copy that waits for its time goes to no further queue that the sender has named. The broker
// would drop one that dies in a queue a second time, and was rejected nowhere in between.
func TestNoCopyForOthers(t *testing.T) {
	s := newScene(t, "rabbitmq")
	r := s.stage.(*rabbitMQ)
	other, err := r.ch.QueueDeclare("", false, false, true, false, nil)
	must(t, err)
	r.open.Add(1)
	must(t, r.ch.PublishWithContext(context.Background(), "", s.queue, true, false,
		amqp.Publishing{MessageId: "good", Headers: amqp.Table{"CC": []any{other.Name}, "x-death": []any{amqp.Table{
			"count": int64(1), "reason": "delivery_limit", "queue": s.queue, "exchange": "", "routing-keys": []any{s.queue}}}}}))
	s.consumeUntil(t, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key) < 3 {
			return nil, errors.New("planned")
		}
		return nil, nil
	}}, s.all(3))
	if other, err = r.ch.QueueDeclarePassive(other.Name, false, false, true, false, nil); err != nil || other.Messages != 1 {
		t.Errorf("%d messages, %v", other.Messages, err)
	}
}

// A failure that no record ever holds, as of a client that keeps nothing: its tries go on
// where the message gets a name, and so they end.
func TestAFailureWithoutARecordIsBounded(t *testing.T) {
	s := newScene(t, "rabbitmq")
	s.send(t, "bad")
	s.consumeUntil(t, Options{Tries: 4, Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key) <= 2 {
			return nil, errors.New("planned")
		}
		return &idempotency.Result{Outcome: idempotency.Failed}, nil
	}}, s.all(5))
	s.wantDead(t, "bad")
	if len(s.seen) != 5 || len(s.errors) != 2 {
		t.Errorf("seen %v, errors %v", s.seen, s.errors)
	}
}

// Or it would go on sending messages: without a bound, and to a consumer that stops.
func TestTheBrokerIsToldOfPrefetchAndStop(t *testing.T) {
	s := newScene(t, "rabbitmq")
	s.send(t, "good")
	ctx, cancel := context.WithCancel(context.Background())
	points := make(chan string, 100)
	isTold := func(point string) {
		for timeout := time.After(time.Minute); ; {
			select {
			case told := <-points:
				if told == point {
					return
				}
			case <-timeout:
				t.Error("the broker was not told of " + point)
				return
			}
		}
	}
	must(t, consumeRabbitMQ(ctx, s.queue, s.client, Options{OnError: s.fail, At: func(point string) { points <- point },
		Handle: func(context.Context, string) (*idempotency.Result, error) {
			isTold("prefetch")
			cancel()
			isTold("stop")
			return nil, nil
		}}))
}

func TestALostConnectionIsAnError(t *testing.T) {
	s := newScene(t, "rabbitmq")
	s.send(t, "good")
	conn, err := amqp.Dial(os.Getenv("DEMO_AMQP"))
	must(t, err)
	if err := idemrabbitmq.Consume(context.Background(), conn, s.client, idemrabbitmq.Options{Queue: s.queue, Delays: delays,
		DeliveryLimit: deliveryLimit, OnError: func(err error, _ amqp.Delivery) { s.fail(err) },
		Handle: func(context.Context, amqp.Delivery) (*idempotency.Result, error) { return nil, conn.Close() }}); err == nil {
		t.Error("no error")
	}
	s.consumeUntil(t, Options{Handle: s.handle}, s.all(1))
}
