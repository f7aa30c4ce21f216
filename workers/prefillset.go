package workers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// prefillSet are the addresses that may be named as prefill workers: a fixed
// list, or the workers in the log that can prefill and whose lease runs. It is
// safe for concurrent use.
type prefillSet struct {
	fixed map[string]bool // nil: follow the log

	mu      sync.Mutex
	workers map[kvindex.WorkerID]prefillWorker
}

type prefillWorker struct {
	address string
	until   time.Time
}

func newPrefillSet(allow []string) *prefillSet {
	s := &prefillSet{workers: make(map[kvindex.WorkerID]prefillWorker)}
	if len(allow) > 0 {
		s.fixed = make(map[string]bool, len(allow))
		for _, a := range allow {
			s.fixed[a] = true
		}
	}
	return s
}

// allows reports whether an address, exactly as it is spelt, may be called.
func (s *prefillSet) allows(address string) bool {
	if s.fixed != nil {
		return s.fixed[address]
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		if w.address == address && now.Before(w.until) {
			return true
		}
	}
	return false
}

// apply follows the log's records.
func (s *prefillSet) apply(records []kvindex.Record) error {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range records {
		r := &records[i]
		switch r.Kind {
		case kvindex.KindHello:
			if r.Hello.Role != kvindex.RolePrefill && r.Hello.Role != kvindex.RoleAggregated {
				delete(s.workers, r.Owner.Worker)
				continue
			}
			s.workers[r.Owner.Worker] = prefillWorker{
				address: r.Hello.Address,
				until:   now.Add(time.Duration(r.Hello.LeaseMs) * time.Millisecond),
			}
		case kvindex.KindBye:
			delete(s.workers, r.Owner.Worker)
		default: // not about who is there
		}
	}
	return nil
}

// Run follows who is in the log until ctx ends. A set with a fixed list has nothing to
// follow.
func (s *prefillSet) Run(ctx context.Context, l kvindex.Log, logger *slog.Logger) error {
	if s.fixed != nil {
		return nil
	}
	for {
		err := l.Members(ctx, s.apply)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it ended because it was told to
		}
		logger.Debug("the log no longer says who is there", "err", err)
		timer := time.NewTimer(retryMost)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
