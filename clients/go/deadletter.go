package idempotency

import (
	"context"
	"time"
)

// OwnsDeadLetter says whether a message is the one that becomes the dead letter
// of an operation that failed. Copies of a message, and redeliveries, all get the
// same stored failure, but only one message of the queue owns its dead letter: the
// first that asks. It gets true each time, the others get false and are
// acknowledged. So a crash before the dead letter was sent loses nothing.
//
// failure is a replayed Result: if this call ran the operation, run it again
// first. message names the message so that redeliveries of it have the same name
// and other messages have another: a position in a log, or a random identifier
// that the consumer has added to it. The answer is kept in the scope
// queue + ".dead", as long as records are.
//
// Errors: as of Transaction, and ErrInProgress while another consumer asks.
func (c *Client[Tx]) OwnsDeadLetter(ctx context.Context, queue string, failure *Result, message string) (bool, error) {
	answer, err := c.Transaction(ctx, failure.Record, nil, func(context.Context, Tx, Operation) (Response, error) {
		return Response{Payload: message}, nil
	}, InScope(queue+".dead"), WithWait(5*time.Second))
	if err != nil {
		return false, err
	}
	if answer.Outcome == InProgress {
		return false, &InProgressError{RetryAfter: answer.RetryAfter}
	}
	if answer.Outcome == Failed {
		return true, nil // its attempts were lost too often: nobody owns it, and two dead letters are better than none
	}
	var owner string
	err = answer.Decode(&owner)
	return owner == message, err
}
