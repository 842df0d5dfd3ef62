package idemhttp

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
)

// recorder holds a handler's answer back until it is committed.
type recorder struct {
	answer
	max     int
	failure error
}

func newRecorder(max int) *recorder {
	return &recorder{answer: answer{header: http.Header{}}, max: max}
}

func (r *recorder) Header() http.Header { return r.header }

// WriteHeader sets the status, once. An informational one is not sent. It panics where
// net/http does.
func (r *recorder) WriteHeader(status int) {
	switch {
	case r.status != 0:
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idemhttp: an answer cannot have the status %d", status))
	case status == http.StatusSwitchingProtocols:
		r.failure = errUpgraded
	case isFinal(status):
		r.status = status
	}
}

// Write fails where the answer becomes larger than the limit.
func (r *recorder) Write(chunk []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if len(r.body)+len(chunk) > r.max {
		r.failure = errResponseTooLarge
	}
	if r.failure != nil {
		return 0, r.failure
	}
	r.body = append(r.body, chunk...)
	return len(chunk), nil
}

// Flush sends nothing: the answer is held back. It is there for handlers that need one.
func (r *recorder) Flush() { r.WriteHeader(http.StatusOK) }

// Hijack is refused: an answer that is not seen cannot be stored.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.failure = errUpgraded
	return nil, nil, r.failure
}

// finish gives the answer, or why there is none. What a goroutine writes later is no part of it.
func (r *recorder) finish() (*answer, error) {
	r.WriteHeader(http.StatusOK)
	if r.header.Get("Content-Type") == "" && r.header.Get("Content-Encoding") == "" && len(r.body) > 0 {
		r.header.Set("Content-Type", http.DetectContentType(r.body))
	}
	return &answer{r.status, r.header.Clone(), r.body}, r.failure
}
