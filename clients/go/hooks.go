package idempotency

import (
	"log"
	"runtime/debug"
	"time"
)

// Event is what a hook is called with. It never has a request or a response.
type Event struct {
	// Scope and Key name the operation.
	Scope, Key string
	// Attempt is the number of the operation's attempt; 0: unknown.
	Attempt int
	// Err is the error behind LeaseLost, Mismatch and Retried, or nil.
	Err error
	// Delay is how long Retried waits before it repeats the call.
	Delay time.Duration
}

// Hooks are called for metrics and logs, in the goroutine of the call, or of the
// heartbeat. nil is no hook. A hook that panics is logged, and changes nothing.
type Hooks struct {
	// Acquired: the caller owns the operation and runs it.
	Acquired func(Event)
	// Replayed: the answer was taken from the store.
	Replayed func(Event)
	// InProgress: somebody else owns the operation.
	InProgress func(Event)
	// Mismatch: the key was used before with a different request.
	Mismatch func(Event)
	// TakenOver: the lease of an earlier attempt ran out.
	TakenOver func(Event)
	// LeaseLost: the lease ran out, or somebody took the operation over.
	LeaseLost func(Event)
	// Declined: the work declined, and the failure is stored.
	Declined func(Event)
	// Retried: the call is repeated after 40001, 40P01 or a lost connection.
	Retried func(Event)
}

func fire(hook func(Event), event Event) {
	if hook == nil {
		return
	}
	defer func() {
		if reason := recover(); reason != nil {
			log.Printf("idempotency: a hook panicked: %v\n%s", reason, debug.Stack())
		}
	}()
	hook(event)
}

// begun calls the hooks that fit what a begin answered.
func (h *Hooks) begun(o *Operation) {
	event := Event{Scope: o.Scope, Key: o.Key, Attempt: o.Attempt}
	switch {
	case o.Outcome == Acquired:
		fire(h.Acquired, event)
	case o.Outcome == InProgress:
		fire(h.InProgress, event)
	case o.Outcome == Mismatch:
		fire(h.Mismatch, event)
	default:
		fire(h.Replayed, event)
	}
	if o.Outcome == Acquired && o.TakenOver {
		fire(h.TakenOver, event)
	}
}
