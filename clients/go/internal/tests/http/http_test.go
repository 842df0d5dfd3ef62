package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemgin"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/internal/tests/kit"
	"example.org/idempotency/pgxv5"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var pool *pgxpool.Pool

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	gin.SetMode(gin.TestMode)
	pool, _ = kit.Connect() // Main tells of an error
	kit.Main(m, "CREATE TABLE IF NOT EXISTS effect (key text NOT NULL)")
}

var newKey = kit.NewKey

type (
	wrapper    = *idemhttp.Middleware[pgx.Tx]
	work       = idemhttp.Handler[pgx.Tx]
	leaseWork  = idemhttp.LeaseHandler[pgx.Tx]
	completion = idempotency.Completion[pgx.Tx]
)

// site is a service with one route, on one of the frameworks.
type site struct {
	name        string
	transaction func(wrapper, work) http.Handler
	lease       func(wrapper, leaseWork, ...idempotency.Option) http.Handler
}

var sites = []site{{
	"net/http",
	func(m wrapper, h work) http.Handler { return m.Transaction("/route", h) },
	func(m wrapper, h leaseWork, o ...idempotency.Option) http.Handler { return m.Lease("/route", h, o...) },
}, {
	"gin",
	func(m wrapper, h work) http.Handler {
		return onGin(idemgin.Transaction(m, func(c *gin.Context, tx pgx.Tx) error { return h(c.Writer, c.Request, tx) }))
	},
	func(m wrapper, h leaseWork, o ...idempotency.Option) http.Handler {
		return onGin(idemgin.Lease(m, func(c *gin.Context, op idempotency.Operation) (completion, error) { return h(c.Request, op) }, o...))
	},
}}

func onGin(handler gin.HandlerFunc) http.Handler {
	engine := gin.New()
	engine.Any("/route", handler, func(*gin.Context) { panic("the next handler ran") })
	return engine
}

// TestMiddleware plays on each framework what the cases of clients/conformance do not.
func TestMiddleware(t *testing.T) {
	for _, s := range sites {
		for name, test := range map[string]func(*testing.T, site){
			"ReplayByteForByte": testReplayByteForByte, "LeaseReplayByteForByte": testLeaseReplayByteForByte, "TooLargeIsSentWhole": testTooLargeIsSentWhole,
			"DeclinedAndRetryAfter": testDeclinedAndRetryAfter,
			"Failures":              testFailures, "WithoutKey": testWithoutKey, "BodyIsNotReadWithoutKey": testBodyIsNotReadWithoutKey,
			"Nobody": testNobody, "NoRefusalIsALostAttempt": testNoRefusalIsALostAttempt,
			"ProblemIsAskedOfAnErrorThatIsFinal": testProblemIsAskedOfAnErrorThatIsFinal, "Lifetime": testLifetime,
			"Services": testServices, "BodyThatWasRead": testBodyThatWasRead, "OwnFingerprint": testOwnFingerprint,
			"BrokenUploads": testBrokenUploads, "Timeout": testTimeout, "LeaseFailures": testLeaseFailures,
			"Retention": testRetention, "AnswerOfAnotherRun": testAnswerOfAnotherRun,
			"FunctionsThatPanic": testFunctionsThatPanic, "ReconciledAnswers": testReconciledAnswers,
			"AnswersThatHTTPDoesNotCarry": testAnswersThatHTTPDoesNotCarry, "UnstorableAnswers": testUnstorableAnswers,
		} {
			t.Run(s.name+"/"+name, func(t *testing.T) { test(t, s) })
		}
	}
}

func middleware(options idemhttp.Options) wrapper {
	if options.Principal == nil {
		options.Principal = idemhttp.Anyone
	}
	return idemhttp.New(idempotency.New(pgxv5.Pool(pool), idempotency.Options{}), options)
}

