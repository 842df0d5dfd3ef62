package idemhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/retry"
	"example.org/idempotency/internal/safe"
)

// discarded carries an answer that is sent and not stored. Released, it is an
// idempotency.ErrNotDone.
type discarded struct {
	answer   *answer
	released bool
}

func (*discarded) Error() string { return "idemhttp: the answer is not stored" }

func (d *discarded) Is(target error) bool { return d.released && target == idempotency.ErrNotDone }

// keep decides what becomes of an answer: nil error: it is stored.
func (m *Middleware[Tx]) keep(a *answer) (idempotency.Response, error) {
	keep := m.options.Statuses(a.status)
	stored := a.stored(&m.options, keep.For)
	switch {
	case keep.As == Discarded, keep.As == Released:
		return stored, &discarded{a, keep.As == Released}
	case keep.As == Failure:
		return stored, &idempotency.Declined{Response: stored,
			RetryAfter: retry.After(a.header.Get("Retry-After"), m.client.Clock().Now())}
	}
	return stored, nil
}

// declined makes the answer of a handler that has returned a Declined.
func declined(refusal *idempotency.Declined) (*answer, error) {
	a, err := carried(refusal.Response, http.StatusUnprocessableEntity)
	if err == nil && refusal.RetryAfter != nil {
		a.header.Set("Retry-After", seconds(*refusal.RetryAfter))
	}
	return a, err
}

// record calls a handler once. It returns its answer, whether or not it is an
// error of the transaction.
func (m *Middleware[Tx]) record(e *exchange, ctx context.Context, tx Tx,
	handler Handler[Tx]) (*answer, idempotency.Response, error) {
	recorder := newRecorder(m.options.MaxResponse)
	err := safe.Call(func() error { return handler(recorder, e.with(ctx), tx) })
	var refusal *idempotency.Declined
	if errors.As(err, &refusal) {
		return m.decline(refusal)
	}
	if err != nil {
		return nil, idempotency.Response{}, err
	}
	a, err := recorder.finish()
	if err != nil {
		return nil, idempotency.Response{}, err
	}
	stored, err := m.keep(a)
	var unstored *discarded
	if errors.As(err, &unstored) {
		// it is rolled back, and an answer below 500 is a refusal: no lost attempt
		unstored.released = a.status < 500
	}
	return a, stored, err
}

// bounded refuses an answer that MaxResponse does not allow.
func (m *Middleware[Tx]) bounded(a *answer, err error) (*answer, error) {
	if err == nil && len(a.body) > m.options.MaxResponse {
		return nil, errResponseTooLarge
	}
	return a, err
}

// decline stores the bytes that are sent.
func (m *Middleware[Tx]) decline(refusal *idempotency.Declined) (*answer, idempotency.Response, error) {
	a, err := m.bounded(declined(refusal))
	if err != nil {
		return nil, idempotency.Response{}, err
	}
	stored := a.stored(&m.options, refusal.Retention)
	return a, stored, &idempotency.Declined{Response: stored, RetryAfter: refusal.RetryAfter}
}

func (m *Middleware[Tx]) transact(ctx context.Context, e *exchange, handler Handler[Tx]) (*answer, error) {
	var fresh *answer
	result, err := m.client.Transaction(ctx, e.key, e.print,
		func(ctx context.Context, tx Tx, _ idempotency.Operation) (idempotency.Response, error) {
			a, stored, err := m.record(e, ctx, tx, handler)
			if fresh = a; a == nil {
				err = m.refusal(ctx, e, err)
			}
			return stored, err
		}, m.callOptions(e)...)
	return m.conclude(ctx, e, result, err, fresh)
}

// refusal: an error of a handler that is answered below 500 is a refusal, as such an
// answer is: its rollback is no lost attempt. What may be repeated, or comes too late, goes
// on as it is.
func (m *Middleware[Tx]) refusal(ctx context.Context, e *exchange, err error) error {
	if ctx.Err() != nil || idempotency.Transient(err) {
		return err
	}
	known := m.answered(e.request, err)
	if known.answer.status >= 500 {
		return known
	}
	m.refuse(e.request, known)
	return &discarded{known.answer, true}
}

