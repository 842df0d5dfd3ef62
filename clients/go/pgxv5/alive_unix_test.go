//go:build unix

package pgxv5

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// pgx leaves a goroutine behind that reads, if a write was slow and the answer came at once.
func TestNobodyWaitsForWhoeverReads(t *testing.T) {
	client, server := connect(t, "unix", filepath.Join(t.TempDir(), "s"))
	// what comes first tells that the goroutine is at work
	first := make(chan struct{})
	go func() {
		var one [1]byte
		_, _ = client.Read(one[:])
		close(first)
		_, _ = client.Read(one[:])
	}()
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-first
	answer := make(chan bool)
	go func() {
		for range 100 {
			if isClosedByPeer(client) {
				answer <- true
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
		answer <- false
	}()
	select {
	case closed := <-answer:
		if closed {
			t.Error("a connection that is open is said to be closed")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the look waits for the other reader")
	}
}

// connect gives both ends of a connection.
func connect(t *testing.T, network, address string) (client, server net.Conn) {
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if client, err = net.Dial(network, listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// encrypted is a connection as crypto/tls has it.
type encrypted struct{ net.Conn }

func (e encrypted) NetConn() net.Conn { return e.Conn }

// A connection that is taken for a live one costs an attempt at most, and one that is taken for
// a dead one costs a round trip.
func TestClosedByPeer(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(client, server net.Conn)
		want    bool
	}{
		"nothing":       {func(_, _ net.Conn) {}, false},
		"a parameter":   {func(_, server net.Conn) { _, _ = server.Write([]byte("S")) }, false},
		"an error":      {func(_, server net.Conn) { _, _ = server.Write([]byte("E")) }, true},
		"the end":       {func(_, server net.Conn) { _ = server.Close() }, true},
		"a reset":       {func(_, server net.Conn) { _ = server.(*net.TCPConn).SetLinger(0); _ = server.Close() }, true},
		"its own close": {func(client, _ net.Conn) { _ = client.Close() }, true},
	} {
		client, server := connect(t, "tcp", "127.0.0.1:0")
		c.happens(client, server)
		for end := time.Now().Add(10 * time.Second); c.want && !isClosedByPeer(client) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if isClosedByPeer(client) != c.want || isClosedByPeer(encrypted{client}) != c.want {
			t.Errorf("%s: not %v", name, c.want)
		}
	}
	piped, _ := net.Pipe()
	if isClosedByPeer(piped) {
		t.Error("what is no socket is said to be closed")
	}
}
