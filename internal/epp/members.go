package epp

import (
	"maps"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/kvindex"
)

// members are the workers that the log has introduced and not said goodbye to.
// It is safe for concurrent use.
type members struct {
	mu    sync.Mutex
	known map[kvindex.WorkerID]kvindex.Record // the last Hello
}

func newMembers() *members { return &members{known: make(map[kvindex.WorkerID]kvindex.Record)} }

// note takes over a record and reports whether its worker joined or left by it.
func (m *members) note(r *kvindex.Record) (joined, left bool) {
	if r.Kind != kvindex.KindHello && r.Kind != kvindex.KindBye {
		return false, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.known[r.Owner.Worker]
	if r.Kind == kvindex.KindHello {
		m.known[r.Owner.Worker] = *r
		return !known, false
	}
	delete(m.known, r.Owner.Worker)
	return false, known
}

// names are all members, sorted.
func (m *members) names() []kvindex.WorkerID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.known))
}

// hellos are what the members said last, in no order.
func (m *members) hellos() []kvindex.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.known))
}

// views are the members for the admin page, sorted.
func (m *members) views() []WorkerView {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]WorkerView, 0, len(m.known))
	for _, id := range slices.Sorted(maps.Keys(m.known)) {
		h := m.known[id].Hello
		list = append(list, WorkerView{Worker: id, Address: h.Address, Admin: h.Admin})
	}
	return list
}
