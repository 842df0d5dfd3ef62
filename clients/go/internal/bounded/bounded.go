// Package bounded ends calls of drivers that do not look at their context.
package bounded

import "context"

// Call returns when ctx ends, even if the driver does not: where the network hangs, some
// wait for their answer for good. A panic is the caller's.
func Call[T any](ctx context.Context, do func() (T, error)) (T, error) {
	var value T
	var err error
	var reason any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { reason = recover() }()
		value, err = do()
	}()
	select {
	case <-done:
		if reason != nil {
			panic(reason)
		}
		return value, err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
