package pgxv5_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
)

var firstKey = time.Now().UnixNano()

// newKey is a key that no other example has.
func newKey() string {
	firstKey++
	return fmt.Sprint("example-", firstKey)
}

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
	url := "sslmode=disable" // the rest is in the environment: PGHOST and so on
	pool, err := pgxv5.Connect(context.Background(), url)
	if err != nil {
		log.Fatal(err)
	}
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: "payments"})
	_, err = pool.Exec(context.Background(), `CREATE EXTENSION IF NOT EXISTS idempotency;
		CREATE TABLE IF NOT EXISTS effect (key text NOT NULL);
		CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0));
		INSERT INTO account VALUES ('ann', 100) ON CONFLICT (id) DO UPDATE SET balance = 100`)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func Example_transaction() {
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

func Example_lease() {
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

func Example_batch() {
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

func Example_function() {
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
		request.Header.Set("X-Tenant", "ann")
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
