package core_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and the server. It counts round trips, and cuts a
// connection when a certain statement passes.
type proxy struct {
	listener net.Listener
	trips    atomic.Int64 // answers ReadyForQuery
	cuts     atomic.Int64

	mutex       sync.Mutex
	pattern     string
	beforehand  bool // cut before the server gets the statement
	refusing    bool
	connections map[net.Conn]bool
	hung        chan struct{} // closed: nothing passes any more, and nothing is closed
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{listener: listener, connections: map[net.Conn]bool{}, hung: make(chan struct{})}
	go p.accept()
	t.Cleanup(func() {
		listener.Close()
		p.cutAll()
	})
	return p
}

func (p *proxy) url() string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", os.Getenv("PGUSER"), p.listener.Addr(), os.Getenv("PGDATABASE"))
}

// cutAt cuts the next connection on which a message with the pattern passes.
func (p *proxy) cutAt(pattern string, beforehand bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.pattern, p.beforehand = pattern, beforehand
}

// refuse lets no new connection through, and cuts those that are there.
func (p *proxy) refuse(refusing bool) {
	p.mutex.Lock()
	p.refusing = refusing
	p.mutex.Unlock()
	if refusing {
		p.cutAll()
	}
}

// hang lets no message pass any more, and closes nothing.
func (p *proxy) hang() { close(p.hung) }

func (p *proxy) isHung() bool {
	select {
	case <-p.hung:
		return true
	default:
		return false
	}
}

func (p *proxy) cutAll() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for connection := range p.connections {
		connection.Close()
	}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", os.Getenv("PGHOST")+"/.s.PGSQL."+os.Getenv("PGPORT"))
		p.mutex.Lock()
		if err != nil || p.refusing {
			client.Close()
		} else {
			p.connections[client], p.connections[server] = true, true
			link := &link{proxy: p, client: client, server: server}
			go link.up()
			go link.down()
		}
		p.mutex.Unlock()
	}
}

// link is one connection through the proxy.
type link struct {
	proxy          *proxy
	client, server net.Conn
	doomed         atomic.Bool
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// up hands the client's messages on.
func (l *link) up() {
	defer l.close()
	for started := false; ; started = true {
		message, err := readMessage(l.client, started)
		if err != nil {
			return
		}
		if l.proxy.isHung() {
			continue
		}
		hit, beforehand := l.proxy.matches(message)
		if hit && beforehand {
			l.proxy.cuts.Add(1)
			return
		}
		if hit {
			l.doomed.Store(true)
		}
		if _, err := l.server.Write(message); err != nil {
			return
		}
	}
}

// down hands the server's messages on; on a doomed connection it waits until the
// server is ready, and cuts.
func (l *link) down() {
	defer l.close()
	for {
		message, err := readMessage(l.server, true)
		if err != nil {
			return
		}
		if l.proxy.isHung() {
			continue
		}
		ready := message[0] == 'Z'
		if ready {
			l.proxy.trips.Add(1)
		}
		if l.doomed.Load() {
			if ready {
				l.proxy.cuts.Add(1)
				return
			}
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

func (p *proxy) matches(message []byte) (hit, beforehand bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	hit = p.pattern != "" && strings.Contains(string(message), p.pattern)
	if hit {
		p.pattern = ""
	}
	return hit, p.beforehand
}

// readMessage reads one message of the protocol; the first has no type.
func readMessage(from io.Reader, typed bool) ([]byte, error) {
	head := 4
	if typed {
		head = 5
	}
	message := make([]byte, head)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(message[head-4:])) - 4
	message = append(message, make([]byte, length)...)
	_, err := io.ReadFull(from, message[head:])
	return message, err
}
