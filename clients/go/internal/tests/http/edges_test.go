package http_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemgin"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/internal/tests/kit"
	"example.org/idempotency/pgxv5"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
)

// As net/http has it: a status that is none panics, and an informational one is not the last.
func TestStatusesOfAHandler(t *testing.T) {
	for code, want := range map[int]int{0: 500, 42: 500, 1000: 500, 101: 500, 103: 201} {
		key := newKey()
		handler := middleware(idemhttp.Options{OnError: func(*http.Request, error) {}}).Transaction("/route",
			func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				w.WriteHeader(code)
				w.WriteHeader(201)
				return insert(r.Context(), tx, key)
			})
		expectStatus(t, want, handler, "POST", key, "")
	}
}

// gin ignores a status that is not positive: c.JSON(-1, ...) leaves the one that was set.
func TestGinKeepsAStatus(t *testing.T) {
	key := newKey()
	handler := onGin(idemgin.Transaction(middleware(idemhttp.Options{}), func(c *gin.Context, tx pgx.Tx) error {
		c.Status(402)
		c.JSON(-1, "no")
		return insert(c.Request.Context(), tx, key)
	}))
	if _, body := expectStatus(t, 402, handler, "POST", key, ""); body != `"no"` {
		t.Error(body)
	}
	expect(t, key, 0, 1)
}

// gin is told of an answer that is held back what it is told of any.
func TestGinWriter(t *testing.T) {
	handler := onGin(idemgin.Transaction(middleware(idemhttp.Options{}), func(c *gin.Context, _ pgx.Tx) error {
		if c.Writer.Written() {
			t.Error("written")
		}
		c.Writer.Flush()
		c.Status(500)
		_, _ = c.Writer.WriteString("text")
		if c.Writer.Status() != 200 || !c.Writer.Written() || c.Writer.Size() != 4 {
			t.Error(c.Writer.Status(), c.Writer.Written(), c.Writer.Size())
		}
		return nil
	}))
	expectStatus(t, 200, handler, "POST", newKey(), "")
}

// An answer that gin could not write is no success.
func TestGinErrors(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*gin.Context)
		want   int
	}{
		"no JSON":        {func(c *gin.Context) { c.JSON(201, make(chan int)) }, 500},
		"an error":       {func(c *gin.Context) { _ = c.Error(errors.New("planned")) }, 500},
		"with an answer": {func(c *gin.Context) { _ = c.AbortWithError(422, errors.New("planned")) }, 422},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			handler := onGin(idemgin.Transaction(middleware(idemhttp.Options{OnError: func(*http.Request, error) {}}),
				func(held *gin.Context, tx pgx.Tx) error {
					c.answer(held)
					return insert(held.Request.Context(), tx, key)
				}))
			expectStatus(t, c.want, handler, "POST", key, "")
			expect(t, key, 0, c.want/422-c.want/500)
		})
	}
}

// gin uses a context again for the next request, maybe before the handler of one that was
// too late has begun.
func TestGinHandlerAfterItsTime(t *testing.T) {
	clock := idempotency.NewFakeClock(time.Unix(0, 0))
	acquired, next, saw := make(chan bool), make(chan bool), make(chan string, 1)
	client := idempotency.New(pgxv5.Pool(pool),
		idempotency.Options{Clock: clock, Hooks: idempotency.Hooks{Acquired: func(idempotency.Event) {
			close(acquired)
			<-next
		}}})
	m := idemhttp.New(client, idemhttp.Options{Principal: idemhttp.Anyone, Timeout: time.Minute})
	engine := gin.New()
	engine.POST("/accounts/:id", idemgin.Transaction(m, func(c *gin.Context, _ pgx.Tx) error {
		saw <- c.Param("id")
		return nil
	}))
	engine.GET("/other/:id", func(*gin.Context) {})
	go func() {
		<-acquired
		clock.AwaitSleepers(1)
		clock.Advance(time.Minute)
	}()
	request := httptest.NewRequest("POST", "/accounts/ann", nil)
	request.Header.Set("Idempotency-Key", newKey())
	answer := httptest.NewRecorder()
	engine.ServeHTTP(answer, request)
	if answer.Code != 503 {
		t.Fatal(answer.Code, answer.Body)
	}
	for range 100 {
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/other/bob", nil))
	}
	close(next)
	if id := <-saw; id != "ann" {
		t.Errorf("the handler saw %q", id)
	}
}

