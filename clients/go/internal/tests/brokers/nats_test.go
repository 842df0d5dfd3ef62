package brokers

import (
	"context"
	"errors"
	"os"
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/idemnats"
	"github.com/nats-io/nats.go"
)

type natsStream struct {
	deaf
	queue string
	conn  *nats.Conn
	js    nats.JetStreamContext
}

func newNATS(t *testing.T, queue string) stage {
	conn, err := nats.Connect(os.Getenv("DEMO_NATS"))
	must(t, err)
	t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	must(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: queue, Subjects: []string{queue + ".*"}})
	must(t, err)
	return &natsStream{queue: queue, conn: conn, js: js}
}

func (n *natsStream) send(t *testing.T, keys ...string) {
	for _, key := range keys {
		message := nats.NewMsg(n.queue + ".sent")
		message.Data = []byte(key)
		// A dead letter has neither of these: the server would refuse it.
		message.Header.Set(nats.ExpectedStreamHdr, n.queue)
		_, err := n.js.PublishMsg(message, nats.MsgId(nats.NewInbox()))
		must(t, err)
	}
}

func (n *natsStream) settled(*testing.T) bool {
	info, err := n.js.ConsumerInfo(n.queue, "test")
	return err == nil && info.NumPending == 0 && info.NumAckPending == 0
}

func (n *natsStream) deadLetters(t *testing.T) (keys []string) {
	info, err := n.js.StreamInfo(n.queue + "-test-dead")
	must(t, err)
	for sequence := uint64(1); sequence <= info.State.LastSeq; sequence++ {
		message, err := n.js.GetMsg(n.queue+"-test-dead", sequence)
		must(t, err)
		if message.Subject != n.queue+"-test-dead."+n.queue+".sent" || message.Header.Get("x-idempotency-msg-id") == "" {
			t.Errorf("%s %v", message.Subject, message.Header)
		}
		keys = append(keys, string(message.Data))
	}
	return keys
}

func TestConsumeLeavesNoSubscription(t *testing.T) {
	s := newScene(t, "nats")
	n := s.stage.(*natsStream)
	s.send(t, "one")
	before := n.conn.NumSubscriptions()
	ctx, cancel := context.WithCancel(context.Background())
	must(t, idemnats.Consume(ctx, n.js, s.client, idemnats.Options{Stream: s.queue, Durable: "test",
		Handle: func(context.Context, *nats.Msg) (*idempotency.Result, error) {
			cancel()
			return nil, nil
		}}))
	if after := n.conn.NumSubscriptions(); after != before {
		t.Errorf("%d subscriptions, not %d", after, before)
	}
}

// The stream of the dead letters refuses what the sender has told the server of its own stream.
func TestADeadLetterTellsTheServerNothing(t *testing.T) {
	s := newScene(t, "nats")
	n := s.stage.(*natsStream)
	_, err := n.js.UpdateStream(&nats.StreamConfig{Name: s.queue, Subjects: []string{s.queue + ".*"}, AllowRollup: true})
	must(t, err)
	message := nats.NewMsg(s.queue + ".sent")
	message.Data = []byte("argument")
	message.Header.Set(nats.MsgRollup, nats.MsgRollupSubject)
	_, err = n.js.PublishMsg(message, nats.MsgId("one"))
	must(t, err)
	s.consumeUntil(t, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return nil, idempotency.ErrBadArgument
	}}, s.all(1))
	s.wantDead(t, "argument")
}

// The second message of one number would be a copy for the stream of the dead letters.
func TestTwoConsumersOfOneDeadStream(t *testing.T) {
	s := newScene(t, "nats")
	n := s.stage.(*natsStream)
	streams := map[string]string{s.queue: "x-y", s.queue + "-x": "y"}
	for stream, durable := range streams {
		_, err := n.js.AddStream(&nats.StreamConfig{Name: stream, Subjects: []string{stream + ".*"}})
		must(t, err)
		_, err = n.js.Publish(stream+".sent", []byte(stream))
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		must(t, idemnats.Consume(ctx, n.js, s.client, idemnats.Options{Stream: stream, Durable: durable,
			Handle: func(context.Context, *nats.Msg) (*idempotency.Result, error) {
				cancel()
				return nil, idempotency.ErrBadArgument
			}}))
	}
	info, err := n.js.StreamInfo(s.queue + "-x-y-dead")
	must(t, err)
	if info.State.Msgs != uint64(len(streams)) {
		t.Errorf("%d dead letters", info.State.Msgs)
	}
}

// Nobody opens it again, so Consume would never find another message.
func TestAClosedConnectionOfNATSIsAnError(t *testing.T) {
	s := newScene(t, "nats")
	s.send(t, "one")
	conn, err := nats.Connect(os.Getenv("DEMO_NATS"))
	must(t, err)
	js, err := conn.JetStream()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := idemnats.Consume(ctx, js, s.client, idemnats.Options{Stream: s.queue, Durable: "test", Prefetch: 1,
		Handle: func(context.Context, *nats.Msg) (*idempotency.Result, error) {
			conn.Close()
			return nil, nil
		},
		OnError: func(_ error, message *nats.Msg) {
			if message == nil { // a fetch goes on
				cancel()
			}
		}}); !errors.Is(err, nats.ErrBadSubscription) {
		t.Errorf("got %v", err)
	}
}
