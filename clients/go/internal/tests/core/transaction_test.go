package core_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"example.org/idempotency"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestTransactions(t *testing.T) {
	onBoth(t, transactionTests[pgx.Tx](), transactionTests[*sql.Tx]())
	t.Run("database/sql with bun's driver", func(t *testing.T) {
		tests[*sql.Tx]{
			"Mismatch": testMismatch[*sql.Tx], "ErrorsBySQLState": testErrorsBySQLState[*sql.Tx], "NotReady": testNotReady[*sql.Tx],
			"SwallowedError": testSwallowedError[*sql.Tx], "RefusedCommit": testRefusedCommit[*sql.Tx],
			"SerializationFailures": testSerializationFailures[*sql.Tx], "ErrorsQuoteNothing": testErrorsQuoteNothing[*sql.Tx],
			"RequestsThatNobodyCanRead": testRequestsThatNobodyCanRead[*sql.Tx],
		}.run(t, onBun)
	})
}

func transactionTests[Tx any]() tests[Tx] {
	return tests[Tx]{
		"Replay": testReplay[Tx], "NullAndJSONNull": testNullAndJSONNull[Tx], "Mismatch": testMismatch[Tx],
		"ErrorsBySQLState": testErrorsBySQLState[Tx], "NotReady": testNotReady[Tx], "Forbidden": testForbidden[Tx],
		"InProgress": testInProgress[Tx], "Declined": testDeclined[Tx], "DeclinedForNow": testDeclinedForNow[Tx],
		"OtherErrorsStoreNothing": testOtherErrors[Tx], "SwallowedError": testSwallowedError[Tx],
		"Cancelled": testCancelled[Tx], "Schema": testSchema[Tx], "MaxAttempts": testMaxAttempts[Tx],
		"MaxLostAttempts": testMaxLostAttempts[Tx], "NotDoneIsNoLostAttempt": testNotDoneIsNoLostAttempt[Tx],
		"OwnsDeadLetter": testOwnsDeadLetter[Tx], "Retention": testRetention[Tx], "Batch": testBatch[Tx],
		"Idempotent": testIdempotent[Tx], "HeadersOfOthers": testHeadersOfOthers[Tx], "ErrorsQuoteNothing": testErrorsQuoteNothing[Tx],
		"Isolation": testIsolation[Tx], "RequestsThatNobodyCanRead": testRequestsThatNobodyCanRead[Tx],
		"CancelledStatement": testCancelledStatement[Tx], "CancelledCommit": testCancelledCommit[Tx], "RefusedCommit": testRefusedCommit[Tx], "LimitOfTheWork": testLimitOfTheWork[Tx],
	}
}

func testReplay[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, key := b.client(t, idempotency.Options{Scope: "replay", Hooks: count.hooks()}), newKey()
	work := func(ctx context.Context, tx Tx, o idempotency.Operation) (idempotency.Response, error) {
		same(t, "key", o.Key, key)
		same(t, "scope", o.Scope, "replay")
		return idempotency.Response{Code: 201, Headers: map[string]string{"Location": "/x"}, Payload: []int{1},
			Body: []byte("a\x00\xff")}, b.insert(ctx, tx, key)
	}
	for i, replayed := range []bool{false, true, true} {
		result, err := client.Transaction(background, key, map[string]int{"amount": 1}, work)
		must(t, err)
		same(t, "replayed", result.Replayed, replayed)
		same(t, "outcome", result.Outcome, idempotency.Completed)
		same(t, "code", result.Code, 201)
		same(t, "header", result.Headers["Location"], "/x")
		same(t, "payload", string(result.Payload), "[1]")
		same(t, "body", string(result.Body), "a\x00\xff")
		same(t, "attempt", result.Attempt, 1)
		same(t, "replays", count.replayed.Load(), int64(i))
	}
	same(t, "effects", effects(t, key), "1")
	same(t, "acquired", count.acquired.Load(), 1)
}

func testNullAndJSONNull[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for want, payload := range map[string]any{"": nil, "null": json.RawMessage("null")} {
		key := newKey()
		for i := 0; i < 2; i++ {
			result, err := client.Transaction(background, key, nil, responds[Tx](idempotency.Response{Payload: payload}))
			must(t, err)
			same(t, "payload", string(result.Payload), want)
			same(t, "payload is nil", result.Payload == nil, want == "")
			same(t, "body is nil", result.Body == nil, true)
		}
		same(t, "headers", value(t, "SELECT response_headers FROM idempotency_store WHERE idempotency_key = $1", key), "")
	}
}

