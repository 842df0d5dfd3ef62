package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/caller"
	"example.org/idempotency/idemgin"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/pgxv4"
	"example.org/idempotency/stdsql"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v4"
)

// pay takes money from an account, once for each key.
func pay(ctx context.Context, client *idempotency.Client[pgx.Tx], key string, account string, amount int) (*idempotency.Result, error) {
	request := map[string]any{"account": account, "amount": amount}
	return client.Transaction(ctx, key, request, func(ctx context.Context, tx pgx.Tx, _ idempotency.Operation) (idempotency.Response, error) {
		var balance int
		err := tx.QueryRow(ctx, "UPDATE account SET balance = balance - $2 WHERE id = $1 AND balance >= $2 RETURNING balance",
			account, amount).Scan(&balance)
		if errors.Is(err, pgx.ErrNoRows) {
			return idempotency.Response{}, idempotency.Decline(402, map[string]string{"reason": "not enough money"})
		}
		return idempotency.Response{Code: 201, Payload: map[string]int{"balance": balance}}, err
	})
}

func exampleClient() *idempotency.Client[pgx.Tx] {
	url := serverURL()
	pool, err := pgxv4.Connect(context.Background(), url)
	if err != nil {
		log.Fatal(err)
	}
	client := idempotency.New(pgxv4.Pool(pool), idempotency.Options{Scope: "payments"})
	_, err = pool.Exec(context.Background(), "INSERT INTO account VALUES ('ann', 100) ON CONFLICT (id) DO UPDATE SET balance = 100")
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func ExampleClient_Transaction() {
	ctx, client, key := context.Background(), exampleClient(), newKey()
	for i := 0; i < 2; i++ {
		result, err := pay(ctx, client, key, "ann", 30)
		fmt.Println(result.Outcome, result.Code, result.Replayed, err)
	}
	_, err := pay(ctx, client, key, "ann", 31)
	fmt.Println(errors.Is(err, idempotency.ErrKeyReused))
	result, err := pay(ctx, client, newKey(), "ann", 1000)
	fmt.Println(result.Outcome, result.Code, string(result.Payload), err)
	// Output:
	// COMPLETED 201 false <nil>
	// COMPLETED 201 true <nil>
	// true
	// FAILED 402 {"reason":"not enough money"} <nil>
}

// gateway is somebody else's service.
type gateway struct{ charges map[string]int }

func (g *gateway) Charge(_ context.Context, reference string, amount int) error {
	g.charges[reference] = amount
	return nil
}

func (g *gateway) Find(_ context.Context, reference string) (bool, error) {
	_, found := g.charges[reference]
	return found, nil
}

// charge calls a gateway, with no connection held, and books what it did.
func charge(ctx context.Context, client *idempotency.Client[pgx.Tx], gateway *gateway, key string, amount int) (*idempotency.Result, error) {
	charged := idempotency.Response{Code: 201, Payload: map[string]int{"charged": amount}}
	return client.Lease(ctx, key, amount,
		func(ctx context.Context, o idempotency.Operation) (idempotency.Completion[pgx.Tx], error) {
			if err := gateway.Charge(ctx, o.Key, amount); err != nil { // ctx ends when the lease is lost
				return idempotency.Completion[pgx.Tx]{}, err // unclear: the next attempt reconciles
			}
			return idempotency.Completion[pgx.Tx]{Response: charged, Writes: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE account SET balance = balance - $1 WHERE id = 'ann'", amount)
				return err
			}}, nil
		},
		idempotency.WithLease(time.Minute),
		idempotency.WithReconcile(func(ctx context.Context, o idempotency.Operation) (idempotency.Reconciled, error) {
			found, err := gateway.Find(ctx, o.Key) // an earlier attempt ran out of its lease
			if err != nil {
				return idempotency.Unknown(time.Minute), nil
			}
			if found {
				return idempotency.Done(charged), nil
			}
			return idempotency.NotDone(), nil
		}))
}

func ExampleClient_Lease() {
	ctx, client, key := context.Background(), exampleClient(), newKey()
	g := &gateway{charges: map[string]int{}}
	for i := 0; i < 2; i++ {
		result, err := charge(ctx, client, g, key, 30)
		fmt.Println(result.Outcome, result.Code, result.Replayed, err)
	}
	fmt.Println(len(g.charges))
	// Output:
	// COMPLETED 201 false <nil>
	// COMPLETED 201 true <nil>
	// 1
}

func Example_databaseSQL() {
	db, err := sql.Open("postgres", serverURL())
	if err != nil {
		log.Fatal(err)
	}
	client := idempotency.New(stdsql.DB(db), idempotency.Options{Scope: "notes"})
	result, err := client.Transaction(context.Background(), newKey(), nil,
		func(ctx context.Context, tx *sql.Tx, _ idempotency.Operation) (idempotency.Response, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ('note')")
			return idempotency.Response{Payload: "noted"}, err
		})
	fmt.Println(result.Outcome, string(result.Payload), err)
	// Output: COMPLETED "noted" <nil>
}

func ExampleClient_BeginMany() {
	ctx, client := context.Background(), exampleClient()
	messages := []string{newKey(), newKey()}
	handle := func() (done int, err error) {
		err = client.Run(ctx, func(ctx context.Context, tx pgx.Tx) error {
			operations, err := client.BeginMany(ctx, tx, messages, nil)
			if err != nil {
				return err
			}
			var ours []string
			for _, o := range operations {
				if o.Outcome == idempotency.Acquired {
					ours = append(ours, o.Key) // and its writes
				}
			}
			done, err = client.CompleteMany(ctx, tx, ours, nil)
			return err
		})
		return done, err
	}
	fmt.Println(handle())
	fmt.Println(handle())
	// Output:
	// 2 <nil>
	// 0 <nil>
}

