package idempotency

import "context"

// Idempotent makes a function idempotent: of all calls with the same key, one
// runs, in one transaction with the record of its result, and all get that
// result. name is the scope of the keys, so it must not change.
//
// In and Out travel as JSON. A call with the same key and another in is
// ErrKeyReused. A failure that was stored comes back as *Declined; while another
// call runs, the error is ErrInProgress. All else is as with Client.Transaction.
func Idempotent[Tx, In, Out any](client *Client[Tx], name string, f func(ctx context.Context, tx Tx, in In) (Out, error),
	options ...Option) func(ctx context.Context, key string, in In) (Out, error) {
	options = append([]Option{InScope(name)}, options...)
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