// A number is the text that somebody else has stored, and so it is in a list. What has no
// names is no header.
func testHeadersOfOthers[Tx any](t *testing.T, b backend[Tx]) {
	for stored, want := range map[string]string{"null": "map[]", `["X-Id", 7]`: "map[]",
		`{"Content-Length": 12345678, "X-Ids": [9007199254740993, "b"]}`: "map[Content-Length:12345678 X-Ids:9007199254740993, b]"} {
		key := newKey()
		execute(t, fmt.Sprintf(`BEGIN; SELECT idem_begin('%s'); SELECT idem_complete('%[1]s', headers => '%s'); COMMIT`, key, stored))
		result, err := b.client(t, idempotency.Options{}).Transaction(background, key, nil, b.note(key))
		must(t, err)
		same(t, "headers", fmt.Sprint(result.Headers), want)
	}
}

// Texts that are no UTF-8, and structs without an exported field, would be one request as JSON, and the server cannot read the others.
func testRequestsThatNobodyCanRead[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	type order struct{ Name string }
	for _, request := range []any{"\xff", order{"\xfe"}, struct{ amount int }{1}, map[string]any{"a": []string{"\xff"}}, "\x00", json.RawMessage("{"),
		json.RawMessage("\"\xff\""), json.RawMessage("1e200000"), json.RawMessage(strings.Repeat("[", 100_000))} {
		_, err := client.Transaction(background, newKey(), request, b.note("x"))
		batch := beginMany(client, []string{"k"}, []any{request})
		if !errors.Is(err, idempotency.ErrBadArgument) || !errors.Is(batch, idempotency.ErrBadArgument) {
			t.Errorf("%.20q: %v, %v", request, err, batch)
		}
	}
	result, err := client.Transaction(background, newKey(), order{"\ufffd"}, b.note(newKey()))
	if err != nil || result.Outcome != idempotency.Completed {
		t.Error(result, err)
	}
}

// Neither encoding/json nor the server says what it cannot read.
func testErrorsQuoteNothing[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for _, payload := range []any{json.Number("secret"), json.RawMessage(`{"a": secret}`), "\x00secret",
		json.RawMessage("\"\xffsecret\"")} {
		_, request := client.Transaction(background, newKey(), payload, b.note("x"))
		_, response := client.Transaction(background, newKey(), nil, responds[Tx](idempotency.Response{Payload: payload}))
		batch := beginMany(client, []string{"k"}, []any{payload})
		for _, err := range []error{request, response, batch} {
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: %v", payload, err)
			}
		}
	}
}

func testMismatch[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, key := b.client(t, idempotency.Options{Hooks: count.hooks()}), newKey()
	_, err := client.Transaction(background, key, map[string]int{"amount": 1}, b.note(key))
	must(t, err)
	_, err = client.Transaction(background, key, map[string]int{"amount": 2}, b.note(key))
	wantError(t, err, idempotency.ErrKeyReused)
	same(t, "SQLSTATE", idempotency.SQLState(err), "ID422")
	same(t, "mismatches", count.mismatch.Load(), 1)
	_, err = client.Transaction(background, key, nil, b.note(key), idempotency.WithRequestHash(make([]byte, 32)))
	wantError(t, err, idempotency.ErrKeyReused)
	same(t, "effects", effects(t, key), "1")
}

func testErrorsBySQLState[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	_, err := client.Transaction(background, strings.Repeat("k", 256), nil, b.note(key))
	wantError(t, err, idempotency.ErrBadArgument)
	_, err = client.Transaction(background, key, func() {}, b.note(key))
	if !errors.As(err, new(*json.UnsupportedTypeError)) || !strings.Contains(err.Error(), "func()") {
		t.Fatalf("what cannot be marshalled is not named: %v", err)
	}
	_, err = client.Transaction(background, key, nil,
		func(ctx context.Context, tx Tx, _ idempotency.Operation) (idempotency.Response, error) {
			return idempotency.Response{Body: make([]byte, 1<<20+1)}, b.insert(ctx, tx, key)
		})
	wantError(t, err, idempotency.ErrTooLarge)
	_, err = client.Transaction(background, key, nil, b.runs(fmt.Sprintf("SELECT idem_complete('%s')", key)))
	if !errors.Is(err, idempotency.ErrNotOwned) && !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Fatalf("ended by the work itself: %v", err)
	}
	_, err = client.Transaction(background, key, nil, b.runs("SELECT idem_begin('another key')"))
	wantError(t, err, idempotency.ErrNotEnded)
	same(t, "stored", stored(t, key), "nothing")
	same(t, "effects", effects(t, key), "0")
}

