package databasesql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/databasesql"
	_ "github.com/lib/pq"
)

// The rest is in the environment: PGHOST and so on.
const url = "sslmode=disable"

// TestMain makes the table of the example.
func TestMain(m *testing.M) {
	db, err := sql.Open("postgres", url)
	if err == nil {
		_, err = db.Exec("CREATE EXTENSION IF NOT EXISTS idempotency; CREATE TABLE IF NOT EXISTS effect (key text NOT NULL)")
	}
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

func newKey() string { return fmt.Sprint("example-", time.Now().UnixNano()) }

func Example() {
	db, err := sql.Open("postgres", url)
	if err != nil {
		log.Fatal(err)
	}
	client := idempotency.New(databasesql.DB(db), idempotency.Options{Scope: "notes"})
	result, err := client.Transaction(context.Background(), newKey(), nil,
		func(ctx context.Context, tx *sql.Tx, _ idempotency.Operation) (idempotency.Response, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ('note')")
			return idempotency.Response{Payload: "noted"}, err
		})
	fmt.Println(result.Outcome, string(result.Payload), err)
	// Output: COMPLETED "noted" <nil>
}
