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
	errResponseTooLarge = errors.New("idemhttp: the handler's answer is too large")
	errUpgraded         = errors.New("idemhttp: the handler took over the connection")
	errTimeout          = errors.New("idemhttp: the handler took too long")
)

// problemOf says nothing that comes from the error itself: that may have a key, a
// scope or SQL in it.
func problemOf(err error) *Problem {
	problem := func(status int, title, detail string, after time.Duration) *Problem {
		return &Problem{"about:blank", title, status, detail, after}
	}
	var unknown *idempotency.UnknownError
	switch {
	case errors.Is(err, errNoKey), errors.Is(err, errTwoKeys), errors.Is(err, errMalformedKey):
		return problem(400, "Bad idempotency key", "The request needs one idempotency key: 1 to 255 characters of ASCII, in double quotes.", 0)
	case errors.Is(err, errRequestBroken):
		return problem(400, "Bad request", "The body of the request could not be read.", 0)
	case errors.Is(err, idempotency.ErrBadArgument):
		return problem(400, "Bad request", "The idempotency key or the request cannot be used.", 0)
	case errors.Is(err, idempotency.ErrForbidden):
		return problem(403, "Forbidden", "The service may not use this idempotency key.", 0)
	case errors.Is(err, errInProgress), errors.Is(err, idempotency.ErrLeaseLost):
		return problem(409, "Request in progress", "A request with this idempotency key is still running. Send it again later.", time.Second)
	case errors.Is(err, errRequestTooLarge):
		return problem(413, "Request too large", "The body of the request is larger than this service takes.", 0)
	case errors.Is(err, idempotency.ErrTooLarge):
		return problem(413, "Response too large", "The answer to the request is too large to be stored.", 0)
	case errors.Is(err, idempotency.ErrKeyReused):
		return problem(422, "Idempotency key reused", "This idempotency key was used before with a different request.", 0)
	case errors.As(err, &unknown):
		return problem(503, "Outcome unknown", "It is not known yet whether the request took effect. Send it again later.", atLeastSecond(unknown.RetryAfter))
	case errors.Is(err, errTimeout), isBusy(err):
		return problem(503, "Service unavailable", "Send the request again later, with the same idempotency key.", time.Second)
	}
	return problem(500, "Internal server error", "The service could not handle the request.", 0)
}

// isBusy: the same request may succeed later.
func isBusy(err error) bool {
	switch idempotency.SQLState(err) {
	case "25006", "53300", "55P03", "57014":
		return true
	}
	return idempotency.Transient(err)
}

func atLeastSecond(d time.Duration) time.Duration {
	if d < time.Second {
		return time.Second
	}
	return d
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(atLeastSecond(d).Seconds())), 10)
}

// refuse answers with the problem that fits the error.
func (m *Middleware[Tx]) refuse(r *http.Request, err error, after *time.Duration) *answer {
	problem := problemOf(err)
	if after != nil {
		problem.RetryAfter = atLeastSecond(*after)
	}
	if problem.Status == 500 {
		m.options.OnError(r, err)
	}
	if m.options.DescribedBy != "" {
		problem.Type = m.options.DescribedBy
	}
	if m.options.Problem != nil {
		m.options.Problem(r, err, problem)
	}
	body, marshalling := json.Marshal(problem)
	if marshalling != nil {
		body = []byte(`{}`)
	}
	header := http.Header{"Content-Type": {"application/problem+json"}}
	if problem.RetryAfter > 0 {
		header.Set("Retry-After", seconds(problem.RetryAfter))
	}
	if m.options.DescribedBy != "" {
		header.Set("Link", fmt.Sprintf("<%s>; rel=\"describedby\"", m.options.DescribedBy))
	}
	return &answer{status: problem.Status, header: header, body: body}
}
