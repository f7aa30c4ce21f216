package extproc

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/picker/flow"
)

const (
	// soon is how long the gate waits for more news of the workers before it looks:
	// a thousand of them report some 50 times a second each.
	soon = 2 * time.Millisecond
	// glance is how often the gate looks at least while somebody waits: what is
	// predicted may come earlier.
	glance = 250 * time.Millisecond
)

// gate lets requests wait while no worker has room for them.
//
// Each waiting request has a ticket. It is decided once, by the gate: with a booking,
// which is the stream's from then on, or with a refusal. The gate looks who can go
// when a request comes or ends, when a worker reports, and when room is predicted; all
// of that is done by its one goroutine ([gate.run]).
type gate struct {
	cfg     FlowConfig
	router  *Router
	metrics *FlowMetrics
	clock   func() time.Time
	// panicked is told of a fault in our own code that one request has met.
	panicked func(what, id string, reason any)
	news     chan struct{} // has room for one: look now
	reports  chan struct{} // likewise: look soon
	waiting  atomic.Int64

	mu      sync.Mutex
	queue   *flow.Queue
	tickets map[string]*ticket
	stopBy  time.Time // zero: the server goes on
}

// ticket is a request that waits.
type ticket struct {
	item     flow.Item
	prepared *prepared
	prospect picker.Prospect
	decided  chan struct{} // closed when what follows is set
	decision Decision
	refusal  *Refusal
}

func newGate(cfg FlowConfig, router *Router, m *FlowMetrics, clock func() time.Time, panicked func(string, string, any)) *gate {
	return &gate{
		cfg: cfg, router: router, metrics: m, clock: clock, panicked: panicked,
		news: make(chan struct{}, 1), reports: make(chan struct{}, 1),
		queue: flow.New(cfg.Queue), tickets: make(map[string]*ticket),
	}
}

// busy reports whether a newcomer has to wait behind others.
func (g *gate) busy() bool { return g.waiting.Load() > 0 }

// changed asks the gate to look who can go.
func (g *gate) changed() { g.ask(g.news) }

// reported is changed for news that come often.
func (g *gate) reported() { g.ask(g.reports) }

func (g *gate) ask(whom chan struct{}) {
	if !g.busy() {
		return
	}
	select {
	case whom <- struct{}{}:
	default:
	}
}

