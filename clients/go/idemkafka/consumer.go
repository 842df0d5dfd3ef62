// Package idemkafka consumes a topic of Kafka with sarama. The offset of a message
// is marked after the COMMIT of its operation, and sarama commits what is marked.
// Kafka has no "again after n seconds": the partition waits for so long, and then
// goes on with the same message, so the order within the partition stays as it was,
// and what comes after the message waits with it.
package idemkafka

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
	"github.com/IBM/sarama"
)

// OriginHeader names the message that became a dead letter: topic/partition/offset.
// If a dead letter was sent twice, both have the same.
const OriginHeader = "x-idempotency-message"

// Options say what to consume and how.
type Options struct {
	Topic string
	// Group is the name of the ConsumerGroup.
	Group string
	// DeadTopic is where dead letters go; "": <Topic>.<Group>.dead.
	DeadTopic string
	// Handle runs the operation of a message and returns what Client.Transaction or
	// Client.Lease returned. No result and no error: it is done. Each partition has a
	// goroutine. Its context does not end with that of Consume.
	Handle func(ctx context.Context, message *sarama.ConsumerMessage) (*idempotency.Result, error)
	// Delays are the waits after the first error of Handle, the second, and so on,
	// growing; empty: 1 s, 10 s, 60 s.
	Delays []time.Duration
	// Tries: after so many errors of Handle a message is a dead letter; 0: 20. The
	// consumer that has the partition counts, and a next one begins anew.
	Tries int
	// OnError is told of errors, of Handle and of the brokers; nil: they are logged.
	OnError func(err error, message *sarama.ConsumerMessage)
}

type consumer struct {
	Options
	producer sarama.SyncProducer
	policy   broker.Policy
	owns     broker.Owns
	clock    idempotency.Clock
}

// Consume joins the group, again after each rebalance, until ctx ends. Then it
// finishes the messages under way, and returns nil; close the group then. It returns
// an error if sarama cannot go on. producer sends the dead letters: let it wait for
// all replicas (Producer.RequiredAcks).
func Consume[Tx any](ctx context.Context, group sarama.ConsumerGroup, producer sarama.SyncProducer,
	client *idempotency.Client[Tx], options Options) error {
	if options.Topic == "" || options.Group == "" || options.Handle == nil {
		return errors.New("idemkafka: Topic, Group and Handle are required")
	}
	policy, err := broker.Policy{Queue: options.Topic + "." + options.Group, Tries: options.Tries, Delays: options.Delays}.Checked()
	if err != nil {
		return err
	}
	if options.DeadTopic == "" {
		options.DeadTopic = policy.Queue + ".dead"
	}
	if options.OnError == nil {
		options.OnError = func(err error, _ *sarama.ConsumerMessage) {
			log.Printf("idemkafka: a message of %s: %v", options.Topic, err)
		}
	}
	options.OnError = broker.Telling(options.OnError)
	c := &consumer{Options: options, producer: producer, policy: policy, owns: client.OwnsDeadLetter, clock: client.Clock()}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{c.Topic}, c); err != nil && ctx.Err() == nil {
			return fmt.Errorf("idemkafka: %w", err)
		}
	}
	return nil
}

// Setup is called by sarama when the group has changed.
func (c *consumer) Setup(sarama.ConsumerGroupSession) error { return nil }

// Cleanup is called by sarama before the group changes.
func (c *consumer) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim is called by sarama for each partition.
func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if !c.settle(session.Context(), message) {
			return nil
		}
		session.MarkMessage(message, "")
	}
	return nil
}

// settle runs the operation of a message until it is done. false: the partition is
// not ours any more, or we stop, and the message comes again.
func (c *consumer) settle(ctx context.Context, message *sarama.ConsumerMessage) bool {
	tries := 0
	for ctx.Err() == nil {
		decision := c.decide(context.WithoutCancel(ctx), message, tries)
		settlement := decision.Settlement
		tries = decision.Tries
		if settlement.Do == idempotency.DeadLetter {
			if ctx.Err() != nil {
				return false // the partition is somebody else's, who sends it
			}
			err := c.bury(message)
			if err == nil {
				return true
			}
			c.OnError(err, message)
			settlement = idempotency.Settlement{Do: idempotency.Again, After: c.policy.Delays[0]}
		}
		if settlement.Do == idempotency.Ack {
			return true
		}
		if c.clock.Sleep(ctx, settlement.After) != nil {
			return false
		}
	}
	return false
}

func (c *consumer) decide(ctx context.Context, message *sarama.ConsumerMessage, tries int) broker.Decision {
	at := broker.Position{Name: fmt.Sprintf("%d/%d", message.Partition, message.Offset), Tries: tries}
	return c.policy.DecideByPosition(ctx, at, c.owns, func(err error) { c.OnError(err, message) },
		func() (*idempotency.Result, error) { return c.Handle(ctx, message) })
}

// bury returns when the brokers have the dead letter.
func (c *consumer) bury(message *sarama.ConsumerMessage) error {
	origin := fmt.Sprintf("%s/%d/%d", message.Topic, message.Partition, message.Offset)
	dead := &sarama.ProducerMessage{Topic: c.DeadTopic, Value: sarama.ByteEncoder(message.Value), Timestamp: message.Timestamp,
		Headers: []sarama.RecordHeader{{Key: []byte(OriginHeader), Value: []byte(origin)}}}
	if message.Key != nil {
		dead.Key = sarama.ByteEncoder(message.Key)
	}
	for _, header := range message.Headers {
		// One that was sent again has that of its first message.
		if string(header.Key) != OriginHeader {
			dead.Headers = append(dead.Headers, *header)
		}
	}
	_, _, err := c.producer.SendMessage(dead)
	return err
}