// What is missing is named, with what to do.
func testNotReady[Tx any](t *testing.T, b backend[Tx]) {
	execute(t, "DROP ROLE IF EXISTS nobody_yet; CREATE ROLE nobody_yet LOGIN")
	t.Cleanup(func() { execute(t, "DROP ROLE nobody_yet") })
	for state, c := range map[string]struct {
		url, schema, advice string
	}{
		"42883": {strings.Replace(serverURL, "postgres:///postgres", "postgres:///template1", 1), "",
			"CREATE EXTENSION idempotency in this database, or name its schema by the option Schema; a role without idem_grant"},
		"3F000": {serverURL, `else"where`, "option Schema"},
		"42501": {strings.Replace(serverURL, "user=postgres", "user=nobody_yet", 1), "", "idem_grant"},
	} {
		t.Run(state, func(t *testing.T) { // its pool is closed before the role goes
			client := idempotency.New(b.open(t, c.url, 2), idempotency.Options{Schema: c.schema})
			_, transaction := client.Transaction(background, newKey(), nil, b.note("x"))
			_, lease := client.Lease(background, newKey(), nil, gives(idempotency.Completion[Tx]{}, nil))
			batch := beginMany(client, []string{"k"}, nil)
			for _, err := range []error{transaction, lease, batch} {
				wantError(t, err, idempotency.ErrNotReady)
				if !strings.Contains(err.Error(), c.advice) || idempotency.SQLState(err) != state {
					t.Fatal(err)
				}
			}
		})
	}
}

func testForbidden[Tx any](t *testing.T, b backend[Tx]) {
	execute(t, `DROP ROLE IF EXISTS stranger; DROP ROLE IF EXISTS owner; CREATE ROLE stranger LOGIN; CREATE ROLE owner;
		SELECT idem_grant('stranger'), idem_claim_scope('claimed', 'owner')`)
	t.Cleanup(func() {
		execute(t, "SELECT idem_unclaim_scope('claimed'); DROP OWNED BY stranger; DROP ROLE stranger; DROP ROLE owner")
	})
	stranger := strings.Replace(serverURL, "user=postgres", "user=stranger", 1)
	t.Run("stranger", func(t *testing.T) { // its pool is closed before the role goes
		client := idempotency.New(b.open(t, stranger, 2), idempotency.Options{})
		_, err := client.Transaction(background, newKey(), nil, b.note("x"), idempotency.InScope("claimed"))
		wantError(t, err, idempotency.ErrForbidden)
	})
}

func testInProgress[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	client, key := idempotency.New(b.open(t, serverURL, 2), idempotency.Options{Hooks: count.hooks(), Clock: clock,
		Retry: idempotency.Retry{Base: time.Hour}}), newKey() // the answer is asked for twice a second, all the same
	entered, leave, done := make(chan bool), make(chan bool), make(chan error)
	go func() {
		_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
			close(entered)
			<-leave
			return b.insert(ctx, tx, key)
		}))
		done <- err
	}()
	<-entered
	result, err := client.Transaction(background, key, nil, b.note(key))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.InProgress)
	same(t, "retry after", result.RetryAfter == nil, true)
	same(t, "record", result.Record, "")
	same(t, "hook", count.inProgress.Load(), 1)
	waited := make(chan *idempotency.Result)
	go func() {
		result, err := client.Transaction(background, key, nil, b.note(key), idempotency.WithWait(time.Minute))
		if err != nil {
			result = &idempotency.Result{Outcome: idempotency.Outcome(err.Error())}
		}
		waited <- result
	}()
	clock.AwaitSleepers(1)
	limited, cancel := context.WithTimeout(background, 30*time.Second)
	defer cancel()
	if _, err = client.Transaction(limited, newKey(), nil, b.note("other")); err != nil {
		t.Errorf("the caller that waits holds a connection: %v", err)
	}
	close(leave)
	must(t, <-done)
	clock.Advance(time.Second)
	select {
	case result = <-waited:
	case <-limited.Done():
		t.Fatal("nobody asks for the answer")
	}
	same(t, "outcome of the waiter", result.Outcome, idempotency.Completed)
	same(t, "replayed", result.Replayed, true)
	same(t, "hook, once for each call", count.inProgress.Load(), 1)
	same(t, "effects", effects(t, key), "1")
}

