package protocol

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// worker is an endpoint of the suite's: an HTTP server that notes what reaches it.
type worker struct {
	address string

	mu     sync.Mutex
	seen   []seen
	handle http.HandlerFunc // nil: a short JSON answer
	server *http.Server     // nil while down
	ended  chan struct{}
}

// seen is one request as a worker got it.
type seen struct {
	worker, method, path, sum string
	size                      int
	header, trailer           http.Header
	length                    int64
	proto                     string
}

func newWorker(ctx context.Context, address string) (*worker, error) {
	w := &worker{address: address}
	if err := w.up(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// up serves, at the same address each time.
func (w *worker) up(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.address)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: w, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	w.mu.Lock()
	w.address, w.server, w.ended = l.Addr().String(), s, ended
	w.mu.Unlock()
	go func() {
		defer close(ended)
		_ = s.Serve(l) // http.ErrServerClosed
	}()
	return nil
}

// down refuses connections and breaks those there are.
func (w *worker) down() {
	w.mu.Lock()
	s, ended := w.server, w.ended
	w.server = nil
	w.mu.Unlock()
	if s != nil {
		_ = s.Close()
		<-ended
	}
}

func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	handle := w.handle
	w.mu.Unlock()
	if handle != nil {
		handle(rw, r)
		return
	}
	w.answer(rw, r, []byte(`{"object":"answer"}`))
}

// answer reads the request, notes it and answers with a body.
func (w *worker) answer(rw http.ResponseWriter, r *http.Request, body []byte) {
	if err := w.read(r); err != nil {
		return // the client left
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("X-Worker", w.address)
	_, _ = rw.Write(body)
}

// read takes in a request and notes it.
func (w *worker) read(r *http.Request) error {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, seen{
		worker: w.address, method: r.Method, path: r.URL.RequestURI(), sum: hex.EncodeToString(h.Sum(nil)), size: int(n),
		header: r.Header.Clone(), trailer: r.Trailer.Clone(), length: r.ContentLength, proto: r.Proto,
	})
	return nil
}

// take returns what was seen of a request, and forgets everything.
func (r *rig) take(id string) []seen {
	var out []seen
	for _, w := range r.workers {
		w.mu.Lock()
		for _, s := range w.seen {
			if s.header.Get("X-Request-Id") == id {
				out = append(out, s)
			}
		}
		w.seen = nil
		w.mu.Unlock()
	}
	return out
}

// with has all workers answer by a function for a while.
func (r *rig) with(handle func(w *worker) http.HandlerFunc, do func() error) error {
	set := func(of func(w *worker) http.HandlerFunc) {
		for _, w := range r.workers {
			w.mu.Lock()
			w.handle = of(w)
			w.mu.Unlock()
		}
	}
	set(handle)
	defer set(func(*worker) http.HandlerFunc { return nil })
	return do()
}
