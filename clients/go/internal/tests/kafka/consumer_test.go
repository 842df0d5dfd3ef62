package kafka_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemkafka"
	"example.org/idempotency/internal/tests/brokertest"
	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { brokertest.Main(m, "DEMO_KAFKA") }

// stage is a topic, which the broker makes when somebody asks for it.
type stage struct {
	queue, dead string
	client      sarama.Client
	producer    sarama.SyncProducer
}

func newStage(t *testing.T, queue string) brokertest.Stage {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.CommitInterval = 50 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	client, err := sarama.NewClient([]string{os.Getenv("DEMO_KAFKA")}, config)
	brokertest.Must(t, err)
	producer, err := sarama.NewSyncProducerFromClient(client)
	brokertest.Must(t, err)
	t.Cleanup(func() { producer.Close(); client.Close() })
	s := &stage{queue: queue, dead: queue + "." + queue + ".dead", client: client, producer: producer}
	s.send(t, s.queue, "first")
	s.send(t, s.dead, "first")
	return s
}

func (s *stage) send(t *testing.T, topic, key string) {
	_, _, err := s.producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder("{}")})
	brokertest.Must(t, err)
}

func (s *stage) Send(t *testing.T, keys ...string) {
	for _, key := range keys {
		s.send(t, s.queue, key)
	}
}

func (s *stage) Consume(ctx context.Context, client *idempotency.Client[pgx.Tx], options brokertest.Options) error {
	group, err := sarama.NewConsumerGroupFromClient(s.queue, s.client)
	if err != nil {
		return err
	}
	defer group.Close()
	return idemkafka.Consume(ctx, group, s.producer, client, idemkafka.Options{Topic: s.queue, Group: s.queue,
		Delays: []time.Duration{20 * time.Millisecond, 100 * time.Millisecond},
		Tries:  options.Tries, OnError: func(err error, _ *sarama.ConsumerMessage) { options.OnError(err) },
		Handle: func(ctx context.Context, message *sarama.ConsumerMessage) (*idempotency.Result, error) {
			if string(message.Key) == "first" {
				return nil, nil
			}
			return options.Handle(ctx, string(message.Key))
		}})
}

// Settled compares the committed offsets with the ends of the partitions.
func (s *stage) Settled(t *testing.T) bool {
	offsets, err := sarama.NewOffsetManagerFromClient(s.queue, s.client)
	brokertest.Must(t, err)
	defer offsets.Close()
	partitions, err := s.client.Partitions(s.queue)
	brokertest.Must(t, err)
	for _, partition := range partitions {
		end, err := s.client.GetOffset(s.queue, partition, sarama.OffsetNewest)
		brokertest.Must(t, err)
		manager, err := offsets.ManagePartition(s.queue, partition)
		brokertest.Must(t, err)
		next, _ := manager.NextOffset()
		manager.AsyncClose()
		if next < end && end > 0 {
			return false
		}
	}
	return true
}

func (s *stage) DeadLetters(t *testing.T) (keys []string) {
	output, err := exec.Command("kcat", "-C", "-b", os.Getenv("DEMO_KAFKA"), "-t", s.dead, "-o", "beginning", "-e", "-q", "-J").Output()
	brokertest.Must(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		var message struct {
			Key     string
			Headers []string
		}
		brokertest.Must(t, json.Unmarshal([]byte(line), &message))
		if message.Key == "first" {
			continue
		}
		if len(message.Headers) != 2 || message.Headers[0] != idemkafka.OriginHeader {
			t.Errorf("headers %v", message.Headers)
		}
		keys = append(keys, message.Key)
	}
	return keys
}

func TestConsumer(t *testing.T) { brokertest.Run(t, newStage) }
