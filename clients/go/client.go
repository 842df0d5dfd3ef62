package idempotency

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.org/idempotency/internal/option"
	"example.org/idempotency/internal/retry"
)

// Options are the defaults of a Client. The zero value is right for most.
type Options struct {
	// Scope is the name space of the keys, where a call does not name another.
	Scope string
	// Schema is where the extension is installed; "": search_path finds it.
	Schema string
	// Retention is how long records are kept; 0: the server's setting.
	Retention time.Duration
	// Lease is how long a lease runs without a heartbeat; 0: 30 seconds.
	Lease time.Duration
	// Retry says how often and how fast calls are repeated.
	Retry Retry
	// Hooks are called for metrics and logs.
	Hooks Hooks
	// Clock is where time comes from; nil: the machine's.
	Clock Clock
}

// Retry bounds the repetitions after 40001, 40P01 and a lost connection.
type Retry struct {
	// Attempts is how often a call is made at most; 0: 5.
	Attempts int
	// Base is the longest wait before the first repetition; it doubles for each
	// further one. 0: 50 ms. The wait is a random part of that ("full jitter").
	Base time.Duration
	// Cap is the longest wait; 0: 2 s.
	Cap time.Duration
}

// Client runs operations in one database. It is safe for concurrent use.
type Client[Tx any] struct {
	database Database[Tx]
	options  Options
	sql      statements
}

// New makes a client on a database of package pgxv5 or databasesql.
func New[Tx any](database Database[Tx], options Options) *Client[Tx] {
	options.Lease = option.Or(options.Lease, 30*time.Second)
	options.Retry.Attempts = option.Or(options.Retry.Attempts, 5)
	options.Retry.Base = option.Or(options.Retry.Base, 50*time.Millisecond)
	options.Retry.Cap = option.Or(options.Retry.Cap, 2*time.Second)
	if options.Clock == nil {
		options.Clock = SystemClock{}
	}
	return &Client[Tx]{database: database, options: options, sql: newStatements(options.Schema)}
}

// Scope is the scope of the client's options.
func (c *Client[Tx]) Scope() string { return c.options.Scope }

// Clock is the clock of the client's options.
func (c *Client[Tx]) Clock() Clock { return c.options.Clock }

// Option changes one call.
type Option func(*call)

// call is what one call of a Client asks for.
type call struct {
	key, scope  string
	request     *string
	requestHash []byte
	wait        time.Duration
	lease       time.Duration
	maxAttempts int
	maxLost     int
	retention   time.Duration
	level       sql.IsolationLevel
	reconcile   func(context.Context, Operation) (Reconciled, error)
	checkFound  func(Response) (Response, error)
}

// InScope names the scope of the key.
func InScope(scope string) Option { return func(c *call) { c.scope = scope } }

// WithRequestHash gives a SHA-256 of the request, 32 bytes, in place of the
// request, which must be nil then.
func WithRequestHash(hash []byte) Option { return func(c *call) { c.requestHash = hash } }

// WithWait waits that long for another owner before the answer is InProgress, from 0 to
// 36500 days. No connection is held meanwhile.
func WithWait(wait time.Duration) Option { return func(c *call) { c.wait = wait } }

// WithMaxAttempts says which attempt is the last; 0: the server's setting,
// below 0: no limit.
func WithMaxAttempts(attempts int) Option { return func(c *call) { c.maxAttempts = attempts } }

// WithMaxLostAttempts says how many attempts of Client.Transaction may be lost with
// their transaction: the next one is Failed, for good, and a consumer makes its message
// a dead letter. 0: the server's setting, below 0: no limit. A policy of the scope comes
// first, and where the server does not preload the library nobody counts.
func WithMaxLostAttempts(attempts int) Option { return func(c *call) { c.maxLost = attempts } }

// WithRetention says how long the record is kept; 0: the server's setting.
func WithRetention(retention time.Duration) Option { return func(c *call) { c.retention = retention } }

// WithIsolation sets the isolation level of the transaction.
func WithIsolation(level sql.IsolationLevel) Option { return func(c *call) { c.level = level } }

// WithLease says how long the lease of Client.Lease runs without a heartbeat; 0: as
// the client's options say.
func WithLease(lease time.Duration) Option {
	return func(c *call) { c.lease = cmp.Or(lease, c.lease) }
}

