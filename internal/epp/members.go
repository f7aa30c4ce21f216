package epp

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// members are the workers that the log has introduced and not said goodbye to.
// It is safe for concurrent use.
type members struct {
	mu    sync.Mutex
	known map[kvindex.WorkerID]member
	heard time.Time // the last record of any
}

// member is one worker.
type member struct {
	hello kvindex.Record // the last
	heard time.Time      // its last record
}

func newMembers() *members { return &members{known: make(map[kvindex.WorkerID]member)} }

// note takes over a record and reports whether its worker joined or left by it.
func (m *members) note(r *kvindex.Record, now time.Time) (joined, left bool) {
	if r.Kind == kvindex.KindBooking {
		return false, false // a picker wrote it, not the worker
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = now
	old, known := m.known[r.Owner.Worker]
	switch {
	case r.Kind == kvindex.KindHello:
		m.known[r.Owner.Worker] = member{hello: *r, heard: now}
		return !known, false
	case r.Kind == kvindex.KindBye:
		delete(m.known, r.Owner.Worker)
		return false, known
	case known:
		old.heard = now
		m.known[r.Owner.Worker] = old
	}
	return false, false
}

// names are all members, sorted.
func (m *members) names() []kvindex.WorkerID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.known))
}

// present are the Hellos of those whose lease ran when the log was heard last:
// while the log is away nobody's time runs out.
func (m *members) present(defaultLease time.Duration) []kvindex.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []kvindex.Record
	for _, w := range m.known {
		lease := defaultLease
		if ms := w.hello.Hello.LeaseMs; ms > 0 {
			lease = time.Duration(ms) * time.Millisecond
		}
		if m.heard.Sub(w.heard) <= lease {
			list = append(list, w.hello)
		}
	}
	return list
}

// views are the members for the admin page, sorted.
func (m *members) views() []WorkerView {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]WorkerView, 0, len(m.known))
	for _, id := range slices.Sorted(maps.Keys(m.known)) {
		h := m.known[id].hello.Hello
		list = append(list, WorkerView{Worker: id, Address: h.Address, Admin: h.Admin})
	}
	return list
}
