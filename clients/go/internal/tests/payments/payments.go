// Package payments is what the conformance programs have in common: a service
// that takes payments in one transaction, and charges with a lease.
package payments

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/pgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Payment is the body of a request.
type Payment struct {
	Account string  `json:"account"`
	Amount  float64 `json:"amount"`
	Crash   bool    `json:"crash"`
	Slow    int     `json:"slow"`
}

var (
	errCrash   = errors.New("a crash that was asked for")
	errInvalid = idempotency.Decline(http.StatusBadRequest, map[string]string{"reason": "invalid"})
	errTooMuch = idempotency.Decline(http.StatusPaymentRequired, map[string]string{"reason": "declined"})
)

// Read reads and checks a request. A crash needs no account.
func Read(r *http.Request) (*Payment, error) {
	var p Payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return nil, errInvalid
	}
	isInteger := p.Amount == math.Trunc(p.Amount) && math.Abs(p.Amount) <= math.MaxInt32
	if !p.Crash && p.Account == "" || strings.ContainsRune(p.Account, 0) || !isInteger {
		return nil, errInvalid
	}
	return &p, nil
}

// Pay is the work of POST /payments.
func Pay(ctx context.Context, tx pgx.Tx, p *Payment) (idempotency.Response, error) {
	if err := p.insert(ctx, tx, "payment"); err != nil {
		return idempotency.Response{}, err
	}
	if err := p.sleep(ctx); err != nil {
		return idempotency.Response{}, err
	}
	if p.Amount > 1000 {
		return idempotency.Response{}, errTooMuch
	}
	return p.answer(), nil
}

// Charge is the work of POST /charges. Nothing happens outside of the database,
// so a crash has done nothing.
func Charge(ctx context.Context, p *Payment) (idempotency.Completion[pgx.Tx], error) {
	if err := p.sleep(ctx); err != nil {
		return idempotency.Completion[pgx.Tx]{}, fmt.Errorf("%w: %v", idempotency.ErrNotDone, err)
	}
	if p.Amount > 1000 {
		return idempotency.Completion[pgx.Tx]{}, errTooMuch
	}
	p2 := *p
	p2.Crash = false
	return idempotency.Completion[pgx.Tx]{Response: p2.answer(), Writes: func(ctx context.Context, tx pgx.Tx) error {
		if err := p.insert(ctx, tx, "charge"); err != nil {
			return err
		}
		if p.Crash {
			return fmt.Errorf("%w: %v", idempotency.ErrNotDone, errCrash)
		}
		return nil
	}}, nil
}

func (p *Payment) insert(ctx context.Context, tx pgx.Tx, kind string) error {
	_, err := tx.Exec(ctx, "INSERT INTO payment (account, amount, kind) VALUES ($1, $2, $3)", p.Account, int(p.Amount), kind)
	return err
}

func (p *Payment) sleep(ctx context.Context) error {
	return idempotency.SystemClock{}.Sleep(ctx, time.Duration(p.Slow)*time.Millisecond)
}

// answer panics for a crash, as a mistake in a handler would.
func (p *Payment) answer() idempotency.Response {
	if p.Crash {
		panic(errCrash)
	}
	id := rand.Text()
	return idempotency.Response{Code: http.StatusCreated, Headers: map[string]string{"X-Payment": id},
		Payload: map[string]any{"id": id, "account": p.Account, "amount": int(p.Amount)}}
}

// Middleware connects to DATABASE_URL and makes the table, if the role may.
func Middleware() (*idemhttp.Middleware[pgx.Tx], error) {
	config, err := pgxv5.Config(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(context.Background(), "CREATE TABLE IF NOT EXISTS payment (account text, amount integer, kind text)")
	if err != nil && idempotency.SQLState(err) == "" {
		return nil, err
	}
	return idemhttp.New(idempotency.New(pgxv5.Pool(pool), idempotency.Options{}), idemhttp.Options{
		Principal:   tenant,
		Headers:     []string{"X-Payment"},
		DescribedBy: "https://example.com/docs/idempotency",
	}), nil
}

func tenant(r *http.Request) string {
	if name := r.Header.Get("X-Tenant"); name != "" {
		return name
	}
	return "nobody"
}

// Address is where the programs listen.
func Address() string { return "127.0.0.1:" + os.Getenv("PORT") }