func testDeclined[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client, key := b.client(t, idempotency.Options{Hooks: count.hooks()}), newKey()
	work := does(func(ctx context.Context, tx Tx) error {
		must(t, b.insert(ctx, tx, key))
		if b.exec(ctx, tx, raise("P0001")) == nil { // the transaction has failed: a savepoint helps
			t.Error("no error")
		}
		return fmt.Errorf("wrapped: %w", idempotency.Decline(402, map[string]string{"reason": "declined"}))
	})
	for _, replayed := range []bool{false, true} {
		result, err := client.Transaction(background, key, nil, work)
		must(t, err)
		same(t, "outcome", result.Outcome, idempotency.Failed)
		same(t, "replayed", result.Replayed, replayed)
		same(t, "code", result.Code, 402)
		var payload struct{ Reason string }
		must(t, result.Decode(&payload))
		same(t, "reason", payload.Reason, "declined")
		same(t, "final", result.RetryAfter == nil, true)
	}
	same(t, "effects", effects(t, key), "0")
	same(t, "hook", count.declined.Load(), 1)
}

func testDeclinedForNow[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	decline := fails[Tx](idempotency.Decline(429, nil).Again(time.Hour))
	for _, replayed := range []bool{false, true} {
		result, err := client.Transaction(background, key, nil, decline)
		must(t, err)
		same(t, "replayed", result.Replayed, replayed)
		if result.RetryAfter == nil || *result.RetryAfter > time.Hour || *result.RetryAfter < 59*time.Minute {
			t.Fatalf("retry after %v", result.RetryAfter)
		}
	}
	execute(t, "UPDATE idempotency_store SET retry_at = now() - interval '1 second' WHERE idempotency_key = $1", key)
	result, err := client.Transaction(background, key, nil, b.note(key))
	must(t, err)
	same(t, "attempt", result.Attempt, 2)
	same(t, "outcome", result.Outcome, idempotency.Completed)
	same(t, "effects", effects(t, key), "1")
}

func testOtherErrors[Tx any](t *testing.T, b backend[Tx]) {
	client, key := idempotency.New(b.open(t, serverURL, 1), idempotency.Options{}), newKey()
	own := errors.New("own")
	_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
		must(t, b.insert(ctx, tx, key))
		return own
	}))
	same(t, "is the work's own error", err == own, true)
	func() {
		defer func() { same(t, "panicked as planned", recover() == "planned", true) }()
		_, _ = client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
			must(t, b.insert(ctx, tx, key))
			panic("planned")
		}))
	}()
	same(t, "effects", effects(t, key), "0")
	same(t, "stored", stored(t, key), "nothing")
	_, err = client.Transaction(background, key, nil, b.note(key)) // the pool's only connection works
	must(t, err)
}

func testSwallowedError[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	swallow := func(ctx context.Context, tx Tx) error {
		must(t, b.insert(ctx, tx, key))
		if b.exec(ctx, tx, raise("P0001")) == nil {
			t.Error("no error")
		}
		return nil
	}
	_, err := client.Transaction(background, key, nil, does(swallow))
	wantError(t, err, idempotency.ErrCommitRolledBack)
	wantError(t, client.Run(background, swallow), idempotency.ErrCommitRolledBack)
	same(t, "effects", effects(t, key), "0")
	same(t, "stored", stored(t, key), "nothing")
}

// The work ignores its context and never comes back: the server has rolled back
// all the same.
func testCancelled[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	ctx, cancel := context.WithCancel(background)
	entered, leave, done := make(chan bool), make(chan bool), make(chan error)
	go func() {
		_, err := client.Transaction(ctx, key, nil, does(func(ctx context.Context, tx Tx) error {
			err := b.insert(ctx, tx, key)
			close(entered)
			<-leave
			return err
		}))
		done <- err
	}()
	<-entered
	cancel()
	result, err := client.Transaction(background, key, nil, b.note(key), idempotency.WithWait(time.Minute))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.Completed)
	close(leave)
	wantError(t, <-done, context.Canceled)
	same(t, "effects", effects(t, key), "1")
}

