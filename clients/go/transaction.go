package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"time"
)

// Work is what Client.Transaction runs. tx is the open transaction: the work
// neither commits nor ends it. The Response is stored with what tx wrote.
type Work[Tx any] func(ctx context.Context, tx Tx, operation Operation) (Response, error)

// rollbackTimeout is how long a connection may take to roll back.
const rollbackTimeout = 5 * time.Second

// Transaction runs the work at most once for the key, in one transaction with
// the record of its answer. key has 1 to 255 characters. request is what came
// with it, marshalled as JSON: another request with the same key is
// ErrKeyReused. nil: no check.
//
// The Result is the work's answer or the stored one. Its Outcome is InProgress
// while another transaction or lease owns the operation.
//
// Where the work returns a *Declined, what it wrote is rolled back, and the
// refusal is stored: the Result's Outcome is Failed. Any other error rolls
// everything back, stores nothing, and is returned as it is. 40001, 40P01 and a
// lost connection repeat the whole, work included, at most Retry.Attempts times;
// then the last error is returned. Other errors: ErrBadArgument, ErrForbidden,
// ErrTooLarge, ErrNotReady, ErrCommitRolledBack, ErrNotOwned, and those of the driver.
func (c *Client[Tx]) Transaction(ctx context.Context, key string, request any, work Work[Tx],
	options ...Option) (*Result, error) {
	call, err := c.newCall(key, request, options)
	if err != nil {
		return nil, err
	}
	var result *Result
	err = c.await(ctx, call.wait, func() (_ Outcome, err error) {
		result, err = c.repeat(ctx, call, func(afterLoss bool) (*Result, error) {
			return c.transact(ctx, call, work, afterLoss)
		})
		if err != nil {
			return "", err
		}
		return result.Outcome, nil
	})
	if err != nil {
		return nil, err
	}
	if result.Outcome == InProgress {
		fire(c.options.Hooks.InProgress, Event{Scope: call.scope, Key: call.key, Attempt: result.Attempt})
	}
	return result, nil
}

// transact is one attempt. The session of a lost connection may still be ending, so the begin
// waits for it a little.
func (c *Client[Tx]) transact(ctx context.Context, call *call, work Work[Tx], afterLoss bool) (result *Result, err error) {
	wait := time.Duration(0)
	if afterLoss {
		wait = c.options.Retry.Cap
	}
	opening := append(limitLost(call), c.sql.beginOf(call, 0, wait), Statement{SQL: setSavepoint})
	declined := false
	err = c.inTransaction(ctx, call.level, opening, ofBegin, func(tx Tx, rows []Row) ([]Statement, error) {
		o, err := c.begun(rows)
		if err != nil {
			return nil, err
		}
		if o.Outcome != Acquired {
			result = resultOf(o)
			return nil, nil
		}
		response, err := work(ctx, tx, *o)
		if err == nil {
			var closing []Statement
			result, closing, err = c.completed(call, o, response)
			return closing, err
		}
		var refusal *Declined
		if declined = errors.As(err, &refusal); !declined {
			return nil, c.takeBack(o, err)
		}
		var closing []Statement
		result, closing, err = c.declined(call, o, refusal)
		return append([]Statement{{SQL: toSavepoint}}, closing...), err
	})
	if errors.Is(err, ErrKeyReused) {
		fire(c.options.Hooks.Mismatch, Event{Scope: call.scope, Key: call.key, Err: err})
	}
	if err != nil {
		return nil, err
	}
	if declined {
		fire(c.options.Hooks.Declined, Event{Scope: call.scope, Key: call.key, Attempt: result.Attempt})
	}
	return result, nil
}

// takenBack is an ErrNotDone, with the statements after which the server counts the
// rollback as no lost attempt.
type takenBack struct {
	error
	statements []Statement
}

func (c *Client[Tx]) takeBack(o *Operation, err error) error {
	if !errors.Is(err, ErrNotDone) {
		return err
	}
	return &takenBack{err, []Statement{{SQL: toSavepoint}, c.sql.releaseOf(o)}}
}

// begun reads the answer to a begin and tells the hooks, but not yet of one that is
// in progress: that may be asked again.
func (c *Client[Tx]) begun(rows []Row) (*Operation, error) {
	o, err := readBegun(rows)
	if err == nil && o.Outcome != InProgress {
		c.options.Hooks.begun(o)
	}
	return o, err
}

func readBegun(rows []Row) (*Operation, error) {
	if len(rows) != 1 {
		return nil, errors.New("idempotency: idem_begin returned no row")
	}
	return readOperation(rows[0])
}

