package idempotency

import (
	"context"
	"encoding/json"
	"strconv"
)

// BeginMany begins the operations of a batch in a transaction of yours, in one
// statement. It returns an Operation per key, in the order of the keys. A key
// that was used before with another request has the Outcome Mismatch and does
// not fail the others; a key that occurs twice is InProgress the second time.
//
// requests are nil, or one per key (nil: no check). Run those that are Acquired,
// give them to CompleteMany, and commit: COMMIT is refused while one is open.
// After 40001, 40P01 or a lost connection begin the whole again: see Transient. But if
// none was Acquired, not after a COMMIT whose answer was lost: your writes might be made twice.
func (c *Client[Tx]) BeginMany(ctx context.Context, tx Tx, keys []string, requests []any,
	options ...Option) ([]Operation, error) {
	call, err := c.newCall("", nil, options)
	if err != nil {
		return nil, err
	}
	payloads, err := payloadsOf(requests, requestJSON)
	if err != nil {
		return nil, err
	}
	rows, err := c.database.In(ctx, tx, Statement{c.sql.beginMany,
		[]*string{keysOf(keys), payloads, textOf(call.scope), maxAttemptsOf(call.maxAttempts)}})
	if err != nil {
		return nil, ofBegin(ofStatement(err))
	}
	operations := make([]Operation, len(rows))
	for i, row := range rows {
		o, err := readOperation(row)
		if err != nil {
			return nil, err
		}
		c.options.Hooks.begun(o)
		operations[i] = *o
	}
	return operations, nil
}

// CompleteMany ends operations that this transaction has begun, in one statement,
// and returns how many. payloads are nil, or one per key, marshalled as JSON.
func (c *Client[Tx]) CompleteMany(ctx context.Context, tx Tx, keys []string, payloads []any, options ...Option) (int, error) {
	call, err := c.newCall("", nil, options)
	if err != nil {
		return 0, err
	}
	responses, err := payloadsOf(payloads, asJSON)
	if err != nil {
		return 0, err
	}
	rows, err := c.database.In(ctx, tx, Statement{c.sql.completeMany,
		[]*string{keysOf(keys), responses, textOf(call.scope)}})
	if err != nil {
		return 0, ofStatement(err)
	}
	return strconv.Atoi(*rows[0][0])
}

func keysOf(keys []string) *string {
	texts := make([]*string, len(keys))
	for i := range keys {
		texts[i] = &keys[i]
	}
	return arrayOf(texts)
}

// payloadsOf is a jsonb array, or NULL where there is nothing.
func payloadsOf(values []any, marshal func(any) (json.RawMessage, error)) (*string, error) {
	if values == nil {
		return nil, nil
	}
	texts := make([]*string, len(values))
	for i, value := range values {
		text, err := marshal(value)
		if err != nil {
			return nil, err
		}
		texts[i] = textOrNull(text)
	}
	return arrayOf(texts), nil
}
