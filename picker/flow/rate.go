package flow

import (
	"math"
	"time"
)

const (
	// rateWindow is how far back releases count, in time during which somebody waited:
	// what is older weighs less than 1/e.
	rateWindow = 10 * time.Second
	// rateLeast is the least time of waiting that says something about the rate.
	rateLeast = 250 * time.Millisecond
	// maxWait is the longest wait that is predicted: where nothing was released for
	// minutes the rate is next to nothing.
	maxWait = 24 * time.Hour
)

// rate is how fast a lane was released while somebody waited in it.
type rate struct {
	cost    float64 // tokens
	seconds float64
	last    time.Time
}

// pass notes that time has passed; waited says that somebody waited all the while.
func (r *rate) pass(now time.Time, waited bool) {
	if dt := now.Sub(r.last); waited && dt > 0 {
		old := math.Exp(-dt.Seconds() / rateWindow.Seconds())
		r.cost, r.seconds = r.cost*old, r.seconds*old+dt.Seconds()
	}
	r.last = now
}

func (r *rate) released(cost int) { r.cost += float64(cost) }

// perSecond is in tokens; false if not enough is known.
func (r *rate) perSecond() (float64, bool) {
	if r.seconds < rateLeast.Seconds() || r.cost <= 0 {
		return 0, false
	}
	return r.cost / r.seconds, true
}

// Ahead is the cost of what would be released before a request that came now, if
// nobody else came: the higher bands of its lane, what its own tenant has before it, and
// of each other tenant of its band and class as much as its own one gets meanwhile, and
// all of those under their share if its own one is over. It looks at
// every tenant of the band and every request of its own.
func (q *Queue) Ahead(it *Item) int64 {
	ahead := int64(0)
	for _, b := range q.bands {
		if b.priority < it.Priority {
			break
		}
		for _, r := range b.rings {
			switch {
			case r.lane.name != it.Lane:
			case b.priority > it.Priority:
				ahead += r.cost
			default:
				name := q.nameOf(b, it.Tenant)
				ahead += r.ahead(name, q.class(r, name), it)
			}
		}
	}
	return ahead
}

// ahead is of one ring, for a request of a tenant of that class.
func (r *ring) ahead(name string, class int, it *Item) int64 {
	own, mine := int64(0), r.byName[name]
	if mine != nil {
		newcomer := entry{item: *it, seq: math.MaxUint64}
		for _, e := range mine.entries.list {
			if sooner(e, &newcomer) {
				own += int64(e.item.Cost)
			}
		}
	}
	ahead, turn := own, own+int64(max(1, it.Cost))
	for i := range class + 1 {
		for _, f := range r.turns[i].flows.list {
			switch {
			case f == mine:
			case i < class:
				ahead += f.cost
			default:
				ahead += min(f.cost, turn)
			}
		}
	}
	return ahead
}

// Wait is how long a request that came now would wait, at the rate at which its lane
// was released of late; false if nothing is known of that.
func (q *Queue) Wait(it *Item, now time.Time) (time.Duration, bool) {
	l := q.lanes[it.Lane]
	if l == nil {
		return 0, false
	}
	l.rate.pass(now, l.n > 0)
	perSecond, ok := l.rate.perSecond()
	if !ok {
		return 0, false
	}
	seconds := min(float64(q.Ahead(it))/perSecond, maxWait.Seconds())
	return time.Duration(seconds * float64(time.Second)), true
}
