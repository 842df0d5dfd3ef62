package http_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/internal/tests/kit"
	"github.com/jackc/pgx/v5"
)

func testReplayByteForByte(t *testing.T, s site) {
	key := newKey()
	options := idemhttp.Options{Headers: []string{"X-*"}, Marker: "Idempotent-Replayed"}
	handler := s.transaction(middleware(options), func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Set-Cookie", "secret=1")
		w.Header().Set("X-Id", "7")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(201)
		_, _ = w.Write(append(body, 0, 0xff))
		return insert(r.Context(), tx, key)
	})
	for i, request := range []string{`{"a": 1, "b": 2}`, `{"b": 2.0, "a":1}`} {
		status, header, body := send(t, handler, "POST", key, request)
		if status != 201 || body != "{\"a\": 1, \"b\": 2}\x00\xff" || header.Get("X-Id") != "7" ||
			header.Get("Content-Encoding") != "gzip" {
			t.Fatalf("%d %v %q", status, header, body)
		}
		replayed := i > 0
		if (header.Get("Set-Cookie") == "") != replayed || (header.Get("Cache-Control") == "") != replayed ||
			(header.Get("Idempotent-Replayed") == "true") != replayed || header.Get("Idempotency-Replayed") != "" || header[""] != nil {
			t.Fatal(header)
		}
	}
	expect(t, key, 1, 1)
}

func testLeaseReplayByteForByte(t *testing.T, s site) {
	key := newKey()
	m := middleware(idemhttp.Options{Headers: []string{"X-Id"}})
	handler := s.lease(m, answers(idempotency.Response{Code: 201, Payload: map[string]any{"aa": 1, "b": "<&>"},
		Headers: map[string]string{"X-Id": "7", "X-Other": "8", "Set-Cookie": "secret=1"}}))
	for _, replayed := range []bool{false, true} {
		header, body := expectStatus(t, 201, handler, "POST", key, "")
		if body != `{"aa":1,"b":"<&>"}` || header.Get("X-Id") != "7" || header.Get("Content-Type") != "application/json" ||
			(header.Get("X-Other") == "") != replayed || (header.Get("Set-Cookie") == "") != replayed {
			t.Fatal(header, body)
		}
	}
}

// A replay has what the policy has in its place.
func testTooLargeIsSentWhole(t *testing.T, s site) {
	key, scope, whole := newKey(), newKey(), strings.Repeat("x", 300)
	execute(t, `SELECT idem_set_policy($1, max_response_size => 200, too_large_response => '{"at":"/1?a&b"}')`, scope)
	m := middleware(idemhttp.Options{Scope: func(*http.Request, string) string { return scope }})
	handler := s.transaction(m, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		w.WriteHeader(201)
		_, _ = io.WriteString(w, whole)
		return insert(r.Context(), tx, key)
	})
	for _, want := range []string{whole, `{"at":"/1?a&b"}`} {
		header, body := expectStatus(t, 201, handler, "POST", key, "")
		if body != want || (header.Get("Content-Type") == "application/json") != (want != whole) {
			t.Error(header, body)
		}
	}
	expect(t, key, 1, 1)
}

// What is kept longer, or shorter, than the status says.
func testRetention(t *testing.T, s site) {
	m := middleware(idemhttp.Options{Statuses: func(int) idemhttp.Keep { return idemhttp.Keep{As: idemhttp.Stored, For: time.Hour} }})
	for own, want := range map[time.Duration]string{0: "01:00:00", 2 * time.Hour: "02:00:00"} {
		key := newKey()
		expectStatus(t, 200, s.lease(m, answers(idempotency.Response{Retention: own})), "POST", key, "")
		execute(t, `SELECT 1 / (date_trunc('minute', expires_at - updated_at + interval '1 second') = $2::text::interval)::int
			FROM idempotency_store WHERE idempotency_key = $1`, key, want)
	}
}

// What is stored is the answer, not what this run would have said.
func testAnswerOfAnotherRun(t *testing.T, s site) {
	var handler http.Handler
	runs := 0
	work := func(r *http.Request, o idempotency.Operation) (completion, error) {
		if runs++; runs == 1 {
			execute(t, "UPDATE idempotency_store SET lease_expires_at = now() WHERE idempotency_key = $1", o.Key)
			if header, body := expectStatus(t, 200, handler, "POST", o.Key, ""); body != "2" || header.Get("Idempotency-Replayed") != "" {
				t.Error(header, body)
			}
			return completion{Response: idempotency.Response{Payload: 1}}, nil
		}
		return completion{Response: idempotency.Response{Payload: 2}}, nil
	}
	found := idempotency.WithReconcile(func(context.Context, idempotency.Operation) (idempotency.Reconciled, error) {
		return idempotency.Done(idempotency.Response{Body: []byte("2"), Payload: "not this"}), nil
	})
	for _, options := range [][]idempotency.Option{nil, {found}} {
		runs, handler = 0, s.lease(middleware(idemhttp.Options{}), work, options...)
		if header, body := expectStatus(t, 200, handler, "POST", newKey(), ""); body != "2" ||
			header.Get("Idempotency-Replayed") != "true" {
			t.Error(runs, header, body)
		}
	}
}

