package idempotency

import (
	"context"
	"sync"
	"time"
)

// Clock is where the package's time comes from: every sleep, the heartbeat and
// the end of a lease. Only the bounds of a network's delay, as for ROLLBACK, are
// the machine's: a test that moves its clock must not break a connection.
type Clock interface {
	// Now is the present time.
	Now() time.Time
	// Sleep returns nil after d, or the context's error if that ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// SystemClock is the machine's clock.
type SystemClock struct{}

func (SystemClock) Now() time.Time { return time.Now() }

func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// FakeClock is a clock for tests: its time moves by Advance only. It does not
// move the server's clock.
type FakeClock struct {
	mutex    sync.Mutex
	changed  *sync.Cond
	now      time.Time
	sleepers map[chan struct{}]time.Time
}

// NewFakeClock makes a clock that shows the given time.
func NewFakeClock(now time.Time) *FakeClock {
	c := &FakeClock{now: now, sleepers: map[chan struct{}]time.Time{}}
	c.changed = sync.NewCond(&c.mutex)
	return c
}

// Now is the time that the clock shows.
func (c *FakeClock) Now() time.Time {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.now
}

// Sleep returns when Advance has moved the clock by d, or the context ends.
func (c *FakeClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	woken := make(chan struct{})
	c.mutex.Lock()
	c.sleepers[woken] = c.now.Add(d)
	c.changed.Broadcast()
	c.mutex.Unlock()
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		c.mutex.Lock()
		defer c.mutex.Unlock()
		delete(c.sleepers, woken)
		c.changed.Broadcast()
		return ctx.Err()
	}
}

// Advance moves the clock and wakes each sleeper whose time has come.
func (c *FakeClock) Advance(d time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.now = c.now.Add(d)
	for woken, at := range c.sleepers {
		if !at.After(c.now) {
			close(woken)
			delete(c.sleepers, woken)
		}
	}
	c.changed.Broadcast()
}

// AwaitSleepers returns when n callers, or more, are in Sleep.
func (c *FakeClock) AwaitSleepers(n int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for len(c.sleepers) < n {
		c.changed.Wait()
	}
}
