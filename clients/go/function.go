package idempotency

import "context"

// Idempotent makes a function idempotent: of all calls with the same key, one
// runs, in one transaction with the record of its result, and all get that
// result. name tells its operations from those of other functions, so it must not
// change: the scope is the one of the client, or of InScope, a dot, and the name, as in
// the packages for other languages. Without a name, Idempotent panics.
//
// In and Out travel as JSON. A call with the same key and another in is
// ErrKeyReused. A failure that was stored comes back as *Declined; while another
// call runs, the error is ErrInProgress. All else is as with Client.Transaction.
func Idempotent[Tx, In, Out any](client *Client[Tx], name string, f func(ctx context.Context, tx Tx, in In) (Out, error),
	options ...Option) func(ctx context.Context, key string, in In) (Out, error) {
	if name == "" {
		panic("idempotency: a function that runs once needs a name")
	}
	options = append(options[:len(options):len(options)], func(c *call) {
		if c.scope != "" {
			c.scope += "."
		}
		c.scope += name
	})
	return func(ctx context.Context, key string, in In) (out Out, err error) {
		result, err := client.Transaction(ctx, key, in, func(ctx context.Context, tx Tx, _ Operation) (Response, error) {
			out, err := f(ctx, tx, in)
			return Response{Payload: out}, err
		}, options...)
		if err == nil {
			err = result.failure()
		}
		if err == nil {
			err = result.Decode(&out)
		}
		return out, err
	}
}

// failure is the error that an answer without success stands for.
func (r *Result) failure() error {
	switch r.Outcome {
	case InProgress:
		return &InProgressError{RetryAfter: r.RetryAfter}
	case Failed:
		response := Response{Code: r.Code, Headers: r.Headers, Body: r.Body}
		if r.Payload != nil {
			response.Payload = r.Payload
		}
		return &Declined{Response: response, RetryAfter: r.RetryAfter}
	}
	return nil
}
