package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
)

// The handler declines, or a lease's work does, or its writes.
func testDeclinedAndRetryAfter(t *testing.T, s site) {
	m := middleware(idemhttp.Options{})
	refusal := idempotency.Decline(429, map[string]int{"b": 1, "a": 2}).Again(time.Hour)
	for name, handler := range map[string]http.Handler{
		"handler": s.transaction(m, fails(refusal)),
		"work":    s.lease(m, func(*http.Request, idempotency.Operation) (completion, error) { return completion{}, refusal }),
		"writes": s.lease(m, func(*http.Request, idempotency.Operation) (completion, error) {
			return completion{Writes: func(context.Context, pgx.Tx) error { return refusal }}, nil
		}),
	} {
		key := newKey()
		for _, want := range []string{"", "true"} {
			header, body := expectStatus(t, 429, handler, "POST", key, "")
			if body != `{"a":2,"b":1}` || !isAbout(header, 3600) || header.Get("Idempotency-Replayed") != want {
				t.Fatal(name, header, body)
			}
		}
	}
}

// isAbout says whether Retry-After is that, or up to ten seconds have passed since.
func isAbout(header http.Header, seconds int) bool {
	again, err := strconv.Atoi(header.Get("Retry-After"))
	return err == nil && again > seconds-10 && again <= seconds
}

func testFailures(t *testing.T, s site) {
	for name, c := range map[string]struct {
		want    int
		handler work
	}{
		"error":     {500, fails(errors.New("secret"))},
		"panic":     {500, func(http.ResponseWriter, *http.Request, pgx.Tx) error { panic("secret") }},
		"too large": {500, func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error { return stream(w) }},
		"upgrade": {500, func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
			_, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				t.Error("hijacked")
			}
			return nil
		}},
		"serialization": {503, func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '40001'; END $$")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			key, told := newKey(), 0
			handler := s.transaction(middleware(idemhttp.Options{OnError: func(*http.Request, error) { told++ }}),
				func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					if err := insert(r.Context(), tx, key); err != nil {
						return err
					}
					return c.handler(w, r, tx)
				})
			header, body := expectProblem(t, c.want, handler, key)
			if strings.Contains(body, "secret") || (told == 1) != (c.want == 500) ||
				(header.Get("Retry-After") == "1") != (c.want == 503) {
				t.Fatalf("%d %v %q", told, header, body)
			}
			expect(t, key, 0, 0)
		})
	}
}

// stream writes until it is stopped, and does not say that it was.
func stream(w io.Writer) error {
	for part := make([]byte, 1000); ; {
		if _, err := w.Write(part); err != nil {
			return nil
		}
	}
}

// An answer below 500 that is not stored is no lost attempt, be it the handler's, or that
// of an error, by itself or by Problem. One of 500 is. Problem is asked once about each error.
func testNoRefusalIsALostAttempt(t *testing.T, s site) {
	scope, asked, failed := newKey(), 0, 0
	execute(t, "SELECT idem_set_policy($1, max_lost_attempts => 1)", scope)
	soldOut, broken := errors.New("sold out"), errors.New("broken")
	var status int
	var wrong error
	handler := s.transaction(middleware(idemhttp.Options{
		Scope: func(*http.Request, string) string { return scope },
		Statuses: func(status int) idemhttp.Keep {
			if status == 404 || status == 500 {
				return idemhttp.Keep{As: idemhttp.Released}
			}
			return idemhttp.DefaultStatuses(status)
		},
		OnError: func(_ *http.Request, err error) {
			if failed++; !errors.Is(err, soldOut) && err != broken {
				t.Errorf("not the handler's error: %v", err)
			}
		},
		Problem: func(_ *http.Request, err error, problem *idemhttp.Problem) {
			asked++
			if errors.Is(err, soldOut) {
				problem.Status = 409
			}
		},
	}), func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
		if wrong == nil {
			w.WriteHeader(status)
		}
		return wrong
	})
	first, second := newKey(), newKey()
	for _, one := range []struct {
		key    string
		status int
		wrong  error
		want   int
	}{{first, 429, nil, 429}, {first, 403, nil, 403}, {first, 404, nil, 404}, {first, 0, fmt.Errorf("no: %w", soldOut), 409},
		{first, 0, idempotency.ErrKeyReused, 422}, {first, 0, &idempotency.InProgressError{}, 409}, {first, 0, soldOut, 409},
		{first, 0, broken, 500}, {first, 0, soldOut, 422}, {second, 500, nil, 500}, {second, 201, nil, 422}} {
		status, wrong = one.status, one.wrong
		expectStatus(t, one.want, handler, "POST", one.key, "")
	}
	// After a lost attempt the next one is ended before the handler.
	if asked != 5 || failed != 3 {
		t.Fatal(asked, failed)
	}
}