// The driver may say that the statement was cancelled, or that the connection is closed.
func testCancelledStatement[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for range 5 {
		ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
		_, err := client.Transaction(ctx, newKey(), nil, b.runs("SELECT pg_sleep(60)"))
		cancel()
		wantError(t, err, context.DeadlineExceeded)
	}
}

// A connection that is given up with its context is none that was lost: nothing is repeated.
func testCancelledCommit[Tx any](t *testing.T, b backend[Tx]) {
	var count counter
	client := b.client(t, idempotency.Options{Hooks: count.hooks()})
	execute(t, `CREATE OR REPLACE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
		DROP TABLE IF EXISTS slow;
		CREATE TABLE slow (key text);
		CREATE CONSTRAINT TRIGGER sleeps AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleeps()`)
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err := client.Transaction(ctx, newKey(), nil, b.runs("INSERT INTO slow VALUES ('x')"))
	wantError(t, err, context.DeadlineExceeded)
	same(t, "retried", count.retried.Load(), 0)
}

// What COMMIT itself refuses, as a deferred constraint does, is no lost connection.
func testRefusedCommit[Tx any](t *testing.T, b backend[Tx]) {
	execute(t, "CREATE TABLE IF NOT EXISTS self (id int PRIMARY KEY, other int REFERENCES self DEFERRABLE INITIALLY DEFERRED)")
	runs := 0
	_, err := b.client(t, idempotency.Options{Retry: quick}).Transaction(background, newKey(), nil,
		does(func(ctx context.Context, tx Tx) error {
			runs++
			return b.exec(ctx, tx, "INSERT INTO self VALUES (1, 2)")
		}))
	same(t, "SQLSTATE", idempotency.SQLState(err), "23503")
	same(t, "transient", idempotency.Transient(err), false)
	same(t, "runs", runs, 1)
}

// A limit of the work's own is its error, although the driver has closed the connection.
func testLimitOfTheWork[Tx any](t *testing.T, b backend[Tx]) {
	runs := 0
	_, err := b.client(t, idempotency.Options{Retry: quick}).Transaction(background, newKey(), nil,
		does(func(ctx context.Context, tx Tx) error {
			runs++
			limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return errors.Join(b.exec(limited, tx, "SELECT pg_sleep(60)"), limited.Err())
		}))
	wantError(t, err, context.DeadlineExceeded)
	same(t, "runs", runs, 1)
}

func testIsolation[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for level, name := range map[sql.IsolationLevel]string{sql.LevelDefault: "read committed", sql.LevelReadCommitted: "read committed",
		sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable", sql.LevelLinearizable: ""} {
		work := b.runs(fmt.Sprintf("SELECT 1 / (current_setting('transaction_isolation') = '%s')::int", name))
		_, err := client.Transaction(background, newKey(), nil, work, idempotency.WithIsolation(level))
		same(t, fmt.Sprint(level, err), err == nil, name != "")
	}
}

func testSchema[Tx any](t *testing.T, b backend[Tx]) {
	database := "schema_" + strings.ReplaceAll(newKey(), "-", "_")
	execute(t, "CREATE DATABASE "+database)
	url := strings.Replace(serverURL, "postgres:///postgres", "postgres:///"+database, 1)
	db, err := sql.Open("postgres", url)
	must(t, err)
	defer db.Close()
	_, err = db.Exec(`CREATE SCHEMA "odd name"; CREATE EXTENSION idempotency SCHEMA "odd name"`)
	must(t, err)
	client := idempotency.New(b.open(t, url, 2), idempotency.Options{Schema: "odd name"})
	for _, replayed := range []bool{false, true} {
		result, err := client.Transaction(background, "k", nil, fails[Tx](nil))
		must(t, err)
		same(t, "replayed", result.Replayed, replayed)
	}
}

