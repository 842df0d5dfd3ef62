// Package brokers has a consumer of each broker, for the tests of all and for the
// program that dies.
package brokers

import (
	"cmp"
	"context"
	"encoding/binary"
	"net"
	"os"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemkafka"
	"example.org/idempotency/idemnats"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/idemredis"
	"github.com/IBM/sarama"
	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options are what is asked of a consumer.
type Options struct {
	// Handle runs the operation of a message, by its key.
	Handle func(ctx context.Context, key string) (*idempotency.Result, error)
	// Patience: after that time the messages of a consumer that died come again. RabbitMQ
	// needs none, and Kafka 4 seconds at least.
	Patience time.Duration
	Tries    int
	// DeliveryLimit: 0: more than a test of crashes could reach, as always with RabbitMQ.
	DeliveryLimit int
	OnError       func(error)
	// At is called at "ack", "copy" and "bury", as far as the client of the broker tells of
	// these, and at RabbitMQ's "prefetch", "publish" and "stop".
	At func(point string)
}

// Consume consumes a queue until ctx ends.
type Consume func(ctx context.Context, queue string, client *idempotency.Client[pgx.Tx], options Options) error

// Consumers are by the name of the broker, whose address is in the environment.
var Consumers = map[string]Consume{"rabbitmq": consumeRabbitMQ, "nats": consumeNATS, "redis": consumeRedis, "kafka": consumeKafka}

// Short times.
var delays = []time.Duration{20 * time.Millisecond, 100 * time.Millisecond}

const deliveryLimit = 1000

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

func consumeRabbitMQ(ctx context.Context, queue string, client *idempotency.Client[pgx.Tx], options Options) error {
	dial := amqp.DefaultDial(30 * time.Second)
	conn, err := amqp.DialConfig(os.Getenv("DEMO_AMQP"), amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := dial(network, address)
		return &watchedConn{Conn: conn, at: options.At}, err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	return idemrabbitmq.Consume(ctx, conn, client, idemrabbitmq.Options{Queue: queue, Prefetch: 4, Delays: delays,
		DeliveryLimit: deliveryLimit, Tries: options.Tries, OnError: func(err error, _ amqp.Delivery) { options.OnError(err) },
		Handle: func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
			return options.Handle(ctx, message.MessageId)
		}})
}

// watchedConn tells what amqp091-go is about to send.
type watchedConn struct {
	net.Conn
	at     func(point string)
	copied bool
}

// Each Write begins with a frame. One of a method (1) has channel and size, 6 bytes, and
// then the numbers of a class and of a method.
func (w *watchedConn) Write(frames []byte) (int, error) {
	const basic, qos, cancel, publish, ack, nack = 60, 10, 30, 40, 80, 120
	if frames[0] == 1 && binary.BigEndian.Uint16(frames[7:]) == basic {
		switch binary.BigEndian.Uint16(frames[9:]) {
		case qos:
			w.at("prefetch")
		case cancel:
			w.at("stop")
		case publish:
			w.copied = true
			w.at("publish")
		case ack:
			w.at("ack")
			if w.copied {
				w.at("copy")
			}
		case nack:
			w.at("bury")
		}
	}
	return w.Conn.Write(frames)
}

func consumeNATS(ctx context.Context, queue string, client *idempotency.Client[pgx.Tx], options Options) error {
	conn, err := nats.Connect(os.Getenv("DEMO_NATS"))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		return err
	}
	return idemnats.Consume(ctx, burying{js, options.At}, client, idemnats.Options{Stream: queue, Durable: "test", Prefetch: 4,
		Delays: delays, DeliveryLimit: cmp.Or(options.DeliveryLimit, deliveryLimit), AckWait: options.Patience, Tries: options.Tries,
		OnError: func(err error, _ *nats.Msg) { options.OnError(err) },
		Handle: func(ctx context.Context, message *nats.Msg) (*idempotency.Result, error) {
			return options.Handle(ctx, string(message.Data))
		}})
}

// burying tells that a dead letter was published.
type burying struct {
	nats.JetStreamContext
	at func(point string)
}

func (b burying) PublishMsg(message *nats.Msg, options ...nats.PubOpt) (*nats.PubAck, error) {
	answer, err := b.JetStreamContext.PublishMsg(message, options...)
	b.at("bury")
	return answer, err
}

func consumeRedis(ctx context.Context, queue string, client *idempotency.Client[pgx.Tx], options Options) error {
	pool := redisPool()
	defer pool.Close()
	return idemredis.Consume(ctx, watchedPool{pool, options.At}, client, idemredis.Options{Stream: queue, Group: "test", Prefetch: 4,
		Delays: delays, DeliveryLimit: cmp.Or(options.DeliveryLimit, deliveryLimit), Idle: options.Patience, Poll: 20 * time.Millisecond, Tries: options.Tries,
		OnError: func(err error, _ idemredis.Entry) { options.OnError(err) },
		Handle: func(ctx context.Context, entry idemredis.Entry) (*idempotency.Result, error) {
			return options.Handle(ctx, entry.Fields["key"])
		}})
}

func redisPool() *redis.Pool {
	return &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(os.Getenv("DEMO_REDIS")) }}
}

// watchedPool tells that an entry is about to be settled.
type watchedPool struct {
	*redis.Pool
	at func(point string)
}

func (p watchedPool) Get() redis.Conn { return watched{p.Pool.Get().(redis.ConnWithTimeout), p.at} }

type watched struct {
	redis.ConnWithTimeout
	at func(point string)
}

func (w watched) DoWithTimeout(timeout time.Duration, command string, arguments ...any) (any, error) {
	if command == "EVAL" && len(arguments) > 8 {
		if point := arguments[8]; point == "ack" || point == "bury" {
			w.at(point.(string))
		}
	}
	return w.ConnWithTimeout.DoWithTimeout(timeout, command, arguments...)
}

// consumeKafka passes over the message "first", by which a topic was made.
func consumeKafka(ctx context.Context, queue string, client *idempotency.Client[pgx.Tx], options Options) error {
	kafka, err := newKafka(options.Patience)
	if err != nil {
		return err
	}
	defer kafka.Close()
	group, err := sarama.NewConsumerGroupFromClient(queue, kafka)
	if err != nil {
		return err
	}
	defer group.Close()
	producer, err := sarama.NewSyncProducerFromClient(kafka)
	if err != nil {
		return err
	}
	defer producer.Close()
	return idemkafka.Consume(ctx, group, sending{producer, options.At}, client, idemkafka.Options{Topic: queue, Group: queue,
		Delays: delays, Tries: options.Tries, OnError: func(err error, _ *sarama.ConsumerMessage) { options.OnError(err) },
		Handle: func(ctx context.Context, message *sarama.ConsumerMessage) (*idempotency.Result, error) {
			if string(message.Key) == "first" {
				return nil, nil
			}
			return options.Handle(ctx, string(message.Key))
		}})
}

func newKafka(patience time.Duration) (sarama.Client, error) {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.CommitInterval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = max(patience, 4*time.Second)
	// a group waits so long for a member that died while it joined
	config.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	return sarama.NewClient([]string{os.Getenv("DEMO_KAFKA")}, config)
}

// sending tells that a dead letter was sent.
type sending struct {
	sarama.SyncProducer
	at func(point string)
}

func (s sending) SendMessage(message *sarama.ProducerMessage) (int32, int64, error) {
	partition, offset, err := s.SyncProducer.SendMessage(message)
	s.at("bury")
	return partition, offset, err
}
