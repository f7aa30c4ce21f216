package protocol

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
)

// link carries Envoy's connections to the picker, so that the suite can make a
// picker look dead that it did not start.
type link struct {
	target, address string
	tls             bool // to the target; Envoy speaks in clear text

	mu       sync.Mutex
	listener net.Listener // nil while down
	conns    map[net.Conn]struct{}
	running  sync.WaitGroup
}

func newLink(ctx context.Context, target string, withTLS bool) (*link, error) {
	l := &link{target: target, tls: withTLS, address: "127.0.0.1:0", conns: make(map[net.Conn]struct{})}
	if err := l.up(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// up takes connections, at the same address each time.
func (l *link) up(ctx context.Context) error {
	life := context.WithoutCancel(ctx) // connections end with the link
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("listen for Envoy: %w", err)
	}
	l.mu.Lock()
	l.listener, l.address = listener, listener.Addr().String()
	l.mu.Unlock()
	l.running.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // down
			}
			l.running.Go(func() { l.carry(life, c) })
		}
	})
	return nil
}

func (l *link) carry(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	if !l.hold(c) {
		return
	}
	defer l.drop(c)
	p, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.target)
	if err != nil {
		return // the picker is down by itself
	}
	if l.tls {
		p = tls.Client(p, anyCertificate())
	}
	defer func() { _ = p.Close() }()
	if !l.hold(p) {
		return
	}
	defer l.drop(p)
	l.running.Go(func() {
		_, _ = io.Copy(p, c) // ends when either side does
		_ = p.Close()
	})
	_, _ = io.Copy(c, p)
}

// hold notes a connection; false if the link is down.
func (l *link) hold(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// down refuses new connections and breaks those there are.
func (l *link) down() {
	l.mu.Lock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}