// The failure that idem_begin stores by itself is committed.
func testMaxAttempts[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	decline := fails[Tx](idempotency.Decline(429, nil).Again(-time.Second)) // over: now
	first, err := client.Transaction(background, key, nil, decline, idempotency.WithMaxAttempts(-1))
	must(t, err)
	same(t, "retry after", *first.RetryAfter, 0)
	_, err = client.Transaction(background, newKey(), nil, decline, idempotency.WithMaxAttempts(math.MaxInt))
	must(t, err)
	undone := errors.New("undone")
	wantError(t, client.Run(background, func(ctx context.Context, tx Tx) error {
		operations, err := client.BeginMany(ctx, tx, []string{key}, nil, idempotency.WithMaxAttempts(1))
		must(t, err)
		same(t, "outcome in a batch", operations[0].Outcome, idempotency.Failed)
		return undone
	}), undone)
	result, err := client.Transaction(background, key, nil, decline, idempotency.WithMaxAttempts(1))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.Failed)
	same(t, "payload", string(result.Payload), `{"reason": "attempts exhausted", "attempts": 1}`)
	same(t, "retryable", value(t, "SELECT retry_at IS NULL FROM idempotency_store WHERE idempotency_key = $1", key), "true")
}

func testMaxLostAttempts[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	planned := errors.New("planned")
	breaks := fails[Tx](planned)
	limit := idempotency.WithMaxLostAttempts(2)
	for range 2 {
		if _, err := client.Transaction(background, key, nil, breaks, limit); !errors.Is(err, planned) {
			t.Fatalf("not the work's error: %v", err)
		}
	}
	for _, none := range []int{-1, math.MaxInt} {
		if _, err := client.Transaction(background, key, nil, breaks, idempotency.WithMaxLostAttempts(none)); !errors.Is(err, planned) {
			t.Fatalf("there is a limit: %v", err)
		}
	}
	result, err := client.Transaction(background, key, nil, breaks, limit)
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.Failed)
	same(t, "payload", string(result.Payload), `{"reason": "attempts lost", "lost_attempts": 4}`)
	same(t, "stored", value(t, "SELECT status FROM idempotency_store WHERE idempotency_key = $1", key), "FAILED")
}

func testNotDoneIsNoLostAttempt[Tx any](t *testing.T, b backend[Tx]) {
	client, key := idempotency.New(b.open(t, serverURL, 1), idempotency.Options{}), newKey()
	notDone := fmt.Errorf("not now: %w: %w", idempotency.ErrNotDone, &pgconn.PgError{Code: "40001"})
	runs := 0
	refused := func(key, spoil string) {
		t.Helper()
		_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
			runs++
			must(t, b.insert(ctx, tx, key))
			_ = b.exec(ctx, tx, spoil)
			return notDone
		}), idempotency.WithMaxLostAttempts(1))
		if err != notDone {
			t.Fatalf("%s: not the work's error: %v", spoil, err)
		}
	}
	refused(key, "SELECT 1")
	refused(key, "SELECT 1/0")
	refused(key, "RELEASE SAVEPOINT idempotency_work") // so nothing can be taken back
	result, err := client.Transaction(background, key, nil, b.note(key))
	must(t, err)
	same(t, "outcome", result.Outcome, idempotency.Completed)
	refused(newKey(), "SELECT pg_terminate_backend(pg_backend_pid())")
	same(t, "runs", runs, 4)
	same(t, "effects", effects(t, key), "1")
}

func testOwnsDeadLetter[Tx any](t *testing.T, b backend[Tx]) {
	client, key := b.client(t, idempotency.Options{}), newKey()
	decline := fails[Tx](idempotency.Decline(402, nil))
	failure, err := client.Transaction(background, key, nil, decline)
	must(t, err)
	_, err = client.OwnsDeadLetter(background, "q", failure, "m1") // it is no replay, and has no name
	wantError(t, err, idempotency.ErrBadArgument)
	failure, err = client.Transaction(background, key, nil, decline)
	must(t, err)
	// what settles it has failed for good, as its attempts were lost too often: each copy is a dead letter
	_, err = client.Transaction(background, failure.Record, nil, decline, idempotency.InScope("lost.dead"))
	must(t, err)
	for _, c := range []struct {
		queue, message string
		owns           bool
	}{{"q", "m1", true}, {"q", "m2", false}, {"q", "m1", true}, {"lost", "m1", true}, {"lost", "m2", true}} {
		owns, err := client.OwnsDeadLetter(background, c.queue, failure, c.message)
		must(t, err)
		same(t, c.queue+" "+c.message, owns, c.owns)
	}
	// while another consumer asks, nobody knows: to acknowledge the message would lose it
	execute(t, "SELECT idem_begin($1, scope => 'busy.dead', lease => '1 minute')", failure.Record)
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	go func() {
		clock.AwaitSleepers(1)
		clock.Advance(5 * time.Second)
	}()
	_, err = b.client(t, idempotency.Options{Clock: clock}).OwnsDeadLetter(background, "busy", failure, "m1")
	wantError(t, err, idempotency.ErrInProgress)
	same(t, "waited", clock.Now(), time.Unix(5, 0))
}

