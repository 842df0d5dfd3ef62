package idempotency

import (
	"context"
	"errors"
	"strings"
	"time"

	"example.org/idempotency/internal/bounded"
	"example.org/idempotency/internal/safe"
)

// Completion is how the work of a lease ends: with an answer, and with the
// writes that belong to it.
type Completion[Tx any] struct {
	// Response is stored.
	Response
	// Writes are made in one transaction with the record of the answer; nil: none.
	// They are repeated after 40001, 40P01 and a lost connection.
	Writes func(ctx context.Context, tx Tx) error
}

// LeasedWork is what Client.Lease runs. ctx ends when the lease is lost. No
// connection is held meanwhile. If operation.TakenOver, an earlier attempt may
// have done the work, in part or whole.
type LeasedWork[Tx any] func(ctx context.Context, operation Operation) (Completion[Tx], error)

// Reconciled is what a reconcile function has found out. Make it with Done,
// NotDone or Unknown.
type Reconciled struct {
	state      reconciledState
	response   Response
	retryAfter time.Duration
}

type reconciledState int

const (
	isUnknown reconciledState = iota
	isDone
	isNotDone
)

// Done: the earlier attempt took effect, and this is its answer.
func Done(response Response) Reconciled { return Reconciled{state: isDone, response: response} }

// NotDone: the earlier attempt had no effect, so the work may run.
func NotDone() Reconciled { return Reconciled{state: isNotDone} }

// Unknown: nobody knows yet. The caller gets an UnknownError with that time.
func Unknown(retryAfter time.Duration) Reconciled { return Reconciled{retryAfter: retryAfter} }

// Lease runs work that cannot sit in one transaction. The begin commits at once
// and the connection goes back to the pool. While the work runs, a heartbeat
// extends the lease at each third of it. When the lease is lost, the work's
// context ends. key and request are as for Transaction.
//
// The work's answer and its writes commit together, under the fence of the
// attempt. If the lease is lost and the operation has ended already, as after an
// answer that was lost, the stored answer is returned, whatever the work returns.
//
// The work does not begin if the lease, or ctx, is over by then: the operation is released.
//
// An answer of the work that cannot be stored ends the operation without one, and with the
// writes: no attempt repeats it. So does such a *Declined, without writes. The error says what
// was wrong, and calls after it get ErrUnstorable. After such an answer of a reconcile function the lease runs out.
//
// If the work returns a *Declined, that is stored as a failure. If it returns
// ErrNotDone, alone or wrapped, the operation is released at once. After any
// other error nobody knows what has happened outside, so the lease runs out, and
// the next begin gets TakenOver. The error is returned as it is.
//
// If TakenOver, and there is a reconcile function (WithReconcile), it decides: see
// Reconciled. Errors: as of Transaction, and ErrLeaseLost, ErrUnknown,
// ErrUnstorable.
func (c *Client[Tx]) Lease(ctx context.Context, key string, request any, work LeasedWork[Tx],
	options ...Option) (*Result, error) {
	call, err := c.newCall(key, request, options)
	if err != nil {
		return nil, err
	}
	o, asked, err := c.beginLease(ctx, call)
	if err != nil {
		return nil, err
	}
	if o.Outcome != Acquired {
		return known(o)
	}
	held := &holding[Tx]{client: c, call: call, operation: o, until: asked.Add(o.LeaseLeft)}
	completion, err := held.run(ctx, work)
	return held.end(ctx, completion, err)
}

// beginLease begins, and waits for another owner. It returns when it asked, too: the
// lease may run since then, however long its answer took.
func (c *Client[Tx]) beginLease(ctx context.Context, call *call) (*Operation, time.Time, error) {
	var o *Operation
	var asked time.Time
	err := c.await(ctx, call.wait, func() (_ Outcome, err error) {
		o, asked, err = c.beginLeaseNow(ctx, call)
		if err != nil {
			return "", err
		}
		return o.Outcome, nil
	})
	if err != nil {
		return nil, asked, err
	}
	c.options.Hooks.begun(o)
	return o, asked, nil
}

