package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
		return onGin(idemgin.Lease(m,
			func(c *gin.Context, op idempotency.Operation) (completion, error) { return h(c.Request, op) }, o...))
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
func expectStatus(t *testing.T, want int, handler http.Handler, method, key, body string,
	headers ...string) (http.Header, string) {
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

// Two services on one database do not get each other's answers.
func testServices(t *testing.T, s site) {
	for _, options := range []idemhttp.Options{{Principal: idemhttp.Anyone},
		{Scope: func(*http.Request, string) string { return "own" }}} {
		key := newKey()
		for _, service := range []string{"a", "b", "a"} {
			client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: service})
			handler := s.transaction(idemhttp.New(client, options), inserts(key))
			expectStatus(t, 200, handler, "POST", key, "")
		}
		expect(t, key, 2, 2)
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
