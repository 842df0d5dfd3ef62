package brokers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemredis"
	"github.com/gomodule/redigo/redis"
)

type redisStream struct {
	deaf
	queue string
	pool  *redis.Pool
}

func newRedis(t *testing.T, queue string) stage {
	pool := redisPool()
	t.Cleanup(func() { pool.Close() })
	return &redisStream{queue: queue, pool: pool}
}

func (r *redisStream) do(t *testing.T, command string, arguments ...any) any {
	t.Helper()
	conn := r.pool.Get()
	defer conn.Close()
	answer, err := conn.Do(command, arguments...)
	must(t, err)
	return answer
}

func (r *redisStream) send(t *testing.T, keys ...string) {
	for _, key := range keys {
		r.do(t, "XADD", r.queue, "*", "key", key, "own", "1")
	}
}

// settled reads the answer of XINFO GROUPS, names and values in turn.
func (r *redisStream) settled(t *testing.T) bool {
	groups, err := redis.Values(r.do(t, "XINFO", "GROUPS", r.queue), nil)
	must(t, err)
	if len(groups) == 0 {
		return false
	}
	group, err := redis.Values(groups[0], nil)
	must(t, err)
	open := int64(0)
	for i := 0; i < len(group); i += 2 {
		if name, _ := redis.String(group[i], nil); name == "pending" || name == "lag" {
			n, err := redis.Int64(group[i+1], nil)
			must(t, err)
			open += n
		}
	}
	return open == 0
}

func (r *redisStream) deadLetters(t *testing.T) (keys []string) {
	entries, err := redis.Values(r.do(t, "XRANGE", "{"+r.queue+"}.test.dead", "-", "+"), nil)
	must(t, err)
	for _, entry := range entries {
		parts, err := redis.Values(entry, nil)
		must(t, err)
		fields, err := redis.StringMap(parts[1], nil)
		must(t, err)
		if fields["own"] != "1" || fields["x-idempotency-id"] == "" {
			t.Errorf("fields %v", fields)
		}
		keys = append(keys, fields["key"])
	}
	return keys
}

// An entry whose dead letter cannot be added is not acknowledged.
func TestNoEntryIsLost(t *testing.T) {
	s := newScene(t, "redis")
	r := s.stage.(*redisStream)
	r.do(t, "SET", "{"+s.queue+"}.test.dead", "no stream")
	s.send(t, "argument")
	ctx, cancel := context.WithCancel(context.Background())
	must(t, s.consume(ctx, Options{Handle: func(context.Context, string) (*idempotency.Result, error) {
		cancel()
		return nil, idempotency.ErrBadArgument
	}}))
	if len(s.errors) != 2 || s.settled(t) {
		t.Errorf("errors %v", s.errors)
	}
}

// An entry that another consumer has settled meanwhile is neither a dead letter nor does it pause.
func TestAnEntryIsSettledOnce(t *testing.T) {
	for _, failure := range []error{idempotency.ErrBadArgument, errors.New("planned")} {
		s := newScene(t, "redis")
		r := s.stage.(*redisStream)
		s.send(t, "one")
		ctx, cancel := context.WithCancel(context.Background())
		must(t, s.consume(ctx, Options{Handle: func(context.Context, string) (*idempotency.Result, error) {
			cancel()
			entries, err := redis.Values(r.do(t, "XRANGE", s.queue, "-", "+"), nil)
			must(t, err)
			r.do(t, "XACK", s.queue, "test", entries[0].([]any)[0])
			return nil, failure
		}}))
		if again := r.do(t, "ZCARD", "{"+s.queue+"}.test.again"); len(r.deadLetters(t)) != 0 || again != int64(0) {
			t.Errorf("%v: dead letters %v, %v pause", failure, r.deadLetters(t), again)
		}
	}
}

func TestADeadLetterOfMoreFieldsThanAScriptPassesOn(t *testing.T) {
	s := newScene(t, "redis")
	r := s.stage.(*redisStream)
	arguments := []any{s.queue, "*"}
	for n := range 4500 {
		arguments = append(arguments, n, "value")
	}
	r.do(t, "XADD", arguments...)
	s.consumeUntil(t, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		s.note(key)
		return nil, idempotency.ErrBadArgument
	}}, s.all(1))
	entries := r.do(t, "XRANGE", "{"+s.queue+"}.test.dead", "-", "+").([]any)
	fields, err := redis.StringMap(entries[0].([]any)[1], nil)
	must(t, err)
	if !strings.HasSuffix(fields["x-idempotency-fields"], `"4499","value"]`) {
		t.Errorf("%d bytes", len(fields["x-idempotency-fields"]))
	}
}

