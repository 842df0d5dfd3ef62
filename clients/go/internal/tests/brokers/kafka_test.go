package brokers

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.org/idempotency/idemkafka"
	"github.com/IBM/sarama"
)

// topic is made by the broker when somebody asks for it.
type topic struct {
	deaf
	queue, dead string
	client      sarama.Client
	producer    sarama.SyncProducer
}

func newTopic(t *testing.T, queue string) stage {
	client, err := newKafka(time.Minute)
	must(t, err)
	producer, err := sarama.NewSyncProducerFromClient(client)
	must(t, err)
	t.Cleanup(func() { producer.Close(); client.Close() })
	k := &topic{queue: queue, dead: queue + "." + queue + ".dead", client: client, producer: producer}
	k.sendTo(t, k.queue, "first")
	k.sendTo(t, k.dead, "first")
	return k
}

func (k *topic) sendTo(t *testing.T, topic, key string) {
	// As a dead letter that is sent again: the next one has its own.
	origin := sarama.RecordHeader{Key: []byte(idemkafka.OriginHeader), Value: []byte("another")}
	_, _, err := k.producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder("{}"),
		Headers: []sarama.RecordHeader{origin}})
	must(t, err)
}

func (k *topic) send(t *testing.T, keys ...string) {
	for _, key := range keys {
		k.sendTo(t, k.queue, key)
	}
}

// settled compares the committed offsets with the ends of the partitions.
func (k *topic) settled(t *testing.T) bool {
	offsets, err := sarama.NewOffsetManagerFromClient(k.queue, k.client)
	must(t, err)
	defer offsets.Close()
	partitions, err := k.client.Partitions(k.queue)
	must(t, err)
	for _, partition := range partitions {
		end, err := k.client.GetOffset(k.queue, partition, sarama.OffsetNewest)
		must(t, err)
		manager, err := offsets.ManagePartition(k.queue, partition)
		must(t, err)
		next, _ := manager.NextOffset()
		manager.AsyncClose()
		if next < end && end > 0 {
			return false
		}
	}
	return true
}

func (k *topic) deadLetters(t *testing.T) (keys []string) {
	output, err := exec.Command("kcat", "-C", "-b", os.Getenv("DEMO_KAFKA"), "-t", k.dead, "-o", "beginning",
		"-e", "-q", "-J").Output()
	must(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		var message struct {
			Key     string
			Headers []string
		}
		must(t, json.Unmarshal([]byte(line), &message))
		if message.Key == "first" {
			continue
		}
		if len(message.Headers) != 2 || message.Headers[0] != idemkafka.OriginHeader || message.Headers[1] == "another" {
			t.Errorf("headers %v", message.Headers)
		}
		keys = append(keys, message.Key)
	}
	return keys
}
