package nats_test

import (
	"context"
	"os"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemnats"
	"example.org/idempotency/internal/tests/brokertest"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { brokertest.Main(m, "DEMO_NATS") }

type stage struct {
	queue string
	conn  *nats.Conn
	js    nats.JetStreamContext
}

func newStage(t *testing.T, queue string) brokertest.Stage {
	conn, err := nats.Connect(os.Getenv("DEMO_NATS"))
	brokertest.Must(t, err)
	t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	brokertest.Must(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: queue, Subjects: []string{queue + ".*"}})
	brokertest.Must(t, err)
	return &stage{queue: queue, conn: conn, js: js}
}

func (s *stage) Send(t *testing.T, keys ...string) {
	for _, key := range keys {
		message := nats.NewMsg(s.queue + ".sent")
		message.Data = []byte(key)
		// A dead letter has neither of these: the server would refuse it.
		message.Header.Set(nats.ExpectedStreamHdr, s.queue)
		_, err := s.js.PublishMsg(message, nats.MsgId(nats.NewInbox()))
		brokertest.Must(t, err)
	}
}

func (s *stage) Consume(ctx context.Context, client *idempotency.Client[pgx.Tx], options brokertest.Options) error {
	// nobody dies here: no message comes again, however slow the machine is
	return idemnats.Consume(ctx, s.js, client, idemnats.Options{Stream: s.queue, Durable: "test", Prefetch: 4,
		AckWait: time.Minute, Delays: []time.Duration{20 * time.Millisecond, 100 * time.Millisecond},
		Tries: options.Tries, OnError: func(err error, _ *nats.Msg) { options.OnError(err) },
		Handle: func(ctx context.Context, message *nats.Msg) (*idempotency.Result, error) {
			return options.Handle(ctx, string(message.Data))
		}})
}

func (s *stage) Settled(t *testing.T) bool {
	info, err := s.js.ConsumerInfo(s.queue, "test")
	return err == nil && info.NumPending == 0 && info.NumAckPending == 0
}

func (s *stage) DeadLetters(t *testing.T) (keys []string) {
	info, err := s.js.StreamInfo(s.queue + "-test-dead")
	brokertest.Must(t, err)
	for sequence := uint64(1); sequence <= info.State.LastSeq; sequence++ {
		message, err := s.js.GetMsg(s.queue+"-test-dead", sequence)
		brokertest.Must(t, err)
		if message.Subject != s.queue+"-test-dead."+s.queue+".sent" || message.Header.Get("x-idempotency-msg-id") == "" {
			t.Errorf("%s %v", message.Subject, message.Header)
		}
		keys = append(keys, string(message.Data))
	}
	return keys
}

func TestConsumer(t *testing.T) { brokertest.Run(t, newStage) }

func TestConsumeLeavesNoSubscription(t *testing.T) {
	stage := newStage(t, brokertest.NewQueue()).(*stage)
	stage.Send(t, "one")
	before := stage.conn.NumSubscriptions()
	pool, err := brokertest.Connect()
	brokertest.Must(t, err)
	t.Cleanup(pool.Close)
	ctx, cancel := context.WithCancel(context.Background())
	handle := func(context.Context, string) (*idempotency.Result, error) {
		cancel()
		return nil, nil
	}
	brokertest.Must(t, stage.Consume(ctx, idempotency.New(pgxv5.Pool(pool), idempotency.Options{}),
		brokertest.Options{Handle: handle, OnError: func(err error) { t.Error(err) }}))
	if after := stage.conn.NumSubscriptions(); after != before {
		t.Errorf("%d subscriptions, not %d", after, before)
	}
}
