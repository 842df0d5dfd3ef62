// Package option has the defaults of options.
package option

import "time"

// Or is the value of an option, or its default where it is not above 0.
func Or[T int | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}