// send gives what a client gets: status, headers, body.
func send(t *testing.T, handler http.Handler, method, key, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	request := httptest.NewRequest(method, "/route", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Header(), recorder.Body.String()
}

// expectStatus is a send whose answer must have that status. It gives the rest.
func expectStatus(t *testing.T, want int, handler http.Handler, method, key, body string, headers ...string) (http.Header, string) {
	t.Helper()
	status, header, answer := send(t, handler, method, key, body, headers...)
	if status != want {
		t.Fatal(status, header, answer)
	}
	return header, answer
}

// expectProblem is a POST whose answer must be a problem of that status.
func expectProblem(t *testing.T, want int, handler http.Handler, key string, headers ...string) (http.Header, string) {
	t.Helper()
	status, header, body := send(t, handler, "POST", key, "", headers...)
	isProblem(t, want, status, header, body)
	if header.Get("Link") != "" || !strings.Contains(body, `"type":"about:blank"`) {
		t.Fatal(header, body)
	}
	return header, body
}

func insert(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", key)
	return err
}

// inserts is a handler that leaves one effect.
func inserts(key string) work {
	return func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return insert(r.Context(), tx, key) }
}

// answers is work with a lease that leaves no effect.
func answers(response idempotency.Response) leaseWork {
	return func(*http.Request, idempotency.Operation) (completion, error) {
		return completion{Response: response}, nil
	}
}

// fails is work that ends with that error.
func fails(err error) work {
	return func(http.ResponseWriter, *http.Request, pgx.Tx) error { return err }
}

func expect(t *testing.T, key string, effects, records int) {
	t.Helper()
	var got, stored int
	kit.Must(t, pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM effect WHERE key = $1),
		(SELECT count(*) FROM idempotency_store WHERE idempotency_key = $1)`, key).Scan(&got, &stored))
	if got != effects || stored != records {
		t.Fatalf("%d effects and %d records, want %d and %d", got, stored, effects, records)
	}
}

func execute(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := pool.Exec(context.Background(), statement, args...)
	kit.Must(t, err)
}

func isProblem(t *testing.T, want, status int, header http.Header, body string) {
	t.Helper()
	var problem idemhttp.Problem
	if err := json.Unmarshal([]byte(body), &problem); err != nil || status != want || problem.Status != want ||
		header.Get("Content-Type") != "application/problem+json" || problem.Title == "" || problem.Detail == "" {
		t.Fatalf("got %d %v %s, want a problem %d", status, header, body, want)
	}
}

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
		if status != 201 || body != "{\"a\": 1, \"b\": 2}\x00\xff" || header.Get("X-Id") != "7" || header.Get("Content-Encoding") != "gzip" {
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
		if header, body := expectStatus(t, 200, handler, "POST", newKey(), ""); body != "2" || header.Get("Idempotency-Replayed") != "true" {
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
	found = idempotency.Response{Code: 201, Body: []byte("1234"), Headers: map[string]string{"ETag": "\"caf\u00e9\"\t", "set-cookie": "a=b"}}
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
	expectProblem(t, 500, s.lease(middleware(idemhttp.Options{MaxResponse: 1000}), answers(idempotency.Response{Code: 503, Body: large})), key)
	var status string
	kit.Must(t, pool.QueryRow(context.Background(), "SELECT status FROM idempotency_store WHERE idempotency_key = $1", key).Scan(&status))
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
			if strings.Contains(body, "secret") || (told == 1) != (c.want == 500) || (header.Get("Retry-After") == "1") != (c.want == 503) {
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

func testWithoutKey(t *testing.T, s site) {
	mark := newKey()
	note := inserts(mark)
	handler := s.transaction(middleware(idemhttp.Options{Optional: true, Skip: func(r *http.Request) bool { return r.Header.Get("Skip") != "" },
		MakeKey: func(r *http.Request) string { return r.Header.Get("Made") }}), note)
	runs := 0
	for _, c := range [][]string{{"POST", ""}, {"GET", mark}, {"GET", `mal"formed`}, {"POST", mark, "Skip", "1"}} {
		expectStatus(t, 200, handler, c[0], c[1], "", c[2:]...)
		runs++
	}
	expect(t, mark, runs, 0)
	for i := 0; i < 2; i++ {
		send(t, handler, "POST", "", "", "Made", mark)
	}
	expect(t, mark, runs+1, 1)
	expectProblem(t, 400, handler, `mal"formed`)
	expectProblem(t, 400, handler, `mal"formed`, "Made", mark)
	expectStatus(t, 200, handler, "POST", newKey(), "", "Made", mark) // its own key counts
	runs++
	made := s.transaction(middleware(idemhttp.Options{MakeKey: func(*http.Request) string { return mark }}), note)
	if header, _ := expectStatus(t, 200, made, "POST", "", ""); header.Get("Idempotency-Replayed") != "true" {
		t.Error(header)
	}
	for _, status := range []int{404, 503} {
		m := middleware(idemhttp.Options{})
		expectStatus(t, status, s.transaction(m, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			w.WriteHeader(status)
			return note(w, r, tx)
		}), "GET", "", "")
		for _, err := range []error{nil, idempotency.Decline(status, nil)} {
			expectStatus(t, status, s.lease(m, func(r *http.Request, _ idempotency.Operation) (completion, error) {
				return completion{Response: idempotency.Response{Code: status},
					Writes: func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, mark) }}, err
			}), "GET", "", "")
		}
	}
	expectStatus(t, 201, s.lease(middleware(idemhttp.Options{}), answers(idempotency.Response{Code: 201})), "GET", "", "")
	expect(t, mark, runs+1, 1)
}

