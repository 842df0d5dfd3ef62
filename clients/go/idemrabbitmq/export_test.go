package idemrabbitmq

import (
	"context"

	"example.org/idempotency"
)

// Channel lets a test stand between a consumer and its channel.
type Channel = channel

// ConsumeOn is Consume on a channel of the test's.
func ConsumeOn[Tx any](ctx context.Context, ch Channel, client *idempotency.Client[Tx], options Options) error {
	return consume(ctx, ch, client.OwnsDeadLetter, options)
}
