// Idempotency by hand, for the payments service: a lock in Redis around a table. It
// is built in place of payments/lease.go.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"example.org/idempotency"
	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

const ttl = 10 * time.Second // after which the lock of a process that died is free

var release = redis.NewScript(1, "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")

type lease func(ctx context.Context, key string, request any, work idempotency.LeasedWork[pgx.Tx],
	options ...idempotency.Option) (*idempotency.Result, error)

type byHand struct {
	pool  *pgxpool.Pool
	redis *redis.Pool
}

func newLease(_ *idempotency.Client[pgx.Tx], pool *pgxpool.Pool) lease {
	dial := func() (redis.Conn, error) {
		return redis.DialURL(os.Getenv("REDIS_URL"), redis.DialReadTimeout(2*time.Second))
	}
	return (&byHand{pool, &redis.Pool{Dial: dial, MaxIdle: 10}}).run
}

func (b *byHand) run(ctx context.Context, key string, _ any, work idempotency.LeasedWork[pgx.Tx],
	_ ...idempotency.Option) (*idempotency.Result, error) {
	conn := b.redis.Get()
	defer conn.Close()
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	name, token := "lock:payments:"+key, hex.EncodeToString(random[:])
	if _, err := redis.String(conn.Do("SET", name, token, "NX", "PX", ttl.Milliseconds())); err != nil {
		return nil, fmt.Errorf("%s is locked: %w", name, err)
	}
	defer release.Do(conn, name, token)
	return b.once(ctx, key, work)
}

// once looks the message up, works, and notes the message with the work's writes.
func (b *byHand) once(ctx context.Context, key string, work idempotency.LeasedWork[pgx.Tx]) (*idempotency.Result, error) {
	result := &idempotency.Result{Outcome: idempotency.Completed, Replayed: true}
	err := b.pool.QueryRow(ctx, "SELECT answer FROM processed_messages WHERE message_id = $1", key).Scan(&result.Payload)
	if !errors.Is(err, pgx.ErrNoRows) {
		return result, err
	}
	completion, err := work(ctx, idempotency.Operation{})
	if err != nil {
		return nil, err
	}
	answer, err := json.Marshal(completion.Payload)
	if err != nil {
		return nil, err
	}
	return &idempotency.Result{Outcome: idempotency.Completed, Payload: answer}, b.pool.BeginFunc(ctx, func(tx pgx.Tx) error {
		if err := completion.Writes(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO processed_messages (message_id, answer) VALUES ($1, $2)", key, answer)
		return err
	})
}
