package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/safe"
)

// Handler handles a request inside a transaction. What it writes to w is held
// back until the transaction has committed, so Flush sends nothing, and w has no deadlines.
// It may run more than once: see idempotency.Client.Transaction. An error, or a panic, is a 500; a
// *idempotency.Declined is answered and stored.
type Handler[Tx any] func(w http.ResponseWriter, r *http.Request, tx Tx) error

// LeaseHandler handles a request under a lease, without a connection. The
// context of r ends when the lease is lost. Errors: see idempotency.Client.Lease.
type LeaseHandler[Tx any] func(r *http.Request, operation idempotency.Operation) (idempotency.Completion[Tx], error)

// Middleware makes handlers idempotent.
type Middleware[Tx any] struct {
	client  *idempotency.Client[Tx]
	options Options
}

// New makes a middleware on a client. It panics where neither Principal nor Scope is
// given: that is an error of the program, by which clients would get the answers of others.
func New[Tx any](client *idempotency.Client[Tx], options Options) *Middleware[Tx] {
	if options.Principal == nil && options.Scope == nil {
		panic("idemhttp: the option Principal is missing: a function of a request that says who asks, as clients must " +
			"not get the answers of others. Give idemhttp.Anyone where all clients are one")
	}
	options.setDefaults()
	return &Middleware[Tx]{client: client, options: options}
}

// Transaction makes a handler idempotent. route is the template of the route,
// such as "/accounts/{id}/payments": keys of different routes are different keys.
func (m *Middleware[Tx]) Transaction(route string, handler Handler[Tx]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.ServeTransaction(w, r, route, handler)
	})
}

// Lease makes a handler under a lease idempotent. The options may have
// idempotency.WithLease and idempotency.WithReconcile.
func (m *Middleware[Tx]) Lease(route string, handler LeaseHandler[Tx], options ...idempotency.Option) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.ServeLease(w, r, route, handler, options...)
	})
}

// ServeTransaction serves one request. It is for adapters of other frameworks.
func (m *Middleware[Tx]) ServeTransaction(w http.ResponseWriter, r *http.Request, route string, handler Handler[Tx]) {
	m.serve(w, r, route, func(ctx context.Context, e *exchange) (*answer, error) {
		if e.key == "" {
			return m.transactWithoutKey(ctx, e, handler)
		}
		return m.transact(ctx, e, handler)
	})
}

// ServeLease serves one request. It is for adapters of other frameworks.
func (m *Middleware[Tx]) ServeLease(w http.ResponseWriter, r *http.Request, route string, handler LeaseHandler[Tx],
	options ...idempotency.Option) {
	m.serve(w, r, route, func(ctx context.Context, e *exchange) (*answer, error) {
		if e.key == "" {
			return m.runWithoutKey(ctx, e, handler)
		}
		return m.lease(ctx, e, handler, options)
	})
}

// exchange is one request on its way.
type exchange struct {
	request *http.Request
	body    []byte
	key     string // "": runs without
	scope   string
	print   any
	wait    time.Duration
}

// with gives a request that a handler can read from the start. Without a key nothing is
// compared or repeated, so the body comes as it came.
func (e *exchange) with(ctx context.Context) *http.Request {
	r := e.request.Clone(ctx)
	if e.key != "" {
		r.Body = io.NopCloser(bytes.NewReader(e.body))
	}
	return r
}

func (m *Middleware[Tx]) serve(w http.ResponseWriter, r *http.Request, route string,
	run func(context.Context, *exchange) (*answer, error)) {
	e, err := m.receive(w, r, route)
	if err != nil {
		m.refuse(r, err).send(w, r)
		return
	}
	a, err := m.within(r, func(ctx context.Context) (*answer, error) { return run(ctx, e) })
	if err != nil {
		a = m.refuse(r, err)
	}
	a.send(w, r)
}