// beginLeaseNow begins in a transaction of its own. If the answer is lost, the
// repetition finds the lease that it cannot know to be its own: InProgress.
func (c *Client[Tx]) beginLeaseNow(ctx context.Context, call *call) (*Operation, time.Time, error) {
	var o *Operation
	var asked time.Time
	_, err := c.repeat(ctx, call, func(bool) (*Result, error) {
		asked = c.options.Clock.Now()
		rows, err := c.queryWith(ctx, c.sql.beginOf(call, call.lease, 0), deadOnArrival)
		err = ofBegin(err)
		if errors.Is(err, ErrKeyReused) {
			fire(c.options.Hooks.Mismatch, Event{Scope: call.scope, Key: call.key, Err: err})
		}
		if err == nil {
			o, err = readBegun(rows)
		}
		return nil, err
	})
	return o, asked, err
}

// query runs one statement in a transaction of its own.
func (c *Client[Tx]) query(ctx context.Context, statement Statement) ([]Row, error) {
	return c.queryWith(ctx, statement, asItIs)
}

func asItIs(err error) error { return err }

// queryWith gives each error of the statement, but none of Acquire, to meaning.
func (c *Client[Tx]) queryWith(ctx context.Context, statement Statement, meaning func(error) error) ([]Row, error) {
	return bounded.Call(ctx, func() ([]Row, error) {
		conn, err := c.database.Acquire(ctx)
		if err != nil {
			return nil, ofStatement(err)
		}
		defer conn.Release()
		rows, err := conn.Query(ctx, statement)
		return rows, meaning(ofStatement(err))
	})
}

// Progress leaves a note of how far the work of a lease came: anything but nil that can
// be marshalled. It is stored when this returns. If the lease runs out, the next owner
// gets it: TakenOver is true, and Payload is the note of the attempt before. Repeated
// as Transaction is. ErrLeaseLost: somebody else owns the operation.
func (c *Client[Tx]) Progress(ctx context.Context, o Operation, note any) error {
	value, err := asJSON(note)
	if err == nil && value == nil {
		err = errors.New("idempotency: a note is a JSON value, and not nil")
	}
	if err != nil {
		return err
	}
	call, err := c.newCall(o.Key, nil, []Option{InScope(o.Scope)})
	if err != nil {
		return err
	}
	_, err = c.repeat(ctx, call, func(bool) (*Result, error) {
		_, err := c.query(ctx, c.sql.progressOf(&o, value))
		return nil, err
	})
	return err
}

// ExpiresAt is until when the answer of a key is kept; zero: there is none, or it is kept
// for good.
func (c *Client[Tx]) ExpiresAt(ctx context.Context, key string, options ...Option) (time.Time, error) {
	call, err := c.newCall(key, nil, options)
	if err != nil {
		return time.Time{}, err
	}
	stored, err := c.lookup(ctx, call)
	if err != nil {
		return time.Time{}, err
	}
	return stored.ExpiresAt, nil
}

// lookup reads the record of a call, all of which is zero where there is none.
func (c *Client[Tx]) lookup(ctx context.Context, call *call) (stored *Operation, err error) {
	_, err = c.repeat(ctx, call, func(bool) (*Result, error) {
		rows, err := c.query(ctx, c.sql.lookupOf(call))
		if err == nil {
			stored, err = readOperation(rows[0])
		}
		return nil, err
	})
	return stored, err
}

// holding is one leased attempt of this process.
type holding[Tx any] struct {
	client    *Client[Tx]
	call      *call
	operation *Operation
	until     time.Time // when the lease that the begin gave is over
	lost      bool      // the hook has been called
	idle      bool      // this attempt did not work: nothing has happened outside
	worked    bool      // its work was called
	refused   bool      // its answer cannot be stored
}

