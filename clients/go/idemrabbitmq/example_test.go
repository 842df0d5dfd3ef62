package idemrabbitmq_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"example.org/idempotency"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// consumeOrders handles the messages of a queue, each order once.
func consumeOrders(ctx context.Context, conn *amqp.Connection, client *idempotency.Client[pgx.Tx]) error {
	return idemrabbitmq.Consume(ctx, conn, client, idemrabbitmq.Options{
		Queue: "orders",
		Handle: func(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
			return client.Transaction(ctx, message.MessageId, json.RawMessage(message.Body),
				func(ctx context.Context, tx pgx.Tx, o idempotency.Operation) (idempotency.Response, error) {
					_, err := tx.Exec(ctx, "INSERT INTO placed VALUES ($1)", o.Key)
					return idempotency.Response{Payload: "placed"}, err
				})
		},
	})
}

func Example() {
	// the address of the server is in the environment: PGHOST and so on
	pool, err := pgxv5.Connect(context.Background(), "sslmode=disable")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: "orders"})
	conn, err := amqp.Dial(os.Getenv("DEMO_AMQP"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		_, err = pool.Exec(context.Background(), "CREATE EXTENSION IF NOT EXISTS idempotency; CREATE TABLE placed (id text)")
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := idemrabbitmq.Declare(ch, idemrabbitmq.Options{Queue: "orders"}); err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"order-1", "order-2", "order-1"} {
		err = ch.PublishWithContext(context.Background(), "", "orders", true, false, amqp.Publishing{MessageId: id, Body: []byte(`{"item": 7}`)})
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumeOrders(ctx, conn, client) }()
	placed := 0
	for placed < 2 {
		if err = pool.QueryRow(ctx, "SELECT count(*) FROM placed").Scan(&placed); err != nil {
			log.Fatal(err)
		}
	}
	cancel()
	fmt.Println(placed, <-ended)
	// Output: 2 <nil>
}