// The handler of a request without a key reads the body as it comes: here the client sends
// the rest when the handler has got the beginning.
func testBodyIsNotReadWithoutKey(t *testing.T, s site) {
	mark, begun := newKey(), make(chan bool)
	m := middleware(idemhttp.Options{MaxRequest: 4, Skip: func(*http.Request) bool { return true }})
	read := func(r *http.Request) (string, error) {
		part := make([]byte, 5)
		_, err := io.ReadFull(r.Body, part)
		close(begun)
		rest, failure := io.ReadAll(r.Body)
		return string(part) + string(rest), errors.Join(err, failure)
	}
	for _, handler := range []http.Handler{
		s.transaction(m, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			text, err := read(r)
			_, _ = w.Write([]byte(text))
			return errors.Join(err, insert(r.Context(), tx, mark))
		}),
		s.lease(m, func(r *http.Request, _ idempotency.Operation) (completion, error) {
			text, err := read(r)
			return completion{Response: idempotency.Response{Body: []byte(text)},
				Writes: func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, mark) }}, err
		}),
	} {
		begun = make(chan bool)
		body, client := io.Pipe()
		go func() {
			_, _ = client.Write([]byte("first"))
			<-begun
			_, _ = client.Write([]byte(" second"))
			_ = client.Close()
		}()
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("POST", "/route", body))
		if recorder.Code != 200 || recorder.Body.String() != "first second" {
			t.Fatal(recorder.Code, recorder.Body)
		}
	}
	expect(t, mark, 2, 0)
}

func testNobody(t *testing.T, s site) {
	tenant := func(r *http.Request) string { return r.Header.Get("X-Tenant") }
	for _, options := range []idemhttp.Options{{Principal: tenant},
		{Principal: tenant, Scope: func(*http.Request, string) string { return "of everybody" }},
		{Scope: func(r *http.Request, _ string) string { return tenant(r) }}} {
		key := newKey()
		handler := s.transaction(middleware(options), inserts(key))
		send(t, handler, "POST", key, "", "X-Tenant", "a")
		if header, _ := expectProblem(t, 401, handler, key); header.Get("Idempotency-Replayed") != "" {
			t.Fatal(header)
		}
		expect(t, key, 1, 1)
		if options.Principal != nil { // asked first: nobody learns of the key
			expectProblem(t, 401, handler, "")
			expectProblem(t, 401, handler, "", "Idempotency-Key", `"`)
		}
	}
}

