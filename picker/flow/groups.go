package flow

import (
	"cmp"
	"slices"
	"time"
)

// others is the tenant of those that come while too many tenants wait. No header
// can hold that name.
const others = "\x00"

// maxLanes is how many lanes are remembered although nobody waits in them: for the
// rate at which they were released.
const maxLanes = 64

// find is the place of a band, and whether it is there.
func (q *Queue) find(priority int) (int, bool) {
	return slices.BinarySearchFunc(q.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
}

// band is the band of a priority, made if need be.
func (q *Queue) band(priority int) *band {
	i, ok := q.find(priority)
	if ok {
		return q.bands[i]
	}
	b := q.levels.take()
	if b == nil {
		b = &band{
			tenants: make(map[string]*tenant),
			hogs: heap[tenant]{
				before: func(a, b *tenant) bool {
					return a.share > b.share || a.share == b.share && a.newest != nil && b.newest != nil && a.newest.seq > b.newest.seq
				},
				place: func(t *tenant) *int { return &t.place },
			},
		}
	}
	b.priority, b.turn = priority, 0
	q.bands = slices.Insert(q.bands, i, b)
	return b
}

// nameOf is the tenant that a request of that name counts for.
func (q *Queue) nameOf(b *band, name string) string {
	if b != nil && b.tenants[name] == nil && len(b.tenants) >= q.config.MaxTenants {
		return others
	}
	return name
}

// tenant is the tenant of a name in a band, made if need be.
func (q *Queue) tenant(b *band, name string) *tenant {
	name = q.nameOf(b, name)
	if t := b.tenants[name]; t != nil {
		return t
	}
	t := q.tenants.take()
	if t == nil {
		t = new(tenant)
	}
	*t = tenant{name: name, band: b}
	b.tenants[name] = t
	b.hogs.push(t)
	return t
}

// ring is the ring of a lane in a band, made if need be.
func (q *Queue) ring(b *band, name string, now time.Time) *ring {
	l := q.lane(name, now)
	for _, r := range b.rings {
		if r.lane == l {
			return r
		}
	}
	r := q.rings.take()
	if r == nil {
		r = &ring{byName: make(map[string]*flow)}
		for i := range r.turns {
			r.turns[i].flows = heap[flow]{
				before: func(a, b *flow) bool {
					return a.round < b.round || a.round == b.round && a.ticket < b.ticket
				},
				place: func(f *flow) *int { return &f.place },
			}
		}
	}
	r.lane, r.band, r.ticket = l, b, 0
	r.turns[light].round, r.turns[heavy].round = 0, 0
	b.rings = append(b.rings, r)
	b.serve(r) // it comes last
	return r
}

// lane is the lane of a name, made if need be.
func (q *Queue) lane(name string, now time.Time) *lane {
	l := q.lanes[name]
	if l == nil {
		if len(q.lanes) >= maxLanes {
			q.dropLanes()
		}
		l = &lane{name: name}
		q.lanes[name] = l
	}
	if l.n == 0 {
		l.rate.pass(now, false)
	}
	return l
}

func (q *Queue) dropLanes() {
	for name, l := range q.lanes {
		if l.n == 0 {
			delete(q.lanes, name)
		}
	}
}

// flow is what a tenant has in a ring, made if need be. A new one comes last, in the
// next round of its class.
func (q *Queue) flow(r *ring, t *tenant) *flow {
	if f := r.byName[t.name]; f != nil {
		return f
	}
	f := q.flows.take()
	if f == nil {
		f = &flow{entries: heap[entry]{before: sooner, place: func(e *entry) *int { return &e.inFlow }}}
	}
	f.tenant, f.ring = t, r
	r.byName[t.name] = f
	q.begin(f, q.class(r, t.name))
	return f
}

// next is the ring of the band that was served longest ago, of those whose lanes
// are not held up; nil if there is none.
func (b *band) next() *ring {
	var best *ring
	for _, r := range b.rings {
		if !r.lane.held && (best == nil || r.served < best.served) {
			best = r
		}
	}
	return best
}

// serve notes that it was the ring's turn.
func (b *band) serve(r *ring) {
	b.turn++
	r.served = b.turn
}