// enter lets a request wait. held is the memory that is held for it; expires, if not
// zero, is when it has to be decided.
func (g *gate) enter(now time.Time, a Ask, held int64, expires time.Time) (*ticket, Decision, *Refusal) {
	p, refusal := g.router.prepare(now, a)
	if refusal != nil {
		return nil, Decision{}, refusal
	}
	t := &ticket{prepared: p, prospect: g.router.prospect(now, p), decided: make(chan struct{})}
	req := &p.scratch.request
	t.item = flow.Item{
		ID: a.ID, Tenant: a.Tenant, Lane: g.router.lane(&p.decision), Priority: p.decision.Priority,
		Arrived: now, Expires: expires, Cost: max(1, req.ISL-t.prospect.Cached), Bytes: held + p.bytes(),
	}
	if s := t.slackMs(); s >= 0 {
		t.item.Deadline = now.Add(milliseconds(s))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if reason := g.push(now, t); reason != "" {
		return nil, p.decision, g.refuse(now, t, Cause(reason))
	}
	g.metrics.queued(g.queue)
	g.waiting.Store(int64(g.queue.Len()))
	g.changed()
	return t, p.decision, nil
}

// slackMs is how long the request may wait and meet its target; negative if it
// has none, or one that not even an idle worker meets: then waiting changes nothing.
func (t *ticket) slackMs() float64 {
	if t.prospect.TargetMs <= 0 {
		return -1
	}
	return t.prospect.TargetMs - t.prospect.AloneMs
}

// push queues a ticket. The caller holds mu.
func (g *gate) push(now time.Time, t *ticket) flow.Reason {
	if !g.stopBy.IsZero() && !now.Before(g.stopBy) {
		return flow.Reason(CauseStopping)
	}
	if wait, known := g.queue.Wait(&t.item, now); known && g.hopeless(t, wait) {
		return flow.ReasonHopeless
	}
	reason, out := g.queue.Push(t.item, now)
	for i := range out {
		g.turnAway(now, &out[i])
	}
	if reason == "" {
		g.tickets[t.item.ID] = t
	}
	return reason
}

// hopeless reports whether a request that waits so long misses its target.
func (g *gate) hopeless(t *ticket, wait time.Duration) bool {
	return g.cfg.Queue.ShedHopeless && !t.item.Deadline.IsZero() && t.item.Arrived.Add(wait).After(t.item.Deadline)
}

// leave gives up a request whose client left, or takes over what was decided of it
// meanwhile: a booking that has to be closed.
func (g *gate) leave(t *ticket) (booked bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Cancel(t.item.ID) {
		delete(g.tickets, t.item.ID)
		g.metrics.left(t, g.clock(), aborted)
		g.metrics.queued(g.queue)
		g.waiting.Store(int64(g.queue.Len()))
		return false
	}
	return t.refusal == nil
}

// look turns away those who cannot wait longer and offers the others to the pool. It
// returns when to look again; false if nobody waits.
func (g *gate) look(now time.Time) (next time.Time, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	expired := g.queue.Expire(now)
	for i := range expired {
		g.turnAway(now, &expired[i])
	}
	if !g.stopBy.IsZero() && !now.Before(g.stopBy) {
		g.stopAll(now)
	}
	room := glance
	g.queue.Pump(now, func(it *flow.Item) bool {
		t := g.tickets[it.ID]
		again, done := g.offer(now, t)
		if done {
			delete(g.tickets, it.ID)
			close(t.decided)
			return true
		}
		room = min(room, again)
		return false
	})
	g.metrics.queued(g.queue)
	g.waiting.Store(int64(g.queue.Len()))
	if g.queue.Len() == 0 {
		return time.Time{}, false
	}
	next = now.Add(room)
	if at, ok := g.queue.NextExpiry(); ok && at.Before(next) {
		next = at
	}
	if !g.stopBy.IsZero() && g.stopBy.Before(next) {
		next = g.stopBy
	}
	return next, true
}

// offer tries one request and decides it, unless there is still no room: again is
// when there may be.
func (g *gate) offer(now time.Time, t *ticket) (again time.Duration, done bool) {
	req := &t.prepared.scratch.request
	req.Room = roomOf(g.queue.Over(&t.item, now))
	d, refusal := g.try(now, t)
	if refusal != nil && refusal.Cause == CauseOverloaded {
		ms := d.Plan.RetryAfterMs - req.QueueMs(t.prospect.RoomMs)
		return max(time.Millisecond, milliseconds(ms)), false
	}
	d.Waited = now.Sub(t.item.Arrived)
	if refusal == nil && g.misses(&d.Plan, t.prospect.TargetMs, d.Waited) {
		g.router.Close(now, t.item.ID)
		refusal = g.refuse(now, t, Cause(flow.ReasonHopeless))
	}
	t.decision, t.refusal = d, refusal
	outcome := released
	if refusal != nil {
		outcome = string(refusal.Cause)
	}
	g.metrics.left(t, now, outcome)
	return 0, true
}

// roomOf is what a request gets of the workers' limits ([picker.Request].Room).
func roomOf(over bool) float64 {
	if over {
		return flow.OverRoom
	}
	return 0
}

// room is that of a request that does not wait.
func (g *gate) room(now time.Time, tenant, lane string) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return roomOf(g.queue.Over(&flow.Item{Tenant: tenant, Lane: lane}, now))
}

// passed counts a request that did not wait.
func (g *gate) passed(now time.Time, tenant string, d *Decision) {
	it := flow.Item{Tenant: tenant, Lane: g.router.lane(d), Cost: d.Plan.ISL - d.Plan.Cached}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Passed(&it, now)
}