// The outcome is unknown then, and the next attempt reconciles again: what is stored can be sent.
func testReconciledAnswers(t *testing.T, s site) {
	key := newKey()
	var found idempotency.Response
	var failed error
	told := 0
	options := idemhttp.Options{MaxResponse: 4, OnError: func(*http.Request, error) { told++ }}
	handler := s.lease(middleware(options), func(*http.Request, idempotency.Operation) (completion, error) {
		return completion{}, errors.New("unclear")
	}, idempotency.WithReconcile(func(context.Context, idempotency.Operation) (idempotency.Reconciled, error) {
		return idempotency.Done(found), failed
	}))
	expectStatus(t, 500, handler, "POST", key, "")
	execute(t, "UPDATE idempotency_store SET lease_expires_at = now() WHERE idempotency_key = $1", key)
	for _, found = range append(notCarried, idempotency.Response{Payload: "long"}) {
		expectProblem(t, 503, handler, key)
	}
	if told != 2+len(notCarried) {
		t.Error(told)
	}
	found, failed = idempotency.Response{}, errors.New("planned") // what comes with an error is no answer
	expectProblem(t, 503, handler, key)
	failed = nil
	found = idempotency.Response{Code: 201, Body: []byte("1234"),
		Headers: map[string]string{"ETag": "\"caf\u00e9\"\t", "set-cookie": "a=b"}}
	for range 2 {
		if header, _ := expectStatus(t, 201, handler, "POST", key, ""); header.Get("Set-Cookie") != "" || header.Get("ETag") == "" {
			t.Error(header)
		}
	}
}

// HTTP has no such status, name or value.
var notCarried = []idempotency.Response{{Code: -1}, {Code: 199}, {Code: 1000}, {Headers: map[string]string{"a b": ""}},
	{Headers: map[string]string{"": ""}}, {Headers: map[string]string{"ETag": "a\r\nb"}}, {Headers: map[string]string{"ETag": "\x7f"}}}

// The handler is done, so no request repeats it.
func testUnstorableAnswers(t *testing.T, s site) {
	execute(t, "SELECT idem_set_policy('unstorable small', max_response_size => 200)")
	scope := func(r *http.Request, _ string) string {
		return strings.TrimSpace("unstorable " + r.Header.Get("X-Scope"))
	}
	large, tooLarge := []byte(strings.Repeat("x", 1001)), "The answer is too large to be stored"
	for name, c := range map[string]struct {
		response idempotency.Response
		scope    string
		title    string
	}{
		"limit": {idempotency.Response{Body: large}, "", tooLarge}, "server": {idempotency.Response{Body: large[:900]}, "small", tooLarge},
		"status": {idempotency.Response{Code: 99}, "", "Internal Server Error"}, "JSON": {idempotency.Response{Payload: func() {}}, "", "Internal Server Error"},
	} {
		for end, written := range map[string]int{"answer": 1, "failure": 0, "declined": 0, "declining writes": 0} {
			runs, key := 0, newKey()
			inserts := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", key)
				return err
			}
			options := idemhttp.Options{MaxResponse: 1000, Scope: scope, OnError: func(_ *http.Request, err error) {
				if strings.Contains(err.Error(), "cannot marshal") {
					t.Error(name, end, err)
				}
			}}
			if end == "failure" {
				options.Statuses = func(int) idemhttp.Keep { return idemhttp.Keep{As: idemhttp.Failure} }
			}
			handler := s.lease(middleware(options), func(*http.Request, idempotency.Operation) (completion, error) {
				runs++
				refusal := &idempotency.Declined{Response: c.response}
				switch end {
				case "declined":
					return completion{Writes: inserts}, refusal
				case "declining writes":
					return completion{Writes: func(ctx context.Context, tx pgx.Tx) error { return errors.Join(refusal, inserts(ctx, tx)) }}, nil
				}
				return completion{Response: c.response, Writes: inserts}, nil
			})
			for _, title := range []string{c.title, "The answer could not be stored", "The answer could not be stored"} {
				if _, body := expectProblem(t, 500, handler, key, "X-Scope", c.scope); !strings.Contains(body, title) {
					t.Error(name, end, body)
				}
			}
			if end == "failure" && name == "status" {
				written = 1 // which Statuses is not asked about
			}
			expect(t, key, written, 1)
			if runs != 1 {
				t.Error(name, end, runs)
			}
		}
	}
	// It is kept away for as long as it asked for, or the option says.
	long := 90 * 24 * time.Hour
	refusal := &idempotency.Declined{Response: idempotency.Response{Body: large, Retention: long}}
	declines := func(context.Context, pgx.Tx) error { return refusal }
	for name, leased := range map[string]leaseWork{
		"answer": answers(refusal.Response), "option": answers(idempotency.Response{Code: 201, Body: large}),
		"declined": func(*http.Request, idempotency.Operation) (completion, error) { return completion{}, refusal },
		"writes": func(*http.Request, idempotency.Operation) (completion, error) {
			return completion{Writes: declines}, nil
		},
	} {
		key := newKey()
		handler := s.lease(middleware(idemhttp.Options{MaxResponse: 1000, Optional: true, Statuses: func(status int) idemhttp.Keep {
			return idemhttp.Keep{As: idemhttp.Stored, For: map[int]time.Duration{201: long}[status]}
		}}), leased)
		expectProblem(t, 500, handler, key)
		var days int
		kit.Must(t, pool.QueryRow(context.Background(),
			"SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int FROM idempotency_store WHERE idempotency_key = $1", key).Scan(&days))
		if days != 90 {
			t.Error(name, days)
		}
		expectProblem(t, 500, handler, "")
	}
	key := newKey()
	expectProblem(t, 500, s.lease(middleware(idemhttp.Options{MaxResponse: 1000}),
		answers(idempotency.Response{Code: 503, Body: large})), key)
	var status string
	kit.Must(t, pool.QueryRow(context.Background(),
		"SELECT status FROM idempotency_store WHERE idempotency_key = $1", key).Scan(&status))
	if status != "PENDING" {
		t.Error(status)
	}
}