// WithReconcile gives Client.Lease the function that finds out what an attempt
// did whose lease ran out. Without one, the work has to do it.
func WithReconcile(reconcile func(context.Context, Operation) (Reconciled, error)) Option {
	return func(c *call) { c.reconcile = reconcile }
}

// WithReconcileCheck gives Client.Lease a check of the answer of a Done, which returns what
// is stored of it. What it refuses is not stored, and the outcome is Unknown. It is for
// adapters, such as idemhttp.
func WithReconcileCheck(check func(Response) (Response, error)) Option {
	return func(c *call) { c.checkFound = check }
}

func (c *Client[Tx]) newCall(key string, request any, options []Option) (*call, error) {
	call := &call{key: key, scope: c.options.Scope, lease: c.options.Lease, retention: c.options.Retention}
	for _, option := range options {
		option(call)
	}
	if err := checkTimes(call.lease, call.retention); err != nil {
		return nil, err
	}
	if call.wait < 0 || call.wait > longest {
		return nil, fmt.Errorf("idempotency: a wait of %v is below 0, or above 36500 days", call.wait)
	}
	if call.requestHash != nil && (len(call.requestHash) != sha256.Size || request != nil) {
		return nil, errors.New("idempotency: a hash of the request has 32 bytes, and stands in place of the request")
	}
	text, err := requestJSON(request)
	if text != nil {
		call.request = textOf(string(text))
	}
	return call, err
}

// longest is what the server takes.
const longest = 36_500 * 24 * time.Hour

// checkTimes refuses what the server would refuse. It is no ErrBadArgument: not the message
// or the request is wrong, but the program, so a consumer gets its message again.
func checkTimes(times ...time.Duration) error {
	for _, d := range times {
		if d != 0 && d < time.Microsecond || d > longest {
			return fmt.Errorf("idempotency: a lease or a retention of %v is below a microsecond, or above 36500 days", d)
		}
	}
	return nil
}

// await asks again until the operation is not in progress, or the time to wait is over.
// It waits here: a begin that waits in the server would hold a connection, which the owner
// may need for its end, and other callers as well.
func (c *Client[Tx]) await(ctx context.Context, wait time.Duration, ask func() (Outcome, error)) error {
	clock := c.options.Clock
	until := clock.Now().Add(wait)
	for delay := c.options.Retry.Base; ; delay *= 2 {
		outcome, err := ask()
		left := until.Sub(clock.Now())
		if err != nil || outcome != InProgress || left <= 0 {
			return err
		}
		delay = min(delay, longestPoll)
		if err := clock.Sleep(ctx, min(delay, left)); err != nil {
			return err
		}
	}
}

// longestPoll is between two questions of await.
const longestPoll = 500 * time.Millisecond

// try makes one attempt at a call. afterLoss: one before has lost its connection.
type try func(afterLoss bool) (*Result, error)

// repeat makes attempts until one does not fail with 40001, 40P01 or a lost
// connection. Of a connection that was dead when it came from the pool nothing
// was asked, so it is no attempt.
func (c *Client[Tx]) repeat(ctx context.Context, call *call, try try) (*Result, error) {
	afterLoss := false
	for attempt, dead := 1, 0; ; attempt++ {
		result, err := try(afterLoss)
		wasStale, err := unmarked(err)
		if err == nil || errors.Is(err, ErrNotDone) || !Transient(err) {
			return result, err
		}
		if over := ctx.Err(); over != nil { // nobody waits for another attempt
			return nil, &Error{over, err}
		}
		afterLoss = afterLoss || SQLState(err) != "40001" && SQLState(err) != "40P01"
		if wasStale && dead < maxDead {
			dead, attempt = dead+1, attempt-1
			continue
		}
		if attempt >= c.options.Retry.Attempts {
			return nil, err
		}
		delay := retry.Backoff(c.options.Retry.Base, c.options.Retry.Cap, attempt)
		fire(c.options.Hooks.Retried, Event{Scope: call.scope, Key: call.key, Err: err, Delay: delay})
		if over := c.options.Clock.Sleep(ctx, delay); over != nil {
			return nil, &Error{over, err}
		}
	}
}

// maxDead is more connections than a pool has, so that a server that was started
// again does not use the attempts up.
const maxDead = 100
