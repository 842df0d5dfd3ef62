package http_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/internal/tests/kit"
	"github.com/jackc/pgx/v5"
)

// The handler of a request without a key reads the body as it comes: here the client sends
// the rest when the handler has got the beginning.
func testBodyIsNotReadWithoutKey(t *testing.T, s site) {
	mark, begun := newKey(), make(chan bool)
	m := middleware(idemhttp.Options{MaxRequest: 4, Skip: func(*http.Request) bool { return true }})
	read := func(r *http.Request) (string, error) {
		part := make([]byte, 5)
		_, err := io.ReadFull(r.Body, part)
		close(begun)
		rest, failure := io.ReadAll(r.Body)
		return string(part) + string(rest), errors.Join(err, failure)
	}
	for _, handler := range []http.Handler{
		s.transaction(m, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			text, err := read(r)
			_, _ = w.Write([]byte(text))
			return errors.Join(err, insert(r.Context(), tx, mark))
		}),
		s.lease(m, func(r *http.Request, _ idempotency.Operation) (completion, error) {
			text, err := read(r)
			return completion{Response: idempotency.Response{Body: []byte(text)},
				Writes: func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, mark) }}, err
		}),
	} {
		begun = make(chan bool)
		body, client := io.Pipe()
		go func() {
			_, _ = client.Write([]byte("first"))
			<-begun
			_, _ = client.Write([]byte(" second"))
			_ = client.Close()
		}()
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("POST", "/route", body))
		if recorder.Code != 200 || recorder.Body.String() != "first second" {
			t.Fatal(recorder.Code, recorder.Body)
		}
	}
	expect(t, mark, 2, 0)
}

// Who reads the body first hides it from the middleware.
func testBodyThatWasRead(t *testing.T, s site) {
	const form, multipart = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
	const parts = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"
	readAll := func(r *http.Request) { _, _ = io.ReadAll(r.Body) }
	for name, c := range map[string]struct {
		kind, body string
		first      func(*http.Request)
		length     int64
		want       int
	}{
		"form":             {form, "a=1", func(r *http.Request) { r.FormValue("a") }, 0, 500},
		"form in chunks":   {form, "a=1", func(r *http.Request) { r.FormValue("a") }, -1, 500},
		"multipart":        {multipart, parts, func(r *http.Request) { r.FormValue("a") }, -1, 500},
		"JSON":             {"application/json", "{}", readAll, 0, 500},
		"a part":           {"application/json", "[1]", func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 1)) }, 0, 500},
		"JSON in chunks":   {"application/json", "{}", readAll, -1, 411},
		"empty, in chunks": {"application/json", "", func(r *http.Request) {}, -1, 411},
		"nothing was read": {"application/json", "{}", func(r *http.Request) { r.FormValue("a") }, 0, 200},
		"an empty form":    {form, "", func(r *http.Request) { r.FormValue("a") }, 0, 200},
		"chunks, unread":   {"application/json", "{}", func(r *http.Request) {}, -1, 200},
		"form, unread":     {form, "a=1", func(r *http.Request) {}, 0, 200},
		"too large":        {form, strings.Repeat("a", 101), func(r *http.Request) {}, 0, 413},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			handler := s.transaction(middleware(idemhttp.Options{MaxRequest: 100, DescribedBy: "https://example.org/keys",
				OnError: func(*http.Request, error) {}}), inserts(key))
			before := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.length < 0 {
					r.ContentLength = c.length
				}
				c.first(r)
				handler.ServeHTTP(w, r)
			})
			header, body := expectStatus(t, c.want, before, "POST", key, c.body, "Content-Type", c.kind)
			if c.want == 200 {
				expect(t, key, 1, 1)
				return
			}
			isProblem(t, c.want, c.want, header, body)
			if header.Get("Link") != `<https://example.org/keys>; rel="describedby"` ||
				!strings.Contains(body, `"type":"https://example.org/keys"`) {
				t.Fatal(header, body)
			}
			expect(t, key, 0, 0)
		})
	}
}

// What does not arrive as a whole does not run.
func testBrokenUploads(t *testing.T, s site) {
	for name, head := range map[string]string{
		"shorter than it says": "Content-Length: 10\r\n\r\nhalf",
		"a chunk is missing":   "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			server := httptest.NewServer(s.transaction(middleware(idemhttp.Options{}), inserts(key)))
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			kit.Must(t, err)
			_, err = fmt.Fprintf(conn, "POST /route HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\n%s", key, head)
			kit.Must(t, err)
			kit.Must(t, conn.(*net.TCPConn).CloseWrite())
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != 400 {
				t.Fatal(answer, err)
			}
			conn.Close()
			expect(t, key, 0, 0)
		})
	}
}
