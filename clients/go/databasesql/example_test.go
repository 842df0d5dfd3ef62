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

// serverURL has host and port from the environment.
func serverURL() string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%s&user=%s&sslmode=disable",
		os.Getenv("PGDATABASE"), os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER"))
}

// TestMain makes the table of the example.
func TestMain(m *testing.M) {
	db, err := sql.Open("postgres", serverURL())
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
	db, err := sql.Open("postgres", serverURL())
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
