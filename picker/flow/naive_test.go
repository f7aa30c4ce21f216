package flow

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// naive is the queue's specification, written for being read: a list that is
// searched for everything.
type naive struct {
	config Config
	list   []*waiting
	seq    uint64
	flows  map[flowKey]*account
	rings  map[ringKey]*tickets
	lanes  map[int][]string          // of a band, the next one first
	used   map[string]map[string]int // by lane and tenant
	halved map[string]time.Time
}

type waiting struct {
	Item

	seq    uint64
	tenant string // that it counts for
}

type flowKey struct {
	priority     int
	lane, tenant string
}

type ringKey struct {
	priority int
	lane     string
}

// account is a flow's credit, granted with every round.
type account struct {
	credit int
	ticket int
	heavy  bool
}

// tickets is a ring: round after round everybody is granted a quantum.
type tickets struct{ ticket int }

func newNaive(c Config) *naive {
	return &naive{config: c, flows: map[flowKey]*account{}, rings: map[ringKey]*tickets{}, lanes: map[int][]string{}, used: map[string]map[string]int{}, halved: map[string]time.Time{}}
}

func (w *waiting) flow() flowKey { return flowKey{w.Priority, w.Lane, w.tenant} }

func (n *naive) sum(in func(*waiting) bool) (l load, cost int64) {
	for _, w := range n.list {
		if in(w) {
			l, cost = l.plus(load{1, w.Bytes}), cost+int64(w.Cost)
		}
	}
	return l, cost
}

func (n *naive) any(in func(*waiting) bool) bool { return slices.ContainsFunc(n.list, in) }

// until is when an item has to go, and why.
func (n *naive) until(it *Item) (time.Time, Reason) {
	end := time.Unix(math.MaxInt32, 0)
	if n.config.TTL > 0 {
		end = it.Arrived.Add(n.config.TTL)
	}
	if !it.Expires.IsZero() {
		end = it.Expires
	}
	if d := it.Deadline; n.config.ShedHopeless && !d.IsZero() && d.Before(end) && !d.Add(1).Equal(end) {
		return d.Add(1), ReasonHopeless
	}
	return end, ReasonExpired
}

func (n *naive) tenantOf(it *Item) string {
	names := map[string]bool{}
	for _, w := range n.list {
		if w.Priority == it.Priority {
			names[w.tenant] = true
		}
	}
	if !names[it.Tenant] && len(names) >= n.config.MaxTenants {
		return others
	}
	return it.Tenant
}

func (n *naive) share(l load) float64 {
	return max(float64(l.n)/float64(n.config.MaxRequests), float64(l.bytes)/float64(n.config.MaxBytes))
}

// fits reports whether an item has room once the victims are gone.
func (n *naive) fits(it *Item, victims []*waiting) bool {
	stays := func(w *waiting) bool { return !slices.Contains(victims, w) }
	total, _ := n.sum(stays)
	band, _ := n.sum(func(w *waiting) bool { return stays(w) && w.Priority == it.Priority })
	c := n.config
	return total.n < c.MaxRequests && total.bytes+it.Bytes <= c.MaxBytes &&
		(c.BandRequests == 0 || band.n < c.BandRequests) && (c.BandBytes == 0 || band.bytes+it.Bytes <= c.BandBytes)
}

// hog is the tenant of a band that holds most without the victims, its newest
// request first.
func (n *naive) hog(priority int, victims []*waiting) []*waiting {
	of := map[string][]*waiting{}
	for _, w := range slices.Backward(n.list) {
		if w.Priority == priority && !slices.Contains(victims, w) {
			of[w.tenant] = append(of[w.tenant], w)
		}
	}
	var best []*waiting
	most := 0.0
	for _, list := range of {
		l := load{}
		for _, w := range list {
			l = l.plus(load{1, w.Bytes})
		}
		if s := n.share(l); s > most || s == most && list[0].seq > best[0].seq {
			best, most = list, s
		}
	}
	return best
}

// lowest adds victims of the lowest bands under the item's until it fits.
func (n *naive) lowest(it *Item, victims []*waiting) ([]*waiting, bool) {
	for !n.fits(it, victims) {
		low := math.MaxInt
		for _, w := range n.list {
			if !slices.Contains(victims, w) {
				low = min(low, w.Priority)
			}
		}
		if low >= it.Priority {
			return nil, false
		}
		victims = append(victims, n.hog(low, victims)[0])
	}
	return victims, true
}