func (m *Middleware[Tx]) callOptions(e *exchange, more ...idempotency.Option) []idempotency.Option {
	options := append([]idempotency.Option{idempotency.InScope(e.scope), idempotency.WithWait(e.wait)}, m.options.Call...)
	return append(options, more...)
}

// conclude chooses between the answer of this run and the stored one.
func (m *Middleware[Tx]) conclude(ctx context.Context, e *exchange, result *idempotency.Result, err error,
	fresh *answer) (*answer, error) {
	var unstored *discarded
	switch {
	case errors.As(err, &unstored):
		return unstored.answer, nil
	case err != nil:
		return nil, err
	case result.Outcome == idempotency.InProgress:
		return nil, &idempotency.InProgressError{RetryAfter: result.RetryAfter}
	case fresh == nil || result.Replayed:
		if fresh, err = replayed(result, m.options.Marker); err != nil {
			return nil, err
		}
	}
	m.setLifetime(ctx, e, fresh)
	return fresh, nil
}

// setLifetime says until when an answer is kept, if that is a time, and a date of HTTP can
// say it. The answer is true without it, so it does not wait long for a database that hangs.
func (m *Middleware[Tx]) setLifetime(ctx context.Context, e *exchange, a *answer) {
	if m.options.Lifetime == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if until, err := m.client.ExpiresAt(ctx, e.key, m.callOptions(e)...); err == nil && !until.IsZero() &&
		until.UTC().Year() < 10000 {
		a.header.Set(m.options.Lifetime, until.UTC().Format(http.TimeFormat))
	}
}

func (m *Middleware[Tx]) lease(ctx context.Context, e *exchange, handler LeaseHandler[Tx],
	options []idempotency.Option) (*answer, error) {
	var fresh *answer
	result, err := m.client.Lease(ctx, e.key, e.print,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[Tx], error) {
			completion, a, err := m.complete(ctx, e, o, handler)
			fresh = a
			var wrong *unsent
			if errors.As(err, &wrong) {
				completion.Response, err = wrong.response(), nil
			}
			if completion.Writes != nil {
				completion.Writes = m.leasedWrites(completion.Writes, &fresh)
			}
			return completion, err
		}, append(m.callOptions(e, options...), m.reconcileCheck(e))...)
	var wrong *unsent
	switch {
	case errors.As(err, &wrong):
		err = wrong.error
	case errors.Is(err, idempotency.ErrTooLarge):
		err = fmt.Errorf("%w: %v", errResponseTooLarge, err) // to a client a 413 says that nothing was done
	}
	return m.conclude(ctx, e, result, err, fresh)
}

// reconcileCheck: a record that HTTP cannot carry would be an error in each replay, and a
// cookie would go to whoever asks.
func (m *Middleware[Tx]) reconcileCheck(e *exchange) idempotency.Option {
	return idempotency.WithReconcileCheck(func(response idempotency.Response) (idempotency.Response, error) {
		_, err := m.bounded(carried(response, http.StatusOK))
		if err != nil {
			m.options.OnError(e.request, err)
		}
		response.Headers = maps.Clone(response.Headers)
		maps.DeleteFunc(response.Headers, func(name, _ string) bool { return strings.EqualFold(name, "Set-Cookie") })
		return response, err
	})
}

// unsent is what is wrong with the answer of a handler that is done: it cannot be sent or
// stored.
type unsent struct {
	error
	retention time.Duration
}

func (u *unsent) Unwrap() error { return u.error }

// response cannot be stored either, so that the operation ends without an answer.
func (u *unsent) response() idempotency.Response {
	return idempotency.Response{Payload: u, Retention: u.retention}
}

func (u *unsent) MarshalJSON() ([]byte, error) { return nil, u }