// try asks the router, and refuses the request if that panics.
func (g *gate) try(now time.Time, t *ticket) (d Decision, r *Refusal) {
	defer func() {
		if p := recover(); p != nil {
			g.panicked("pick", t.item.ID, p)
			d, r = t.prepared.decision, &Refusal{Cause: CauseInternal}
		}
	}()
	return g.router.try(now, t.prepared)
}

// judge refuses a request that did not wait, and closes its booking, if its plan is
// predicted to miss its target because of the worker's queue. Waiting here would not
// help it: the queue drains no faster than the time passes.
func (g *gate) judge(now time.Time, id string, p *picker.Plan, own picker.SLO) *Refusal {
	target := g.router.pool.Targets(own).TTFTMs
	if !g.misses(p, target, 0) {
		return nil
	}
	g.router.Close(now, id)
	return &Refusal{Cause: CauseHopeless, RetryAfter: retryAfter(milliseconds(p.TTFTMs - target))}
}

// misses reports whether a plan is predicted to miss a target that the same plan
// would meet without waiting, here and in the worker's queue.
func (g *gate) misses(p *picker.Plan, targetMs float64, waited time.Duration) bool {
	if !g.cfg.Queue.ShedHopeless || targetMs <= 0 || len(p.Costs) == 0 {
		return false
	}
	ms := float64(waited) / float64(time.Millisecond)
	return ms+p.TTFTMs > targetMs && p.TTFTMs-p.Costs[0].Queue <= targetMs
}

// turnAway refuses a request that the queue has shed. The caller holds mu.
func (g *gate) turnAway(now time.Time, s *flow.Shed) {
	t := g.tickets[s.ID]
	delete(g.tickets, s.ID)
	t.decision = t.prepared.decision
	t.decision.Waited = now.Sub(t.item.Arrived)
	t.refusal = g.refuse(now, t, Cause(s.Reason))
	g.metrics.left(t, now, string(s.Reason))
	close(t.decided)
}

// stopAll refuses all that wait. The caller holds mu.
func (g *gate) stopAll(now time.Time) {
	for id, t := range g.tickets {
		g.queue.Cancel(id)
		g.turnAway(now, &flow.Shed{Item: t.item, Reason: flow.Reason(CauseStopping)})
	}
}

// refuse is a refusal with the time after which the queue ahead is predicted to be
// gone. The caller holds mu.
func (g *gate) refuse(now time.Time, t *ticket, cause Cause) *Refusal {
	wait, known := g.queue.Wait(&t.item, now)
	if !known && t.prospect.TokensPerSecond > 0 {
		wait = seconds(float64(g.queue.Ahead(&t.item)) / t.prospect.TokensPerSecond)
	}
	return &Refusal{Cause: cause, RetryAfter: retryAfter(wait)}
}

// maxRetryAfter bounds what a client is told to wait.
const maxRetryAfter = 10 * time.Minute

// retryAfter is what a client is told of a predicted wait.
func retryAfter(wait time.Duration) time.Duration { return max(time.Second, min(wait, maxRetryAfter)) }

// stop lets what waits wait until then.
func (g *gate) stop(by time.Time) {
	g.mu.Lock()
	g.stopBy = by
	g.mu.Unlock()
	g.changed()
}

// run looks until ctx ends.
func (g *gate) run(ctx context.Context) {
	timer := time.NewTimer(glance)
	defer timer.Stop()
	var next time.Time // of the timer
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.reports:
			if at := g.clock().Add(soon); at.Before(next) {
				next = at
				timer.Reset(soon)
			}
			continue
		case <-g.news:
		case <-timer.C:
		}
		now := g.clock()
		at, ok := g.look(now)
		if !ok {
			at = now.Add(time.Hour) // whoever comes says so
		}
		next = at
		timer.Reset(at.Sub(now))
	}
}

func milliseconds(ms float64) time.Duration { return seconds(ms / 1000) }

// seconds is within what a duration can hold.
func seconds(s float64) time.Duration {
	return time.Duration(min(max(s, 0), math.MaxInt32) * float64(time.Second))
}
