// Package idemrabbitmq consumes a queue of RabbitMQ with amqp091-go, and tells the
// broker what idempotency.Settle says. RabbitMQ has no "again after n seconds", so
// there is a queue for each delay, whose messages return when their time is over.
// Whatever the broker delivers twice, the operation's key makes one.
//
// An operation that fails for good leaves one dead letter, however many copies its
// message has. RabbitMQ does not number messages, so a message whose operation
// failed is first put back under a random name: then a redelivery of it differs
// from a copy. The name that the database remembers goes to the dead letters, the
// others are acknowledged.
package idemrabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
	"example.org/idempotency/internal/option"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options say what to consume and how.
type Options struct {
	// Queue is made as a quorum queue, with Queue.dead for dead letters and
	// Queue.again.<milliseconds> for each delay.
	Queue string
	// Handle runs the operation of a message and returns what Client.Transaction or
	// Client.Lease returned. No result and no error: acknowledge. It is called by
	// Prefetch goroutines at most. Its context does not end with that of Consume.
	Handle func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error)
	// Prefetch is how many messages are handled at a time; 0: 10.
	Prefetch int
	// Delays are the waits that "again" chooses from, growing; empty: 1 s, 10 s, 60 s.
	Delays []time.Duration
	// Tries: after so many errors of Handle a message is a dead letter; 0: 20.
	Tries int
	// DeliveryLimit: after so many consumers that died with a message the broker makes
	// it a dead letter; 0: 20.
	DeliveryLimit int
	// OnError is told of errors, of Handle and of the settlement; nil: they are logged.
	OnError func(err error, message amqp.Delivery)
}

// Consume makes the queues and consumes until ctx ends. Then it takes no more
// messages, waits for those under way, and returns nil. It returns an error if the
// connection or the channel is lost, or if the broker ends the consumer: what was
// not acknowledged then comes again. It opens a channel of its own.
func Consume[Tx any](ctx context.Context, conn *amqp.Connection, client *idempotency.Client[Tx], options Options) error {
	if options.Queue == "" || options.Handle == nil {
		return errors.New("idemrabbitmq: Queue and Handle are required")
	}
	policy, err := policyOf(options)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("idemrabbitmq: %w", err)
	}
	defer ch.Close()
	c := &consumer{options: withDefaults(options), policy: policy, channel: ch, owns: client.OwnsDeadLetter,
		clock: client.Clock()}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("idemrabbitmq: %w", err)
	}
	return nil
}

type consumer struct {
	options   Options
	policy    broker.Policy
	channel   *amqp.Channel
	publisher *publisher
	owns      broker.Owns
	clock     idempotency.Clock
	stopping  context.Context // ends when no more messages are taken
}

func policyOf(options Options) (broker.Policy, error) {
	return broker.Policy{Queue: options.Queue, Tries: options.Tries, Delays: options.Delays}.Checked()
}

func withDefaults(options Options) Options {
	options.Prefetch = option.Or(options.Prefetch, 10)
	options.DeliveryLimit = option.Or(options.DeliveryLimit, 20)
	if options.OnError == nil {
		options.OnError = func(err error, _ amqp.Delivery) {
			log.Printf("idemrabbitmq: a message of %s: %v", options.Queue, err)
		}
	}
	options.OnError = broker.Telling(options.OnError)
	return options
}

