package caller_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/caller"
)

// service answers in turn. A request may come while the handler of a broken one
// still ends, so a mutex guards what is written down.
type service struct {
	mutex   sync.Mutex
	answers []func(http.ResponseWriter)
	keys    []string
	bodies  []string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mutex.Lock()
	s.keys, s.bodies = append(s.keys, r.Header.Get("Idempotency-Key")), append(s.bodies, string(body))
	answer := s.answers[len(s.keys)-1]
	s.mutex.Unlock()
	answer(w)
}

func status(code int, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
	}
}

func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func breakOff(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "100")
	_, _ = w.Write([]byte("half"))
	panic(http.ErrAbortHandler)
}

// instant is a clock whose sleeps are written down and cost nothing.
type instant struct{ slept []time.Duration }

func (c *instant) Now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
func (c *instant) Sleep(ctx context.Context, d time.Duration) error {
	c.slept = append(c.slept, d)
	return ctx.Err()
}

var _ idempotency.Clock = &instant{}

func post(t *testing.T, url string) *http.Request {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	return request
}

func do(t *testing.T, s http.Handler, c *caller.Caller) (*http.Response, error) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	return c.Do(context.Background(), "pay order 17", post(t, server.URL))
}

func TestRepeats(t *testing.T) {
	clock := &instant{}
	s := &service{answers: []func(http.ResponseWriter){hangUp, status(409, "Retry-After", "3"), breakOff,
		status(503, "Retry-After", "Thu, 01 Jan 2026 00:00:07 GMT"), status(502), status(504, "Retry-After", "100000"), status(201)}}
	// on a connection that it uses again, net/http repeats by itself
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := do(t, s, &caller.Caller{Store: &caller.MemoryStore{}, Clock: clock, Client: client})
	if err != nil || response.StatusCode != 201 {
		t.Fatal(response, err)
	}
	if len(s.keys) != 7 || len(clock.slept) != 6 {
		t.Fatalf("%d requests, %d sleeps", len(s.keys), len(clock.slept))
	}
	for i := range s.keys {
		if s.keys[i] != s.keys[0] || len(s.keys[i]) < 28 || s.bodies[i] != "body" {
			t.Fatalf("request %d: key %s, body %q", i, s.keys[i], s.bodies[i])
		}
	}
	if clock.slept[1] != 3*time.Second || clock.slept[3] != 7*time.Second || clock.slept[5] != time.Minute {
		t.Fatalf("slept %v", clock.slept)
	}
}

// A pause is the backoff at least, so that "0" or the date of a clock that is slow lets nobody
// call without a pause; and a time that is too long for a Duration is the longest pause.
func TestPauses(t *testing.T) {
	for value, want := range map[string]time.Duration{"0": 0, "Thu, 01 Jan 2026 00:00:00 GMT": 0, "-7": 0,
		"10000000000": time.Minute} {
		clock := &instant{}
		s := &service{answers: []func(http.ResponseWriter){status(425, "Retry-After", value, "Idempotency-Replayed",
			"true"), status(201)}}
		response, err := do(t, s, &caller.Caller{Store: &caller.MemoryStore{}, Clock: clock})
		if err != nil || response.StatusCode != 201 || clock.slept[0] <= want-1 || want == 0 && clock.slept[0] == 0 {
			t.Errorf("%q: %v, slept %v", value, err, clock.slept)
		}
	}
}