// run reconciles and works under the heartbeat.
func (h *holding[Tx]) run(ctx context.Context, work LeasedWork[Tx]) (Completion[Tx], error) {
	beat := h.client.startHeartbeat(ctx, h.call, h.operation, h.until)
	defer beat.stop()
	completion, err := h.reconcileAndWork(beat.ctx, work)
	beat.stop()
	h.lost = beat.lost != nil
	if err != nil && h.lost {
		return completion, &Error{ErrLeaseLost, err}
	}
	return completion, err
}

func (h *holding[Tx]) reconcileAndWork(ctx context.Context, work LeasedWork[Tx]) (Completion[Tx], error) {
	if h.operation.TakenOver && h.call.reconcile != nil {
		found, err := h.call.reconcile(ctx, *h.operation)
		if err == nil && found.state == isDone && h.call.checkFound != nil {
			found.response, err = h.call.checkFound(found.response)
		}
		switch {
		case err != nil:
			return h.rest(&UnknownError{RetryAfter: time.Second, Cause: err})
		case found.state == isDone:
			return Completion[Tx]{Response: found.response}, nil
		case found.state == isUnknown:
			return h.rest(&UnknownError{RetryAfter: max(found.retryAfter, 0)})
		}
	}
	if err := ctx.Err(); err != nil { // somebody else may work by now, or nobody waits
		return h.rest(err)
	}
	h.worked = true
	return work(ctx, *h.operation)
}

// rest ends an attempt that did not work.
func (h *holding[Tx]) rest(err error) (Completion[Tx], error) {
	h.idle = true
	return Completion[Tx]{}, err
}

// end stores how the attempt ended. It goes on when the caller's context ends:
// what has happened outside must not go unrecorded.
func (h *holding[Tx]) end(ctx context.Context, completion Completion[Tx], err error) (*Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.call.lease+rollbackTimeout)
	defer cancel()
	if err == nil {
		var result *Result
		if result, err = h.complete(ctx, completion); err == nil {
			return result, nil
		}
		if h.worked && h.refused {
			return h.withoutAnswer(ctx, completion, err)
		}
	}
	var refusal *Declined
	switch {
	case h.idle:
		h.release(ctx)
	case errors.As(err, &refusal):
		return h.decline(ctx, refusal)
	case errors.Is(err, ErrNotDone):
		h.release(ctx)
	}
	if h.lost {
		return h.replay(ctx, err)
	}
	return nil, err
}

func (h *holding[Tx]) complete(ctx context.Context, completion Completion[Tx]) (*Result, error) {
	c := h.client
	result, closing, err := h.closing(func() (*Result, []Statement, error) {
		return c.completed(h.call, h.operation, completion.Response)
	})
	if err != nil {
		return nil, err
	}
	written := false
	result, err = h.store(ctx, result, func() error {
		if completion.Writes == nil {
			_, err := c.query(ctx, closing[0])
			return err
		}
		// The end comes first: a stale fence is refused before anything is written. The savepoint is for the writes that end
		// the transaction: they may roll the end back, and COMMIT would not say so.
		return c.inTransaction(ctx, h.call.level, append(closing, Statement{SQL: setSavepoint}), asItIs,
			func(tx Tx, _ []Row) ([]Statement, error) {
				written = true
				return []Statement{{SQL: endSavepoint}}, completion.Writes(ctx, tx)
			})
	})
	h.refused = !written && isOfAnswer(err)
	return result, err
}

// closing makes the statement of an end: a MarshalJSON may panic.
func (h *holding[Tx]) closing(of func() (*Result, []Statement, error)) (result *Result, closing []Statement, err error) {
	err = safe.Call(func() (err error) {
		result, closing, err = of()
		return err
	})
	h.refused = err != nil
	return result, closing, err
}

// isOfAnswer: the server does not take it, as it cannot read it, or it is more than it holds.
func isOfAnswer(err error) bool {
	state := SQLState(err)
	return errors.Is(err, ErrTooLarge) || errors.Is(err, ErrBadArgument) || strings.HasPrefix(state, "22") ||
		strings.HasPrefix(state, "54")
}

