// Payments by the package of Go, and by hand. See bench/packages/__init__.py.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	mathrand "math/rand"
	"os"
	"regexp"
	"sync"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var order struct {
	Variant           string
	Clients           int
	Seconds, Warmup   float64
	Accounts          int
	Request, Response json.RawMessage
}

type deliver func(ctx context.Context, key string) error

// work does one operation in an open transaction.
type work func(ctx context.Context, tx pgx.Tx, key string) error

func main() {
	if err := json.Unmarshal([]byte(os.Args[1]), &order); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	one := chosen(ctx)
	before := until(ctx, one, time.Now().Add(duration(order.Warmup)))
	began := time.Now()
	timed := until(ctx, one, began.Add(duration(order.Seconds)))
	throughput := float64(timed) / time.Since(began).Seconds()
	fmt.Printf("{\"transactions\": %d, \"throughput\": %f}\n", before+timed, throughput)
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// chosen has the pool that is usual for the variant: by hand, that of pgx itself,
// which prepares what it sends.
func chosen(ctx context.Context) deliver {
	size := fmt.Sprintf("pool_max_conns=%d", order.Clients)
	if order.Variant == "package" {
		pool, err := pgxv5.Connect(ctx, size)
		fatal(err)
		return byPackage(idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: "payments"}))
	}
	pool, err := pgxpool.New(ctx, size)
	fatal(err)
	return inTransaction(pool, map[string]work{"glue": glue, "hand": hand, "bare": bare}[order.Variant])
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func newKey() string {
	key := make([]byte, 16)
	_, err := rand.Read(key)
	fatal(err)
	return hex.EncodeToString(key)
}

// until says how many operations end until a time.
func until(ctx context.Context, one deliver, end time.Time) int {
	counts := make([]int, order.Clients)
	var clients sync.WaitGroup
	for i := range counts {
		clients.Add(1)
		go func(i int) {
			defer clients.Done()
			for time.Now().Before(end) {
				fatal(one(ctx, newKey()))
				counts[i]++
			}
		}(i)
	}
	clients.Wait()
	sum := 0
	for _, count := range counts {
		sum += count
	}
	return sum
}

func pay(ctx context.Context, tx pgx.Tx) error {
	account, amount := 1+mathrand.Intn(order.Accounts), 1+mathrand.Intn(100)
	if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2", amount, account); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO payments (account, amount) VALUES ($1, $2)", account, amount)
	return err
}

func byPackage(client *idempotency.Client[pgx.Tx]) deliver {
	return func(ctx context.Context, key string) error {
		_, err := client.Transaction(ctx, key, order.Request,
			func(ctx context.Context, tx pgx.Tx, _ idempotency.Operation) (idempotency.Response, error) {
				return idempotency.Response{Code: 201, Payload: order.Response}, pay(ctx, tx)
			})
		return err
	}
}

func bare(ctx context.Context, tx pgx.Tx, _ string) error { return pay(ctx, tx) }

var errDeclined = errors.New("declined")

// glue does what the package does, in the way that people write it: a statement at
// a time.
func glue(ctx context.Context, tx pgx.Tx, key string) error {
	var outcome string
	var code *int
	var payload *string
	err := tx.QueryRow(ctx, "SELECT outcome::text, response_code, response_payload::text FROM idem_begin($1, $2::jsonb, scope => $3)",
		key, string(order.Request), "payments").Scan(&outcome, &code, &payload)
	if err != nil || outcome != "ACQUIRED" {
		return err
	}
	if _, err := tx.Exec(ctx, "SAVEPOINT work"); err != nil {
		return err
	}
	err = pay(ctx, tx)
	if errors.Is(err, errDeclined) {
		if _, err := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT work"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT idem_fail($1, $2::jsonb, scope => $3, code => $4)", key, nil, "payments", 402)
		return err
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SELECT idem_complete($1, $2::jsonb, scope => $3, code => $4)", key,
		string(order.Response), "payments", 201)
	return err
}

// hand has a table of its own: lock or insert, later update.
func hand(ctx context.Context, tx pgx.Tx, key string) error {
	hash := sha256.Sum256(order.Request)
	var status string
	var stored []byte
	var payload *string
	err := tx.QueryRow(ctx, "SELECT status, request_hash, response_payload::text FROM hand_store WHERE scope = '' AND idempotency_key = $1 FOR UPDATE",
		key).Scan(&status, &stored, &payload)
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at) VALUES ($1, $2, 'PENDING', now() + interval '1 day')",
		key, hash[:]); err != nil {
		return err
	}
	if err := pay(ctx, tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE hand_store SET status = 'COMPLETED', response_payload = $2::jsonb, updated_at = clock_timestamp() WHERE scope = '' AND idempotency_key = $1",
		key, string(order.Response))
	return err
}

var retried = regexp.MustCompile(`^(40001|40P01|08...|57P0[123])$`)

// inTransaction begins and commits, and repeats what may be repeated. pgx itself
// takes a COMMIT that answers ROLLBACK for an error.
func inTransaction(pool *pgxpool.Pool, do work) deliver {
	return func(ctx context.Context, key string) error {
		for attempt := 1; ; attempt++ {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return do(ctx, tx, key) })
			if err == nil || attempt == 5 || !retried.MatchString(idempotency.SQLState(err)) {
				return err
			}
			time.Sleep(time.Duration(mathrand.Float64() * float64(50*time.Millisecond) * float64(int(1)<<attempt)))
		}
	}
}
