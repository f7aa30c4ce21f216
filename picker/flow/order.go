package flow

import "time"

// entry is a request that waits.
type entry struct {
	item Item
	seq  uint64 // of its arrival
	flow *flow
	// until is when it has to go if it still waits; zero: never. reason is why then.
	until  time.Time
	reason Reason

	older, newer     *entry // of the same tenant
	inFlow, inExpiry int    // places in heaps
}

// sooner is the order within a tenant.
func sooner(a, b *entry) bool {
	x, y := a.item.Deadline, b.item.Deadline
	if x.Equal(y) {
		return a.seq < b.seq
	}
	return y.IsZero() || !x.IsZero() && x.Before(y)
}

// band is all requests of one priority.
type band struct {
	priority int
	load     load
	cost     int64
	tenants  map[string]*tenant
	hogs     heap[tenant] // who holds most first
	rings    []*ring      // one for each lane that waits
	turn     uint64       // counts the turns of rings
}

// tenant is what one tenant has in a band.
type tenant struct {
	name   string
	band   *band
	load   load
	share  int64  // see [Queue.share]
	newest *entry // of all lanes; the others follow by older
	place  int
}

// flow is what one tenant has in a lane of a band.
//
// In each round of its turns a flow is granted a quantum; it may spend what it has
// on its first request. That is done without walking through rounds: the flow's
// key is the round in which it will be able to pay.
type flow struct {
	tenant  *tenant
	ring    *ring
	turns   *turns // of its class
	entries heap[entry]
	cost    int64 // of its entries
	credit  int64 // tokens, after the rounds up to granted
	granted uint64
	round   uint64 // when the first request can be paid
	ticket  uint64 // the order within a round
	place   int
}

// turns is the flows of a ring that take turns. Rounds only grow, and no flow's round
// is over: so two flows that both wait have been granted the same, but for a round.
type turns struct {
	flows heap[flow]
	round uint64
}

// The turns of a ring: those of tenants over their share come after all others.
const (
	light = iota
	heavy
)

// ring is the flows of a lane in a band.
type ring struct {
	lane   *lane
	band   *band
	byName map[string]*flow
	turns  [2]turns
	cost   int64
	served uint64 // its last turn in the band
	ticket uint64 // the last one given
}

// top is the flow whose turn it is.
func (r *ring) top() *flow {
	if f := r.turns[light].flows.top(); f != nil {
		return f
	}
	return r.turns[heavy].flows.top()
}

// lane is the requests that the same workers can serve, over all bands.
type lane struct {
	name string
	n    int
	cost int64
	held bool // in this Pump
	rate rate
	used usage
}

// enter adds a request to the flow.
func (f *flow) enter(e *entry, quantum int64) {
	f.settle(quantum)
	f.entries.push(e)
	f.add(int64(e.item.Cost))
	f.key(quantum)
}

// leave takes a request out and reports whether another one is there.
func (f *flow) leave(e *entry, quantum int64) bool {
	f.settle(quantum)
	f.entries.remove(e)
	f.add(-int64(e.item.Cost))
	if f.entries.top() == nil {
		return false
	}
	f.key(quantum)
	return true
}

func (f *flow) add(cost int64) {
	f.cost += cost
	f.ring.cost += cost
	f.ring.band.cost += cost
	f.ring.lane.cost += cost
}

// settle takes the grants of the rounds until now.
func (f *flow) settle(quantum int64) {
	f.credit += int64(f.turns.round-f.granted) * quantum
	f.granted = f.turns.round
}

// key finds out when the first request can be paid.
func (f *flow) key(quantum int64) {
	f.round = f.granted
	if short := int64(f.entries.top().item.Cost) - f.credit; short > 0 {
		f.round += uint64((short + quantum - 1) / quantum)
	}
}

// pay lets the turns come to the round of its first flow, and charges that one for
// its first request.
func (f *flow) pay(quantum int64) {
	f.turns.round = f.round
	f.settle(quantum)
	f.credit -= int64(f.entries.top().item.Cost)
}

// rest moves a flow that has paid and cannot pay its next request from what is left
// behind the others of its round.
func (f *flow) rest() {
	if f.round > f.turns.round {
		f.ticket = f.ring.next()
	}
}

func (r *ring) next() uint64 {
	r.ticket++
	return r.ticket
}
