package simserver

import (
	"context"
	"sync"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// item is one token for one choice of a request, or the end of all of them.
type item struct {
	choice int
	token  sim.Token
	err    error
}

// sink carries tokens from the engine's goroutine to a request's. The engine
// never waits for a slow client: items wait in the sink.
type sink struct {
	ready chan struct{} // holds one token while items wait

	mu    sync.Mutex
	items []item
}

func newSink() *sink { return &sink{ready: make(chan struct{}, 1)} }

func (s *sink) push(it item) {
	s.mu.Lock()
	s.items = append(s.items, it)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// take waits for items and returns all there are. It returns the slice of the
// call before to the sink: the caller is done with it.
func (s *sink) take(ctx context.Context, used []item) ([]item, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.ready:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items := s.items
	s.items = used[:0]
	return items, nil
}
