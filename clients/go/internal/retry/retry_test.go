package retry

import (
	"math"
	"testing"
	"time"
)

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	now := time.Date(2026, 11, 3, 9, 5, 0, 0, time.UTC)
	hundredYears := 36_500 * 24 * time.Hour
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, "3153599999": hundredYears - time.Second, "99999999999": hundredYears,
		"Sun, 03 Nov 2120 09:05:00 GMT": 34_333 * 24 * time.Hour, "Fri, 31 Dec 9999 23:59:59 GMT": hundredYears,
		"Tue, 03 Nov 2026 10:05:00 GMT": time.Hour, "Tue, 03 Nov 2020 09:05:00 GMT": 0,
		"": -1, "soon": -1, "-7": -1, "+7": -1,
	} {
		after := After(value, now)
		if (after == nil) != (want < 0) || after != nil && *after != want {
			t.Errorf("%q: got %v, want %v", value, after, want)
		}
	}
}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	Backoff(1, math.MaxInt64, 100)
	for attempt := 1; attempt < 200; attempt++ {
		limit := time.Minute
		if attempt == 1 {
			limit = 40 * time.Second
		}
		for range 100 {
			if got := Backoff(40*time.Second, time.Minute, attempt); got < 0 || got > limit {
				t.Fatal(attempt, got)
			}
		}
	}
}
