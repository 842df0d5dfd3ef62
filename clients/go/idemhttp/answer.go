package idemhttp

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/jsontext"
)

// answer is what a client gets.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send keeps the cookies and the Vary of what is outside of the middleware.
func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	for name, values := range a.header {
		if name == "Set-Cookie" || name == "Vary" {
			values = slices.Concat(header[name], values)
		}
		header[name] = values
	}
	switch {
	case len(a.body) > 0:
		header.Set("Content-Length", strconv.Itoa(len(a.body)))
	case r.Method != http.MethodHead:
		header.Del("Content-Length") // it would be wrong, or the server knows it
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a client that has gone will ask again
}

// stored is the part of the answer that is stored. Body is never nil, so that a
// replay has the same bytes.
func (a *answer) stored(options *Options, retention time.Duration) idempotency.Response {
	headers := map[string]string{}
	for name, values := range a.header {
		if options.isStored(name) {
			headers[name] = latin1(strings.Join(values, ", "))
		}
	}
	body := a.body
	if body == nil {
		body = []byte{}
	}
	return idempotency.Response{Code: a.status, Headers: headers, Body: body, Retention: retention}
}

// isFinal says whether HTTP can send a status, as the last one of an answer.
func isFinal(status int) bool { return status >= 200 && status <= 999 }

// Of characters that HTTP does not carry net/http makes others, and the packages for other
// languages cannot send a stored answer that has them.
var (
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	headerValue = regexp.MustCompile(`^[\t\x20-\x7e\x{80}-\x{ff}]*$`)
)

// carried is written for an answer that is not stored yet: it has only what HTTP can carry.
func carried(response idempotency.Response, otherwise int) (*answer, error) {
	for name, value := range response.Headers {
		if !headerName.MatchString(name) || !headerValue.MatchString(value) {
			return nil, fmt.Errorf("idemhttp: the header %q has a character that HTTP does not carry", name)
		}
	}
	return written(response, otherwise)
}

// written makes an answer of a Response: a payload is JSON.
func written(response idempotency.Response, otherwise int) (*answer, error) {
	a := &answer{status: cmp.Or(response.Code, otherwise), header: http.Header{}, body: response.Body}
	if !isFinal(a.status) {
		return nil, fmt.Errorf("idemhttp: an answer cannot have the status %d", a.status)
	}
	if response.Body == nil && response.Payload != nil {
		body, err := jsontext.Marshal(response.Payload)
		if err != nil {
			return nil, err
		}
		a.body = body
		a.header.Set("Content-Type", "application/json")
	}
	for name, value := range response.Headers {
		a.header.Set(name, inBytes(value))
	}
	return a, nil
}

// inBytes takes latin1 back. A text that is none, of an older record, stays as it is.
func inBytes(text string) string {
	var sent []byte
	for _, character := range text {
		if character > 0xff {
			return text
		}
		sent = append(sent, byte(character))
	}
	return string(sent)
}

// replayed makes an answer of a stored one.
func replayed(result *idempotency.Result, marker string) (*answer, error) {
	otherwise := http.StatusOK
	if result.Outcome == idempotency.Failed {
		otherwise = http.StatusUnprocessableEntity
	}
	response := idempotency.Response{Code: result.Code, Headers: result.Headers, Body: result.Body}
	if result.Payload != nil {
		response.Payload = result.Payload
	}
	a, err := written(response, otherwise)
	if err != nil {
		return nil, err
	}
	if result.RetryAfter != nil {
		a.header.Set("Retry-After", seconds(*result.RetryAfter))
	}
	if result.Replayed {
		a.header.Set(marker, "true")
	}
	return a, nil
}
