// Package safe calls code of the service in goroutines where a panic would end the process.
package safe

import (
	"fmt"
	"runtime/debug"
)

// Call makes an error of a panic.
func Call(code func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("idempotency: the code of the service panicked: %v\n%s", reason, debug.Stack())
		}
	}()
	return code()
}
