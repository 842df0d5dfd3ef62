// Payments: charges cards at a gateway, and refunds them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemrabbitmq"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// order is what the message says. Document is all of it, for the next service.
type order struct {
	ID       string `json:"order"`
	Amount   int    `json:"amount"`
	Card     string `json:"card"`
	Document json.RawMessage
}

type service struct {
	pool    *pgxpool.Pool
	client  *idempotency.Client[pgx.Tx]
	gateway gateway
}

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	pool, err := pgxv5.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	duration, err := time.ParseDuration(os.Getenv("LEASE"))
	if err != nil {
		duration = 5 * time.Second
	}
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: "payments", Lease: duration})
	s := &service{pool: pool, client: client, gateway: gateway{url: os.Getenv("GATEWAY_URL")}}
	conn, err := amqp.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	// When the broker is gone the process ends: whoever supervises it starts it again.
	log.Fatal(idemrabbitmq.Consume(ctx, conn, client, idemrabbitmq.Options{
		Queue: "payments", Handle: s.handle, Tries: 10_000, Delays: []time.Duration{time.Second},
		OnError: func(err error, _ amqp.Delivery) { log.Print(err) },
	}))
}

// handle runs the operation of a message, which may come any number of times.
func (s *service) handle(ctx context.Context, message amqp.Delivery) (*idempotency.Result, error) {
	o := order{Document: message.Body}
	if err := json.Unmarshal(message.Body, &o); err != nil {
		return nil, fmt.Errorf("%w: %v", idempotency.ErrBadArgument, err)
	}
	work, known := map[string]work{
		"payment.charge": s.charge, "stock.reserved": s.charge,
		"payment.refund": s.refund, "parcel.refused": s.refund,
	}[message.Type]
	if !known {
		return nil, fmt.Errorf("%w: %s", idempotency.ErrBadArgument, message.Type)
	}
	result, err := s.client.Lease(ctx, message.MessageId, o.Document,
		func(ctx context.Context, operation idempotency.Operation) (idempotency.Completion[pgx.Tx], error) {
			return work(ctx, o, operation.Fence)
		})
	if err == nil && result.Replayed && result.Outcome == idempotency.Completed {
		fmt.Println("duplicate", message.MessageId)
		err = s.sayAgain(ctx, o, result)
	}
	return result, err
}

// sayAgain tells what was told then, for whoever has not heard it.
func (s *service) sayAgain(ctx context.Context, o order, result *idempotency.Result) error {
	var told answer
	if err := result.Decode(&told); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, say, o.ID, told.Answer, o.Document)
	return err
}