// The time until which an answer is kept is asked after COMMIT, of a database that may hang then.
func TestLifetimeOfADatabaseThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	lock, err := pool.Begin(ctx)
	kit.Must(t, err)
	var locking sync.WaitGroup
	defer func() {
		cancel()
		locking.Wait()
		lock.Rollback(context.Background())
	}()
	handler := middleware(idemhttp.Options{Timeout: -1, Lifetime: "Idempotency-Expires"}).Transaction("/route",
		func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			// it waits until this transaction has ended, and the look-up behind it
			_, err := tx.Exec(r.Context(), "LOCK TABLE idempotency_store IN ROW EXCLUSIVE MODE")
			locking.Go(func() { lock.Exec(ctx, "LOCK TABLE idempotency_store IN ACCESS EXCLUSIVE MODE") })
			for waits := false; err == nil && !waits; {
				err = tx.QueryRow(r.Context(),
					"SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'").Scan(&waits)
			}
			return err
		})
	answered := make(chan int, 1)
	go func() {
		status, _, _ := send(t, handler, "POST", newKey(), "")
		answered <- status
	}()
	select {
	case status := <-answered:
		if status != 200 {
			t.Error(status)
		}
	case <-time.After(time.Minute):
		t.Error("no answer")
	}
}

// Of a handler that was too late nothing more is told than that.
func TestWhatComesTooLateIsNoProblem(t *testing.T) {
	clock, problems := idempotency.NewFakeClock(time.Unix(0, 0)), atomic.Int64{}
	m := idemhttp.New(idempotency.New(pgxv5.Pool(pool), idempotency.Options{Clock: clock}), idemhttp.Options{Principal: idemhttp.Anyone,
		Timeout: time.Minute, Problem: func(*http.Request, error, *idemhttp.Problem) { problems.Add(1) }})
	handler := m.Transaction("/route", func(_ http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		clock.Advance(time.Minute)
		<-r.Context().Done()
		return errors.New("planned")
	})
	expectStatus(t, 503, handler, "POST", newKey(), "")
	for pool.Stat().AcquiredConns() > 0 { // until the handler's transaction has ended
		time.Sleep(time.Millisecond)
	}
	if n := problems.Load(); n != 1 {
		t.Errorf("%d problems", n)
	}
}

// A handler that runs again gets the request as it came, whatever it has made of it before.
func TestARepeatedHandlerGetsTheRequestAsItCame(t *testing.T) {
	for _, s := range sites {
		runs := 0
		handler := s.transaction(middleware(idemhttp.Options{}), func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			if r.Header.Get("Authorization") == "" || r.URL.Path != "/route" || r.FormValue("a") != "1" {
				w.WriteHeader(401)
				return nil
			}
			r.Header.Del("Authorization")
			r.URL.Path = "/"
			if runs++; runs == 1 {
				_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
				return err
			}
			return nil
		})
		expectStatus(t, 200, handler, "POST", newKey(), "a=1", "Content-Type", "application/x-www-form-urlencoded",
			"Authorization", "ann")
		if runs != 2 {
			t.Error(runs)
		}
	}
}

// A handler whose goroutine ends, as t.FailNow ends it, has no answer.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	for _, s := range sites {
		key := newKey()
		handler := s.transaction(middleware(idemhttp.Options{OnError: func(*http.Request, error) {}}),
			func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				kit.Must(t, insert(r.Context(), tx, key))
				runtime.Goexit()
				return nil
			})
		expectProblem(t, 500, handler, key)
		expect(t, key, 0, 0)
	}
}

// No list of methods lets each request run without a key.
func TestMethods(t *testing.T) {
	for _, c := range []struct {
		methods   []string
		post, put int
	}{{[]string{}, 400, 200}, {[]string{"put"}, 200, 400}} {
		handler := middleware(idemhttp.Options{Methods: c.methods}).Transaction("/route", inserts("none"))
		expectStatus(t, c.post, handler, "POST", "", "")
		expectStatus(t, c.put, handler, "PUT", "", "")
	}
}