// A redirect that would send the request as a GET, or the key to another origin, is the answer.
func TestRedirects(t *testing.T) {
	var stranger atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stranger.Add(1) }))
	defer other.Close()
	for _, c := range []struct {
		method, location string
		code, want       int
	}{
		{"POST", "/there", 301, 301}, {"POST", "/there", 302, 302}, {"POST", "/there", 303, 303}, {"PUT", "/there", 302, 302},
		{"POST", "/there", 307, 201}, {"PUT", "/there", 308, 201}, {"GET", "/there", 302, 201}, {"HEAD", "/there", 303, 201},
		{"POST", other.URL, 307, 307}, {"GET", other.URL, 302, 302}, {"POST", "/", 308, 308},
		{"POST", "https://HOST/there", 307, 307},
	} {
		var there []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/there" {
				body, _ := io.ReadAll(r.Body)
				there = append(there, r.Method, r.Header.Get("Idempotency-Key"), string(body))
				w.WriteHeader(http.StatusCreated)
				return
			}
			w.Header().Set("Location", strings.Replace(c.location, "HOST", r.Host, 1))
			w.WriteHeader(c.code)
		}))
		var body io.Reader
		if c.method == "POST" || c.method == "PUT" {
			body = strings.NewReader("body")
		}
		request, err := http.NewRequest(c.method, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		store := &caller.MemoryStore{}
		response, err := (&caller.Caller{Store: store, Clock: &instant{}}).Do(context.Background(), "pay", request)
		server.Close()
		if err != nil || response.StatusCode != c.want {
			t.Errorf("%v: %v %v", c, response, err)
		}
		key, _ := store.Key(context.Background(), "pay")
		sent := ""
		if body != nil {
			sent = "body"
		}
		if c.want == 201 && !slices.Equal(there, []string{c.method, strconv.Quote(key), sent}) || c.want != 201 && there != nil {
			t.Errorf("%v: arrived as %q", c, there)
		}
	}
	if stranger.Load() > 0 {
		t.Error("another origin was asked")
	}
}

func TestTheClientsOwnCheckOfRedirects(t *testing.T) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := do(t, http.RedirectHandler("/there", http.StatusTemporaryRedirect),
		&caller.Caller{Store: &caller.MemoryStore{}, Client: client})
	if err != nil || response.StatusCode != 307 || response.Request.URL.Path != "" {
		t.Fatal(response, err)
	}
}

// noKey is a store that has lost what was in it.
type noKey struct{ caller.MemoryStore }

func (*noKey) Key(context.Context, string) (string, error) { return "", nil }

func TestNothingIsSentWithoutAnIntentOrAKey(t *testing.T) {
	request := post(t, "http://127.0.0.1:1/")
	for intent, store := range map[string]caller.Store{"": &caller.MemoryStore{}, "pay": &noKey{}} {
		c := &caller.Caller{Store: store, Attempts: 1}
		if _, err := c.Do(context.Background(), intent, request); err == nil || errors.Is(err, caller.ErrGivenUp) {
			t.Errorf("%q: %v", intent, err)
		}
	}
	request.GetBody = nil
	_, err := (&caller.Caller{Store: &caller.MemoryStore{}, Attempts: 1}).Do(context.Background(), "pay", request)
	if err == nil || errors.Is(err, caller.ErrGivenUp) {
		t.Errorf("a body that cannot be sent again: %v", err)
	}
}

// transport answers anything, and counts the answers that are not closed.
type transport struct {
	io.Reader
	open int
}

func (t *transport) RoundTrip(*http.Request) (*http.Response, error) {
	t.open++
	return &http.Response{StatusCode: 201, Body: t}, nil
}

func (t *transport) Close() error {
	t.open--
	return nil
}

func TestNoURL(t *testing.T) {
	for _, target := range []string{"/orders", "ftp://example.org/", "http:///orders", "example.org:80"} {
		request, clock := post(t, target), &instant{}
		_, err := (&caller.Caller{Store: &caller.MemoryStore{}, Clock: clock}).Do(context.Background(), "pay", request)
		if !errors.Is(err, idempotency.ErrBadArgument) || len(clock.slept) > 0 {
			t.Error(target, err)
		}
		answering := &transport{Reader: strings.NewReader("text")}
		own := &caller.Caller{Store: &caller.MemoryStore{}, Client: &http.Client{Transport: answering}}
		request.Header, request.Body, request.GetBody = nil, http.NoBody, nil // as net/http takes it, too
		if response, err := own.Do(context.Background(), "pay", request); err != nil ||
			response.StatusCode != 201 || answering.open != 0 {
			t.Error(target, err, answering.open)
		}
	}
}

func TestAContextThatEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := (&caller.Caller{Store: &caller.MemoryStore{}}).Do(ctx, "pay", post(t, "http://127.0.0.1:1/"))
	if !errors.Is(err, caller.ErrGivenUp) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// The pause is bounded, and one that outlasts the context is not begun.
func TestAPauseBeyondTheContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for after, sent := range map[string]int{"100000": 1, "20": 2} {
		s := &service{answers: []func(http.ResponseWriter){status(409, "Retry-After", after), status(201)}}
		server := httptest.NewServer(s)
		clock := &instant{}
		_, err := (&caller.Caller{Store: &caller.MemoryStore{}, Clock: clock}).Do(ctx, "pay", post(t, server.URL))
		server.Close()
		if errors.Is(err, caller.ErrGivenUp) != (sent == 1) || len(s.keys) != sent || len(clock.slept) != sent-1 {
			t.Errorf("%s: %v, %d requests, slept %v", after, err, len(s.keys), clock.slept)
		}
	}
}

func TestFinalAnswers(t *testing.T) {
	for _, final := range []func(http.ResponseWriter){status(200), status(422), status(400), status(402), status(500),
		status(409, "Idempotency-Replayed", "true"), status(503, "Idempotent-Replayed", "true")} {
		s := &service{answers: []func(http.ResponseWriter){final}}
		if _, err := do(t, s, &caller.Caller{Store: &caller.MemoryStore{}}); err != nil || len(s.keys) != 1 {
			t.Fatal(err, s.keys)
		}
	}
}

func TestGivesUp(t *testing.T) {
	s := &service{answers: []func(http.ResponseWriter){status(503), status(503), status(503), status(200)}}
	c := &caller.Caller{Store: &caller.MemoryStore{}, Clock: &instant{}, Attempts: 3}
	if _, err := do(t, s, c); !errors.Is(err, caller.ErrGivenUp) || len(s.keys) != 3 {
		t.Fatal(err, s.keys)
	}
	if _, err := do(t, s, c); err != nil || s.keys[3] != s.keys[0] {
		t.Fatal(err, s.keys)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []*caller.Caller{{Base: 1}, {Base: time.Hour, Cap: 1}} {
		clock, sent := &instant{}, 0
		c.Store, c.Clock, c.Header = &caller.MemoryStore{}, clock, "X-Key"
		_, err := do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if sent++; r.Header.Get("X-Key") == "" || r.Header.Get("Idempotency-Key") != "" {
				t.Error(r.Header)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}), c)
		if !errors.Is(err, caller.ErrGivenUp) || sent != 10 || slices.Max(clock.slept) > time.Microsecond {
			t.Errorf("%v, %d requests, slept %v", err, sent, clock.slept)
		}
	}
}

func TestStores(t *testing.T) {
	for name, store := range map[string]caller.Store{"memory": &caller.MemoryStore{}, "file": caller.FileStore{Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			keys := make([]string, 20)
			for i := range keys {
				all.Go(func() {
					key, err := store.Key(context.Background(), "one/intent")
					if err != nil {
						t.Error(err)
					}
					keys[i] = key
				})
			}
			all.Wait()
			for _, key := range keys {
				if key != keys[0] || key == "" {
					t.Fatal(keys)
				}
			}
			if other, err := store.Key(context.Background(), "another"); err != nil || other == keys[0] {
				t.Fatal(other, err)
			}
			for i := 0; i < 2; i++ {
				if err := (&caller.Caller{Store: store}).Forget(context.Background(), "one/intent"); err != nil {
					t.Fatal(err)
				}
			}
			if again, err := store.Key(context.Background(), "one/intent"); err != nil || again == keys[0] {
				t.Fatal(again, err)
			}
		})
	}
}

func TestFileStoreLeavesNothingHalf(t *testing.T) {
	dir := t.TempDir()
	key, err := caller.FileStore{Dir: dir}.Key(context.Background(), "intent")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := (caller.FileStore{Dir: dir}).Key(context.Background(), "intent"); err != nil || again != key {
		t.Fatal(again, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	// who made the file may have died before the directory was on the disk
	if err := os.Chmod(dir, 0o300); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	if _, err := (caller.FileStore{Dir: dir}).Key(context.Background(), "intent"); err == nil && os.Getuid() != 0 {
		t.Fatal("a key that may go away")
	}
	if _, err := (caller.FileStore{Dir: dir + "/missing"}).Key(context.Background(), "intent"); err == nil {
		t.Fatal("a key that is not kept")
	}
}
