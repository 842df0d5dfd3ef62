// Package idemnats consumes a stream of NATS JetStream with nats.go, and tells the
// server what idempotency.Settle says. A message has a number in its stream, which
// stays the same when it is delivered again, and "again after n" is the server's
// own. A dead letter is published, and the stream of the dead letters drops a second
// one of the same message.
package idemnats

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
	"example.org/idempotency/internal/option"
	"github.com/nats-io/nats.go"
)

// Options say what to consume and how.
type Options struct {
	// Stream must exist.
	Stream string
	// Durable is the name of the consumer, which is made. Consumers of one name share
	// the messages.
	Durable string
	// Filter is the subject of the messages; "": all of the stream.
	Filter string
	// Handle runs the operation of a message and returns what Client.Transaction or
	// Client.Lease returned. No result and no error: acknowledge. It is called by
	// Prefetch goroutines at most. Its context does not end with that of Consume.
	Handle func(ctx context.Context, message *nats.Msg) (*idempotency.Result, error)
	// Prefetch is how many messages are handled at a time; 0: 10.
	Prefetch int
	// AckWait: after that time the messages of a consumer that died come again; 0: 30
	// seconds. While Handle runs, the server is told so at each third of it.
	AckWait time.Duration
	// Delays are the waits after the first error of Handle, the second, and so on,
	// growing; empty: 1 s, 10 s, 60 s.
	Delays []time.Duration
	// Tries: a message whose handling ends with an error is a dead letter if it was
	// delivered so often; 0: 20. Deliveries at which this consumer was told InProgress
	// count neither here nor for DeliveryLimit.
	Tries int
	// DeliveryLimit: a message that was delivered more often, for whatever reason, is a
	// dead letter; 0: 100.
	DeliveryLimit int
	// DeadWindow is how long the server recognizes a dead letter that is published
	// twice; 0: a day.
	DeadWindow time.Duration
	// OnError is told of errors, of Handle and of the settlement; nil: they are logged.
	OnError func(err error, message *nats.Msg)
}

// pause is how long a fetch waits for messages, and after an error.
const pause = 500 * time.Millisecond

type consumer struct {
	Options
	jetstream nats.JetStreamContext
	policy    broker.Policy
	owns      broker.Owns
	clock     idempotency.Clock
	elsewhere elsewhere
}

// elsewhere counts, for each message of the stream, the deliveries whose operation another
// worker was running. The server does not know which these were, and counts all.
type elsewhere struct {
	mutex sync.Mutex
	times map[uint64]int
}

// mostElsewhere bounds what is remembered of messages that other consumers settle.
const mostElsewhere = 10_000

func (e *elsewhere) of(message uint64) int {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.times[message]
}

// note counts a delivery that is over.
func (e *elsewhere) note(message uint64, decision broker.Decision) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	switch {
	case decision.Do != idempotency.Again:
		delete(e.times, message)
	case decision.InProgress:
		if len(e.times) >= mostElsewhere {
			clear(e.times)
		}
		e.times[message]++
	}
}

