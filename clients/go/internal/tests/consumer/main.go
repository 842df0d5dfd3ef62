// The consumer that dies: BROKER says of what, QUEUE of which queue, DIE at which
// point it kills itself. SIGTERM stops it. The kills of all languages are in
// clients/brokers; each language has such a program.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/tests/brokers"
	"example.org/idempotency/internal/tests/kit"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	pool, err := kit.Connect()
	if err != nil {
		return err
	}
	queue := os.Getenv("QUEUE")
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: queue})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	consume, known := brokers.Consumers[os.Getenv("BROKER")]
	if !known {
		return fmt.Errorf("BROKER is unknown")
	}
	return consume(ctx, queue, client, brokers.Options{Patience: 500 * time.Millisecond, At: at, OnError: func(err error) { log.Print(err) },
		Handle: func(ctx context.Context, key string) (*idempotency.Result, error) { return handle(ctx, client, key) }})
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

func handle(ctx context.Context, client *idempotency.Client[pgx.Tx], key string) (*idempotency.Result, error) {
	poison, limit := strings.Contains(key, "poison"), -1
	if poison {
		limit = 3
	}
	result, err := client.Transaction(ctx, key, nil, brokers.Work(key, func() {
		at("work")
		if poison {
			die()
		}
	}), idempotency.WithMaxLostAttempts(limit))
	at("commit")
	return result, err
}
