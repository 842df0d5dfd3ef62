package idempotency

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Outcome is what a caller gets as the answer to a begin.
type Outcome string

const (
	// Acquired: the caller owns the operation and must run it.
	Acquired Outcome = "ACQUIRED"
	// InProgress: somebody else owns it, or this transaction has begun it already.
	InProgress Outcome = "IN_PROGRESS"
	// Completed: it has ended with success.
	Completed Outcome = "COMPLETED"
	// Failed: it has ended with a failure.
	Failed Outcome = "FAILED"
	// Mismatch: the key was used before with a different request. BeginMany only;
	// elsewhere that is ErrKeyReused.
	Mismatch Outcome = "MISMATCH"
)

// Operation is what the server knows of an operation when it was begun.
type Operation struct {
	Outcome    Outcome
	Scope, Key string
	// Attempt is the number of this try, from 1; 0: another session's transaction
	// owns the operation.
	Attempt int
	// TakenOver: the lease of an earlier attempt ran out. What that attempt did
	// outside of the database is unknown.
	TakenOver bool
	// Replayed: the answer was taken from the store.
	Replayed bool
	// Fence is the fencing token of a leased attempt; 0: there is none. It only
	// grows from attempt to attempt: hand it to whatever can compare it.
	Fence int64
	// LeaseLeft is how long the lease still ran when the server answered.
	LeaseLeft time.Duration
	// RetryAfter: InProgress: what is left of the owner's lease. Failed: what is
	// left until it may be tried again. nil: unknown, or never.
	RetryAfter *time.Duration
	// Code, Headers, Payload and Body are the stored answer.
	Code    int
	Headers map[string]string
	Payload json.RawMessage
	Body    []byte
	// CreatedAt is when the first attempt began, ExpiresAt when the record does.
	CreatedAt, ExpiresAt time.Time
}

// operationColumns are read by readOperation, in this order. o is the operation.
const operationColumns = `o.outcome::text, o.scope, o.idempotency_key, o.attempt::text, o.taken_over::text,
	o.replayed::text, o.fence::text, extract(epoch FROM o.lease_expires_at - clock_timestamp())::text,
	extract(epoch FROM o.retry_after)::text, o.response_code::text, o.response_headers::text,
	o.response_payload::text, encode(o.response_body, 'hex'), extract(epoch FROM o.created_at)::text,
	extract(epoch FROM o.expires_at)::text`

func readOperation(row Row) (*Operation, error) {
	r := rowReader{row: row}
	o := &Operation{
		Outcome: Outcome(r.text()), Scope: r.text(), Key: r.text(), Attempt: int(r.number()),
		TakenOver: r.text() == "true", Replayed: r.text() == "true", Fence: r.number(),
		LeaseLeft: orZero(r.duration()), RetryAfter: r.duration(),
		Code: int(r.number()), Headers: r.headers(), Payload: r.payload(), Body: r.body(),
		CreatedAt: r.time(), ExpiresAt: r.time(),
	}
	if r.err != nil {
		return nil, fmt.Errorf("idempotency: cannot read the server's answer: %w", r.err)
	}
	return o, nil
}

// rowReader reads one column after the other and keeps the first error.
type rowReader struct {
	row  Row
	next int
	err  error
}

func (r *rowReader) column() *string {
	r.next++
	return r.row[r.next-1]
}

func (r *rowReader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

func (r *rowReader) text() string {
	if value := r.column(); value != nil {
		return *value
	}
	return ""
}

func (r *rowReader) number() int64 {
	text := r.text()
	if text == "" {
		return 0
	}
	number, err := strconv.ParseInt(text, 10, 64)
	r.fail(err)
	return number
}

func (r *rowReader) seconds() *float64 {
	text := r.text()
	if text == "" {
		return nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	r.fail(err)
	return &seconds
}

func (r *rowReader) duration() *time.Duration {
	seconds := r.seconds()
	if seconds == nil {
		return nil
	}
	duration := time.Duration(*seconds * float64(time.Second))
	return &duration
}

// An infinite time is not a time to Go: it is zero, as NULL is.
func (r *rowReader) time() time.Time {
	seconds := r.seconds()
	if seconds == nil || math.IsInf(*seconds, 0) {
		return time.Time{}
	}
	return time.UnixMicro(int64(math.Round(*seconds * 1e6)))
}

func (r *rowReader) payload() json.RawMessage {
	if value := r.column(); value != nil {
		return json.RawMessage(*value)
	}
	return nil
}

// headers reads an object of names and values. Others may have stored a list of
// values, or a number, or something that has no names.
func (r *rowReader) headers() map[string]string {
	text := r.text()
	if text == "" {
		return nil
	}
	var values map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // a number stays as it was written
	_ = decoder.Decode(&values)
	headers := make(map[string]string, len(values))
	for name, value := range values {
		if list, several := value.([]any); several {
			parts := make([]string, len(list))
			for i, part := range list {
				parts[i] = fmt.Sprint(part)
			}
			headers[name] = strings.Join(parts, ", ")
			continue
		}
		headers[name] = fmt.Sprint(value)
	}
	return headers
}

func (r *rowReader) body() []byte {
	value := r.column()
	if value == nil {
		return nil
	}
	body, err := hex.DecodeString(*value)
	r.fail(err)
	return body
}

func orZero(d *time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return *d
}