// It is an error before anything is stored, and so is what no replay could say. net/http would panic,
// or send an informational answer and then 200.
func testAnswersThatHTTPDoesNotCarry(t *testing.T, s site) {
	m := middleware(idemhttp.Options{})
	for _, wrong := range notCarried {
		key := newKey()
		expectProblem(t, 500, s.transaction(m, fails(&idempotency.Declined{Response: wrong})), key)
		expect(t, key, 0, 0)
		expectProblem(t, 500, s.lease(m, answers(wrong)), key)
	}
	key := newKey()
	handler := s.transaction(m, inserts(key))
	expectStatus(t, 200, handler, "POST", key, "")
	execute(t, "UPDATE idempotency_store SET response_code = 101 WHERE idempotency_key = $1", key)
	expectProblem(t, 500, handler, key)
}

// An answer says until when it is kept, the first as each replay. One that is not stored
// does not.
func testLifetime(t *testing.T, s site) {
	transactionKey, leaseKey, status := newKey(), newKey(), 429
	m := middleware(idemhttp.Options{Lifetime: "Idempotency-Expires", Statuses: func(status int) idemhttp.Keep {
		if status == 429 {
			return idemhttp.Keep{As: idemhttp.Released}
		}
		return idemhttp.DefaultStatuses(status)
	}})
	for key, handler := range map[string]http.Handler{
		transactionKey: s.transaction(m, func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
			w.WriteHeader(status)
			return nil
		}),
		leaseKey: s.lease(m, func(*http.Request, idempotency.Operation) (completion, error) {
			return completion{Response: idempotency.Response{Code: status}}, nil
		}),
	} {
		status = 429
		if _, header, _ := send(t, handler, "POST", key, ""); header.Get("Idempotency-Expires") != "" {
			t.Fatal(header)
		}
		status = 201
		for _, replayed := range []string{"", "true"} {
			_, header, _ := send(t, handler, "POST", key, "")
			var until time.Time
			err := pool.QueryRow(context.Background(),
				"SELECT expires_at FROM idempotency_store WHERE idempotency_key = $1", key).Scan(&until)
			if err != nil || header.Get("Idempotency-Expires") != until.UTC().Format(http.TimeFormat) ||
				header.Get("Idempotency-Replayed") != replayed {
				t.Fatal(header, until, err)
			}
		}
		for end, want := range map[string]string{"infinity": "", "10000-01-01Z": "",
			"9999-12-31 23:59:59Z": "Fri, 31 Dec 9999 23:59:59 GMT"} {
			execute(t, "UPDATE idempotency_store SET expires_at = $2::text::timestamptz WHERE idempotency_key = $1", key, end)
			header, _ := expectStatus(t, 201, handler, "POST", key, "")
			if header.Get("Idempotency-Replayed") != "true" || header.Get("Idempotency-Expires") != want {
				t.Fatal(end, header)
			}
		}
	}
}
