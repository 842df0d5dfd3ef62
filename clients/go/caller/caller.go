// Package caller sends requests that must take effect once: the other half of an
// idempotent service. It keeps one key for each intent, before the first request
// goes out, and repeats the request with that key until there is an answer.
package caller

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/option"
	"example.org/idempotency/internal/retry"
)

// ErrGivenUp: no attempt had a final answer. Nobody knows whether the request took
// effect: Do with the same intent goes on where this left off.
var ErrGivenUp = errors.New("caller: no final answer")

// Caller sends requests. Store is needed, the rest has defaults.
type Caller struct {
	// Store keeps the keys.
	Store Store
	// Client sends the requests; nil: http.DefaultClient. Give it a time-out.
	Client *http.Client
	// Clock is where time comes from; nil: the machine's.
	Clock idempotency.Clock
	// Attempts is how often a request is sent by one Do at most; 0: 10.
	Attempts int
	// Base is the longest wait before the first repetition where the server asks for
	// none that is longer; it doubles. 0: 500 ms.
	Base time.Duration
	// Cap is the longest wait, whatever the server says; 0: 1 minute.
	Cap time.Duration
	// Header has the key; "": Idempotency-Key.
	Header string
}

// Do sends a request under the key of its intent, and returns the final answer.
// intent names what is to happen once, such as "pay order 17"; a program that was
// started again calls Do with the same intent and the same request.
//
// A lost answer and 409, 425, 429, 502, 503 and 504 are repeated, after the server's
// Retry-After. A replay is final, whatever its status, and so is 422. If the pause would
// outlast the context, Do ends at once with ErrGivenUp. The request
// must have no body or a GetBody, as http.NewRequest makes it; it is cloned. What can be sent
// to no URL is idempotency.ErrBadArgument at once.
//
// A redirect is followed where it keeps the method and stays with its origin: 307 and 308,
// for GET and HEAD 301 to 303 as well. Any other redirect is the final answer.
//
// The key stays in the store: call Forget when the answer is in your books.
func (c *Caller) Do(ctx context.Context, intent string, request *http.Request) (*http.Response, error) {
	if request.Body != nil && request.Body != http.NoBody && request.GetBody == nil {
		return nil, errors.New("caller: the request has no GetBody, so it cannot be sent again")
	}
	if !c.isSendable(request.URL) {
		return nil, fmt.Errorf("%w: the URL is none that a request can be sent to", idempotency.ErrBadArgument)
	}
	if intent == "" {
		return nil, errors.New("caller: the intent is empty: all requests without one would have one key")
	}
	key, err := c.Store.Key(ctx, intent)
	if err == nil && key == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("caller: cannot keep a key: %w", err)
	}
	for attempt := 1; ; attempt++ {
		response, err := c.send(ctx, key, request)
		if err == nil && isFinal(response) {
			return response, nil
		}
		if err == nil {
			err = fmt.Errorf("status %d", response.StatusCode)
		}
		if attempt >= option.Or(c.Attempts, 10) || c.sleep(ctx, c.delay(response, attempt)) != nil {
			return nil, fmt.Errorf("%w: %w", ErrGivenUp, err)
		}
	}
}

// isSendable is false for what net/http takes no request to, which it says like that an answer
// was lost. A transport of the caller's own may know what to make of any URL.
func (c *Caller) isSendable(target *url.URL) bool {
	if c.Client != nil && c.Client.Transport != nil {
		return true
	}
	return target != nil && target.Host != "" && (target.Scheme == "http" || target.Scheme == "https")
}

// Forget drops the key of an intent that is over.
func (c *Caller) Forget(ctx context.Context, intent string) error { return c.Store.Forget(ctx, intent) }

func (c *Caller) send(ctx context.Context, key string, request *http.Request) (*http.Response, error) {
	clone := request.Clone(ctx)
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			return nil, err
		}
		clone.Body = body
	}
	if clone.Header == nil {
		clone.Header = http.Header{}
	}
	clone.Header.Set(cmp.Or(c.Header, "Idempotency-Key"), strconv.Quote(key))
	client := *cmp.Or(c.Client, http.DefaultClient)
	client.CheckRedirect = keepsRequest(client.CheckRedirect)
	response, err := client.Do(clone)
	if err != nil {
		return nil, err
	}
	return whole(response)
}

// longestChain is after how many redirects the next one is the answer.
const longestChain = 10

// keepsRequest refuses a redirect that net/http would follow with another method, as it does
// without the effect, and one to an origin that the key is not for. own is the client's check.
func keepsRequest(own func(*http.Request, []*http.Request) error) func(*http.Request, []*http.Request) error {
	return func(next *http.Request, via []*http.Request) error {
		first := via[0]
		if next.Method != first.Method || next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host ||
			len(via) > longestChain {
			return http.ErrUseLastResponse
		}
		if own == nil {
			return nil
		}
		return own(next, via)
	}
}

// whole reads the answer: one that breaks off is a lost one.
func whole(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

func isFinal(response *http.Response) bool {
	isReplay := response.Header.Get("Idempotency-Replayed") == "true" || response.Header.Get("Idempotent-Replayed") == "true"
	if isReplay && response.Header.Get("Retry-After") == "" {
		return true
	}
	switch response.StatusCode {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// delay is the backoff, or what Retry-After asks for where that is longer.
func (c *Caller) delay(response *http.Response, attempt int) time.Duration {
	longest := option.Or(c.Cap, time.Minute)
	delay := retry.Backoff(option.Or(c.Base, 500*time.Millisecond), longest, attempt)
	if response != nil {
		if asked := retry.After(response.Header.Get("Retry-After"), c.clock().Now()); asked != nil {
			delay = max(delay, *asked)
		}
	}
	return min(delay, longest)
}

// sleep fails at once where the context ends before the pause does.
func (c *Caller) sleep(ctx context.Context, pause time.Duration) error {
	if end, bounded := ctx.Deadline(); bounded && time.Until(end) < pause {
		return context.DeadlineExceeded
	}
	return c.clock().Sleep(ctx, pause)
}

func (c *Caller) clock() idempotency.Clock {
	return cmp.Or[idempotency.Clock](c.Clock, idempotency.SystemClock{})
}
