package main

import (
	"context"
	"errors"
	"fmt"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
)

type work func(ctx context.Context, o order, fence int64) (idempotency.Completion[pgx.Tx], error)

// answer is the stored response of an operation: the message that it sent.
type answer struct {
	Answer string `json:"answer"`
}

const (
	say = "SELECT say($1::text, $2, $3)"

	// Whoever comes first puts the order into its state; the others see that state.
	claim = `INSERT INTO payment AS p VALUES ($1, $2, $3) ON CONFLICT (order_id) DO UPDATE SET state = p.state
		RETURNING state, coalesce(charge, '')`
)

// charge charges the card, unless the order was withdrawn before. If an earlier
// attempt was lost, the gateway is called again under the same key, which is the
// order's: it answers with the charge that there is.
func (s *service) charge(ctx context.Context, o order, fence int64) (idempotency.Completion[pgx.Tx], error) {
	state, _, err := s.claim(ctx, o, "charging")
	if err != nil {
		return nothing(err)
	}
	if state != "charging" {
		return o.end(answerTo[state], "", ""), nil
	}
	charge, err := s.gateway.charge(ctx, o, fence)
	if errors.Is(err, errDeclined) {
		return o.end("payment.declined", "declined", ""), nil
	}
	if err != nil {
		return idempotency.Completion[pgx.Tx]{}, err
	}
	return o.end("payment.charged", "charged", charge), nil
}

// A second charge of an order finds what the first one, or the refund, has left.
var answerTo = map[string]string{
	"charged": "payment.charged", "declined": "payment.declined",
	"withdrawn": "payment.declined", "refunded": "payment.declined",
}

// refund gives back what was charged. If nothing was, nothing will be.
func (s *service) refund(ctx context.Context, o order, fence int64) (idempotency.Completion[pgx.Tx], error) {
	state, charge, err := s.claim(ctx, o, "withdrawn")
	if err != nil {
		return nothing(err)
	}
	switch state {
	case "charging":
		// The gateway may be charging at this moment: the message comes again.
		return nothing(fmt.Errorf("order %s is being charged", o.ID))
	case "charged":
		if err := s.gateway.refund(ctx, o, charge, fence); err != nil {
			return idempotency.Completion[pgx.Tx]{}, err
		}
		return o.end("payment.refunded", "refunded", charge), nil
	}
	return o.end("payment.refunded", "", ""), nil
}

func (s *service) claim(ctx context.Context, o order, state string) (found, charge string, err error) {
	err = s.pool.QueryRow(ctx, claim, o.ID, o.Amount, state).Scan(&found, &charge)
	return found, charge, err
}

// nothing says that nothing has happened at the gateway, so the operation is free at once.
func nothing(err error) (idempotency.Completion[pgx.Tx], error) {
	return idempotency.Completion[pgx.Tx]{}, fmt.Errorf("%w: %v", idempotency.ErrNotDone, err)
}

// end writes the new state and the message, together with the record of the operation.
func (o order) end(message, state, charge string) idempotency.Completion[pgx.Tx] {
	return idempotency.Completion[pgx.Tx]{
		Response: idempotency.Response{Payload: answer{message}},
		Writes: func(ctx context.Context, tx pgx.Tx) error {
			if state != "" {
				_, err := tx.Exec(ctx, "UPDATE payment SET state = $2, charge = nullif($3, '') WHERE order_id = $1", o.ID, state, charge)
				if err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, say, o.ID, message, o.Document)
			return err
		},
	}
}
