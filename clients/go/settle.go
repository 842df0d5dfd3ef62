package idempotency

import (
	"errors"
	"time"
)

// Settlement says what to tell a broker about a message.
type Settlement struct {
	// Do is Ack, Again or DeadLetter.
	Do Verdict
	// After is how long to wait before the message comes again.
	After time.Duration
}

// Verdict is what becomes of a message.
type Verdict string

const (
	// Ack: the message is done.
	Ack Verdict = "ack"
	// Again: deliver the message again, later.
	Again Verdict = "again"
	// DeadLetter: the message can never succeed. Put it aside.
	DeadLetter Verdict = "dead letter"
)

// againAfter is the wait where nothing says how long.
const againAfter = time.Second

// Settle says what becomes of the message behind a call of Client.Transaction or
// Client.Lease. It settles after the commit: a message that is lost in between
// comes again and gets the replay, and so the same settlement.
//
// A stored failure that is final is a dead letter: see Client.OwnsDeadLetter where
// the message may have copies. So is a message that can never be begun:
// ErrKeyReused, ErrBadArgument, ErrForbidden, ErrTooLarge; and one whose work was done,
// ErrUnstorable. Any other error, as that
// of a lease or a retention below 0, comes again; the broker's limit of deliveries, or
// the consumer, bounds that.
func Settle(result *Result, err error) Settlement {
	var unknown *UnknownError
	var elsewhere *InProgressError
	switch {
	case errors.As(err, &elsewhere):
		return again(elsewhere.RetryAfter)
	case errors.As(err, &unknown):
		return again(&unknown.RetryAfter)
	case errors.Is(err, ErrKeyReused), errors.Is(err, ErrBadArgument), errors.Is(err, ErrForbidden), errors.Is(err, ErrTooLarge),
		errors.Is(err, ErrUnstorable):
		return Settlement{Do: DeadLetter}
	case err != nil:
		return again(nil)
	case result.Outcome == Completed:
		return Settlement{Do: Ack}
	case result.Outcome == Failed && result.RetryAfter == nil:
		return Settlement{Do: DeadLetter}
	}
	return again(result.RetryAfter)
}

func again(after *time.Duration) Settlement {
	if after == nil || *after <= 0 {
		return Settlement{Do: Again, After: againAfter}
	}
	return Settlement{Do: Again, After: *after}
}
