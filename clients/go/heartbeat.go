package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.org/idempotency/internal/safe"
)

// heartbeat extends a lease until it is stopped. lost and ctx.Err() say, after
// stop, whether the lease was lost.
type heartbeat struct {
	ctx    context.Context // the work's
	cancel context.CancelFunc
	done   chan struct{}
	lost   error
}

// startHeartbeat gives the work a context that ends when the lease is lost: when
// the server says so, or when it could not be extended before it ran out.
func (c *Client[Tx]) startHeartbeat(ctx context.Context, call *call, o *Operation, until time.Time) *heartbeat {
	b := &heartbeat{done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(ctx)
	lose := func(lost error) {
		b.lost = lost
		b.cancel() // before the hook, which may take its time
		fire(c.options.Hooks.LeaseLost, Event{Scope: o.Scope, Key: o.Key, Attempt: o.Attempt, Err: lost})
	}
	if !c.options.Clock.Now().Before(until) {
		lose(errors.New("the lease was over before its begin was answered"))
		close(b.done)
		return b
	}
	go func() {
		defer close(b.done)
		if lost := c.beat(b.ctx, call, o, until); lost != nil {
			lose(lost)
		}
	}()
	return b
}

func (b *heartbeat) stop() {
	b.cancel()
	<-b.done
}

// beat returns nil when ctx ends, and else why the lease is lost. The first beat
// comes after a third of what is left; one that failed is tried again sooner.
func (c *Client[Tx]) beat(ctx context.Context, call *call, o *Operation, until time.Time) error {
	clock := c.options.Clock
	delay := until.Sub(clock.Now()) / 3
	for clock.Sleep(ctx, delay) == nil {
		left := until.Sub(clock.Now())
		extended, err := c.extend(ctx, call, o, left)
		switch {
		case err == nil:
			until, delay = clock.Now().Add(extended), extended/3
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLeaseLost):
			return err
		case !clock.Now().Before(until):
			return fmt.Errorf("the lease could not be extended: %w", err)
		default:
			delay = until.Sub(clock.Now()) / 4
		}
	}
	return nil
}

// extend asks for a whole lease again, and gives up when the present one is over.
// It returns how long the lease runs, which a policy may shorten.
func (c *Client[Tx]) extend(ctx context.Context, call *call, o *Operation, left time.Duration) (time.Duration, error) {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = c.options.Clock.Sleep(limited, left) // or until this returns
		cancel()
	}()
	asked := c.options.Clock.Now()
	var rows []Row
	err := safe.Call(func() (err error) { // here a panic of the pool's functions would end the process
		rows, err = c.query(limited, c.sql.extendOf(o, call.lease))
		return err
	})
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.ParseFloat(*rows[0][0], 64)
	took := c.options.Clock.Now().Sub(asked)
	return time.Duration(seconds*float64(time.Second)) - took, err
}
