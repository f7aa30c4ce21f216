package flow

import (
	"math"
	"slices"
	"time"
)

// Item is a request as the queue sees it.
type Item struct {
	// ID names it among those that wait.
	ID string
	// Tenant is whom fairness counts it for; empty is a tenant like any other.
	Tenant string
	// Lane is the same for all requests that the same workers can serve: the base
	// model. Lanes are taken to share no worker. Empty in a pool of one model.
	Lane string
	// Priority is the band: the higher is first.
	Priority int
	// Arrived is when it came.
	Arrived time.Time
	// Deadline is the last moment to release it that still meets its target: its
	// arrival plus the target, less what it takes itself without waiting. Zero: none.
	Deadline time.Time
	// Expires is when it has waited long enough; zero: Config.TTL after Arrived.
	Expires time.Time
	// Cost is its uncached tokens; less than 1 counts as 1, more than 2^40 as that.
	Cost int
	// Bytes is the memory that is held for it; less than 0 counts as 0.
	Bytes int64
}

// Reason is why a request cannot wait (any longer); empty: it waits.
type Reason string

// The reasons.
const (
	ReasonFull      Reason = "queue-full"       // no room in requests
	ReasonBytes     Reason = "queue-bytes"      // no room in bytes
	ReasonPushedOut Reason = "queue-pushed-out" // another one needed its place more
	ReasonExpired   Reason = "queue-ttl"        // it waited as long as it may
	ReasonHopeless  Reason = "slo-hopeless"     // its target cannot be met any more
	ReasonDuplicate Reason = "queue-duplicate"  // one of that ID waits already
)

// Shed is a request that has to leave without having been offered in time.
type Shed struct {
	Item

	Reason Reason
}

// Queue is the waiting requests. Every method takes O(log n) for each request that
// comes or goes, but where it says otherwise.
type Queue struct {
	config Config
	limit  load // of all
	each   load // of a band

	byID  map[string]*entry
	bands []*band // highest priority first
	lanes map[string]*lane
	load  load
	seq   uint64

	expiry heap[entry]
	shed   []Shed // reused
	moved  []*flow

	entries spares[entry]
	flows   spares[flow]
	tenants spares[tenant]
	rings   spares[ring]
	levels  spares[band]
}

// New is an empty queue. The config must be valid ([Config.Validate]).
func New(c Config) *Queue {
	return &Queue{
		config: c,
		limit:  load{n: c.MaxRequests, bytes: c.MaxBytes},
		each:   load{n: orMost(c.BandRequests), bytes: int64(orMost(int(c.BandBytes)))},
		byID:   make(map[string]*entry), lanes: make(map[string]*lane),
		expiry: heap[entry]{
			before: func(a, b *entry) bool {
				return a.until.Before(b.until) || a.until.Equal(b.until) && a.seq < b.seq
			},
			place: func(e *entry) *int { return &e.inExpiry },
		},
	}
}

func orMost(n int) int {
	if n == 0 {
		return math.MaxInt
	}
	return n
}

// Len is how many requests wait.
func (q *Queue) Len() int { return q.load.n }

// Bytes is what the waiting requests hold.
func (q *Queue) Bytes() int64 { return q.load.bytes }

// Has reports whether a request waits.
func (q *Queue) Has(id string) bool { return q.byID[id] != nil }

// Push lets a request wait. An empty reason says that it does; out are those that
// were pushed out for it, valid until the next Push or Expire. With a reason it does
// not wait and nobody was pushed out.
func (q *Queue) Push(it Item, now time.Time) (r Reason, out []Shed) {
	it.Cost, it.Bytes = min(max(it.Cost, 1), 1<<40), max(it.Bytes, 0)
	e := entry{item: it}
	q.bound(&e)
	switch {
	case q.byID[it.ID] != nil:
		return ReasonDuplicate, nil
	case !e.until.IsZero() && !e.until.After(now):
		return e.reason, nil
	}
	q.shed = q.shed[:0]
	if r := q.makeRoom(&it); r != "" {
		return r, nil
	}
	q.insert(e, now)
	return "", q.shed
}

// bound says how long a request may wait.
func (q *Queue) bound(e *entry) {
	it := &e.item
	e.until, e.reason = it.Expires, ReasonExpired
	if e.until.IsZero() && q.config.TTL > 0 {
		e.until = it.Arrived.Add(q.config.TTL)
	}
	if it.Deadline.IsZero() || !q.config.ShedHopeless {
		return
	}
	if late := it.Deadline.Add(1); e.until.IsZero() || late.Before(e.until) { // the deadline itself is in time
		e.until, e.reason = late, ReasonHopeless
	}
}

