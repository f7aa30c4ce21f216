package epp

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A picker that starts takes requests when it knows who is there. From a log
// that kept its state that is as soon as the state is read. An embedded log
// starts empty, and so does a new pool: then the agents come back within about a
// second of each other, and the first of them must not get everybody's requests.
const (
	// settle is how long nobody new has come when the pool counts as complete. An
	// agent looks for its log at least once a second.
	settle = time.Second
	// readyBound is when requests are taken in any case: an empty pool answers 503
	// with its reason, and a Redis that is away is no reason to answer nothing.
	readyBound = 2 * time.Second
)

// readiness is when a picker that starts may take requests. It does not turn
// back: a pool that is empty later says so to each request.
type readiness struct {
	open     chan struct{} // closed when requests may come
	opened   atomic.Bool
	progress chan struct{} // has room for one: what ready and read count changed

	// read is set once the log's present state was read completely; known then says
	// whether a ready worker was in it.
	read, known atomic.Bool
}

func newReadiness() *readiness {
	return &readiness{open: make(chan struct{}), progress: make(chan struct{}, 1)}
}

// stateRead notes that the present state was read; ready is the number of ready
// workers in it. Only the first call counts.
func (r *readiness) stateRead(ready int) {
	if r.read.Load() {
		return
	}
	r.known.Store(ready > 0)
	r.read.Store(true)
	r.changed()
}

// changed asks run to look again.
func (r *readiness) changed() {
	if r.opened.Load() {
		return
	}
	select {
	case r.progress <- struct{}{}:
	default:
	}
}

// run opens when the time has come, or ctx ends. workers counts the ready ones.
func (r *readiness) run(ctx context.Context, workers func() int) {
	bound := time.NewTimer(readyBound)
	defer bound.Stop()
	settled := time.NewTimer(readyBound)
	defer settled.Stop()
	most := 0
	for !r.known.Load() {
		select {
		case <-ctx.Done():
			return
		case <-bound.C:
		case <-settled.C:
		case <-r.progress:
			if n := workers(); n > most {
				most = n
				settled.Reset(settle)
			}
			continue
		}
		break
	}
	r.opened.Store(true)
	close(r.open)
}

// err says why requests are not taken yet; nil when they are.
func (r *readiness) err() error {
	switch {
	case r.opened.Load():
		return nil
	case !r.read.Load():
		return errors.New("starting: the log's present state is not read yet")
	default:
		return errors.New("starting: waiting for the pool's workers")
	}
}