// Headers of an answer, over a connection.
func TestHeadersOfAnAnswer(t *testing.T) {
	for _, s := range sites {
		for name, c := range map[string]struct {
			method  string
			handler work
			want    map[string]string
		}{
			"wrong length": {"POST", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
				w.Header().Set("Content-Length", "9")
				return nil
			}, map[string]string{"Content-Length": "0", "Content-Type": ""}},
			"HEAD": {"HEAD", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
				w.Header().Set("Content-Length", "9")
				return nil
			}, map[string]string{"Content-Length": "9"}},
			"packed": {"POST", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = io.WriteString(w, "\x1f\x8b\x08")
				return nil
			}, map[string]string{"Content-Type": "", "Content-Length": "3"}},
			"long": {"POST", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
				_, _ = w.Write(make([]byte, 10_000))
				return nil
			}, map[string]string{"Content-Length": "10000"}},
			"of outside": {"POST", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
				http.SetCookie(w, &http.Cookie{Name: "own", Value: "1"})
				w.Header().Add("Vary", "Accept")
				return nil
			}, map[string]string{"Set-Cookie": "session=1, own=1", "Vary": "Origin, Accept"}},
		} {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				inner := s.transaction(middleware(idemhttp.Options{}), c.handler)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Set-Cookie", "session=1")
					w.Header().Set("Vary", "Origin")
					inner.ServeHTTP(w, r)
				}))
				defer server.Close()
				key := newKey()
				for round := range 2 {
					request, err := http.NewRequest(c.method, server.URL+"/route", nil)
					kit.Must(t, err)
					request.Header.Set("Idempotency-Key", key)
					request.Header.Set("Accept-Encoding", "identity")
					answer, err := http.DefaultTransport.RoundTrip(request)
					kit.Must(t, err)
					_, err = io.ReadAll(answer.Body)
					kit.Must(t, err)
					for header, want := range c.want {
						if got := strings.Join(answer.Header.Values(header), ", "); got != want && !(round == 1 && name == "of outside") {
							t.Errorf("round %d: %s is %q, not %q", round, header, got, want)
						}
					}
				}
			})
		}
	}
}

// Problem may give a status that is none.
func TestProblemWithoutAStatus(t *testing.T) {
	handler := middleware(idemhttp.Options{OnError: func(*http.Request, error) {},
		Problem: func(_ *http.Request, _ error, problem *idemhttp.Problem) { problem.Status = 0 }}).Transaction("/route",
		fails(errors.New("planned")))
	expectStatus(t, 500, handler, "POST", newKey(), "")
}

// HTTP has a byte for each character. What is stored is the text that the other languages make of the bytes, and send.
func TestBytesOfHeaders(t *testing.T) {
	m := middleware(idemhttp.Options{Headers: []string{"X-Payment"}})
	for sent, text := range map[string]string{"caf\xe9": "caf\u00e9", "caf\u00e9": "caf\u00c3\u00a9"} {
		key := newKey()
		handler := m.Transaction("/route", func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error {
			w.Header().Set("X-Payment", sent)
			return nil
		})
		for range 2 {
			if header, _ := expectStatus(t, 200, handler, "POST", key, ""); header.Get("X-Payment") != sent {
				t.Errorf("%q is sent as %q", sent, header.Get("X-Payment"))
			}
		}
		var stored string
		kit.Must(t, pool.QueryRow(context.Background(),
			"SELECT response_headers ->> 'X-Payment' FROM idempotency_store WHERE idempotency_key = $1",
			key).Scan(&stored))
		if stored != text {
			t.Errorf("%q is stored as %q", sent, stored)
		}
		leased := m.Lease("/route", answers(idempotency.Response{Headers: map[string]string{"X-Payment": text}}))
		key = newKey()
		for range 2 {
			if header, _ := expectStatus(t, 200, leased, "POST", key, ""); header.Get("X-Payment") != sent {
				t.Errorf("%q of a lease is sent as %q", text, header.Get("X-Payment"))
			}
		}
	}
}