func testRetention[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{Retention: time.Hour})
	for want, c := range map[string]struct {
		response idempotency.Response
		options  []idempotency.Option
	}{
		"01:00:00": {},
		"02:00:00": {options: []idempotency.Option{idempotency.WithRetention(2 * time.Hour)}},
		"03:00:00": {response: idempotency.Response{Retention: 3 * time.Hour}},
	} {
		key := newKey()
		_, err := client.Transaction(background, key, nil, responds[Tx](c.response), c.options...)
		must(t, err)
		same(t, "retention", value(t, "SELECT date_trunc('minute', expires_at - updated_at + interval '1 second') FROM idempotency_store WHERE idempotency_key = $1", key), want)
	}
}

// Work that ends the transaction is not repeated: with database/sql, what it writes afterwards is committed each time.
func TestEndedByTheWork(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testEndedByTheWork(t, onPgx, "0") })
	t.Run("database/sql", func(t *testing.T) { testEndedByTheWork(t, onSQL, "1") })
	t.Run("database/sql with pgx", func(t *testing.T) { testEndedByTheWork(t, onSQLBy("pgx"), "1") })
}

func testEndedByTheWork[Tx any](t *testing.T, b backend[Tx], committed string) {
	client := b.client(t, idempotency.Options{Retry: quick})
	for _, statement := range []string{"ROLLBACK", "COMMIT"} {
		key, runs := newKey(), 0
		_, err := client.Transaction(background, key, nil, does(func(ctx context.Context, tx Tx) error {
			runs++
			_ = b.exec(ctx, tx, statement)
			return b.insert(ctx, tx, key)
		}))
		wantError(t, err, idempotency.ErrNotOwned)
		same(t, "is lost", errors.Is(err, idempotency.ErrConnectionLost), false)
		same(t, "runs", runs, 1)
		same(t, "effects", effects(t, key), committed)
	}
}

// GORM's Commit and Rollback are those of the transaction, too. database/sql refuses what comes after them.
func TestEndedByMethod(t *testing.T) {
	for name, end := range map[string]func(*sql.Tx) error{"COMMIT": (*sql.Tx).Commit, "ROLLBACK": (*sql.Tx).Rollback} {
		client, key, runs := onSQL.client(t, idempotency.Options{Retry: quick}), newKey(), 0
		work := func(ctx context.Context, tx *sql.Tx) error {
			runs++
			must(t, onSQL.insert(ctx, tx, key))
			if err := end(tx); (err == nil) != (name == "ROLLBACK" || runs > 1) {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		}
		_, err := client.Transaction(background, key, nil, does(work))
		wantError(t, err, idempotency.ErrNotOwned)
		same(t, "effects", effects(t, key), "0")
		wantError(t, client.Run(background, work), idempotency.ErrNotOwned)
		same(t, "runs", runs, 2)
	}
}

// A batch is none that has succeeded if its effects are gone.
func TestBatchEndedByTheWork(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testBatchEndedByTheWork(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { testBatchEndedByTheWork(t, onSQL) })
	t.Run("database/sql with pgx", func(t *testing.T) { testBatchEndedByTheWork(t, onSQLBy("pgx")) })
}

func testBatchEndedByTheWork[Tx any](t *testing.T, b backend[Tx]) {
	client := b.client(t, idempotency.Options{})
	for _, ending := range []string{"ROLLBACK", "ROLLBACK; BEGIN"} {
		key := newKey()
		wantError(t, client.Run(background, func(ctx context.Context, tx Tx) error {
			_, err := client.BeginMany(ctx, tx, []string{key}, nil)
			must(t, err)
			must(t, b.insert(ctx, tx, key))
			_, err = client.CompleteMany(ctx, tx, []string{key}, nil)
			must(t, err)
			_ = b.exec(ctx, tx, ending)
			return nil
		}), idempotency.ErrNotOwned)
		same(t, "effects", effects(t, key), "0")
	}
}
