package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.org/idempotency"
)

func TestHeadersThatAreStored(t *testing.T) {
	options := Options{Headers: []string{"X-Id", "x-own-*", "*Cookie", "Set-*"}}
	for name, want := range map[string]bool{
		"Content-Type": true, "content-encoding": true, "Content-Language": true, "Location": true, "ETag": true, "Vary": false,
		"x-id": true, "X-Identity": false, "X-Own-": true, "X-OWN-1": true, "X-Ow": false, "Set-Cookie": false, "set-cookie": false, "Set-X": true,
	} {
		if options.isStored(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestDefaultStatuses(t *testing.T) {
	for status, want := range map[int]Kind{199: Discarded, 200: Stored, 399: Stored, 400: Failure, 404: Failure, 499: Failure, 500: Discarded,
		401: Discarded, 403: Discarded, 408: Discarded, 409: Discarded, 425: Discarded, 429: Discarded} {
		if got := DefaultStatuses(status); got != (Keep{As: want}) {
			t.Errorf("%d: %v", status, got)
		}
	}
}

func TestHowLongARequestWaits(t *testing.T) {
	for _, c := range []struct {
		prefer []string
		max    time.Duration
		want   time.Duration
	}{
		{nil, 0, time.Minute}, {[]string{"wait=3"}, 0, 3 * time.Second}, {[]string{"respond-async", "a=1, Wait = 3"}, 0, 3 * time.Second},
		{[]string{"wait=30"}, 0, 10 * time.Second}, {[]string{"wait=30"}, 20 * time.Second, 20 * time.Second}, {[]string{"wait=0"}, 0, 0},
		{[]string{"wait=3"}, -1, time.Minute}, {[]string{"waits=3"}, 0, time.Minute}, {[]string{"wait"}, 0, time.Minute},
		{[]string{`x; y, wait = "3" ; z`}, 0, 3 * time.Second}, {[]string{"x; wait=3"}, 0, time.Minute},
		{[]string{"wait=-3"}, 0, time.Minute}, {[]string{"wait=3000000000"}, 0, time.Minute},
	} {
		m := Middleware[any]{options: Options{Wait: time.Minute, MaxWait: c.max}}
		m.options.setDefaults()
		if got := m.waitOf(&http.Request{Header: http.Header{"Prefer": c.prefer}}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	m := Middleware[any]{options: Options{Wait: -1}} // it does not wait
	if got := m.waitOf(&http.Request{}); got != 0 {
		t.Errorf("%v", got)
	}
}

type state string

func (s state) Error() string    { return "secret" }
func (s state) SQLState() string { return string(s) }

func TestProblems(t *testing.T) {
	for err, want := range map[error]int{
		errNoKey: 400, errTwoKeys: 400, errMalformedKey: 400, errRequestBroken: 400, errBodyUnclear: 411, errNotJSON: 400, idempotency.ErrBadArgument: 400,
		errNobody: 401, idempotency.ErrForbidden: 403, errInProgress: 409, idempotency.ErrLeaseLost: 409, errRequestTooLarge: 413,
		idempotency.ErrTooLarge: 413, idempotency.ErrKeyReused: 422, errBodyTaken: 500, errResponseTooLarge: 500, errUpgraded: 500,
		errTimeout: 503, idempotency.ErrConnectionLost: 503, state("25006"): 503, state("53300"): 503, state("55P03"): 503, state("57014"): 503,
		state("40001"): 503, state("23505"): 500, errors.New("any"): 500, error(&idempotency.UnknownError{}): 503,
	} {
		problem := problemOf(fmt.Errorf("secret: %w", err), "Own-Key")
		if problem.Status != want || problem.Title == "" || problem.Detail == "" ||
			(problem.RetryAfter > 0) != (want == 409 || want == 503) {
			t.Errorf("%v: %+v", err, problem)
		}
	}
	if problem := problemOf(&idempotency.UnknownError{RetryAfter: 90 * time.Second}, ""); problem.RetryAfter != 90*time.Second {
		t.Error(problem)
	}
	if problem := problemOf(errResponseTooLarge, ""); problem.Title != "The answer is too large to be stored" {
		t.Error(problem)
	}
}

// As net/http has it, the first status counts, and what is written or flushed before has 200.
func TestTheFirstStatusCounts(t *testing.T) {
	for name, first := range map[string]func(http.ResponseWriter){
		"write": func(w http.ResponseWriter) { _, _ = w.Write(nil) },
		"flush": func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"controller": func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		},
	} {
		r := newRecorder(10)
		first(r)
		r.WriteHeader(500)
		if a, err := r.finish(); err != nil || a.status != 200 || a.header.Get("Content-Type") != "" {
			t.Error(name, a, err)
		}
	}
}