// Each consumer has a name of its own, and Redis keeps it.
func TestAConsumerThatIsGoneLeavesItsNameOnlyWithEntries(t *testing.T) {
	s := newScene(t, "redis")
	r := s.stage.(*redisStream)
	later := time.Hour
	for _, key := range []string{"pauses", "done", ""} {
		ctx, cancel := context.WithCancel(context.Background())
		if key == "" {
			cancel()
		} else {
			s.send(t, key)
		}
		must(t, s.consume(ctx, Options{Handle: func(context.Context, string) (*idempotency.Result, error) {
			cancel()
			if key == "done" {
				return nil, nil
			}
			return &idempotency.Result{Outcome: idempotency.InProgress, RetryAfter: &later}, nil
		}}))
	}
	if names := r.do(t, "XINFO", "CONSUMERS", s.queue, "test").([]any); len(names) != 1 {
		t.Errorf("%d names", len(names))
	}
}

func TestNothingIsLeftOfAnEntryThatIsDeletedWhileItPauses(t *testing.T) {
	s := newScene(t, "redis")
	r := s.stage.(*redisStream)
	s.send(t, "one", "two")
	s.consumeUntil(t, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key); key == "two" {
			return nil, nil
		}
		entries := r.do(t, "XRANGE", s.queue, "-", "+", "COUNT", 1).([]any)
		r.do(t, "XDEL", s.queue, entries[0].([]any)[0])
		return nil, errors.New("planned")
	}}, func() bool {
		return s.all(2)() && r.do(t, "EXISTS", "{"+s.queue+"}.test.again", "{"+s.queue+"}.test.tries") == int64(0)
	})
}

// The consumers of all languages have the same keys, so that a group may have several.
func TestTheNameOfAStreamMayHaveABrace(t *testing.T) {
	r := newRedis(t, fmt.Sprintf("{%d", time.Now().UnixNano())).(*redisStream)
	r.send(t, "one")
	ctx, cancel := context.WithCancel(context.Background())
	must(t, idemredis.Consume(ctx, r.pool, idempotency.New[any](nil, idempotency.Options{}), idemredis.Options{Stream: r.queue, Group: "test",
		Handle: func(context.Context, idemredis.Entry) (*idempotency.Result, error) {
			cancel()
			return nil, idempotency.ErrBadArgument
		}}))
	if dead := r.deadLetters(t); len(dead) != 1 {
		t.Errorf("dead letters %v", dead)
	}
}

// A Redis that comes back without its data has no group.
func TestTheGroupIsMadeAgain(t *testing.T) {
	s := newScene(t, "redis")
	r := s.stage.(*redisStream)
	s.send(t, "one")
	s.consumeUntil(t, Options{Handle: func(_ context.Context, key string) (*idempotency.Result, error) {
		if s.note(key) == 1 {
			r.do(t, "DEL", s.queue)
			s.send(t, "two")
		}
		return nil, nil
	}}, s.all(2))
}

// silent is a pool whose Redis makes the group, and answers nothing else.
type silent struct {
	redis.ConnWithTimeout
	t     *testing.T
	tried func()
}

var errSilent = errors.New("no answer in time")

func (s *silent) Get() redis.Conn { return s }
func (s *silent) Close() error    { return nil }

func (s *silent) Do(command string, _ ...any) (any, error) {
	s.t.Errorf("%s waits without a limit", command)
	return nil, errSilent
}

func (s *silent) DoWithTimeout(limit time.Duration, command string, arguments ...any) (any, error) {
	if limit != 12*time.Second {
		s.t.Errorf("%s waits %v", command, limit)
	}
	if command == "XGROUP" || strings.Contains(fmt.Sprint(arguments...), "DELCONSUMER") {
		return "OK", nil
	}
	s.tried()
	return nil, errSilent
}

func TestARedisThatHangsKeepsNoConsumer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var told []error
	err := idemredis.Consume(ctx, &silent{t: t, tried: cancel}, idempotency.New[any](nil, idempotency.Options{}), idemredis.Options{
		Stream: "s", Group: "g", Idle: 10 * time.Second, Poll: 2 * time.Second,
		Handle:  func(context.Context, idemredis.Entry) (*idempotency.Result, error) { return nil, nil },
		OnError: func(err error, _ idemredis.Entry) { told = append(told, err) }})
	if err != nil || len(told) != 1 || !errors.Is(told[0], errSilent) {
		t.Errorf("%v, told %v", err, told)
	}
}
