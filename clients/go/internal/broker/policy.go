// Package broker has what the consumers of all brokers decide in the same way.
package broker

import (
	"context"
	"errors"
	"log"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"example.org/idempotency"
	"example.org/idempotency/internal/option"
	"example.org/idempotency/internal/safe"
)

// TriesHeader counts how often the handling of a message ended with an error.
const TriesHeader = "x-idempotency-tries"

// Policy bounds the errors of one message.
type Policy struct {
	// Queue is the name under which messages own their dead letters.
	Queue string
	// Tries: after so many errors the message is a dead letter; 0: 20.
	Tries int
	// Delays are the waits after the first error, the second, and so on; the last is
	// used for all that follow. Empty: 1 s, 10 s, 60 s. They grow.
	Delays []time.Duration
}

// Checked fills in what was not given. Its errors are those of a consumer that cannot begin.
func (p Policy) Checked() (Policy, error) {
	p.Tries = option.Or(p.Tries, 20)
	if len(p.Delays) == 0 {
		p.Delays = []time.Duration{time.Second, 10 * time.Second, time.Minute}
	}
	switch {
	case !slices.IsSorted(p.Delays):
		return p, ErrDelays
	case utf8.RuneCountInString(p.Queue+".dead") > 255: // the server would refuse each question for an owner
		return p, ErrName
	}
	return p, nil
}

// What a consumer returns at once.
var (
	ErrDelays = errors.New("idempotency: Delays do not grow")
	ErrName   = errors.New("idempotency: the name of the consumer is too long")
)

var errNoOutcome = errors.New("idempotency: Handle has returned a result that is neither completed, failed nor in progress")

// Decision is what becomes of a message, and how many errors it has had then.
type Decision struct {
	idempotency.Settlement
	Tries int
	// InProgress: another worker runs the operation, so this delivery counts neither as a try
	// nor as a delivery.
	InProgress bool
}

// Handled calls a handler. A panic is an error: else the message would end each process that
// gets it. So is a result without an outcome, which would bring the message again without an end.
// ErrInProgress, as of a function of idempotency.Idempotent, is the result that it stands for.
func Handled(handle func() (*idempotency.Result, error)) (result *idempotency.Result, err error) {
	err = safe.Call(func() (err error) {
		result, err = handle()
		return err
	})
	var elsewhere *idempotency.InProgressError
	if errors.As(err, &elsewhere) {
		return &idempotency.Result{Outcome: idempotency.InProgress, RetryAfter: elsewhere.RetryAfter}, nil
	}
	if err != nil || result == nil {
		return nil, err
	}
	switch result.Outcome {
	case idempotency.Completed, idempotency.Failed, idempotency.InProgress:
		return result, nil
	}
	return nil, errNoOutcome
}

// Telling calls an OnError. Its panic is logged: in a goroutine of the consumer it would end the process.
func Telling[Message any](tell func(error, Message)) func(error, Message) {
	return func(err error, message Message) {
		if panicked := safe.Call(func() error {
			tell(err, message)
			return nil
		}); panicked != nil {
			log.Print(panicked)
		}
	}
}

// Decide says what becomes of a message whose handling has ended. tries is how many errors it
// had before. Neither a result nor an error: there was nothing to do.
func (p Policy) Decide(result *idempotency.Result, err error, tries int) Decision {
	if result == nil && err == nil {
		return Decision{Settlement: idempotency.Settlement{Do: idempotency.Ack}, Tries: tries}
	}
	settlement := idempotency.Settle(result, err)
	if err != nil && settlement.Do == idempotency.Again {
		return p.AfterError(err, tries)
	}
	return Decision{settlement, tries, err == nil && result.Outcome == idempotency.InProgress}
}

// AfterError is Decide for an error that may go away.
func (p Policy) AfterError(err error, tries int) Decision {
	if tries+1 >= p.Tries {
		return Decision{Settlement: idempotency.Settlement{Do: idempotency.DeadLetter}, Tries: tries + 1}
	}
	pause := p.Delays[len(p.Delays)-1]
	if tries < len(p.Delays) {
		pause = p.Delays[tries]
	}
	var unknown *idempotency.UnknownError
	if errors.As(err, &unknown) && unknown.RetryAfter > pause {
		pause = unknown.RetryAfter
	}
	return Decision{Settlement: idempotency.Settlement{Do: idempotency.Again, After: pause}, Tries: tries + 1}
}

// Delay is the shortest of the delays that is not shorter than after, or the last.
func (p Policy) Delay(after time.Duration) time.Duration {
	for _, delay := range p.Delays {
		if delay >= after {
			return delay
		}
	}
	return p.Delays[len(p.Delays)-1]
}

// Pull fetches messages and handles so many at a time, until ctx ends or fetch fails. It
// returns after the messages under way, whose context does not end.
func Pull[Message any](ctx context.Context, atATime int,
	fetch func(free int) ([]Message, error), handle func(context.Context, Message)) error {
	slots := make(chan struct{}, atATime)
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
			<-slots
		case <-ctx.Done():
			return nil
		}
		messages, err := fetch(cap(slots) - len(slots))
		if err != nil {
			return err
		}
		for _, message := range messages {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				handle(context.WithoutCancel(ctx), message)
			})
		}
	}
	return nil
}

// Repeat calls tell again and again. stop ends that, and waits for a call under way.
func Repeat(clock idempotency.Clock, period time.Duration, tell func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for clock.Sleep(ctx, period) == nil {
			tell()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// Owns is Client.OwnsDeadLetter.
type Owns func(ctx context.Context, queue string, failure *idempotency.Result, message string) (bool, error)

// Position names a message of a broker that numbers its messages. A redelivery has
// the same Name.
type Position struct {
	Name  string
	Tries int
}

// DecideByPosition runs the operation of a message and says what becomes of the
// message: the one that owns the dead letter of a failure becomes it, the others are
// acknowledged. tell is told of errors.
func (p Policy) DecideByPosition(ctx context.Context, at Position, owns Owns, tell func(error),
	handle func() (*idempotency.Result, error)) Decision {
	result, err := Handled(handle)
	if err == nil && result != nil && idempotency.Settle(result, nil).Do == idempotency.DeadLetter && result.Record == "" {
		// A failure that this call has stored: the replay names its record.
		result, err = Handled(handle)
	}
	if err != nil {
		tell(err)
	}
	decision := p.Decide(result, err, at.Tries)
	if err != nil || decision.Do != idempotency.DeadLetter {
		return decision
	}
	return p.DecideFailure(ctx, at, result, owns, tell)
}

// DecideFailure says what becomes of a message whose operation has failed for good. failure is
// a replay.
func (p Policy) DecideFailure(ctx context.Context, at Position, failure *idempotency.Result, owns Owns,
	tell func(error)) Decision {
	owned := false
	busy, err := Handled(func() (_ *idempotency.Result, err error) {
		owned, err = owns(ctx, p.Queue, failure, at.Name)
		return nil, err
	})
	switch {
	case err != nil:
		tell(err)
		return p.AfterError(err, at.Tries)
	case owned:
		return Decision{Settlement: idempotency.Settlement{Do: idempotency.DeadLetter}, Tries: at.Tries}
	}
	return p.Decide(busy, nil, at.Tries)
}