// victims are those that have to go for an item; false if it finds no place.
func (n *naive) victims(it *Item) ([]*waiting, bool) {
	if out, ok := n.lowest(it, nil); ok {
		return out, true
	}
	hog := n.hog(it.Priority, nil)
	name := n.tenantOf(it)
	if len(hog) == 0 || hog[0].tenant == name {
		return nil, false
	}
	mine, _ := n.sum(func(w *waiting) bool { return w.Priority == it.Priority && w.tenant == name })
	for k := 1; k <= len(hog); k++ {
		left, _ := n.sum(func(w *waiting) bool { return slices.Contains(hog[k:], w) })
		if n.share(left) < n.share(mine.plus(load{1, it.Bytes})) {
			return nil, false
		}
		if out, ok := n.lowest(it, slices.Clone(hog[:k])); ok {
			return out, true
		}
	}
	return nil, false
}

func (n *naive) push(it Item, now time.Time) (Reason, []Shed) {
	if n.any(func(w *waiting) bool { return w.ID == it.ID }) {
		return ReasonDuplicate, nil
	}
	if end, why := n.until(&it); !end.After(now) {
		return why, nil
	}
	victims, ok := n.victims(&it)
	if !ok {
		return "full", nil
	}
	w := &waiting{Item: it, tenant: n.tenantOf(&it)}
	var out []Shed
	for _, v := range victims {
		out = append(out, Shed{v.Item, ReasonPushedOut})
		n.remove(v)
	}
	n.seq++
	w.seq = n.seq
	if !slices.Contains(n.lanes[it.Priority], it.Lane) {
		n.lanes[it.Priority] = append(n.lanes[it.Priority], it.Lane)
	}
	r := n.rings[ringKey{it.Priority, it.Lane}]
	if r == nil {
		r = &tickets{}
		n.rings[ringKey{it.Priority, it.Lane}] = r
	}
	if n.flows[w.flow()] == nil {
		r.ticket++
		n.flows[w.flow()] = &account{ticket: r.ticket, heavy: n.over(w.Lane, w.tenant)}
	}
	n.list = append(n.list, w)
	if _, known := n.halved[it.Lane]; !known {
		n.halved[it.Lane] = time.Time{}
	}
	return "", out
}

func (n *naive) remove(w *waiting) {
	n.list = slices.DeleteFunc(n.list, func(x *waiting) bool { return x == w })
	if !n.any(func(x *waiting) bool { return x.flow() == w.flow() }) {
		delete(n.flows, w.flow())
	}
	lane := func(x *waiting) bool { return x.Priority == w.Priority && x.Lane == w.Lane }
	if !n.any(lane) {
		delete(n.rings, ringKey{w.Priority, w.Lane})
		n.lanes[w.Priority] = slices.DeleteFunc(n.lanes[w.Priority], func(s string) bool { return s == w.Lane })
	}
}

func (n *naive) cancel(id string) bool {
	for _, w := range n.list {
		if w.ID == id {
			n.remove(w)
			return true
		}
	}
	return false
}

func (n *naive) expire(now time.Time) []Shed {
	due := slices.Clone(n.list)
	slices.SortStableFunc(due, func(a, b *waiting) int {
		x, _ := n.until(&a.Item)
		y, _ := n.until(&b.Item)
		return x.Compare(y)
	})
	var out []Shed
	for _, w := range due {
		if end, why := n.until(&w.Item); !end.After(now) {
			out = append(out, Shed{w.Item, why})
			n.remove(w)
		}
	}
	return out
}

// first is a flow's first request.
func (n *naive) first(k flowKey) *waiting {
	var best *waiting
	end := func(w *waiting) time.Time {
		if w.Deadline.IsZero() {
			return time.Unix(math.MaxInt32, 0)
		}
		return w.Deadline
	}
	for _, w := range n.list {
		if w.flow() == k && (best == nil || cmp.Or(end(w).Compare(end(best)), cmp.Compare(w.seq, best.seq)) < 0) {
			best = w
		}
	}
	return best
}