// Who asks has to be known, or the whole scope: an oversight would give clients the
// answers of others.
func TestWithoutPrincipal(t *testing.T) {
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{})
	defer func() {
		if reason := fmt.Sprint(recover()); !strings.Contains(reason, "idemhttp.Anyone") {
			t.Fatal(reason)
		}
		idemhttp.New(client, idemhttp.Options{Scope: func(*http.Request, string) string { return "own" }})
	}()
	idemhttp.New(client, idemhttp.Options{})
	t.Fatal("there is a middleware")
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
			err := pool.QueryRow(context.Background(), "SELECT expires_at FROM idempotency_store WHERE idempotency_key = $1", key).Scan(&until)
			if err != nil || header.Get("Idempotency-Expires") != until.UTC().Format(http.TimeFormat) ||
				header.Get("Idempotency-Replayed") != replayed {
				t.Fatal(header, until, err)
			}
		}
		for end, want := range map[string]string{"infinity": "", "10000-01-01Z": "", "9999-12-31 23:59:59Z": "Fri, 31 Dec 9999 23:59:59 GMT"} {
			execute(t, "UPDATE idempotency_store SET expires_at = $2::text::timestamptz WHERE idempotency_key = $1", key, end)
			header, _ := expectStatus(t, 201, handler, "POST", key, "")
			if header.Get("Idempotency-Replayed") != "true" || header.Get("Idempotency-Expires") != want {
				t.Fatal(end, header)
			}
		}
	}
}

// Two services on one database do not get each other's answers.
func testServices(t *testing.T, s site) {
	for _, options := range []idemhttp.Options{{Principal: idemhttp.Anyone}, {Scope: func(*http.Request, string) string { return "own" }}} {
		key := newKey()
		for _, service := range []string{"a", "b", "a"} {
			client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: service})
			handler := s.transaction(idemhttp.New(client, options), inserts(key))
			expectStatus(t, 200, handler, "POST", key, "")
		}
		expect(t, key, 2, 2)
	}
}

// Who reads the body first hides it from the middleware.
func testBodyThatWasRead(t *testing.T, s site) {
	const form, multipart = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
	const parts = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"
	readAll := func(r *http.Request) { _, _ = io.ReadAll(r.Body) }
	for name, c := range map[string]struct {
		kind, body string
		first      func(*http.Request)
		length     int64
		want       int
	}{
		"form":             {form, "a=1", func(r *http.Request) { r.FormValue("a") }, 0, 500},
		"form in chunks":   {form, "a=1", func(r *http.Request) { r.FormValue("a") }, -1, 500},
		"multipart":        {multipart, parts, func(r *http.Request) { r.FormValue("a") }, -1, 500},
		"JSON":             {"application/json", "{}", readAll, 0, 500},
		"a part":           {"application/json", "[1]", func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 1)) }, 0, 500},
		"JSON in chunks":   {"application/json", "{}", readAll, -1, 400},
		"nothing was read": {"application/json", "{}", func(r *http.Request) { r.FormValue("a") }, 0, 200},
		"an empty form":    {form, "", func(r *http.Request) { r.FormValue("a") }, 0, 200},
		"chunks, unread":   {"application/json", "{}", func(r *http.Request) {}, -1, 200},
		"form, unread":     {form, "a=1", func(r *http.Request) {}, 0, 200},
		"too large":        {form, strings.Repeat("a", 101), func(r *http.Request) {}, 0, 413},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			handler := s.transaction(middleware(idemhttp.Options{MaxRequest: 100, DescribedBy: "https://example.org/keys",
				OnError: func(*http.Request, error) {}}), inserts(key))
			before := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.length < 0 {
					r.ContentLength = c.length
				}
				c.first(r)
				handler.ServeHTTP(w, r)
			})
			header, body := expectStatus(t, c.want, before, "POST", key, c.body, "Content-Type", c.kind)
			if c.want == 200 {
				expect(t, key, 1, 1)
				return
			}
			isProblem(t, c.want, c.want, header, body)
			if header.Get("Link") != `<https://example.org/keys>; rel="describedby"` || !strings.Contains(body, `"type":"https://example.org/keys"`) {
				t.Fatal(header, body)
			}
			expect(t, key, 0, 0)
		})
	}
}

// A method in lower case is the same method: routers may let it pass.
func TestMethodInLowerCase(t *testing.T) {
	key := newKey()
	handler := middleware(idemhttp.Options{}).Transaction("/route", inserts(key))
	for i, method := range []string{"post", "POST", "Post"} {
		header, _ := expectStatus(t, 200, handler, method, key, "")
		if (header.Get("Idempotency-Replayed") == "true") != (i > 0) {
			t.Fatal(method, header)
		}
	}
	expect(t, key, 1, 1)
}