// codeWithoutAnswer is the code of what is stored in place of an answer that cannot be.
const codeWithoutAnswer = 500

// withoutAnswer ends work that was done, with its writes, so that no attempt repeats it. It
// returns what was wrong with the answer, unless another end is stored: that of the writes,
// or of who had the lease meanwhile.
func (h *holding[Tx]) withoutAnswer(ctx context.Context, completion Completion[Tx], wrong error) (*Result, error) {
	retention := completion.Retention
	if checkTimes(retention) != nil {
		retention = 0
	}
	completion.Response = Response{Code: codeWithoutAnswer, Retention: retention}
	result, err := h.complete(ctx, completion)
	var refusal *Declined
	switch {
	case err == nil && result.Replayed:
		return result, nil
	case errors.As(err, &refusal):
		return h.decline(ctx, refusal)
	case errors.Is(err, ErrNotDone):
		h.release(ctx)
		return nil, err
	}
	return nil, wrong
}

// known is the stored answer, or ErrUnstorable where there is none.
func known(o *Operation) (*Result, error) {
	if o.Outcome == Completed && o.Code == codeWithoutAnswer && o.Headers == nil && o.Payload == nil && o.Body == nil {
		return nil, ErrUnstorable
	}
	return resultOf(o), nil
}

// decline ends work that was done, too, so a refusal that cannot be stored is as such an answer.
func (h *holding[Tx]) decline(ctx context.Context, refusal *Declined) (*Result, error) {
	c := h.client
	result, closing, err := h.closing(func() (*Result, []Statement, error) {
		return c.declined(h.call, h.operation, refusal)
	})
	if err == nil {
		result, err = h.store(ctx, result, func() error {
			_, err := c.query(ctx, closing[0])
			return err
		})
		h.refused = isOfAnswer(err)
	}
	if h.refused {
		return h.withoutAnswer(ctx, Completion[Tx]{Response: refusal.Response}, err)
	}
	if err == nil && !result.Replayed {
		fire(c.options.Hooks.Declined, h.event(nil))
	}
	return result, err
}

// store repeats an end by fence.
func (h *holding[Tx]) store(ctx context.Context, result *Result, end func() error) (*Result, error) {
	_, err := h.client.repeat(ctx, h.call, func(bool) (*Result, error) { return nil, end() })
	if errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrNotOwned) {
		return h.replay(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// replay: what is stored is the answer, whichever attempt came to its end. lost is returned
// where there is no end yet, or the database does not say.
func (h *holding[Tx]) replay(ctx context.Context, lost error) (*Result, error) {
	c := h.client
	stored, err := c.lookup(ctx, h.call)
	if err != nil {
		return nil, lost
	}
	// if it began at another time, the key is used anew, maybe for another request
	ours := stored.CreatedAt.Equal(h.operation.CreatedAt)
	if !h.lost && errors.Is(lost, ErrLeaseLost) && (!ours || stored.Attempt != h.operation.Attempt || stored.Outcome == InProgress) {
		fire(c.options.Hooks.LeaseLost, h.event(lost))
	}
	if !ours || (stored.Outcome != Completed && stored.Outcome != Failed) {
		return nil, lost
	}
	c.options.Hooks.begun(stored)
	return known(stored)
}

// release takes the begin back. If that fails, the lease runs out: the same, only
// later.
func (h *holding[Tx]) release(ctx context.Context) {
	_, _ = h.client.repeat(ctx, h.call, func(bool) (*Result, error) {
		_, err := h.client.query(ctx, h.client.sql.releaseOf(h.operation))
		return nil, err
	})
}

func (h *holding[Tx]) event(err error) Event {
	return Event{Scope: h.call.scope, Key: h.call.key, Attempt: h.operation.Attempt, Err: err}
}