// run makes the queues, and takes messages until there are no more.
func (c *consumer) run(ctx context.Context) error {
	closed := c.channel.NotifyClose(make(chan *amqp.Error, 1))
	err := Declare(c.channel, c.options)
	if err == nil {
		c.publisher, err = newPublisher(c.channel)
	}
	if err == nil {
		err = c.channel.Qos(c.options.Prefetch, 0, false)
	}
	if err != nil {
		return err
	}
	tag := rand.Text()
	deliveries, err := c.channel.Consume(c.options.Queue, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	var stop func()
	c.stopping, stop = context.WithCancel(ctx)
	defer stop()
	for {
		select {
		case message, open := <-deliveries:
			if !open {
				return c.ended(closed)
			}
			running.Go(func() { c.handle(context.WithoutCancel(ctx), message) })
		case <-ctx.Done():
			return c.channel.Cancel(tag, false)
		}
	}
}

// ended says why there are no more deliveries.
func (c *consumer) ended(closed <-chan *amqp.Error) error {
	if !c.channel.IsClosed() {
		return errors.New("the broker has ended the consumer")
	}
	if err := <-closed; err != nil {
		return err
	}
	return amqp.ErrClosed
}

// handle runs the operation of a message, and settles the message. If the broker
// refuses the settlement, or is gone, the message comes again.
func (c *consumer) handle(ctx context.Context, message amqp.Delivery) {
	result, err := broker.Handled(func() (*idempotency.Result, error) { return c.options.Handle(ctx, message) })
	if err != nil {
		c.options.OnError(err, message)
	}
	decision := c.policy.Decide(result, err, triesOf(message))
	if err == nil && decision.Do == idempotency.DeadLetter {
		err = c.fail(ctx, message, result, decision.Tries)
	} else {
		err = c.settle(ctx, message, decision)
	}
	if err != nil {
		c.options.OnError(err, message)
	}
}

// settle does what was decided. "Again" puts the message into the queue from which it comes
// back. If the broker does not take it, this delivery goes back to where it was.
func (c *consumer) settle(ctx context.Context, message amqp.Delivery, decision broker.Decision) error {
	switch decision.Do {
	case idempotency.Ack:
		return c.channel.Ack(message.DeliveryTag, false)
	case idempotency.Again:
		if _, named := nameOf(message); named {
			return c.retry(ctx, message, decision)
		}
		headers := amqp.Table{broker.TriesHeader: int32(decision.Tries)}
		return c.replace(ctx, message, againQueue(c.options.Queue, c.policy.Delay(decision.After)), headers)
	}
	return c.bury(message)
}

// fail settles a message whose operation has failed for good.
func (c *consumer) fail(ctx context.Context, message amqp.Delivery, failure *idempotency.Result, tries int) error {
	name, named := nameOf(message)
	if !named {
		return c.rename(ctx, message, tries)
	}
	if failure.Record == "" {
		// The record went away meanwhile, and the operation failed anew.
		if tries+1 >= c.policy.Tries {
			return c.bury(message)
		}
		return c.rename(ctx, message, tries+1)
	}
	at := broker.Position{Name: name, Tries: tries}
	return c.settle(ctx, message,
		c.policy.DecideFailure(ctx, at, failure, c.owns, func(err error) { c.options.OnError(err, message) }))
}

// retry handles a message with a name once more: a copy with the same name would own the
// dead letter as well. If Consume ends meanwhile, the broker delivers the message again.
func (c *consumer) retry(ctx context.Context, message amqp.Delivery, decision broker.Decision) error {
	if c.clock.Sleep(c.stopping, c.policy.Delay(decision.After)) == nil {
		message.Headers[broker.TriesHeader] = int32(decision.Tries)
		c.handle(ctx, message)
	}
	return nil
}

func nameOf(message amqp.Delivery) (name string, named bool) {
	name, named = message.Headers[nameHeader].(string)
	return name, named
}

// rename puts the message back under a random name.
func (c *consumer) rename(ctx context.Context, message amqp.Delivery, tries int) error {
	headers := amqp.Table{broker.TriesHeader: int32(tries), nameHeader: rand.Text()}
	return c.replace(ctx, message, c.options.Queue, headers)
}

// bury lets the broker move the message to the dead letters: a consumer that dies
// leaves neither two nor none.
func (c *consumer) bury(message amqp.Delivery) error {
	return c.channel.Nack(message.DeliveryTag, false, false)
}

// replace puts a copy of the message, with further headers, into a queue. The copy
// is safe before the message goes. After a crash in between there are two, of one
// operation.
func (c *consumer) replace(ctx context.Context, message amqp.Delivery, queue string, headers amqp.Table) error {
	if err := c.publisher.publish(ctx, queue, copyOf(message, headers)); err != nil {
		c.options.OnError(err, message)
		return c.channel.Nack(message.DeliveryTag, false, true)
	}
	return c.channel.Ack(message.DeliveryTag, false)
}
