package idemrabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"

	"example.org/idempotency/internal/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

// nameHeader has the name of a message whose operation has failed.
const nameHeader = "x-idempotency-name"

// Declare makes the queues that options name: Consume does so as well, and a sender
// that starts before the first consumer. It fails if a queue is there with other
// arguments.
func Declare(ch *amqp.Channel, options Options) error {
	options = withDefaults(options)
	policy, err := policyOf(options)
	if err != nil {
		return err
	}
	queue := options.Queue
	dead := amqp.Table{"x-queue-type": "quorum"}
	if _, err := ch.QueueDeclare(queue+".dead", true, false, false, false, dead); err != nil {
		return err
	}
	moves := movesTo(queue + ".dead")
	moves["x-delivery-limit"] = options.DeliveryLimit
	if _, err := ch.QueueDeclare(queue, true, false, false, false, moves); err != nil {
		return err
	}
	for _, delay := range policy.Delays {
		moves := movesTo(queue)
		moves["x-message-ttl"] = delay.Milliseconds()
		if _, err := ch.QueueDeclare(againQueue(queue, delay), true, false, false, false, moves); err != nil {
			return err
		}
	}
	return nil
}

// movesTo: at-least-once, and so a quorum queue and reject-publish. Otherwise a message can
// be lost between two queues.
func movesTo(queue string) amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
}

func againQueue(queue string, delay time.Duration) string {
	return fmt.Sprintf("%s.again.%d", queue, delay.Milliseconds())
}

// triesOf is how many errors the message has had. Brokers and clients choose the
// size of the number, and a sender may have put anything there.
func triesOf(message amqp.Delivery) int {
	tries, _ := strconv.ParseInt(fmt.Sprint(message.Headers[broker.TriesHeader]), 10, 64)
	return int(min(max(tries, 0), math.MaxInt32-1))
}

// copyOf is the message with further headers. It is persistent, does not expire where
// the sender did not want it to wait, and goes to no other queue of CC once more. The broker
// does not take it for one that goes in a circle.
func copyOf(message amqp.Delivery, further amqp.Table) amqp.Publishing {
	headers := amqp.Table{}
	maps.Copy(headers, message.Headers)
	maps.Copy(headers, further)
	delete(headers, "CC")
	delete(headers, "x-death")
	return amqp.Publishing{Headers: headers, ContentType: message.ContentType, ContentEncoding: message.ContentEncoding,
		DeliveryMode: amqp.Persistent, Priority: message.Priority, CorrelationId: message.CorrelationId,
		ReplyTo: message.ReplyTo, MessageId: message.MessageId, Timestamp: message.Timestamp, Type: message.Type,
		AppId: message.AppId, Body: message.Body}
}

// publisher publishes one message at a time, so that a confirmation and a return
// are known to be its own.
type publisher struct {
	mutex     sync.Mutex
	channel   *amqp.Channel
	confirmed <-chan amqp.Confirmation
	returned  <-chan amqp.Return
}

func newPublisher(ch *amqp.Channel) (*publisher, error) {
	// The broker's answers must not wait for us: nothing else is read meanwhile.
	p := &publisher{channel: ch, confirmed: ch.NotifyPublish(make(chan amqp.Confirmation, 1)),
		returned: ch.NotifyReturn(make(chan amqp.Return, 1))}
	return p, ch.Confirm(false)
}

// publish returns when the broker has the message safe in the queue.
func (p *publisher) publish(ctx context.Context, queue string, message amqp.Publishing) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if err := p.channel.PublishWithContext(ctx, "", queue, true, false, message); err != nil {
		return err
	}
	confirmation, open := <-p.confirmed
	// The broker returns a message before it confirms it.
	select {
	case _, back := <-p.returned:
		if back {
			return fmt.Errorf("idemrabbitmq: there is no queue %s", queue)
		}
	default:
	}
	switch {
	case !open:
		return amqp.ErrClosed
	case !confirmation.Ack:
		return errors.New("idemrabbitmq: the broker refused the message")
	}
	return nil
}
