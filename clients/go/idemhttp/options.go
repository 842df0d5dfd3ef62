package idemhttp

import (
	"cmp"
	"log"
	"net/http"
	"strings"
	"time"

	"example.org/idempotency"
)

// Options of a Middleware. Principal or Scope has to be given; the zero value of each
// other is safe.
type Options struct {
	// Header has the key; "": Idempotency-Key.
	Header string
	// Strict refuses a key without quotes.
	Strict bool
	// Optional lets a request without a key run, each time anew. Its handler reads the body
	// as it comes, without MaxRequest.
	Optional bool
	// MakeKey makes the key of a request that has none; "" is none.
	MakeKey func(r *http.Request) string
	// Methods that need a key; none: POST and PATCH. Requests of other methods run
	// without one.
	Methods []string
	// Principal names who sends the request, such as the tenant or the user. Keys
	// of different principals are different keys. "" is nobody: the answer is 401, and
	// nothing runs or is replayed. It has to be given, or Scope: Anyone, where all
	// clients are one. It is asked before there is any answer, also of a request that runs
	// without a key, so let authentication come before the middleware, and Principal read
	// what it has found.
	Principal func(r *http.Request) string
	// Scope makes the scope, in place of method, route and principal. The scope of the
	// client stands before it. Principal is asked all the same, if it is given. "" is
	// nobody, as for Principal: clients without a scope do not share one.
	Scope func(r *http.Request, route string) string
	// Fingerprint makes what two equal requests have in common, marshalled as JSON,
	// in place of media type and body. Method and target are always compared.
	Fingerprint func(r *http.Request, body []byte) (any, error)
	// Marker names the header of a replay; "": Idempotency-Replayed.
	Marker string
	// Lifetime names a header with the time until which an answer is kept; "": there is
	// none. It costs one more round trip.
	Lifetime string
	// Statuses says what becomes of an answer; nil: DefaultStatuses.
	Statuses func(status int) Keep
	// Headers of an answer that are stored beside Content-Type, Content-Encoding,
	// Content-Language, Location and ETag. A name may end with "*". Set-Cookie is never stored.
	Headers []string
	// MaxRequest is the largest request body in bytes; 0: 1 MB.
	MaxRequest int64
	// MaxResponse is the largest answer in bytes; 0: 1 MB.
	MaxResponse int
	// Skip lets a request run as one without a key.
	Skip func(r *http.Request) bool
	// Wait is how long a retry waits for the first request before its 409; 0, or below: it does not.
	Wait time.Duration
	// MaxWait bounds what a client may ask for by "Prefer: wait=n"; 0: 10 s, below
	// 0: the preference is ignored. No connection is held meanwhile.
	MaxWait time.Duration
	// Timeout is how long a handler may take, with the wait for the first request before it;
	// 0: 30 s, below 0: no limit. After it the client gets 503 and the transaction is rolled
	// back, or the lease runs out.
	Timeout time.Duration
	// DescribedBy is the address of the documentation of your keys. Each problem
	// has it as a Link and as its type.
	DescribedBy string
	// Problem may change a problem before it is sent.
	Problem func(r *http.Request, err error, problem *Problem)
	// OnError is called with each error that becomes a 500, and where HTTP cannot carry the
	// answer of a reconcile function; nil: it is logged.
	OnError func(r *http.Request, err error)
	// Call has options for each call, such as idempotency.WithRetention.
	Call []idempotency.Option
}

// Anyone is the Principal of a service whose clients are all one: each gets the stored
// answers of every other.
func Anyone(*http.Request) string { return "anyone" }

// Keep says what becomes of an answer.
type Keep struct {
	// As is Stored, Failure, Released or Discarded.
	As Kind
	// For is how long the record is kept; 0: as the client's options say.
	For time.Duration
}

// Kind is what is done with an answer.
type Kind int

const (
	// Discarded: the transaction is rolled back, and nothing is stored. A lease runs out.
	Discarded Kind = iota
	// Stored: the transaction commits with the answer.
	Stored
	// Failure: what the handler wrote is rolled back, and the answer is stored. It
	// is tried again after its Retry-After, if it has one.
	Failure
	// Released: as Discarded, and a lease is released at once: nothing has happened
	// outside.
	Released
)

// DefaultStatuses stores 2xx and 3xx, stores 4xx as failures, and discards the rest.
// Refusals of the moment are discarded, too, as they say nothing of the operation, nor that
// a leased handler has done nothing outside: 401, 403, 408, 409, 425 and 429.
func DefaultStatuses(status int) Keep {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return Keep{As: Discarded}
	}
	switch {
	case status >= 200 && status < 400:
		return Keep{As: Stored}
	case status >= 400 && status < 500:
		return Keep{As: Failure}
	}
	return Keep{As: Discarded}
}

func (o *Options) setDefaults() {
	o.Header = cmp.Or(o.Header, "Idempotency-Key")
	o.Marker = cmp.Or(o.Marker, "Idempotency-Replayed")
	o.MaxRequest = cmp.Or(o.MaxRequest, 1<<20)
	o.MaxResponse = cmp.Or(o.MaxResponse, 1<<20)
	o.MaxWait = cmp.Or(o.MaxWait, 10*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Statuses == nil {
		o.Statuses = DefaultStatuses
	}
	if o.OnError == nil {
		o.OnError = func(r *http.Request, err error) { log.Printf("idemhttp: %s %s: %v", r.Method, r.URL.Path, err) }
	}
}

// isStored says whether a header belongs to the stored answer.
func (o *Options) isStored(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Content-Type", "Content-Encoding", "Content-Language", "Location", "Etag":
		return true
	case "Set-Cookie":
		return false
	}
	for _, pattern := range o.Headers {
		prefix, isPrefix := strings.TrimSuffix(pattern, "*"), strings.HasSuffix(pattern, "*")
		if isPrefix && len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) || strings.EqualFold(name, pattern) {
			return true
		}
	}
	return false
}