// Consume makes the durable consumer and the stream of its dead letters,
// <Stream>-<Durable>-dead, and consumes until ctx ends. Then it takes no more
// messages, waits for those under way, and returns nil. While the server is away it
// waits for nats.go to connect again; it returns an error if the connection is closed.
func Consume[Tx any](ctx context.Context, js nats.JetStreamContext, client *idempotency.Client[Tx], options Options) error {
	if options.Stream == "" || options.Durable == "" || options.Handle == nil {
		return errors.New("idemnats: Stream, Durable and Handle are required")
	}
	policy, err := broker.Policy{Queue: options.Stream + "-" + options.Durable, Tries: options.Tries,
		Delays: options.Delays}.Checked()
	if err != nil {
		return err
	}
	c := &consumer{Options: withDefaults(options), jetstream: js, policy: policy, owns: client.OwnsDeadLetter, clock: client.Clock(),
		elsewhere: elsewhere{times: map[uint64]int{}}}
	if err := c.make(); err != nil {
		return fmt.Errorf("idemnats: %w", err)
	}
	subscription, err := js.PullSubscribe(c.Filter, c.Durable, nats.Bind(c.Stream, c.Durable))
	if err != nil {
		return fmt.Errorf("idemnats: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // the connection goes on without us
	return broker.Pull(ctx, c.Prefetch, func(free int) ([]*nats.Msg, error) { return c.fetch(ctx, subscription, free) }, c.handle)
}

func withDefaults(o Options) Options {
	o.Prefetch = option.Or(o.Prefetch, 10)
	o.AckWait = option.Or(o.AckWait, 30*time.Second)
	o.DeliveryLimit = option.Or(o.DeliveryLimit, 100)
	o.DeadWindow = option.Or(o.DeadWindow, 24*time.Hour)
	if o.OnError == nil {
		o.OnError = func(err error, _ *nats.Msg) { log.Printf("idemnats: a message of %s: %v", o.Stream, err) }
	}
	o.OnError = broker.Telling(o.OnError)
	return o
}

func (c *consumer) dead() string { return c.Stream + "-" + c.Durable + "-dead" }

func (c *consumer) make() error {
	_, err := c.jetstream.AddStream(&nats.StreamConfig{Name: c.dead(), Subjects: []string{c.dead() + ".>"},
		Duplicates: c.DeadWindow})
	if err != nil {
		return err
	}
	_, err = c.jetstream.AddConsumer(c.Stream, &nats.ConsumerConfig{Durable: c.Durable, AckPolicy: nats.AckExplicitPolicy,
		AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: -1, FilterSubject: c.Filter})
	return err
}

// fetch waits for messages, but not for long.
func (c *consumer) fetch(ctx context.Context, subscription *nats.Subscription, free int) ([]*nats.Msg, error) {
	messages, err := subscription.Fetch(free, nats.MaxWait(pause))
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrBadSubscription):
		return nil, fmt.Errorf("idemnats: %w", err)
	case err != nil && !errors.Is(err, nats.ErrTimeout):
		c.OnError(err, nil)
		_ = c.clock.Sleep(ctx, pause)
	}
	return messages, nil
}

// handle: if the message cannot be settled, it comes again.
func (c *consumer) handle(ctx context.Context, message *nats.Msg) {
	if err := c.settle(ctx, message); err != nil {
		c.OnError(err, message)
	}
}

// settle runs the operation of a message, and settles the message.
func (c *consumer) settle(ctx context.Context, message *nats.Msg) error {
	about, err := message.Metadata()
	if err != nil {
		return err
	}
	decision := c.decide(ctx, message, about)
	c.elsewhere.note(about.Sequence.Stream, decision)
	switch decision.Do {
	case idempotency.Again:
		return message.NakWithDelay(decision.After)
	case idempotency.DeadLetter:
		if err := c.bury(message, about); err != nil {
			return err
		}
	}
	return message.Ack()
}

func (c *consumer) decide(ctx context.Context, message *nats.Msg, about *nats.MsgMetadata) broker.Decision {
	deliveries := max(int(about.NumDelivered)-c.elsewhere.of(about.Sequence.Stream), 1) // a consumer that was made anew counts anew
	if deliveries > c.DeliveryLimit {
		return broker.Decision{Settlement: idempotency.Settlement{Do: idempotency.DeadLetter}}
	}
	stop := broker.Repeat(c.clock, c.AckWait/3, func() { c.beat(message) })
	defer stop()
	at := broker.Position{Name: strconv.FormatUint(about.Sequence.Stream, 10),
		Tries: deliveries - 1}
	return c.policy.DecideByPosition(ctx, at, c.owns, func(err error) { c.OnError(err, message) },
		func() (*idempotency.Result, error) { return c.Handle(ctx, message) })
}

// beat tells the server that the message is being handled.
func (c *consumer) beat(message *nats.Msg) {
	if err := message.InProgress(); err != nil {
		c.OnError(err, message)
	}
}

// bury publishes the message under its own subject, behind the name of the stream.
// What the sender has told the server of the other stream does not hold for this one.
func (c *consumer) bury(message *nats.Msg, about *nats.MsgMetadata) error {
	dead := nats.NewMsg(c.dead() + "." + message.Subject)
	dead.Data = message.Data
	for name, values := range message.Header {
		switch {
		case strings.EqualFold(name, nats.MsgIdHdr):
			dead.Header["x-idempotency-msg-id"] = values
		case strings.HasPrefix(strings.ToLower(name), "nats-"):
		default:
			dead.Header[name] = values
		}
	}
	// no name of NATS has a dot, so that the id of another stream and durable is another one
	id := fmt.Sprintf("%s.%s.%d", c.Stream, c.Durable, about.Sequence.Stream)
	_, err := c.jetstream.PublishMsg(dead, nats.MsgId(id))
	return err
}