func (c *Client[Tx]) completed(call *call, o *Operation, response Response) (*Result, []Statement, error) {
	payload, err := asJSON(response.Payload)
	if err != nil {
		return nil, nil, err
	}
	statement, err := endOf(c.sql.complete, call, o.Fence, response, payload)
	return o.ran(Completed, response, payload), []Statement{statement}, err
}

func (c *Client[Tx]) declined(call *call, o *Operation, refusal *Declined) (*Result, []Statement, error) {
	payload, err := asJSON(refusal.Payload)
	if err != nil {
		return nil, nil, err
	}
	statement, err := c.sql.failOf(call, o.Fence, refusal, payload)
	result := o.ran(Failed, refusal.Response, payload)
	if refusal.RetryAfter != nil {
		after := max(*refusal.RetryAfter, 0)
		result.RetryAfter = &after
	}
	return result, []Statement{statement}, err
}

// Run runs the work in a transaction without any operation, for a request that
// has no key. Nothing is repeated. ErrNotOwned: the work has ended the transaction, and what
// it did may be rolled back.
func (c *Client[Tx]) Run(ctx context.Context, work func(ctx context.Context, tx Tx) error, options ...Option) error {
	call, err := c.newCall("", nil, options)
	if err != nil {
		return err
	}
	_, err = unmarked(c.inTransaction(ctx, call.level, []Statement{{SQL: setSavepoint}}, asItIs,
		func(tx Tx, _ []Row) ([]Statement, error) {
			return []Statement{{SQL: endSavepoint}}, work(ctx, tx)
		}))
	return err
}

// inTransaction opens a transaction with the opening statements, runs the body
// with the rows of the first, and commits with the statements that the body
// returns. Whatever goes wrong, panics included, rolls back. It gives each error of
// the opening to meaning.
func (c *Client[Tx]) inTransaction(ctx context.Context, level sql.IsolationLevel, opening []Statement, meaning func(error) error,
	body func(tx Tx, rows []Row) ([]Statement, error)) (err error) {
	conn, err := c.database.Acquire(ctx)
	if err != nil {
		return ofStatement(err)
	}
	defer conn.Release()
	committed := false
	defer func() {
		if !committed {
			err = c.undo(ctx, conn, err)
		}
	}()
	rows, err := conn.Begin(ctx, level, opening...)
	if err != nil {
		return deadOnArrival(meaning(ofStatement(err)))
	}
	closing, err := body(conn.Tx(), rows)
	if err != nil {
		return err
	}
	if err = c.commit(ctx, conn, closing); err != nil {
		return err
	}
	committed = true
	return nil
}

// commit knows a transaction that has failed by the closing statements: any one
// answers 25P02 there, whereas COMMIT rolls back, and not every driver tells.
func (c *Client[Tx]) commit(ctx context.Context, conn Conn[Tx], closing []Statement) error {
	err := conn.Commit(ctx, closing...)
	if SQLState(err) == "25P02" {
		return &Error{ErrCommitRolledBack, err}
	}
	return ofStatement(err)
}

// undo rolls back. A connection that cannot do that is gone, and so that was the
// reason of the error; but not of what the extension has answered: lib/pq gives a connection up
// whose transaction the work has ended. ErrNotDone is the work's own word, whatever became of the
// connection: nothing is repeated.
func (c *Client[Tx]) undo(ctx context.Context, conn Conn[Tx], err error) error {
	limited, cancel := context.WithTimeout(ctx, rollbackTimeout)
	defer cancel()
	if back, ok := err.(*takenBack); ok {
		_ = conn.Rollback(limited, back.statements...)
		return back.error
	}
	gone := conn.Rollback(limited)
	switch over := ctx.Err(); {
	case over != nil:
		return &Error{over, err} // drivers say that the connection is closed, or the statement cancelled
	case gone == nil || isContextError(err) || errors.Is(err, ErrConnectionLost) || byState[SQLState(err)] != nil:
		return err
	}
	return ConnectionLost(err)
}

// stale marks the loss of a connection that was dead when it came from the pool. A
// connection that could not be made is none, nor is one that was waited for in vain.
// No caller gets the mark: it is not for the operation in whose work the call was.
type stale struct{ error }

func (s *stale) Unwrap() error { return s.error }

func deadOnArrival(err error) error {
	var operation *net.OpError
	if errors.As(err, &operation) && (operation.Op == "dial" || operation.Timeout()) {
		return err
	}
	state := SQLState(err)
	if errors.Is(err, ErrConnectionLost) && state != "57P03" && !strings.HasPrefix(state, "08") {
		return &stale{err}
	}
	return err
}

func unmarked(err error) (wasStale bool, _ error) {
	if s, isStale := err.(*stale); isStale {
		return true, s.error
	}
	return false, err
}
