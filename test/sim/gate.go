package sim

import (
	"time"

	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/picker/flow"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// glance is how often a gate looks at least while somebody waits.
const glance = 250 * time.Millisecond

// admitting is a policy whose refusals for want of room wait in the router.
type admitting interface {
	// Flow is the queue's configuration; false if nothing waits.
	Flow() (flow.Config, bool)
	// Prospect is what a request may expect.
	Prospect(r *policies.Request) picker.Prospect
	// Full reports whether the last pick was refused because no worker has room, and
	// after how long there may be some.
	Full() (retry time.Duration, full bool)
}

// gate lets requests wait while no worker has room, in the production queue, and
// drives it as the picker's edge does (extproc): it looks who can go when a request
// comes or ends, when a worker reports, and when room is predicted.
type gate struct {
	router *router
	policy admitting
	config flow.Config
	queue  *flow.Queue
	waits  map[string]*call
	// tokens are uncached ones of the requests that wait.
	tokens int
	// due is when the agenda has it look, if armed.
	due   time.Duration
	armed bool
	// retry is the least that the refusals of this look named.
	retry time.Duration
}

// newGate is the router's gate; nil if its policy has none.
func newGate(r *router) *gate {
	a, ok := r.policy.(admitting)
	if !ok {
		return nil
	}
	cfg, ok := a.Flow()
	if !ok {
		return nil
	}
	return &gate{router: r, policy: a, config: cfg, queue: flow.New(cfg), waits: map[string]*call{}}
}

// arrive sends a request where the router says, or lets it wait.
func (g *gate) arrive(c *call) {
	now := g.router.fleet.now
	g.router.match(c)
	p := g.policy.Prospect(&c.Request)
	c.cached, c.targetMs = p.Cached, p.TargetMs
	e := &g.router.fleet.cfg.Trace.Entries[c.Index]
	item := flow.Item{ID: c.ID, Tenant: e.Tenant, Priority: e.Priority, Arrived: at(c.arrived), Cost: max(1, c.ISL-p.Cached)}
	if g.queue.Len() == 0 && g.offer(c, &item) {
		if !c.refused {
			g.queue.Passed(&item, at(now))
		}
		return
	}
	if slack := p.TargetMs - p.AloneMs; p.TargetMs > 0 && slack >= 0 {
		item.Deadline = at(c.arrived + milliseconds(slack))
	}
	if wait, known := g.queue.Wait(&item, at(now)); known && g.hopeless(&item, wait) {
		g.router.fleet.refuse(c)
		return
	}
	reason, out := g.queue.Push(item, at(now))
	g.shed(out)
	if reason != "" {
		g.router.fleet.refuse(c)
		return
	}
	g.waits[c.ID] = c
	g.tokens += item.Cost
	g.look()
}

// hopeless reports whether a request that waits so long misses its target.
func (g *gate) hopeless(item *flow.Item, wait time.Duration) bool {
	return g.config.ShedHopeless && !item.Deadline.IsZero() && item.Arrived.Add(wait).After(item.Deadline)
}

// offer sends a request, or refuses it for good; false if there is no room.
func (g *gate) offer(c *call, it *flow.Item) bool {
	f := g.router.fleet
	c.Room = 0
	if g.queue.Over(it, at(f.now)) {
		c.Room = flow.OverRoom
	}
	w := g.router.pick(c)
	if w < 0 {
		retry, full := g.policy.Full()
		if full {
			g.retry = min(g.retry, retry)
			return false
		}
		f.refuse(c)
		return true
	}
	waited := ms(f.now - c.arrived)
	if g.config.ShedHopeless && waited > 0 && c.targetMs > 0 &&
		waited+c.predicted > c.targetMs && c.predicted-c.queued <= c.targetMs {
		g.router.policy.Done(&c.Request, w, f.now)
		f.refuse(c)
		return true
	}
	c.predicted += waited
	f.dispatch(c, w)
	return true
}

// look sheds who cannot wait longer and offers the others.
func (g *gate) look() {
	now := g.router.fleet.now
	g.armed, g.retry = false, glance
	g.shed(g.queue.Expire(at(now)))
	g.queue.Pump(at(now), func(it *flow.Item) bool {
		if !g.offer(g.waits[it.ID], it) {
			return false
		}
		g.left(it)
		return true
	})
	if g.queue.Len() == 0 {
		return
	}
	next := now + max(g.retry, time.Millisecond)
	if t, ok := g.queue.NextExpiry(); ok {
		next = min(next, max(now+1, t.Sub(at(0))))
	}
	g.arm(next)
}

func (g *gate) left(it *flow.Item) {
	delete(g.waits, it.ID)
	g.tokens -= it.Cost
}

func (g *gate) shed(list []flow.Shed) {
	for i := range list {
		g.router.fleet.refuse(g.waits[list[i].ID])
		g.left(&list[i].Item)
	}
}

// news has it look after what happens now; nil has nothing to look at.
func (g *gate) news() {
	if g != nil && g.queue.Len() > 0 {
		g.arm(g.router.fleet.now)
	}
}

func (g *gate) arm(when time.Duration) {
	if g.armed && g.due <= when {
		return
	}
	g.due, g.armed = when, true
	g.router.fleet.agenda.add(event{at: when, class: classArrive, do: func() {
		if g.armed && g.due == when {
			g.look()
		}
	}})
}

func milliseconds(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