// insert adds a request for which there is room.
func (q *Queue) insert(e entry, now time.Time) {
	b := q.band(e.item.Priority)
	t := q.tenant(b, e.item.Tenant)
	f := q.flow(q.ring(b, e.item.Lane, now), t)
	n := q.entries.take()
	if n == nil {
		n = new(entry)
	}
	q.seq++
	e.seq, e.flow = q.seq, f
	*n = e
	n.older = t.newest
	if n.older != nil {
		n.older.newer = n
	}
	t.newest = n
	f.ring.lane.n++
	q.count(t, load{1, e.item.Bytes})
	f.enter(n, int64(q.config.Quantum))
	f.turns.flows.fix(f)
	if !n.until.IsZero() {
		q.expiry.push(n)
	}
	q.byID[e.item.ID] = n
}

// count adds to what a tenant holds, or takes from it.
func (q *Queue) count(t *tenant, l load) {
	t.load, t.band.load, q.load = t.load.plus(l), t.band.load.plus(l), q.load.plus(l)
	t.share = q.share(t.load)
	t.band.hogs.fix(t)
}

// remove takes a request out, and forgets what is empty then.
func (q *Queue) remove(e *entry) {
	f := e.flow
	r, t, b := f.ring, f.tenant, f.tenant.band
	delete(q.byID, e.item.ID)
	if !e.until.IsZero() {
		q.expiry.remove(e)
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	}
	r.lane.n--
	q.count(t, load{-1, -e.item.Bytes})
	if f.leave(e, int64(q.config.Quantum)) {
		f.turns.flows.fix(f)
	} else {
		q.dropFlow(f)
	}
	if t.load.n == 0 {
		b.hogs.remove(t)
		delete(b.tenants, t.name)
		q.tenants.give(t)
	}
	if b.load.n == 0 {
		i, _ := q.find(b.priority)
		q.bands = slices.Delete(q.bands, i, i+1)
		q.levels.give(b)
	}
	*e = entry{} // the client's texts are not kept
	q.entries.give(e)
}

func (q *Queue) dropFlow(f *flow) {
	r := f.ring
	f.turns.flows.remove(f)
	delete(r.byName, f.tenant.name)
	q.flows.give(f)
	if len(r.byName) > 0 {
		return
	}
	b := r.band
	i := slices.Index(b.rings, r)
	b.rings = slices.Delete(b.rings, i, i+1)
	q.rings.give(r)
}

// Pump offers waiting requests, in the order that package flow describes, until each
// lane is empty or held up, and is the number of those that left. try says of one
// whether it leaves; if not, its lane is passed over until Pump returns. try may
// read the queue; it must not change it or keep its argument.
func (q *Queue) Pump(now time.Time, try func(*Item) bool) int {
	for _, l := range q.lanes {
		l.held = false
		l.rate.pass(now, l.n > 0)
		l.used.age(now, q.config.Burst)
	}
	q.classify()
	left := 0
	for i := 0; i < len(q.bands); {
		b := q.bands[i]
		r := b.next()
		if r == nil {
			i++
			continue
		}
		f := r.top()
		e := f.entries.top()
		if !try(&e.item) {
			r.lane.held = true
			continue
		}
		left++
		b.serve(r)
		r.lane.rate.released(e.item.Cost)
		q.release(f)
	}
	return left
}

// release takes a flow's first request out and charges it.
func (q *Queue) release(f *flow) {
	e, r := f.entries.top(), f.ring
	if q.config.Burst > 0 {
		r.lane.used.add(f.tenant.name, e.item.Cost, q.config.MaxTenants)
	}
	f.pay(int64(q.config.Quantum))
	more := len(f.entries.list) > 1
	q.remove(e)
	if !more {
		return
	}
	if class := q.class(r, f.tenant.name); f.turns != &r.turns[class] {
		q.move(f, class)
		return
	}
	f.rest()
	f.turns.flows.fix(f)
}

// Cancel takes a request out and reports whether it waited.
func (q *Queue) Cancel(id string) bool {
	e := q.byID[id]
	if e == nil {
		return false
	}
	q.remove(e)
	return true
}

// Expire takes out the requests that may not wait any longer at now, in the order
// in which their time ended; valid until the next Push or Expire.
func (q *Queue) Expire(now time.Time) []Shed {
	q.shed = q.shed[:0]
	for e := q.expiry.top(); e != nil && !e.until.After(now); e = q.expiry.top() {
		q.shed = append(q.shed, Shed{Item: e.item, Reason: e.reason})
		q.remove(e)
	}
	return q.shed
}

// NextExpiry is when Expire has something to do; false if never.
func (q *Queue) NextExpiry() (time.Time, bool) {
	if e := q.expiry.top(); e != nil {
		return e.until, true
	}
	return time.Time{}, false
}

// Band is what waits with one priority.
type Band struct {
	Priority int
	Requests int
	Bytes    int64
	Cost     int64 // uncached tokens
}

// Bands appends the bands in which somebody waits, the highest first.
func (q *Queue) Bands(dst []Band) []Band {
	for _, b := range q.bands {
		dst = append(dst, Band{Priority: b.priority, Requests: b.load.n, Bytes: b.load.bytes, Cost: b.cost})
	}
	return dst
}
