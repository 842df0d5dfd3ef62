package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"example.org/idempotency/internal/jsontext"
)

// Response is the answer that work gives, and that is stored. The zero Response
// stores a record without any.
type Response struct {
	// Code is a status code of your own, as HTTP's; 0: none.
	Code int
	// Headers are names and values.
	Headers map[string]string
	// Payload is marshalled as JSON; nil: NULL. json.RawMessage goes as it is, so
	// json.RawMessage("null") is JSON's null.
	Payload any
	// Body is replayed byte for byte; nil: NULL.
	Body []byte
	// Retention is how long the record is kept; 0: as the call says.
	Retention time.Duration
}

// Result is the answer of an operation, whether it ran now or before.
type Result struct {
	// Outcome is Completed, Failed or InProgress.
	Outcome Outcome
	// Code, Headers, Payload and Body are the answer. An answer that was stored
	// has the Payload in jsonb's spelling.
	Code    int
	Headers map[string]string
	Payload json.RawMessage
	Body    []byte
	// Replayed: the answer was taken from the store.
	Replayed bool
	// Attempt is the number of the operation's attempt; 0: unknown.
	Attempt int
	// RetryAfter: InProgress: what is left of the owner's lease, nil if the owner
	// is an open transaction. Failed: how long until the operation may be tried
	// again, nil: never.
	RetryAfter *time.Duration
	// TakenOver: the lease of an earlier attempt had run out.
	TakenOver bool
	// Record names the stored record of a replay: all replays of one record have the
	// same, and if the operation runs anew, as after idem_forget, it has another.
	// "": this call ran the operation.
	Record string
}

// Decode unmarshals the Payload into the value that target points to.
func (r *Result) Decode(target any) error {
	if r.Payload == nil {
		return nil
	}
	return json.Unmarshal(r.Payload, target)
}

// Declined is returned by work that refuses the request. What the work has
// written is rolled back, and the refusal is stored and replayed as a failure.
type Declined struct {
	// Response is what is stored.
	Response
	// RetryAfter: the operation may be tried again after that time, 36500 days at most;
	// below 0: now, nil: never.
	RetryAfter *time.Duration
}

// Decline makes a Declined that is final.
func Decline(code int, payload any) *Declined {
	return &Declined{Response: Response{Code: code, Payload: payload}}
}

// Again lets the operation be tried again after that time.
func (d *Declined) Again(after time.Duration) *Declined {
	d.RetryAfter = &after
	return d
}

// Error shows the code and never the payload.
func (d *Declined) Error() string { return fmt.Sprintf("idempotency: declined with code %d", d.Code) }

// resultOf is the answer of an operation that was not acquired.
func resultOf(o *Operation) *Result {
	return &Result{Outcome: o.Outcome, Code: o.Code, Headers: o.Headers, Payload: o.Payload, Body: o.Body,
		Replayed: o.Replayed, Attempt: o.Attempt, RetryAfter: o.RetryAfter, Record: o.record()}
}

// record is computed in the same way by the packages for other languages, so
// their consumers may share a queue.
func (o *Operation) record() string {
	if !o.Replayed {
		return ""
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\x00%s\x00%d", o.Scope, o.Key, o.CreatedAt.UnixMicro())))
	return hex.EncodeToString(sum[:])
}

// ran is the answer of an operation that this call has run.
func (o *Operation) ran(outcome Outcome, response Response, payload json.RawMessage) *Result {
	return &Result{Outcome: outcome, Code: response.Code, Headers: response.Headers, Payload: payload,
		Body: response.Body, Attempt: o.Attempt, TakenOver: o.TakenOver}
}

// marshalError does not show the cause's text, which may quote the value.
type marshalError struct{ cause error }

func (e *marshalError) Error() string {
	var unsupported *json.UnsupportedTypeError
	if errors.As(e.cause, &unsupported) {
		return "idempotency: cannot marshal the value: " + unsupported.Error()
	}
	return "idempotency: cannot marshal the value"
}

func (e *marshalError) Unwrap() error { return e.cause }

// asJSON marshals a value; nil stays nil.
func asJSON(value any) (json.RawMessage, error) {
	switch value := value.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return value, nil
	}
	text, err := jsontext.Marshal(value)
	if err != nil {
		return nil, &marshalError{err}
	}
	return text, nil
}

// requestJSON is asJSON for what is compared with that of a repeat.
func requestJSON(value any) (json.RawMessage, error) {
	text, err := asJSON(value)
	if err == nil && !jsontext.Keeps(value, text) {
		err = &Error{ErrBadArgument, errors.New("a text of the request is no UTF-8, or JSON shows no field of it")}
	}
	return text, err
}
