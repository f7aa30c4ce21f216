package flow

import (
	"cmp"
	"slices"
	"time"
)

// OverRoom is the part of the workers' limits up to which requests of tenants over
// their share are released ([Queue.Over]), so that the others find room at once.
const OverRoom = 0.1

// mostUsed bounds what is counted of a tenant, tokens: with the most tenants that can
// be counted the sum stays below 2^61.
const mostUsed = 1 << 40

// usage is what the tenants of a lane were released of late, tokens. It is halved
// every Config.Burst, and who has used nothing is forgotten.
type usage struct {
	by    map[string]int64
	total int64
	since time.Time // of the last halving
}

// age halves what is older.
func (u *usage) age(now time.Time, burst time.Duration) {
	if burst <= 0 {
		return
	}
	n := now.Sub(u.since) / burst
	if n <= 0 {
		return
	}
	u.since, u.total = now, 0
	for name, v := range u.by {
		if v >>= min(uint64(n), 62); v == 0 {
			delete(u.by, name)
			continue
		}
		u.by[name] = v
		u.total += v
	}
}

// add counts a release.
func (u *usage) add(name string, cost, most int) {
	v, known := u.by[name]
	if !known && len(u.by) >= most {
		name = others
		v = u.by[name]
	}
	if u.by == nil {
		u.by = make(map[string]int64)
	}
	more := min(int64(cost), mostUsed-v)
	u.by[name] = v + more
	u.total += more
}

// over reports whether a tenant used more than the mean, and that by more than a
// quantum: tenants that alternate are not told apart.
func (u *usage) over(name string, quantum int) bool {
	n := int64(len(u.by))
	return u.by[name]*n > u.total+int64(quantum)*n
}

// classes says anew of each flow of a ring whether its tenant is over its share. Those
// that change come last in their new turns.
func (q *Queue) classes(r *ring) {
	q.moved = q.moved[:0]
	for i := range r.turns {
		for _, f := range r.turns[i].flows.list {
			if q.class(r, f.tenant.name) != i {
				q.moved = append(q.moved, f)
			}
		}
	}
	slices.SortFunc(q.moved, func(a, b *flow) int { return cmp.Compare(a.ticket, b.ticket) })
	for i, f := range q.moved {
		q.move(f, q.class(r, f.tenant.name))
		q.moved[i] = nil
	}
}

// move takes a flow to the turns of another class.
func (q *Queue) move(f *flow, class int) {
	f.turns.flows.remove(f)
	q.begin(f, class)
	f.key(int64(q.config.Quantum))
	f.turns.flows.fix(f)
}

// classify does that with all rings.
func (q *Queue) classify() {
	if q.config.Burst <= 0 {
		return
	}
	for _, b := range q.bands {
		for _, r := range b.rings {
			q.classes(r)
		}
	}
}

// class is the place of a tenant's turns in a ring.
func (q *Queue) class(r *ring, name string) int {
	if q.config.Burst > 0 && r.lane.used.over(name, q.config.Quantum) {
		return heavy
	}
	return light
}

// begin gives a flow its place among those of a class: last, in the next round.
func (q *Queue) begin(f *flow, class int) {
	t := &f.ring.turns[class]
	f.turns, f.credit, f.granted, f.round, f.ticket = t, 0, t.round, t.round, f.ring.next()
	t.flows.push(f)
}

// Over reports whether a request is of a tenant over its share: of late it was released
// more in its lane than the mean of the tenants, by more than a quantum.
func (q *Queue) Over(it *Item, now time.Time) bool {
	if e := q.byID[it.ID]; e != nil {
		return e.flow.turns == &e.flow.ring.turns[heavy]
	}
	l := q.lanes[it.Lane]
	if l == nil || q.config.Burst <= 0 {
		return false
	}
	l.used.age(now, q.config.Burst)
	return l.used.over(it.Tenant, q.config.Quantum)
}

// Passed counts a request that was released without waiting.
func (q *Queue) Passed(it *Item, now time.Time) {
	if q.config.Burst <= 0 {
		return
	}
	l := q.lane(it.Lane, now)
	l.used.age(now, q.config.Burst)
	l.used.add(it.Tenant, min(max(it.Cost, 1), 1<<40), q.config.MaxTenants)
}
