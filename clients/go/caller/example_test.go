package caller_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"example.org/idempotency/caller"
)

// order sends a request that takes effect once, whatever happens on the way.
func order(ctx context.Context, keys, url string) (*http.Response, error) {
	c := &caller.Caller{Store: caller.FileStore{Dir: keys}, Client: &http.Client{Timeout: 30 * time.Second}}
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"order": 17}`))
	if err != nil {
		return nil, err
	}
	return c.Do(ctx, "order 17", request) // after a restart: the same intent, the same key
}

func Example() {
	keysSeen := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		keysSeen[r.Header.Get("Idempotency-Key")] = true
	}))
	defer server.Close()
	keys, err := os.MkdirTemp("", "keys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(keys)
	for i := 0; i < 2; i++ {
		response, err := order(context.Background(), keys, server.URL)
		fmt.Println(response.StatusCode, len(keysSeen), err)
	}
	// Output:
	// 200 1 <nil>
	// 200 1 <nil>
}