// receive reads the request and what it asks for.
func (m *Middleware[Tx]) receive(w http.ResponseWriter, r *http.Request, route string) (*exchange, error) {
	e := &exchange{request: r}
	// a stranger is not told of keys
	principal, err := m.principalOf(r)
	if err != nil {
		return nil, err
	}
	if e.key, err = m.keyOf(r); err != nil {
		return nil, err
	}
	if e.scope, err = m.scopeOf(r, route, principal); err != nil {
		return nil, err
	}
	if e.key == "" {
		return e, nil
	}
	if e.body, err = m.read(w, r); err != nil {
		return nil, err
	}
	e.wait = m.waitOf(r)
	e.print, err = fingerprint(r, e.body, m.options.Fingerprint)
	return e, err
}

// read gives the body as it was sent. If somebody has read it before, as FormValue does,
// other bodies would seem to be the same request: so that is an error.
func (m *Middleware[Tx]) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	isForm := mediaTypeOf(r) == "application/x-www-form-urlencoded"
	if r.ContentLength != 0 && (r.MultipartForm != nil || r.PostForm != nil && isForm) {
		return nil, errBodyTaken
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.options.MaxRequest))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errRequestTooLarge
	case err != nil:
		return nil, errRequestBroken
	case r.ContentLength > 0 && int64(len(body)) != r.ContentLength:
		return nil, errBodyTaken
	case r.ContentLength < 0 && len(body) == 0:
		// a length would tell whether there was something to read
		return nil, errBodyUnclear
	}
	return body, nil
}

// keyOf is "" for a request that runs without a key.
func (m *Middleware[Tx]) keyOf(r *http.Request) (string, error) {
	if m.options.Skip != nil && m.options.Skip(r) || !m.needsKey(r.Method) {
		return "", nil
	}
	key, err := keyOf(r, m.options.Header, m.options.Strict)
	if !errors.Is(err, errNoKey) {
		return key, err
	}
	if m.options.MakeKey != nil {
		key = m.options.MakeKey(r)
	}
	if key == "" && !m.options.Optional {
		return "", err
	}
	return key, nil
}

// needsKey knows a method in lower case, which routers may take for the same.
func (m *Middleware[Tx]) needsKey(method string) bool {
	return slices.ContainsFunc(m.options.Methods, func(one string) bool { return strings.EqualFold(one, method) })
}

// principalOf is "" where the scope alone counts.
func (m *Middleware[Tx]) principalOf(r *http.Request) (string, error) {
	if m.options.Principal == nil {
		return "", nil
	}
	principal := m.options.Principal(r)
	if principal == "" {
		return "", errNobody
	}
	return principal, nil
}

func (m *Middleware[Tx]) scopeOf(r *http.Request, route, principal string) (string, error) {
	if m.options.Scope != nil {
		scope := m.options.Scope(r, route)
		if scope == "" {
			return "", errNobody
		}
		return scopeOf(m.client.Scope(), scope), nil
	}
	return scopeOf(m.client.Scope(), routeScope(r.Method, route, principal)), nil
}

// waitOf obeys "Prefer: wait=n" (RFC 7240), up to the limit.
func (m *Middleware[Tx]) waitOf(r *http.Request) time.Duration {
	for _, preference := range strings.Split(strings.Join(r.Header.Values("Prefer"), ","), ",") {
		preference, _, _ = strings.Cut(preference, ";") // before its parameters
		name, value, _ := strings.Cut(preference, "=")
		n, err := strconv.ParseUint(strings.Trim(value, "\" \t"), 10, 31)
		if !strings.EqualFold(strings.TrimSpace(name), "wait") || err != nil || m.options.MaxWait < 0 {
			continue
		}
		return min(time.Duration(n)*time.Second, m.options.MaxWait)
	}
	return max(m.options.Wait, 0)
}

// within runs the work apart from the client's connection: it goes on when the
// client goes away. When the time is over, the context ends, and with it the
// transaction, even if the handler never returns.
func (m *Middleware[Tx]) within(r *http.Request, work func(context.Context) (*answer, error)) (*answer, error) {
	ctx := context.WithoutCancel(r.Context())
	if m.options.Timeout < 0 {
		return work(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var a *answer
	err := errEnded
	done, late := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err = safe.Call(func() (err error) {
			a, err = work(ctx)
			return err
		})
	}()
	go func() {
		if m.client.Clock().Sleep(ctx, m.options.Timeout) == nil {
			close(late)
		}
	}()
	select {
	case <-done:
		return a, err
	case <-late:
		return nil, errTimeout
	}
}
