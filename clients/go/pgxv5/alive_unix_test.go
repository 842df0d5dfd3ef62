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
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	// what comes first tells that the goroutine is at work
	first := make(chan struct{})
	go func() {
		var one [1]byte
		_, _ = client.Read(one[:])
		close(first)
		_, _ = client.Read(one[:])
	}()
	if _, err = server.Write([]byte("x")); err != nil {
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