// A fingerprint of one's own stands for the body, never for method and target.
func testOwnFingerprint(t *testing.T, s site) {
	key := newKey()
	handler := s.transaction(middleware(idemhttp.Options{Fingerprint: func(_ *http.Request, body []byte) (any, error) { return body[0], nil }}),
		inserts(key))
	for _, c := range []struct {
		target, body string
		want         int
	}{{"/route", "1", 200}, {"/route", "12", 200}, {"/route", "2", 422}, {"/route?other", "1", 422}} {
		request := httptest.NewRequest("POST", c.target, strings.NewReader(c.body))
		request.Header.Set("Idempotency-Key", key)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != c.want {
			t.Fatal(c, answer.Code, answer.Body)
		}
	}
	expect(t, key, 1, 1)
}

// The work runs in a goroutine of its own, where a panic would end the process.
func testFunctionsThatPanic(t *testing.T, s site) {
	key, told := newKey(), 0
	m := middleware(idemhttp.Options{Statuses: func(int) idemhttp.Keep { panic("planned") }, OnError: func(*http.Request, error) { told++ }})
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

// What does not arrive as a whole does not run.
func testBrokenUploads(t *testing.T, s site) {
	for name, head := range map[string]string{
		"shorter than it says": "Content-Length: 10\r\n\r\nhalf",
		"a chunk is missing":   "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			server := httptest.NewServer(s.transaction(middleware(idemhttp.Options{}), inserts(key)))
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			kit.Must(t, err)
			_, err = fmt.Fprintf(conn, "POST /route HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\n%s", key, head)
			kit.Must(t, err)
			kit.Must(t, conn.(*net.TCPConn).CloseWrite())
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != 400 {
				t.Fatal(answer, err)
			}
			conn.Close()
			expect(t, key, 0, 0)
		})
	}
}

func testTimeout(t *testing.T, s site) {
	key, clock := newKey(), idempotency.NewFakeClock(time.Unix(0, 0))
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Clock: clock})
	entered, leave, left := make(chan bool), make(chan bool), make(chan bool)
	handler := s.transaction(idemhttp.New(client, idemhttp.Options{Principal: idemhttp.Anyone, Timeout: time.Minute}), func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
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
		payload          any
	}{
		"not done":  {idempotency.ErrNotDone, 0, 503, 0, 0, nil},
		"by error":  {fmt.Errorf("%w: %w", idempotency.ErrNotDone, errors.New("secret")), 0, 500, 0, 0, nil},
		"unclear":   {errors.New("secret"), 0, 500, 0, 1, nil},
		"declined":  {idempotency.Decline(402, nil), 0, 402, 0, 1, nil},
		"code 404":  {nil, 404, 404, 0, 1, nil},
		"code 502":  {nil, 502, 502, 0, 1, nil},
		"released":  {nil, 429, 429, 0, 0, nil},
		"code 409":  {nil, 409, 409, 0, 1, nil},
		"code 429":  {nil, 429, 429, 0, 1, nil},
		"code 0":    {nil, 0, 200, 1, 1, nil},
		"from 2 up": {nil, 299, 299, 1, 1, nil},
		"too large": {nil, 0, 500, 1, 1, "123"}, // with its quotes
		"no JSON":   {nil, 0, 500, 1, 1, make(chan int)},
		"refusal":   {&idempotency.Declined{Response: idempotency.Response{Payload: "123"}}, 0, 500, 0, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			options := idemhttp.Options{MaxResponse: 4}
			if name == "released" {
				options.Statuses = func(int) idemhttp.Keep { return idemhttp.Keep{As: idemhttp.Released} }
			}
			handler := s.lease(middleware(options), func(*http.Request, idempotency.Operation) (completion, error) {
				if c.err != nil {
					return none, c.err
				}
				return completion{Response: idempotency.Response{Code: c.code, Payload: c.payload},
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
