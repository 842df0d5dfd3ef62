package core_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// proxy is test/kit/fault_proxy.py, which stands between a client and the server.
type proxy struct {
	t      *testing.T
	mutex  sync.Mutex
	orders *json.Encoder
	lines  *bufio.Scanner
	port   int
}

// state is what the proxy has counted.
type state struct{ Hits, Trips int }

func startProxy(t *testing.T) *proxy {
	t.Helper()
	orders, lines := startOfKit(t, os.Getenv("FAULT_PROXY"), "-", os.Getenv("PGHOST")+"/.s.PGSQL."+os.Getenv("PGPORT"))
	p := &proxy{t: t, orders: json.NewEncoder(orders), lines: lines}
	must(t, p.read(&p.port))
	return p
}

// startOfKit gives the input of a program of test/kit, with which it ends, and the
// lines of its output.
func startOfKit(t *testing.T, program ...string) (io.Writer, *bufio.Scanner) {
	t.Helper()
	command := exec.Command("python3", program...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	must(t, err)
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		must(t, input.Close())
		must(t, command.Wait())
	})
	return input, bufio.NewScanner(output)
}

func (p *proxy) url() string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", os.Getenv("PGUSER"), p.port, os.Getenv("PGDATABASE"))
}

// order has been carried out when it returns.
func (p *proxy) order(order ...any) (result state) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if err := p.orders.Encode(order); err != nil {
		p.t.Errorf("%v: %v", order, err)
	} else if err := p.read(&result); err != nil {
		p.t.Errorf("%v: %v", order, err)
	}
	return result
}

func (p *proxy) state() state { return p.order("state") }

func (p *proxy) read(result any) error {
	if !p.lines.Scan() {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(p.lines.Bytes(), result)
}
