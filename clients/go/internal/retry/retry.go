// Package retry says how long to wait before something is tried again.
package retry

import (
	"math/rand"
	"net/http"
	"strconv"
	"time"
)

// longest is what the server takes.
const longest = 36_500 * 24 * time.Hour

// After reads a Retry-After, in seconds or as a date. nil: it is neither.
func After(value string, now time.Time) *time.Duration {
	var after time.Duration
	if n, err := strconv.ParseUint(value, 10, 63); err == nil {
		after = time.Duration(min(n, uint64(longest/time.Second))) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		after = min(max(date.Sub(now), 0), longest)
	} else {
		return nil
	}
	return &after
}

// Backoff is a random part ("full jitter") of base, which doubles with each attempt from the
// first on, up to the cap.
func Backoff(base, cap time.Duration, attempt int) time.Duration {
	if base < cap>>(attempt-1) {
		cap = base << (attempt - 1)
	}
	return time.Duration(rand.Float64() * float64(cap))
}