// Problem changes no repeat, and where it panics, that is the server's to recover.
func testProblemIsAskedOfAnErrorThatIsFinal(t *testing.T, s site) {
	panics, runs := false, 0
	handler := s.transaction(middleware(idemhttp.Options{Problem: func(_ *http.Request, _ error, problem *idemhttp.Problem) {
		if problem.Status = 409; panics {
			panic("own")
		}
	}}), func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if runs++; runs == 2 {
			return nil
		}
		_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
		if panics {
			err = errors.New("broken")
		}
		return err
	})
	if expectStatus(t, 200, handler, "POST", newKey(), ""); runs != 2 {
		t.Fatal(runs)
	}
	panics = true
	defer func() {
		if recover() != "own" {
			t.Fatal("no panic came out")
		}
	}()
	send(t, handler, "POST", newKey(), "")
}

// The work runs in a goroutine of its own, where a panic would end the process.
func testFunctionsThatPanic(t *testing.T, s site) {
	key, told := newKey(), 0
	m := middleware(idemhttp.Options{Statuses: func(int) idemhttp.Keep { panic("planned") },
		OnError: func(*http.Request, error) { told++ }})
	for _, handler := range []http.Handler{
		s.transaction(m, inserts(key)),
		s.lease(m, answers(idempotency.Response{})),
	} {
		expectProblem(t, 500, handler, key)
	}
	if told != 2 {
		t.Errorf("told of %d errors", told)
	}
}

func testTimeout(t *testing.T, s site) {
	key, clock := newKey(), idempotency.NewFakeClock(time.Unix(0, 0))
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Clock: clock})
	entered, leave, left := make(chan bool), make(chan bool), make(chan bool)
	handler := s.transaction(idemhttp.New(client, idemhttp.Options{Principal: idemhttp.Anyone, Timeout: time.Minute}),
		func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			defer close(left)
			err := insert(r.Context(), tx, key)
			close(entered)
			<-leave
			return err
		})
	go func() {
		<-entered
		clock.AwaitSleepers(1)
		clock.Advance(time.Minute)
	}()
	expectProblem(t, 503, handler, key)
	// the handler has not returned, and yet the key is free
	again := s.transaction(middleware(idemhttp.Options{Wait: time.Minute}), inserts(key))
	expectStatus(t, 200, again, "POST", key, "")
	close(leave)
	<-left
	expect(t, key, 1, 1)
}

func testLeaseFailures(t *testing.T, s site) {
	none := completion{}
	for name, c := range map[string]struct {
		err              error
		code, want       int
		effects, records int
	}{
		"not done":  {idempotency.ErrNotDone, 0, 503, 0, 0},
		"by error":  {fmt.Errorf("%w: %w", idempotency.ErrNotDone, errors.New("secret")), 0, 500, 0, 0},
		"unclear":   {errors.New("secret"), 0, 500, 0, 1},
		"declined":  {idempotency.Decline(402, nil), 0, 402, 0, 1},
		"code 404":  {nil, 404, 404, 0, 1},
		"code 502":  {nil, 502, 502, 0, 1},
		"released":  {nil, 429, 429, 0, 0},
		"code 409":  {nil, 409, 409, 0, 1},
		"code 429":  {nil, 429, 429, 0, 1},
		"code 0":    {nil, 0, 200, 1, 1},
		"from 2 up": {nil, 299, 299, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			options := idemhttp.Options{}
			if name == "released" {
				options.Statuses = func(int) idemhttp.Keep { return idemhttp.Keep{As: idemhttp.Released} }
			}
			handler := s.lease(middleware(options), func(*http.Request, idempotency.Operation) (completion, error) {
				if c.err != nil {
					return none, c.err
				}
				return completion{Response: idempotency.Response{Code: c.code},
					Writes: func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, key) }}, nil
			})
			header, body := expectStatus(t, c.want, handler, "POST", key, "")
			if c.want != 500 && c.err != idempotency.ErrNotDone && body != "" || c.want == 503 && !isAbout(header, 1) {
				t.Fatal(body, header)
			}
			if name == "unclear" { // the lease runs out
				if header, _ := expectProblem(t, 409, handler, key); !isAbout(header, 30) {
					t.Fatal(header)
				}
			}
			expect(t, key, c.effects, c.records)
		})
	}
}
