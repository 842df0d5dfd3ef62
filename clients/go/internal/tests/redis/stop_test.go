package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemredis"
	"github.com/gomodule/redigo/redis"
)

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

func (s *silent) DoWithTimeout(limit time.Duration, command string, _ ...any) (any, error) {
	if limit != 12*time.Second {
		s.t.Errorf("%s waits %v", command, limit)
	}
	if command == "XGROUP" {
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