// next is the request whose turn it is in a ring: rounds pass until somebody can
// pay. grants says how many.
func (n *naive) next(k ringKey) (w *waiting, grants int) {
	firsts := map[flowKey]*waiting{}
	in := func(f flowKey) bool { return f.priority == k.priority && f.lane == k.lane }
	heavy := true // nobody is under its share
	for f, a := range n.flows {
		heavy = heavy && (!in(f) || a.heavy)
	}
	for f, a := range n.flows {
		if in(f) && a.heavy == heavy {
			firsts[f] = n.first(f)
		}
	}
	for ; w == nil; grants++ {
		for f, first := range firsts {
			if first.Cost > n.flows[f].credit+grants*n.config.Quantum {
				continue
			}
			if w == nil || n.flows[f].ticket < n.flows[w.flow()].ticket {
				w = first
			}
		}
	}
	return w, grants - 1
}

// over reports whether a tenant is over its share in a lane.
func (n *naive) over(lane, tenant string) bool {
	if n.config.Burst == 0 {
		return false
	}
	total := 0
	for _, v := range n.used[lane] {
		total += v
	}
	all := len(n.used[lane])
	return n.used[lane][tenant]*all > total+n.config.Quantum*all
}

func (n *naive) use(lane, tenant string, cost int) {
	if n.config.Burst == 0 {
		return
	}
	u := n.used[lane]
	if u == nil {
		u = map[string]int{}
		n.used[lane] = u
	}
	if _, known := u[tenant]; !known && len(u) >= n.config.MaxTenants {
		tenant = others
	}
	u[tenant] += cost
}

// age halves what was used, once for each Burst that is over.
func (n *naive) age(lane string, now time.Time) {
	if n.config.Burst == 0 {
		return
	}
	if n.halved[lane].IsZero() {
		n.halved[lane] = now
		return
	}
	passed := false
	for t := n.halved[lane]; !t.Add(n.config.Burst).After(now); t = t.Add(n.config.Burst) {
		passed = true
		for tenant, v := range n.used[lane] {
			if n.used[lane][tenant] = v / 2; v < 2 {
				delete(n.used[lane], tenant)
			}
		}
	}
	if passed {
		n.halved[lane] = now
	}
}

// classify moves the flows whose class has changed, in the order of their tickets.
func (n *naive) classify(in func(flowKey) bool) {
	var moved []flowKey
	for f, a := range n.flows {
		if in(f) && a.heavy != n.over(f.lane, f.tenant) {
			moved = append(moved, f)
		}
	}
	slices.SortFunc(moved, func(a, b flowKey) int { return cmp.Compare(n.flows[a].ticket, n.flows[b].ticket) })
	for _, f := range moved {
		r := n.rings[ringKey{f.priority, f.lane}]
		r.ticket++
		*n.flows[f] = account{ticket: r.ticket, heavy: !n.flows[f].heavy}
	}
}

func (n *naive) pump(now time.Time, try func(*Item) bool) int {
	for lane := range n.halved {
		n.age(lane, now)
	}
	n.classify(func(flowKey) bool { return true })
	left := 0
	held := map[string]bool{}
	for {
		k, ok := n.open(held)
		if !ok {
			return left
		}
		w, grants := n.next(k)
		if !try(&w.Item) {
			held[k.lane] = true
			continue
		}
		left++
		others := slices.DeleteFunc(n.lanes[k.priority], func(s string) bool { return s == k.lane })
		n.lanes[k.priority] = append(others, k.lane)
		n.use(w.Lane, w.tenant, w.Cost)
		for f, a := range n.flows {
			if f.priority == k.priority && f.lane == k.lane && a.heavy == n.flows[w.flow()].heavy {
				a.credit += grants * n.config.Quantum
			}
		}
		a, r := n.flows[w.flow()], n.rings[k]
		a.credit -= w.Cost
		key := w.flow()
		n.remove(w)
		if n.flows[key] != nil && a.heavy != n.over(key.lane, key.tenant) {
			n.classify(func(f flowKey) bool { return f == key })
		} else if first := n.first(key); first != nil && first.Cost > a.credit {
			r.ticket++
			a.ticket = r.ticket
		}
	}
}

// open is the ring to offer from: the highest band's, of its lanes the one whose
// turn it is.
func (n *naive) open(held map[string]bool) (ringKey, bool) {
	best, ok := 0, false
	for _, w := range n.list {
		if !held[w.Lane] && (!ok || w.Priority > best) {
			best, ok = w.Priority, true
		}
	}
	if !ok {
		return ringKey{}, false
	}
	for _, l := range n.lanes[best] {
		if !held[l] {
			return ringKey{best, l}, true
		}
	}
	return ringKey{}, false
}
