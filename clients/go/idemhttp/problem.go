package idemhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"example.org/idempotency"
)

// Problem is an answer of the middleware itself, as RFC 9457 has it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// RetryAfter becomes a header, in whole seconds, at least 1; 0: none.
	RetryAfter time.Duration `json:"-"`
}

var (
	errInProgress       = errors.New("a request with this key is still running")
	errRequestTooLarge  = errors.New("the request is too large")
	errRequestBroken    = errors.New("the body of the request could not be read")
	errNotJSON          = errors.New("the body of the request is no JSON")
	errNobody           = errors.New("the option Principal has given nobody")
	errBodyTaken        = errors.New("idemhttp: the body was read before the middleware, as by FormValue: let the middleware come first")
	errBodyUnclear      = errors.New("idemhttp: the body has no length and is empty: it may have been read before the middleware")
	errResponseTooLarge = errors.New("idemhttp: the handler's answer is too large")
	errUpgraded         = errors.New("idemhttp: the handler took over the connection")
	errTimeout          = errors.New("idemhttp: the handler took too long")
	errEnded            = errors.New("idemhttp: the handler ended its goroutine")
)

const again = "Send it again, with the same key, after the time in Retry-After."

// problemOf says nothing that comes from the error itself: that may have a key, a
// scope or SQL in it. header is the name of the key's header.
func problemOf(err error, header string) *Problem {
	problem := func(status int, title, detail string, after time.Duration) *Problem {
		return &Problem{"about:blank", title, status, detail, after}
	}
	var unknown *idempotency.UnknownError
	switch {
	case errors.Is(err, errNoKey):
		return problem(400, header+" is missing", "This request needs a key that is new for each new request.", 0)
	case errors.Is(err, errTwoKeys), errors.Is(err, errMalformedKey):
		return problem(400, header+" is malformed",
			"The request needs one idempotency key: 1 to 255 characters of ASCII, in double quotes.", 0)
	case errors.Is(err, errNobody):
		return problem(401, "Authentication is required", "It is not known who asks.", 0)
	case errors.Is(err, errRequestBroken):
		return problem(400, "The body cannot be read", "It did not arrive as a whole.", 0)
	case errors.Is(err, errBodyUnclear):
		return problem(411, "The body cannot be read", "It is empty, and no Content-Length says that it should be.", 0)
	case errors.Is(err, errNotJSON):
		return problem(400, "The body cannot be read", "It is not what its Content-Type says.", 0)
	case errors.Is(err, idempotency.ErrBadArgument):
		return problem(400, "The request is not acceptable", "The idempotency key or the request cannot be used.", 0)
	case errors.Is(err, idempotency.ErrForbidden):
		return problem(403, "This Idempotency-Key may not be used here", "The service has no right to it.", 0)
	case errors.Is(err, errInProgress), errors.Is(err, idempotency.ErrLeaseLost):
		return problem(409, "A request is outstanding for this Idempotency-Key", again, time.Second)
	case errors.Is(err, errRequestTooLarge):
		return problem(413, "The request is too large", "The body of the request is larger than this service takes.", 0)
	case errors.Is(err, idempotency.ErrUnstorable):
		return problem(500, "The answer could not be stored", "The request was done, and is not repeated.", 0)
	case errors.Is(err, idempotency.ErrTooLarge):
		return problem(413, "The answer is too large to be stored", "Nothing was stored.", 0)
	case errors.Is(err, idempotency.ErrKeyReused):
		return problem(422, "Idempotency-Key is already used", "It was used with another request. Use a new key for a new request.", 0)
	case errors.As(err, &unknown):
		return problem(503, "It is not known yet whether an earlier attempt took effect", again, max(unknown.RetryAfter, time.Second))
	case err == idempotency.ErrNotDone: // with a cause, that is answered
		return problem(503, "The request was not processed", again, time.Second)
	case errors.Is(err, errTimeout):
		return problem(503, "The request took too long", again, time.Second)
	case isBusy(err):
		return problem(503, "The service is busy", again, time.Second)
	case errors.Is(err, errResponseTooLarge):
		return problem(500, "The answer is too large to be stored", "There is no answer to this request.", 0)
	}
	return problem(500, "Internal Server Error", "The service could not handle the request.", 0)
}

// isBusy: the same request may succeed later.
func isBusy(err error) bool {
	switch idempotency.SQLState(err) {
	case "25006", "53300", "55P03", "57014":
		return true
	}
	return idempotency.Transient(err)
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(max(d, time.Second).Seconds())), 10)
}

// answered is an error with its answer: Problem is asked once about it.
type answered struct {
	error
	answer  *answer
	failing bool
}

func (a *answered) Unwrap() error { return a.error }

// refuse answers with the problem that fits the error.
func (m *Middleware[Tx]) refuse(r *http.Request, err error) *answer {
	known, ok := err.(*answered)
	if !ok {
		known = m.answered(r, err)
	}
	if known.failing {
		m.options.OnError(r, known.error)
	}
	return known.answer
}

func (m *Middleware[Tx]) answered(r *http.Request, err error) *answered {
	given := err
	var after *time.Duration
	var running *idempotency.InProgressError
	if errors.As(err, &running) {
		err, after = errInProgress, running.RetryAfter
	}
	problem := problemOf(err, m.options.Header)
	if after != nil {
		problem.RetryAfter = max(*after, time.Second)
	}
	failing := problem.Status == 500
	if m.options.DescribedBy != "" {
		problem.Type = m.options.DescribedBy
	}
	if m.options.Problem != nil {
		m.options.Problem(r, err, problem)
	}
	if !isFinal(problem.Status) {
		problem.Status = http.StatusInternalServerError
	}
	body, _ := json.Marshal(problem) // texts and a number
	header := http.Header{"Content-Type": {"application/problem+json"}}
	if problem.RetryAfter > 0 {
		header.Set("Retry-After", seconds(problem.RetryAfter))
	}
	if m.options.DescribedBy != "" {
		header.Set("Link", fmt.Sprintf("<%s>; rel=\"describedby\"", m.options.DescribedBy))
	}
	return &answered{given, &answer{status: problem.Status, header: header, body: body}, failing}
}