// asUnsent marks the error of an answer, unless it is one that is not stored: its lease runs
// out. The writes of a failure are not made.
func (m *Middleware[Tx]) asUnsent(completion *idempotency.Completion[Tx], err error) error {
	status, keep := cmp.Or(completion.Code, http.StatusOK), Keep{As: Stored}
	if isFinal(status) {
		keep = m.options.Statuses(status)
	}
	switch keep.As {
	case Failure:
		completion.Writes = nil
	case Stored:
	default:
		return err
	}
	return &unsent{err, cmp.Or(completion.Retention, keep.For)}
}

// declineDone is decline for a handler under a lease.
func (m *Middleware[Tx]) declineDone(refusal *idempotency.Declined) (*answer, error) {
	a, _, err := m.decline(refusal)
	if a == nil {
		err = &unsent{err, refusal.Retention}
	}
	return a, err
}

// complete calls a handler once, and makes the bytes that are sent what is stored.
func (m *Middleware[Tx]) complete(ctx context.Context, e *exchange, o idempotency.Operation, handler LeaseHandler[Tx]) (
	completion idempotency.Completion[Tx], a *answer, err error) {
	err = safe.Call(func() (err error) {
		completion, err = handler(e.with(ctx), o)
		return err
	})
	var refusal *idempotency.Declined
	if errors.As(err, &refusal) {
		a, err = m.declineDone(refusal)
		return idempotency.Completion[Tx]{}, a, err
	}
	if err != nil {
		return completion, nil, err
	}
	retention := completion.Retention
	a, err = m.bounded(carried(completion.Response, http.StatusOK))
	if err != nil {
		err = m.asUnsent(&completion, err)
		return completion, nil, err
	}
	completion.Response, err = m.keep(a)
	if retention != 0 {
		completion.Retention = retention
	}
	return completion, a, err
}

// writes gives a refusal by the writes the bytes that are sent, too.
func (m *Middleware[Tx]) writes(writes func(context.Context, Tx) error, fresh **answer) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		err := safe.Call(func() error { return writes(ctx, tx) })
		var refusal *idempotency.Declined
		if errors.As(err, &refusal) {
			*fresh, err = m.declineDone(refusal)
		}
		return err
	}
}

func (m *Middleware[Tx]) leasedWrites(writes func(context.Context, Tx) error, fresh **answer) func(context.Context, Tx) error {
	checked := m.writes(writes, fresh)
	return func(ctx context.Context, tx Tx) error {
		err := checked(ctx, tx)
		var wrong *unsent
		if errors.As(err, &wrong) {
			return &idempotency.Declined{Response: wrong.response()}
		}
		return err
	}
}

func (m *Middleware[Tx]) transactWithoutKey(ctx context.Context, e *exchange, handler Handler[Tx]) (*answer, error) {
	var fresh *answer
	err := m.client.Run(ctx, func(ctx context.Context, tx Tx) (err error) {
		fresh, _, err = m.record(e, ctx, tx, handler)
		return err
	}, m.options.Call...)
	return refusedOrNot(fresh, err)
}

func (m *Middleware[Tx]) runWithoutKey(ctx context.Context, e *exchange, handler LeaseHandler[Tx]) (*answer, error) {
	completion, fresh, err := m.complete(ctx, e,
		idempotency.Operation{Outcome: idempotency.Acquired, Scope: e.scope, Attempt: 1}, handler)
	if err == nil && completion.Writes != nil {
		err = m.client.Run(ctx, m.writes(completion.Writes, &fresh), m.options.Call...)
	}
	return refusedOrNot(fresh, err)
}

// refusedOrNot: what was declined or discarded has an answer all the same.
func refusedOrNot(fresh *answer, err error) (*answer, error) {
	var refusal *idempotency.Declined
	var unstored *discarded
	if errors.As(err, &refusal) || errors.As(err, &unstored) {
		return fresh, nil
	}
	return fresh, err
}
