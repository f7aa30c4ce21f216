package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Mode is what a proxy does with connections and bytes.
type Mode int

// The modes. Pass forwards. Delay forwards answers later by the proxy's delay.
// Stall accepts and forwards nothing, on old connections too. Refuse closes what
// there is and everything that comes. CutAnswers closes each connection within the
// next answer.
const (
	Pass Mode = iota
	Delay
	Stall
	Refuse
	CutAnswers
)

// Proxy stands between clients and a server.
type Proxy struct {
	// Addr is where it listens, on 127.0.0.1.
	Addr string

	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string
	mode   Mode
	delay  time.Duration
	turn   chan struct{} // closed when the mode changes
	conns  map[net.Conn]struct{}
	closed bool
}

// NewProxy forwards to target until t ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), listener: l, target: target, turn: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Set changes the mode, of open connections too; delay is for Delay.
func (p *Proxy) Set(m Mode, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.delay = m, delay
	close(p.turn)
	p.turn = make(chan struct{})
	if m == Refuse {
		p.drop()
	}
}

// Point forwards new connections to another server and closes the old ones.
func (p *Proxy) Point(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.drop()
}

// drop closes all connections. It holds the lock.
func (p *Proxy) drop() {
	for c := range p.conns {
		_ = c.Close() // closing is all there is to do
	}
	clear(p.conns)
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	close(p.turn)
	p.turn = make(chan struct{})
	p.drop()
	p.mu.Unlock()
	_ = p.listener.Close() // closing is all there is to do
	p.wg.Wait()
}

func (p *Proxy) now() (m Mode, delay time.Duration, turn chan struct{}, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.delay, p.turn, p.closed
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.closed || p.mode == Refuse {
			p.mu.Unlock()
			_ = client.Close() // refused
			continue
		}
		target := p.target
		p.conns[client] = struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(client, target) })
	}
}

func (p *Proxy) serve(client net.Conn, target string) {
	defer p.forget(client)
	server, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.conns[server] = struct{}{}
	p.mu.Unlock()
	defer p.forget(server)
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, false); _ = server.Close() })
	both.Go(func() { p.copy(client, server, true); _ = client.Close() })
	both.Wait()
}

func (p *Proxy) forget(c net.Conn) {
	_ = c.Close() // closed twice is fine
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// copy forwards one direction, answers if it is from the server.
func (p *Proxy) copy(dst io.Writer, src io.Reader, answers bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !p.forward(dst, buf[:n], answers) {
			return
		}
		if err != nil {
			return
		}
	}
}

var errCut = errors.New("cut")

// forward passes on some bytes when the mode lets it; false ends the connection.
func (p *Proxy) forward(dst io.Writer, b []byte, answers bool) bool {
	for {
		m, delay, turn, closed := p.now()
		var err error
		switch {
		case closed || m == Refuse:
			return false
		case m == Stall:
			<-turn
			continue
		case m == Delay && answers:
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-turn: // the bytes are not held longer than the mode
			}
			timer.Stop()
			_, err = dst.Write(b)
		case m == CutAnswers && answers:
			_, _ = dst.Write(b[:len(b)/2]) // the rest is cut
			err = errCut
		default:
			_, err = dst.Write(b)
		}
		return err == nil
	}
}
