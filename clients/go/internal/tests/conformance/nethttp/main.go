// The conformance program for net/http. PORT and DATABASE_URL come from the
// environment.
package main

import (
	"encoding/json"
	"log"
	"net/http"

	"example.org/idempotency"
	"example.org/idempotency/internal/tests/payments"
	"github.com/jackc/pgx/v5"
)

func main() {
	middleware, err := payments.Middleware()
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", middleware.Transaction("/payments", pay))
	http.Handle("POST /charges", middleware.Lease("/charges", charge))
	http.HandleFunc("GET /{$}", func(http.ResponseWriter, *http.Request) {})
	log.Fatal(http.ListenAndServe(payments.Address(), nil))
}

func pay(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	payment, err := payments.Read(r)
	if err != nil {
		return err
	}
	response, err := payments.Pay(r.Context(), tx, payment)
	if err != nil {
		return err
	}
	for name, value := range response.Headers {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(response.Code)
	return json.NewEncoder(w).Encode(response.Payload)
}

func charge(r *http.Request, _ idempotency.Operation) (idempotency.Completion[pgx.Tx], error) {
	payment, err := payments.Read(r)
	if err != nil {
		return idempotency.Completion[pgx.Tx]{}, err
	}
	return payments.Charge(r.Context(), payment)
}
