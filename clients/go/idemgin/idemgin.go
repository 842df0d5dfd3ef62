// Package idemgin makes routes of gin idempotent. It is package idemhttp with
// gin's contexts; that has the options and the answers.
package idemgin

import (
	"bufio"
	"cmp"
	"net"
	"net/http"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"github.com/gin-gonic/gin"
)

// Handler handles a request inside a transaction. c is a copy whose answer is
// held back until the transaction has committed. An error, or a panic, is a 500, and so is
// one of c.Errors, such as of c.JSON, where the status is below 400; a
// *idempotency.Declined is answered and stored.
type Handler[Tx any] func(c *gin.Context, tx Tx) error

// LeaseHandler handles a request under a lease. c is a copy: the answer is what
// the handler returns. The context of c.Request ends when the lease is lost.
type LeaseHandler[Tx any] func(c *gin.Context, operation idempotency.Operation) (idempotency.Completion[Tx], error)

// Transaction makes a handler idempotent. The route's template, as
// gin.Context.FullPath gives it, is part of the scope.
func Transaction[Tx any](m *idemhttp.Middleware[Tx], handler Handler[Tx]) gin.HandlerFunc {
	return func(c *gin.Context) {
		own := c.Copy()
		m.ServeTransaction(c.Writer, c.Request, c.FullPath(), func(w http.ResponseWriter, r *http.Request, tx Tx) error {
			held := copyOf(own, r)
			answer := &writer{ResponseWriter: w}
			held.Writer = answer
			if err := handler(held, tx); err != nil {
				return err
			}
			answer.WriteHeaderNow()
			if err := held.Errors.Last(); err != nil && answer.Status() < http.StatusBadRequest {
				return err
			}
			return nil
		})
		c.Abort()
	}
}

// Lease makes a handler under a lease idempotent.
func Lease[Tx any](m *idemhttp.Middleware[Tx], handler LeaseHandler[Tx], options ...idempotency.Option) gin.HandlerFunc {
	return func(c *gin.Context) {
		own := c.Copy()
		m.ServeLease(c.Writer, c.Request, c.FullPath(),
			func(r *http.Request, o idempotency.Operation) (idempotency.Completion[Tx], error) {
				return handler(copyOf(own, r), o)
			}, options...)
		c.Abort()
	}
}

// copyOf is for a handler that may outlive the request, after a time-out, or begin then: gin
// uses contexts again. So c is a copy itself, and each run has one of its own.
func copyOf(c *gin.Context, r *http.Request) *gin.Context {
	held := c.Copy()
	held.Request = r
	return held
}

// writer gives gin what it asks of a writer, on one that holds the answer back.
type writer struct {
	http.ResponseWriter
	status, size int
	written      bool
}

func (w *writer) WriteHeader(status int) {
	if !w.written && status > 0 {
		w.status = status
	}
}

// WriteHeaderNow hands the status on.
func (w *writer) WriteHeaderNow() {
	if !w.written {
		w.written = true
		w.ResponseWriter.WriteHeader(w.Status())
	}
}

func (w *writer) Write(part []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(part)
	w.size += n
	return n, err
}

func (w *writer) WriteString(text string) (int, error) { return w.Write([]byte(text)) }

// Status is 200 where none was set.
func (w *writer) Status() int {
	return cmp.Or(w.status, http.StatusOK)
}

func (w *writer) Size() int { return w.size }

func (w *writer) Written() bool { return w.written }

// Flush sends nothing: the answer is held back.
func (w *writer) Flush() { w.WriteHeaderNow() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.ResponseWriter.(http.Hijacker).Hijack()
}

// CloseNotify never fires: the work goes on without its client.
func (w *writer) CloseNotify() <-chan bool { return make(chan bool) }

func (w *writer) Pusher() http.Pusher { return nil }
