// The consumer that dies: BROKER says of what, QUEUE of which queue, DIE at which
// point it kills itself. SIGTERM stops it. The kills of all languages are in
// clients/brokers; each language has such a program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemkafka"
	"example.org/idempotency/idemnats"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/idemredis"
	"example.org/idempotency/internal/tests/brokertest"
	"example.org/idempotency/pgxv5"
	"github.com/IBM/sarama"
	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	queue  = os.Getenv("QUEUE")
	delays = []time.Duration{20 * time.Millisecond, 100 * time.Millisecond}
	client *idempotency.Client[pgx.Tx]
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	pool, err := brokertest.Connect()
	if err != nil {
		return err
	}
	client = idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: queue})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	consume, known := map[string]func(context.Context) error{
		"rabbitmq": rabbitmq, "nats": natsio, "redis": redisio, "kafka": kafka,
	}[os.Getenv("BROKER")]
	if !known {
		return errors.New("BROKER is unknown")
	}
	return consume(ctx)
}

// at kills this process at the chosen point.
func at(point string) {
	if point == os.Getenv("DIE") {
		die()
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func handle(ctx context.Context, key string) (*idempotency.Result, error) {
	poison, limit := strings.Contains(key, "poison"), -1
	if poison {
		limit = 3
	}
	result, err := client.Transaction(ctx, key, nil, brokertest.Work(key, func() {
		at("work")
		if poison {
			die()
		}
	}), idempotency.WithMaxLostAttempts(limit))
	at("commit")
	return result, err
}

func rabbitmq(ctx context.Context) error {
	conn, err := amqp.Dial(os.Getenv("DEMO_AMQP"))
	if err != nil {
		return err
	}
	defer conn.Close()
	return idemrabbitmq.Consume(ctx, conn, client, idemrabbitmq.Options{Queue: queue, Prefetch: 4, Delays: delays, DeliveryLimit: 1000,
		Handle: func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
			return handle(ctx, message.MessageId)
		}})
}

// burying dies after a dead letter was published.
type burying struct{ nats.JetStreamContext }

func (b burying) PublishMsg(message *nats.Msg, options ...nats.PubOpt) (*nats.PubAck, error) {
	answer, err := b.JetStreamContext.PublishMsg(message, options...)
	at("bury")
	return answer, err
}

func natsio(ctx context.Context) error {
	conn, err := nats.Connect(os.Getenv("DEMO_NATS"))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		return err
	}
	return idemnats.Consume(ctx, burying{js}, client, idemnats.Options{Stream: queue, Durable: "test", Prefetch: 4, Delays: delays,
		DeliveryLimit: 1000, AckWait: 500 * time.Millisecond,
		Handle: func(ctx context.Context, message *nats.Msg) (*idempotency.Result, error) {
			return handle(ctx, string(message.Data))
		}})
}

// watched dies before an entry is settled.
type watched struct{ redis.ConnWithTimeout }

func (w watched) DoWithTimeout(timeout time.Duration, command string, arguments ...any) (any, error) {
	if command == "EVAL" && len(arguments) > 8 {
		switch arguments[8] {
		case "ack":
			at("ack")
		case "bury":
			at("bury")
		}
	}
	return w.ConnWithTimeout.DoWithTimeout(timeout, command, arguments...)
}

type watchedPool struct{ *redis.Pool }

func (p watchedPool) Get() redis.Conn { return watched{p.Pool.Get().(redis.ConnWithTimeout)} }

func redisio(ctx context.Context) error {
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(os.Getenv("DEMO_REDIS")) }}
	defer pool.Close()
	return idemredis.Consume(ctx, watchedPool{pool}, client, idemredis.Options{Stream: queue, Group: "test", Prefetch: 4, Delays: delays,
		DeliveryLimit: 1000, Idle: 300 * time.Millisecond, Poll: 20 * time.Millisecond,
		Handle: func(ctx context.Context, entry idemredis.Entry) (*idempotency.Result, error) {
			return handle(ctx, entry.Fields["key"])
		}})
}

// sending dies after a dead letter was sent.
type sending struct{ sarama.SyncProducer }

func (s sending) SendMessage(message *sarama.ProducerMessage) (int32, int64, error) {
	partition, offset, err := s.SyncProducer.SendMessage(message)
	at("bury")
	return partition, offset, err
}

func kafka(ctx context.Context) error {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.CommitInterval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 4 * time.Second
	// a group waits so long for a member that died while it joined
	config.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	brokers := []string{os.Getenv("DEMO_KAFKA")}
	group, err := sarama.NewConsumerGroup(brokers, queue, config)
	if err != nil {
		return err
	}
	defer group.Close()
	producer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	return idemkafka.Consume(ctx, group, sending{producer}, client, idemkafka.Options{Topic: queue, Group: queue, Delays: delays,
		Handle: func(ctx context.Context, message *sarama.ConsumerMessage) (*idempotency.Result, error) {
			if string(message.Key) == "first" {
				return nil, nil
			}
			return handle(ctx, string(message.Key))
		}})
}
