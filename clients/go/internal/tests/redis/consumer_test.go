package redis_test

import (
	"context"
	"os"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemredis"
	"example.org/idempotency/internal/tests/brokertest"
	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { brokertest.Main(m, "DEMO_REDIS") }

type stage struct {
	queue string
	pool  *redis.Pool
}

func newStage(t *testing.T, queue string) brokertest.Stage {
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(os.Getenv("DEMO_REDIS")) }}
	t.Cleanup(func() { pool.Close() })
	return &stage{queue: queue, pool: pool}
}

func (s *stage) do(t *testing.T, command string, arguments ...any) any {
	t.Helper()
	conn := s.pool.Get()
	defer conn.Close()
	answer, err := conn.Do(command, arguments...)
	brokertest.Must(t, err)
	return answer
}

func (s *stage) Send(t *testing.T, keys ...string) {
	for _, key := range keys {
		s.do(t, "XADD", s.queue, "*", "key", key, "own", "1")
	}
}

func (s *stage) Consume(ctx context.Context, client *idempotency.Client[pgx.Tx], options brokertest.Options) error {
	// nobody dies here: no entry comes again, however slow the machine is
	return idemredis.Consume(ctx, s.pool, client, idemredis.Options{Stream: s.queue, Group: "test", Prefetch: 4,
		Idle: time.Minute, Poll: 20 * time.Millisecond,
		Delays: []time.Duration{20 * time.Millisecond, 100 * time.Millisecond},
		Tries:  options.Tries, OnError: func(err error, _ idemredis.Entry) { options.OnError(err) },
		Handle: func(ctx context.Context, entry idemredis.Entry) (*idempotency.Result, error) {
			return options.Handle(ctx, entry.Fields["key"])
		}})
}

// Settled reads the answer of XINFO GROUPS, names and values in turn.
func (s *stage) Settled(t *testing.T) bool {
	groups, err := redis.Values(s.do(t, "XINFO", "GROUPS", s.queue), nil)
	brokertest.Must(t, err)
	if len(groups) == 0 {
		return false
	}
	group, err := redis.Values(groups[0], nil)
	brokertest.Must(t, err)
	open := int64(0)
	for i := 0; i < len(group); i += 2 {
		if name, _ := redis.String(group[i], nil); name == "pending" || name == "lag" {
			n, err := redis.Int64(group[i+1], nil)
			brokertest.Must(t, err)
			open += n
		}
	}
	return open == 0
}

func (s *stage) DeadLetters(t *testing.T) (keys []string) {
	entries, err := redis.Values(s.do(t, "XRANGE", "{"+s.queue+"}.test.dead", "-", "+"), nil)
	brokertest.Must(t, err)
	for _, entry := range entries {
		parts, err := redis.Values(entry, nil)
		brokertest.Must(t, err)
		fields, err := redis.StringMap(parts[1], nil)
		brokertest.Must(t, err)
		if fields["own"] != "1" || fields["x-idempotency-id"] == "" {
			t.Errorf("fields %v", fields)
		}
		keys = append(keys, fields["key"])
	}
	return keys
}

func TestConsumer(t *testing.T) { brokertest.Run(t, newStage) }