func ExampleIdempotent() {
	ctx, client, key := context.Background(), exampleClient(), newKey()
	book := idempotency.Idempotent(client, "book-seat", func(ctx context.Context, tx pgx.Tx, seat string) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", seat)
		return "ticket for " + seat, err
	})
	fmt.Println(book(ctx, key, "12A"))
	fmt.Println(book(ctx, key, "12A"))
	// Output:
	// ticket for 12A <nil>
	// ticket for 12A <nil>
}

// routes makes two routes of net/http idempotent.
func routes(client *idempotency.Client[pgx.Tx]) http.Handler {
	middleware := idemhttp.New(client, idemhttp.Options{
		Principal:   func(r *http.Request) string { return r.Header.Get("X-Tenant") }, // yours: who is logged in
		Headers:     []string{"X-Payment"},
		DescribedBy: "https://example.com/docs/idempotency",
	})
	mux := http.NewServeMux()
	mux.Handle("/notes", middleware.Transaction("/notes", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "INSERT INTO effect VALUES ('note')"); err != nil {
			return err // rolled back; 40001 and a lost connection run the handler again
		}
		w.Header().Set("X-Payment", "7")
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, "noted")
		return err
	}))
	mux.Handle("/mails", middleware.Lease("/mails", func(r *http.Request, o idempotency.Operation) (idempotency.Completion[pgx.Tx], error) {
		// send the mail here; r.Context() ends when the lease is lost
		return idempotency.Completion[pgx.Tx]{Response: idempotency.Response{Code: 202, Payload: "sent"}}, nil
	}))
	return mux
}

func Example_http() {
	server := httptest.NewServer(routes(exampleClient()))
	defer server.Close()
	key := newKey()
	for _, path := range []string{"/notes", "/notes", "/mails", "/mails"} {
		request, _ := http.NewRequest(http.MethodPost, server.URL+path, strings.NewReader("text"))
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		fmt.Println(response.StatusCode, string(body), response.Header.Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// 201 noted false
	// 201 noted true
	// 202 "sent" false
	// 202 "sent" true
}

// ginRoutes does the same with gin.
func ginRoutes(engine *gin.Engine, middleware *idemhttp.Middleware[pgx.Tx]) {
	engine.POST("/notes", idemgin.Transaction(middleware, func(c *gin.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(c.Request.Context(), "INSERT INTO effect VALUES ('note')"); err != nil {
			return err
		}
		c.JSON(http.StatusCreated, gin.H{"noted": true})
		return nil
	}))
}

func Example_gin() {
	gin.SetMode(gin.TestMode)
	engine := gin.New()
	ginRoutes(engine, idemhttp.New(exampleClient(), idemhttp.Options{Principal: func(*http.Request) string { return "ann" }}))
	key := newKey()
	for i := 0; i < 2; i++ {
		request, answer := httptest.NewRequest(http.MethodPost, "/notes", nil), httptest.NewRecorder()
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
		engine.ServeHTTP(answer, request)
		fmt.Println(answer.Code, answer.Body, answer.Header().Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// 201 {"noted":true} false
	// 201 {"noted":true} true
}

// order sends a request that takes effect once, whatever happens on the way.
func order(ctx context.Context, keys, url string) (*http.Response, error) {
	c := &caller.Caller{Store: caller.FileStore{Dir: keys}, Client: &http.Client{Timeout: 30 * time.Second}}
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"order": 17}`))
	if err != nil {
		return nil, err
	}
	return c.Do(ctx, "order 17", request) // after a restart: the same intent, the same key
}

func Example_caller() {
	server := httptest.NewServer(routes(exampleClient()))
	defer server.Close()
	keys, err := os.MkdirTemp("", "keys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(keys)
	for i := 0; i < 2; i++ {
		response, err := order(context.Background(), keys, server.URL+"/notes")
		fmt.Println(response.StatusCode, response.Header.Get("Idempotency-Replayed") == "true", err)
	}
	// Output:
	// 201 false <nil>
	// 201 true <nil>
}

func ExampleSettle() {
	result, err := pay(context.Background(), exampleClient(), newKey(), "ann", 1000)
	switch settlement := idempotency.Settle(result, err); settlement.Do {
	case idempotency.Ack:
		fmt.Println("acknowledge the message")
	case idempotency.Again:
		fmt.Println("deliver it again after", settlement.After)
	case idempotency.DeadLetter:
		fmt.Println("put it aside")
	}
	// Output: put it aside
}

func ExampleFakeClock() {
	clock := idempotency.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	done := make(chan error)
	go func() { done <- clock.Sleep(context.Background(), time.Hour) }()
	clock.AwaitSleepers(1)
	clock.Advance(time.Hour)
	fmt.Println(<-done, clock.Now().Hour())
	// Output: <nil> 1
}

// The code of the README is the code above, so it runs.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile(os.Getenv("EXAMPLES"))
	must(t, err)
	readme, err := os.ReadFile(os.Getenv("README"))
	must(t, err)
	blocks := bytes.Split(readme, []byte("```go\n"))[1:]
	for _, block := range blocks {
		code, _, _ := strings.Cut(string(block), "```")
		if !strings.Contains(flat(string(source)), flat(code)) {
			t.Errorf("not in the examples:\n%s", code)
		}
	}
	if len(blocks) < 6 {
		t.Fatalf("%d blocks", len(blocks))
	}
}

// flat leaves indentation out.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
